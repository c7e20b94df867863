//! Statuses of sensors, as they lie in a store where others may put them: what is read is read again as it was.
#![cfg_attr(fuzzing, no_main)]

use wqcap_ship::fleet::SensorStatus;

/// The target.
pub fn run(input: &[u8]) {
    let Ok(status) = SensorStatus::parse(input) else {
        return;
    };
    let text = serde_json::to_string(&status).expect("serialises");
    let mut again = SensorStatus::parse(text.as_bytes()).expect("what was read is read again");
    // The last digit of a fraction may differ.
    assert!((again.lag_s - status.lag_s).abs() <= status.lag_s * f64::EPSILON);
    again.lag_s = status.lag_s;
    assert_eq!(again, status);
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
