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
    queues: Vec<Target>,
    counters: Vec<Index>,
}

impl Default for Targets {
    fn default() -> Self {
        Self {
            queues: Vec::with_capacity(MAX_TARGETS),
            counters: Vec::with_capacity(MAX_TARGETS),
        }
    }
}

impl Targets {
    #[inline]
    pub fn as_slice(&self) -> &[Target] {
        &self.queues
    }

    /// Whether there is no queue.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// The flow counters of the entries that matched.
    #[inline]
    pub fn counters(&self) -> &[Index] {
        &self.counters
    }

    /// Makes `target` the only one.
    pub fn set(&mut self, target: Target) {
        self.clear();
        self.push(target);
    }

    pub fn clear(&mut self) {
        self.queues.clear();
        self.counters.clear();
    }

    pub fn count_in(&mut self, counters: Index) {
        if self.counters.len() < MAX_TARGETS {
            self.counters.push(counters);
        }
    }

    pub fn push(&mut self, target: Target) {
        if self.queues.len() < MAX_TARGETS {
            self.queues.push(target);
        }
    }
}
