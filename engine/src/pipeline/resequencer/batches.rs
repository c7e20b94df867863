//! Rounds in their order, whatever the order in which their parts come.
//!
//! Imports nothing: what a part is, is its owner's business.

use std::collections::VecDeque;

/// Collects the parts of batches and gives whole batches out, one after the other.
#[derive(Debug)]
pub(super) struct OpenBatches<T> {
    /// Number of the oldest batch that is not out yet.
    next: u64,
    /// From that batch on.
    open: VecDeque<OpenBatch<T>>,
    /// Emptied lists, for reuse.
    spare: Vec<Vec<T>>,
}

#[derive(Debug)]
struct OpenBatch<T> {
    /// Parts it has in all; `None`: none of them has come.
    parts: Option<usize>,
    here: Vec<T>,
}

impl<T> OpenBatches<T> {
    pub(super) fn new() -> Self {
        Self {
            next: 0,
            open: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// A part of `batch`, which has `parts` of them. Rounds are counted from 0 and without gaps.
    pub(super) fn put(&mut self, batch: u64, parts: usize, part: T) {
        // As many batches are open at most as parts are under way, which fits.
        let index = usize::try_from(batch.saturating_sub(self.next)).unwrap_or(usize::MAX);
        while self.open.len() <= index {
            let here = self.spare.pop().unwrap_or_default();
            self.open.push_back(OpenBatch { parts: None, here });
        }
        let open = &mut self.open[index];
        open.parts = Some(parts);
        open.here.push(part);
    }

    /// The parts of the next batch, once all are here.
    pub(super) fn pop(&mut self) -> Option<Vec<T>> {
        let front = self.open.front()?;
        if front.parts != Some(front.here.len()) {
            return None;
        }
        self.next += 1;
        self.open.pop_front().map(|batch| batch.here)
    }

    /// Takes a list back that was given out.
    pub(super) fn give_back(&mut self, mut list: Vec<T>) {
        list.clear();
        self.spare.push(list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_leave_in_order_and_whole() {
        let mut rounds = OpenBatches::new();
        rounds.put(1, 1, 'd');
        rounds.put(0, 2, 'b');
        assert_eq!(rounds.pop(), None);
        rounds.put(3, 1, 'f');
        rounds.put(0, 2, 'a');
        let first = rounds.pop().unwrap();
        assert_eq!(first, ['b', 'a']);
        rounds.give_back(first);
        assert_eq!(rounds.pop(), Some(vec!['d']));
        // Nothing of batch 2 has come.
        assert_eq!(rounds.pop(), None);
        rounds.put(2, 1, 'e');
        assert_eq!(rounds.pop(), Some(vec!['e']));
        assert_eq!(rounds.pop(), Some(vec!['f']));
        assert_eq!(rounds.pop(), None);
    }
}
