//! Replay of a fuzz corpus with the stable compiler, for tests of the crates next to this folder.
//! Each file is replayed whole, truncated at every length, and with one bit flipped.

use std::{fs, path::Path};

/// Maximum number of bits that are flipped, one at a time, from the start of a file.
const FLIPPED: usize = 8 * 512;

/// Runs a target on each file of a corpus and its variants.
///
/// # Panics
/// The target panics on an input.
pub fn replay(corpus: &str, target: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let entries = fs::read_dir(dir.join(corpus)).expect("the corpus exists");
    let mut files: Vec<_> = entries
        .map(|it| it.expect("the folder lists").path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        println!("{}", file.display());
        let bytes = fs::read(&file).expect("the file reads");
        for len in 0..=bytes.len() {
            target(&bytes[..len]);
        }
        for bit in 0..FLIPPED.min(8 * bytes.len()) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            target(&flipped);
        }
    }
}
