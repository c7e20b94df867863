//! Fuzz target: the layer iterator terminates, offsets ascend, and the first IP header agrees with
//! `Headers`.
#![cfg_attr(fuzzing, no_main)]

#[path = "../../engine/frame/tests/frames/layers.rs"]
#[allow(dead_code, reason = "the tests use more of this module")]
mod walk;

use walk::{Layer, Layers};
use wqcap_frame::{Headers, MAX_HEADERS};

/// Runs the target on one input.
pub fn run(frame: &[u8]) {
    let mut layers = Layers::new(frame);
    let (mut count, mut last, mut first_ip) = (0, 0, None);
    for located in layers.by_ref() {
        assert!(last <= located.at && located.at < frame.len());
        last = located.at;
        count += 1;
        if matches!(located.layer, Layer::Ipv4(_) | Layer::Ipv6(_)) {
            first_ip.get_or_insert(located.at);
        }
    }
    assert!(count <= usize::from(MAX_HEADERS));
    assert_eq!(Headers::parse(frame).l3(), first_ip);
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
