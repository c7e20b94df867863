//! Pins: pinned files stay even beyond a capture's limits, and are deleted after their release.

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use wqcap_tests::{
    Dir, Done, Program, Summary, Wqcap, files, frames, oracles::capinfos, wqcap::wqcap,
};

/// Time stamp of the first old file, in seconds since 1970.
const START: u32 = 1_700_000_000;
/// Interval between two old files, in seconds.
const STEP: u32 = 10;

/// Writes three old finished files of a queue, with one frame each: from 10.0.0.1, 10.0.0.2 and
/// 10.0.0.3. Returns their paths.
fn write_old_files(out: &Path) -> Vec<PathBuf> {
    let file = |n: u32| {
        let start = START + n * STEP;
        let path = out.join(format!("wqcap-q00-{start}000000000.pcap"));
        let some = frames::udp_flows(16, 100);
        files::write(&path, start, &some[n as usize..][..1]);
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(start.into());
        let file = fs::File::options().write(true).open(&path);
        let file = file.expect("the file exists");
        file.set_modified(then).expect("the time is set");
        path
    };
    (0..3).map(file).collect()
}

fn pin(args: &[&str], dir: &Path) -> Program {
    wqcap(["pin"]).args(args).arg("--dir").arg(dir)
}

/// Returns the command that pins a range of seconds after [`START`] and prints JSON.
fn pin_seconds(seconds: Range<u32>, more: &[&str], dir: &Path) -> Program {
    let [from, to] = [seconds.start, seconds.end].map(|it| (START + it).to_string());
    let times = ["--json", "--from", &from, "--to", &to];
    pin(&[&times, more].concat(), dir)
}

#[track_caller]
fn json(done: &Done) -> Value {
    serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
}

/// Pins the middle one of the old files, and returns the pin's ID.
#[track_caller]
fn pin_the_middle(out: &Path) -> String {
    let reason = &["--reason", "incident 4711"];
    let made = json(&pin_seconds(STEP + 2..STEP + 3, reason, out).run().expect(0));
    assert_eq!(
        (&made["files"], &made["reason"]),
        (&1.into(), &"incident 4711".into())
    );
    made["id"].as_str().expect("a pin has an ID").to_owned()
}

/// Returns the finished pcap files of a directory, sorted by name.
fn captures(dir: &Path) -> Vec<PathBuf> {
    finished(dir, "pcap")
}

fn finished(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir)
        .expect("the directory is readable")
        .flatten();
    let mut paths: Vec<_> = entries
        .map(|it| it.path())
        .filter(|it| it.extension().is_some_and(|it| it == ending))
        .collect();
    paths.sort();
    paths
}

/// Runs a capture of a few files. Returns its summary and its output.
fn capture(dir: &Dir, name: &str, out: &Path, keep: &[&str]) -> (Summary, Done) {
    let run = Wqcap::run(dir, name)
        .model("synth:size=1000,flows=64,count=2000")
        .queues(1)
        .out(out)
        .set("output.rotate_size=200KB")
        .sets(keep);
    let done = run.done().expect(0);
    let text = fs::read_to_string(run.summary_path()).expect("the run writes a summary");
    (Summary::parse(&text), done)
}

