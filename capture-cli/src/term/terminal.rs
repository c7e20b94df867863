//! Everything that goes to stderr: lines, and one progress line that is rewritten in place.
//!
//! Invariant: a progress line is gone before anything else is written, so that lines never run into each other.
//! A stderr that cannot be written to is not worth a failed capture.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    sync::{Mutex, PoisonError},
};

/// Columns that the progress line takes now; 0: there is none.
static DRAWN: Mutex<usize> = Mutex::new(0);

/// Writes one line.
pub fn say(line: fmt::Arguments<'_>) {
    write_lines(format!("{line}\n").as_bytes());
}

/// Writes whole lines.
pub fn write_lines(text: &[u8]) {
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(erase(*drawn).as_bytes());
    let _ = stderr.write_all(text);
    let _ = stderr.flush();
    *drawn = 0;
}

/// Rewrites the progress line, cut to the terminal's width.
pub fn redraw(text: &str) {
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    // The last column stays free: writing there makes some terminals wrap.
    let most = columns().saturating_sub(1);
    let text: String = text.chars().take(most).collect();
    let length = text.chars().count();
    // Of a terminal made narrower the old line has wrapped: at least do not wrap again.
    let rest = " ".repeat(drawn.min(most).saturating_sub(length));
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "\r{text}{rest}");
    let _ = stderr.flush();
    *drawn = length;
}

/// Takes the progress line away.
pub fn clear() {
    write_lines(b"");
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
