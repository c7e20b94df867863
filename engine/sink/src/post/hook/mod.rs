//! Hook of finished files (`output.hook`): a program that runs for each file, with the file's path as
//! its only argument.
//!
//! A capture holds pinned memory, so it must not fork: it would wait while page tables of gigabytes, or
//! the pinned pages themselves, are copied for the child. A [`Command`] without `pre_exec`, user or
//! group does not fork: std uses `posix_spawn` on Linux, which glibc implements with
//! `clone(CLONE_VM | CLONE_VFORK)`. The child uses the parent's address space until exec, nothing is
//! copied, and only the calling thread, the hook thread, is suspended meanwhile. (The engine's memory
//! regions are also excluded from forks.)
//!
//! Invariants: the writing of files never waits for a hook. At most [`AT_ONCE`] hooks run concurrently,
//! and at most [`WAITING`] files wait. A hook runs for at most [`LONGEST`], and delays a run's end for
//! at most [`GRACE`]. Hooks that exceed a limit are killed with their process group, logged and
//! counted.

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

/// Maximum number of hooks that run concurrently.
const AT_ONCE: usize = 4;
/// Maximum number of finished files that wait for their hook. No hook runs for further files.
const WAITING: usize = 1000;
/// Maximum run time of a hook.
const LONGEST: Duration = Duration::from_secs(300);
/// Maximum time for all remaining hooks after the run's last file is finished.
const GRACE: Duration = Duration::from_secs(10);
/// Interval at which running hooks are polled.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Number of a run's hooks, by their result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, AddAssign)]
#[non_exhaustive]
pub struct HookReport {
    /// Number of hooks that exited with status 0.
    pub succeeded: u64,
    /// Number of hooks that could not be started, exited otherwise, or were killed.
    pub failed: u64,
    /// Number of finished files whose hook was not started because hooks were too slow.
    pub not_run: u64,
    /// Number of paths that the hook process refused because they were not files just finished.
    pub refused: u64,
}

/// Handle of the hook thread, and the sender of finished files to it. The thread ends when the
/// sender is dropped and all hooks have ended or exceeded their time.
type Hooks = (JoinHandle<HookReport>, HookSender);

/// Sender of finished files to the hook thread. It never blocks: if [`WAITING`] files are waiting, no
/// hook runs for the file.
pub(super) struct HookSender {
    files: Sender<PathBuf>,
    /// Number of finished files not sent to the hook thread because its channel was full.
    unsent: Arc<AtomicU64>,
}

impl HookSender {
    fn new() -> (Self, Receiver<PathBuf>) {
        let (files, waiting) = crossbeam_channel::bounded(WAITING);
        let unsent = Arc::default();
        (Self { files, unsent }, waiting)
    }

    /// Sends a finished file to the hook thread.
    pub(super) fn send(&self, file: &Path) {
        if let Err(TrySendError::Full(file)) = self.files.try_send(file.to_owned()) {
            self.unsent.fetch_add(1, Ordering::Relaxed);
            warn_not_run(&file);
        }
    }
}

fn warn_not_run(file: &Path) {
    tracing::warn!(
        "output.hook: the hook was not run for {}: {WAITING} files already wait for it; make the hook faster, or the capture files larger",
        file.display()
    );
}

struct HookLimits {
    longest: Duration,
    grace: Duration,
}

/// Starts the hook thread, which runs a hook for each file sent. With `process`, the hooks run in
/// that process.
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
    let limits = HookLimits {
        longest: LONGEST,
        grace: GRACE,
    };
    start_within(program, limits)
}

