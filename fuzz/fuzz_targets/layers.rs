//! The whole way: it ends, each header lies behind the one before, and both ways agree on the first packet.
#![cfg_attr(fuzzing, no_main)]

#[path = "../../engine/frame/tests/frames/layers.rs"]
#[allow(dead_code, reason = "tests read more of it")]
mod walk;

use walk::{Layer, Layers};
use wqcap_frame::{Headers, MOST_LAYERS};

/// The target.
pub fn run(frame: &[u8]) {
    let mut layers = Layers::of(frame);
    let (mut count, mut last, mut first_ip) = (0, 0, None);
    for located in layers.by_ref() {
        assert!(last <= located.at && located.at < frame.len());
        last = located.at;
        count += 1;
        if matches!(located.layer, Layer::Ipv4(_) | Layer::Ipv6(_)) {
            first_ip.get_or_insert(located.at);
        }
    }
    assert!(count <= usize::from(MOST_LAYERS));
    assert_eq!(Headers::parse(frame).l3(), first_ip);
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
