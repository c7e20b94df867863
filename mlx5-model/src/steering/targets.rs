//! The queues that a frame goes to.

use crate::handles::Index;

use super::tir::RssResult;

/// The most queues that a frame goes to; no more duplicates are made.
const MAX_TARGETS: usize = 32;

/// A queue that a frame goes to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Target {
    /// The queue, and the hash that selected it.
    pub rss: RssResult,
    /// Flow tag.
    pub tag: u32,
}

/// The queues that a frame goes to, and the flow counters that count it once it does.
pub struct Targets {
    queues: [Target; MAX_TARGETS],
    len: usize,
    counters: [Index; MAX_TARGETS],
    counters_len: usize,
}

impl Default for Targets {
    fn default() -> Self {
        Self {
            queues: [Target::default(); MAX_TARGETS],
            len: 0,
            counters: [0; MAX_TARGETS],
            counters_len: 0,
        }
    }
}

impl Targets {
    #[inline]
    pub fn as_slice(&self) -> &[Target] {
        &self.queues[..self.len]
    }

    /// Whether there is no queue.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The flow counters of the entries that matched.
    #[inline]
    pub fn counters(&self) -> &[Index] {
        &self.counters[..self.counters_len]
    }

    /// Makes `target` the only one.
    pub fn set(&mut self, target: Target) {
        self.clear();
        self.push(target);
    }

    pub fn clear(&mut self) {
        self.len = 0;
        self.counters_len = 0;
    }

    pub fn count_in(&mut self, counters: Index) {
        if let Some(slot) = self.counters.get_mut(self.counters_len) {
            *slot = counters;
            self.counters_len += 1;
        }
    }

    pub fn push(&mut self, target: Target) {
        if let Some(slot) = self.queues.get_mut(self.len) {
            *slot = target;
            self.len += 1;
        }
    }
}
