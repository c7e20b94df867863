//! Fuzz target: offsets of the outermost packet's headers are ascending and within the frame.
#![cfg_attr(fuzzing, no_main)]

use wqcap_frame::Headers;

/// Runs the target on one input.
pub fn run(frame: &[u8]) {
    let headers = Headers::parse(frame);
    let mut last = 0;
    for at in [headers.l3(), headers.l4(), headers.payload()]
        .into_iter()
        .flatten()
    {
        assert!(last < at && at <= headers.end(), "{headers:?}");
        last = at;
    }
    assert!(headers.end() <= frame.len(), "{headers:?}");
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
