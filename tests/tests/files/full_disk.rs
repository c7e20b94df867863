//! Full disks: frames fill the write buffers, then `output.on_full` applies, and the capture
//! continues when space is freed.
//!
//! | test | covers |
//! |---|---|
//! | `the_capture_continues_when_space_is_freed` | the same files continue; the gap is in the ledger, the summary and the file |
//! | `output_keep_deletes_the_oldest_files_on_a_full_disk` | `output.keep` larger than the disk |
//! | `a_run_that_ends_on_a_full_disk_reports_it` | exit status 1; captured frames stay readable |
//!
//! Each frame carries a number, so that gaps are detected.

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

/// Endless wire. The NIC counts frames that a busy machine does not receive.
const WIRE: &str = "synth:size=1000,flows=64,pps=20000";

/// Size in MiB of a file that fills the disk.
const BALLAST_MIB: u64 = 200;

/// Returns a run with one queue into `out`, with files and a write buffer of 1 MiB each, and a
/// control socket.
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

/// Returns the sequence numbers of the frames in `files`.
fn numbers(files: &[PathBuf]) -> Vec<u64> {
    let records = files.iter().flat_map(|file| files::read(file));
    records.map(|record| record.number()).collect()
}

fn assert_continues(dir: &Dir, kind: &str, disk: &Path) {
    // Its removal frees space for several seconds, because a busy machine may send the final signal
    // late.
    let ballast = disk.join("ballast");
    File::create(&ballast)
        .and_then(|it| {
            fallocate(it, FallocateFlags::empty(), 0, BALLAST_MIB << 20).map_err(Into::into)
        })
        .expect("the ballast fits");
    let run = run(dir, &format!("goes-on-{kind}"), disk);
    let (mut running, ctl) = (run.start(), run.ctl());
    running.until("the disk is full", waits_for_room);
    ctl.until_counted(&mut running, "dropped_storage", 1);
    let before = ctl.until_counted(&mut running, "captured", 1);
    fs::remove_file(&ballast).expect("the ballast exists");
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
    // Records count the losses before them, so losses after the last frame are missing there. The
    // statistics at the ends of files lack only the losses after the last file.
    let by_records: u64 = summary.files.iter().map(|it| files::lost_before(it)).sum();
    let by_statistics: u64 = summary.files.iter().map(|it| files::statistics(it).1).sum();
    let dropped = total.dropped_storage;
    assert!(
        by_records > 0 && (by_records..=dropped).contains(&by_statistics),
        "{by_records} by records, {by_statistics} by statistics, {dropped} dropped: {done}"
    );
    // On a busy machine the ring may also run empty, which is counted as a loss of the NIC.
    let before = summary.nic("out_of_buffer") + summary.nic("wire_dropped");
    assert!(
        (by_records..=by_records + before).contains(&missing),
        "{done}"
    );
    let notes = summary.json["notes"].to_string();
    assert!(notes.contains("there was no room for"), "{notes}");
}

#[test]
fn the_capture_continues_when_space_is_freed() {
    let dir = Dir::new();
    // The image supports direct I/O, the tmpfs does not.
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
    // More frames than the disk holds.
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
        "the newest files remain: {done}"
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
            "6 MiB hold more than 1000 frames: {done}"
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
