//! `wqcap recover`: after kill -9 every file that was open is finished and whole; a running capture's files are left
//! alone; nothing is overwritten, and nothing that was left keeps a run from ending.

use rustix::{
    fs::{CWD, Mode, mkfifoat},
    process::Signal,
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
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

/// A wire that does not end, slow enough for a debug build.
const ENDLESS: &str = "synth:size=200,flows=64,pps=20000";

fn recover(dir: &Path) -> Program {
    wqcap(["recover", "--json"]).arg(dir)
}

fn facts(done: &Done) -> Vec<Value> {
    let document: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    document["files"].as_array().expect("files").clone()
}

fn parts(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries
        .map(|entry| entry.expect("lists").path())
        .filter(|path| path.extension().is_some_and(|e| e == "part"))
        .collect()
}

/// Recovers until nothing is in use: the kernel may hold a killed writer's files until its last writes have ended.
fn recovered(dir: &Path) -> Vec<Value> {
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

/// Whether a recovery has taken nothing away from a running capture. A file that was just created and not yet locked may
/// be taken for one that was left; it holds nothing, and the capture goes on with the next name.
fn is_left_alone(file: &Value) -> bool {
    let is_empty = file["outcome"] == "removed" && file["records"] == 0;
    is_empty || file["outcome"] == "in_use"
}

#[test]
fn a_killed_capture_is_finished_and_a_running_one_left_alone() {
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
        running.until("files are finished, and what is open is in use", |_| {
            let before = facts(&recover(&out).run().expect(0));
            assert!(before.iter().all(is_left_alone), "{before:?}");
            names() >= 4 && before.iter().any(|file| file["outcome"] == "in_use")
        });
        // The kill comes when there is something in an open file.
        running.freeze_when("records in an open file", |_| {
            let len = |it: &PathBuf| fs::metadata(it).map_or(0, |it| it.len());
            parts(&out).iter().any(|it| len(it) > 4096)
        });
        running.signal(Signal::KILL);
        assert_eq!(running.wait().signal(), Some(9));
        let open = parts(&out).len();
        let all = recovered(&out);
        assert_eq!(all.len(), open, "{all:?}");
        assert!(parts(&out).is_empty());
        let mut records = 0;
        for file in &all {
            let outcome = file["outcome"].as_str().expect("a word");
            assert!(["finished", "removed"].contains(&outcome), "{file}");
            if outcome == "finished" {
                let path = Path::new(file["path"].as_str().expect("a name"));
                let found = files::read(path);
                assert_eq!(file["records"], found.len(), "{file}");
                assert_eq!(file["kept"], fs::metadata(path).expect("there").len());
                assert!(found.iter().all(|r| r.len == 200 && r.caplen == 200));
                records += found.len();
            }
        }
        assert!(records > 0, "{all:?}");
        // What was finished can be joined with what was finished before.
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

/// A capture that is killed when its one open file has grown twice: its first block is whole then.
fn killed(run: &Wqcap<'_>) {
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
fn a_killed_capture_of_any_name_is_finished() {
    for (format, compress, order) in [
        ("pcap", "none", "time"),
        ("pcap", "none", "queue"),
        ("pcap", "zstd", "queue"),
        ("pcap", "lz4", "queue"),
        ("pcapng", "none", "queue"),
        ("pcapng", "zstd", "queue"),
    ] {
        let dir = Dir::new();
        // With `order = "time"` as `-w tap-all.pcap` names its file.
        let run = Wqcap::run(&dir, "run").model(ENDLESS).queues(1).sets(&[
            &format!("output.format={format}"),
            &format!("output.compress={compress}"),
            &format!("output.order={order}"),
            "output.name=tap-{queue}",
        ]);
        killed(&run);
        let all = recovered(run.out_path());
        let case = format!("{format} {compress} {order}: {all:?}");
        assert_eq!(all.len(), 1, "{case}");
        assert_eq!(all[0]["outcome"], "finished", "{case}");
        let path = Path::new(all[0]["path"].as_str().expect("a name"));
        let name = path.file_name().and_then(|it| it.to_str());
        assert!(name.is_some_and(|it| it.starts_with("tap-")), "{case}");
        let found = files::read(path);
        assert_eq!(all[0]["records"], found.len(), "{case}");
        assert!(!found.is_empty(), "{case}");
    }
}

/// The next run finishes what a killed one left, and encrypts it if it encrypts its own.
#[test]
fn the_next_run_of_any_name_encrypts_what_was_left() {
    let dir = Dir::new();
    let key = dir.join("key");
    fs::write(&key, [7; 32]).expect("written");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("set");
    let sets = ["output.format=pcap", "output.name=tap-{queue}"];
    let first = Wqcap::run(&dir, "first")
        .model(ENDLESS)
        .queues(1)
        .sets(&sets);
    killed(&first);
    let out = first.out_path().to_owned();
    let next = Wqcap::run(&dir, "next")
        .out(&out)
        .model("synth:size=200,flows=4,count=100")
        .queues(1)
        .sets(&sets)
        .set(&format!("output.encrypt_key={}", key.display()));
    // The kernel may hold the killed writer's file until its last writes have ended; another run comes then.
    let deadline = Instant::now() + HANG;
    while !parts(&out).is_empty() {
        assert!(Instant::now() < deadline, "{:?}", parts(&out));
        let _ = next.done().expect(0);
    }
    let names: Vec<_> = fs::read_dir(&out)
        .expect("lists")
        .map(|it| it.expect("lists").file_name().into_string().expect("text"))
        .collect();
    assert!(names.iter().any(|it| it == "tap-00.pcap.enc"), "{names:?}");
    assert!(
        names.iter().all(|it| it.ends_with(".pcap.enc")),
        "{names:?}"
    );
}

#[test]
fn a_running_capture_goes_on_under_many_recoveries() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "run")
        .model("synth:size=200,flows=64,count=40000,pps=40000")
        .queues(2)
        .set("output.rotate_size=64KiB");
    let out = run.out_path().to_owned();
    let mut running = run.start();
    while !running.ended() {
        for file in facts(&recover(&out).run().expect(0)) {
            assert!(is_left_alone(&file), "{file}");
        }
    }
    let finished = run.finished(running.wait(), 0);
    assert_eq!(finished.summary.ledger.total.captured, 40_000);
}

#[test]
fn nothing_is_overwritten_and_failures_are_status_1() {
    let dir = Dir::new();
    let name = "wqcap-q00-1.pcap";
    let path = dir.join(name);
    files::write(&path, 1, &frames::udp_flows(10, 100));
    let bytes = fs::read(&path).expect("written");
    let part = dir.write(&format!("{name}.part"), &bytes[..bytes.len() - 7]);
    let done = recover(dir.path()).run().expect(1);
    done.says(&[&part.display().to_string(), "exists already"]);
    assert_eq!(facts(&done)[0]["outcome"], "failed");
    assert_bytes("there", &fs::read(&path).expect("there"), &bytes);

    fs::remove_file(&path).expect("there");
    let done = wqcap(["recover"]).arg(dir.path()).run().expect(0);
    assert!(
        done.stdout
            .contains("finished with 9 records, 1,068 bytes, 109 cut"),
        "{done}"
    );
    let named = fs::read(&path).expect("named");
    assert_bytes("finished", &named, &bytes[..24 + 9 * 116]);
    let done = wqcap(["recover"]).arg(dir.path()).run().expect(0);
    assert!(done.stdout.contains("no .part files"), "{done}");
}

#[test]
fn the_next_run_finishes_what_was_left() {
    let dir = Dir::new();
    let out = dir.folder("out");
    let whole = dir.join("whole.pcap");
    files::write(&whole, 1, &frames::udp_flows(10, 100));
    let bytes = fs::read(&whole).expect("written");
    let left = out.join("wqcap-q00-1.pcap.part");
    let held = out.join("wqcap-q00-2.pcap.part");
    for part in [&left, &held] {
        fs::write(part, &bytes[..bytes.len() - 7]).expect("written");
    }
    let writer = fs::File::open(&held).expect("opens");
    writer.lock().expect("locks");
    let run = Wqcap::run(&dir, "run")
        .model("synth:size=200,flows=4,count=100")
        .out(&out);
    let done = run.done().expect(0);
    done.says(&["wqcap-q00-1.pcap: finished with 9 records"]);
    let text = fs::read_to_string(run.summary_path()).expect("a summary");
    let summary: Value = serde_json::from_str(&text).expect("JSON");
    let recovered = summary["recovered"].as_array().expect("a list");
    assert_eq!(recovered.len(), 1, "{recovered:?}");
    assert_eq!(recovered[0]["records"], 9);
    let path = out.join("wqcap-q00-1.pcap");
    let named = fs::read(&path).expect("named");
    assert_bytes("finished", &named, &bytes[..24 + 9 * 116]);
    assert!(held.exists() && !left.exists());
    // The ledger and the list of files are this run's alone.
    assert_eq!(summary["ledger"]["total"]["captured"], 100);
    let listed = summary["files"].as_array().expect("a list");
    assert!(
        listed
            .iter()
            .all(|file| *file != path.to_str().expect("text"))
    );
}

#[test]
fn nothing_that_was_left_keeps_a_run_from_ending() {
    let dir = Dir::new();
    let out = dir.folder("out");
    let whole = dir.join("whole.pcap");
    files::write(&whole, 1, &frames::udp_flows(10, 100));
    let bytes = fs::read(&whole).expect("written");
    let part = |n: u8| out.join(format!("wqcap-q00-{n}.pcap.part"));
    mkfifoat(CWD, part(1), Mode::RWXU).expect("a pipe that nobody writes");
    symlink(&whole, part(2)).expect("linked");
    fs::write(part(3), &bytes).expect("written");
    // Zeros without end, for all that anybody will wait.
    fs::write(part(4), &bytes).expect("written");
    let endless = fs::File::options().write(true).open(part(4));
    endless.expect("opens").set_len(1 << 42).expect("sparse");
    let run = Wqcap::run(&dir, "run").model(ENDLESS).out(&out);
    let mut running = run.start();
    running.until("the capture runs and has finished the third", |it| {
        it.stderr().contains("capturing") && out.join("wqcap-q00-3.pcap").exists()
    });
    running.signal(Signal::TERM);
    let done = running.wait().expect(0);
    done.says(&["not all finished after 5s"]);
    assert!(part(1).exists() && part(4).exists());
    assert!(part(2).is_symlink());
    assert_bytes("linked", &fs::read(&whole).expect("there"), &bytes);
    fs::remove_file(part(4)).expect("there");
    for file in facts(&recover(&out).run().expect(0)) {
        assert_eq!(file["outcome"], "irregular", "{file}");
    }
}

#[test]
fn a_folder_that_is_not_there_is_status_2() {
    let dir = Dir::new();
    let done = recover(&dir.join("none")).run().expect(2);
    done.says(&["none"]);
    assert_eq!(done.stdout, "");
}
