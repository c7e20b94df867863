//! Fuzz target: sealed files and keys. Reading terminates, and reads at any offset return the same
//! bytes as one read of the whole file.
#![cfg_attr(fuzzing, no_main)]

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
};
use wqcap_files::sealed::{Content, SecretKey};

/// Key with which the corpus is sealed.
const KEY: [u8; 32] = [7; 32];

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    if let Ok(key) = SecretKey::parse(input) {
        // A key is 32 bytes, or their hex digits in one line.
        assert!((32..=66).contains(&input.len()));
        drop(key);
    }
    let path = std::env::temp_dir().join(format!("wqcap-sealed-{}", std::process::id()));
    fs::write(&path, input).expect("the temporary directory is writable");
    read(input, &path);
    fs::remove_file(&path).expect("the file exists");
}

fn read(input: &[u8], path: &std::path::Path) {
    let Ok(mut content) = Content::open(path, Some(&SecretKey::new(&KEY))) else {
        return;
    };
    let mut whole = Vec::new();
    let is_whole = content.read_to_end(&mut whole).is_ok();
    assert!(whole.len() <= input.len());
    let step = (whole.len() / 3).max(1);
    for at in (0..whole.len()).rev().step_by(step) {
        content
            .seek(SeekFrom::Start(at as u64))
            .expect("the offset is inside the file");
        let mut some = vec![0; step.min(whole.len() - at)];
        content
            .read_exact(&mut some)
            .expect("the bytes were readable before");
        assert!(some == whole[at..at + some.len()]);
    }
    if input.starts_with(b"wqcapENC") && input.len() >= 64 && is_whole {
        // All returned bytes are authenticated, so the file has a header and at least one tag.
        assert!(input.len() >= 64 + whole.len() + 16);
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
