//! Queue that returns receive batches in order, in whatever order their parts (work batches)
//! arrive.

use std::collections::VecDeque;

/// Queue that collects the work batches of receive batches and returns complete receive batches in
/// order.
#[derive(Debug)]
pub(super) struct OpenBatches<T> {
    /// Number of the oldest receive batch that is incomplete or not returned yet.
    next: u64,
    /// Incomplete and waiting receive batches, from number `next` on.
    open: VecDeque<OpenBatch<T>>,
    /// Emptied lists of work batches, for reuse.
    spare: Vec<Vec<T>>,
}

/// Receive batch that waits for its work batches or for earlier receive batches.
#[derive(Debug)]
struct OpenBatch<T> {
    /// Total number of work batches of the receive batch; `None` until the first one arrives.
    parts: Option<usize>,
    /// Work batches of the receive batch that have arrived.
    here: Vec<T>,
}

impl<T> OpenBatches<T> {
    /// Creates an empty queue that starts at receive batch 0.
    pub(super) fn new() -> Self {
        Self {
            next: 0,
            open: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Adds a work batch of receive batch number `batch`, which has `parts` work batches. Receive
    /// batches are counted from 0 without gaps.
    pub(super) fn push(&mut self, batch: u64, parts: usize, part: T) {
        // The number of open batches is at most the number of parts in flight, which fits `usize`.
        let index = usize::try_from(batch.saturating_sub(self.next)).unwrap_or(usize::MAX);
        while self.open.len() <= index {
            let here = self.spare.pop().unwrap_or_default();
            self.open.push_back(OpenBatch { parts: None, here });
        }
        let open = &mut self.open[index];
        open.parts = Some(parts);
        open.here.push(part);
    }

    /// Returns the work batches of the next receive batch, or `None` until all have arrived.
    pub(super) fn pop(&mut self) -> Option<Vec<T>> {
        let front = self.open.front()?;
        if front.parts != Some(front.here.len()) {
            return None;
        }
        self.next += 1;
        self.open.pop_front().map(|batch| batch.here)
    }

    /// Takes back a list of work batches that `pop` returned, for reuse.
    pub(super) fn recycle(&mut self, mut list: Vec<T>) {
        list.clear();
        self.spare.push(list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_returned_complete_and_in_order() {
        let mut batches = OpenBatches::new();
        batches.push(1, 1, 'd');
        batches.push(0, 2, 'b');
        assert_eq!(batches.pop(), None);
        batches.push(3, 1, 'f');
        batches.push(0, 2, 'a');
        let first = batches.pop().unwrap();
        assert_eq!(first, ['b', 'a']);
        batches.recycle(first);
        assert_eq!(batches.pop(), Some(vec!['d']));
        // No part of batch 2 has arrived.
        assert_eq!(batches.pop(), None);
        batches.push(2, 1, 'e');
        assert_eq!(batches.pop(), Some(vec!['e']));
        assert_eq!(batches.pop(), Some(vec!['f']));
        assert_eq!(batches.pop(), None);
    }
}
