//! `wqcap bench disk`: compares the block writer with the simplest writes to the same disk.

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

/// Number of plain writes in flight, which is the maximum of the block writer with several queues.
const DEPTH: u64 = 16;
/// Length of a written frame in the disk benchmark, in bytes.
const FRAME: usize = 1500;
/// Length in bytes of the pcap record of a frame of [`FRAME`] bytes.
const RECORD: u64 = 1516;
/// Baseline of the disk benchmark: plain writes, with which the block writer is compared.
struct Baseline {
    /// Name of the baseline in the benchmark's results.
    name: &'static str,
    /// Suffix that the baseline adds to the name of the benchmark's result.
    ending: &'static str,
    /// Length of each plain write of the baseline in bytes.
    write: usize,
    /// `true` if the file of plain writes is allocated in advance.
    allocated: bool,
}

/// Baselines for the block writer: the writes of a simple program, and the fastest writes of the
/// disk.
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
/// Index of the block writer in the list of the writers that the benchmark measures; the plain
/// writers to which it is compared are before it.
const OURS: usize = BASELINES.len();

/// Runs `wqcap bench disk`: measures the block writer and its baselines in turn, and prints the
/// ratios of the times.
pub fn disk(args: &BenchDiskArgs) -> Result<(), Failure> {
    let scratch = files::scratch(&args.dir)?;
    let frames = args.size.0.div_ceil(RECORD).max(1);
    let bytes = frames * RECORD;
    let mut rounds = Vec::new();
    let mut direct = [true; OURS];
    for round in 0..args.common.repeats {
        // Times of the baselines, then of the block writer.
        let mut times = [0.0; OURS + 1];
        // Each writer is the first one in turn, because a disk that was just written may be slower.
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
        Measured::from_pairs(name, baseline.name, &pairs)
            .with("bytes", bytes)
            .with("write_bytes", baseline.write)
            .with("direct", direct[i])
            .with("repeats", args.common.repeats)
            .with("bytes_per_s", ours)
            .with("baseline_bytes_per_s", plain)
    });
    BenchReport::new(results.collect()).print(args.common.json)
}

/// Measurement of the baseline with plain writes to a file.
struct Plain {
    /// Time of the plain writes per frame record, in nanoseconds.
    ns: f64,
    /// `true` if the plain writes used O_DIRECT, which bypasses the page cache.
    direct: bool,
}

/// Measures the baseline with plain writes to a file in `dir`.
fn by_plain_writes(dir: &Path, bytes: u64, baseline: &Baseline) -> Result<Plain, Failure> {
    let file = dir.join("plain");
    let (written, time, direct) = write_plainly(&file, bytes, baseline).map_err(|e| {
        Failure::failed(format!(
            "{}: the plain write of the benchmark failed: {e}",
            dir.display()
        ))
    })?;
    files::remove(&file)?;
    // The writes are rounded up to whole writes, so the time is computed per byte.
    let ns = nanos(time) / written as f64 * RECORD as f64;
    Ok(Plain { ns, direct })
}

/// Writes `bytes` bytes, rounded up to whole writes, into a new file, and syncs it at the end. Uses
/// O_DIRECT if the file system supports it. All writes have equal content, and the next free thread
/// makes each write. Returns the number of bytes, the time, and whether the writes used O_DIRECT.
#[expect(clippy::disallowed_methods, reason = "a new file of the benchmark")]
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
            // If the file system cannot allocate in advance, writes allocate the space.
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
        let writers: Vec<_> = (0..DEPTH)
            .map(|_| thread::Builder::new().spawn_scoped(scope, write))
            .collect::<io::Result<_>>()?;
        let panicked = |_| Err(io::Error::other("a thread that writes panicked"));
        let mut ends = writers
            .into_iter()
            .map(|it| it.join().unwrap_or_else(panicked));
        ends.try_for_each(|end| end)
    })?;
    file.sync_all()?;
    Ok((writes * size, start.elapsed(), direct))
}

/// Measures the block writer. Returns its time per frame in nanoseconds, from the first frame to
/// the file's final name.
fn by_blocks(dir: &Path, frames: u64) -> Result<f64, Failure> {
    let (writer, mut sink) = files::start(dir, FRAME, &PcapEncoder::default())?;
    let content = [0x5a; FRAME];
    let start = Instant::now();
    for ns in 0..frames {
        // The sink waits for room, so every frame is accepted.
        sink.frame(&Frame::new(&content, FRAME as u32, ns));
    }
    drop(sink);
    let finished = files::finish(writer)?;
    let time = start.elapsed();
    finished.iter().try_for_each(|file| files::remove(file))?;
    Ok(nanos(time) / frames as f64)
}

/// Converts a duration to nanoseconds as a float.
fn nanos(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requested_bytes_are_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("plain");
        for by in &BASELINES {
            let (bytes, _, _) =
                write_plainly(&path, (40 << 20) - 1, by).expect("the file is written");
            assert_eq!(bytes, 40 << 20);
            assert_eq!(
                std::fs::metadata(&path).expect("the file exists").len(),
                bytes
            );
            let again = write_plainly(&path, 1, by);
            assert!(again.is_err(), "an existing file must not be overwritten");
            std::fs::remove_file(&path).expect("the file exists");
        }
        assert!(write_plainly(&dir.path().join("no/plain"), 1, &BASELINES[0]).is_err());
    }
}
