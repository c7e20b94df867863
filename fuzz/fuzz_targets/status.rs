//! Fuzz target: sensor statuses from an object store, which are untrusted. A parsed status is equal
//! after a round trip.
#![cfg_attr(fuzzing, no_main)]

use wqcap_ship::fleet::SensorStatus;

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    let Ok(status) = SensorStatus::parse(input) else {
        return;
    };
    let text = serde_json::to_string(&status).expect("serialises");
    let mut again = SensorStatus::parse(text.as_bytes()).expect("a parsed status parses again");
    // The last digit of the fraction may differ.
    assert!((again.lag_s - status.lag_s).abs() <= status.lag_s * f64::EPSILON);
    again.lag_s = status.lag_s;
    assert_eq!(again, status);
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
