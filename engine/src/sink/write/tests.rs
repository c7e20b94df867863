//! Frames through sinks, blocks and files, and back.

use super::*;
use crate::sink::write::{
    closer::CloserTask,
    disk::{
        Disk,
        fake::{Fake, Hand},
    },
    preopen::Preopen,
};
use crate::{
    pipeline::{Consumer, Frame, Verdict},
    sink::{Origin, PcapEncoder, PcapngEncoder},
    stats::{Ends, Received},
};
use std::{
    fs::File,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

const QUIET: Rotation = Rotation {
    size: 0,
    period_ns: 0,
};

fn files(dir: &Path, buffer: u64, rotation: Rotation) -> Files {
    Files {
        output: OutputPlan {
            rotation,
            ..OutputPlan::pcap(dir, buffer)
        },
        snaplen: 0,
        longest: 2048,
        hook_process: None,
    }
}

/// The frames of a file, as (stamp, bytes).
fn frames_of(path: &Path) -> Vec<(u64, Vec<u8>)> {
    try_frames_of(path).expect("a sound file")
}

/// The same of a file that may be in the middle of a write; `None`: it is.
fn try_frames_of(path: &Path) -> Option<Vec<(u64, Vec<u8>)>> {
    let mut reader = pcap_file::pcap::PcapReader::new(File::open(path).ok()?).ok()?;
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.ok()?;
        frames.push((
            u64::try_from(packet.timestamp.as_nanos()).expect("fits"),
            packet.data.into_owned(),
        ));
    }
    Some(frames)
}

/// Frames of many lengths, so that records end everywhere in a block, each told apart by its stamp.
fn frame(i: u64) -> Vec<u8> {
    let len = usize::try_from(i * 37 % 1987).expect("small") + 14;
    vec![u8::try_from(i % 251).expect("a byte"); len]
}

fn feed<E: Encoder>(sink: &mut BlockSink<E>, range: std::ops::Range<u64>) -> u64 {
    range
        .map(|i| {
            u64::from(
                sink.frame(Frame {
                    bytes: &frame(i),
                    len: u32::try_from(frame(i).len()).expect("short"),
                    fcs: None,
                    ns: i,
                }) == Verdict::Captured,
            )
        })
        .sum()
}

#[test]
fn what_goes_in_comes_out_in_a_file_for_each_queue_that_had_frames() {
    let dir = tempfile::tempdir().expect("dir");
    let counters = [Arc::default(), Arc::default(), Arc::default()];
    let (writer, mut sinks) = Writer::start(
        &files(dir.path(), 1 << 16, QUIET),
        &PcapEncoder::new(0),
        &counters,
    )
    .expect("start");
    assert_eq!(feed(&mut sinks[0], 5..20_005), 20_000);
    assert_eq!(feed(&mut sinks[2], 9..10), 1);
    drop(sinks);
    let finished = writer.finish();
    assert_eq!(finished.failures, Vec::<String>::new());
    assert_eq!(
        finished.files,
        [
            dir.path().join("wqcap-q00-5.pcap"),
            dir.path().join("wqcap-q02-9.pcap")
        ]
    );
    let want: Vec<_> = (5..20_005).map(|i| (i, frame(i))).collect();
    assert_eq!(frames_of(&finished.files[0]), want);
    assert_eq!(frames_of(&finished.files[1]), [(9, frame(9))]);
}

#[test]
fn an_idle_queue_shows_what_it_has_and_goes_on_without_a_seam() {
    let dir = tempfile::tempdir().expect("dir");
    let counters = [Arc::default()];
    let (writer, mut sinks) = Writer::start(
        &files(dir.path(), 1 << 20, QUIET),
        &PcapEncoder::new(0),
        &counters,
    )
    .expect("start");
    let part = dir.path().join("wqcap-q00-0.pcap.part");
    for round in 0..50u64 {
        feed(&mut sinks[0], round * 10..round * 10 + 10);
        sinks[0].idle();
        if round % 10 == 0 {
            until(
                "the open file holds every frame so far and no padding",
                || {
                    // With every block on its way, a call does nothing; the loop calls again and again.
                    sinks[0].idle();
                    std::fs::metadata(&part).is_ok_and(|m| m.len() % 4096 != 0)
                        && try_frames_of(&part).is_some_and(|it| it.len() as u64 == round * 10 + 10)
                },
            );
        }
    }
    drop(sinks);
    let finished = writer.finish();
    assert_eq!(finished.failures, Vec::<String>::new());
    assert_eq!(
        frames_of(&finished.files[0]),
        (0..500).map(|i| (i, frame(i))).collect::<Vec<_>>()
    );
}

