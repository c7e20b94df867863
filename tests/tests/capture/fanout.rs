//! Fan-out and inline pipelines must write the same files and the same summary.

use rustix::process::Signal;
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};
use wqcap_tests::{
    Dir, Finished, Program, Wqcap, captures::Captures, files, process, wqcap::wqcap,
};

fn fanout(run: Wqcap<'_>, parsers: usize) -> Wqcap<'_> {
    run.set("pipeline.mode=fanout")
        .set(&format!("pipeline.parsers_per_queue={parsers}"))
}

/// Returns the frames of each queue in file order, and asserts that stamps do not decrease.
#[track_caller]
fn frames(finished: &Finished) -> Vec<Vec<(u32, Vec<u8>)>> {
    let records = finished.records();
    for queue in &records {
        assert!(queue.is_sorted_by_key(|it| it.ts), "{}", finished.done);
    }
    records
        .into_iter()
        .map(|queue| queue.into_iter().map(|it| (it.len, it.bytes)).collect())
        .collect()
}

#[test]
fn fanout_writes_the_files_of_an_inline_pipeline() {
    let dir = Dir::new();
    let (file, _) = Captures::find().everything(&dir);
    let cases = [
        &[][..],
        &["capture.filter=udp or arp", "capture.dedup=60s"],
        &["capture.slice=l4", "output.format=pcapng"],
        &[
            "capture.sample=3",
            "capture.sample_by=flow",
            "capture.snaplen=90",
        ],
    ];
    // In parallel: on a busy machine the threads mostly wait for their CPUs.
    thread::scope(|scope| {
        for (i, settings) in cases.into_iter().enumerate() {
            let (dir, file) = (&dir, &file);
            scope.spawn(move || assert_same_as_inline(dir, file, i, settings));
        }
    });
}

fn assert_same_as_inline(dir: &Dir, file: &Path, i: usize, settings: &[&str]) {
    let run = |name: &str| {
        let run = Wqcap::run(dir, &format!("{i}-{name}"))
            .replay(file)
            .queues(2)
            .set("capture.buffer=128KiB")
            .set("capture.ring=128");
        run.sets(settings)
    };
    let inline = run("inline").finish(0);
    for parsers in [1, 3] {
        let fanned = fanout(run(&format!("fanout-{parsers}")), parsers).finish(0);
        assert_eq!(fanned.summary.ledger, inline.summary.ledger, "{settings:?}");
        assert!(
            frames(&fanned) == frames(&inline),
            "{settings:?}, {parsers} parsers: frames or their order differ"
        );
        assert_eq!(
            fanned.summary.json["malformed"],
            inline.summary.json["malformed"]
        );
    }
}

#[test]
fn a_full_pipeline_drops_or_holds_as_configured() {
    let dir = Dir::new();
    // Parsers are slow because they wait for write buffers.
    for (on_full, count) in [("drop", 20_000), ("hold", 20_000)] {
        let finished = fanout(Wqcap::run(&dir, on_full), 2)
            .model(&format!("synth:size=1000,flows=64,count={count}"))
            .queues(1)
            .set("output.buffer=64KiB")
            .set("output.format=pcapng")
            .set("output.on_full=hold")
            .set(&format!("pipeline.on_full={on_full}"))
            .finish(0);
        let total = finished.summary.ledger.total;
        assert_eq!(total.received, count, "{}", finished.done);
        assert_eq!(total.captured + total.dropped_pipeline, count);
        if on_full == "hold" {
            assert_eq!(total.captured, count, "{}", finished.done);
        }
        let (_, file) = &finished.files()[0];
        let dropped = total.dropped_pipeline;
        assert_eq!(files::statistics(file), (count, dropped));
        assert!(files::lost_before(file) <= dropped);
        frames(&finished);
    }
}

#[test]
fn frames_without_a_write_buffer_are_counted_as_dropped_storage() {
    let dir = Dir::new();
    let finished = fanout(Wqcap::run(&dir, "storage"), 2)
        .model("synth:size=1400,flows=64,count=30000")
        .queues(1)
        .set("output.buffer=64KiB")
        .set("output.on_full=drop")
        .set("pipeline.on_full=hold")
        .finish(0);
    let total = finished.summary.ledger.total;
    assert_eq!(total.received, 30_000);
    assert_eq!(total.captured + total.dropped_storage, 30_000);
    assert_eq!(total.dropped_pipeline, 0);
}

#[test]
fn the_single_queue_of_a_sniffer_is_spread_to_parsers() {
    let dir = Dir::new();
    let finished = fanout(Wqcap::run(&dir, "sniffer"), 3)
        .model("synth:size=100,flows=64,count=20000")
        .queues(1)
        .set("capture.mode=sniffer")
        .finish(0);
    assert_eq!(finished.summary.ledger.total.captured, 20_000);
    assert_eq!(finished.files().len(), 1);
}

#[test]
fn an_interrupt_ends_the_run_in_order_and_a_second_one_at_once() {
    let dir = Dir::new();
    let endless = "synth:size=100,flows=64,pps=50000";
    for parsers in [1, 3] {
        let run = fanout(Wqcap::run(&dir, &format!("int-{parsers}")), parsers)
            .model(endless)
            .control();
        let mut running = run.start();
        run.ctl().until_counted(&mut running, "captured", 1);
        running.signal(Signal::INT);
        let finished = run.finished(running.wait(), 0);
        assert_eq!(finished.summary.json["end"], "stopped");
        assert!(finished.summary.ledger.total.captured > 0);
    }
    let run = fanout(Wqcap::run(&dir, "twice"), 2)
        .model(endless)
        .control();
    // The summary goes to a pipe without a reader, so the orderly end blocks.
    let pipe = Program::new("mkfifo").arg(run.summary_path());
    let _ = pipe.run().expect(0);
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1);
    running.signal(Signal::INT);
    // The run has handled the first interrupt when its files are complete.
    running.until("the orderly end", |_| {
        let names = fs::read_dir(run.out_path()).expect("the folder exists");
        let names: Vec<_> = names
            .map(|it| it.expect("the folder can be listed").path())
            .collect();
        let is_complete = |it: &PathBuf| it.extension().is_some_and(|it| it == "pcap");
        !names.is_empty() && names.iter().all(is_complete)
    });
    assert!(!running.ended());
    // A repeat within a second is part of the same request. A later one ends the run within three
    // seconds.
    while !running.ended() {
        running.signal(Signal::INT);
        thread::sleep(process::TICK);
    }
    let done = running.wait();
    assert!(
        done.signal() == Some(2) || done.status.code() == Some(130),
        "{done}"
    );
}

#[test]
fn check_prints_the_cores_of_parsers() {
    let done = wqcap(["check", "--json", "--model", "synth:count=1"])
        .args(["--set", "output.format=none"])
        .args(["--set", "capture.queues=2"])
        .args(["--set", "pipeline.mode=fanout"])
        .args(["--set", "pipeline.parsers_per_queue=3"])
        .run()
        .expect(0);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON alone");
    let queues = json["plan"]["queues"].as_array().expect("queues");
    assert_eq!(queues.len(), 2);
    for queue in queues {
        let parsers = queue["parsers"].as_array().expect("parsers");
        assert_eq!(parsers.len(), 3);
        assert!(parsers.iter().all(|it| it["core"].is_u64()), "{queue}");
    }
    assert_eq!(json["plan"]["pipeline"]["mode"], "fanout");
}
