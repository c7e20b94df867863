//! Signals to a capture: none of those that people send kills it, each has its effect, and the ledger adds up afterwards.
//!
//! What SIGINT, SIGTERM and SIGHUP do is in `cli.rs` and `control.rs`.

use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};
use wqcap_tests::{Dir, Running, Summary, Wqcap};

/// A wire that waits for buffers, and does not end.
const ENDLESS: &str = "synth:size=100,flows=64,pps=20000";

fn endless<'d>(dir: &'d Dir, name: &str) -> Wqcap<'d> {
    Wqcap::run(dir, name).model(ENDLESS).queues(2).control()
}

/// Waits until the capture has counted more frames than it has now.
#[track_caller]
fn until_it_goes_on(run: &Wqcap<'_>, running: &mut Running) {
    let now = run.ctl().until_counted(running, "captured", 1);
    run.ctl().until_counted(running, "captured", now + 1000);
}

#[test]
fn signals_that_would_kill_end_the_run_in_order() {
    let dir = Dir::new();
    for (name, signal) in [
        ("SIGQUIT", Signal::QUIT),
        ("SIGALRM", Signal::ALARM),
        ("SIGVTALRM", Signal::VTALARM),
        ("SIGPROF", Signal::PROF),
        ("SIGXCPU", Signal::XCPU),
        ("SIGPWR", Signal::POWER),
        ("SIGSTKFLT", Signal::STKFLT),
    ] {
        let run = endless(&dir, name);
        let mut running = run.start();
        run.ctl().until_counted(&mut running, "captured", 1000);
        running.signal(signal);
        let finished = run.finished(running.wait(), 0);
        assert_eq!(finished.summary.json["end"], "stopped", "{name}");
        let audited = format!("what=\"{name}\" result=\"changed\" new=\"the run ends\"");
        finished.done.says(&[&audited]);
    }
}

#[test]
fn a_real_time_signal_ends_the_run_in_order() {
    let dir = Dir::new();
    let run = endless(&dir, "rt");
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1000);
    let kill = format!("kill -40 {}", running.pid());
    let sent = Command::new("sh").args(["-c", &kill]).status();
    assert!(sent.expect("a shell").success());
    let finished = run.finished(running.wait(), 0);
    assert_eq!(finished.summary.json["end"], "stopped");
    finished.done.says(&["what=\"signal 40\""]);
}

#[test]
fn other_signals_do_nothing() {
    let dir = Dir::new();
    let run = endless(&dir, "x");
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1000);
    for signal in [
        Signal::PIPE,
        Signal::IO,
        Signal::XFSZ,
        Signal::URG,
        Signal::WINCH,
        Signal::CHILD,
        Signal::CONT,
    ] {
        running.signal(signal);
        until_it_goes_on(&run, &mut running);
    }
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    assert!(
        !finished.done.stderr.contains("was stopped"),
        "{}",
        finished.done
    );
}

#[test]
fn sigusr1_prints_the_counters_and_the_capture_goes_on() {
    let dir = Dir::new();
    let run = endless(&dir, "x").args(&["-q"]);
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1000);
    for round in 1..=3 {
        running.signal(Signal::USR1);
        running.until("the counters", |it| {
            it.stderr().matches("counters after ").count() == round
        });
        until_it_goes_on(&run, &mut running);
    }
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    let said = &finished.done.stderr;
    let table = said
        .split_once("counters after ")
        .expect("waited for")
        .1
        .lines();
    let table: Vec<_> = table.take(6).collect();
    assert!(table[0].ends_with(" s, running:"), "{said}");
    assert!(table[1].contains("received"), "{said}");
    assert!(table.iter().any(|it| it.starts_with("nic ")), "{said}");
}

/// The frames in a file that may grow at any moment: as far as whole records go.
fn frames_so_far(path: &Path) -> usize {
    let bytes = match path.to_string_lossy().contains(".zst") {
        // It complains about a frame that is being written, and gives what stands before it.
        true => {
            Command::new("zstd")
                .args(["-q", "-dcf"])
                .arg(path)
                .output()
                .expect("zstd runs; scripts/packages test installs it")
                .stdout
        }
        false => fs::read(path).expect("reads"),
    };
    let (mut at, mut frames) = (24, 0);
    while let Some(length) = bytes.get(at + 8..at + 12) {
        let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
        at += 16 + length as usize;
        // Nothing of an open file is padding.
        assert_eq!(length, 100, "{}: a record at {at}", path.display());
        frames += usize::from(at <= bytes.len());
    }
    frames
}

fn all_frames_so_far(out: &Path) -> usize {
    let files = fs::read_dir(out).expect("the folder is there");
    let files = files.map(|it| it.expect("a folder lists").path());
    files.map(|it| frames_so_far(&it)).sum()
}

