//! Progress lines. For a capture: the rates of the last second, and the losses since the start. For
//! reading files: the part that has been read.

use crate::term::{
    message, stderr,
    table::{rate, scaled, thousands},
    terminal,
};
use std::{
    fmt::Write,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use wqcap_engine::{
    capture::Snapshot,
    stats::{LOSSES, QueueLedger, outage::Cause},
};
use wqcap_supervisor::Interval;

/// Interval at which a progress line is redrawn.
const EVERY: Duration = Duration::from_secs(1);

/// Latest progress text of the command, drawn or not; empty before the first one.
static LAST: Mutex<String> = Mutex::new(String::new());

/// Returns the latest progress text of the command, drawn or not; `None`: there was none.
pub fn last() -> Option<String> {
    let last = LAST.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Some(last).filter(|it| !it.is_empty())
}

/// Progress line on stderr, which is drawn only on a terminal.
#[derive(Clone, Copy)]
pub struct ProgressLine {
    /// `true` if the progress line is to be drawn.
    shown: bool,
}

impl ProgressLine {
    /// Creates a progress line. Nothing is drawn with `quiet`, in JSON, or if stderr is not a
    /// terminal.
    pub fn new(quiet: bool) -> Self {
        Self {
            shown: !quiet && !message::is_json() && terminal::is_terminal(),
        }
    }

    /// Draws the progress line of a capture: the rates and losses of an interval.
    pub fn draw_interval(self, interval: &Interval) {
        if let Some(before) = interval.before().filter(|_| self.shown) {
            self.draw(&line(before, interval.now(), terminal::columns()));
        }
    }

    /// Rewrites the progress line, cut to the terminal's width. [`last`] then returns its text.
    pub fn draw(self, text: &str) {
        text.clone_into(&mut LAST.lock().unwrap_or_else(PoisonError::into_inner));
        if self.shown {
            stderr::redraw(text);
        }
    }

    /// Erases the progress line from the terminal.
    pub fn clear(self) {
        if self.shown {
            terminal::clear_progress();
        }
    }
}

/// Progress line of a command that reads files, redrawn each second on a terminal.
pub struct ReadProgress {
    /// Total length in bytes of the files to read; 0 if unknown.
    total: u64,
    /// Number of bytes of the input files that have been read completely.
    before: u64,
    /// Time at which the command started to read the files.
    started: Instant,
    /// Time at which the progress line is updated next.
    next: Instant,
    /// Progress line on which the reading of files is drawn.
    line: ProgressLine,
}

impl ReadProgress {
    /// Creates a progress line for reading `files`. Nothing is drawn with `quiet`, or if stderr is
    /// not a terminal.
    pub fn new(quiet: bool, files: &[PathBuf]) -> Self {
        let sizes = files.iter().map(|path| {
            std::fs::metadata(path)
                .ok()
                .filter(std::fs::Metadata::is_file)
                .map(|m| m.len())
        });
        Self::with_size(quiet, sizes.sum::<Option<u64>>().unwrap_or(0))
    }

    /// Creates a progress line for reading `total` bytes of files; 0 if unknown.
    pub fn with_size(quiet: bool, total: u64) -> Self {
        let now = Instant::now();
        Self {
            total,
            before: 0,
            started: now,
            next: now + EVERY,
            line: ProgressLine::new(quiet),
        }
    }

    /// Draws the progress line of reading files if a second has passed. `offset` is the number of
    /// bytes of the file `what` that have been read.
    pub fn tick(&mut self, what: &Path, offset: u64) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + EVERY;
        let time = now.saturating_duration_since(self.started);
        let name = what.file_name().unwrap_or_default().to_string_lossy();
        let text = share(self.before + offset, self.total, time, &name);
        self.line.draw(&text);
    }

    /// Counts an input file of `bytes` bytes as read completely.
    pub fn done(&mut self, bytes: u64) {
        self.before += bytes;
    }

    /// Erases the progress line of reading files from the terminal.
    pub fn clear(&self) {
        self.line.clear();
    }
}

/// Formats the progress line of reading files: `0:12   43 %  512 MB/s  name`.
fn share(read: u64, of: u64, time: Duration, name: &str) -> String {
    let part = match of {
        0 => String::new(),
        of => format!("  {:.0} %", read.min(of) as f64 * 100.0 / of as f64),
    };
    format!(
        "{}{part}  {}B/s  {name}",
        clock(time),
        scaled(rate(read, time))
    )
}

