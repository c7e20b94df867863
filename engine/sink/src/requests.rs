//! Requests to the sinks of a run: to begin the next file, to write marks into the open files, and to
//! flush their blocks to the disk.
//!
//! Invariant: a sink checks for requests once per batch with one atomic load. It takes a lock only for
//! marks, and for the rotation of a file that it begins.

use crate::Rotation;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Maximum number of operator's marks kept until sinks read them. Sinks check several times a
/// second.
const MOST_MARKS: usize = 64;

/// Requests to all sinks of a run: next file, marks and flushes.
#[derive(Debug, Default)]
pub struct SinkRequests {
    /// Number of requests to the sinks of any kind. Incremented after the request's own counter.
    asked: AtomicU64,
    /// Number of requests that the sinks begin their next file.
    rotations: AtomicU64,
    /// Conditions for starting the file after each file that sinks begin from now on.
    rotation: Mutex<Rotation>,
    /// Number of marks that operators set in the run.
    marked: AtomicU64,
    /// Latest marks that operators set, at most [`MOST_MARKS`], oldest first.
    marks: Mutex<VecDeque<Arc<str>>>,
    /// Number of the latest flush requested of the sinks; 0: none was requested.
    flushes: AtomicU64,
    /// Progress of each sink's flush, by [`SinkSettings::queue`](super::block::SinkSettings).
    flushed: Vec<FlushProgress>,
}

/// Progress of a flush in one sink and the writer behind it.
#[derive(Debug, Default)]
struct FlushProgress {
    /// Number of the latest flush for which the sink has sent its write blocks.
    number: AtomicU64,
    /// Number of write blocks that the sink had sent by that flush.
    sent: AtomicU64,
    /// Number of the first write block of the sink that the writer has neither written nor given
    /// up.
    written: AtomicU64,
}

impl SinkRequests {
    /// Creates an empty list of requests to `sinks` sinks that confirm each flush, and whose files
    /// end by `rotation`.
    pub(super) fn with_sinks(sinks: usize, rotation: Rotation) -> Self {
        Self {
            rotation: Mutex::new(rotation),
            flushed: (0..sinks).map(|_| FlushProgress::default()).collect(),
            ..Self::default()
        }
    }

    /// Requests that each sink begins its next capture file.
    pub(super) fn rotate(&self) {
        self.rotations.fetch_add(1, Ordering::Relaxed);
        self.asked.fetch_add(1, Ordering::Release);
    }

    /// Returns the rotation conditions of the capture files that sinks begin now.
    pub(super) fn rotation(&self) -> Rotation {
        *self.rotation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the rotation conditions. If they differ, each sink begins its next capture file,
    /// because an open file ends by the conditions under which it began.
    pub(super) fn set_rotation(&self, rotation: Rotation) {
        let mut present = self.rotation.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *present, rotation) != rotation {
            drop(present);
            self.rotate();
        }
    }

