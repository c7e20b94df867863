//! Tests of sinks, blocks and the writer: frames are written to files and read back.

use super::*;
use crate::PortDescription;
use crate::{
    Origin, PcapEncoder, PcapngEncoder, Reached,
    write::{
        closer::CloserTask,
        disk::{
            Disk,
            fake::{Call, CallEffect, CallFault, Hand},
        },
        preopen::Preopen,
    },
};
use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};
use wqcap_core::{
    consumer::{Consumer, Frame, Verdict},
    stats::{ReceivedCounts, VerdictCounts},
};
use wqcap_files::name::NameTemplate;

const QUIET: Rotation = Rotation {
    size: 0,
    period_ns: 0,
    frames: 0,
};

fn files(dir: &Path, buffer: u64, rotation: Rotation) -> WriterConfig {
    let output = OutputPlan {
        rotation,
        ..OutputPlan::pcap(dir, buffer)
    };
    WriterConfig::new(output, 2048)
}

/// Reads the frames of a capture file, as (stamp, bytes).
fn frames_of(path: &Path) -> Vec<(u64, Vec<u8>)> {
    try_frames_of(path).expect("a valid file")
}

/// Reads the frames of a capture file that is being written; `None` if it does not end with a whole
/// record.
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

/// Returns the bytes of frame `i`. Frames have many lengths, so that records end at any position in a
/// block.
fn frame(i: u64) -> Vec<u8> {
    let len = usize::try_from(i * 37 % 1987).expect("small") + 14;
    vec![u8::try_from(i % 251).expect("a byte"); len]
}

/// Passes frames with these numbers, which are their stamps, to a sink. Returns the number captured.
fn feed<E: Encoder>(sink: &mut BlockSink<E>, range: std::ops::Range<u64>) -> u64 {
    range
        .map(|i| {
            u64::from(
                sink.frame(&Frame::new(
                    &frame(i),
                    u32::try_from(frame(i).len()).expect("short"),
                    i,
                )) == Verdict::Captured,
            )
        })
        .sum()
}

/// Returns the finished capture files in name order.
fn listed(finished: &WriterReport) -> Vec<PathBuf> {
    finished.files.iter().collect()
}

#[test]
fn each_queue_with_frames_writes_one_file_that_reads_back() {
    let dir = tempfile::tempdir().expect("dir");
    let counters = [Arc::default(), Arc::default(), Arc::default()];
    let (writer, mut sinks) = Writer::start(
        &files(dir.path(), 1 << 16, QUIET),
        &PcapEncoder::default(),
        &counters,
    )
    .expect("start");
    assert_eq!(feed(&mut sinks[0], 5..20_005), 20_000);
    assert_eq!(feed(&mut sinks[2], 9..10), 1);
    drop(sinks);
    let finished = writer.finish();
    assert_eq!(finished.failures, Vec::<String>::new());
    assert_eq!(
        listed(&finished),
        [
            dir.path().join("wqcap-q00-5.pcap"),
            dir.path().join("wqcap-q02-9.pcap")
        ]
    );
    let want: Vec<_> = (5..20_005).map(|i| (i, frame(i))).collect();
    assert_eq!(frames_of(&listed(&finished)[0]), want);
    assert_eq!(frames_of(&listed(&finished)[1]), [(9, frame(9))]);
}

#[test]
fn an_idle_queue_writes_its_partial_block_and_continues_without_a_gap() {
    let dir = tempfile::tempdir().expect("dir");
    let counters = [Arc::default()];
    let (writer, mut sinks) = Writer::start(
        &files(dir.path(), 1 << 20, QUIET),
        &PcapEncoder::default(),
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
                    // A call does nothing while no block is free, so it is repeated.
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
        frames_of(&listed(&finished)[0]),
        (0..500).map(|i| (i, frame(i))).collect::<Vec<_>>()
    );
}

#[test]
fn rotation_neither_loses_nor_repeats_frames() {
    for (rotation, most) in [
        (
            Rotation {
                size: 50_000,
                period_ns: 0,
                frames: 0,
            },
            50_000,
        ),
        (
            Rotation {
                size: 0,
                period_ns: 100,
                frames: 0,
            },
            u64::MAX,
        ),
        (
            Rotation {
                size: 30_000,
                period_ns: 64,
                frames: 0,
            },
            30_000,
        ),
        (
            Rotation {
                size: 0,
                period_ns: 0,
                frames: 97,
            },
            u64::MAX,
        ),
    ] {
        let dir = tempfile::tempdir().expect("dir");
        let counters = [Arc::default()];
        let (writer, mut sinks) = Writer::start(
            &files(dir.path(), 1 << 18, rotation),
            &PcapEncoder::default(),
            &counters,
        )
        .expect("start");
        assert_eq!(feed(&mut sinks[0], 0..3_000), 3_000);
        drop(sinks);
        let finished = writer.finish();
        assert_eq!(finished.failures, Vec::<String>::new());
        assert!(listed(&finished).len() >= 30, "{}", listed(&finished).len());
        let mut all = Vec::new();
        for file in &listed(&finished) {
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
            if rotation.frames != 0 {
                let last = frames[frames.len() - 1].0 == 2_999;
                let want = if last { 3_000 % 97 } else { 97 };
                assert_eq!(frames.len(), want, "the configured number of frames");
            }
            all.extend(frames);
        }
        all.sort();
        assert_eq!(all, (0..3_000).map(|i| (i, frame(i))).collect::<Vec<_>>());
    }
}

