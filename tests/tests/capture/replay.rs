//! Replay of all captures through the model, libmlx5 and the engine: the output equals the input.
//!
//! Each run is checked for the following:
//!
//! - The files have the input's frames byte for byte, in the input's order within each queue.
//! - The queue of every frame is the one that a naive reference and the crate `rss` compute.
//! - All complete frames of a flow are on one queue.
//! - Frames longer than the buffer are counted as `errors` of their queue.
//! - The ledger adds up.
//! - tcpdump and capinfos count the same frames in the files.

use std::{
    collections::{HashMap, HashSet},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};
use wqcap_tests::{
    Dir, Finished, Program, Wqcap,
    captures::{Captures, SHORTEST},
    compare::assert_same,
    files::{self, Record},
    need,
    oracles::{capinfos, reference},
    skip,
};

/// Default number of entries of the indirection table.
const TABLE_SIZE: u16 = 128;

/// Configuration of a replay.
struct Setup<'s> {
    queues: u16,
    /// Maximum frame length, in bytes. Longer frames are errors.
    buffer: usize,
    settings: &'s [&'s str],
}

/// The output of a capture, as compressed files or a directory, can be replayed.
#[test]
fn compressed_captures_directories_and_standard_input_can_be_replayed() {
    let dir = Dir::new();
    let run = |name: &str| Wqcap::run(&dir, name).queues(2);
    let first = run("first").model("synth:count=500,size=94,flows=16");
    let plain = first.finish(0);
    for compress in ["zstd", "lz4"] {
        let packed = run(compress)
            .replay(first.out_path())
            .set(&format!("output.compress={compress}"))
            .set("output.order=time");
        // The test kit reads only uncompressed files, so the result is replayed again.
        let done = packed.done().expect(0);
        assert!(done.stderr.contains("500"), "{done}");
        let again = run(&format!("{compress}-again")).replay(packed.out_path());
        assert_eq!(again.finish(0).numbers(), plain.numbers(), "{compress}");
    }
    let (_, file) = plain.files().remove(0);
    let want = files::read(&file).len() as u64;
    for input in ["<\"$2\"", "< <(cat \"$2\")"] {
        let script = format!(
            "\"$1\" run --model pcap:- --set capture.idle=sleep --set output.format=none --json {input}"
        );
        let done = Program::new("bash")
            .args(["-c", &script, "bash"])
            .arg(wqcap_tests::binaries::wqcap())
            .arg(&file)
            .run()
            .expect(0);
        let json: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
        let captured = json["ledger"]["total"]["captured"].as_u64();
        assert_eq!(captured, Some(want), "{input}: {done}");
    }
}

#[test]
fn one_queue_with_the_default_buffer_replays_all_captures() {
    let counts = replay_all(&Setup {
        queues: 1,
        buffer: 2048,
        settings: &["capture.receive=frame", "capture.buffer=2048"],
    });
    assert!(counts.long > 0, "some frames are longer than the buffer");
}

/// Completions are compressed, too, because software time stamps do not need those of CQEs.
#[test]
fn four_queues_with_buffers_for_the_longest_frames_replay_all_captures() {
    let settings = &[
        "capture.buffer=128KiB",
        "capture.ring=32",
        "capture.timestamps=software",
        "capture.cqe_compression=on",
    ];
    let counts = replay_all(&Setup {
        queues: 4,
        buffer: 128 << 10,
        settings,
    });
    assert_eq!(counts.long, 0);
}

/// A buffer holds many frames and may end in a filler. CQEs have 16 bits for a frame's length.
#[test]
fn four_queues_with_strides_replay_all_captures() {
    replay_all(&Setup {
        queues: 4,
        buffer: 65_535,
        settings: &[
            "capture.receive=striding",
            "capture.strides=1024",
            "capture.ring=64",
        ],
    });
}

