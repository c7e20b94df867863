//! Fuzz target: TLS key logs. Each line is a secret, is empty or a comment, or is reported by its
//! number.
#![cfg_attr(fuzzing, no_main)]

use wqcap_files::format::secrets::{KeyLogError, Secrets};

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    let lines = input.split_inclusive(|it| *it == b'\n');
    match Secrets::from_tls_key_log(input) {
        Ok(pieces) => {
            assert!(!pieces.is_empty() && pieces.len() <= lines.count());
            // Input that is not UTF-8 has no secrets.
            assert!(str::from_utf8(input).is_ok());
        }
        Err(KeyLogError::Line(line)) => {
            let before: Vec<_> = lines.take(line - 1).flatten().copied().collect();
            // All lines before the faulty one are valid, even if none of them is a secret.
            let before = Secrets::from_tls_key_log(&before);
            assert!(!matches!(before, Err(KeyLogError::Line(_))));
        }
        Err(KeyLogError::Empty) => {}
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