#[test]
fn rotation_by_size_and_time_loses_and_repeats_nothing() {
    for (rotation, most) in [
        (
            Rotation {
                size: 50_000,
                period_ns: 0,
            },
            50_000,
        ),
        (
            Rotation {
                size: 0,
                period_ns: 100,
            },
            u64::MAX,
        ),
        (
            Rotation {
                size: 30_000,
                period_ns: 64,
            },
            30_000,
        ),
    ] {
        let dir = tempfile::tempdir().expect("dir");
        let counters = [Arc::default()];
        let (writer, mut sinks) = Writer::start(
            &files(dir.path(), 1 << 18, rotation),
            &PcapEncoder::new(0),
            &counters,
        )
        .expect("start");
        assert_eq!(feed(&mut sinks[0], 0..3_000), 3_000);
        drop(sinks);
        let finished = writer.finish();
        assert_eq!(finished.failures, Vec::<String>::new());
        assert!(finished.files.len() >= 30, "{}", finished.files.len());
        let mut all = Vec::new();
        for file in &finished.files {
            assert!(std::fs::metadata(file).expect("there").len() <= most);
            let frames = frames_of(file);
            assert!(!frames.is_empty());
            if rotation.period_ns != 0 {
                let period = |(ns, _): &(u64, Vec<u8>)| ns / rotation.period_ns;
                assert_eq!(
                    period(&frames[0]),
                    period(&frames[frames.len() - 1]),
                    "aligned to the clock"
                );
            }
            all.extend(frames);
        }
        all.sort();
        assert_eq!(all, (0..3_000).map(|i| (i, frame(i))).collect::<Vec<_>>());
    }
}

#[test]
fn a_pcapng_file_ends_with_its_totals() {
    use pcap_file::pcapng::{
        Block, PcapNgReader, blocks::interface_statistics::InterfaceStatisticsOption as Isb,
    };
    let dir = tempfile::tempdir().expect("dir");
    let counters = [Arc::default()];
    let encoder = PcapngEncoder::new(0, "port".into());
    let (writer, mut sinks) =
        Writer::start(&files(dir.path(), 1 << 16, QUIET), &encoder, &counters).expect("start");
    assert_eq!(feed(&mut sinks[0], 0..1_000), 1_000);
    drop(sinks);
    let finished = writer.finish();
    let mut reader =
        PcapNgReader::new(File::open(&finished.files[0]).expect("file")).expect("section");
    let (mut packets, mut received) = (0, None);
    while let Some(block) = reader.next_block() {
        match block.expect("sound") {
            Block::EnhancedPacket(_) => packets += 1,
            Block::InterfaceStatistics(i) => {
                received = i.options.iter().find_map(|o| {
                    if let Isb::IsbIfRecv(n) = o {
                        Some(*n)
                    } else {
                        None
                    }
                });
            }
            _ => {}
        }
    }
    assert_eq!((packets, received), (1_000, Some(1_000)));
}

