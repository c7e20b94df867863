//! Hooks in a process of their own, so that a capture may give up the right to start programs.
//!
//! The capture sends paths down a pipe, each with a NUL behind it; an empty one says that the run is over. Then the
//! report comes back, a line of JSON, and the next run may begin. When the pipe closes, the process ends.

use super::{HookReport, Hooks};
use crate::Error;
use crossbeam_channel::Receiver;
use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, PoisonError},
};

/// The capture's end of a process that runs [`serve_hooks`].
#[derive(Debug)]
pub struct HookProcess(Mutex<Ends>);

#[derive(Debug)]
struct Ends {
    /// `None`: closed, so that the process ends.
    orders: Option<ChildStdin>,
    reports: BufReader<ChildStdout>,
    child: Child,
}

impl HookProcess {
    /// Starts `command`, which must lead to [`serve_hooks`] with its standard input and output.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(orders), Some(reports)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Self(Mutex::new(Ends {
            orders: Some(orders),
            reports: BufReader::new(reports),
            child,
        })))
    }

    /// Has the hook run for each file until there are no more, and says how that went.
    pub(super) fn run(&self, files: &Receiver<PathBuf>) -> HookReport {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut sent, mut unsent) = (0, 0);
        for file in files {
            match ends.send(file.as_os_str().as_bytes()) {
                Ok(()) => sent += 1,
                Err(_) => unsent += 1,
            }
        }
        match ends.send(b"").and_then(|()| ends.report()) {
            Ok(mut report) => {
                report.not_run += unsent;
                report
            }
            Err(e) => {
                tracing::warn!("output.hook: the process that runs hooks is gone: {e}");
                HookReport {
                    not_run: sent + unsent,
                    ..HookReport::default()
                }
            }
        }
    }
}

impl Ends {
    fn send(&mut self, path: &[u8]) -> io::Result<()> {
        let orders = self.orders.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut message = path.to_vec();
        message.push(0);
        orders.write_all(&message)
    }

    fn report(&mut self) -> io::Result<HookReport> {
        let mut line = String::new();
        self.reports.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.child.wait();
    }
}

/// Runs `program` for each path that `orders` brings, and tells `reports` of each run's end; until `orders` end.
///
/// # Errors
/// A pipe failed, or a thread could not be started.
pub fn serve_hooks(
    program: &Path,
    mut orders: impl BufRead,
    mut reports: impl Write,
) -> Result<(), Error> {
    let failed = |source| Error::System {
        what: "the pipe to the capture".into(),
        source,
    };
    let mut run: Option<Hooks> = None;
    loop {
        let mut path = Vec::new();
        let ended = orders.read_until(0, &mut path).map_err(failed)? == 0;
        path.pop();
        if !ended && !path.is_empty() {
            let (_, files) = match &mut run {
                Some(run) => run,
                none => none.insert(super::start(program, None)?),
            };
            // Its thread outlives this sender.
            let _ = files.send(PathBuf::from(std::ffi::OsString::from_vec(path)));
            continue;
        }
        let report = match run.take() {
            None => HookReport::default(),
            Some((hooks, files)) => {
                drop(files);
                hooks.join().unwrap_or_default()
            }
        };
        if ended {
            return Ok(());
        }
        let mut line = serde_json::to_string(&report).unwrap_or_default();
        line.push('\n');
        reports.write_all(line.as_bytes()).map_err(failed)?;
        reports.flush().map_err(failed)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_its_own_report() {
        let mut reports = Vec::new();
        serve_hooks(
            Path::new("/bin/true"),
            &b"a\0b c\0\0\0d\0\0"[..],
            &mut reports,
        )
        .expect("served");
        let text = String::from_utf8(reports).expect("text");
        let succeeded: Vec<_> = text
            .lines()
            .map(|line| serde_json::from_str::<HookReport>(line).expect("a report"))
            .map(|it| (it.succeeded, it.failed, it.not_run))
            .collect();
        assert_eq!(succeeded, [(2, 0, 0), (0, 0, 0), (1, 0, 0)]);
    }

    #[test]
    fn without_the_process_nothing_is_run_and_that_is_told() {
        let process = HookProcess::start(Command::new("/bin/true")).expect("started");
        // It has ended, and closed its end of both pipes.
        let _ = process.0.lock().expect("own").child.wait();
        let (sender, files) = crossbeam_channel::unbounded();
        for file in ["a", "b"] {
            sender.send(PathBuf::from(file)).expect("taken");
        }
        drop(sender);
        assert_eq!(process.run(&files).not_run, 2);
    }
}
