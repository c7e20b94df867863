//! Tests of signals to a capture: no commonly sent signal kills it, each has its effect, and the
//! ledger adds up afterwards.
//!
//! SIGINT, SIGTERM and SIGHUP are tested in `cli.rs` and `control.rs`.

use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};
use wqcap_tests::{Dir, Program, Running, Summary, Wqcap, binaries, files, frames};

/// Wire without an end, at 20,000 frames per second.
const ENDLESS: &str = "synth:size=100,flows=64,pps=20000";

/// Returns a run of two queues on [`ENDLESS`], with a control socket.
fn endless<'d>(dir: &'d Dir, name: &str) -> Wqcap<'d> {
    Wqcap::run(dir, name).model(ENDLESS).queues(2).control()
}

/// Waits until the capture has counted 1000 more frames.
#[track_caller]
fn await_progress(run: &Wqcap<'_>, running: &mut Running) {
    let now = run.ctl().until_counted(running, "captured", 1);
    run.ctl().until_counted(running, "captured", now + 1000);
}

#[test]
fn a_signal_that_would_kill_ends_the_run_in_order() {
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
    assert!(sent.expect("sh runs").success());
    let finished = run.finished(running.wait(), 0);
    assert_eq!(finished.summary.json["end"], "stopped");
    finished.done.says(&["what=\"signal 40\""]);
}

#[test]
fn other_signals_have_no_effect() {
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
        await_progress(&run, &mut running);
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
fn sigusr1_prints_the_counters_and_the_capture_continues() {
    let dir = Dir::new();
    let run = endless(&dir, "x").args(&["-q"]);
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1000);
    for round in 1..=3 {
        running.signal(Signal::USR1);
        running.until("the counters are printed", |it| {
            it.stderr().matches("counters after ").count() == round
        });
        await_progress(&run, &mut running);
    }
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    let said = &finished.done.stderr;
    let table = said
        .split_once("counters after ")
        .expect("the counters are printed")
        .1
        .lines();
    let table: Vec<_> = table.take(6).collect();
    assert!(table[0].ends_with(" s (the capture is running):"), "{said}");
    assert!(table[1].contains("received"), "{said}");
    assert!(table.iter().any(|it| it.starts_with("nic ")), "{said}");
}

/// Returns the number of whole records in a file that may be growing.
fn frames_so_far(path: &Path) -> usize {
    let bytes = match path.to_string_lossy().contains(".zst") {
        // zstd reports the incomplete frame at the end, and writes the data before it.
        true => {
            Command::new("zstd")
                .args(["-q", "-dcf"])
                .arg(path)
                .output()
                .expect("zstd runs; scripts/packages test installs it")
                .stdout
        }
        false => fs::read(path).expect("the file can be read"),
    };
    let (mut at, mut frames) = (24, 0);
    while let Some(length) = bytes.get(at + 8..at + 12) {
        let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
        at += 16 + length as usize;
        // An open file has no padding.
        assert_eq!(length, 100, "{}: a record at {at}", path.display());
        frames += usize::from(at <= bytes.len());
    }
    frames
}

/// Returns the number of whole records in all files of the folder `out`.
fn all_frames_so_far(out: &Path) -> usize {
    let files = fs::read_dir(out).expect("the folder exists");
    let files = files.map(|it| it.expect("the folder can be listed").path());
    files.map(|it| frames_so_far(&it)).sum()
}

/// Covers plain, compressed, merged and fan-out output, which write frames by different code.
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
            running.until("the flush is reported", |it| {
                let said = it.stderr();
                let flushes = said.lines().filter(|it| it.contains("SIGUSR2: flush"));
                let flushed = "new=\"all frames received before the signal are in the files";
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
    running.until("the refusal of the flush", |it| {
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
    // The stop must be longer than the interval between two checks of the supervisor.
    thread::sleep(Duration::from_millis(1500));
    running.thaw();
    running.until("the report of the stop", |it| {
        it.stderr()
            .contains("the process was stopped (SIGSTOP, SIGTSTP) for ")
    });
    await_progress(&run, &mut running);
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
    await_progress(&run, &mut running);
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    for absent in ["counters after", "SIGUSR2", "SIGQUIT", "SIGHUP"] {
        assert!(!finished.done.stderr.contains(absent), "{}", finished.done);
    }
}

/// Returns the pids of the processes whose parent is `pid`.
fn children(pid: u32) -> Vec<i32> {
    let parent = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name of a program may contain spaces.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        fields.nth(1)?.parse::<u32>().ok()
    };
    let processes = fs::read_dir("/proc").expect("/proc can be listed");
    let pids = processes.filter_map(|it| it.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|it| parent(*it) == Some(pid)).collect()
}

/// A signal to a process group, to a unit or to all programs of one name reaches the helpers too.
#[test]
fn helper_processes_survive_signals_meant_for_the_capture() {
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
        "one helper runs hooks and one stays outside the sandbox"
    );
    let caught = |pid: &i32| {
        let status =
            fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is running");
        let caught = status.lines().find_map(|it| it.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.expect("a mask").trim(), 16).expect("hex");
        caught >> (Signal::USR2.as_raw() - 1) & 1 == 1
    };
    running.until("both helpers have installed their handlers", |_| {
        helpers.iter().all(caught)
    });
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
            kill_process(helper, signal).expect("the process is running");
        }
    }
    await_progress(&run, &mut running);
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    let files = finished.summary.files.len();
    assert_eq!(finished.summary.json["hooks"]["succeeded"], files);
    assert_eq!(
        fs::read_dir(&seen).expect("the folder exists").count(),
        files
    );
    let socket: PathBuf = run.ctl().socket().to_owned();
    assert!(!socket.exists(), "the socket is removed at the end");
}

