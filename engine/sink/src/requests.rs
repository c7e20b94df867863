//! What others ask of the sinks of a run's files: to begin the next file, to put marks into the open ones, and to have
//! written what they hold.
//!
//! Invariant: a sink looks once a batch, and that is one load; it takes a lock only when there is a mark.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Marks that wait for a sink to look; it looks several times a second.
const MOST_MARKS: usize = 64;

/// What is asked of all sinks of a run.
#[derive(Debug, Default)]
pub struct Requests {
    /// Number of requests of any kind. Incremented after the request's own counter.
    asked: AtomicU64,
    rotations: AtomicU64,
    /// Marks so far.
    marked: AtomicU64,
    /// The latest of them.
    marks: Mutex<VecDeque<Arc<str>>>,
    /// Number of the latest flush; 0: none was requested.
    flushes: AtomicU64,
    /// Progress of each sink's flush, by [`Shape::queue`](super::block::Shape).
    flushed: Vec<FlushProgress>,
}

/// How far one sink and the writer behind it have come with a flush.
#[derive(Debug, Default)]
struct FlushProgress {
    /// Number of the latest flush for which the sink has sent its blocks.
    number: AtomicU64,
    /// Blocks that the sink had sent by then.
    sent: AtomicU64,
    /// Blocks that the writer has written or given up: all before this number.
    written: AtomicU64,
}

impl Requests {
    /// Requests to a number of sinks, which answer each flush.
    pub(super) fn with_sinks(sinks: usize) -> Self {
        Self {
            flushed: (0..sinks).map(|_| FlushProgress::default()).collect(),
            ..Self::default()
        }
    }

    /// Asks for the next file.
    pub(super) fn rotate(&self) {
        self.rotations.fetch_add(1, Ordering::Relaxed);
        self.asked.fetch_add(1, Ordering::Release);
    }

    /// Asks each sink with an open file to tell this with the file's next record.
    pub fn mark(&self, text: &str) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        if marks.len() == MOST_MARKS {
            marks.pop_front();
        }
        marks.push_back(text.into());
        self.marked.fetch_add(1, Ordering::Release);
        self.asked.fetch_add(1, Ordering::Release);
    }

    /// Asks each sink to send what it holds; returns the number of this flush.
    pub(super) fn flush(&self) -> u64 {
        let number = self.flushes.fetch_add(1, Ordering::Relaxed) + 1;
        self.asked.fetch_add(1, Ordering::Release);
        number
    }

    /// Asks for the flush of this number, unless it or a later one was requested.
    pub(super) fn flush_up_to(&self, number: u64) {
        if self.flushes.fetch_max(number, Ordering::Relaxed) < number {
            self.asked.fetch_add(1, Ordering::Release);
        }
    }

    /// Number of the latest flush.
    pub(super) fn latest_flush(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Whether every sink has sent what it held when the flush was requested.
    pub(super) fn is_sent(&self, flush: u64) -> bool {
        let is_sent = |it: &FlushProgress| it.number.load(Ordering::Acquire) >= flush;
        self.latest_flush() >= flush && self.flushed.iter().all(is_sent)
    }

    /// Whether all that the sinks held when the flush was requested is written.
    pub(super) fn is_written(&self, flush: u64) -> bool {
        let is_written = |it: &FlushProgress| {
            it.written.load(Ordering::Acquire) >= it.sent.load(Ordering::Relaxed)
        };
        self.is_sent(flush) && self.flushed.iter().all(is_written)
    }

    /// All of a sink's blocks before this number are written or given up.
    pub(super) fn publish_written(&self, sink: usize, blocks: u64) {
        if let Some(it) = self.flushed.get(sink) {
            it.written.store(blocks, Ordering::Release);
        }
    }

    /// The marks behind so many, the oldest first, and how many there are now.
    fn marks_since(&self, seen: u64) -> (Vec<Arc<str>>, u64) {
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let marked = self.marked.load(Ordering::Acquire);
        let number = usize::try_from(marked - seen).unwrap_or(usize::MAX);
        let before = marks.len().saturating_sub(number);
        (marks.iter().skip(before).cloned().collect(), marked)
    }
}

/// What a sink has seen of them.
pub(super) struct Asked {
    requests: Arc<Requests>,
    /// Value of [`Requests::asked`] up to which the sink has acknowledged requests.
    seen: u64,
    rotations: u64,
    marked: u64,
    flushed: u64,
}

impl Asked {
    /// From now on.
    pub(super) fn new(requests: Arc<Requests>) -> Self {
        Self {
            seen: requests.asked.load(Ordering::Acquire),
            rotations: requests.rotations.load(Ordering::Relaxed),
            marked: requests.marked.load(Ordering::Acquire),
            flushed: requests.latest_flush(),
            requests,
        }
    }

    /// Whether there are requests since the last look.
    #[inline]
    pub(super) fn is_new(&self) -> bool {
        self.requests.asked.load(Ordering::Relaxed) != self.seen
    }

    /// Takes note of all requests so far; what they ask for is then to be looked up.
    pub(super) fn acknowledge(&mut self) {
        self.seen = self.requests.asked.load(Ordering::Acquire);
    }

    /// Leaves a request that cannot be carried out yet for the next look.
    pub(super) fn postpone(&mut self) {
        self.seen = self.seen.wrapping_sub(1);
    }

