//! The short way, to the outermost packet: offsets lie within the frame and in order.
#![no_main]

use wqcap_frame::Headers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
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
});