/// Merges a file into a pipe that nothing reads, sends the signals of `kills` (shell), and prints
/// the exit status and the seconds from the first signal to the end.
const MERGE_INTO_A_STUCK_PIPE: &str = r#"
mkfifo pipe && exec 3<>pipe
"$0" merge -o - in.pcap >pipe 2>messages 3<&- & process=$!
sleep 1
since=$(date +%s); eval "$1"; wait $process
echo "status $? after $(($(date +%s) - since)) s"
cat messages"#;

fn merge_into_a_stuck_pipe(kills: &str) -> (String, u64) {
    let dir = Dir::new();
    files::write(
        &dir.join("in.pcap"),
        1_600_000_000,
        &frames::udp_flows(4000, 120),
    );
    let script = Program::new("sh")
        .args(["-c", MERGE_INTO_A_STUCK_PIPE])
        .arg(binaries::wqcap())
        .arg(kills)
        .cwd(&dir.join("."));
    let said = script.run().expect(0).stdout;
    let seconds = said
        .split_once(" after ")
        .and_then(|(_, rest)| rest.split_once(" s\n"))
        .and_then(|(seconds, _)| seconds.parse().ok());
    let seconds = seconds.unwrap_or_else(|| panic!("no time in {said}"));
    (said, seconds)
}

#[test]
fn a_command_whose_reader_hangs_ends_in_ten_seconds() {
    let (said, seconds) = merge_into_a_stuck_pipe("kill -TERM $process");
    assert!(said.starts_with("status 1 "), "{said}");
    assert!((9..=14).contains(&seconds), "{said}");
    assert!(
        said.contains("error: the command did not end within 10 s after SIGTERM"),
        "{said}"
    );
}

#[test]
fn a_second_signal_ends_a_command_at_once() {
    let (said, seconds) =
        merge_into_a_stuck_pipe("kill -TERM $process; sleep 2; kill -TERM $process");
    assert!(said.starts_with("status 143 "), "{said}");
    assert!(seconds <= 6, "{said}");
    assert!(said.contains("error: SIGTERM came again"), "{said}");
}

/// Runs a capture into a pipe that nothing reads, sends the signals of `$0` (shell), and prints the
/// exit status and the seconds from the first signal to the end.
const RUN_INTO_A_STUCK_PIPE: &str = r#"
mkfifo pipe && exec 3<>pipe
"$@" >pipe 2>messages 3<&- & process=$!
sleep 3
since=$(date +%s); eval "$0"; wait $process
echo "status $? after $(($(date +%s) - since)) s"
cat messages"#;

/// Returns what the shell says, and the summary of the run.
fn run_into_a_stuck_pipe(kills: &str) -> (String, Summary) {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "stuck")
        .model("synth:size=500,flows=64,pps=20000")
        .queues(2)
        .sets(&["output.stdout=true", "output.buffer=32MiB"])
        .wrapped(&["bash", "-c", RUN_INTO_A_STUCK_PIPE, kills]);
    let said = run.program().cwd(dir.path()).run().expect(0).stdout;
    let summary = fs::read_to_string(run.summary_path());
    let summary = summary.unwrap_or_else(|e| panic!("no summary: {e}: {said}"));
    (said, Summary::parse(&summary))
}

#[test]
fn a_run_whose_reader_hangs_ends_with_its_summary() {
    for (kills, least, most) in [
        ("kill -TERM $process", 9, 20),
        ("kill -TERM $process; sleep 2; kill -TERM $process", 2, 6),
    ] {
        let (said, summary) = run_into_a_stuck_pipe(kills);
        assert!(said.starts_with("status 1 "), "{said}");
        let seconds = said
            .split_once(" after ")
            .and_then(|(_, it)| it.split_once(" s\n"));
        let seconds: u64 = seconds.expect("a time").0.parse().expect("a number");
        assert!((least..=most).contains(&seconds), "{said}");
        assert!(said.contains("its reader did not read"), "{said}");
        let total = &summary.ledger.total;
        assert!(total.dropped_storage > 0, "{total:?}");
    }
}
