//! Writes to stderr: in the calling thread, or in a long run by a separate thread, so that only
//! this thread waits for the reader of stderr.
//!
//! A stopped log collector, a terminal under ^S and a full pipe block every write. A command may
//! wait for that; a capture must not. So a capture calls [`detach`] before it starts, and
//! [`start_writer`] once it is in its sandbox. From then on callers only append to a queue of
//! bounded size. Text that does not fit is dropped and counted, and a line reports the number as
//! soon as the reader continues.
//!
//! Invariant: while stderr is detached, no caller waits for it, except [`flush`] for a bounded
//! time.

use super::{
    message::{self, MessageKind},
    painter::{self, Painter},
    text::{Text, escaped},
};
use crate::failure::Failure;
use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};
use wqcap_engine::caught::is_caught;

/// Maximum number of bytes of ordinary lines that wait to be written to stderr.
const MOST_LINES: usize = 1 << 20;
/// Maximum number of bytes of lines of the audit trail that wait to be written to stderr.
const MOST_AUDIT: usize = 4 << 20;

/// Kind of a text for stderr. Each kind has a separate limit of waiting bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextKind {
    /// Ordinary text for stderr: lines of the log and all other messages.
    Ordinary,
    /// Line of the audit trail for stderr.
    Audit,
}

/// Output that the stderr writer thread writes in one step.
#[derive(Debug, PartialEq, Eq)]
enum WriterStep {
    /// Whole lines, written to stderr after the progress line is erased.
    Lines(Vec<u8>),
    /// Progress line that replaces the previous one on stderr.
    Progress(String),
}

/// Texts that wait for the stderr writer thread.
#[derive(Default)]
struct TextQueue {
    /// Texts that wait to be written to stderr, in their order.
    waiting: VecDeque<(TextKind, Vec<u8>)>,
    /// Number of bytes of ordinary lines that wait to be written to stderr.
    ordinary_bytes: usize,
    /// Number of bytes of lines of the audit trail that wait to be written to stderr.
    audit_bytes: usize,
    /// Latest progress line, if it is not drawn yet. It is drawn after the waiting lines.
    progress: Option<String>,
    /// Number of ordinary lines that were dropped because too many bytes waited for stderr.
    dropped: u64,
    /// Number of lines of the audit trail that were dropped because too many bytes waited for
    /// stderr.
    audit_dropped: u64,
}

impl TextQueue {
    /// Appends a text to the stderr queue, or counts it as dropped.
    fn push(&mut self, kind: TextKind, text: &[u8]) {
        let (bytes, most, dropped) = match kind {
            TextKind::Ordinary => (&mut self.ordinary_bytes, MOST_LINES, &mut self.dropped),
            TextKind::Audit => (&mut self.audit_bytes, MOST_AUDIT, &mut self.audit_dropped),
        };
        if *bytes + text.len() > most {
            let lines = text.iter().filter(|it| **it == b'\n').count();
            *dropped += lines.max(1) as u64;
            return;
        }
        *bytes += text.len();
        // Lines discard a progress line that is not drawn yet: the next one follows within a
        // second.
        self.progress = None;
        self.waiting.push_back((kind, text.to_vec()));
    }

    /// Removes and returns the next output of the stderr queue; `None`: nothing waits.
    fn take(&mut self) -> Option<WriterStep> {
        match self.waiting.pop_front() {
            Some((kind, text)) => {
                *match kind {
                    TextKind::Ordinary => &mut self.ordinary_bytes,
                    TextKind::Audit => &mut self.audit_bytes,
                } -= text.len();
                Some(WriterStep::Lines(text))
            }
            None => self.progress.take().map(WriterStep::Progress),
        }
    }

    /// Appends the line that reports the dropped stderr lines, once the queue has room again.
    /// Returns the number of dropped lines of the audit trail.
    fn report_dropped(&mut self) -> u64 {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            let text = message::line(
                MessageKind::Warning,
                &format!(
                    "{dropped} lines of the log were dropped: stderr was not read, and more than {MOST_LINES} bytes waited; read stderr faster, or log less"
                ),
            );
            self.ordinary_bytes += text.len();
            self.waiting
                .push_back((TextKind::Ordinary, text.into_bytes()));
        }
        std::mem::take(&mut self.audit_dropped)
    }
}