#[test]
fn another_filter_is_told_where_it_begins_to_hold() {
    use pcap_file::pcapng::{
        Block, PcapNgReader,
        blocks::{
            enhanced_packet::EnhancedPacketOption as Epb,
            interface_description::InterfaceDescriptionOption as Idb,
        },
    };
    let dir = tempfile::tempdir().expect("dir");
    let encoder = PcapngEncoder::new(0, "port".into()).from_origin(Origin {
        filter: "ip".into(),
        comment: "a run".into(),
        ..Origin::here()
    });
    // A period for each thousand frames.
    let rotation = Rotation {
        size: 0,
        period_ns: 1_000,
    };
    for compress in [Compress::None, Compress::Lz4] {
        let mut files = files(dir.path(), 1 << 16, rotation);
        files.output.compress = compress;
        let (writer, mut sinks) =
            Writer::start(&files, &encoder, &[Arc::default()]).expect("start");
        let sink = &mut sinks[0];
        assert_eq!(feed(sink, 0..500), 500);
        sink.changed("arp");
        // Nothing is lost meanwhile, whatever else happens.
        sink.idle();
        assert_eq!(feed(sink, 500..1_000), 500);
        sink.changed("udp");
        assert_eq!(feed(sink, 1_000..1_500), 500, "a note at a rotation");
        sink.changed("");
        drop(sinks);
        let finished = writer.finish();
        assert_eq!(finished.failures, Vec::<String>::new());
        let (mut filters, mut notes, mut frames) = (Vec::new(), Vec::new(), 0);
        for path in &finished.files {
            let mut bytes = Vec::new();
            let source = crate::read::Decompressor::new(File::open(path).expect("file"));
            std::io::Read::read_to_end(&mut source.expect("opens"), &mut bytes).expect("reads");
            let mut reader = PcapNgReader::new(&bytes[..]).expect("section");
            while let Some(block) = reader.next_block() {
                match block.expect("sound") {
                    Block::InterfaceDescription(i) => {
                        filters.extend(i.options.iter().filter_map(|o| match o {
                            Idb::IfFilter(bytes) => Some(bytes.to_vec()),
                            _ => None,
                        }));
                    }
                    Block::EnhancedPacket(p) => {
                        notes.extend(p.options.iter().filter_map(|o| match o {
                            Epb::Comment(text) => Some((frames, text.to_string())),
                            _ => None,
                        }));
                        assert_eq!(p.data[..], frame(frames));
                        frames += 1;
                    }
                    _ => {}
                }
            }
            std::fs::remove_file(path).expect("there");
        }
        assert_eq!(frames, 1_500);
        assert_eq!(filters, [b"\0ip".to_vec(), b"\0udp".to_vec()]);
        let told = |filter| format!("filter from here on: {filter}");
        assert_eq!(notes, [(500, told("arp")), (1_000, told("udp"))]);
    }
}

/// Runs in a process of its own, since the limit it sets is the process's.
#[test]
fn a_disk_that_takes_no_more_costs_what_was_not_written_and_leaves_readable_files() {
    const ALONE: &str = "WQCAP_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let (_, room) = module_path!().split_once("::").expect("in a crate");
        let name = format!(
            "{room}::a_disk_that_takes_no_more_costs_what_was_not_written_and_leaves_readable_files"
        );
        let out = std::process::Command::new(std::env::current_exe().expect("this test"))
            .args([&name, "--exact"])
            .env(ALONE, "1")
            .output()
            .expect("runs");
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let counters = [Arc::new(QueueCounters::default())];
    let (writer, mut sinks) = Writer::start(
        &files(dir.path(), 1 << 16, QUIET),
        &PcapEncoder::new(0),
        &counters,
    )
    .expect("start");
    // A limit to a file's size stands for a full disk; with SIGXFSZ ignored, write answers EFBIG.
    let limit = libc::rlimit {
        rlim_cur: 100_000,
        rlim_max: libc::RLIM_INFINITY,
    };
    #[allow(unsafe_code)]
    // SAFETY: plain system calls with a limit that outlives them.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
    }
    let taken = feed(&mut sinks[0], 0..2_000);
    let bytes: u64 = (0..2_000).map(|i| frame(i).len() as u64).sum();
    assert_eq!(taken, 2_000, "hold: the sink refuses nothing");
    counters[0].publish_received(&Received {
        frames: 2_000,
        ..Received::default()
    });
    counters[0].publish_ends(&Ends {
        captured: taken,
        bytes,
        ..Ends::default()
    });
    drop(sinks);
    assert!(writer.has_failed() || !writer.threads[0].is_finished());
    let finished = writer.finish();
    assert!(
        !finished.failures.is_empty() && finished.failures[0].contains("stay readable"),
        "{:?}",
        finished.failures
    );
    let ledger = counters[0].ledger(0);
    let kept: Vec<_> = finished.files.iter().flat_map(|f| frames_of(f)).collect();
    assert_eq!(ledger.captured, kept.len() as u64);
    assert_eq!(
        ledger.bytes,
        kept.iter().map(|(_, b)| b.len() as u64).sum::<u64>()
    );
    assert!(
        finished.files.len() > 1,
        "after a file that broke, a new one is begun"
    );
    assert!(kept.iter().all(|(ns, bytes)| *bytes == frame(*ns)));
    assert!(
        ledger.dropped_storage > 0 && ledger.captured + ledger.dropped_storage == 2_000,
        "{ledger:?}"
    );
}

