//! System calls of the writing threads that fail: strace injects errors. In all cases the run ends
//! by itself, and its finished files hold exactly the frames that the ledger counts as captured.
//!
//! | test | failing calls |
//! |---|---|
//! | `the_files_match_the_ledger_when_a_call_fails` | each system call of writer, closer and preopener: the second call, all calls, every other call |
//! | `files_wait_for_room_for_their_names` | renames on a full disk |
//! | `the_files_match_the_ledger_at_the_file_size_limit` | writes beyond RLIMIT_FSIZE, which raise SIGXFSZ |
//!
//! Each frame carries a number, so that gaps are detected.

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::{
    collections::{BTreeSet, VecDeque},
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
};
use wqcap_tests::{Dir, Done, Program, Summary, Wqcap, files, need};

/// Number of frames of a run.
const COUNT: u64 = 12_000;

/// System calls with the errors that strace injects.
const CALLS: [(&str, &[&str]); 15] = [
    ("io_uring_setup", &["EPERM"]),
    ("io_uring_register", &["ENOMEM"]),
    (
        "io_uring_enter",
        &["EAGAIN", "EBUSY", "EINTR", "ENOMEM", "EIO"],
    ),
    ("fdatasync", &["EIO"]),
    ("fsync", &["EIO", "ENOSPC"]),
    ("ftruncate", &["EIO"]),
    ("linkat", &["EPERM", "ENOSPC"]),
    ("renameat2", &["EINVAL", "EIO", "EEXIST", "ENOSPC"]),
    ("rename,renameat,renameat2", &["EIO"]),
    ("unlink,unlinkat", &["EIO"]),
    ("flock", &["EWOULDBLOCK", "ENOLCK"]),
    ("fcntl", &["EINVAL"]),
    ("lseek", &["EINVAL"]),
    ("fstat,statx,newfstatat", &["EIO"]),
    ("pwrite64", &["EIO", "ENOSPC"]),
];

/// Selection of the calls of a thread that fail, in the syntax of strace(1).
const WHEN: [&str; 3] = ["2", "1+", "2+2"];

fn strace() -> Result<(), String> {
    let done = Program::new("strace")
        .args(["-f", "--seccomp-bpf", "-o", "/dev/null", "true"])
        .run();
    match done.status.code() {
        Some(0) => Ok(()),
        _ => Err(format!(
            "strace cannot trace (scripts/packages test installs it): {}",
            done.stderr
        )),
    }
}

/// Asserts that the summary and the files of a run agree. Returns the summary, if there is one.
#[track_caller]
fn assert_sound(run: &Wqcap<'_>, done: &Done) -> Option<Summary> {
    assert!(!done.stderr.contains("panicked"), "{done}");
    let text = fs::read_to_string(run.summary_path()).ok()?;
    let summary = Summary::parse(&text);
    summary.ledger.assert_sums();
    let total = summary.ledger.total;
    assert_eq!(
        total.received,
        total.captured + total.dropped_storage,
        "{done}"
    );
    let mut numbers = BTreeSet::new();
    for record in summary.files.iter().flat_map(|it| files::read(it)) {
        assert!(
            numbers.insert(record.number()),
            "a frame occurs twice: {done}"
        );
    }
    assert_eq!(total.captured, numbers.len() as u64, "{done}");
    let named: BTreeSet<_> = summary.files.iter().cloned().collect();
    let entries = fs::read_dir(run.out_path())
        .expect("the folder can be listed")
        .flatten();
    let finished: BTreeSet<PathBuf> = entries
        .map(|it| it.path())
        .filter(|it| it.extension().is_some_and(|it| it != "part"))
        .collect();
    assert_eq!(named, finished, "{done}");
    Some(summary)
}

/// Returns the run with an error that strace injects into the calls `when` of a system call. `log` gets
/// the calls.
fn injected<'d>(run: Wqcap<'d>, call: &str, error: &str, when: &str, log: &Path) -> Wqcap<'d> {
    let trace = format!("trace={call}");
    let inject = format!("inject={call}:error={error}:when={when}");
    let log = log.to_str().expect("a name");
    let options = [
        "-D",
        "-f",
        "--seccomp-bpf",
        "-o",
        log,
        "-e",
        &trace,
        "-e",
        &inject,
    ];
    run.wrapped(&[&["strace"], &options[..]].concat())
}