/// Readers select files by the first record of the next file and by the time of the last write.
#[test]
fn a_file_whose_clock_was_set_back_is_written_at_its_latest_stamp() {
    let dir = tempfile::tempdir().expect("dir");
    let counters = [Arc::default()];
    let rotation = Rotation { frames: 7, ..QUIET };
    let started = Writer::start(
        &files(dir.path(), 1 << 18, rotation),
        &PcapEncoder::default(),
        &counters,
    );
    let (writer, mut sinks) = started.expect("start");
    const SECOND: u64 = 1_000_000_000;
    let now = wqcap_core::time::system_ns();
    // The clock is ahead by a minute, and is then set back by 50 and by 8 seconds.
    let stamps = [1, 60, 61, 11, 12, 4, 5].map(|seconds| now + seconds * SECOND);
    for ns in stamps {
        let frame = frame(1);
        let len = u32::try_from(frame.len()).expect("short");
        let verdict = sinks[0].frame(&Frame::new(&frame, len, ns));
        assert_eq!(verdict, Verdict::Captured);
    }
    drop(sinks);
    let finished = writer.finish();
    let [file] = &listed(&finished)[..] else {
        panic!("one file: {:?}", listed(&finished));
    };
    assert_eq!(frames_of(file).len(), stamps.len());
    let written = file
        .metadata()
        .and_then(|it| it.modified())
        .expect("a time");
    let written = written.duration_since(std::time::UNIX_EPOCH).expect("late");
    assert_eq!(written.as_secs(), (now + 61 * SECOND) / SECOND);
}

#[test]
fn the_last_file_within_the_limit_takes_all_further_frames() {
    let dir = tempfile::tempdir().expect("dir");
    let counters = [Arc::default(), Arc::default()];
    let rotation = Rotation {
        frames: 100,
        ..QUIET
    };
    let owner = Wakeup::new().expect("a descriptor");
    let limit = Arc::new(WriteLimit::new(None, Some(3), &owner));
    let files = WriterConfig {
        limit: Some(Arc::clone(&limit)),
        ..files(dir.path(), 1 << 18, rotation)
    };
    let started = Writer::start(&files, &PcapEncoder::default(), &counters);
    let (writer, mut sinks) = started.expect("start");
    feed(&mut sinks[0], 0..150);
    feed(&mut sinks[1], 0..100);
    assert_eq!(limit.reached(), None);
    assert!(!owner.take());
    feed(&mut sinks[1], 100..101);
    assert_eq!(limit.reached(), Some(Reached::Files));
    assert!(owner.take());
    feed(&mut sinks[0], 150..400);
    feed(&mut sinks[1], 101..200);
    drop(sinks);
    let finished = writer.finish();
    assert_eq!(finished.failures, Vec::<String>::new());
    let frames: Vec<_> = listed(&finished)
        .iter()
        .map(|it| frames_of(it).len())
        .collect();
    assert_eq!(frames, [100, 300, 200]);
    assert_eq!(limit.written().files, 3);
}

#[test]
fn the_write_limit_counts_the_bytes_of_the_files() {
    let dir = tempfile::tempdir().expect("dir");
    let counters = [Arc::default()];
    let rotation = Rotation {
        frames: 100,
        ..QUIET
    };
    let owner = Wakeup::new().expect("a descriptor");
    let limit = Arc::new(WriteLimit::new(Some(1 << 20), None, &owner));
    let files = WriterConfig {
        limit: Some(Arc::clone(&limit)),
        ..files(dir.path(), 1 << 18, rotation)
    };
    let started = Writer::start(&files, &PcapEncoder::default(), &counters);
    let (writer, mut sinks) = started.expect("start");
    feed(&mut sinks[0], 0..1_000);
    sinks[0].begin_batch();
    assert_eq!(limit.reached(), None);
    assert!(!owner.take());
    feed(&mut sinks[0], 1_000..1_100);
    sinks[0].begin_batch();
    assert_eq!(limit.reached(), Some(Reached::Bytes));
    assert!(owner.take());
    drop(sinks);
    let finished = writer.finish();
    let len = |path: &PathBuf| std::fs::metadata(path).expect("there").len();
    let bytes: u64 = listed(&finished).iter().map(len).sum();
    assert_eq!(limit.written().bytes, bytes);
}