/// What a test sees of a writer on a fake disk.
struct Seen {
    disk: Hand,
    tasks: Receiver<CloserTask>,
    deadline: Arc<ShutdownDeadline>,
    /// Where emptied blocks go.
    empty: Sender<Block>,
}

/// One queue's sink and its writer's work, which is the test's to start.
fn on_fake(
    dir: &Path,
    buffer: u64,
    on_full: OnFull,
    counters: &Arc<QueueCounters>,
) -> (WriterThread, BlockSink<PcapEncoder>, Seen) {
    let mut files = files(dir, buffer, QUIET);
    files.output.on_full = on_full;
    let owner = (Some(0), Ledger::Queue(Arc::clone(counters)));
    let mut it = Writer::prepare(&files, &PcapEncoder::new(0), vec![owner]).expect("prepared");
    let (closer, tasks) = crossbeam_channel::unbounded();
    let deadline = Arc::<ShutdownDeadline>::default();
    let hands = WriterChannels {
        full: it.full,
        closer,
        deadline: Arc::clone(&deadline),
        failed: Arc::default(),
        trigger: None,
        ahead: Preopen::start(dir, 1).expect("starts").0,
    };
    let seen = Seen {
        disk: Hand::default(),
        tasks,
        deadline,
        empty: it.empties.remove(0),
    };
    let work = WriterThread::new(dir.to_owned(), "pcap".into(), false, it.states, hands);
    (work, it.sinks.remove(0), seen)
}

impl Seen {
    fn disk(&self) -> Disk {
        Disk::Fake(Fake::new(&self.disk))
    }

    /// The files that the writer has let go of, finished.
    fn files(&self) -> Vec<PathBuf> {
        let left = self.tasks.try_iter().filter_map(|task| match task {
            CloserTask::Leave(file) => file.finish().expect("finishes"),
            CloserTask::Sync(_) => None,
        });
        left.collect()
    }

    fn begun(&self) -> u64 {
        self.disk.begun.load(Ordering::Relaxed)
    }
}

/// Waits for an event; the deadline only bounds a hang.
#[track_caller]
fn until(event: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "never: {event}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn more_blocks_than_the_disk_takes_wait_behind_one_that_was_not_full() {
    let dir = tempfile::tempdir().expect("dir");
    // Three times as many blocks of a mebibyte as may be under way.
    let (work, mut sink, seen) = on_fake(dir.path(), 48 << 20, OnFull::Drop, &Arc::default());
    assert_eq!(seen.empty.len(), 48);
    let mut taken = feed(&mut sink, 0..10);
    // What there is goes out; everything else has to wait for it, since it shares its last sector.
    sink.idle();
    taken += feed(&mut sink, 10..40_000);
    assert_eq!(taken, 40_000, "all of it waits in blocks");
    drop(sink);
    let finished = work.on(seen.disk());
    assert_eq!(finished.failures, Vec::<String>::new());
    let want: Vec<_> = (0..40_000).map(|i| (i, frame(i))).collect();
    assert!(frames_of(&seen.files()[0]) == want);
}