/// Formats the progress line of a capture: rates, then losses, then the rate of each queue, as many
/// of these as fit into `columns`.
pub fn line(before: &Snapshot, now: &Snapshot, columns: usize) -> String {
    let (was, is) = (
        QueueLedger::total(&before.queues),
        QueueLedger::total(&now.queues),
    );
    let time = now.elapsed.saturating_sub(before.elapsed);
    let mut text = format!(
        "{}  {}frames/s  {}bit/s  {}",
        clock(now.elapsed),
        scaled(rate(is.received.saturating_sub(was.received), time)),
        scaled(rate(is.bytes.saturating_sub(was.bytes), time) * 8.0),
        losses(&is, now)
    );
    let mut queues = now.queues.iter().zip(&before.queues).peekable();
    if now.queues.len() > 1 {
        text.push(' ');
        while let Some((is, was)) = queues.next() {
            let rate = scaled(rate(is.received.saturating_sub(was.received), time));
            let cell = format!(" q{} {}", is.queue, rate.trim_end().replace(' ', ""));
            // Room for " ..." is reserved, except for the last queue.
            let room = if queues.peek().is_some() { 4 } else { 0 };
            if text.len() + cell.len() + room >= columns {
                text.push_str(" ...");
                break;
            }
            text.push_str(&cell);
        }
    }
    text
}

/// Formats the numbers of lost frames by cause, in wqcap and in the NIC.
fn losses(total: &QueueLedger, now: &Snapshot) -> String {
    let here = LOSSES.iter().map(|name| (*name, total.line(name)));
    let nic = now.nic.iter();
    let nic = nic.filter_map(|(name, counter)| Some((name.as_str(), counter.value()?)));
    let mut text = String::new();
    if now.outages.lasting().any(|it| it.cause == Cause::PortDown) {
        text.push_str("port down, ");
    }
    let before = text.len();
    for (name, n) in here.chain(nic).filter(|(_, n)| *n > 0) {
        let separator = if text.len() == before { "lost: " } else { ", " };
        let _ = write!(text, "{separator}{name} {}", thousands(n));
    }
    if text.len() == before {
        text.push_str("none lost");
    }
    text
}

/// Formats a duration as hours, minutes and seconds: `1:02:03`, `2:03`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if h > 0 {
        format!("{h}:{m:02}:{s:02}")
    } else {
        format!("{m}:{s:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wqcap_engine::stats::{Counter, Unreadable, outage::Outages};

    fn snapshot(seconds: u64, frames: u64) -> Snapshot {
        let queue = |queue| QueueLedger {
            queue,
            received: frames,
            captured: frames,
            bytes: frames * 125,
            ..QueueLedger::default()
        };
        Snapshot {
            elapsed: Duration::from_secs(seconds),
            queues: (0..4).map(queue).collect(),
            ports: Vec::new(),
            rings: Vec::new(),
            nic: [
                ("out_of_buffer".to_owned(), Counter::Value(0)),
                (
                    "rx_discards_phy".to_owned(),
                    Counter::Unreadable(Unreadable::Unreadable),
                ),
            ]
            .into(),
            outages: Outages::default(),
        }
    }

    #[test]
    fn rates_are_of_the_last_interval() {
        let text = line(&snapshot(1, 1000), &snapshot(62, 62_000), 200);
        assert_eq!(
            text,
            "1:02  4.00 kframes/s  4.00 Mbit/s  none lost  q0 1.00k q1 1.00k q2 1.00k q3 1.00k"
        );
    }

    #[test]
    fn every_cause_of_loss_is_named() {
        let mut now = snapshot(3, 3000);
        now.queues[0].dropped_storage = 1200;
        now.nic.insert("out_of_buffer".into(), Counter::Value(7));
        let text = line(&snapshot(2, 2000), &now, 200);
        assert!(
            text.contains("  lost: dropped_storage 1,200, out_of_buffer 7  q0"),
            "{text}"
        );
    }

    #[test]
    fn a_port_that_is_down_is_named_first() {
        let mut now = snapshot(3, 3000);
        now.outages.begin(Cause::PortDown, 1);
        let text = line(&snapshot(2, 2000), &now, 200);
        assert!(text.contains("  port down, none lost  q0"), "{text}");
    }

    #[test]
    fn queues_that_do_not_fit_are_left_out() {
        let text = line(&snapshot(1, 0), &snapshot(2, 1000), 68);
        assert!(text.len() < 68 && text.ends_with("q1 1.00k ..."), "{text}");
    }

    #[test]
    fn reading_shows_its_part_if_the_size_is_known() {
        let time = Duration::from_secs(2);
        assert_eq!(
            share(5_000_000, 10_000_000, time, "a.pcap"),
            "0:02  50 %  2.50 MB/s  a.pcap"
        );
        assert_eq!(share(10, 0, time, "-"), "0:02  5 B/s  -");
    }

    #[test]
    fn hours_are_shown_if_not_zero() {
        let texts = [0, 59, 60, 3723].map(|s| clock(Duration::from_secs(s)));
        assert_eq!(texts, ["0:00", "0:59", "1:00", "1:02:03"]);
    }
}
