//! Fuzz target: pin files. A file is either a valid pin, which is equal after it is written again,
//! or it is listed as unsound with a reason, and then all capture files are kept.
#![cfg_attr(fuzzing, no_main)]

use std::fs;
use wqcap_files::pin::{Pin, PinFolder};

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    let dir = std::env::temp_dir().join(format!("wqcap-pins-{}", std::process::id()));
    let pins = dir.join(".wqcap-pins");
    fs::create_dir_all(&pins).expect("the temporary directory is writable");
    fs::write(pins.join("x.json"), input).expect("the temporary directory is writable");
    let folder = PinFolder { dir: &dir };
    let found = folder.read();
    assert_eq!(found.sound.len() + found.unsound.len(), 1);
    assert!(found.notes.is_empty());
    for (id, pin) in &found.sound {
        assert_eq!(id, "x");
        assert!(pin.from_ns < pin.to_ns && !pin.reason.trim().is_empty());
        for text in [&pin.reason, &pin.filter] {
            assert!(text.len() <= Pin::LONGEST && !text.chars().any(char::is_control));
        }
        let text = serde_json::to_vec(pin).expect("a pin serialises");
        fs::write(pins.join("x.json"), text).expect("the temporary directory is writable");
        assert_eq!(folder.read(), found);
    }
    fs::remove_dir_all(&dir).expect("the directory exists");
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
