//! Files for tests, as a capture leaves them.

use std::{
    fs,
    path::{Path, PathBuf},
};
use wqcap_files::{format::pcap, name::FileName};

const SECOND: u64 = 1_000_000_000;

/// A finished file of a queue that begins at this second, with a frame a millisecond.
pub(crate) fn capture(dir: &Path, queue: u16, second: u64, frames: u64) -> PathBuf {
    let name = FileName {
        queue: Some(queue),
        start_ns: second * SECOND,
        ending: "pcap",
        sealed: false,
    };
    let mut bytes = pcap::encode_header(65_535, 1, None).to_vec();
    for i in 0..frames {
        let mut frame = [0; 60];
        frame[59] = i as u8;
        let ns = second * SECOND + i * 1_000_000;
        bytes.extend(pcap::encode_record_header(ns, 60, 60));
        bytes.extend(frame);
    }
    let path = dir.join(name.to_string());
    fs::write(&path, bytes).expect("written");
    path
}
