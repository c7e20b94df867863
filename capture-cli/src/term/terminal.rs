//! Lines on stderr, and one progress line that is rewritten in place.
//!
//! Invariant: the progress line is erased before anything else is written, so that lines never run
//! into each other. A capture does not fail if stderr cannot be written.

use super::stderr::{self, TextKind};
use std::{
    fmt,
    io::{self, IsTerminal},
};

/// Writes one line to stderr.
pub fn print_line(line: fmt::Arguments<'_>) {
    write_lines(format!("{line}\n").as_bytes());
}

/// Writes whole lines to stderr.
pub fn write_lines(text: &[u8]) {
    stderr::write_lines(TextKind::Ordinary, text);
}

/// Rewrites the progress line on stderr, cut to the terminal's width.
pub fn redraw(text: &str) {
    stderr::redraw(text);
}

/// Erases the progress line on stderr.
pub fn clear() {
    write_lines(b"");
}

/// Painter of stderr lines, and of a progress line below them.
#[derive(Default)]
pub struct Painter {
    /// Number of columns of the drawn progress line; 0 if there is none.
    drawn: usize,
}

impl Painter {
    /// Creates a painter that has drawn no progress line.
    pub const fn new() -> Self {
        Self { drawn: 0 }
    }

    /// Erases the progress line and writes whole lines to stderr.
    pub fn lines(&mut self, text: &[u8]) {
        stderr::write_all(&[erase(self.drawn).as_bytes(), text].concat());
        self.drawn = 0;
    }

    /// Rewrites the progress line on stderr, cut to the terminal's width.
    pub fn progress(&mut self, text: &str) {
        // The last column stays free, because some terminals wrap after writing there.
        let most = columns().saturating_sub(1);
        let text: String = text.chars().take(most).collect();
        let length = text.chars().count();
        // If the terminal became narrower, the old line has wrapped. Limiting the blanks avoids a
        // second wrap.
        let rest = " ".repeat(self.drawn.min(most).saturating_sub(length));
        stderr::write_all(format!("\r{text}{rest}").as_bytes());
        self.drawn = length;
    }
}

/// Returns `true` if stderr is a terminal on which a line can be rewritten.
pub fn is_terminal() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Width in columns of a status line that is not for a terminal.
pub const WIDE: usize = 400;

/// Returns the current width of the terminal, or 80 if stderr is not a terminal.
pub fn columns() -> usize {
    terminal_size::terminal_size_of(io::stderr()).map_or(80, |(width, _)| usize::from(width.0))
}

/// Returns the width of stdout if it is a terminal.
pub fn stdout_columns() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0))
}

/// Returns `true` if the locale's characters are UTF-8, according to the environment variables that
/// set it.
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

/// Returns the characters that erase a progress line of this width.
fn erase(columns_drawn: usize) -> String {
    if columns_drawn == 0 {
        return String::new();
    }
    format!(
        "\r{}\r",
        " ".repeat(columns_drawn.min(columns().saturating_sub(1)))
    )
}
