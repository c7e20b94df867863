//! Replays the corpus of the fuzz targets, with the compiler that everything else is built with: each file, each of its
//! beginnings, and each with one bit turned.

#[path = "../../fuzz/fuzz_targets/anonymize.rs"]
mod anonymize;
#[path = "../../fuzz/fuzz_targets/config.rs"]
mod config;
#[path = "../../fuzz/fuzz_targets/control.rs"]
mod control;
#[path = "../../fuzz/fuzz_targets/filter.rs"]
mod filter;
#[path = "../../fuzz/fuzz_targets/headers.rs"]
mod headers;
#[path = "../../fuzz/fuzz_targets/index.rs"]
mod index;
#[path = "../../fuzz/fuzz_targets/innermost.rs"]
mod innermost;
#[path = "../../fuzz/fuzz_targets/layers.rs"]
mod layers;
#[cfg(feature = "flows")]
#[path = "../../fuzz/fuzz_targets/names.rs"]
mod names;
#[path = "../../fuzz/fuzz_targets/reader.rs"]
mod reader;
#[path = "../../fuzz/fuzz_targets/views.rs"]
mod views;

use std::{fs, path::Path};

/// Bits that are turned: those of a file's first bytes.
const TURNED: usize = 8 * 512;

fn replay(corpus: &str, target: fn(&[u8])) {
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

#[test]
fn capture_files() {
    replay("reader", reader::run);
}

#[test]
fn indexes() {
    replay("index", index::run);
}

#[test]
fn control_messages() {
    replay("control", control::run);
}

#[test]
fn configurations() {
    replay("config", config::run);
}

#[cfg(feature = "flows")]
#[test]
fn payloads() {
    replay("names", names::run);
}

#[test]
fn frames() {
    for target in [
        anonymize::run,
        filter::run,
        headers::run,
        innermost::run,
        layers::run,
        views::run,
    ] {
        replay("headers", target);
    }
}