/// Each ends up in the file in its own way.
#[test]
fn sigusr2_makes_everything_received_readable() {
    let dir = Dir::new();
    for (name, sets) in [
        ("plain", &[][..]),
        ("zstd", &["output.compress=zstd"][..]),
        ("time", &["output.order=time"][..]),
        ("zstd-time", &["output.compress=zstd", "output.order=time"]),
        ("fanout", &["pipeline.mode=fanout"]),
    ] {
        let run = endless(&dir, name).sets(sets);
        let mut running = run.start();
        for round in 1..=3 {
            let captured = run
                .ctl()
                .until_counted(&mut running, "captured", round as u64 * 2000);
            running.signal(Signal::USR2);
            running.until("a flush", |it| {
                let said = it.stderr();
                let flushes = said.lines().filter(|it| it.contains("SIGUSR2: flush"));
                let flushed = "new=\"all frames received before it are in the files";
                flushes.filter(|it| it.contains(flushed)).count() == round
            });
            let found = all_frames_so_far(run.out_path());
            assert!(
                found as u64 >= captured,
                "{name}: {found} of {captured} frames"
            );
        }
        running.signal(Signal::TERM);
        let done = running.wait().expect(0);
        let text = fs::read_to_string(run.summary_path()).expect("a summary");
        let summary = Summary::parse(&text);
        let found = all_frames_so_far(run.out_path());
        assert_eq!(
            found as u64, summary.ledger.total.captured,
            "{name}: {done}"
        );
    }
}

#[test]
fn a_run_without_files_has_nothing_to_flush() {
    let dir = Dir::new();
    let run = endless(&dir, "x").set("output.format=none");
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1000);
    running.signal(Signal::USR2);
    running.until("an answer", |it| {
        it.stderr().contains("why=\"this run writes no frames\"")
    });
    running.signal(Signal::TERM);
    let _ = run.finished(running.wait(), 0);
}

#[test]
fn a_stop_is_reported_with_its_length() {
    let dir = Dir::new();
    let run = endless(&dir, "x");
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1000);
    running.freeze();
    // A stop is a time: longer than any pause between two looks of the capture's owner.
    thread::sleep(Duration::from_millis(1500));
    running.thaw();
    running.until("a note on the stop", |it| {
        it.stderr()
            .contains("the process was stopped (SIGSTOP, SIGTSTP) for ")
    });
    until_it_goes_on(&run, &mut running);
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    let notes = finished.summary.json["notes"].to_string();
    assert!(notes.contains("the process was stopped"), "{notes}");
    assert!(!finished.done.stderr.contains("stuck"), "{}", finished.done);
}

#[test]
fn signals_that_were_ignored_at_the_start_stay_ignored() {
    let dir = Dir::new();
    let run = endless(&dir, "x").wrapped(&["env", "--ignore-signal=HUP,QUIT,ALRM,USR1,USR2"]);
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1000);
    for signal in [
        Signal::HUP,
        Signal::QUIT,
        Signal::ALARM,
        Signal::USR1,
        Signal::USR2,
    ] {
        running.signal(signal);
    }
    until_it_goes_on(&run, &mut running);
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    for absent in ["counters after", "SIGUSR2", "SIGQUIT", "SIGHUP"] {
        assert!(!finished.done.stderr.contains(absent), "{}", finished.done);
    }
}

/// The processes whose parent is `pid`.
fn children(pid: u32) -> Vec<i32> {
    let parent = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may have blanks.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        fields.nth(1)?.parse::<u32>().ok()
    };
    let processes = fs::read_dir("/proc").expect("/proc");
    let pids = processes.filter_map(|it| it.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|it| parent(*it) == Some(pid)).collect()
}

/// A signal to a whole group, a unit or all programs of the name reaches the helpers too.
#[test]
fn helper_processes_survive_signals_that_are_the_captures() {
    let dir = Dir::new();
    let seen = dir.folder("seen");
    let hook = dir.script(
        "hook",
        &format!("touch {}/$(basename \"$1\")", seen.display()),
    );
    let run = endless(&dir, "x").set(&format!("output.hook={}", hook.display()));
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1000);
    let helpers = children(running.pid());
    assert_eq!(
        helpers.len(),
        2,
        "one runs hooks, one is outside the sandbox"
    );
    let caught = |pid: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let caught = status.lines().find_map(|it| it.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.expect("a mask").trim(), 16).expect("hex");
        caught >> (Signal::USR2.as_raw() - 1) & 1 == 1
    };
    running.until("helpers that are ready", |_| helpers.iter().all(caught));
    for signal in [
        Signal::USR1,
        Signal::USR2,
        Signal::PIPE,
        Signal::QUIT,
        Signal::ALARM,
        Signal::HUP,
        Signal::INT,
        Signal::TERM,
    ] {
        for helper in &helpers {
            let helper = Pid::from_raw(*helper).expect("a pid");
            kill_process(helper, signal).expect("it runs");
        }
    }
    until_it_goes_on(&run, &mut running);
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    let files = finished.summary.files.len();
    assert_eq!(finished.summary.json["hooks"]["succeeded"], files);
    assert_eq!(fs::read_dir(&seen).expect("there").count(), files);
    let socket: PathBuf = run.ctl().socket().to_owned();
    assert!(!socket.exists(), "the socket is removed at the end");
}
