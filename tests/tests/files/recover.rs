//! `wqcap recover`: after kill -9 every open file is finished with its complete records. Files of a
//! running capture are not touched, no file is overwritten, and no leftover file keeps a run from
//! ending.

use rustix::{
    fs::{CWD, Mode, mkfifoat},
    process::Signal,
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
    thread,
    time::Instant,
};
use wqcap_tests::{
    Dir, Done, Program, Wqcap,
    compare::assert_bytes,
    files, frames,
    process::{HANG, TICK},
    wqcap::wqcap,
};

/// Endless wire, slow enough for a debug build.
const ENDLESS: &str = "synth:size=200,flows=64,pps=20000";

fn recover(dir: &Path) -> Program {
    wqcap(["recover", "--json"]).arg(dir)
}

fn facts(done: &Done) -> Vec<Value> {
    let document: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    let files = document["files"].as_array();
    files.expect("the report lists files").clone()
}

/// Returns the `.part` files of a directory.
fn parts(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries
        .map(|entry| entry.expect("the directory is readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == "part"))
        .collect()
}

/// Runs `wqcap recover` until no `.part` file is left, and returns all reports. The kernel may keep
/// a killed writer's files locked until the writer's last writes have ended.
fn recover_all(dir: &Path) -> Vec<Value> {
    let deadline = Instant::now() + HANG;
    let mut all = Vec::new();
    loop {
        all.extend(facts(&recover(dir).run().expect(0)));
        if parts(dir).is_empty() {
            all.retain(|file| file["outcome"] != "in_use");
            return all;
        }
        assert!(Instant::now() < deadline, "{all:?}");
        thread::sleep(TICK);
    }
}

/// Returns `true` if the recovery took no data from a running capture. A file that is created but
/// not yet locked may be removed as a leftover. It is empty, and the capture continues with the
/// next name.
fn is_untouched(file: &Value) -> bool {
    let is_empty = file["outcome"] == "removed" && file["records"] == 0;
    is_empty || file["outcome"] == "in_use"
}

#[test]
fn files_of_a_killed_capture_are_finished_and_those_of_a_running_one_untouched() {
    for format in ["pcap", "pcapng"] {
        let dir = Dir::new();
        let run = Wqcap::run(&dir, format)
            .model(ENDLESS)
            .queues(2)
            .set(&format!("output.format={format}"))
            .set("output.rotate_size=1MiB");
        let out = run.out_path().to_owned();
        let mut running = run.start();
        let names = || fs::read_dir(&out).map_or(0, Iterator::count);
        running.until("files are finished, and an open file is in use", |_| {
            let before = facts(&recover(&out).run().expect(0));
            assert!(before.iter().all(is_untouched), "{before:?}");
            names() >= 4 && before.iter().any(|file| file["outcome"] == "in_use")
        });
        // The capture is killed when an open file has records.
        running.freeze_when("an open file has records", |_| {
            let len = |it: &PathBuf| fs::metadata(it).map_or(0, |it| it.len());
            parts(&out).iter().any(|it| len(it) > 4096)
        });
        running.signal(Signal::KILL);
        assert_eq!(running.wait().signal(), Some(9));
        let open = parts(&out).len();
        let all = recover_all(&out);
        assert_eq!(all.len(), open, "{all:?}");
        assert!(parts(&out).is_empty());
        let mut records = 0;
        for file in &all {
            let outcome = file["outcome"].as_str().expect("a file has an outcome");
            assert!(["finished", "removed"].contains(&outcome), "{file}");
            if outcome == "finished" {
                let path = Path::new(file["path"].as_str().expect("a file has a path"));
                let found = files::read(path);
                assert_eq!(file["records"], found.len(), "{file}");
                assert_eq!(
                    file["kept"],
                    fs::metadata(path).expect("the file exists").len()
                );
                assert!(found.iter().all(|r| r.len == 200 && r.caplen == 200));
                records += found.len();
            }
        }
        assert!(records > 0, "{all:?}");
        // Recovered files can be merged with files that the capture finished.
        let merged = dir.join(format!("all.{format}"));
        wqcap(["merge", "--json", "-o"])
            .arg(&merged)
            .arg(&out)
            .run()
            .expect(0);
        let count = Program::new("tcpdump")
            .args(["--count", "-r"])
            .arg(&merged)
            .run()
            .expect(0);
        let total = files::read(&merged).len();
        assert!(
            count.stdout.contains(&format!("{total} packets")),
            "{count}"
        );
        assert!(facts(&recover(&out).run().expect(0)).is_empty());
    }
}

/// Runs a capture, and kills it when its only open file has grown twice. The file's first block is
/// complete then.
fn run_and_kill(run: &Wqcap<'_>) {
    let out = run.out_path().to_owned();
    let mut running = run.start();
    let mut lengths = BTreeSet::new();
    running.freeze_when("an open file has grown twice", |_| {
        let len = |it: &PathBuf| fs::metadata(it).map_or(0, |it| it.len());
        lengths.extend(parts(&out).iter().map(len));
        lengths.iter().filter(|len| **len > 0).count() > 2
    });
    running.signal(Signal::KILL);
    assert_eq!(running.wait().signal(), Some(9));
}

#[test]
fn files_of_a_killed_capture_are_finished_with_any_name() {
    for (format, compress, order) in [
        ("pcap", "none", "time"),
        ("pcap", "none", "queue"),
        ("pcap", "zstd", "queue"),
        ("pcap", "lz4", "queue"),
        ("pcapng", "none", "queue"),
        ("pcapng", "zstd", "queue"),
    ] {
        let dir = Dir::new();
        // With `order = "time"` the file is named as by `-w tap-all.pcap`.
        let run = Wqcap::run(&dir, "run").model(ENDLESS).queues(1).sets(&[
            &format!("output.format={format}"),
            &format!("output.compress={compress}"),
            &format!("output.order={order}"),
            "output.name=tap-{queue}",
        ]);
        run_and_kill(&run);
        let all = recover_all(run.out_path());
        let case = format!("{format} {compress} {order}: {all:?}");
        assert_eq!(all.len(), 1, "{case}");
        assert_eq!(all[0]["outcome"], "finished", "{case}");
        let path = Path::new(all[0]["path"].as_str().expect("a file has a path"));
        let name = path.file_name().and_then(|it| it.to_str());
        assert!(name.is_some_and(|it| it.starts_with("tap-")), "{case}");
        let found = files::read(path);
        assert_eq!(all[0]["records"], found.len(), "{case}");
        assert!(!found.is_empty(), "{case}");
    }
}

/// The next run finishes the files of a killed run, and encrypts them if it encrypts its own files.
#[test]
fn the_next_run_encrypts_leftover_files_with_any_name() {
    let dir = Dir::new();
    let key = dir.join("key");
    fs::write(&key, [7; 32]).expect("the file is written");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the mode is set");
    let sets = ["output.format=pcap", "output.name=tap-{queue}"];
    let first = Wqcap::run(&dir, "first")
        .model(ENDLESS)
        .queues(1)
        .sets(&sets);
    run_and_kill(&first);
    let out = first.out_path().to_owned();
    let next = Wqcap::run(&dir, "next")
        .out(&out)
        .model("synth:size=200,flows=4,count=100")
        .queues(1)
        .sets(&sets)
        .set(&format!("output.encrypt_key={}", key.display()));
    // The kernel may keep the killed writer's file locked until the writer's last writes have
    // ended. So runs are repeated until the file is finished.
    let deadline = Instant::now() + HANG;
    while !parts(&out).is_empty() {
        assert!(Instant::now() < deadline, "{:?}", parts(&out));
        let _ = next.done().expect(0);
    }
    let names: Vec<_> = fs::read_dir(&out)
        .expect("the directory is readable")
        .map(|it| it.expect("the directory is readable").file_name())
        .map(|it| it.into_string().expect("a name is UTF-8"))
        .collect();
    assert!(names.iter().any(|it| it == "tap-00.pcap.enc"), "{names:?}");
    assert!(
        names.iter().all(|it| it.ends_with(".pcap.enc")),
        "{names:?}"
    );
}

#[test]
fn a_running_capture_continues_during_many_recoveries() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "run")
        .model("synth:size=200,flows=64,count=40000,pps=40000")
        .queues(2)
        .set("output.rotate_size=64KiB");
    let out = run.out_path().to_owned();
    let mut running = run.start();
    while !running.ended() {
        for file in facts(&recover(&out).run().expect(0)) {
            assert!(is_untouched(&file), "{file}");
        }
    }
    let finished = run.finished(running.wait(), 0);
    assert_eq!(finished.summary.ledger.total.captured, 40_000);
}