#[test]
fn four_queues_with_strides_and_compressed_completions_replay_all_captures() {
    replay_all(&Setup {
        queues: 4,
        buffer: 65_535,
        settings: &[
            "capture.receive=striding",
            "capture.strides=1024",
            "capture.ring=64",
            "capture.timestamps=software",
            "capture.cqe_compression=on",
            "model.cqe_compression_wraps=true",
        ],
    });
}

#[test]
#[ignore = "takes many minutes: scripts/soak runs it"]
fn any_number_of_queues_replays_all_captures() {
    for queues in [2, 3, 5, 7, 8, 12, 16, 32, 100] {
        for (buffer, receive) in [
            (2048, "capture.receive=frame"),
            (65_535, "capture.receive=striding"),
        ] {
            replay_all(&Setup {
                queues,
                buffer,
                settings: &[receive, "capture.strides=1024", "capture.ring=64"],
            });
        }
    }
}

/// Numbers of captures and frames of a replay.
#[derive(Debug, Default)]
struct Counts {
    files: usize,
    frames: usize,
    captured: usize,
    /// Frames longer than the buffer.
    long: usize,
    /// Records shorter than an Ethernet header.
    runts: usize,
}

/// Replays all captures, several at once, and reports all failures.
fn replay_all(setup: &Setup<'_>) -> Counts {
    // Each test of this file uses all cores, so they run one after the other.
    static SERIAL: Mutex<()> = Mutex::new(());
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    let captures = Captures::find();
    let dir = Dir::new();
    let counts = Mutex::new(Counts::default());
    let files = Mutex::new(Vec::new());
    captures.each(|file| {
        let (one, mut written) = replay(&dir, setup, file);
        add(&mut counts.lock().expect("not poisoned"), &one);
        files.lock().expect("not poisoned").append(&mut written);
    });
    let (paths, wanted): (Vec<_>, Vec<_>) = files
        .into_inner()
        .expect("not poisoned")
        .into_iter()
        .unzip();
    assert_same("frames by capinfos", &capinfos::counts(&paths), &wanted);
    let counts = counts.into_inner().expect("not poisoned");
    assert_eq!(counts.files, captures.files.len());
    skip::say(&format!(
        "replay, {} queue(s): {} captures ({}), {} frames captured, {} too long, {} runts, {:.0} s",
        setup.queues,
        counts.files,
        if captures.real { "real" } else { "generated" },
        counts.captured,
        counts.long,
        counts.runts,
        start.elapsed().as_secs_f64()
    ));
    counts
}

fn add(all: &mut Counts, one: &Counts) {
    all.files += one.files;
    all.frames += one.frames;
    all.captured += one.captured;
    all.long += one.long;
    all.runts += one.runts;
}

/// Replays one capture and checks the result. Returns the counts, and the written files with their
/// number of frames.
fn replay(dir: &Dir, setup: &Setup<'_>, file: &Path) -> (Counts, Vec<(PathBuf, u64)>) {
    let records = files::read_as_it_stands(file);
    let frames: Vec<_> = records
        .iter()
        .map(|record| &record.bytes[..])
        .filter(|b| b.len() >= SHORTEST)
        .collect();
    let expected = Expected::new(&frames, setup);

    let name = format!(
        "{}-{}",
        setup.queues,
        file.file_stem().expect("a capture has a name").display()
    );
    let run = Wqcap::run(dir, &name)
        .replay(file)
        .queues(usize::from(setup.queues))
        .sets(setup.settings);
    let before = nanoseconds_now();
    let finished = run.finish(0);
    let after = nanoseconds_now();

    let runts = records.len() - frames.len();
    if runts > 0 {
        finished.done.says(&[&format!(
            "{runts} records are not sent, because they are shorter than an Ethernet header"
        )]);
    }
    check_ledger(&finished, &expected, frames.len());
    let queues = finished.records();
    check_frames(&queues, &expected);
    check_flows(&queues);
    // The NIC's clock may be off by at most the run's duration.
    let slack = nanoseconds(finished.done.elapsed);
    check_stamps(&queues, before - slack, after + slack);
    let counts = Counts {
        files: 1,
        frames: frames.len(),
        captured: queues.iter().map(Vec::len).sum(),
        long: expected.long.iter().sum(),
        runts,
    };
    (counts, check_tcpdump(&finished))
}

