//! Disks without room: frames go into the write buffers, then `output.on_full` holds, and when room returns the capture
//! goes on where it was.
//!
//! | test | what it shows |
//! |---|---|
//! | `the_capture_continues_when_space_is_freed` | the same files go on; the gap is in the ledger, the summary and the file |
//! | `output_keep_deletes_the_oldest_files_on_a_full_disk` | `output.keep` above what the disk has |
//! | `a_run_that_ends_on_a_full_disk_reports_it` | status 1; what was captured stays readable |
//!
//! Each frame carries a number, so that a gap shows.

use rustix::{
    fs::{FallocateFlags, fallocate},
    process::Signal,
};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    thread,
};
use wqcap_tests::{
    Dir, Program, Running, Summary, Wqcap, files,
    machine::disks::{Image, Memory},
    need,
};

/// A wire that does not end. What a busy machine does not take of it is told by the NIC.
const WIRE: &str = "synth:size=1000,flows=64,pps=20000";

/// What a disk has in the place of room.
const BALLAST_MIB: u64 = 200;

/// A run of one queue into `out`, with files of 1 MiB and a buffer of as much, that answers questions.
fn run<'d>(dir: &'d Dir, name: &str, out: &Path) -> Wqcap<'d> {
    Wqcap::run(dir, name)
        .model(WIRE)
        .queues(1)
        .out(out)
        .set("output.format=pcapng")
        .set("output.buffer=1MiB")
        .set("output.rotate_size=1MiB")
        .control()
}

fn waits_for_room(running: &Running) -> bool {
    running.stderr().contains("waiting for room")
}

fn summary(run: &Wqcap<'_>) -> Summary {
    Summary::parse(&fs::read_to_string(run.summary_path()).expect("a summary"))
}

/// The frames' numbers in these files.
fn numbers(files: &[PathBuf]) -> Vec<u64> {
    let records = files.iter().flat_map(|file| files::read(file));
    records.map(|record| record.number()).collect()
}

fn assert_continues(dir: &Dir, kind: &str, disk: &Path) {
    // When it goes there is room for seconds: a busy machine may be late with the signal that ends the run.
    let ballast = disk.join("ballast");
    File::create(&ballast)
        .and_then(|it| {
            fallocate(it, FallocateFlags::empty(), 0, BALLAST_MIB << 20).map_err(Into::into)
        })
        .expect("there is room for it");
    let run = run(dir, &format!("goes-on-{kind}"), disk);
    let (mut running, ctl) = (run.start(), run.ctl());
    running.until("the disk is full", waits_for_room);
    ctl.until_counted(&mut running, "dropped_storage", 1);
    let before = ctl.until_counted(&mut running, "captured", 1);
    fs::remove_file(&ballast).expect("there");
    ctl.until_counted(&mut running, "captured", before + 1000);
    running.signal(Signal::TERM);
    let done = running.wait().expect(0);
    let summary = summary(&run);
    let total = summary.ledger.total;
    let numbers = numbers(&summary.files);
    assert_eq!(total.captured, numbers.len() as u64, "{done}");
    assert_eq!(
        total.received,
        total.captured + total.dropped_storage,
        "{done}"
    );
    let missing: u64 = numbers.windows(2).map(|pair| pair[1] - pair[0] - 1).sum();
    assert!(numbers.is_sorted() && missing > 0, "{done}");
    // The files say where, but for what came behind the last frame, and at their ends how many, but for what came behind
    // the last file.
    let told: u64 = summary.files.iter().map(|it| files::lost_before(it)).sum();
    let in_sum: u64 = summary.files.iter().map(|it| files::statistics(it).1).sum();
    let dropped = total.dropped_storage;
    assert!(
        told > 0 && (told..=dropped).contains(&in_sum),
        "{told}, {in_sum} of {dropped}: {done}"
    );
    // A busy machine may let the ring run empty as well, which is the NIC's loss.
    let before = summary.nic("out_of_buffer") + summary.nic("wire_dropped");
    assert!((told..=told + before).contains(&missing), "{done}");
    let notes = summary.json["notes"].to_string();
    assert!(notes.contains("there was no room for"), "{notes}");
}

#[test]
fn the_capture_continues_when_space_is_freed() {
    let dir = Dir::new();
    // With direct I/O, and without.
    let (image, memory) = (
        need!(Image::new(&dir, BALLAST_MIB + 40)),
        need!(Memory::new(&dir, BALLAST_MIB + 8)),
    );
    thread::scope(|scope| {
        scope.spawn(|| assert_continues(&dir, "image", image.path()));
        scope.spawn(|| assert_continues(&dir, "memory", memory.path()));
    });
}

#[test]
fn output_keep_deletes_the_oldest_files_on_a_full_disk() {
    let dir = Dir::new();
    let disk = need!(Image::new(&dir, 16));
    let run = run(&dir, "keep", disk.path()).set("output.keep=1GiB");
    let mut running = run.start();
    // More than the disk holds.
    run.ctl().until_counted(&mut running, "captured", 24_000);
    running.signal(Signal::TERM);
    let done = running.wait().expect(0);
    let summary = summary(&run);
    assert!(
        summary.json["deleted"]["files"].as_u64() > Some(2),
        "{done}"
    );
    let numbers = numbers(&summary.files);
    assert!(
        numbers.is_sorted() && numbers.len() > 1000 && numbers[0] > 0,
        "the newest are there: {done}"
    );
}

#[test]
fn a_run_that_ends_on_a_full_disk_reports_it() {
    for on_full in ["hold", "drop"] {
        let dir = Dir::new();
        let disk = need!(Memory::new(&dir, 6));
        let run = run(&dir, on_full, disk.path()).set(&format!("output.on_full={on_full}"));
        let mut running = run.start();
        running.until("the disk is full", waits_for_room);
        running.signal(Signal::TERM);
        let done = running.wait().expect(1);
        done.says(&["No space left on device", "wqcap-q"]);
        let summary = summary(&run);
        let total = summary.ledger.total;
        assert_eq!(summary.json["end"], "storage", "{done}");
        assert!(total.dropped_storage > 0, "{done}");
        let numbers = numbers(&summary.files);
        assert_eq!(numbers.len() as u64, total.captured, "{done}");
        assert!(
            numbers.len() > 1000,
            "six megabytes hold some thousands of frames: {done}"
        );
        for file in &summary.files {
            let _ = Program::new("tcpdump")
                .args(["-n", "--count", "-r"])
                .arg(file)
                .run()
                .expect(0);
        }
    }
}
