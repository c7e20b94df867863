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
    net::Shutdown,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileTypeExt, MetadataExt},
            net::UnixStream,
        },
    },
    path::Path,
    time::Duration,
};

/// Byte that ends a complete summary in the pipe to the helper process `wqcap outside`. JSON never
/// contains it.
const WHOLE: u8 = 0;

/// Maximum time for which the helper process may take no bytes of the summary, and for which it may
/// write the summary. A stopped helper process delays the end of a run by at most this time.
const PATIENCE: Duration = Duration::from_secs(5);

/// Helper process that writes the summary and removes the control socket outside the capture's
/// sandbox.
pub struct Outside {
    /// Socket that carries the summary to the helper process and returns its errors.
    socket: UnixStream,
}

impl Outside {
    /// Starts this program as the helper process `wqcap outside`. The control socket must exist
    /// already.
    pub fn start(summary: Option<&Path>, socket: Option<&Path>) -> Result<Self, Failure> {
        let refused = |e: io::Error| {
            let message = format!(
                "cannot start the process that writes the summary and removes the control socket: {e}"
            );
            Failure::of_setup(message, &e)
        };
        let mut command = own_command("outside").map_err(refused)?;
        for (option, path) in [("--summary", summary), ("--socket", socket)] {
            if let Some(path) = path {
                command.arg(option).arg(path);
            }
        }
        command.env_remove("LD_PRELOAD");
        let (socket, theirs) = UnixStream::pair().map_err(refused)?;
        let twin = theirs.try_clone().map_err(refused)?;
        command.stdin(OwnedFd::from(twin));
        command
            .stdout(OwnedFd::from(theirs))
            .spawn()
            .map_err(refused)?;
        Ok(Self { socket })
    }

    /// Sends `summary`, if it is given, to the helper process. Waits for a limited time until the
    /// summary is written and the control socket is removed.
    pub fn finish(self, summary: Option<&impl Serialize>) -> Result<(), Failure> {
        let report = self.exchange(summary).map_err(|e| {
            let left = match summary {
                Some(_) => "the summary is not written",
                None => "the control socket is left",
            };
            Failure::failed(format!(
                "{left}: wqcap's process outside of the sandbox, which does this, has ended or does not respond: {e}"
            ))
        })?;
        match report.trim() {
            "" => Ok(()),
            problem => Err(Failure::failed(problem)),
        }
    }

    fn exchange(mut self, summary: Option<&impl Serialize>) -> io::Result<String> {
        self.socket.set_write_timeout(Some(PATIENCE))?;
        self.socket.set_read_timeout(Some(PATIENCE))?;
        if let Some(summary) = summary {
            let mut orders = BufWriter::new(&mut self.socket);
            output::write_json(&mut orders, summary)?;
            orders.write_all(&[WHOLE])?;
            orders.flush()?;
        }
        self.socket.shutdown(Shutdown::Write)?;
        let mut report = String::new();
        self.socket.read_to_string(&mut report)?;
        Ok(report)
    }
}

/// Writes the summary that arrives from `orders` in pieces to the file `path`. An incomplete
/// summary, which means that the capture has died, leaves the file as it was.
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

/// Runs the helper process `wqcap outside`: waits for the summary or the end of the capture, then
/// writes the summary and removes the control socket.
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