#[test]
fn no_file_is_overwritten_and_failures_exit_with_status_1() {
    let dir = Dir::new();
    let name = "wqcap-q00-1.pcap";
    let path = dir.join(name);
    files::write(&path, 1, &frames::udp_flows(10, 100));
    let bytes = fs::read(&path).expect("the file is readable");
    let part = dir.write(&format!("{name}.part"), &bytes[..bytes.len() - 7]);
    let done = recover(dir.path()).run().expect(1);
    done.says(&[&part.display().to_string(), "exists already"]);
    assert_eq!(facts(&done)[0]["outcome"], "failed");
    assert_bytes(
        "the existing file",
        &fs::read(&path).expect("the file exists"),
        &bytes,
    );

    fs::remove_file(&path).expect("the file is removed");
    let done = wqcap(["recover"]).arg(dir.path()).run().expect(0);
    assert!(
        done.stdout
            .contains("finished with 9 records, 1,068 bytes, 109 cut"),
        "{done}"
    );
    let named = fs::read(&path).expect("the file was renamed");
    assert_bytes("the finished file", &named, &bytes[..24 + 9 * 116]);
    let done = wqcap(["recover"]).arg(dir.path()).run().expect(0);
    assert!(done.stdout.contains("no .part files"), "{done}");
}

