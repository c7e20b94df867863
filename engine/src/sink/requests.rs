//! What others ask of the sinks of a run's files: to go on to the next file, and to put marks into the open ones.
//!
//! Invariant: a sink looks once a batch, and that is two loads; it takes a lock only when there is a mark.

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
    rotations: AtomicU64,
    /// Marks so far.
    marked: AtomicU64,
    /// The latest of them.
    marks: Mutex<VecDeque<Arc<str>>>,
}

impl Requests {
    /// Asks for the next file.
    pub(super) fn rotate(&self) {
        self.rotations.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks each sink with an open file to tell this with the file's next record.
    pub(crate) fn mark(&self, text: &str) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        if marks.len() == MOST_MARKS {
            marks.pop_front();
        }
        marks.push_back(text.into());
        self.marked.fetch_add(1, Ordering::Release);
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
    rotations: u64,
    marked: u64,
}

impl Asked {
    /// From now on.
    pub(super) fn new(requests: Arc<Requests>) -> Self {
        Self {
            rotations: requests.rotations.load(Ordering::Relaxed),
            marked: requests.marked.load(Ordering::Acquire),
            requests,
        }
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
