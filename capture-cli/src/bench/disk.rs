//! `wqcap bench disk`: frames through the block writer, against the least that a writer can do on the same disk.

use super::report::{Measured, Report};
use crate::{args::BenchDiskArgs, failure::Failure};
use engine::{
    pipeline::{Consumer, Frame},
    sink::{Files, Keep, OnFull, PcapEncoder, Rotation, Writer, write_plainly},
};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Bytes of a frame, and of its record in a pcap file.
const FRAME: usize = 1500;
const RECORD: u64 = 1516;
/// `output.buffer` by default.
const BUFFER: u64 = 256 << 20;

/// Writes with both in turn, and prints the ratio.
pub fn disk(args: &BenchDiskArgs) -> Result<(), Failure> {
    let shown = args.dir.display();
    let scratch = tempfile::Builder::new()
        .prefix(".wqcap-bench-")
        .tempdir_in(&args.dir)
        .map_err(|e| Failure::refused(format!("{shown}: {e}")))?;
    let frames = args.size.0.div_ceil(RECORD).max(1);
    let bytes = frames * RECORD;
    let mut pairs = Vec::new();
    let mut rates = Vec::new();
    let mut direct = true;
    for _ in 0..args.repeats {
        let plain = scratch.path().join("plain");
        let (written, time, was_direct) = write_plainly(&plain, bytes)
            .map_err(|e| Failure::failed(format!("{shown}: the plain writer: {e}")))?;
        direct &= was_direct;
        remove(&plain)?;
        let ours = by_blocks(scratch.path(), frames)?;
        // The plain writer rounds up to whole writes: per byte, then.
        let plain_per_frame = nanos(time) / written as f64 * RECORD as f64;
        pairs.push((nanos(ours) / frames as f64, plain_per_frame));
        rates.push([
            bytes as f64 / ours.as_secs_f64(),
            written as f64 / time.as_secs_f64(),
        ]);
    }
    let mut result = Measured::of("disk/pcap/1500B/1q".into(), "o_direct", &pairs);
    result.more.insert("bytes".into(), bytes.into());
    result.more.insert("direct".into(), direct.into());
    result.more.insert("repeats".into(), args.repeats.into());
    let [ours, plain] = [0, 1].map(|i| rates.iter().map(|pair| pair[i]).collect::<Vec<_>>());
    result.more.insert("bytes_per_s".into(), ours.into());
    result
        .more
        .insert("baseline_bytes_per_s".into(), plain.into());
    Report::new(vec![result]).print(args.json)
}

/// From the first frame to the file's final name.
fn by_blocks(dir: &Path, frames: u64) -> Result<Duration, Failure> {
    let files = Files {
        dir: dir.to_owned(),
        buffer: BUFFER,
        on_full: OnFull::Hold,
        rotation: Rotation {
            size: 0,
            period_ns: 0,
        },
        snaplen: 0,
        longest: FRAME,
        compress: engine::config::Compress::None,
        spare_cores: Vec::new(),
        keep: Keep::default(),
        hook: None,
        hook_process: None,
        index_dir: None,
    };
    let (writer, mut sinks) = Writer::start(&files, &PcapEncoder::new(0), &[Arc::default()])?;
    let content = [0x5a; FRAME];
    let start = Instant::now();
    for sink in &mut sinks {
        for ns in 0..frames {
            // Held until there is room: every frame is taken.
            sink.frame(Frame {
                bytes: &content,
                len: FRAME as u32,
                fcs: None,
                ns,
            });
        }
    }
    drop(sinks);
    let finished = writer.finish();
    let time = start.elapsed();
    if let Some(failure) = finished.failures.first() {
        return Err(Failure::failed(failure.clone()));
    }
    finished.files.iter().try_for_each(|file| remove(file))?;
    Ok(time)
}

fn remove(file: &Path) -> Result<(), Failure> {
    std::fs::remove_file(file).map_err(|e| Failure::failed(format!("{}: {e}", file.display())))
}

fn nanos(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}
