//! Every capture there is, replayed through the model, libmlx5 and the engine, comes out as it went in.
//!
//! Of each run this is checked: the frames of the files are those of the input, byte for byte, in the input's order
//! within each queue; the queue of every frame is the one that a naive reference computes from its bytes, and crate
//! `rss` too; a flow whose frames are whole is on one queue; frames longer than the buffer are `errors` of the queue
//! they belong to; the ledger adds up; other people's programs count the same frames in the files.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};
use wqcap_tests::{
    Dir, Finished, Program, Wqcap,
    captures::{Captures, SHORTEST},
    compare::assert_same,
    files::{self, Record},
    oracles::reference,
    skip,
};

/// Entries of the indirection table, by default.
const TABLE_SIZE: u16 = 128;

/// How the captures are replayed.
struct Setup<'s> {
    queues: u16,
    buffer: usize,
    settings: &'s [&'s str],
}

/// What a capture leaves, compressed or in a folder, is a wire again.
#[test]
fn compressed_captures_folders_and_standard_input_are_wires() {
    let dir = Dir::new();
    let run = |name: &str| Wqcap::run(&dir, name).queues(2);
    let first = run("first").model("synth:count=500,size=94,flows=16");
    let plain = first.finish(0);
    for compress in ["zstd", "lz4"] {
        let packed = run(compress)
            .replay(first.out_path())
            .set(&format!("output.compress={compress}"))
            .set("output.order=time");
        // The test kit reads plain files.
        let done = packed.done().expect(0);
        assert!(done.stderr.contains("500"), "{done}");
        let again = run(&format!("{compress}-again")).replay(packed.out_path());
        assert_eq!(again.finish(0).numbers(), plain.numbers(), "{compress}");
    }
    let (_, file) = plain.files().remove(0);
    let script = format!(
        "'{}' run --model pcap:- --set capture.idle=sleep --set output.format=none --json <'{}'",
        wqcap_tests::binaries::wqcap().display(),
        file.display()
    );
    let done = Program::new("sh").args(["-c", &script]).run().expect(0);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    let want = files::read(&file).len() as u64;
    assert_eq!(json["ledger"]["total"]["captured"].as_u64(), Some(want));
}

#[test]
fn one_queue_with_the_default_buffer() {
    let counts = replay_all(&Setup {
        queues: 1,
        buffer: 2048,
        settings: &["capture.receive=frame", "capture.buffer=2048"],
    });
    assert!(
        counts.long > 0,
        "no frame was longer than the buffer: that case has not been seen"
    );
}

/// Completions are compressed, too: nobody wants their stamps.
#[test]
fn four_queues_with_buffers_for_the_longest_frames() {
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

/// Buffers of many frames, each of which ends in a filler now and then. Their completions tell of 16 bits of length.
#[test]
fn four_queues_with_strides() {
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
fn four_queues_with_strides_and_compressed_completions() {
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
fn any_number_of_queues() {
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

/// Frames of all captures together.
#[derive(Debug, Default)]
struct Counts {
    files: usize,
    frames: usize,
    captured: usize,
    long: usize,
    runts: usize,
}

/// Replays every capture, a few side by side, and tells of all that fail, not of the first only.
fn replay_all(setup: &Setup<'_>) -> Counts {
    // The tests of this file each keep all cores busy: one after the other.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    let captures = Captures::find();
    let dir = Dir::new();
    let counts = Mutex::new(Counts::default());
    let files = Mutex::new(Vec::new());
    captures.each(|file| {
        let (one, mut its_files) = replay(&dir, setup, file);
        add(&mut counts.lock().expect("not poisoned"), &one);
        files.lock().expect("not poisoned").append(&mut its_files);
    });
    check_capinfos(&files.into_inner().expect("not poisoned"));
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

/// Replays one capture and checks all there is to check. Gives the files as well, and how many frames are in each.
fn replay(dir: &Dir, setup: &Setup<'_>, file: &Path) -> (Counts, Vec<(PathBuf, u64)>) {
    let records = files::read_as_it_stands(file);
    let frames: Vec<_> = records
        .iter()
        .map(|record| &record.bytes[..])
        .filter(|b| b.len() >= SHORTEST)
        .collect();
    let expected = Expected::of(&frames, setup);

    let name = format!(
        "{}-{}",
        setup.queues,
        file.file_stem().expect("named").display()
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
        finished
            .done
            .says(&[&format!("{runts} records shorter than an Ethernet header")]);
    }
    check_ledger(&finished, &expected, frames.len());
    let queues = finished.records();
    check_frames(&queues, &expected);
    check_flows(&queues);
    // The NIC's clock is at most as late as the machine can have been all the while.
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

/// What is to come out of each queue.
struct Expected<'f> {
    frames: Vec<Vec<&'f [u8]>>,
    long: Vec<usize>,
}

impl<'f> Expected<'f> {
    fn of(frames: &[&'f [u8]], setup: &Setup<'_>) -> Self {
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
        // The sums hold, or there were no summary: so nothing else can have happened to any frame.
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
        "the files hold other frames than the input: {} and {}",
        all.len(),
        wanted.len()
    );
    for (queue, records) in queues.iter().enumerate() {
        for (i, (record, frame)) in records.iter().zip(&expected.frames[queue]).enumerate() {
            assert_eq!(
                record.bytes, *frame,
                "frame {i} of queue {queue} is another, or in another place"
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

/// Stamps are the system's time of arrival, and do not go back within a queue.
fn check_stamps(queues: &[Vec<Record>], first: u64, last: u64) {
    for (queue, records) in queues.iter().enumerate() {
        assert!(
            records.is_sorted_by_key(|record| record.ts),
            "the clock of queue {queue} goes back"
        );
        for record in records {
            assert!(
                (first..=last).contains(&record.ts),
                "queue {queue}: a frame of {} arrived between {first} and {last}",
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

/// tcpdump counts in each file what the ledger counts in its queue. Gives the files with their counts.
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

/// So does capinfos, which takes many files at once.
fn check_capinfos(files: &[(PathBuf, u64)]) {
    for files in files.chunks(200) {
        let capinfos = Program::new("capinfos")
            .args(["-T", "-r", "-m", "-c"])
            .args(files.iter().map(|(path, _)| path))
            .run()
            .expect(0);
        let counted = capinfos.stdout.lines().map(|line| {
            let (_, count) = line.rsplit_once(',')?;
            count.trim_matches('"').parse().ok()
        });
        let counted: Vec<Option<u64>> = counted.collect();
        let wanted: Vec<_> = files.iter().map(|(_, count)| Some(*count)).collect();
        assert_same("frames by capinfos", &counted, &wanted);
    }
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}
