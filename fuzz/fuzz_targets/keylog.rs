//! Logs of TLS secrets: each line is a secret, says nothing, or is told by its number.
#![cfg_attr(fuzzing, no_main)]

use wqcap_files::format::secrets::{KeyLogError, Secrets};

/// The target.
pub fn run(input: &[u8]) {
    let lines = input.split_inclusive(|it| *it == b'\n');
    match Secrets::of_tls_key_log(input) {
        Ok(pieces) => {
            assert!(!pieces.is_empty() && pieces.len() <= lines.count());
            // What is no text is no secret.
            assert!(str::from_utf8(input).is_ok());
        }
        Err(KeyLogError::Line(line)) => {
            let before: Vec<_> = lines.take(line - 1).flatten().copied().collect();
            // All lines before it are sound, though there may be no secret among them.
            let before = Secrets::of_tls_key_log(&before);
            assert!(!matches!(before, Err(KeyLogError::Line(_))));
        }
        Err(KeyLogError::Empty) => {}
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
