//! Fuzz target: headers of the innermost packet in tunnels, and its flow key.
#![cfg_attr(fuzzing, no_main)]

use wqcap_frame::{FlowKey, Headers};

/// Runs the target on one input.
pub fn run(frame: &[u8]) {
    let headers = Headers::innermost(frame);
    assert!(headers.end() <= frame.len(), "{headers:?}");
    let there = FlowKey::from_headers(frame, &headers);
    let mut back = headers;
    back.tuple = headers.tuple.reversed();
    if headers.l3().is_some() {
        assert_eq!(there, FlowKey::from_headers(frame, &back));
        assert_eq!(
            FlowKey::spread(frame, &headers),
            FlowKey::spread(frame, &back)
        );
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