#[test]
fn what_is_given_up_is_counted_and_the_file_ends_before_it() {
    let dir = tempfile::tempdir().expect("dir");
    let counters = Arc::<QueueCounters>::default();
    let (work, mut sink, seen) = on_fake(dir.path(), 48 << 20, OnFull::Drop, &counters);
    let flag = Arc::<AtomicBool>::default();
    seen.deadline.give_up_on(Arc::clone(&flag));
    let mut taken = feed(&mut sink, 0..10);
    sink.idle();
    let disk = seen.disk();
    let writer = thread::spawn(move || work.on(disk));
    until("the first block is being written", || seen.begun() == 1);
    flag.store(true, Ordering::Relaxed);
    taken += feed(&mut sink, 10..20_000);
    assert_eq!(taken, 20_000, "all of it waits in blocks");
    drop(sink);
    let finished = writer.join().expect("ends");
    assert_eq!(finished.failures, Vec::<String>::new());
    let files = seen.files();
    let want: Vec<_> = (0..10).map(|i| (i, frame(i))).collect();
    assert!(
        frames_of(&files[0]) == want && files.len() == 1,
        "{files:?}"
    );
    let ledger = counters.ledger(0);
    assert_eq!(ledger.dropped_storage, 19_990);
}

#[test]
fn a_full_disk_is_waited_for_and_nothing_that_was_taken_is_lost() {
    let dir = tempfile::tempdir().expect("dir");
    let (work, mut sink, seen) = on_fake(dir.path(), 1 << 20, OnFull::Drop, &Arc::default());
    let disk = seen.disk();
    let writer = thread::spawn(move || work.on(disk));
    let blocks = seen.empty.len();
    let mut taken = feed(&mut sink, 0..100);
    sink.idle();
    // No write is under way when the disk becomes full: none of those that follow gives its block back.
    until("the first write gave its block back", || {
        seen.begun() > 0 && seen.empty.len() >= blocks - 1
    });
    let (before, began) = (seen.begun(), Instant::now());
    seen.disk.full.store(true, Ordering::Relaxed);
    taken += feed(&mut sink, 100..5_000);
    assert!(taken < 5_000, "more than the buffer holds");
    // A try writes each block once; after the first one come pauses of 100 and 200 ms.
    until("the third try", || {
        seen.begun() > before + 2 * blocks as u64
    });
    assert!(began.elapsed() >= Duration::from_millis(100 + 200));
    assert_eq!(feed(&mut sink, 5_000..5_100), 0);
    seen.disk.full.store(false, Ordering::Relaxed);
    until("blocks come back", || seen.empty.len() >= 2);
    assert_eq!(feed(&mut sink, 5_100..5_200), 100);
    drop(sink);
    let finished = writer.join().expect("ends");
    assert_eq!(finished.failures, Vec::<String>::new());
    assert!(
        finished.notes.len() == 1 && finished.notes[0].contains("no room"),
        "{:?}",
        finished.notes
    );
    let files = seen.files();
    assert_eq!(files.len(), 1, "the same file goes on");
    let frames = frames_of(&files[0]);
    assert_eq!(frames.len() as u64, taken + 100);
    assert!(frames.is_sorted() && frames.iter().all(|(ns, bytes)| *bytes == frame(*ns)));
    assert_eq!(frames.last().map(|it| it.0), Some(5_199));
}

#[test]
fn the_end_of_a_run_does_not_wait_for_room() {
    let dir = tempfile::tempdir().expect("dir");
    let counters = Arc::new(QueueCounters::default());
    counters.publish_received(&Received {
        frames: 5_000,
        ..Received::default()
    });
    counters.publish_ends(&Ends {
        captured: 5_000,
        bytes: (0..5_000).map(|i| frame(i).len() as u64).sum(),
        ..Ends::default()
    });
    let (work, mut sink, seen) = on_fake(dir.path(), 1 << 20, OnFull::Hold, &counters);
    seen.disk.full.store(true, Ordering::Relaxed);
    let disk = seen.disk();
    let writer = thread::spawn(move || work.on(disk));
    let queue = thread::spawn(move || feed(&mut sink, 0..5_000));
    until("every block was tried", || {
        seen.empty.is_empty() && seen.begun() >= 32
    });
    assert!(!queue.is_finished(), "it holds");
    seen.deadline.begin();
    assert_eq!(queue.join().expect("ends"), 5_000);
    let finished = writer.join().expect("ends");
    assert!(
        finished.failures[0].contains("No space left"),
        "{:?}",
        finished.failures
    );
    assert_eq!(seen.files(), Vec::<PathBuf>::new());
    let ledger = counters.ledger(0);
    assert_eq!((ledger.captured, ledger.dropped_storage), (0, 5_000));
}
