//! `output.encrypt_key`: after a capture, the files on disk are readable only with the key.
//!
//! | test | covers |
//! |---|---|
//! | `files_are_readable_only_with_the_key` | no plain data is left; retention and hooks work; reading with the right key, a wrong key and no key |
//! | `an_index_reduces_reading_of_encrypted_files` | reading one block of a file for one flow |
//! | `plain_files_of_earlier_runs_are_encrypted` | files of a killed run and of a run without encryption |
//! | `an_invalid_key_is_refused` | errors before the capture starts |
//! | `a_run_that_waits_for_its_key_ends_at_a_signal` | a key command and a key pipe without an end |

use rustix::{
    fs::{Mode, OFlags, open},
    process::Signal,
};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use wqcap_tests::{
    Dir, Program, Summary, Wqcap,
    compare::assert_same,
    files,
    frames::{Ends, Frame, IPV4},
    oracles::capinfos,
    wqcap::wqcap,
};

/// Text in the payload of each frame, which must not be in encrypted files.
const MARK: &[u8] = b"a text that stays confidential.";

/// Returns UDP frames of 64 flows. Ten frames in the middle belong to another flow.
fn frames(count: usize) -> Vec<Vec<u8>> {
    let frame = |i: usize| {
        let rare = (count / 2..count / 2 + 10).contains(&i);
        let ends = Ends {
            from: if rare { 999 } else { (i % 64) as u16 },
            to: 2000,
            sport: 4000,
            dport: 53,
        };
        let frame = Frame::ethernet(&[], IPV4).ipv4(ends, 17, 0).udp(ends);
        let mut frame = frame.payload(1000).done();
        let end = frame.len();
        frame[end - MARK.len()..].copy_from_slice(MARK);
        frame
    };
    (0..count).map(frame).collect()
}

fn key(dir: &Dir, name: &str, byte: u8) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, [byte; 32]).expect("the file is writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("the file is writable");
    path
}