#[test]
fn pinned_files_are_not_deleted_and_released_files_are() {
    let dir = Dir::new();
    let out = dir.folder("out");
    let files = write_old_files(&out);
    let pinned = fs::read(&files[1]).expect("the file exists");
    let id = pin_the_middle(&out);
    let listed = json(&pin(&["list", "--json"], &out).run().expect(0));
    assert_eq!(listed["pins"][0]["id"], id.as_str(), "{listed}");
    assert_eq!(listed["pins"][0]["bytes"], pinned.len());
    let shown = pin(&["list"], &out).run().expect(0);
    for part in [&id, "incident 4711", "2023-11-14T22:13:32Z", "1 file"] {
        assert!(shown.stdout.contains(part), "{shown}");
    }

    // Each limit is tested separately, except the age, which needs a minute of a steady clock.
    let limits = ["keep_files=2", "keep=250KB", "keep_free=100%"];
    for (i, keep) in limits.iter().enumerate() {
        let set = format!("output.{keep}");
        let (summary, done) = capture(&dir, &i.to_string(), &out, &[&set]);
        let left = fs::read(&files[1]).expect("the pinned file exists");
        assert_eq!(left, pinned, "{keep}: {done}");
        assert!(!files[0].exists() && !files[2].exists(), "{keep}: {done}");
        assert_eq!(summary.json["pinned"]["files"], 1, "{keep}");
        assert_eq!(summary.json["pinned"]["bytes"], pinned.len(), "{keep}");
        assert!(done.stderr.contains("pins protect 1 file"), "{done}");
        // The newest file stays, and the pinned file.
        assert!(captures(&out).len() >= 2, "{keep}: {done}");
        write_old_files(&out);
        let unreached = ["keep_free=100%"].contains(keep);
        let warnings = done.stderr.matches("are pinned and stay").count();
        assert_eq!(warnings, usize::from(unreached), "{keep}: {done}");
    }

    let released = wqcap(["pin", "release", "--dir"]).arg(&out).arg(&id);
    let _ = released.run().expect(0);
    let none = json(&pin(&["list", "--json"], &out).run().expect(0));
    assert_eq!(none["pins"].as_array().map(Vec::len), Some(0));
    let (summary, _) = capture(&dir, "released", &out, &["output.keep_files=1"]);
    assert!(!files[1].exists(), "the released file is deleted");
    assert_eq!(captures(&out).len(), 1);
    assert_eq!(summary.json["pinned"]["files"], 0);
    released.run().expect(2).says(&[&id, "wqcap pin list"]);
}

#[test]
fn a_running_capture_follows_pins_of_future_files() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "run")
        .model("synth:size=1000,flows=64,pps=4000")
        .queues(1)
        .sets(&["output.rotate_size=100KB", "output.keep_files=2"]);
    let mut running = run.start();
    let out = run.out_path();
    running.until("the first file is finished", |_| !captures(out).is_empty());
    let args = ["--from", "now", "--to", "+1h", "--reason", "what comes"];
    let made = pin(&args, out).run().expect(0);
    made.says(&["finished later are also protected"]);
    running.until("there are more files than the limit allows", |_| {
        captures(out).len() > 40
    });
    let (id, _) = made
        .stdout
        .split_once(':')
        .expect("the output begins with an ID");
    let _ = wqcap(["pin", "release", "--dir"])
        .arg(out)
        .arg(id)
        .run()
        .expect(0);
    running.until("files beyond the limit are deleted", |_| {
        captures(out).len() < 20
    });
    running.signal(Signal::TERM);
    let _ = running.wait().expect(0);
}

#[test]
fn a_pin_with_a_filter_protects_files_that_an_index_cannot_exclude() {
    let dir = Dir::new();
    let (out, index) = (dir.folder("out"), dir.folder("idx"));
    write_old_files(&out);
    let set = format!("output.index_dir={}", index.display());
    let facts = |more: &[&str]| {
        let what = ["--filter", "host 10.0.0.2", "--reason", "x"];
        let done = pin_seconds(0..100, &[&what, more].concat(), &out)
            .run()
            .expect(0);
        (json(&done), done)
    };
    let (plain, done) = facts(&[]);
    assert_eq!(plain["files"], 3, "{plain}");
    done.says(&["without indexes the filter has no effect"]);
    let (unindexed, done) = facts(&["--set", &set]);
    assert_eq!(
        (&unindexed["files"], &unindexed["unindexed"]),
        (&3.into(), &3.into())
    );
    done.says(&["3 files without an index"]);
    let _ = wqcap(["extract", "-o", "/dev/null", "--index"])
        .arg(&index)
        .arg(&out)
        .args(["--filter", "host 10.0.0.2"])
        .run()
        .expect(0);
    let (narrowed, _) = facts(&["--set", &set]);
    assert_eq!(
        (&narrowed["files"], &narrowed["unindexed"]),
        (&1.into(), &0.into())
    );

    // Retention uses the same indexes, and only the middle file has that host.
    let _ = capture(&dir, "run", &out, &[&set, "output.keep_files=2"]);
    let left = captures(&out);
    assert_eq!(left.len(), 2, "{left:?}");
    assert_eq!(
        left[0],
        out.join(format!("wqcap-q00-{}000000000.pcap", START + STEP))
    );
}