fn start_within(program: &Path, limits: HookLimits) -> Result<Hooks, ResourceError> {
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

/// State of the hook thread: running hooks, and files that wait for their hook.
struct Runner {
    unsent: Arc<AtomicU64>,
    program: PathBuf,
    limits: HookLimits,
    waiting: VecDeque<PathBuf>,
    running: Vec<Running>,
    report: HookReport,
}

/// Running hook of a finished file.
struct Running {
    child: Child,
    file: PathBuf,
    /// Time at which the running hook is killed.
    until: Instant,
}

impl Runner {
    fn run(mut self, files: &Receiver<PathBuf>) -> HookReport {
        loop {
            let next = if self.running.is_empty() {
                files.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                files.recv_timeout(POLL_EVERY)
            };
            match next {
                Ok(file) => self.add_waiting(file),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.update_hooks();
        }
        self.end();
        self.report.not_run += self.unsent.load(Ordering::Relaxed);
        self.report
    }

    fn add_waiting(&mut self, file: PathBuf) {
        if self.waiting.len() < WAITING {
            return self.waiting.push_back(file);
        }
        self.report.not_run += 1;
        warn_not_run(&file);
    }

    /// Collects the hooks that have ended, kills those that exceed their time, and starts the hooks
    /// of waiting files.
    fn update_hooks(&mut self) {
        let (program, report) = (&self.program, &mut self.report);
        let longest = self.limits.longest.as_secs();
        self.running.retain_mut(|it| {
            let why = match it.child.try_wait() {
                Ok(None) if Instant::now() < it.until => return true,
                Ok(None) => {
                    it.kill();
                    format!(
                        "the hook ran longer than {longest} s, which is the limit, and was killed"
                    )
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
            // The capture's stdout may be a stream of frames, or JSON.
            .stdout(io::stderr())
            // A separate group, so that ^C at a terminal reaches only the capture, which then waits for its hooks.
            .process_group(0)
            .spawn()
    }

    /// Waits for the remaining hooks within the grace time, then kills them.
    fn end(&mut self) {
        let deadline = Instant::now() + self.limits.grace;
        self.update_hooks();
        while !self.running.is_empty() && Instant::now() < deadline {
            std::thread::sleep(POLL_EVERY);
            self.update_hooks();
        }
        for mut it in self.running.drain(..) {
            it.kill();
            let why = "the hook was killed at the end of the run";
            failed(&mut self.report, &self.program, &it.file, why);
        }
        for file in self.waiting.drain(..) {
            self.report.not_run += 1;
            tracing::warn!(
                "output.hook: the hook was not run for {}: the capture has ended",
                file.display()
            );
        }
    }
}

impl Running {
    /// Kills the running hook with its process group.
    fn kill(&mut self) {
        // The child is not reaped yet, so its process id is still valid.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

fn failed(report: &mut HookReport, program: &Path, file: &Path, why: &str) {
    report.failed += 1;
    tracing::warn!(
        "output.hook: the hook {} failed for the file {}: {why}",
        program.display(),
        file.display()
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Creates a script that runs `body` with the file as `$1`. A separate process writes the script:
    /// exec fails (ETXTBSY) while any process has the file open for writing, and a program started by a
    /// concurrent test would inherit this process's descriptor.
    fn script(dir: &Path, body: &str) -> PathBuf {
        let path = dir.join("hook");
        let write = r#"printf '%s\n' '#!/bin/sh' "$2" > "$1" && chmod 755 "$1""#;
        let mut sh = Command::new("/bin/sh");
        sh.args(["-c", write, "sh"]).arg(&path).arg(body);
        assert!(sh.status().expect("a shell").success());
        path
    }

    /// Waits until a condition holds, for at most 120 s.
    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !holds() {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn lines(path: &Path) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn run(program: &Path, limits: HookLimits, files: &[PathBuf]) -> HookReport {
        let (hooks, sender) = start_within(program, limits).expect("starts");
        for file in files {
            sender.send(file);
        }
        drop(sender);
        hooks.join().expect("ends")
    }

    const PATIENT: HookLimits = HookLimits {
        longest: LONGEST,
        grace: LONGEST,
    };

    fn paths(dir: &Path, n: usize) -> Vec<PathBuf> {
        (0..n).map(|i| dir.join(format!("file {i}"))).collect()
    }

    #[test]
    fn a_hook_runs_for_each_file_and_the_number_of_concurrent_hooks_is_limited() {
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
        until("the maximum number of hooks run", || {
            lines(&most).len() >= AT_ONCE
        });
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
    fn failures_are_counted_and_further_hooks_run() {
        let dir = tempfile::tempdir().expect("dir");
        let program = script(dir.path(), "case $1 in *1) exit 3;; *2) kill -9 $$;; esac");
        let report = run(&program, PATIENT, &paths(dir.path(), 4));
        assert_eq!((report.succeeded, report.failed), (2, 2));
        let report = run(&dir.path().join("absent"), PATIENT, &paths(dir.path(), 2));
        assert_eq!((report.succeeded, report.failed), (0, 2));
    }

    #[test]
    fn hooks_that_hang_are_killed_with_their_children() {
        let dir = tempfile::tempdir().expect("dir");
        let pids = dir.path().join("pids");
        let body = format!("sleep 1000 & echo $! >> {}; wait", pids.display());
        let program = script(dir.path(), &body);
        let grace = Duration::from_millis(200);
        let limits = HookLimits {
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
        // Hooks that exceed their time during a run are killed, and waiting ones are started.
        let limits = HookLimits {
            longest: grace,
            grace: LONGEST,
        };
        let report = run(&program, limits, &paths(dir.path(), AT_ONCE + 3));
        assert_eq!((report.failed, report.not_run), (AT_ONCE as u64 + 3, 0));
        for pid in lines(&pids) {
            until("the child of a hook has ended", || {
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                !stat.contains("sleep") || stat.contains(") Z ")
            });
        }
    }
}