/// Expected result of each queue.
struct Expected<'f> {
    /// Captured frames of each queue, in order.
    frames: Vec<Vec<&'f [u8]>>,
    /// Number of frames of each queue that are longer than the buffer.
    long: Vec<usize>,
}

impl<'f> Expected<'f> {
    fn new(frames: &[&'f [u8]], setup: &Setup<'_>) -> Self {
        let queues = usize::from(setup.queues);
        let mut expected = Self {
            frames: vec![Vec::new(); queues],
            long: vec![0; queues],
        };
        for frame in frames {
            let queue = reference::queue(frame, queues, TABLE_SIZE.into());
            let by_rss = reference::queue_by_rss(frame, setup.queues, TABLE_SIZE.into());
            assert_eq!(
                queue,
                by_rss,
                "crate `wqcap-rss` and the reference differ on {} of {frame:02x?}",
                reference::steer(frame)
            );
            if frame.len() > setup.buffer {
                expected.long[queue] += 1;
            } else {
                expected.frames[queue].push(frame);
            }
        }
        expected
    }
}

fn check_ledger(finished: &Finished, expected: &Expected<'_>, frames: usize) {
    let ledger = &finished.summary.ledger;
    assert_eq!(ledger.queues.len(), expected.frames.len());
    for (queue, lines) in ledger.queues.iter().enumerate() {
        let (fit, long) = (
            expected.frames[queue].len() as u64,
            expected.long[queue] as u64,
        );
        assert_eq!(
            (lines.captured, lines.errors),
            (fit, long),
            "queue {queue}: captured, errors; {ledger:?}"
        );
        // `received` is the sum of all lines, or the run would have failed. So all other lines are
        // zero.
        assert_eq!(lines.received, fit + long, "queue {queue}; {ledger:?}");
    }
    assert_eq!(ledger.total.received, frames as u64);
    assert_eq!(finished.summary.nic("out_of_buffer"), 0);
    assert_eq!(finished.summary.nic("wire_dropped"), 0);
    assert_eq!(finished.summary.nic("rx_discards_phy"), 0);
    assert_eq!(
        finished.summary.json["end"], "port_down",
        "{}",
        finished.done
    );
}

fn check_frames(queues: &[Vec<Record>], expected: &Expected<'_>) {
    let mut all: Vec<_> = queues
        .iter()
        .flatten()
        .map(|record| &record.bytes[..])
        .collect();
    let mut wanted: Vec<_> = expected.frames.iter().flatten().copied().collect();
    all.sort_unstable();
    wanted.sort_unstable();
    assert!(
        all == wanted,
        "the files have the input's frames: {} found, {} expected",
        all.len(),
        wanted.len()
    );
    for (queue, records) in queues.iter().enumerate() {
        for (i, (record, frame)) in records.iter().zip(&expected.frames[queue]).enumerate() {
            assert_eq!(
                record.bytes, *frame,
                "frame {i} of queue {queue} is the input's frame"
            );
            assert_eq!(record.caplen as usize, frame.len());
            assert_eq!(
                record.len as usize,
                frame.len(),
                "frame {i} of queue {queue}: its length on the wire"
            );
        }
    }
}

/// Asserts that all frames of a flow are on one queue.
fn check_flows(queues: &[Vec<Record>]) {
    let mut seen: HashMap<Vec<u8>, HashSet<usize>> = HashMap::new();
    for (queue, records) in queues.iter().enumerate() {
        for flow in records
            .iter()
            .filter_map(|record| reference::flow(&record.bytes))
        {
            seen.entry(flow).or_default().insert(queue);
        }
    }
    for (flow, queues) in seen {
        assert_eq!(queues.len(), 1, "flow {flow:02x?} is on queues {queues:?}");
    }
}

/// Asserts that time stamps are within `first..=last`, in nanoseconds since 1970, and do not
/// decrease within a queue.
fn check_stamps(queues: &[Vec<Record>], first: u64, last: u64) {
    for (queue, records) in queues.iter().enumerate() {
        assert!(
            records.is_sorted_by_key(|record| record.ts),
            "time stamps of queue {queue} do not decrease"
        );
        for record in records {
            assert!(
                (first..=last).contains(&record.ts),
                "queue {queue}: time stamp {} is between {first} and {last}",
                record.ts
            );
        }
    }
}

fn nanoseconds_now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    nanoseconds(now.expect("after 1970"))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("before 2554")
}

