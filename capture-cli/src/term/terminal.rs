//! Lines on stderr, and one progress line that is rewritten in place.
//!
//! Invariant: the progress line is erased before anything else is written, so that lines never run
//! into each other. A capture does not fail if stderr cannot be written.

pub use super::painter::columns;
use super::{
    message::{self, MessageKind},
    stderr::{self, TextKind},
};
use std::{
    fmt,
    io::{self, IsTerminal},
};

/// Writes an answer of one line to stderr. Line ends in it are escaped.
pub fn print_line(line: fmt::Arguments<'_>) {
    print(MessageKind::Answer, line);
}

/// Writes a note of one line to stderr. Line ends in it are escaped.
pub fn print_note(note: fmt::Arguments<'_>) {
    print(MessageKind::Note, note);
}

/// Writes a message of one line and of the kind `kind` to stderr. Line ends in it are escaped.
pub fn print(kind: MessageKind, line: fmt::Arguments<'_>) {
    write(&message::line(kind, &line.to_string()));
}

/// Writes an error message of one or several lines to stderr, with its later lines indented.
pub fn print_error(text: &str) {
    write(&message::block(MessageKind::Error, text));
}

/// Writes an answer of several lines to stderr; writes nothing if it is empty.
pub fn print_block(text: &str) {
    if !text.is_empty() {
        write(&message::block(MessageKind::Answer, text));
    }
}

/// Erases the progress line from the terminal.
pub fn clear_progress() {
    write("");
}

/// Writes whole lines of ordinary kind to stderr.
fn write(lines: &str) {
    stderr::write_lines(TextKind::Ordinary, lines.as_bytes());
}

/// Returns `true` if stderr is a terminal on which a line can be rewritten.
pub fn is_terminal() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Number of columns of a status line that is not drawn on a terminal.
pub const WIDE: usize = 400;

/// Returns the width of stdout in columns; `None`: stdout is not a terminal.
pub fn stdout_columns() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0))
}

/// Returns `true` if the locale's characters are UTF-8, according to the environment variables of
/// the locale.
pub fn is_utf8() -> bool {
    let value = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|value| !value.is_empty());
    value.is_some_and(|value| {
        let value = value.to_ascii_lowercase();
        value.contains("utf-8") || value.contains("utf8")
    })
}
