//! `wqcap bench disk`: frames through the block writer, against the least that a writer can do on the same disk.

use super::{
    files,
    report::{BenchReport, Measured},
};
use crate::{args::BenchDiskArgs, failure::Failure};
use std::{
    path::Path,
    time::{Duration, Instant},
};
use wqcap_engine::{
    pipeline::{Consumer, Frame},
    sink::write_plainly,
};

/// Bytes of a frame, and of its record in a pcap file.
const FRAME: usize = 1500;
const RECORD: u64 = 1516;
/// What plain writes are compared, and the endings of the results' names: they make their file longer each, as a writer
/// does who knows nothing, or have all its room before they begin, which is the most that the disk gives.
const BASELINES: [(&str, &str); 2] = [("o_direct", ""), ("o_direct_allocated", "/allocated")];

/// Writes each way in turn, and prints the ratios.
pub fn disk(args: &BenchDiskArgs) -> Result<(), Failure> {
    let scratch = files::scratch(&args.dir)?;
    let frames = args.size.0.div_ceil(RECORD).max(1);
    let bytes = frames * RECORD;
    let mut rounds = Vec::new();
    for _ in 0..args.common.repeats {
        let plain = |allocated| by_plain_writes(scratch.path(), bytes, allocated);
        let [appending, allocated] = [plain(false)?, plain(true)?];
        let ours = by_blocks(scratch.path(), frames)?;
        rounds.push((ours, [appending, allocated]));
    }
    let results = BASELINES.iter().enumerate();
    let results = results.map(|(i, (baseline, ending))| {
        let pairs: Vec<_> = rounds.iter().map(|(ours, of)| (*ours, of[i].ns)).collect();
        let name = format!("disk/pcap/1500B/1q{ending}");
        let direct = rounds.iter().all(|(_, of)| of[i].direct);
        let rate = |ns: f64| RECORD as f64 * 1e9 / ns;
        let rates = pairs
            .iter()
            .map(|(ours, plain)| (rate(*ours), rate(*plain)));
        let (ours, plain): (Vec<_>, Vec<_>) = rates.unzip();
        Measured::of(name, baseline, &pairs)
            .with("bytes", bytes)
            .with("direct", direct)
            .with("repeats", args.common.repeats)
            .with("bytes_per_s", ours)
            .with("baseline_bytes_per_s", plain)
    });
    BenchReport::new(results.collect()).print(args.common.json)
}

/// What plain writes took.
struct Plain {
    /// Nanoseconds for as many bytes as a frame's record.
    ns: f64,
    /// The writes were direct.
    direct: bool,
}

fn by_plain_writes(dir: &Path, bytes: u64, allocated: bool) -> Result<Plain, Failure> {
    let file = dir.join("plain");
    let (written, time, direct) = write_plainly(&file, bytes, allocated)
        .map_err(|e| Failure::failed(format!("{}: the plain writer: {e}", dir.display())))?;
    files::remove(&file)?;
    // It rounds up to whole writes: by the byte, then.
    let ns = nanos(time) / written as f64 * RECORD as f64;
    Ok(Plain { ns, direct })
}

/// Nanoseconds of a frame, from the first one to the file's final name.
fn by_blocks(dir: &Path, frames: u64) -> Result<f64, Failure> {
    let (writer, mut sink) = files::start(dir, FRAME)?;
    let content = [0x5a; FRAME];
    let start = Instant::now();
    for ns in 0..frames {
        // Held until there is room: every frame is taken.
        sink.frame(Frame {
            bytes: &content,
            len: FRAME as u32,
            fcs: None,
            ns,
        });
    }
    drop(sink);
    let finished = files::finish(writer)?;
    let time = start.elapsed();
    finished.iter().try_for_each(|file| files::remove(file))?;
    Ok(nanos(time) / frames as f64)
}

fn nanos(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}