/// Destination of texts for stderr: stderr itself, or the queue of its writer thread.
enum StderrState {
    /// The thread that has a text writes it to stderr, and waits until it is written.
    Direct(Painter),
    /// The stderr writer thread writes all texts, which other threads put into the queue.
    Detached {
        queue: TextQueue,
        writer: StderrWriter,
    },
}

/// State of the thread that writes queued texts to stderr.
enum StderrWriter {
    /// The stderr writer thread is not started yet. Its painter has no progress line.
    Absent(Painter),
    /// The stderr writer thread waits for a text.
    Idle,
    /// The stderr writer thread writes a text to stderr.
    Busy,
}

/// Destination of all stderr texts of the process.
static STATE: Mutex<StderrState> = Mutex::new(StderrState::Direct(Painter::new()));
/// Condition variable that is notified when a text for stderr is queued or written.
static CHANGED: Condvar = Condvar::new();

/// Locks and returns the destination of stderr texts of this process.
fn state() -> MutexGuard<'static, StderrState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes whole lines to stderr, or queues them. Characters that would control a terminal are
/// escaped.
pub fn write_lines(kind: TextKind, text: &[u8]) {
    let text = &*escaped(text);
    match &mut *state() {
        StderrState::Direct(painter) => painter.lines(text),
        StderrState::Detached { queue, .. } => {
            queue.push(kind, text);
            CHANGED.notify_all();
        }
    }
}

/// Writes the last lines of the process to stderr, even while another thread is stuck in a write to
/// stderr. Waits at most `timeout` for the stderr writer thread; a write by the calling thread has
/// no time limit.
pub fn write_last(text: &[u8], timeout: Duration) {
    match STATE.try_lock() {
        Ok(state) => {
            drop(state);
            write_lines(TextKind::Ordinary, text);
            flush(timeout);
        }
        Err(_) => painter::write_all(&escaped(text)),
    }
}

/// Draws a progress line on stderr, or queues it. A queued line replaces a progress line that is
/// not drawn yet.
pub fn redraw(text: &str) {
    let text = &*Text(text).to_string();
    match &mut *state() {
        StderrState::Direct(painter) => painter.progress(text),
        StderrState::Detached { queue, .. } => {
            queue.progress = Some(text.to_owned());
            CHANGED.notify_all();
        }
    }
}

/// Detaches stderr: from now on stderr texts are queued for the thread that [`start_writer`] starts.
pub fn detach() {
    let mut state = state();
    if let StderrState::Direct(painter) = &mut *state {
        let writer = StderrWriter::Absent(std::mem::take(painter));
        *state = StderrState::Detached {
            queue: TextQueue::default(),
            writer,
        };
    }
}

/// Makes panics write their message as [`write_lines`] does, unless the panic is caught and becomes
/// an error. The default panic hook writes text to stderr directly.
pub fn catch_panics() {
    std::panic::set_hook(Box::new(|panic| {
        if is_caught() {
            return;
        }
        let thread = thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        let backtrace = std::backtrace::Backtrace::capture();
        let trace = match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => format!("{backtrace}\n"),
            _ => String::new(),
        };
        let text = format!("thread '{name}' {panic}\n{trace}");
        let text = message::block(MessageKind::Panic, &text);
        write_lines(TextKind::Ordinary, text.as_bytes());
        if name == "main" {
            // A panic of the main thread ends the process.
            flush(Duration::from_secs(1));
        }
    }));
}

/// Starts the thread that writes the queued texts to stderr. The thread inherits the sandbox of the
/// calling thread.
///
/// # Errors
/// The system refuses to start the stderr writer thread.
pub fn start_writer() -> Result<(), Failure> {
    let mut state = state();
    let StderrState::Detached { writer, .. } = &mut *state else {
        return Ok(());
    };
    let StderrWriter::Absent(painter) = writer else {
        return Ok(());
    };
    let painter = std::mem::take(painter);
    let builder = thread::Builder::new().name("wqcap-stderr".into());
    builder.spawn(move || write_queued(painter)).map_err(|e| {
        let message = format!("cannot start the thread that writes to stderr: {e}");
        Failure::of_setup(message, &e)
    })?;
    *writer = StderrWriter::Idle;
    Ok(())
}

