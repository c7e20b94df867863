//! `output.hook`: a program that runs after each finished file, with the file's path as its only argument.
//!
//! A capture holds pinned memory, and fork is poison to it: what the child copies, page tables of gigabytes or the
//! pinned pages themselves, the capture waits for. So nothing here forks. A plain [`Command`], without `pre_exec`,
//! user or group, is a `posix_spawn` to std on Linux, and glibc's is `clone(CLONE_VM | CLONE_VFORK)`: the child borrows
//! the address space until it has exec'ed, nothing is copied, and only the calling thread, this module's own, stands
//! still meanwhile. (The engine's own regions are left out of forks besides.)
//!
//! Invariants: the writing of files never waits for a hook. At most [`AT_ONCE`] run at once and [`WAITING`] files wait;
//! none lasts longer than [`LONGEST`], and none holds up a run's end for more than [`GRACE`]: what remains is killed
//! with its whole process group, told and counted.

mod gate;
mod process;

pub use gate::HookGate;
pub use process::{HookProcess, serve_hooks};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError};
use derive_more::AddAssign;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use wqcap_core::{error::ResourceError, sync::thread::spawn};

/// Hooks that run at once.
const AT_ONCE: usize = 4;
/// Files that wait for their hook; those beyond get none.
const WAITING: usize = 1000;
/// How long a hook may run.
const LONGEST: Duration = Duration::from_secs(300);
/// How long hooks may go on after the last file is finished, all together.
const GRACE: Duration = Duration::from_secs(10);
/// Between two looks at those that run.
const LOOK: Duration = Duration::from_millis(20);

/// How a run's hooks went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, AddAssign)]
pub struct HookReport {
    /// Ended with status 0.
    pub succeeded: u64,
    /// Could not be started, ended otherwise, or had to be killed.
    pub failed: u64,
    /// Files whose hook was never started, for want of time.
    pub not_run: u64,
    /// Paths for which the process that runs hooks refused to start one, since they were not files that were just finished.
    pub refused: u64,
}

/// The running thread, and the sender of the files that it takes. It ends when the sender is gone, and all hooks are done or
/// their time is over.
type Hooks = (JoinHandle<HookReport>, HookSender);

/// Sends finished files to the thread of hooks. It never waits: a file that finds [`WAITING`] others before it has no hook.
pub(super) struct HookSender {
    files: Sender<PathBuf>,
    /// Files that found no room.
    unsent: Arc<AtomicU64>,
}

impl HookSender {
    fn new() -> (Self, Receiver<PathBuf>) {
        let (files, waiting) = crossbeam_channel::bounded(WAITING);
        let unsent = Arc::default();
        (Self { files, unsent }, waiting)
    }

    /// A file is finished.
    pub(super) fn send(&self, file: &Path) {
        if let Err(TrySendError::Full(file)) = self.files.try_send(file.to_owned()) {
            self.unsent.fetch_add(1, Ordering::Relaxed);
            warn_not_run(&file);
        }
    }
}

fn warn_not_run(file: &Path) {
    tracing::warn!(
        "output.hook: not run for {}: {WAITING} files wait already; hooks take longer than files",
        file.display()
    );
}

struct Limits {
    longest: Duration,
    grace: Duration,
}

/// A hook for each path sent; in `process`, if there is one.
pub(super) fn start(
    program: &Path,
    process: Option<Arc<HookProcess>>,
) -> Result<Hooks, ResourceError> {
    if let Some(process) = process {
        let (sender, files) = HookSender::new();
        let unsent = Arc::clone(&sender.unsent);
        let run = move || {
            let mut report = process.run(&files);
            report.not_run += unsent.load(Ordering::Relaxed);
            report
        };
        return Ok((spawn("wqcap-hooks", run)?, sender));
    }
    let limits = Limits {
        longest: LONGEST,
        grace: GRACE,
    };
    start_within(program, limits)
}

