//! Everything that goes to stderr: lines, and one progress line that is rewritten in place.
//!
//! Invariant: a progress line is gone before anything else is written, so that lines never run into each other.
//! A stderr that cannot be written to is not worth a failed capture.

use super::stderr::{self, Kind};
use std::{
    fmt,
    io::{self, IsTerminal},
};

/// Writes one line.
pub fn say(line: fmt::Arguments<'_>) {
    write_lines(format!("{line}\n").as_bytes());
}

/// Writes whole lines.
pub fn write_lines(text: &[u8]) {
    stderr::write_lines(Kind::Ordinary, text);
}

/// Rewrites the progress line, cut to the terminal's width.
pub fn redraw(text: &str) {
    stderr::redraw(text);
}

/// Takes the progress line away.
pub fn clear() {
    write_lines(b"");
}

/// Writes lines, and a progress line below them.
#[derive(Default)]
pub struct Painter {
    /// Columns that the progress line takes now; 0: there is none.
    drawn: usize,
}

impl Painter {
    /// A painter without a progress line.
    pub const fn new() -> Self {
        Self { drawn: 0 }
    }

    /// Erases the progress line and writes whole lines.
    pub fn lines(&mut self, text: &[u8]) {
        stderr::write_all(&[erase(self.drawn).as_bytes(), text].concat());
        self.drawn = 0;
    }

    /// Rewrites the progress line, cut to the terminal's width.
    pub fn progress(&mut self, text: &str) {
        // The last column stays free: writing there makes some terminals wrap.
        let most = columns().saturating_sub(1);
        let text: String = text.chars().take(most).collect();
        let length = text.chars().count();
        // Of a terminal made narrower the old line has wrapped: at least do not wrap again.
        let rest = " ".repeat(self.drawn.min(most).saturating_sub(length));
        stderr::write_all(format!("\r{text}{rest}").as_bytes());
        self.drawn = length;
    }
}

/// Whether stderr is a terminal on which a line can be rewritten.
pub fn is_terminal() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// A line that nobody's terminal has to hold.
pub const WIDE: usize = 400;

/// The terminal's width now; it may change at any time.
pub fn columns() -> usize {
    terminal_size::terminal_size_of(io::stderr()).map_or(80, |(width, _)| usize::from(width.0))
}

/// The width of stdout, if that is a terminal.
pub fn stdout_columns() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0))
}

/// Whether the locale's characters are UTF-8, by the variables that decide it.
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

fn erase(columns_drawn: usize) -> String {
    if columns_drawn == 0 {
        return String::new();
    }
    format!(
        "\r{}\r",
        " ".repeat(columns_drawn.min(columns().saturating_sub(1)))
    )
}
