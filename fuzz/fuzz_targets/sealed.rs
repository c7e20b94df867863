//! Sealed files, and the keys that open them: reading ends, and gives in pieces what it gives in one go.
#![cfg_attr(fuzzing, no_main)]

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
};
use wqcap_files::sealed::{Content, SecretKey, open_with};

/// The key of the corpus.
const KEY: [u8; 32] = [7; 32];

/// The target.
pub fn run(input: &[u8]) {
    if let Ok(key) = SecretKey::parse(input) {
        // It is 32 bytes or their digits, and no more than a line.
        assert!((32..=66).contains(&input.len()));
        drop(key);
    }
    open_with(SecretKey::new(&KEY));
    let path = std::env::temp_dir().join(format!("wqcap-sealed-{}", std::process::id()));
    fs::write(&path, input).expect("scratch space");
    read(input, &path);
    fs::remove_file(&path).expect("it is there");
}

fn read(input: &[u8], path: &std::path::Path) {
    let Ok(mut content) = Content::open(path) else {
        return;
    };
    let mut whole = Vec::new();
    let is_whole = content.read_to_end(&mut whole).is_ok();
    assert!(whole.len() <= input.len());
    let step = (whole.len() / 3).max(1);
    for at in (0..whole.len()).rev().step_by(step) {
        content
            .seek(SeekFrom::Start(at as u64))
            .expect("a place in it");
        let mut some = vec![0; step.min(whole.len() - at)];
        content.read_exact(&mut some).expect("it was read before");
        assert!(some == whole[at..at + some.len()]);
    }
    if input.starts_with(b"wqcapENC") && input.len() >= 64 && is_whole {
        // Nothing of what was sealed is given that was changed.
        assert!(input.len() >= 64 + whole.len() + 16);
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