fn start_within(program: &Path, limits: Limits) -> Result<Hooks, ResourceError> {
    let (sender, files) = HookSender::new();
    let runner = Runner {
        unsent: Arc::clone(&sender.unsent),
        program: program.to_owned(),
        limits,
        waiting: VecDeque::new(),
        running: Vec::new(),
        report: HookReport::default(),
    };
    Ok((spawn("wqcap-hooks", move || runner.run(&files))?, sender))
}

struct Runner {
    unsent: Arc<AtomicU64>,
    program: PathBuf,
    limits: Limits,
    waiting: VecDeque<PathBuf>,
    running: Vec<Running>,
    report: HookReport,
}

struct Running {
    child: Child,
    file: PathBuf,
    until: Instant,
}

impl Runner {
    fn run(mut self, files: &Receiver<PathBuf>) -> HookReport {
        loop {
            let next = if self.running.is_empty() {
                files.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                files.recv_timeout(LOOK)
            };
            match next {
                Ok(file) => self.line_up(file),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.go_on();
        }
        self.end();
        self.report.not_run += self.unsent.load(Ordering::Relaxed);
        self.report
    }

    fn line_up(&mut self, file: PathBuf) {
        if self.waiting.len() < WAITING {
            return self.waiting.push_back(file);
        }
        self.report.not_run += 1;
        warn_not_run(&file);
    }

    /// Takes those that have ended or must, and starts others.
    fn go_on(&mut self) {
        let (program, report) = (&self.program, &mut self.report);
        self.running.retain_mut(|it| {
            let why = match it.child.try_wait() {
                Ok(None) if Instant::now() < it.until => return true,
                Ok(None) => {
                    it.kill();
                    "it took too long and was killed".into()
                }
                Ok(Some(status)) if status.success() => {
                    report.succeeded += 1;
                    return false;
                }
                Ok(Some(status)) => status.to_string(),
                Err(e) => e.to_string(),
            };
            failed(report, program, &it.file, &why);
            false
        });
        while self.running.len() < AT_ONCE
            && let Some(file) = self.waiting.pop_front()
        {
            match self.spawn(&file) {
                Ok(child) => self.running.push(Running {
                    child,
                    file,
                    until: Instant::now() + self.limits.longest,
                }),
                Err(e) => failed(&mut self.report, &self.program, &file, &e.to_string()),
            }
        }
    }

    fn spawn(&self, file: &Path) -> io::Result<Child> {
        Command::new(&self.program)
            .arg(file)
            .stdin(Stdio::null())
            // stdout may be a stream of frames, or JSON.
            .stdout(io::stderr())
            // ^C at a terminal is for the capture, which then gives its hooks their time.
            .process_group(0)
            .spawn()
    }

    /// No more files will come: what there is has its last moments.
    fn end(&mut self) {
        let deadline = Instant::now() + self.limits.grace;
        self.go_on();
        while !self.running.is_empty() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
            self.go_on();
        }
        for mut it in self.running.drain(..) {
            it.kill();
            let why = "the run's end did not wait any longer, and it was killed";
            failed(&mut self.report, &self.program, &it.file, why);
        }
        for file in self.waiting.drain(..) {
            self.report.not_run += 1;
            tracing::warn!(
                "output.hook: not run for {}: the run is over",
                file.display()
            );
        }
    }
}

