//! Capture files for tests.

use std::{
    fs,
    path::{Path, PathBuf},
};
use wqcap_files::{format::pcap, name::FileName};

const SECOND: u64 = 1_000_000_000;

/// Writes a finished capture file of a queue that begins at `second`, with one frame per
/// millisecond.
pub(crate) fn capture(dir: &Path, queue: u16, second: u64, frames: u64) -> PathBuf {
    let frame = |i| {
        let mut frame = vec![0; 60];
        frame[59] = i as u8;
        frame
    };
    capture_of(dir, queue, second, (0..frames).map(frame))
}

/// Writes a finished capture file of a queue with these frames, one per millisecond.
pub(crate) fn capture_of(
    dir: &Path,
    queue: u16,
    second: u64,
    frames: impl Iterator<Item = Vec<u8>>,
) -> PathBuf {
    let name = FileName {
        queue: Some(queue),
        start_ns: second * SECOND,
        ending: "pcap",
        sealed: false,
    };
    let mut bytes = pcap::encode_header(65_535, 1, None).to_vec();
    for (i, frame) in (0..).zip(frames) {
        let ns = second * SECOND + i * 1_000_000;
        let len = frame.len() as u32;
        bytes.extend(pcap::encode_record_header(ns, len, len));
        bytes.extend(frame);
    }
    let path = dir.join(name.to_string());
    fs::write(&path, bytes).expect("written");
    path
}

/// Builds a frame of a flow: from 10.0.0.`flow` to 10.1.0.`flow`, from UDP port 1000 + `flow` to
/// 53.
pub(crate) fn udp(flow: u8) -> Vec<u8> {
    let mut frame = vec![0; 1000];
    frame[12..14].copy_from_slice(&[8, 0]);
    let packet = &mut frame[14..];
    packet[0] = 0x45;
    packet[9] = 17;
    packet[12..20].copy_from_slice(&[10, 0, 0, flow, 10, 1, 0, flow]);
    packet[20..22].copy_from_slice(&(1000 + u16::from(flow)).to_be_bytes());
    packet[23] = 53;
    frame
}
