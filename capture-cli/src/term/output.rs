//! Facts on stdout.

use super::text::escaped;
use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use std::io::{self, BufWriter, ErrorKind, Write};

/// Writes the output of `write` to stdout. A closed pipe (`| head`) is not a failure.
fn to_stdout(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut stdout = BufWriter::new(io::stdout().lock());
    match write(&mut stdout).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::failed(format!("stdout: {e}"))),
        _ => Ok(()),
    }
}

/// Prints lines of text on stdout. Characters that would control a terminal are escaped.
pub fn print(text: &str) -> Result<(), Failure> {
    to_stdout(|out| out.write_all(&escaped(text.as_bytes())))
}

/// Returns `true` if the other end of a pipe is closed, or if the terminal is gone.
pub fn is_gone(output: &impl std::os::fd::AsFd) -> bool {
    let mut fds = [PollFd::new(output, PollFlags::empty())];
    let polled = poll(&mut fds, Some(&Timespec::default()));
    polled.is_ok() && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Formats a serializable value as indented JSON, with a line end.
pub fn json(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value);
    Ok(text.map_err(|e| Failure::failed(format!("JSON: {e}")))? + "\n")
}

/// Writes a value as [`json`] formats it, without holding the whole text in memory.
pub fn write_json(mut out: impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut out, value)?;
    out.write_all(b"\n")
}

/// Prints a serializable value on stdout as JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    to_stdout(|out| write_json(out, value))
}