#[test]
fn a_damaged_pin_protects_all_files_and_an_irregular_file_protects_none() {
    let dir = Dir::new();
    let out = dir.folder("out");
    let files = write_old_files(&out);
    let id = pin_the_middle(&out);
    let pins = out.join(".wqcap-pins");
    let mode = Mode::from_raw_mode(0o600);
    mknodat(CWD, pins.join("pipe.json"), FileType::Fifo, mode, 0).expect("the pipe is created");
    let sound = fs::read_to_string(pins.join(format!("{id}.json")));
    let sound = sound.expect("the pin exists");
    fs::write(pins.join("torn.json"), &sound[..sound.len() / 2]).expect("the file is written");
    let (summary, done) = capture(&dir, "torn", &out, &["output.keep_files=1"]);
    assert!(files.iter().all(|it| it.exists()), "{done}");
    assert_eq!(summary.json["deleted"]["files"], 0);
    done.says(&[
        "torn.json",
        "no capture file is deleted until this is corrected",
        "pipe.json",
        "left out",
    ]);
    assert_eq!(done.stderr.matches("torn.json").count(), 1, "{done}");
    let listed = pin(&["list"], &out).run().expect(0);
    listed.says(&["torn.json", "pipe.json"]);
    // A damaged pin can be released.
    let _ = pin(&["release", "torn"], &out).run().expect(0);
    let (_, done) = capture(&dir, "whole", &out, &["output.keep_files=1"]);
    let exist = files.iter().map(|it| it.exists()).collect::<Vec<_>>();
    assert_eq!(exist, [false, true, false], "{done}");
}

