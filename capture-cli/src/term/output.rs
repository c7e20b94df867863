//! Facts on stdout.

use super::text::{escaped, escaped_json};
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

/// Formats a serializable value as indented JSON, with a line end. Characters that would control a
/// terminal are escaped.
pub fn json(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|e| Failure::failed(format!("JSON: {e}")))?;
    Ok(escaped_json(&text) + "\n")
}

/// Prints a serializable value on stdout as JSON on one line.
pub fn print_json_line(value: &impl Serialize) -> Result<(), Failure> {
    to_stdout(|out| {
        serde_json::to_writer(EscapedJson(&mut *out), value)?;
        out.write_all(b"\n")
    })
}

/// Writes a value as [`json`] formats it, without holding the whole text in memory.
pub fn write_json(mut out: impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(EscapedJson(&mut out), value)?;
    out.write_all(b"\n")
}

/// Writer that escapes JSON with [`escaped_json`]. Each piece that it receives has whole characters:
/// serde divides texts only at ASCII characters.
struct EscapedJson<W>(W);

impl<W: Write> Write for EscapedJson<W> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(piece);
        self.0.write_all(escaped_json(&text).as_bytes())?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Prints a serializable value on stdout as JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    to_stdout(|out| write_json(out, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_holds_nothing_that_a_terminal_obeys() {
        let value = ["a\u{9b}31m\u{202e}", "\u{7f}\n", "größe \"q\""];
        let shown = "[\n  \"a\\u009b31m\\u202e\",\n  \"\\u007f\\n\",\n  \"größe \\\"q\\\"\"\n]\n";
        assert_eq!(json(&value).unwrap_or_default(), shown);
        let mut written = Vec::new();
        write_json(&mut written, &value).unwrap();
        assert_eq!(String::from_utf8_lossy(&written), shown);
        let read: Vec<String> = serde_json::from_slice(&written).unwrap();
        assert_eq!(read, value);
    }
}
