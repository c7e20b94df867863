//! Hooks in a separate process, so that a capture may give up the right to start programs.
//!
//! The capture sends paths through a socket, each terminated by a NUL; an empty path marks the end of a
//! run. The process then returns the report, one line of JSON, and the next run may begin. When the
//! socket closes, the process ends.
//!
//! Neither side trusts the other. [`HookGate`] decides for which paths a hook runs. A process that reads
//! no path for [`STUCK`], or sends no report within [`REPORT`], is treated as dead.

use super::{GRACE, HookGate, HookReport, Hooks};
use crossbeam_channel::Receiver;
use std::{
    ffi::OsString,
    io::{self, BufRead, Read, Write},
    net::Shutdown,
    os::{
        fd::OwnedFd,
        unix::{
            ffi::{OsStrExt, OsStringExt},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use wqcap_core::{error::ResourceError, sync::wall_clock::Moment};

/// Longest path in bytes that the hook process reads (`PATH_MAX` of linux/limits.h).
const LONGEST_PATH: u64 = 4096;
/// Longest report of the hook process in bytes.
const LONGEST_REPORT: usize = 4096;
/// Longest time that the socket to the hook process may stay full.
const STUCK: Duration = Duration::from_secs(10);
/// Longest time for the message that a run has ended.
const LAST: Duration = Duration::from_secs(1);
/// Longest wait for the hook process's report of a run. Running hooks take up to [`GRACE`] of it. With
/// [`LAST`] and [`ENDS`], a stopped hook process delays the end of a run by at most 14 s.
const REPORT: Duration = Duration::from_secs(GRACE.as_secs() + 2);
/// Longest wait for the hook process to end.
const ENDS: Duration = Duration::from_secs(1);
/// Maximum number of refused paths logged per run; further ones are only counted.
const MOST_LOGGED: u64 = 16;

/// Capture's handle of the process that runs [`serve_hooks`].
#[derive(Debug)]
pub struct HookProcess(Mutex<HookSocket>);

#[derive(Debug)]
struct HookSocket {
    socket: UnixStream,
    child: Child,
}

impl HookProcess {
    /// Starts the hook process `command`, which must call [`serve_hooks`] with its standard input
    /// and output.
    ///
    /// # Errors
    /// The command cannot be started.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        command.stdin(OwnedFd::from(theirs.try_clone()?));
        let child = command.stdout(OwnedFd::from(theirs)).spawn()?;
        Ok(Self(Mutex::new(HookSocket { socket, child })))
    }

    /// Sends each finished file to the hook process until the channel ends, and returns the hook
    /// counts.
    pub(super) fn run(&self, files: &Receiver<PathBuf>) -> HookReport {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut sent, mut unsent) = (0, 0);
        for file in files {
            match ends.send(file.as_os_str().as_bytes(), STUCK) {
                Ok(()) => sent += 1,
                Err(_) => unsent += 1,
            }
        }
        match ends.send(b"", LAST).and_then(|()| ends.report(REPORT)) {
            Ok(mut report) => {
                report.not_run += unsent;
                report
            }
            Err(e) => {
                ends.close();
                tracing::warn!(
                    "output.hook: the hook process does not respond: {e}; no hook runs until the capture is restarted"
                );
                HookReport {
                    not_run: sent + unsent,
                    ..HookReport::default()
                }
            }
        }
    }
}

impl HookSocket {
    /// Sends a path to the hook process. After a failure nothing more is sent, because the process
    /// may have got part of a path.
    fn send(&mut self, path: &[u8], patience: Duration) -> io::Result<()> {
        let message = [path, &[0]].concat();
        let timeout = self.socket.set_write_timeout(Some(patience));
        let sent = timeout.and_then(|()| self.socket.write_all(&message));
        sent.map_err(|e| {
            self.close();
            name_timeout(e)
        })
    }

    fn report(&mut self, patience: Duration) -> io::Result<HookReport> {
        let until = Instant::now() + patience;
        let mut line = Vec::new();
        while !line.ends_with(b"\n") && line.len() < LONGEST_REPORT {
            let left = until.saturating_duration_since(Instant::now());
            // A timeout of 0 would be none.
            let left = left.max(Duration::from_millis(1));
            self.socket.set_read_timeout(Some(left))?;
            let mut piece = [0; LONGEST_REPORT];
            match self.socket.read(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => line.extend(&piece[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(name_timeout(e)),
            }
        }
        Ok(serde_json::from_slice(&line)?)
    }

    /// Sends nothing more, so that the hook process ends.
    fn close(&self) {
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

/// Returns the error of a call on the socket; at its timeout the call fails with EAGAIN.
fn name_timeout(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => e,
    }
}

impl Drop for HookSocket {
    fn drop(&mut self) {
        self.close();
        // In its sandbox a capture may not wait for a process, and gets an error here.
        let until = Instant::now() + ENDS;
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(super::POLL_EVERY);
        }
    }
}

/// Message from the capture to the hook process.
enum HookOrder {
    /// Path of a finished file, for which the hook runs.
    Path(Vec<u8>),
    /// Message to the hook process that is longer than any path.
    TooLong,
    /// End of a run: the hook process sends its report.
    RunIsOver,
    /// End of the socket: the capture has ended.
    CaptureIsGone,
}

fn next_order(orders: &mut impl BufRead) -> io::Result<HookOrder> {
    let mut path = Vec::new();
    let read = orders
        .by_ref()
        .take(LONGEST_PATH)
        .read_until(0, &mut path)?;
    Ok(match path.pop() {
        None if read == 0 => HookOrder::CaptureIsGone,
        Some(0) if path.is_empty() => HookOrder::RunIsOver,
        Some(0) => HookOrder::Path(path),
        _ => {
            orders.skip_until(0)?;
            HookOrder::TooLong
        }
    })
}

/// Runs the hook `program` for each path that is read from `orders` and that `gate` admits. Writes
/// a report to `reports` at the end of each run. Returns when `orders` ends.
///
/// # Errors
/// The input or output failed, or a thread could not be started.
pub fn serve_hooks(
    program: &Path,
    mut gate: HookGate,
    mut orders: impl BufRead,
    mut reports: impl Write,
) -> Result<(), ResourceError> {
    let failed = |source| ResourceError::System {
        what: "the pipe to the capture".into(),
        source,
    };
    let mut run: Option<Hooks> = None;
    let mut refused = 0;
    loop {
        match next_order(&mut orders).map_err(failed)? {
            HookOrder::Path(path) => match gate.admit(&path, Moment::now()) {
                Ok(path) => {
                    let (_, files) = match &mut run {
                        Some(run) => run,
                        none => none.insert(super::start(program, None)?),
                    };
                    files.send(&path);
                }
                Err(refusal) => {
                    let path = OsString::from_vec(path);
                    refuse(&mut refused, &format!("{path:?}: {refusal}"));
                }
            },
            HookOrder::TooLong => refuse(
                &mut refused,
                "a path that is longer than the path of any file",
            ),
            HookOrder::RunIsOver => {
                let report = HookReport {
                    refused: std::mem::take(&mut refused),
                    ..end(run.take())
                };
                let mut line = serde_json::to_string(&report).unwrap_or_default();
                line.push('\n');
                reports.write_all(line.as_bytes()).map_err(failed)?;
                reports.flush().map_err(failed)?;
            }
            HookOrder::CaptureIsGone => {
                end(run.take());
                return Ok(());
            }
        }
    }
}

/// Waits for the hooks of a run and returns their report.
fn end(run: Option<Hooks>) -> HookReport {
    run.map_or_else(HookReport::default, |(hooks, files)| {
        drop(files);
        hooks.join().unwrap_or_default()
    })
}

/// Counts a path refused by the hook process, and logs the first ones of a run.
fn refuse(refused: &mut u64, what: &str) {
    *refused += 1;
    if *refused <= MOST_LOGGED {
        tracing::warn!("output.hook: the hook was not run for {what}");
    }
    if *refused == MOST_LOGGED {
        tracing::warn!(
            "output.hook: further paths that are refused in this run are counted but not logged"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use wqcap_files::name::NameTemplate;

    #[test]
    fn each_run_has_its_own_report_and_refusals_are_counted() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |n: u32| {
            let path = dir.path().join(format!("wqcap-q00-{n}.pcap"));
            fs::write(&path, "frames").expect("written");
            path.into_os_string().into_vec()
        };
        let endless = vec![b'x'; 10_000];
        let (end, hostname) = (Vec::new(), b"/etc/hostname".to_vec());
        let orders = [
            at(1),
            hostname.clone(),
            at(2),
            end.clone(),
            end.clone(),
            at(3),
            endless,
            b"--help".to_vec(),
            end,
        ];
        let orders: Vec<u8> = orders.join(&0).into_iter().chain([0]).collect();
        let gate = HookGate::new(dir.path(), NameTemplate::default()).expect("there");
        let mut reports = Vec::new();
        serve_hooks(Path::new("/bin/true"), gate, &orders[..], &mut reports).expect("served");
        let text = String::from_utf8(reports).expect("text");
        let counts: Vec<_> = text
            .lines()
            .map(|line| serde_json::from_str::<HookReport>(line).expect("a report"))
            .map(|it| (it.succeeded, it.failed, it.not_run, it.refused))
            .collect();
        assert_eq!(counts, [(2, 0, 0, 1), (0, 0, 0, 0), (1, 0, 0, 2)]);
    }

    #[test]
    fn files_for_a_dead_hook_process_count_as_not_run() {
        let process = HookProcess::start(Command::new("/bin/true")).expect("started");
        // The process has ended, and closed its end of the socket.
        let _ = process.0.lock().expect("own").child.wait();
        let (sender, files) = crossbeam_channel::unbounded();
        for file in ["a", "b"] {
            sender.send(PathBuf::from(file)).expect("taken");
        }
        drop(sender);
        assert_eq!(process.run(&files).not_run, 2);
    }

    #[test]
    fn a_stopped_hook_process_does_not_block_the_capture() {
        let mut command = Command::new("sleep");
        command.arg("1000");
        let process = HookProcess::start(command).expect("started");
        let mut ends = process.0.lock().expect("own");
        let soon = Duration::from_millis(20);
        let path = [b'x'; 1000];
        let refused = (0..10_000).find_map(|_| ends.send(&path, soon).err());
        let refused = refused.expect("the socket is full").kind();
        assert_eq!(refused, io::ErrorKind::TimedOut);
        let kind = |e: io::Error| e.kind();
        let sent = ends.send(&path, soon).map_err(kind);
        assert_eq!(sent, Err(io::ErrorKind::BrokenPipe), "given up");
        let report = ends.report(soon).map_err(kind);
        assert_eq!(report, Err(io::ErrorKind::TimedOut));
        ends.child.kill().expect("killed");
    }
}
