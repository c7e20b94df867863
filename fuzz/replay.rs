//! Replays a corpus with the compiler that everything else is built with: each file, each of its beginnings, and each with
//! one bit turned. For tests of the crates beside this folder.

use std::{fs, path::Path};

/// Bits that are turned: those of a file's first bytes.
const TURNED: usize = 8 * 512;

/// Gives a target each file of a corpus.
///
/// # Panics
/// The target does.
pub fn replay(corpus: &str, target: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let entries = fs::read_dir(dir.join(corpus)).expect("a corpus");
    let mut files: Vec<_> = entries.map(|it| it.expect("lists").path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        println!("{}", file.display());
        let bytes = fs::read(&file).expect("reads");
        for len in 0..=bytes.len() {
            target(&bytes[..len]);
        }
        for bit in 0..TURNED.min(8 * bytes.len()) {
            let mut turned = bytes.clone();
            turned[bit / 8] ^= 1 << (bit % 8);
            target(&turned);
        }
    }
}