    /// Requests that each sink with an open file writes the operator's mark `text` with the file's
    /// next record.
    pub fn mark(&self, text: &str) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        if marks.len() == MOST_MARKS {
            marks.pop_front();
        }
        marks.push_back(text.into());
        self.marked.fetch_add(1, Ordering::Release);
        self.asked.fetch_add(1, Ordering::Release);
    }

    /// Requests that each sink sends its open write block. Returns the number of this flush.
    pub(super) fn flush(&self) -> u64 {
        let number = self.flushes.fetch_add(1, Ordering::Relaxed) + 1;
        self.asked.fetch_add(1, Ordering::Release);
        number
    }

    /// Requests flush number `number` of the sinks, unless it or a later one was requested already.
    pub(super) fn flush_up_to(&self, number: u64) {
        if self.flushes.fetch_max(number, Ordering::Relaxed) < number {
            self.asked.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns the number of the latest flush requested of the sinks; 0: none was requested.
    pub(super) fn latest_flush(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Returns `true` if every sink has sent the frame records that it held when `flush` was
    /// requested.
    pub(super) fn is_sent(&self, flush: u64) -> bool {
        let is_sent = |it: &FlushProgress| it.number.load(Ordering::Acquire) >= flush;
        self.latest_flush() >= flush && self.flushed.iter().all(is_sent)
    }

    /// Returns `true` if all frame records that the sinks held when `flush` was requested are
    /// written.
    pub(super) fn is_written(&self, flush: u64) -> bool {
        let is_written = |it: &FlushProgress| {
            it.written.load(Ordering::Acquire) >= it.sent.load(Ordering::Relaxed)
        };
        self.is_sent(flush) && self.flushed.iter().all(is_written)
    }

    /// Publishes that the write blocks of sink `sink` before number `blocks` are written or given
    /// up.
    pub(super) fn publish_written(&self, sink: usize, blocks: u64) {
        if let Some(it) = self.flushed.get(sink) {
            it.written.store(blocks, Ordering::Release);
        }
    }

    /// Returns the operator's marks set after the first `seen`, oldest first, and the number of all
    /// marks set.
    fn marks_since(&self, seen: u64) -> (Vec<Arc<str>>, u64) {
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let marked = self.marked.load(Ordering::Acquire);
        let number = usize::try_from(marked - seen).unwrap_or(usize::MAX);
        let before = marks.len().saturating_sub(number);
        (marks.iter().skip(before).cloned().collect(), marked)
    }
}

/// Cursor of one sink in the run's requests: those that the sink has seen.
pub(super) struct RequestCursor {
    requests: Arc<SinkRequests>,
    /// Value of [`SinkRequests::asked`] up to which the sink has acknowledged requests.
    seen: u64,
    /// Value of [`SinkRequests::rotations`] at the sink's last check.
    rotations: u64,
    /// Value of [`SinkRequests::marked`] at the sink's last check.
    marked: u64,
    /// Number of the last flush that the sink confirmed.
    flushed: u64,
}

impl RequestCursor {
    /// Creates a sink's cursor behind all requests made so far.
    pub(super) fn new(requests: Arc<SinkRequests>) -> Self {
        Self {
            seen: requests.asked.load(Ordering::Acquire),
            rotations: requests.rotations.load(Ordering::Relaxed),
            marked: requests.marked.load(Ordering::Acquire),
            flushed: requests.latest_flush(),
            requests,
        }
    }

    /// Returns `true` if there are requests that the sink has not acknowledged.
    #[inline]
    pub(super) fn is_new(&self) -> bool {
        self.requests.asked.load(Ordering::Relaxed) != self.seen
    }

    /// Acknowledges all requests made to the sink so far. The caller then checks each kind of
    /// request.
    pub(super) fn acknowledge(&mut self) {
        self.seen = self.requests.asked.load(Ordering::Acquire);
    }

    /// Withdraws the sink's acknowledgement, so that a request that cannot be carried out yet is
    /// checked again.
    pub(super) fn postpone(&mut self) {
        self.seen = self.seen.wrapping_sub(1);
    }

    /// Returns `true` once if the sink's next file was requested since the last call.
    pub(super) fn take_rotation(&mut self) -> bool {
        let rotations = self.requests.rotations.load(Ordering::Relaxed);
        std::mem::replace(&mut self.rotations, rotations) != rotations
    }

    /// Returns the rotation conditions of a capture file that the sink begins now.
    pub(super) fn rotation(&self) -> Rotation {
        self.requests.rotation()
    }

    /// Returns `true` if marks were set since the sink last called [`RequestCursor::take_marks`].
    pub(super) fn has_marks(&self) -> bool {
        self.requests.marked.load(Ordering::Acquire) != self.marked
    }

    /// Returns the operator's marks set since the sink's last call, oldest first.
    pub(super) fn take_marks(&mut self) -> Vec<Arc<str>> {
        let (marks, marked) = self.requests.marks_since(self.marked);
        self.marked = marked;
        marks
    }

    /// Returns the number of the latest flush if this sink has not confirmed it.
    pub(super) fn pending_flush(&self) -> Option<u64> {
        let latest = self.requests.latest_flush();
        (latest != self.flushed).then_some(latest)
    }

    /// Confirms a flush: all frame records that the sink held at the request are in its first
    /// `sent` write blocks.
    pub(super) fn confirm_flush(&mut self, sink: usize, flush: u64, sent: u64) {
        self.flushed = flush;
        if let Some(it) = self.requests.flushed.get(sink) {
            it.sent.store(sent, Ordering::Relaxed);
            it.number.store(flush, Ordering::Release);
        }
    }
}

/// Notes to write with a sink's next frame records.
#[derive(Debug, Default)]
pub(super) struct PendingNotes {
    filter: Option<Arc<str>>,
    marks: VecDeque<Arc<str>>,
}

/// Note written with a frame record, in addition to its frame.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// Capture filter that applies from this frame record.
    Filter(Arc<str>),
    /// Mark that an operator set just before this frame record was written.
    Mark(Arc<str>),
}

impl PendingNotes {
    /// Maximum number of marks per frame record, so that the record fits in a write block.
    const AT_ONCE: usize = 4;

    pub(super) fn set_filter(&mut self, filter: &str) {
        self.filter = Some(filter.into());
    }

    pub(super) fn add_marks(&mut self, marks: Vec<Arc<str>>) {
        self.marks.extend(marks);
        let most = self.marks.len().saturating_sub(MOST_MARKS);
        self.marks.drain(..most);
    }

    /// Returns `true` if the sink's next frame record carries no notes.
    pub(super) fn is_empty(&self) -> bool {
        self.filter.is_none() && self.marks.is_empty()
    }

    /// Returns the notes to write with the sink's next frame record.
    pub(super) fn notes(&self) -> Vec<Note> {
        let filter = self.filter.iter().cloned().map(Note::Filter);
        let marks = self.marks.iter().take(Self::AT_ONCE).cloned();
        filter.chain(marks.map(Note::Mark)).collect()
    }

    /// Removes the notes that the sink's last frame record carried. Returns `true` if marks are
    /// left.
    pub(super) fn remove_written(&mut self) -> bool {
        self.filter = None;
        self.marks.drain(..self.marks.len().min(Self::AT_ONCE));
        !self.marks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sink_sees_each_request_once() {
        let requests = Arc::<SinkRequests>::default();
        requests.mark("before");
        let mut sinks = [0, 1].map(|_| RequestCursor::new(Arc::clone(&requests)));
        assert!(sinks.iter().all(|it| !it.has_marks()));
        let rotation = Rotation {
            frames: 5,
            ..Rotation::default()
        };
        requests.set_rotation(rotation);
        requests.set_rotation(rotation);
        assert!(sinks.iter().all(|it| it.rotation() == rotation));
        requests.mark("a");
        requests.mark("b");
        for sink in &mut sinks {
            assert!(sink.take_rotation() && !sink.take_rotation());
            assert!(sink.has_marks());
            assert_eq!(sink.take_marks(), ["a".into(), "b".into()]);
            assert!(!sink.has_marks() && sink.take_marks().is_empty());
        }
        for i in 0..MOST_MARKS + 5 {
            requests.mark(&i.to_string());
        }
        assert_eq!(sinks[0].take_marks().len(), MOST_MARKS);
    }

    #[test]
    fn a_flush_is_complete_when_each_sink_has_sent_and_the_writer_has_written() {
        let requests = Arc::new(SinkRequests::with_sinks(2, Rotation::default()));
        let mut sinks = [0, 1].map(|_| RequestCursor::new(Arc::clone(&requests)));
        assert!(
            sinks
                .iter()
                .all(|it| !it.is_new() && it.pending_flush().is_none())
        );
        let flush = requests.flush();
        assert!(!requests.is_sent(flush));
        for (sink, sent) in [(0, 3), (1, 0)] {
            let asked = &mut sinks[sink];
            assert!(asked.is_new());
            asked.acknowledge();
            // As when no block is free.
            asked.postpone();
            assert!(asked.is_new());
            asked.acknowledge();
            assert_eq!(asked.pending_flush(), Some(flush));
            asked.confirm_flush(sink, flush, sent);
            assert!(!asked.is_new() && asked.pending_flush().is_none());
        }
        assert!(requests.is_sent(flush) && !requests.is_written(flush));
        requests.publish_written(0, 2);
        assert!(!requests.is_written(flush));
        requests.publish_written(0, 3);
        assert!(requests.is_written(flush));
        assert!(!requests.is_written(flush + 1), "not requested");
        requests.flush_up_to(flush);
        assert!(!sinks[0].is_new(), "the flush was requested already");
        requests.flush_up_to(flush + 2);
        assert_eq!(sinks[0].pending_flush(), Some(flush + 2));
    }

    #[test]
    fn notes_that_do_not_fit_in_a_record_go_to_the_next_one() {
        let mut pending = PendingNotes::default();
        pending.set_filter("tcp");
        pending.add_marks((0..5).map(|i| i.to_string().into()).collect());
        let first = pending.notes();
        assert_eq!(first.len(), 5);
        assert_eq!(first[0], Note::Filter("tcp".into()));
        assert!(pending.remove_written());
        assert_eq!(pending.notes(), [Note::Mark("4".into())]);
        assert!(!pending.remove_written());
        pending.add_marks(vec!["x".into(); 2 * MOST_MARKS]);
        assert_eq!(pending.marks.len(), MOST_MARKS);
    }
}