/// Returns all files below a folder, sorted by path.
fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("the folder can be listed") {
        let path = entry.expect("the folder can be listed").path();
        if path.is_dir() {
            found.extend(below(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[track_caller]
fn assert_encrypted(dir: &Path) {
    let files = below(dir);
    assert!(!files.is_empty());
    for path in files {
        assert!(
            path.to_str().is_some_and(|it| it.ends_with(".enc")),
            "{path:?}"
        );
        let bytes = fs::read(&path).expect("the file exists");
        assert!(!bytes.windows(MARK.len()).any(|it| it == MARK), "{path:?}");
    }
}

fn capture<'d>(dir: &'d Dir, file: &Path, key: &Path) -> Wqcap<'d> {
    Wqcap::run(dir, "x")
        .replay(file)
        .queues(2)
        .set("output.rotate_size=200KB")
        .set(&format!("output.encrypt_key={}", key.display()))
}

#[track_caller]
fn summary(run: &Wqcap<'_>) -> Summary {
    let done = run.done().expect(0);
    let text = fs::read_to_string(run.summary_path()).unwrap_or_else(|e| panic!("{e}: {done}"));
    Summary::parse(&text)
}

/// Returns the frames of a file, sorted by content.
fn sorted(path: &Path) -> Vec<Vec<u8>> {
    let mut frames: Vec<_> = files::read(path).into_iter().map(|it| it.bytes).collect();
    frames.sort();
    frames
}

fn extract(cap: &Path, out: &Path) -> Program {
    wqcap(["extract", "--json"]).arg(cap).arg("-o").arg(out)
}

#[test]
fn files_are_readable_only_with_the_key() {
    let dir = Dir::new();
    let (key, other) = (key(&dir, "key", 7), key(&dir, "other", 8));
    let file = dir.join("in.pcap");
    let mut frames = frames(2000);
    files::write(&file, 1_700_000_000, &frames);
    frames.sort();
    let hooked = dir.join("hooked");
    let hook = dir.script("hook", &format!("echo \"$1\" >> {}", hooked.display()));
    for compress in ["none", "zstd"] {
        let run = capture(&dir, &file, &key)
            .set(&format!("output.compress={compress}"))
            .set("output.keep_files=1000")
            .set(&format!("output.hook={}", hook.display()));
        let summary = summary(&run);
        assert_eq!(summary.ledger.total.captured, 2000);
        assert_encrypted(run.out_path());
        let on_disk = below(run.out_path());
        assert_eq!(summary.files, on_disk);
        assert_eq!(summary.json["encryption"]["files"], on_disk.len());
        assert_eq!(summary.json["encryption"]["failed"], 0);
        let paths = fs::read_to_string(&hooked).expect("hooks ran");
        let mut paths: Vec<_> = paths.lines().map(PathBuf::from).collect();
        paths.sort();
        assert_eq!(paths, on_disk, "paths passed to the hook");
        fs::remove_file(&hooked).expect("the file exists");

        let out = dir.join("out.pcap");
        extract(run.out_path(), &out)
            .args(["--key"])
            .arg(&key)
            .run()
            .expect(0);
        assert_same("extract", &sorted(&out), &frames);
        assert_eq!(capinfos::frames(&out), 2000);
        wqcap(["merge", "-o"])
            .arg(&out)
            .args([
                "--key-command",
                &format!("od -An -v -tx1 {} | tr -d ' \\n'", key.display()),
            ])
            .args(&on_disk)
            .run()
            .expect(0);
        assert_same("merge", &sorted(&out), &frames);
        assert_eq!(capinfos::frames(&out), 2000);
        extract(run.out_path(), &out)
            .run()
            .expect(2)
            .says(&["is encrypted", "--key FILE"]);
        let wrong = extract(run.out_path(), &out)
            .args(["--key"])
            .arg(&other)
            .run();
        wrong.expect(2).says(&["is encrypted with another key"]);
        fs::remove_dir_all(run.out_path()).expect("the folder can be removed");
    }
}

#[test]
fn an_index_reduces_reading_of_encrypted_files() {
    let dir = Dir::new();
    let key = key(&dir, "key", 7);
    let file = dir.join("in.pcap");
    let frames = frames(8000);
    files::write(&file, 1_700_000_000, &frames);
    let index = dir.folder("idx");
    let run = capture(&dir, &file, &key)
        .queues(1)
        .set("output.rotate_size=0")
        .set(&format!("output.index_dir={}", index.display()));
    assert_eq!(summary(&run).ledger.total.captured, 8000);
    assert_encrypted(run.out_path());
    let out = dir.join("out.pcap");
    let done = extract(run.out_path(), &out)
        .args(["--filter", "host 10.0.3.231 and udp port 4000", "--key"])
        .arg(&key)
        .arg("--index")
        .arg(&index)
        .run()
        .expect(0);
    let facts: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_same("the one flow", &sorted(&out), &frames[4000..4010]);
    // The capture wrote the index.
    assert_eq!(facts["index"]["made"], 0, "{facts}");
    let read = facts["file_bytes"]["read"].as_u64().expect("a number");
    assert!((10_000..2 << 20).contains(&read), "{facts}");
    assert!(
        facts["file_bytes"]["total"].as_u64() > Some(8_000_000),
        "{facts}"
    );
}

#[test]
fn plain_files_of_earlier_runs_are_encrypted() {
    let dir = Dir::new();
    let key = key(&dir, "key", 7);
    let file = dir.join("in.pcap");
    let mut frames = frames(1000);
    files::write(&file, 1_700_000_000, &frames);
    let slow = format!("pcap:{},pps=500", file.display());
    let out_dir = dir.join("x.out");
    let mut killed = Wqcap::run(&dir, "x")
        .model(&slow)
        .queues(1)
        .set("output.rotate_size=100KB")
        .set(&format!("output.encrypt_key={}", key.display()))
        .start();
    killed.until("files are written", |_| {
        out_dir.exists() && below(&out_dir).len() > 3
    });
    killed.signal(Signal::KILL);
    assert_eq!(killed.wait().signal(), Some(Signal::KILL.as_raw()));
    // A run without encryption, and a partly encrypted file.
    let plain = Wqcap::run(&dir, "x").replay(&file).queues(1);
    let summary_of_plain = summary(&plain);
    assert_eq!(summary_of_plain.ledger.total.captured, 1000);
    let first = summary_of_plain.files[0].clone();
    let copy = dir.join("copy");
    fs::copy(&first, &copy).expect("the file is writable");
    fs::write(out_dir.join(".wqcap-seal-x1"), "half of one").expect("the file is writable");

    let run = capture(&dir, &file, &key);
    let encrypted = |code| {
        let done = run.done().expect(code);
        let text = fs::read_to_string(run.summary_path()).unwrap_or_else(|e| panic!("{e}: {done}"));
        (Summary::parse(&text).json["encryption"].clone(), done)
    };
    assert_eq!(encrypted(0).0["failed"], 0);
    assert_encrypted(&out_dir);
    let frames_now = || {
        let out = dir.join("out.pcap");
        extract(&out_dir, &out)
            .arg("--key")
            .arg(&key)
            .run()
            .expect(0);
        sorted(&out)
    };
    let found = frames_now();
    frames.sort();
    assert!(found.len() > 2000, "{}", found.len());
    assert!(frames.iter().all(|it| found.binary_search(it).is_ok()));

    // A crash before the plain file was deleted; then another file with the name of a plain file.
    fs::copy(&copy, &first).expect("the file is writable");
    encrypted(0);
    assert_encrypted(&out_dir);
    assert_eq!(frames_now().len(), found.len() + 1000);
    files::write(&first, 1_600_000_000, &frames[..1]);
    let (report, done) = encrypted(1);
    assert_eq!(report["failed"], 1);
    done.says(&["cannot encrypt", "the file stays unencrypted"]);
    assert!(first.exists());
}

#[test]
fn an_invalid_key_is_refused() {
    let dir = Dir::new();
    let short = dir.join("short");
    fs::write(&short, "no key").expect("the file is writable");
    fs::set_permissions(&short, fs::Permissions::from_mode(0o600)).expect("the file is writable");
    let run = |set: &str| {
        Wqcap::run(&dir, "x")
            .model("synth:count=10")
            .set(set)
            .done()
            .expect(2)
    };
    run(&format!("output.encrypt_key={}", short.display()))
        .says(&["output.encrypt_key", "6 bytes"]);
    run("output.encrypt_key=/none").says(&["output.encrypt_key", "/none", "No such file"]);
    run("output.encrypt_key_command=false").says(&["output.encrypt_key_command", "exit status: 1"]);
    run("output.encrypt_key_command=cat /dev/zero").says(&["did not print a valid key"]);
    assert!(!dir.join("x.out").exists() || below(&dir.join("x.out")).is_empty());
}

#[test]
fn a_run_that_waits_for_its_key_ends_at_a_signal() {
    let dir = Dir::new();
    let start = |set: &str| {
        let run = Wqcap::run(&dir, "waits").model("synth:count=10").set(set);
        run.start()
    };
    let mut run = start("output.encrypt_key_command=echo asked >&2; exec sleep 20");
    run.until("the key command runs", |it| it.stderr().contains("asked"));
    run.signal(Signal::TERM);
    assert_eq!(run.wait().signal(), Some(Signal::TERM.as_raw()));
    let pipe = dir.join("pipe");
    let made = Program::new("mkfifo").arg(&pipe).run();
    let _ = made.expect(0);
    let mut run = start(&format!("output.encrypt_key={}", pipe.display()));
    let mut writer = None;
    // fifo(7): without a reader this open fails.
    run.until("the run opens the pipe", |_| {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        writer = open(&pipe, flags, Mode::empty()).ok();
        writer.is_some()
    });
    run.signal(Signal::TERM);
    assert_eq!(run.wait().signal(), Some(Signal::TERM.as_raw()));
    drop(writer);
    assert!(!dir.join("waits.out").exists() || below(&dir.join("waits.out")).is_empty());
}
