//! Fuzz target: TLS key logs. Each line is a secret, is empty or a comment, or is counted as left
//! out.
#![cfg_attr(fuzzing, no_main)]

use wqcap_files::format::secrets::{KeyLogError, Secrets};

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    let lines = input.split_inclusive(|it| *it == b'\n').count();
    match Secrets::from_tls_key_log(input) {
        Ok(log) => {
            let left_out = log.left_out.map_or(0, |it| it.count);
            assert!(!log.secrets.is_empty() && log.secrets.len() + left_out <= lines);
            assert!(
                log.left_out
                    .is_none_or(|it| (1..=lines).contains(&it.first))
            );
            // A line that is not UTF-8 has no secret.
            assert!(log.left_out.is_some() || str::from_utf8(input).is_ok());
        }
        Err(KeyLogError::Line(line)) => assert!((1..=lines).contains(&line)),
        Err(KeyLogError::Empty) => {}
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
