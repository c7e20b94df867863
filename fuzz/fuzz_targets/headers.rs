//! The short way, to the outermost packet: offsets lie within the frame and in order.
#![cfg_attr(fuzzing, no_main)]

use wqcap_frame::Headers;

/// The target.
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
