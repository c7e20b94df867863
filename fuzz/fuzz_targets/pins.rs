//! Pins: a file among them is a sound one, which is the same when it is written anew, or holds everything and says why.
#![cfg_attr(fuzzing, no_main)]

use std::fs;
use wqcap_files::pin::{Pin, PinFolder};

/// The target.
pub fn run(input: &[u8]) {
    let dir = std::env::temp_dir().join(format!("wqcap-pins-{}", std::process::id()));
    let pins = dir.join(".wqcap-pins");
    fs::create_dir_all(&pins).expect("scratch space");
    fs::write(pins.join("x.json"), input).expect("scratch space");
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
        let text = serde_json::to_vec(pin).expect("text and numbers");
        fs::write(pins.join("x.json"), text).expect("scratch space");
        assert_eq!(folder.read(), found);
    }
    fs::remove_dir_all(&dir).expect("it is there");
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