#[test]
fn errors_about_invalid_pins_name_the_remedy() {
    let dir = Dir::new();
    let out = dir.folder("out");
    let sound = ["--from", "-1h", "--to", "now", "--reason", "x"];
    let with = |more: &[&'static str]| [&sound[..], more].concat();
    for (args, parts) in [
        (vec!["--from", "-1h", "--to", "now"], &["--reason"][..]),
        (vec!["--from", "-1h", "--reason", "x"], &["--to"]),
        (
            vec!["--from", "now", "--to", "-1h", "--reason", "x"],
            &["--from must be before --to"],
        ),
        (
            vec!["--from", "soon", "--to", "now", "--reason", "x"],
            &["--from", "soon", "+10m"],
        ),
        (with(&["--filter", "port the"]), &["--filter", "port the"]),
        (
            vec!["--from", "-1h", "--to", "now", "--reason", " "],
            &["must have a reason"],
        ),
        (
            vec!["--from", "-1h", "--to", "now", "--reason", "a\nb"],
            &["one line"],
        ),
        (vec!["release", "../x"], &["has no pin", "wqcap pin list"]),
        (vec!["release", "20260301T120000Z"], &["has no pin"]),
    ] {
        pin(&args, &out).run().expect(2).says(parts);
    }
    pin(&sound, &dir.join("nowhere"))
        .run()
        .expect(2)
        .says(&["nowhere", "--dir"]);
    let counting = ["--set", "output.format=none"];
    let none = wqcap(["pin"]).args(sound).args(counting).run().expect(2);
    none.says(&["writes no files"]);
    assert!(!out.join(".wqcap-pins").exists(), "no pin was created");
}

#[test]
fn a_mark_pins_its_files_and_is_recorded_in_open_files_and_their_indexes() {
    let dir = Dir::new();
    let index = dir.folder("idx");
    let run = Wqcap::run(&dir, "run")
        .model("synth:size=1000,flows=64,pps=4000")
        .queues(2)
        .control()
        .set("output.format=pcapng")
        .set("output.rotate_size=100KB")
        .set("output.keep_files=2")
        .set(&format!("output.index_dir={}", index.display()));
    let out = run.out_path();
    let mut running = run.start();
    let all = || finished(out, "pcapng");
    running.until("two files are finished", |_| all().len() >= 2);
    let ctl = run.ctl();
    let made = ctl.json(&["mark", "alert 2024897", "--before", "1h", "--after", "1h"]);
    let id = made["id"].as_str().expect("the mark has an ID").to_owned();
    // No file is deleted from now on.
    running.until("there are more files than the limit allows", |_| {
        all().len() > 20
    });
    let listed = json(&pin(&["list", "--json"], out).run().expect(0));
    assert_eq!(listed["pins"][0]["id"], id.as_str(), "{listed}");
    assert_eq!(listed["pins"][0]["reason"], "alert 2024897");
    for (args, part) in [
        (&["mark", "x", "--filter", "port the"][..], "port the"),
        (&["mark", " "], "must have a reason"),
        (&["mark", "a\nb"], "one line"),
        (&["mark", &"x".repeat(901)], "at most 900 are allowed"),
    ] {
        ctl.run(args).expect(1).says(&[part]);
    }
    running.signal(Signal::TERM);
    let _ = running.wait().expect(0);

    let want = format!("mark {id}: alert 2024897");
    let marked: Vec<_> = all()
        .into_iter()
        .filter(|path| files::comments(path).iter().any(|(_, it)| *it == want))
        .collect();
    assert!(
        !marked.is_empty() && marked.len() <= 2,
        "the two open files have the mark: {marked:?}"
    );
    for path in &marked {
        let seen = Program::new("tshark")
            .args(["-r".as_ref(), path.as_os_str()])
            .args(["-Y", "frame.comment", "-T", "fields", "-e", "frame.comment"])
            .run()
            .expect(0);
        assert_eq!(seen.stdout.trim(), want);
        assert_eq!(capinfos::frames(path), files::read(path).len() as u64);
        let name = path.file_name().expect("a file has a name");
        let name = name.to_str().expect("the name is UTF-8");
        let index = fs::read(index.join(format!("{name}.cbor")));
        let index = index.expect("the file has an index");
        let has = |text: &str| index.windows(text.len()).any(|it| it == text.as_bytes());
        assert!(
            has(&format!("{id}: alert 2024897")),
            "the index has the mark"
        );
    }

    let extracted = |more: &[&str]| {
        let done = wqcap(["extract", "--json", "-o"])
            .arg(dir.join("out.pcapng"))
            .arg(out)
            .args(more)
            .run()
            .expect(0);
        json(&done)["frames"]
            .as_u64()
            .expect("the report has frames")
    };
    let everything = extracted(&[]);
    assert_eq!(capinfos::frames(&dir.join("out.pcapng")), everything);
    assert_eq!(
        extracted(&["--mark", &id]),
        everything,
        "the mark covers an hour before and after it"
    );
    assert_eq!(extracted(&["--mark", &id, "--filter", "tcp port 1"]), 0);
    let unknown = ["extract", "-o", "x.pcap", "--mark", "unknown"];
    wqcap(unknown)
        .arg(out)
        .run()
        .expect(2)
        .says(&["has no pin \"unknown\""]);
}

#[test]
fn a_capture_without_files_has_nothing_to_mark() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "run")
        .model("synth:pps=100")
        .set("output.format=none")
        .control();
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "received", 1);
    run.ctl()
        .run(&["mark", "x"])
        .expect(1)
        .says(&["writes no files"]);
    running.signal(Signal::TERM);
    let _ = running.wait().expect(0);
}