    /// Whether the next file was asked for since the last look.
    pub(super) fn again(&mut self) -> bool {
        let rotations = self.requests.rotations.load(Ordering::Relaxed);
        std::mem::replace(&mut self.rotations, rotations) != rotations
    }

    /// Whether there are marks since the last look at them.
    pub(super) fn is_marked(&self) -> bool {
        self.requests.marked.load(Ordering::Acquire) != self.marked
    }

    /// The marks since the last look.
    pub(super) fn marks(&mut self) -> Vec<Arc<str>> {
        let (marks, marked) = self.requests.marks_since(self.marked);
        self.marked = marked;
        marks
    }

    /// The flush that this sink has not answered yet.
    pub(super) fn flush(&self) -> Option<u64> {
        let latest = self.requests.latest_flush();
        (latest != self.flushed).then_some(latest)
    }

    /// Answers a flush: all that the sink held at its request is among its first `sent` blocks.
    pub(super) fn flushed(&mut self, sink: usize, flush: u64, sent: u64) {
        self.flushed = flush;
        if let Some(it) = self.requests.flushed.get(sink) {
            it.sent.store(sent, Ordering::Relaxed);
            it.number.store(flush, Ordering::Release);
        }
    }
}

/// What a sink's next records are to tell.
#[derive(Debug, Default)]
pub(super) struct Pending {
    filter: Option<Arc<str>>,
    marks: VecDeque<Arc<str>>,
}

/// Something that a record tells beside its frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// This filter holds from it on.
    Filter(Arc<str>),
    /// Somebody has marked this moment.
    Mark(Arc<str>),
}

impl Pending {
    /// Marks that one record tells, at most: they must not make it outgrow a block.
    const AT_ONCE: usize = 4;

    pub(super) fn filtered(&mut self, filter: &str) {
        self.filter = Some(filter.into());
    }

    pub(super) fn marked(&mut self, marks: Vec<Arc<str>>) {
        self.marks.extend(marks);
        let most = self.marks.len().saturating_sub(MOST_MARKS);
        self.marks.drain(..most);
    }

    /// What the next record tells.
    pub(super) fn next(&self) -> Vec<Note> {
        let filter = self.filter.iter().cloned().map(Note::Filter);
        let marks = self.marks.iter().take(Self::AT_ONCE).cloned();
        filter.chain(marks.map(Note::Mark)).collect()
    }

    /// A record has told it; whether there is more to tell.
    pub(super) fn told(&mut self) -> bool {
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
        let requests = Arc::<Requests>::default();
        requests.mark("before");
        let mut sinks = [0, 1].map(|_| Asked::new(Arc::clone(&requests)));
        assert!(sinks.iter().all(|it| !it.is_marked()));
        requests.rotate();
        requests.mark("a");
        requests.mark("b");
        for sink in &mut sinks {
            assert!(sink.again() && !sink.again());
            assert!(sink.is_marked());
            assert_eq!(sink.marks(), ["a".into(), "b".into()]);
            assert!(!sink.is_marked() && sink.marks().is_empty());
        }
        for i in 0..MOST_MARKS + 5 {
            requests.mark(&i.to_string());
        }
        assert_eq!(sinks[0].marks().len(), MOST_MARKS);
    }

    #[test]
    fn a_flush_is_over_when_each_sink_has_sent_and_the_writer_has_written() {
        let requests = Arc::new(Requests::with_sinks(2));
        let mut sinks = [0, 1].map(|_| Asked::new(Arc::clone(&requests)));
        assert!(sinks.iter().all(|it| !it.is_new() && it.flush().is_none()));
        let flush = requests.flush();
        assert!(!requests.is_sent(flush));
        for (sink, sent) in [(0, 3), (1, 0)] {
            let asked = &mut sinks[sink];
            assert!(asked.is_new());
            asked.acknowledge();
            // No block is free for now.
            asked.postpone();
            assert!(asked.is_new());
            asked.acknowledge();
            assert_eq!(asked.flush(), Some(flush));
            asked.flushed(sink, flush, sent);
            assert!(!asked.is_new() && asked.flush().is_none());
        }
        assert!(requests.is_sent(flush) && !requests.is_written(flush));
        requests.publish_written(0, 2);
        assert!(!requests.is_written(flush));
        requests.publish_written(0, 3);
        assert!(requests.is_written(flush));
        assert!(!requests.is_written(flush + 1), "not requested");
        requests.flush_up_to(flush);
        assert!(!sinks[0].is_new(), "it was requested already");
        requests.flush_up_to(flush + 2);
        assert_eq!(sinks[0].flush(), Some(flush + 2));
    }

    #[test]
    fn a_record_tells_some_and_the_next_the_rest() {
        let mut pending = Pending::default();
        pending.filtered("tcp");
        pending.marked((0..5).map(|i| i.to_string().into()).collect());
        let first = pending.next();
        assert_eq!(first.len(), 5);
        assert_eq!(first[0], Note::Filter("tcp".into()));
        assert!(pending.told());
        assert_eq!(pending.next(), [Note::Mark("4".into())]);
        assert!(!pending.told());
        pending.marked(vec!["x".into(); 2 * MOST_MARKS]);
        assert_eq!(pending.marks.len(), MOST_MARKS);
    }
}