/// Runs a capture with one injected error. Returns `true` if strace injected it.
fn run_with(dir: &Dir, call: &str, error: &str, when: &str) -> bool {
    let name = format!("{}-{error}-{when}", call.split(',').next().expect("a call"));
    let log = dir.join(format!("{name}.strace"));
    // Open files are synced every second.
    let pace = if call == "fdatasync" { ",pps=4000" } else { "" };
    let run = Wqcap::run(dir, &name)
        .model(&format!("synth:size=1000,flows=64,count={COUNT}{pace}"))
        // With one queue, blocks are written without io_uring.
        .queues(if call.starts_with("io_uring") { 4 } else { 1 })
        .set("output.buffer=1MiB")
        .set("output.rotate_size=2MiB")
        .timeout(std::time::Duration::from_secs(100));
    let run = injected(run, call, error, when, &log);
    let run = match (call, error, when) {
        // The writer waits for space as long as the run lasts.
        ("pwrite64" | "renameat2", "ENOSPC", "1+") => run.args(&["--duration", "2"]),
        _ => run,
    };
    let done = run.done();
    let summary = assert_sound(&run, &done);
    // A call that fails before the capture starts makes wqcap or the dynamic loader exit.
    assert!(
        matches!(
            (done.status.code(), &summary),
            (Some(0 | 1), Some(_)) | (Some(1 | 2 | 127), None)
        ),
        "{done}"
    );
    let passes = ["EAGAIN", "EBUSY", "EINTR", "ENOMEM"].contains(&error);
    if passes || done.status.code() == Some(0) {
        let total = summary.expect("a summary").ledger.total;
        assert_eq!(total.captured, COUNT, "{done}");
        assert_eq!(done.status.code(), Some(0), "{done}");
    }
    fs::remove_dir_all(run.out_path()).expect("removed");
    fs::read_to_string(log).is_ok_and(|it| it.contains("(INJECTED)"))
}

#[test]
fn the_files_match_the_ledger_when_a_call_fails() {
    need!(strace());
    let dir = Dir::new();
    let cases = CALLS.iter().flat_map(|(call, errors)| {
        let cases = errors
            .iter()
            .flat_map(|error| WHEN.map(|when| (*error, when)));
        cases.map(|(error, when)| (*call, error, when))
    });
    let cases = Mutex::new(cases.collect::<VecDeque<_>>());
    let failed = Mutex::new(BTreeSet::new());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let next = cases.lock().expect("no panic").pop_front();
                    let Some((call, error, when)) = next else {
                        break;
                    };
                    if run_with(&dir, call, error, when) {
                        failed.lock().expect("no panic").insert(call);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic");
    let never = CALLS.iter().filter(|(call, _)| !failed.contains(call));
    let never: Vec<_> = never.map(|(call, _)| call).collect();
    assert!(never.is_empty(), "no run called {never:?}");
}

#[test]
fn files_wait_for_room_for_their_names() {
    need!(strace());
    let dir = Dir::new();
    for (when, is_in_time) in [("1..3", true), ("1+", false)] {
        let run = Wqcap::run(&dir, &format!("run-{is_in_time}"))
            .model(&format!("synth:size=1000,flows=64,count={COUNT}"))
            .queues(1)
            .set("output.buffer=1MiB")
            .set("output.rotate_size=2MiB");
        let run = injected(run, "renameat2", "ENOSPC", when, Path::new("/dev/null"));
        let done = run.done();
        done.says(&["No space left", "until the disk has room"]);
        let total = assert_sound(&run, &done).expect("a summary").ledger.total;
        let expected = if is_in_time { (0, COUNT) } else { (1, 0) };
        let status = done.status.code().expect("a status");
        assert_eq!((status, total.captured), expected, "{done}");
    }
}

#[test]
fn the_files_match_the_ledger_at_the_file_size_limit() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "run")
        .model("synth:size=1000,flows=4,pps=5000,count=1000000000000")
        .queues(1)
        .set("output.buffer=1MiB");
    let mut running = run.start();
    running.until("the capture is ready", |it| {
        it.stderr().contains("capturing ")
    });
    let limit = Rlimit {
        current: Some(1_500_000),
        maximum: None,
    };
    let pid = i32::try_from(running.pid()).ok().and_then(Pid::from_raw);
    prlimit(pid, Resource::Fsize, limit).expect("the limit can be set");
    let done = running.wait();
    done.says(&["File too large"]);
    assert_eq!(done.status.code(), Some(1), "{done}");
    let total = assert_sound(&run, &done).expect("a summary").ledger.total;
    assert!(total.captured > 0 && total.dropped_storage > 0, "{done}");
}
