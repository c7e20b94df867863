//! `wqcap bench disk`: frames through the block writer, against the least that a writer can do on the same disk.

use super::{
    files,
    report::{BenchReport, Measured},
};
use crate::{args::BenchDiskArgs, failure::Failure};
use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};
use std::{
    fs::OpenOptions,
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};
use wqcap_engine::{
    memory::Region,
    pipeline::{Consumer, Frame},
    sink::{BLOCK, PcapEncoder},
};

/// Plain writes under way: as many as the block writer's of several queues at most.
const DEPTH: u64 = 16;
/// Bytes of a frame, and of its record in a pcap file.
const FRAME: usize = 1500;
const RECORD: u64 = 1516;
/// Plain writes that are compared.
struct Baseline {
    name: &'static str,
    /// The ending of the result's name.
    ending: &'static str,
    /// Bytes of a write.
    write: usize,
    /// The file has all its room before they begin.
    allocated: bool,
}

/// What a writer does who knows nothing, and the most that the disk gives.
const BASELINES: [Baseline; 2] = [
    Baseline {
        name: "o_direct",
        ending: "",
        write: 1 << 20,
        allocated: false,
    },
    Baseline {
        name: "o_direct_allocated",
        ending: "/allocated",
        write: BLOCK,
        allocated: true,
    },
];
/// The number of the way that is compared with them.
const OURS: usize = BASELINES.len();

/// Writes each way in turn, and prints the ratios.
pub fn disk(args: &BenchDiskArgs) -> Result<(), Failure> {
    let scratch = files::scratch(&args.dir)?;
    let frames = args.size.0.div_ceil(RECORD).max(1);
    let bytes = frames * RECORD;
    let mut rounds = Vec::new();
    let mut direct = [true; OURS];
    for round in 0..args.common.repeats {
        // Of the baselines, then ours.
        let mut times = [0.0; OURS + 1];
        // Each way is the first in turn: a disk that was just written to may be slower.
        for way in (0..=OURS).map(|i| (i + round as usize) % (OURS + 1)) {
            times[way] = match BASELINES.get(way) {
                Some(baseline) => {
                    let plain = by_plain_writes(scratch.path(), bytes, baseline)?;
                    direct[way] &= plain.direct;
                    plain.ns
                }
                None => by_blocks(scratch.path(), frames)?,
            };
        }
        rounds.push(times);
    }
    let results = BASELINES.iter().enumerate();
    let results = results.map(|(i, baseline)| {
        let pairs: Vec<_> = rounds.iter().map(|it| (it[OURS], it[i])).collect();
        let name = format!("disk/pcap/1500B/1q{}", baseline.ending);
        let rate = |ns: f64| RECORD as f64 * 1e9 / ns;
        let rates = pairs
            .iter()
            .map(|(ours, plain)| (rate(*ours), rate(*plain)));
        let (ours, plain): (Vec<_>, Vec<_>) = rates.unzip();
        Measured::of(name, baseline.name, &pairs)
            .with("bytes", bytes)
            .with("write_bytes", baseline.write)
            .with("direct", direct[i])
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

fn by_plain_writes(dir: &Path, bytes: u64, baseline: &Baseline) -> Result<Plain, Failure> {
    let file = dir.join("plain");
    let (written, time, direct) = write_plainly(&file, bytes, baseline)
        .map_err(|e| Failure::failed(format!("{}: the plain writer: {e}", dir.display())))?;
    files::remove(&file)?;
    // It rounds up to whole writes: by the byte, then.
    let ns = nanos(time) / written as f64 * RECORD as f64;
    Ok(Plain { ns, direct })
}

/// Writes `bytes`, rounded up to whole writes, into a new file: O_DIRECT where that is to be had, always of the same memory,
/// each write by the next thread that is free, and a sync at the end. Gives the bytes and the time it took, and whether the
/// writes were direct.
#[expect(clippy::disallowed_methods, reason = "a new file of the bench")]
fn write_plainly(path: &Path, bytes: u64, by: &Baseline) -> io::Result<(u64, Duration, bool)> {
    let open = |flags| {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).custom_flags(flags);
        options.open(path)
    };
    let (file, direct) = match open(libc::O_DIRECT) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            let _ = std::fs::remove_file(path);
            (open(0)?, false)
        }
        other => (other?, true),
    };
    let memory = Region::allocate(by.write, None).map_err(io::Error::other)?;
    let size = by.write as u64;
    let (writes, next) = (bytes.div_ceil(size), AtomicU64::new(0));
    if by.allocated {
        match fallocate(&file, FallocateFlags::empty(), 0, writes * size) {
            // Where that is unknown, writes find room in another way.
            Err(Errno::OPNOTSUPP) => {}
            other => other?,
        }
    }
    let write = || loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= writes {
            return Ok(());
        }
        file.write_all_at(memory.as_slice(by.write), number * size)?;
    };
    let start = Instant::now();
    thread::scope(|scope| {
        let writers: Vec<_> = (0..DEPTH).map(|_| scope.spawn(write)).collect();
        let panicked = |_| Err(io::Error::other("a thread panicked"));
        let mut ends = writers
            .into_iter()
            .map(|it| it.join().unwrap_or_else(panicked));
        ends.try_for_each(|end| end)
    })?;
    file.sync_all()?;
    Ok((writes * size, start.elapsed(), direct))
}

/// Nanoseconds of a frame, from the first one to the file's final name.
fn by_blocks(dir: &Path, frames: u64) -> Result<f64, Failure> {
    let (writer, mut sink) = files::start(dir, FRAME, &PcapEncoder::default())?;
    let content = [0x5a; FRAME];
    let start = Instant::now();
    for ns in 0..frames {
        // Held until there is room: every frame is taken.
        sink.frame(&Frame {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_bytes_as_asked_for() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("plain");
        for by in &BASELINES {
            let (bytes, _, _) = write_plainly(&path, (40 << 20) - 1, by).expect("writes");
            assert_eq!(bytes, 40 << 20);
            assert_eq!(std::fs::metadata(&path).expect("there").len(), bytes);
            let again = write_plainly(&path, 1, by);
            assert!(again.is_err(), "nothing is overwritten");
            std::fs::remove_file(&path).expect("there");
        }
        assert!(write_plainly(&dir.path().join("no/plain"), 1, &BASELINES[0]).is_err());
    }
}
