//! `wqcap ctl mark`: frames extracted by a mark's time window and filter are those that tshark
//! selects.

use rustix::process::Signal;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};
use wqcap_tests::{
    Dir, Wqcap, compare::assert_same, files, ledger::number, oracles::tshark, wqcap::wqcap,
};

/// Frames per second on the wire.
const PPS: u64 = 4000;

/// Returns the finished pcapng files of a directory, with their content.
fn finished(out: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(out)
        .expect("the directory is readable")
        .flatten();
    let paths = entries.map(|it| it.path());
    let paths = paths.filter(|it| it.extension().is_some_and(|it| it == "pcapng"));
    paths
        .map(|it| (it.clone(), fs::read(&it).expect("the file exists")))
        .collect()
}

#[test]
fn a_mark_selects_frames_of_its_window_and_filter_and_changes_no_finished_file() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "run")
        .model(&format!("synth:size=1000,flows=8,pps={PPS}"))
        .queues(2)
        .control()
        .set("output.format=pcapng")
        .set("output.rotate_size=200KB");
    let (mut running, ctl) = (run.start(), run.ctl());
    // One second of frames: more than the 300 ms that the mark reaches back.
    ctl.until_counted(&mut running, "captured", PPS);
    running.until("three files are finished", |_| {
        finished(run.out_path()).len() > 2
    });
    let before = finished(run.out_path());
    let first = before.values().next().expect("files were finished");
    let first = &files::records(run.out_path(), first)[0].bytes;
    let source = first[26..30].iter().map(u8::to_string).collect::<Vec<_>>();
    let source = source.join(".");
    let port = u16::from_be_bytes([first[34], first[35]]);
    let filter = format!("src host {source} and udp src port {port}");
    let made = ctl.json(&[
        "mark", "alert 7", "--before", "300ms", "--after", "200ms", "--filter", &filter,
    ]);
    let id = made["id"].as_str().expect("the mark has an ID");
    let marked = ctl.until_counted(&mut running, "captured", 0);
    ctl.until_counted(&mut running, "captured", marked + PPS / 2);
    running.signal(Signal::TERM);
    let _ = running.wait().expect(0);

    let after = finished(run.out_path());
    assert!(after.len() > before.len() + 2);
    for (path, bytes) in &before {
        assert!(after.get(path) == Some(bytes), "{} changed", path.display());
    }

    let listed = wqcap(["pin", "list", "--json", "--dir"])
        .arg(run.out_path())
        .run()
        .expect(0);
    let listed: Value = serde_json::from_str(&listed.stdout).expect("the list is JSON");
    let pin = &listed["pins"][0];
    let [from, to] = ["from_ns", "to_ns"].map(|it| number(&pin[it]));
    assert_eq!((&pin["id"], to - from), (&id.into(), 500_000_000), "{pin}");

    let [all, extracted] = ["all.pcapng", "extracted.pcapng"].map(|it| dir.join(it));
    let merge = wqcap(["merge", "-o"]).arg(&all).args(after.keys());
    let _ = merge.run().expect(0);
    let extract = wqcap(["extract", "--mark", id, "-o"]).arg(&extracted);
    let _ = extract.arg(run.out_path()).run().expect(0);
    let decimal = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let time = format!(
        "frame.time_epoch >= {} && frame.time_epoch < {}",
        decimal(from),
        decimal(to)
    );
    let flow = format!("ip.src == {source} && udp.srcport == {port}");
    let wanted = tshark::frames("data.data", &all, &format!("{time} && {flow}"));
    assert_same(
        "frames of the mark",
        &tshark::frames("data.data", &extracted, "frame"),
        &wanted,
    );
    // The mark selects some frames of its window, and the window is a part of the capture.
    let (window, frames) = (
        tshark::frames("data.data", &all, &time).len(),
        tshark::frames("data.data", &all, "frame").len(),
    );
    assert!(
        !wanted.is_empty() && wanted.len() < window && window < frames,
        "{} of {window} of {frames}",
        wanted.len()
    );
    assert!(window as u64 > PPS / 4, "{window}");
}
