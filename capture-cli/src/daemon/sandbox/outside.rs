//! Process that replaces the file of `--summary` and removes the control socket at a capture's end.
//! The sandbox denies both to the capture: landlock has no right on a folder that excludes the
//! files in it.
//!
//! A capture can request only one thing from it: to write given content to the named file.

use super::{drop_capture_rights, own_command};
use crate::{
    args::OutsideArgs, cmd::summary::SummaryFile, daemon::signals, failure::Failure, term::output,
};
use serde::Serialize;
use std::{
    fmt::Display,
    fs,
    io::{self, BufRead, BufWriter, Read, Write},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
    process::{ChildStdin, ChildStdout, Stdio},
};

/// Byte after a complete summary in the pipe to `wqcap outside`. JSON never contains it.
const WHOLE: u8 = 0;

/// Helper process that finishes the capture's files outside its sandbox.
pub struct Outside {
    /// Pipe that carries the summary to the helper process.
    orders: ChildStdin,
    /// Pipe that returns the errors of the helper process.
    report: ChildStdout,
}

impl Outside {
    /// Starts this program as the helper process `wqcap outside`. The control socket must exist
    /// already.
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

    /// Sends `summary`, if there is one, to the helper process, and waits until it is written and
    /// the control socket is removed.
    pub fn finish(mut self, summary: Option<&impl Serialize>) -> Result<(), Failure> {
        let failed = |e: io::Error| {
            Failure::failed(format!(
                "cannot write the summary: the process that writes it has ended: {e}"
            ))
        };
        if let Some(summary) = summary {
            let mut orders = BufWriter::new(&mut self.orders);
            let sent = output::write_json(&mut orders, summary);
            let sent = sent.and_then(|()| orders.write_all(&[WHOLE]));
            sent.and_then(|()| orders.flush()).map_err(failed)?;
        }
        drop(self.orders);
        let mut report = String::new();
        self.report.read_to_string(&mut report).map_err(failed)?;
        match report.trim() {
            "" => Ok(()),
            problem => Err(Failure::failed(problem)),
        }
    }
}

/// Writes the summary that arrives from `orders` in pieces, and reads all of it. After an
/// incomplete summary the summary file stays as it is, because the capture has died.
fn write_summary(path: &Path, orders: &mut impl BufRead) -> Result<(), Failure> {
    let mut is_half = false;
    let copy = |out: &mut dyn Write| {
        let (mut is_whole, mut outcome) = (false, Ok(()));
        loop {
            let piece = orders.fill_buf()?;
            let taken = piece.len();
            let text = match piece {
                [] if is_whole => return outcome,
                [] => {
                    is_half = true;
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                [text @ .., WHOLE] => {
                    is_whole = true;
                    text
                }
                text => text,
            };
            outcome = outcome.and_then(|()| out.write_all(text));
            orders.consume(taken);
        }
    };
    let written = SummaryFile::new(path).and_then(|file| file.write_by(copy));
    // Reads the remaining input, so that the capture never blocks on the pipe after a failed write.
    let _ = io::copy(orders, &mut io::sink());
    if is_half { Ok(()) } else { written }
}

/// Waits for the summary or the end of the capture, then writes and removes files (`wqcap
/// outside`).
pub fn serve(args: &OutsideArgs) -> Result<(), Failure> {
    let failed = |e: &dyn Display| Failure::failed(format!("wqcap outside: {e}"));
    drop_capture_rights().map_err(|e| failed(&e))?;
    signals::ignore_in_helper().map_err(|e| failed(&e))?;
    let socket = || {
        let found = fs::symlink_metadata(args.socket.as_ref()?).ok()?;
        let is_socket = found.file_type().is_socket();
        is_socket.then(|| (found.dev(), found.ino()))
    };
    let own = socket();
    let mut orders = io::stdin().lock();
    let begins = orders.fill_buf().is_ok_and(|it| !it.is_empty());
    let written = match &args.summary {
        Some(path) if begins => write_summary(path, &mut orders),
        _ => Ok(()),
    };
    if let Some(path) = args
        .socket
        .as_ref()
        .filter(|_| own.is_some() && own == socket())
    {
        // If this fails, the next capture removes the unserved socket, as after `kill -9`.
        let _ = fs::remove_file(path);
    }
    if let Err(problem) = written {
        let _ = writeln!(io::stdout(), "{}", problem.messages.join("; "));
    }
    Ok(())
}
