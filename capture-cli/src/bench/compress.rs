//! `wqcap bench compress`: measures how fast one core compresses frames, and the compressed size.

use super::report::{BenchReport, Measured, ResultRow};
use crate::{args::BenchCompressArgs, failure::Failure, term::table::scaled};
use serde::Serialize;
use std::time::Instant;
use wqcap_engine::{
    config::Compress,
    read::{self, ReadError},
    sink::{Encoder, PcapEncoder, Record, compress_blocks},
};

/// Number of frames that the compression benchmark generates if no file is given.
const FRAMES: u64 = 20_000;
/// Length of a generated frame in bytes, without FCS.
const FRAME: usize = 1500;
/// Compression methods that the benchmark compares, with their names.
const METHODS: [(&str, Compress); 4] = [
    ("lz4", Compress::Lz4),
    ("zstd:1", Compress::Zstd(Some(1))),
    ("zstd:3", Compress::Zstd(Some(3))),
    ("zstd:9", Compress::Zstd(Some(9))),
];

/// Result of a compression method in the benchmark, compared with a plain copy.
#[derive(Debug, Serialize)]
struct Compressed {
    /// Compression time per frame, with that of the plain copy as baseline.
    #[serde(flatten)]
    measured: Measured,
    /// Compression rate in bytes per second, counted before compression.
    bytes_per_s: f64,
    /// Ratio of compressed bytes to original bytes.
    compressed_to: f64,
}

impl ResultRow for Compressed {
    const HEAD: &'static [&'static str] = &[
        "result",
        "compression ratio",
        "bytes/s",
        "ns/frame",
        "time ratio",
        "spread",
        "against",
    ];

    fn cells(&self) -> Vec<String> {
        let it = &self.measured;
        vec![
            it.name.clone(),
            format!("{:.2}", 1.0 / self.compressed_to),
            scaled(self.bytes_per_s),
            format!("{:.1}", it.ns_per_frame),
            format!("{:.2}", it.ratio),
            format!("{:.2} to {:.2}", it.spread[0], it.spread[1]),
            it.baseline.to_owned(),
        ]
    }
}

/// Runs `wqcap bench compress`: compresses equal blocks with each method, in turn with a plain copy
/// of them, and prints the results.
pub fn compress(args: &BenchCompressArgs) -> Result<(), Failure> {
    let block = usize::try_from(args.block.0).unwrap_or(usize::MAX);
    let (content, frames) = match &args.file {
        Some(path) => {
            let failed = |e| Failure::refused(format!("{}: {e}", path.display()));
            encoded_file(path).map_err(failed)?
        }
        None => generated(),
    };
    let mut copy = vec![0; content.len()];
    let mut results = Vec::new();
    for (name, method) in METHODS {
        let mut pairs = Vec::new();
        let mut packed = 0;
        for _ in 0..args.common.repeats {
            let start = Instant::now();
            copy.copy_from_slice(&content);
            std::hint::black_box(&copy);
            let copied = start.elapsed();
            let (len, time) = compress_blocks(method, &content, block)
                .map_err(|e| Failure::failed(format!("{name}: {e}")))?;
            packed = len;
            let each = |time: std::time::Duration| time.as_secs_f64() * 1e9 / frames as f64;
            pairs.push((each(time), each(copied)));
        }
        let name = format!("compress/{name}/{}KiB", block >> 10);
        let measured = Measured::from_pairs(name, "copy", &pairs);
        let bytes_per_frame = content.len() as f64 / frames as f64;
        results.push(Compressed {
            bytes_per_s: bytes_per_frame * measured.frames_per_s,
            compressed_to: packed as f64 / content.len() as f64,
            measured,
        });
    }
    BenchReport::new(results).print(args.common.json)
}

/// Appends the pcap record of a frame to `out`.
fn record(bytes: &[u8], ns: u64, out: &mut Vec<u8>) {
    let record = Record {
        ns,
        bytes,
        len: bytes.len() as u32,
        fcs: &[],
        fcs_len: 0,
        interface: 0,
        bad_fcs: false,
        lost_before: 0,
    };
    let encoder = PcapEncoder::default();
    let at = out.len();
    out.resize(at + encoder.record_len(&record), 0);
    encoder.record(&mut out[at..], 0, &record);
}

/// Returns the frames of a capture file as pcap records, and their number.
fn encoded_file(path: &std::path::Path) -> Result<(Vec<u8>, u64), ReadError> {
    let mut reader = read::open(path)?;
    let (mut out, mut frames) = (Vec::new(), 0);
    while reader.advance()? {
        if let Some(packet) = reader.packet() {
            record(packet.bytes, packet.ns, &mut out);
            frames += 1;
        }
    }
    if frames == 0 {
        return Err(ReadError::Empty);
    }
    Ok((out, frames))
}

/// Generates frames of some hundred flows to compress. Half of each payload is text, and half is
/// noise.
fn generated() -> (Vec<u8>, u64) {
    let mut out = Vec::new();
    let mut noise = 0x9e37_79b9_7f4a_7c15u64;
    for i in 0..FRAMES {
        let mut frame = vec![0; FRAME];
        let flow = i * 7 % 300;
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
        frame[14..22].copy_from_slice(&[0x45, 0, 5, 206, (i >> 8) as u8, i as u8, 0x40, 0]);
        frame[22..34].copy_from_slice(&[64, 6, 0, 0, 10, 0, 0, flow as u8, 10, 0, 1, 1]);
        frame[34..38].copy_from_slice(&[4, flow as u8, 1, 187]);
        let (text, rest) = frame[54..].split_at_mut(723);
        let line = format!("GET /{flow}/{i} HTTP/1.1\r\nHost: a.example\r\nAccept: */*\r\n");
        for (to, from) in text.iter_mut().zip(line.bytes().cycle()) {
            *to = from;
        }
        for byte in rest {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            *byte = noise as u8;
        }
        record(&frame, 1_700_000_000_000_000_000 + i * 120_000, &mut out);
    }
    (out, FRAMES)
}
