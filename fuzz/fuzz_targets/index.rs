//! Fuzz target: selection of ranges by an arbitrary index terminates. The checksum, which a
//! mutation would break, is left out.
#![cfg_attr(fuzzing, no_main)]

use wqcap_files::{
    index::{CaptureIndex, FlowTerms},
    read::FileRanges,
};

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    let Some(index) = CaptureIndex::decode(input) else {
        return;
    };
    for (expression, times) in [
        ("", 0..u64::MAX),
        ("host 10.0.0.1 and udp port 53", 5..1 << 60),
    ] {
        let ranges = index.select(&times, &FlowTerms::parse(expression));
        assert!(ranges.len() <= index.blocks.len() + 1);
        let file = FileRanges::new("none".into(), ranges);
        assert!(file.bytes(1000) <= 1000 * (index.blocks.len() as u64 + 1));
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
