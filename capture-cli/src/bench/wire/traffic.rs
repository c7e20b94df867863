//! Traffic of the benchmark: UDP of one size over many flows, or the frames of a capture file.

use crate::{args::BenchWireArgs, failure::Failure};
use std::{fmt::Display, path::Path};
use wqcap_engine::read;

/// Offset of the frame number in a generated frame, after the UDP header and [`MARK`].
pub const NUMBER_AT: usize = 46;
/// First bytes of the payload of a generated frame.
const MARK: [u8; 4] = *b"wqcb";
/// Largest total size of the frames of a replayed file, in bytes.
const MOST: usize = 256 << 20;

/// Frames that the wire benchmark sends in turn.
pub struct Traffic {
    /// Name of the traffic in the benchmark's results.
    pub name: String,
    /// Frames that the benchmark sends, without FCS.
    pub frames: Vec<Vec<u8>>,
}

impl Traffic {
    /// Creates the traffic that the arguments select: generated frames of `size` bytes, or those of
    /// the file.
    pub fn new(args: &BenchWireArgs, size: u32) -> Result<Self, Failure> {
        if let Some(path) = &args.replay {
            let name = path.file_name().unwrap_or("replay".as_ref());
            return Ok(Self {
                name: name.to_string_lossy().into_owned(),
                frames: read(path)?,
            });
        }
        Ok(Self {
            name: format!("{size}B"),
            frames: (0..args.flows).map(|flow| made(size, flow)).collect(),
        })
    }

    /// Returns the mean length of the traffic's frames in bytes.
    pub fn mean_len(&self) -> u64 {
        let sum: usize = self.frames.iter().map(Vec::len).sum();
        (sum / self.frames.len().max(1)) as u64
    }
}

/// Reads the frames of a capture file to replay.
fn read(path: &Path) -> Result<Vec<Vec<u8>>, Failure> {
    let refused = |e: &dyn Display| Failure::refused(format!("--replay {}: {e}", path.display()));
    let mut reader = read::open(path).map_err(|e| refused(&e))?;
    let (mut frames, mut bytes) = (Vec::new(), 0);
    while let Some(packet) = reader.next().map_err(|e| refused(&e))? {
        bytes += packet.bytes.len();
        if bytes > MOST {
            return Err(refused(&format_args!(
                "the file to replay has more than {} MiB of frames; use a shorter file",
                MOST >> 20
            )));
        }
        frames.push(packet.bytes.to_vec());
    }
    if frames.is_empty() {
        return Err(refused(&"the file has no frames to send"));
    }
    Ok(frames)
}

/// Returns a probe frame, which can carry a frame number.
pub fn probe() -> Vec<u8> {
    made(64, 0)
}

/// Returns a generated frame: a UDP datagram over IPv4 of flow number `flow`.
fn made(size: u32, flow: u32) -> Vec<u8> {
    let size = size as usize;
    let [_, high, middle, low] = flow.to_be_bytes();
    let ip_len = u16::try_from(size - 14).unwrap_or(u16::MAX);
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0]);
    frame.extend(ip_len.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend([10, high, middle, low, 10, 200, 0, 1]);
    let sum = checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend((1024 + (flow & 0x3ff) as u16).to_be_bytes());
    frame.extend(9u16.to_be_bytes());
    frame.extend((ip_len - 20).to_be_bytes());
    // The checksum 0 means that there is none (RFC 768).
    frame.extend([0, 0]);
    frame.extend(MARK);
    // This number is not that of a probe.
    frame.extend(u32::MAX.to_be_bytes());
    frame.resize(size, 0);
    frame
}

/// Returns the Internet checksum (RFC 1071) of an IPv4 header.
fn checksum(header: &[u8]) -> u16 {
    let words = header.as_chunks::<2>().0;
    let mut sum: u32 = words
        .iter()
        .map(|it| u32::from(u16::from_be_bytes(*it)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Returns the frame number in a generated frame.
pub fn number_in(frame: &[u8]) -> Option<u32> {
    let mark = frame.get(NUMBER_AT - MARK.len()..NUMBER_AT)?;
    let number = frame.get(NUMBER_AT..NUMBER_AT + 4)?;
    (mark == MARK).then(|| u32::from_be_bytes([number[0], number[1], number[2], number[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wqcap_engine::frame::Headers;

    #[test]
    fn generated_frames_are_valid() {
        for size in [60, 64, 1514] {
            for flow in [0, 1, 70_000] {
                let mut frame = made(size, flow);
                assert_eq!(frame.len(), size as usize);
                assert_eq!(
                    checksum(&frame[14..34]),
                    0,
                    "a header with its checksum sums to 0"
                );
                let headers = Headers::parse(&frame);
                assert_eq!((headers.tuple.dst_port, headers.malformed), (9, None));
                assert_eq!(number_in(&frame), Some(u32::MAX));
                frame[NUMBER_AT..NUMBER_AT + 4].copy_from_slice(&7u32.to_be_bytes());
                assert_eq!(number_in(&frame), Some(7));
            }
        }
        assert_ne!(made(60, 1)[26..36], made(60, 2)[26..36]);
        assert_eq!(number_in(&[0; 60]), None);
    }
}