/// Loop of the stderr writer thread: writes queued texts in their order.
fn write_queued(mut painter: Painter) {
    loop {
        let output = next();
        match &output {
            WriterStep::Lines(text) => painter.lines(text),
            WriterStep::Progress(text) => painter.progress(text),
        }
        let audit_dropped = match &mut *state() {
            StderrState::Detached { queue, writer } => {
                *writer = StderrWriter::Idle;
                queue.report_dropped()
            }
            StderrState::Direct(_) => 0,
        };
        if audit_dropped > 0 {
            wqcap_control::audit::log_dropped(audit_dropped);
        }
        CHANGED.notify_all();
    }
}

/// Waits for the next output of the stderr queue, and returns it.
fn next() -> WriterStep {
    let mut state = state();
    loop {
        if let StderrState::Detached { queue, writer } = &mut *state
            && let Some(output) = queue.take()
        {
            *writer = StderrWriter::Busy;
            return output;
        }
        state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Waits at most `timeout` until all queued texts are written to stderr. Texts that still wait then
/// are lost with the process.
pub fn flush(timeout: Duration) {
    let deadline = Instant::now() + timeout;
    let mut state = state();
    loop {
        match &mut *state {
            StderrState::Detached { queue, writer } => match writer {
                // The run ended before it began, so the remaining texts are written as for a short
                // command.
                StderrWriter::Absent(painter) => {
                    while let Some(WriterStep::Lines(text)) = queue.take() {
                        painter.lines(&text);
                    }
                    return;
                }
                StderrWriter::Idle if queue.waiting.is_empty() && queue.progress.is_none() => {
                    return;
                }
                StderrWriter::Idle | StderrWriter::Busy => {}
            },
            StderrState::Direct(_) => return,
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        state = CHANGED
            .wait_timeout(state, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_lines_are_counted_and_reported_once_there_is_room() {
        let mut queue = TextQueue::default();
        let half = vec![b'x'; MOST_LINES / 2];
        queue.push(TextKind::Ordinary, &half);
        queue.push(TextKind::Ordinary, &half);
        queue.push(TextKind::Ordinary, b"one\n");
        queue.push(TextKind::Ordinary, b"two\nthree\n");
        // The audit trail has a separate limit.
        queue.push(TextKind::Audit, b"audit: a\n");
        let first = queue.take();
        assert_eq!(first, Some(WriterStep::Lines(half.clone())));
        assert_eq!(queue.report_dropped(), 0);
        assert_eq!(queue.take(), Some(WriterStep::Lines(half)));
        assert_eq!(
            queue.take(),
            Some(WriterStep::Lines(b"audit: a\n".to_vec()))
        );
        let Some(WriterStep::Lines(report)) = queue.take() else {
            panic!("dropped lines are not reported");
        };
        let report = String::from_utf8(report).expect("UTF-8 text");
        assert!(
            report.starts_with("warning: 3 lines of the log"),
            "{report}"
        );
        assert_eq!(queue.report_dropped(), 0);
        assert_eq!(queue.take(), None);
        assert_eq!((queue.ordinary_bytes, queue.audit_bytes), (0, 0));
    }

    #[test]
    fn audit_lines_are_counted_separately() {
        let mut queue = TextQueue::default();
        let line = [&vec![b'x'; MOST_AUDIT / 4 - 1][..], b"\n"].concat();
        for _ in 0..6 {
            queue.push(TextKind::Audit, &line);
        }
        queue.push(TextKind::Ordinary, b"there is room\n");
        assert_eq!(queue.report_dropped(), 2);
        assert_eq!(queue.waiting.len(), 5);
    }

    #[test]
    fn the_latest_progress_line_is_drawn_after_the_lines() {
        let mut queue = TextQueue {
            progress: Some("1 s".into()),
            ..TextQueue::default()
        };
        queue.push(TextKind::Ordinary, b"a line\n");
        queue.progress = Some("2 s".into());
        queue.progress = Some("3 s".into());
        assert_eq!(queue.take(), Some(WriterStep::Lines(b"a line\n".to_vec())));
        assert_eq!(queue.take(), Some(WriterStep::Progress("3 s".into())));
        assert_eq!(queue.take(), None);
    }
}
