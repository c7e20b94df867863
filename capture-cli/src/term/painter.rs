//! Painting of stderr: whole lines, and a progress line below them.

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use std::io;

/// Painter of stderr lines, and of a progress line below them.
#[derive(Default)]
pub struct Painter {
    /// Number of columns of the drawn progress line; 0 if no line is drawn.
    drawn: usize,
}

impl Painter {
    /// Creates a painter that has drawn no progress line.
    pub const fn new() -> Self {
        Self { drawn: 0 }
    }

    /// Erases the progress line and writes whole lines to stderr.
    pub fn lines(&mut self, text: &[u8]) {
        write_all(&[erase(self.drawn).as_bytes(), text].concat());
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
        write_all(format!("\r{text}{rest}").as_bytes());
        self.drawn = length;
    }
}

/// Returns the current width of stderr's terminal in columns, or 80 if stderr is not a terminal.
pub fn columns() -> usize {
    terminal_size::terminal_size_of(io::stderr()).map_or(80, |(width, _)| usize::from(width.0))
}

/// Writes all of `text` to stderr, without a time limit. Text that cannot be written is lost,
/// because there is no other place to report it. This does not use [`io::Stderr`], whose lock could
/// block a panicking thread.
pub fn write_all(mut text: &[u8]) {
    let stderr = io::stderr();
    while !text.is_empty() {
        match rustix::io::write(&stderr, text) {
            Ok(0) => return,
            Ok(n) => text = &text[n..],
            Err(Errno::INTR) => {}
            // Another process with the same stderr may have set O_NONBLOCK.
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None);
            }
            Err(_) => return,
        }
    }
}

/// Returns the characters that erase a progress line of `columns_drawn` columns.
fn erase(columns_drawn: usize) -> String {
    if columns_drawn == 0 {
        return String::new();
    }
    format!(
        "\r{}\r",
        " ".repeat(columns_drawn.min(columns().saturating_sub(1)))
    )
}