#[test]
fn a_pcapng_file_ends_with_its_statistics() {
    use pcap_file::pcapng::{
        Block, PcapNgReader, blocks::interface_statistics::InterfaceStatisticsOption as Isb,
    };
    let dir = tempfile::tempdir().expect("dir");
    let counters = [Arc::default()];
    let encoder = PcapngEncoder {
        interfaces: vec![PortDescription {
            name: "port".into(),
            ..PortDescription::default()
        }],
        ..PcapngEncoder::default()
    };
    let (writer, mut sinks) =
        Writer::start(&files(dir.path(), 1 << 16, QUIET), &encoder, &counters).expect("start");
    assert_eq!(feed(&mut sinks[0], 0..1_000), 1_000);
    drop(sinks);
    let finished = writer.finish();
    let mut reader =
        PcapNgReader::new(File::open(&listed(&finished)[0]).expect("file")).expect("section");
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

/// Returns the numbers of frames received and dropped in the interface statistics of a pcapng file.
fn statistics(file: &[u8]) -> (u64, u64) {
    use pcap_file::pcapng::{
        Block, PcapNgReader, blocks::interface_statistics::InterfaceStatisticsOption as Isb,
    };
    let mut reader = PcapNgReader::new(file).expect("section");
    let (mut received, mut dropped) = (0, 0);
    while let Some(block) = reader.next_block() {
        if let Block::InterfaceStatistics(it) = block.expect("sound") {
            for option in &it.options {
                match option {
                    Isb::IsbIfRecv(n) => received = *n,
                    Isb::IsbIfDrop(n) => dropped = *n,
                    _ => {}
                }
            }
        }
    }
    (received, dropped)
}

#[test]
fn drops_behind_the_last_frame_are_in_the_statistics_of_the_last_file() {
    let dir = tempfile::tempdir().expect("dir");
    let rotation = Rotation {
        frames: 10,
        ..Rotation::default()
    };
    let mut files = files(dir.path(), 1 << 18, rotation);
    files.output.on_full = OnFull::Drop;
    let owner = (Some(0), FileLedger::Queue(Arc::default()));
    // There is no writer thread, as if the disk were slow: each file takes a block that does not return.
    let encoder = PcapngEncoder::default();
    let mut it = Writer::prepare(&files, &encoder, vec![owner]).expect("prepared");
    let mut sink = it.sinks.remove(0);
    let captured = feed(&mut sink, 0..1_000);
    assert_eq!((captured % 10, captured < 1_000), (0, true));
    drop(sink);
    let last = it.full.try_iter().last().expect("a block").block;
    let lost = 1_000 - captured;
    let statistics = statistics(last.memory.as_slice(last.len));
    assert_eq!(statistics, (10 + lost, lost));
}

#[test]
fn frames_that_the_receive_loop_lost_are_in_the_files() {
    let dir = tempfile::tempdir().expect("dir");
    let counters = [Arc::new(QueueCounters::default())];
    let lose = |dropped_pipeline, errors| {
        counters[0].publish_received(&ReceivedCounts {
            dropped_pipeline,
            errors,
            ..ReceivedCounts::default()
        });
    };
    let files = files(dir.path(), 1 << 18, QUIET);
    let (writer, mut sinks) =
        Writer::start(&files, &PcapngEncoder::default(), &counters).expect("start");
    let mut sink = sinks.remove(0);
    feed(&mut sink, 0..10);
    lose(5, 2);
    sink.begin_batch();
    feed(&mut sink, 10..20);
    sink.begin_batch();
    feed(&mut sink, 20..30);
    lose(6, 2);
    drop((sink, sinks));
    let path = &listed(&writer.finish())[0];
    assert_eq!(statistics(&std::fs::read(path).expect("a file")), (38, 8));
    let index = wqcap_files::index::build(path, None, || true);
    let index = index.expect("read").expect("unchanged");
    let lost = index.blocks.iter().filter_map(|it| it.lost);
    assert_eq!(lost.sum::<u64>(), 7, "before a frame");
}

#[test]
fn the_first_record_behind_a_filter_change_carries_a_note() {
    use pcap_file::pcapng::{
        Block, PcapNgReader,
        blocks::{
            enhanced_packet::EnhancedPacketOption as Epb,
            interface_description::InterfaceDescriptionOption as Idb,
        },
    };
    let dir = tempfile::tempdir().expect("dir");
    let origin = Origin {
        filter: "ip".into(),
        comment: "a run".into(),
        ..Origin::here()
    };
    let encoder = PcapngEncoder {
        interfaces: vec![PortDescription {
            name: "port".into(),
            ..PortDescription::default()
        }],
        origin,
        ..PcapngEncoder::default()
    };
    // A period for each thousand frames.
    let rotation = Rotation {
        size: 0,
        period_ns: 1_000,
        frames: 0,
    };
    for compress in [Compress::None, Compress::Lz4] {
        let mut files = files(dir.path(), 1 << 16, rotation);
        files.output.compress = compress;
        let (writer, mut sinks) =
            Writer::start(&files, &encoder, &[Arc::default()]).expect("start");
        let sink = &mut sinks[0];
        assert_eq!(feed(sink, 0..500), 500);
        sink.filter_changed("arp");
        // An idle call between the change and the next record must not lose the note.
        sink.idle();
        assert_eq!(feed(sink, 500..1_000), 500);
        sink.filter_changed("udp");
        assert_eq!(feed(sink, 1_000..1_500), 500, "a note at a rotation");
        sink.filter_changed("");
        drop(sinks);
        let finished = writer.finish();
        assert_eq!(finished.failures, Vec::<String>::new());
        let (mut filters, mut notes, mut frames) = (Vec::new(), Vec::new(), 0);
        for path in &listed(&finished) {
            let mut bytes = Vec::new();
            let source = wqcap_files::read::Decompressor::new(File::open(path).expect("file"));
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
        let note = |filter| format!("the capture filter from this block on is: {filter}");
        assert_eq!(notes, [(500, note("arp")), (1_000, note("udp"))]);
    }
}

/// Runs in a separate process, because it sets a resource limit of the process.
#[test]
fn a_failed_write_loses_only_unwritten_frames_and_leaves_readable_files() {
    const ALONE: &str = "WQCAP_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let (_, module) = module_path!().split_once("::").expect("in a crate");
        let name = format!(
            "{module}::a_failed_write_loses_only_unwritten_frames_and_leaves_readable_files"
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
        &PcapEncoder::default(),
        &counters,
    )
    .expect("start");
    // A limit on the file size makes writes fail; with SIGXFSZ ignored, write returns EFBIG.
    let limit = libc::rlimit {
        rlim_cur: 100_000,
        rlim_max: libc::RLIM_INFINITY,
    };
    #[allow(unsafe_code)]
    // SAFETY: system calls with a limit that outlives them.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
    }
    let taken = feed(&mut sinks[0], 0..2_000);
    let bytes: u64 = (0..2_000).map(|i| frame(i).len() as u64).sum();
    assert_eq!(taken, 2_000, "with hold the sink drops no frames");
    counters[0].publish_received(&ReceivedCounts {
        frames: 2_000,
        ..ReceivedCounts::default()
    });
    counters[0].publish_ends(&VerdictCounts {
        captured: taken,
        bytes,
        ..VerdictCounts::default()
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
    let kept: Vec<_> = listed(&finished)
        .iter()
        .flat_map(|f| frames_of(f))
        .collect();
    assert_eq!(ledger.captured, kept.len() as u64);
    assert_eq!(
        ledger.bytes,
        kept.iter().map(|(_, b)| b.len() as u64).sum::<u64>()
    );
    assert!(
        listed(&finished).len() > 1,
        "a new file is begun after a failed one"
    );
    assert!(kept.iter().all(|(ns, bytes)| *bytes == frame(*ns)));
    assert!(
        ledger.dropped_storage > 0 && ledger.captured + ledger.dropped_storage == 2_000,
        "{ledger:?}"
    );
}

/// Test's side of a writer on a fake disk.
struct Seen {
    disk: Hand,
    tasks: Receiver<CloserTask>,
    deadline: Arc<ShutdownDeadline>,
    /// Channel of emptied write blocks back to the sink.
    empty: Sender<Block>,
}

/// Creates a sink for one queue and the state of its writer thread, which the test runs.
fn on_fake(
    dir: &Path,
    buffer: u64,
    on_full: OnFull,
    counters: &Arc<QueueCounters>,
) -> (WriterThread, BlockSink<PcapEncoder>, Seen) {
    let mut files = files(dir, buffer, QUIET);
    files.output.on_full = on_full;
    let (work, mut sinks, seen) = several_on_fake(dir, &files, &[Arc::clone(counters)]);
    (work, sinks.remove(0), seen)
}

/// Creates sinks for several queues and the state of their writer thread. [`Seen::empty`] is the channel
/// of the first queue.
fn several_on_fake(
    dir: &Path,
    files: &WriterConfig,
    counters: &[Arc<QueueCounters>],
) -> (WriterThread, Vec<BlockSink<PcapEncoder>>, Seen) {
    let owners = (0..).zip(counters);
    let owners = owners.map(|(queue, it)| (Some(queue), FileLedger::Queue(Arc::clone(it))));
    let mut it =
        Writer::prepare(files, &PcapEncoder::default(), owners.collect()).expect("prepared");
    let (unclosed, tasks) = Unclosed::new();
    let deadline = Arc::<ShutdownDeadline>::default();
    let channels = WriterChannels {
        full: it.full,
        unclosed,
        failed: Arc::default(),
        requests: it.requests,
        trigger: None,
        ahead: Preopen::start(dir, counters.len()).expect("starts").0,
    };
    let seen = Seen {
        disk: Hand::default(),
        tasks,
        deadline,
        empty: it.empties.remove(0),
    };
    let naming = Naming::new(dir.to_owned(), NameTemplate::default(), "pcap".into());
    let ends = Arc::clone(&seen.deadline);
    let work = WriterThread::new(naming, false, it.states, channels, ends);
    (work, it.sinks, seen)
}

impl Seen {
    fn disk(&self) -> Disk {
        Disk::fake(&self.disk)
    }

    /// Finishes the files that the writer has passed to the closer, and returns their names.
    fn files(&self) -> Vec<PathBuf> {
        let finished = self.tasks.try_iter().filter_map(|task| match task {
            CloserTask::Close(file) => {
                file.count(true);
                file.close().expect("closes")
            }
            CloserTask::Sync(_) => None,
        });
        finished.collect()
    }

    fn begun(&self) -> u64 {
        self.disk.begun.load(Ordering::Relaxed)
    }
}

/// Waits for an event for at most 60 s, then fails the test.
#[track_caller]
fn until(event: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "never: {event}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn more_blocks_than_the_disk_accepts_wait_behind_a_partial_one() {
    let dir = tempfile::tempdir().expect("dir");
    // Three times as many blocks of 4 MiB as may be in progress; half of them are needed.
    let (work, mut sink, seen) = on_fake(dir.path(), 192 << 20, OnFull::Drop, &Arc::default());
    assert_eq!(seen.empty.len(), 48);
    let mut taken = feed(&mut sink, 0..10);
    // The partial block is sent. All further blocks wait for it, because the next one shares its last sector.
    sink.idle();
    taken += feed(&mut sink, 10..90_000);
    assert_eq!(taken, 90_000, "all frames wait in blocks");
    drop(sink);
    let finished = work.run(seen.disk());
    assert_eq!(finished.failures, Vec::<String>::new());
    let want: Vec<_> = (0..90_000).map(|i| (i, frame(i))).collect();
    assert!(frames_of(&seen.files()[0]) == want);
}

#[test]
fn blocks_of_a_single_queue_bypass_the_ring() {
    for (queues, uses_ring) in [(1, false), (2, true)] {
        let dir = tempfile::tempdir().expect("dir");
        let counters: Vec<_> = (0..queues).map(|_| Arc::default()).collect();
        let files = files(dir.path(), 16 << 20, QUIET);
        let (work, sinks, seen) = several_on_fake(dir.path(), &files, &counters);
        for mut sink in sinks {
            assert_eq!(feed(&mut sink, 0..5_000), 5_000, "in several blocks");
        }
        let finished = work.run(Disk::fake_with_plain_writes(&seen.disk));
        assert_eq!(finished.failures, Vec::<String>::new());
        let plain = seen.disk.plain.load(Ordering::Relaxed);
        assert_eq!(seen.begun() > plain, uses_ring, "{queues}");
        let want: Vec<_> = (0..5_000).map(|i| (i, frame(i))).collect();
        let files = seen.files();
        assert_eq!(files.len(), queues);
        assert!(files.iter().all(|it| frames_of(it) == want));
    }
}

#[test]
fn waiting_blocks_of_two_queues_are_written_concurrently() {
    let dir = tempfile::tempdir().expect("dir");
    let counters = [(); 2].map(|()| Arc::default());
    let files = files(dir.path(), 16 << 20, QUIET);
    let (work, mut sinks, seen) = several_on_fake(dir.path(), &files, &counters);
    for sink in &mut sinks {
        feed(sink, 0..10);
        sink.idle();
    }
    for mut sink in sinks {
        feed(&mut sink, 10..5_000);
    }
    let finished = work.run(Disk::fake_with_plain_writes(&seen.disk));
    assert_eq!(finished.failures, Vec::<String>::new());
    let plain = seen.disk.plain.load(Ordering::Relaxed);
    assert!(plain < seen.begun() / 2, "{plain} of {}", seen.begun());
    assert!(seen.files().iter().all(|it| frames_of(it).len() == 5_000));
}

#[test]
fn blocks_are_large_if_a_queue_has_enough_of_them() {
    let mib = 1 << 20;
    let mut files = files(Path::new(""), 0, QUIET);
    // Buffer in MiB, queues, maximum file size in MiB; block size in KiB, blocks per queue.
    for (buffer, queues, file, block, blocks) in [
        (256, 1, 0, 4096, 64),
        (256, 4, 0, 4096, 16),
        (256, 5, 0, 2048, 25),
        (256, 16, 0, 1024, 16),
        (256, 1, 8, 2048, 128),
        (256, 1, 1, 1024, 256),
        (4, 1, 0, 1024, 4),
        (3, 2, 0, 512, 3),
    ] {
        files.output.rotation.size = file * mib;
        let usual = SMALL_BLOCK..=BLOCK;
        let sizes = BlockSizes::new(&usual, &files, buffer * mib, queues);
        let seen = (sizes.block >> 10, sizes.per_queue);
        assert_eq!(seen, (block, blocks), "{buffer} MiB, {queues}, {file}");
    }
}

#[test]
fn blocks_given_up_are_counted_and_the_file_ends_before_them() {
    let dir = tempfile::tempdir().expect("dir");
    let counters = Arc::<QueueCounters>::default();
    let (work, mut sink, seen) = on_fake(dir.path(), 48 << 20, OnFull::Drop, &counters);
    let flag = Arc::<AtomicBool>::default();
    seen.deadline.give_up_on(Arc::clone(&flag));
    let mut taken = feed(&mut sink, 0..10);
    sink.idle();
    let disk = seen.disk();
    let writer = thread::spawn(move || work.run(disk));
    until("the first block is being written", || seen.begun() == 1);
    flag.store(true, Ordering::Relaxed);
    taken += feed(&mut sink, 10..20_000);
    assert_eq!(taken, 20_000, "all frames wait in blocks");
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
fn the_writer_waits_for_a_full_disk_and_loses_no_captured_frame() {
    let dir = tempfile::tempdir().expect("dir");
    let (work, mut sink, seen) = on_fake(dir.path(), 1 << 20, OnFull::Drop, &Arc::default());
    let disk = seen.disk();
    let writer = thread::spawn(move || work.run(disk));
    let blocks = seen.empty.len();
    let mut taken = feed(&mut sink, 0..100);
    sink.idle();
    // No write is in progress when the disk becomes full, so no block is returned afterwards.
    until("the first write returned its block", || {
        seen.begun() > 0 && seen.empty.len() >= blocks - 1
    });
    let (before, began) = (seen.begun(), Instant::now());
    seen.disk.full.store(true, Ordering::Relaxed);
    taken += feed(&mut sink, 100..5_000);
    assert!(taken < 5_000, "more than the buffer holds");
    // An attempt writes each block once. After the first attempt there are pauses of 100 and 200 ms.
    until("the third attempt", || {
        seen.begun() > before + 2 * blocks as u64
    });
    assert!(began.elapsed() >= Duration::from_millis(100 + 200));
    assert_eq!(feed(&mut sink, 5_000..5_100), 0);
    seen.disk.full.store(false, Ordering::Relaxed);
    until("blocks are returned", || seen.empty.len() >= 2);
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
    assert_eq!(files.len(), 1, "the file is continued");
    let frames = frames_of(&files[0]);
    assert_eq!(frames.len() as u64, taken + 100);
    assert!(frames.is_sorted() && frames.iter().all(|(ns, bytes)| *bytes == frame(*ns)));
    assert_eq!(frames.last().map(|it| it.0), Some(5_199));
}

#[test]
fn the_end_of_a_run_does_not_wait_for_a_full_disk() {
    let dir = tempfile::tempdir().expect("dir");
    let counters = Arc::new(QueueCounters::default());
    counters.publish_received(&ReceivedCounts {
        frames: 5_000,
        ..ReceivedCounts::default()
    });
    counters.publish_ends(&VerdictCounts {
        captured: 5_000,
        bytes: (0..5_000).map(|i| frame(i).len() as u64).sum(),
        ..VerdictCounts::default()
    });
    let (work, mut sink, seen) = on_fake(dir.path(), 1 << 20, OnFull::Hold, &counters);
    seen.disk.full.store(true, Ordering::Relaxed);
    let disk = seen.disk();
    let writer = thread::spawn(move || work.run(disk));
    let queue = thread::spawn(move || feed(&mut sink, 0..5_000));
    until("the write of every block was attempted", || {
        seen.empty.is_empty() && seen.begun() >= 32
    });
    assert!(!queue.is_finished(), "with hold the sink waits");
    seen.deadline.begin(Instant::now());
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

/// Runs one queue into two files of eight blocks on a disk with a fault, with plain writes or the ring.
/// Checks that captured frames are in finished files and that all others count as lost. Returns the
/// number of lost frames and the number of calls of the fault's kind.
fn on_failing(dir: &Path, plain: bool, fault: CallFault) -> (u64, u64) {
    /// Number of frames that fill two files.
    const FRAMES: u64 = 255;
    let dir = tempfile::tempdir_in(dir).expect("dir");
    let (hand, counters) = (Hand::default(), [Arc::new(QueueCounters::default())]);
    *hand.fault.lock().expect("whole") = (fault, 0);
    let ring = hand.clone();
    let rotation = Rotation {
        size: 8 << 14,
        period_ns: 0,
        frames: 0,
    };
    let files = files(dir.path(), 1 << 14, rotation);
    let disk = move |_: &Pool| match plain {
        true => Disk::fake_with_plain_writes(&ring),
        false => Disk::fake(&ring),
    };
    let started = Writer::start_on(&files, &PcapEncoder::default(), &counters, disk);
    let (writer, mut sinks) = started.expect("started");
    let taken = feed(&mut sinks[0], 0..FRAMES);
    counters[0].publish_received(&ReceivedCounts {
        frames: FRAMES,
        ..ReceivedCounts::default()
    });
    counters[0].publish_ends(&VerdictCounts {
        captured: taken,
        dropped_storage: FRAMES - taken,
        bytes: (0..FRAMES).map(|i| frame(i).len() as u64).sum(),
        ..VerdictCounts::default()
    });
    drop(sinks);
    let finished = writer.finish();
    let kept: Vec<_> = listed(&finished)
        .iter()
        .flat_map(|it| frames_of(it))
        .collect();
    let whole = |(ns, bytes): &(u64, Vec<u8>)| *bytes == frame(*ns);
    assert!(kept.iter().all(whole), "{fault:?}");
    let numbers: std::collections::BTreeSet<_> = kept.iter().map(|(ns, _)| *ns).collect();
    assert_eq!(numbers.len(), kept.len(), "a frame is repeated: {fault:?}");
    let ledger = counters[0].ledger(0);
    assert_eq!(
        (ledger.captured, ledger.dropped_storage),
        (kept.len() as u64, FRAMES - kept.len() as u64),
        "{fault:?}: {:?}",
        finished.failures
    );
    let left = std::fs::read_dir(dir.path()).expect("lists").count();
    assert_eq!(
        left,
        listed(&finished).len(),
        "an open file is left: {fault:?}"
    );
    let lost = ledger.dropped_storage;
    assert_eq!(lost > 0, !finished.failures.is_empty(), "{fault:?}");
    let calls = hand.fault.lock().expect("whole").1;
    (lost, calls)
}

#[test]
fn any_disk_call_may_fail_at_any_position() {
    const FOREVER: u64 = u64::MAX;
    let fails = CallEffect::Fails;
    let transient = [libc::EAGAIN, libc::EBUSY, libc::EINTR, libc::ENOMEM];
    // The kind of call, its effect, the number of consecutive faults, and whether frames are lost.
    let mut kinds = vec![
        (Call::Push, fails(0), 1, false),
        (Call::Push, fails(0), FOREVER, false),
        (Call::Enter, fails(libc::EPERM), 1, false),
        (Call::Enter, CallEffect::Panics, 1, true),
        (Call::Write, fails(libc::EINVAL), 1, false),
        (Call::Write, fails(libc::ENOSPC), 1, false),
        (Call::Write, fails(libc::EIO), 1, true),
        (Call::Write, fails(libc::EIO), FOREVER, true),
        (Call::Write, fails(libc::EFBIG), 2, true),
        (Call::Write, CallEffect::Writes(0), 1, false),
        (Call::Write, CallEffect::Writes(1), 1, false),
        (Call::Write, CallEffect::Writes(5000), 1, false),
        (Call::Write, CallEffect::Panics, 1, true),
        (Call::RegisterFile, fails(libc::ENFILE), 1, false),
        (Call::RegisterFile, CallEffect::Panics, 1, true),
    ];
    for errno in transient {
        kinds.extend([1, 3, FOREVER].map(|times| (Call::Enter, fails(errno), times, false)));
        kinds.extend([1, FOREVER].map(|times| (Call::Write, fails(errno), times, false)));
    }
    let dir = tempfile::tempdir().expect("dir");
    let both = kinds
        .iter()
        .flat_map(|kind| [(false, *kind), (true, *kind)]);
    for (plain, (call, effect, times, costs)) in both {
        if plain && matches!(call, Call::Push | Call::Enter) {
            continue;
        }
        let mut from = 1;
        loop {
            let fault = CallFault {
                call,
                from,
                times,
                effect,
            };
            let (lost, calls) = on_failing(dir.path(), plain, fault);
            if calls < from {
                assert_eq!(lost, 0, "{fault:?}");
                break;
            }
            assert_eq!(lost > 0, costs, "{fault:?}");
            from += 1;
        }
        // At least one call for each file, and one write for each block.
        let least = if matches!(call, Call::Push | Call::Write) {
            16
        } else {
            2
        };
        assert!(from > least, "{call:?}: {from}");
    }
}

/// Starts a writer of one queue and writes an open file with 100 frames.
fn with_open_file(dir: &Path) -> (Writer, Vec<BlockSink<PcapEncoder>>, [Arc<QueueCounters>; 1]) {
    let counters = [Arc::new(QueueCounters::default())];
    let files = files(dir, 1 << 18, QUIET);
    let (writer, mut sinks) =
        Writer::start(&files, &PcapEncoder::default(), &counters).expect("started");
    let captured = feed(&mut sinks[0], 7..107);
    counters[0].publish_ends(&VerdictCounts {
        captured,
        bytes: (7..107).map(|i| frame(i).len() as u64).sum(),
        ..VerdictCounts::default()
    });
    let part = dir.join("wqcap-q00-7.pcap.part");
    until("the frames are in the open file", || {
        sinks[0].idle();
        try_frames_of(&part).is_some_and(|it| it.len() == 100)
    });
    (writer, sinks, counters)
}

#[test]
fn a_file_truncated_removed_or_replaced_by_another_program_is_not_finished() {
    for harm in ["truncated", "removed", "replaced"] {
        let dir = tempfile::tempdir().expect("dir");
        let (writer, sinks, counters) = with_open_file(dir.path());
        let part = dir.path().join("wqcap-q00-7.pcap.part");
        if harm == "truncated" {
            let file = File::options().write(true).open(&part).expect("opens");
            file.set_len(5000).expect("truncated");
        } else {
            std::fs::remove_file(&part).expect("removed");
        }
        if harm == "replaced" {
            std::fs::write(&part, "another's").expect("written");
        }
        drop(sinks);
        let finished = writer.finish();
        assert_eq!(listed(&finished), Vec::<PathBuf>::new(), "{harm}");
        let message = if harm == "truncated" {
            "truncated the file to 5000"
        } else {
            "cannot trust"
        };
        let failures = finished.failures;
        assert!(
            failures.iter().any(|it| it.contains(message)) || harm == "removed",
            "{failures:?}"
        );
        assert!(!failures.is_empty(), "{harm}");
        let ledger = counters[0].ledger(0);
        let ends = (ledger.captured, ledger.dropped_storage, ledger.bytes);
        assert_eq!(ends, (0, 100, 0), "{harm}");
        assert!(!dir.path().join("wqcap-q00-7.pcap").exists(), "{harm}");
    }
}

#[test]
fn a_name_that_another_program_took_is_not_overwritten() {
    let dir = tempfile::tempdir().expect("dir");
    let (writer, sinks, counters) = with_open_file(dir.path());
    let taken = ["wqcap-q00-7.pcap", "wqcap-q00-8.pcap"].map(|name| dir.path().join(name));
    std::fs::write(&taken[0], "another's").expect("written");
    std::os::unix::fs::symlink("nowhere", &taken[1]).expect("linked");
    drop(sinks);
    let finished = writer.finish();
    assert_eq!(finished.failures, Vec::<String>::new());
    assert_eq!(listed(&finished), [dir.path().join("wqcap-q00-9.pcap")]);
    assert_eq!(frames_of(&listed(&finished)[0]).len(), 100);
    assert_eq!(counters[0].ledger(0).captured, 100);
    assert_eq!(std::fs::read(&taken[0]).expect("there"), b"another's");
    let left = std::fs::read_link(&taken[1]).expect("there");
    assert_eq!(left, Path::new("nowhere"));
}

/// Returns the longest time in nanoseconds between a frame's stamp and the sending of its block to the
/// writer, at `rate` frames per second. Each frame is a batch, and the loop makes an idle call after
/// every 0.2 s without a frame.
fn longest_delay(compress: Compress, rate: u64) -> u64 {
    const IDLE: u64 = 200_000_000;
    const START: u64 = 1_795_233_110_000_000_000;
    let dir = tempfile::tempdir().expect("dir");
    let mut files = files(dir.path(), 4 << 20, QUIET);
    files.output.compress = compress;
    let owner = (Some(0), FileLedger::Queue(Arc::default()));
    let mut it = Writer::prepare(&files, &PcapEncoder::default(), vec![owner]).expect("prepared");
    let (sink, full, empty) = (&mut it.sinks[0], &it.full, &it.empties[0]);
    let (gap, mut sent, mut worst) = (1_000_000_000 / rate, 0, 0);
    let stamp = |i: u64| START + i * gap;
    let frames = (3 * rate).max(10);
    for i in 0..frames {
        let mut events = vec![stamp(i)];
        // The last frame is followed by 20 idle calls.
        let next = if i + 1 < frames {
            stamp(i + 1)
        } else {
            stamp(i) + 20 * IDLE
        };
        events.extend(
            (1..)
                .map(|n| stamp(i) + n * IDLE)
                .take_while(|at| *at < next),
        );
        for (n, now) in events.into_iter().enumerate() {
            if sent < i {
                worst = worst.max(now - stamp(sent));
            }
            if n > 0 {
                sink.idle();
            } else {
                sink.begin_batch();
                sink.frame(&Frame::new(&[7; 60], 60, now));
            }
            for full in full.try_iter() {
                sent += full.block.tally.frames;
                empty.send(full.block).expect("room");
            }
        }
    }
    assert_eq!(sent, frames, "{compress:?}, {rate}/s");
    worst
}

#[test]
fn a_frame_is_sent_to_the_writer_within_a_second_at_any_rate() {
    for compress in [Compress::None, Compress::Zstd(None)] {
        for rate in [1, 2, 4, 5, 6, 9, 20, 200, 20_000] {
            let worst = longest_delay(compress, rate);
            assert!(worst <= 900_000_000, "{compress:?}, {rate}/s: {worst} ns");
        }
    }
}

#[test]
fn a_partial_block_is_written_while_a_filter_note_is_pending() {
    let dir = tempfile::tempdir().expect("dir");
    let encoder = PcapngEncoder {
        interfaces: vec![PortDescription {
            name: "port".into(),
            ..PortDescription::default()
        }],
        ..PcapngEncoder::default()
    };
    let owner = (Some(0), FileLedger::Queue(Arc::default()));
    let files = files(dir.path(), 1 << 18, QUIET);
    let mut it = Writer::prepare(&files, &encoder, vec![owner]).expect("prepared");
    let sink = &mut it.sinks[0];
    assert_eq!(feed(sink, 0..10), 10);
    sink.filter_changed("udp");
    sink.idle();
    let full = it.full.try_recv().expect("the block was sent");
    assert_eq!(full.block.tally.frames, 10);
    it.empties[0].send(full.block).expect("room");
    assert_eq!(feed(sink, 10..12), 2);
    sink.idle();
    assert_eq!(it.full.try_recv().map(|it| it.block.tally.frames), Ok(2));
}

#[test]
fn partial_blocks_do_not_queue_behind_a_stalled_disk() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = (Some(0), FileLedger::Queue(Arc::default()));
    let files = files(dir.path(), 8 << 20, QUIET);
    let mut it = Writer::prepare(&files, &PcapEncoder::default(), vec![owner]).expect("prepared");
    let (sink, blocks) = (&mut it.sinks[0], it.empties[0].len());
    for i in 0..100 {
        feed(sink, i..i + 1);
        sink.idle();
    }
    assert_eq!(it.full.len(), blocks / 2);
    assert_eq!(it.empties[0].len(), blocks / 2 - 1);
}

#[test]
fn a_mark_is_written_with_the_next_records_of_open_files_only() {
    let dir = tempfile::tempdir().expect("dir");
    let encoder = PcapngEncoder {
        interfaces: vec![PortDescription {
            name: "port".into(),
            ..PortDescription::default()
        }],
        ..PcapngEncoder::default()
    };
    let files = files(dir.path(), 1 << 18, QUIET);
    let counters = [Arc::default(), Arc::default()];
    let (writer, mut sinks) = Writer::start(&files, &encoder, &counters).expect("start");
    assert_eq!(feed(&mut sinks[0], 0..3), 3);
    let requests = writer.requests();
    for i in 0..6 {
        requests.mark(&format!("{i}: x"));
    }
    for sink in &mut sinks {
        sink.idle();
    }
    sinks[0].filter_changed("udp");
    assert_eq!(feed(&mut sinks[0], 3..6), 3);
    assert_eq!(feed(&mut sinks[1], 6..8), 2);
    drop(sinks);
    let finished = writer.finish();
    assert_eq!(finished.failures, Vec::<String>::new());
    // The index contains the marks that readers of the files see.
    let marks = listed(&finished).into_iter().map(|path| {
        let index = wqcap_files::index::build(&path, None, || true).expect("reads");
        let marks = index.expect("unchanged").marks.into_iter();
        marks.map(|it| (it.ns, it.text)).collect::<Vec<_>>()
    });
    let mark = |ns, i| (ns, format!("{i}: x"));
    let first = [(3, 0), (3, 1), (3, 2), (3, 3), (4, 4), (4, 5)].map(|(ns, i)| mark(ns, i));
    assert_eq!(marks.collect::<Vec<_>>(), [first.to_vec(), Vec::new()]);
}

#[test]
fn rotation_waits_for_the_thread_that_closes_files() {
    let dir = tempfile::tempdir().expect("dir");
    let mut files = files(dir.path(), 8 << 20, QUIET);
    // Each block begins a file.
    files.output.rotation = Rotation {
        size: 4096,
        ..QUIET
    };
    let counters = [Arc::default()];
    let (work, mut sinks, seen) = several_on_fake(dir.path(), &files, &counters);
    let disk = seen.disk();
    let writer = thread::spawn(move || work.run(disk));
    let mut sink = sinks.remove(0);
    let feeding = thread::spawn(move || feed(&mut sink, 0..4_000));
    until("the closing thread has much to do", || {
        seen.tasks.len() == MOST_UNCLOSED
    });
    thread::sleep(Duration::from_millis(200));
    assert_eq!(seen.tasks.len(), MOST_UNCLOSED, "no more than that wait");
    let mut names = Vec::new();
    until("the writer ends", || {
        names.extend(seen.files());
        feeding.is_finished() && writer.is_finished()
    });
    names.extend(seen.files());
    assert_eq!(feeding.join().expect("ends"), 4_000);
    let finished = writer.join().expect("ends");
    assert!(
        finished
            .notes
            .iter()
            .any(|it| it.contains("the writer waited")),
        "{:?}",
        finished.notes
    );
    let frames: usize = names.iter().map(|it| frames_of(it).len()).sum();
    assert_eq!(frames, 4_000);
}
