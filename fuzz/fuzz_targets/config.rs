//! Fuzz target: an accepted configuration is written as TOML that is accepted again and has the
//! same meaning.
#![cfg_attr(fuzzing, no_main)]

use wqcap_engine::config::Config;

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    if let Ok(config) = Config::parse(text) {
        let written = config.to_toml();
        let again = Config::parse(&written).unwrap_or_else(|e| panic!("{e}\n{written}"));
        assert_eq!(again.to_toml(), written);
    }
    // The lines as settings of a command line.
    let settings: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    let _ = Config::with_overrides("", &settings);
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