/// Asserts that tcpdump counts as many frames in each file as the ledger in its queue. Returns the
/// files with their number of frames.
fn check_tcpdump(finished: &Finished) -> Vec<(PathBuf, u64)> {
    let files = finished.files().into_iter().map(|(queue, path)| {
        let captured = finished.summary.ledger.queues[queue].captured;
        let tcpdump = Program::new("tcpdump")
            .args(["-n", "--count", "-r"])
            .arg(&path)
            .run()
            .expect(0);
        assert_eq!(first_number(&tcpdump.stdout), Some(captured), "{tcpdump}");
        (path, captured)
    });
    files.collect()
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// Returns the path of a zstd file with `frames` frames of 9000 zero bytes.
fn compressed_bomb(dir: &Dir, frames: u64) -> Result<PathBuf, String> {
    let raw = dir.join("bomb.pcap");
    let record: Vec<u8> = [1_700_000_000_u32, 0, 9000, 9000]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .chain([0; 9000])
        .collect();
    let piece = record.repeat(64);
    let mut zstd = Command::new("zstd")
        .args(["-q", "-1", "-f", "-o"])
        .arg(&raw)
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|e| format!("zstd: {e}"))?;
    let mut input = zstd.stdin.take().expect("a pipe");
    let header: Vec<u8> = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    input.write_all(&header).expect("written");
    for _ in 0..frames / 64 {
        input.write_all(&piece).expect("written");
    }
    drop(input);
    assert!(zstd.wait().expect("zstd ends").success());
    Ok(raw)
}

/// A compressed file takes no more memory than the limit of the wire, whatever it unpacks to.
#[test]
fn a_compressed_file_is_played_in_bounded_memory() {
    const FRAMES: u64 = 224_000;
    let dir = Dir::new();
    let bomb = need!(compressed_bomb(&dir, FRAMES));
    assert!(std::fs::metadata(&bomb).expect("there").len() < 4 << 20);
    // 2 GB of frames.
    let run = Wqcap::run(&dir, "bomb")
        .model(&format!("pcap:{}", bomb.display()))
        .queues(1)
        .set("capture.buffer=9216")
        .set("capture.ring=256")
        .set("output.format=none")
        .wrapped(&["prlimit", "--as=1600000000", "--"]);
    let finished = run.finish(0);
    assert_eq!(finished.summary.ledger.total.captured, FRAMES);
}

/// The limit of file sizes is an error of the software NIC, not a signal.
#[test]
fn a_limit_of_file_sizes_does_not_kill_at_the_start() {
    let dir = Dir::new();
    for blocks in ["0", "1", "4", "64"] {
        let script = format!(
            "ulimit -f {blocks}; exec '{}' run --model synth:count=1000 --set output.format=none",
            wqcap_tests::binaries::wqcap().display()
        );
        let done = Program::new("sh")
            .args(["-c", &script])
            .cwd(dir.path())
            .run();
        match done.status.code() {
            Some(0) => {}
            Some(2) => done.says(&["File too large", "ulimit -f"]),
            _ => panic!("ulimit -f {blocks}: {done}"),
        }
    }
}