#[test]
fn names_that_are_not_text_are_escaped_in_json() {
    let dir = Dir::new();
    let pins = dir.path().join(".wqcap-pins");
    fs::create_dir(&pins).expect("made");
    fs::write(pins.join(OsStr::from_bytes(b"\xff.json")), "x").expect("written");
    let part = dir.path().join(OsStr::from_bytes(b"z\xff.pcapng.part"));
    fs::write(part, "").expect("written");
    let listed = wqcap(["pin", "list", "--json", "--dir"])
        .arg(dir.path())
        .run();
    let json: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    assert_eq!(
        json["unsound"].as_array().map(Vec::len),
        Some(1),
        "{listed}"
    );
    let done = recover(dir.path()).run();
    assert_eq!(facts(&done).len(), 1, "{done}");
    assert!(
        !format!("{listed}{done}").contains("panicked"),
        "{listed}{done}"
    );
}

#[test]
fn the_next_run_finishes_leftover_files() {
    let dir = Dir::new();
    let out = dir.folder("out");
    let whole = dir.join("whole.pcap");
    files::write(&whole, 1, &frames::udp_flows(10, 100));
    let bytes = fs::read(&whole).expect("the file is readable");
    let left = out.join("wqcap-q00-1.pcap.part");
    let held = out.join("wqcap-q00-2.pcap.part");
    for part in [&left, &held] {
        fs::write(part, &bytes[..bytes.len() - 7]).expect("the file is written");
    }
    let writer = fs::File::open(&held).expect("the file opens");
    writer.lock().expect("the file is locked");
    let run = Wqcap::run(&dir, "run")
        .model("synth:size=200,flows=4,count=100")
        .out(&out);
    let done = run.done().expect(0);
    done.says(&["wqcap-q00-1.pcap: the file was finished with 9 records"]);
    let text = fs::read_to_string(run.summary_path()).expect("the run writes a summary");
    let summary: Value = serde_json::from_str(&text).expect("the summary is JSON");
    let recovered = summary["recovered"]
        .as_array()
        .expect("the value is a list");
    assert_eq!(recovered.len(), 1, "{recovered:?}");
    assert_eq!(recovered[0]["records"], 9);
    let path = out.join("wqcap-q00-1.pcap");
    let named = fs::read(&path).expect("the file was renamed");
    assert_bytes("the finished file", &named, &bytes[..24 + 9 * 116]);
    assert!(held.exists() && !left.exists());
    // The ledger and the list of files do not include recovered files.
    assert_eq!(summary["ledger"]["total"]["captured"], 100);
    let listed = summary["files"].as_array().expect("the value is a list");
    assert!(
        listed
            .iter()
            .all(|file| *file != path.to_str().expect("the path is UTF-8"))
    );
}

#[test]
fn no_leftover_file_keeps_a_run_from_ending() {
    let dir = Dir::new();
    let out = dir.folder("out");
    let whole = dir.join("whole.pcap");
    files::write(&whole, 1, &frames::udp_flows(10, 100));
    let bytes = fs::read(&whole).expect("the file is readable");
    let part = |n: u8| out.join(format!("wqcap-q00-{n}.pcap.part"));
    mkfifoat(CWD, part(1), Mode::RWXU).expect("the pipe without a writer is created");
    symlink(&whole, part(2)).expect("the link is created");
    fs::write(part(3), &bytes).expect("the file is written");
    // A sparse file of 4 TiB of zeros: recovery would take too long.
    fs::write(part(4), &bytes).expect("the file is written");
    let endless = fs::File::options().write(true).open(part(4));
    let extended = endless.expect("the file opens").set_len(1 << 42);
    extended.expect("the file is extended");
    let run = Wqcap::run(&dir, "run").model(ENDLESS).out(&out);
    let mut running = run.start();
    running.until("the capture runs and has finished the third file", |it| {
        it.stderr().contains("capturing") && out.join("wqcap-q00-3.pcap").exists()
    });
    running.signal(Signal::TERM);
    let done = running.wait().expect(0);
    done.says(&["not all finished after 5s"]);
    assert!(part(1).exists() && part(4).exists());
    assert!(part(2).is_symlink());
    assert_bytes(
        "the link's target",
        &fs::read(&whole).expect("the target exists"),
        &bytes,
    );
    fs::remove_file(part(4)).expect("the file is removed");
    for file in facts(&recover(&out).run().expect(0)) {
        assert_eq!(file["outcome"], "irregular", "{file}");
    }
}

#[test]
fn a_missing_directory_exits_with_status_2() {
    let dir = Dir::new();
    let done = recover(&dir.join("none")).run().expect(2);
    done.says(&["none"]);
    assert_eq!(done.stdout, "");
}
