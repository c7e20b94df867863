//! The process that does for a capture, at its end, what the sandbox keeps it from: it replaces the file of `--summary`
//! and removes the control socket. Landlock has no rights on a folder without those below it.
//!
//! All that a capture can ask of it is what the named file is to hold.

use super::{drop_capture_rights, own_command};
use crate::{args::OutsideArgs, cmd::summary::SummaryFile, daemon::signals, failure::Failure};
use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
    process::{ChildStdin, ChildStdout, Stdio},
};

/// The capture's end.
pub struct Outside {
    orders: ChildStdin,
    report: ChildStdout,
}

impl Outside {
    /// Starts this program as `wqcap outside`; the socket is there already.
    pub fn start(summary: Option<&Path>, socket: Option<&Path>) -> Result<Self, Failure> {
        let refused = |e: io::Error| {
            Failure::refused(format!(
                "cannot start the process that writes the summary and removes the control socket: {e}"
            ))
        };
        let mut command = own_command("outside").map_err(refused)?;
        for (option, path) in [("--summary", summary), ("--socket", socket)] {
            if let Some(path) = path {
                command.arg(option).arg(path);
            }
        }
        command.env_remove("LD_PRELOAD");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(refused)?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(orders), Some(report)) => Ok(Self { orders, report }),
            _ => Err(refused(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Has `summary` written, if that is not empty, and the socket removed.
    pub fn finish(mut self, summary: &str) -> Result<(), Failure> {
        let failed = |e: io::Error| {
            Failure::failed(format!("the process that writes the summary is gone: {e}"))
        };
        self.orders.write_all(summary.as_bytes()).map_err(failed)?;
        drop(self.orders);
        let mut report = String::new();
        self.report.read_to_string(&mut report).map_err(failed)?;
        match report.trim() {
            "" => Ok(()),
            problem => Err(Failure::failed(problem)),
        }
    }
}

/// `wqcap outside`: waits for the summary, or the end of the capture.
pub fn serve(args: &OutsideArgs) -> Result<(), Failure> {
    let failed = |e: String| Failure::failed(format!("wqcap outside: {e}"));
    drop_capture_rights().map_err(|e| failed(e.to_string()))?;
    signals::leave_to_the_capture().map_err(|e| failed(e.to_string()))?;
    let socket = || {
        let found = fs::symlink_metadata(args.socket.as_ref()?).ok()?;
        let is_socket = found.file_type().is_socket();
        is_socket.then(|| (found.dev(), found.ino()))
    };
    let own = socket();
    let mut summary = String::new();
    let read = io::stdin().read_to_string(&mut summary);
    let written = match &args.summary {
        // Half of one is none.
        Some(path) if read.is_ok() && !summary.is_empty() => {
            SummaryFile::new(path).and_then(|file| file.write(&summary))
        }
        _ => Ok(()),
    };
    if let Some(path) = args
        .socket
        .as_ref()
        .filter(|_| own.is_some() && own == socket())
    {
        // As after `kill -9`: the next capture removes one that nobody serves.
        let _ = fs::remove_file(path);
    }
    if let Err(problem) = written {
        let _ = writeln!(io::stdout(), "{}", problem.messages.join("; "));
    }
    Ok(())
}
