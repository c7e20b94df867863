//! The end of a command after a signal, whatever the command waits for: a reader of stdout or
//! stderr, a disk, a helper process or a store.
//!
//! A signal requests the end of the command. The guard thread waits for the end for a limited time,
//! reports the last progress, and then ends the process.
//!
//! Invariant: the guard never waits without a time limit, and takes no lock that the command holds.

use crate::term::{
    message::{self, MessageKind},
    progress, stderr,
};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    low_level::{self, emulate_default_handler},
};
use std::{
    fmt,
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

/// Exit status of a command that did not end in time after a signal.
const NOT_IN_TIME: i32 = 1;
/// Time limit for writing the last lines of a command that the guard thread ends.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Time that a service manager gets in addition to each further period of a command that writes.
const MARGIN: Duration = Duration::from_secs(5);

/// Number of written bytes above which a command counts as making progress; log lines are fewer.
const PROGRESS: u64 = 1 << 20;

/// Time limits for the end of a command after a signal.
#[derive(Clone, Copy, Debug)]
pub struct EndLimits {
    /// Maximum time from the first signal to the end of the process. With `while_writing`, it
    /// begins again as long as the process writes.
    pub orderly: Duration,
    /// `true` if the command is not ended while it writes at least [`PROGRESS`] bytes in each
    /// period of `orderly`, so that a slow disk costs time and no frames.
    pub while_writing: bool,
    /// Maximum time from the second signal to the end of the process, without the writing of the
    /// last lines.
    pub at_once: Duration,
}

impl EndLimits {
    /// Time limits for the end of commands that work on files, on an object store, or for clients.
    pub const COMMAND: Self = Self {
        orderly: Duration::from_secs(10),
        while_writing: false,
        at_once: Duration::ZERO,
    };
    /// Time limits for the end of a capture, which writes its buffers, waits for hooks, and closes
    /// its files; the unit of the service allows 30 s.
    pub const RUN: Self = Self {
        orderly: Duration::from_secs(25),
        while_writing: true,
        at_once: Duration::from_secs(3),
    };
    /// Time limits for the end of the selftest, which restores the settings of ports.
    pub const SELFTEST: Self = Self {
        orderly: Duration::from_secs(60),
        while_writing: false,
        at_once: Duration::ZERO,
    };
}

/// Handle of the guard thread, which ends a command that does not end in time after a signal.
pub struct EndGuard {
    /// Channel to the guard thread for the signals that request the end.
    marks: Sender<i32>,
}

impl EndGuard {
    /// Starts the guard thread of a command. Before the thread ends the process, it calls `report`.
    /// When the thread grants a further period to a command that writes, it calls `extend` with the
    /// time within which it does so again or ends the process.
    pub fn start(
        limits: EndLimits,
        name: fn(i32) -> String,
        report: impl Fn() + Send + 'static,
        extend: impl Fn(Duration) + Send + 'static,
    ) -> io::Result<Self> {
        let last = LastLines::start(report)?;
        let (marks, received) = mpsc::channel();
        let written = limits.while_writing.then(WrittenBytes::open).flatten();
        let builder = thread::Builder::new().name("wqcap-end".into());
        builder.spawn(move || {
            if let Some(end) = guard(&received, limits, written.as_ref(), extend) {
                end_process(end, name, &last);
            }
        })?;
        Ok(Self { marks })
    }

    /// Reports a signal that requests the end of the command to the guard thread. The second one
    /// ends the command at once.
    pub fn mark(&self, signal: i32) {
        // The guard thread ends only with the process.
        let _ = self.marks.send(signal);
    }
}

/// Loop of the guard thread: waits for signals that request the end. Returns the reason why the
/// process must be ended; `None`: the command has ended.
fn guard(
    marks: &Receiver<i32>,
    limits: EndLimits,
    written: Option<&WrittenBytes>,
    extend: impl Fn(Duration),
) -> Option<ForcedEnd> {
    let first = marks.recv().ok()?;
    let written = || written.map_or(0, WrittenBytes::count);
    let mut before = written();
    loop {
        match marks.recv_timeout(limits.orderly) {
            Ok(second) => {
                thread::sleep(limits.at_once);
                return Some(ForcedEnd::AtOnce(second));
            }
            Err(RecvTimeoutError::Timeout) => {
                let now = written();
                if now < before.saturating_add(PROGRESS) {
                    return Some(ForcedEnd::NotInTime(first, limits.orderly));
                }
                before = now;
                extend(limits.orderly + MARGIN);
            }
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// Writes the last lines of the command, and ends the process.
fn end_process(end: ForcedEnd, name: fn(i32) -> String, last: &LastLines) {
    last.write(end.line(name));
    if let ForcedEnd::AtOnce(signal) = end {
        // A shell sees the signal. The default action of SIGQUIT would write all buffers to a core
        // file.
        let signal = if signal == SIGTERM { SIGTERM } else { SIGINT };
        // This fails for signals that the system does not have.
        let _ = emulate_default_handler(signal);
    }
    low_level::exit(NOT_IN_TIME);
}

/// Counter of the bytes that the process has written, which the kernel maintains. Its file is
/// opened before a sandbox denies it.
struct WrittenBytes(File);

impl WrittenBytes {
    /// Opens the kernel's counters of written bytes; `None`: the kernel has none.
    #[expect(clippy::disallowed_methods, reason = "a file of /proc")]
    fn open() -> Option<Self> {
        File::open("/proc/self/io").ok().map(Self)
    }

    /// Returns the sum of the bytes passed to write calls and of those sent to disks
    /// (proc_pid_io(5)). Some writes count in both, and some only in one of them.
    fn count(&self) -> u64 {
        let mut text = [0; 512];
        let len = self.0.read_at(&mut text, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..len]);
        let value = |name| {
            let mut lines = text.lines();
            lines.find_map(|it| it.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        let counts = ["wchar:", "write_bytes:"].map(value);
        counts.into_iter().flatten().sum()
    }
}

/// Reason why the guard thread ends the process.
#[derive(Clone, Copy, Debug)]
enum ForcedEnd {
    /// A second signal with this number requested the end at once.
    AtOnce(i32),
    /// The command did not end within this time after the signal with this number.
    NotInTime(i32, Duration),
}

impl ForcedEnd {
    /// Formats the last line of the ended command, with its last progress line if there is one.
    fn line(self, name: fn(i32) -> String) -> String {
        let last = progress::last();
        let last: &dyn fmt::Display = match &last {
            Some(text) => &text.trim(),
            None => &"none",
        };
        match self {
            Self::AtOnce(signal) => format!(
                "{} came again, so the command ends at once; its output is incomplete; last progress: {last}",
                name(signal)
            ),
            Self::NotInTime(signal, limit) => format!(
                "the command did not end within {} s after {}, so it is ended now; its output is incomplete; last progress: {last}",
                limit.as_secs(),
                name(signal)
            ),
        }
    }
}

/// Thread that writes the last lines of a command, because a write to stderr or a lock of the
/// command may block. It is started with the command, because a thread may not be available later.
struct LastLines {
    /// Channel to the thread for the line to write.
    line: Sender<String>,
    /// Channel that receives a message when the line is written.
    written: Receiver<()>,
}

impl LastLines {
    fn start(report: impl Fn() + Send + 'static) -> io::Result<Self> {
        let (line, lines) = mpsc::channel::<String>();
        let (done, written) = mpsc::channel();
        let work = move || {
            for line in lines {
                let line = message::line(MessageKind::Error, &line);
                stderr::write_last(line.as_bytes(), LAST_LINES / 2);
                report();
                stderr::flush(LAST_LINES / 2);
                let _ = done.send(());
            }
        };
        let builder = thread::Builder::new().name("wqcap-last".into());
        builder.spawn(work)?;
        Ok(Self { line, written })
    }

    /// Writes the last line and the report of the command. Waits at most [`LAST_LINES`].
    fn write(&self, line: String) {
        let _ = self.line.send(line);
        let _ = self.written.recv_timeout(LAST_LINES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_the_process_writes_are_counted() {
        let written = WrittenBytes::open().expect("the kernel counts");
        let before = written.count();
        std::fs::write("/dev/null", vec![0; PROGRESS as usize]).expect("written");
        assert!(written.count() >= before + PROGRESS);
    }

    #[test]
    fn a_command_that_writes_gets_further_periods() {
        let limits = EndLimits {
            orderly: Duration::from_secs(1),
            ..EndLimits::RUN
        };
        let (marks, received) = mpsc::channel();
        let (extended, extensions) = mpsc::channel();
        let written = WrittenBytes::open().expect("the kernel counts");
        let guarding = thread::spawn(move || {
            guard(&received, limits, Some(&written), |time| {
                let _ = extended.send(time);
            })
        });
        marks.send(SIGTERM).expect("the guard waits");
        let extension = loop {
            std::fs::write("/dev/null", vec![0; PROGRESS as usize]).expect("written");
            if let Ok(it) = extensions.try_recv() {
                break it;
            }
        };
        assert_eq!(extension, limits.orderly + MARGIN);
        let end = guarding.join().expect("no panic");
        assert!(matches!(end, Some(ForcedEnd::NotInTime(SIGTERM, _))));
        drop(marks);
    }
}