impl Running {
    /// The hook and whatever it has started.
    fn kill(&mut self) {
        // Not waited for yet, so the id is still its own.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

fn failed(report: &mut HookReport, program: &Path, file: &Path, why: &str) {
    report.failed += 1;
    tracing::warn!(
        "output.hook: {} {}: {why}",
        program.display(),
        file.display()
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A script that does `body` with `$1`. A process of its own writes it: what has a copy of a descriptor for writing
    /// cannot be run, and a neighbouring test that starts a program meanwhile would give it one of ours.
    fn script(dir: &Path, body: &str) -> PathBuf {
        let path = dir.join("hook");
        let write = r#"printf '%s\n' '#!/bin/sh' "$2" > "$1" && chmod 755 "$1""#;
        let mut sh = Command::new("/bin/sh");
        sh.args(["-c", write, "sh"]).arg(&path).arg(body);
        assert!(sh.status().expect("a shell").success());
        path
    }

    /// Waits until something is so.
    fn until(what: &str, mut so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !so() {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn lines(path: &Path) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn run(program: &Path, limits: Limits, files: &[PathBuf]) -> HookReport {
        let (hooks, sender) = start_within(program, limits).expect("starts");
        for file in files {
            sender.send(file);
        }
        drop(sender);
        hooks.join().expect("ends")
    }

    const PATIENT: Limits = Limits {
        longest: LONGEST,
        grace: LONGEST,
    };

    fn paths(dir: &Path, n: usize) -> Vec<PathBuf> {
        (0..n).map(|i| dir.join(format!("file {i}"))).collect()
    }

    #[test]
    fn each_file_has_its_hook_and_no_more_than_a_few_at_once() {
        let dir = tempfile::tempdir().expect("dir");
        let body = format!(
            "cd {}; echo > run.$$; ls run.* | wc -l >> most
            while [ ! -e go ]; do sleep 0.01; done
            rm run.$$; echo \"$1\" >> seen",
            dir.path().display()
        );
        let program = script(dir.path(), &body);
        let files = paths(dir.path(), 12);
        let (hooks, sender) = start_within(&program, PATIENT).expect("starts");
        for file in &files {
            sender.send(file);
        }
        let most = dir.path().join("most");
        until("as many as may run", || lines(&most).len() >= AT_ONCE);
        fs::write(dir.path().join("go"), "").expect("written");
        drop(sender);
        let report = hooks.join().expect("ends");
        assert_eq!(
            (report.succeeded, report.failed, report.not_run),
            (12, 0, 0)
        );
        let mut seen: Vec<_> = lines(&dir.path().join("seen"))
            .into_iter()
            .map(PathBuf::from)
            .collect();
        seen.sort();
        let mut sorted = files;
        sorted.sort();
        assert_eq!(seen, sorted);
        let most = lines(&most)
            .iter()
            .filter_map(|n| n.trim().parse().ok())
            .max();
        assert_eq!(most, Some(AT_ONCE));
    }

    #[test]
    fn failures_are_counted_and_end_nothing() {
        let dir = tempfile::tempdir().expect("dir");
        let program = script(dir.path(), "case $1 in *1) exit 3;; *2) kill -9 $$;; esac");
        let report = run(&program, PATIENT, &paths(dir.path(), 4));
        assert_eq!((report.succeeded, report.failed), (2, 2));
        let report = run(&dir.path().join("absent"), PATIENT, &paths(dir.path(), 2));
        assert_eq!((report.succeeded, report.failed), (0, 2));
    }

    #[test]
    fn hooks_that_hang_are_killed_with_what_they_started() {
        let dir = tempfile::tempdir().expect("dir");
        let pids = dir.path().join("pids");
        let body = format!("sleep 1000 & echo $! >> {}; wait", pids.display());
        let program = script(dir.path(), &body);
        let grace = Duration::from_millis(200);
        let limits = Limits {
            longest: LONGEST,
            grace,
        };
        let (hooks, sender) = start_within(&program, limits).expect("starts");
        for file in paths(dir.path(), AT_ONCE + 3) {
            sender.send(&file);
        }
        until("all hang", || lines(&pids).len() == AT_ONCE);
        let began = Instant::now();
        drop(sender);
        let report = hooks.join().expect("ends");
        assert_eq!(
            (report.succeeded, report.failed, report.not_run),
            (0, AT_ONCE as u64, 3)
        );
        assert!(began.elapsed() >= grace && began.elapsed() < LONGEST / 2);
        // Too long in the middle of a run: the others have their turn.
        let limits = Limits {
            longest: grace,
            grace: LONGEST,
        };
        let report = run(&program, limits, &paths(dir.path(), AT_ONCE + 3));
        assert_eq!((report.failed, report.not_run), (AT_ONCE as u64 + 3, 0));
        for pid in lines(&pids) {
            until("what a hook started is gone", || {
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                !stat.contains("sleep") || stat.contains(") Z ")
            });
        }
    }
}
