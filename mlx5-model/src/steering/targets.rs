//! Target queues of a frame.

use crate::handles::Index;

use super::tir::RssResult;

/// Maximum number of receive queues that one frame goes to; further copies are not made.
const MAX_TARGETS: usize = 32;

/// Receive queue that a frame goes to, with the flow tag of its CQE.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Target {
    /// Receive queue that the frame goes to, and the hash that selected it.
    pub rss: RssResult,
    /// Flow tag of the rule that matches the frame.
    pub tag: u32,
}

/// Receive queues that a frame goes to, and flow counters that count the frame when it is
/// delivered.
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

    /// Returns `true` if the frame goes to no receive queue.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Returns the flow counters of the flow table entries that match the frame.
    #[inline]
    pub fn counters(&self) -> &[Index] {
        &self.counters
    }

    /// Makes `target` the only receive queue that the frame goes to.
    pub fn set(&mut self, target: Target) {
        self.clear();
        self.push(target);
    }

    pub fn clear(&mut self) {
        self.queues.clear();
        self.counters.clear();
    }

    pub fn add_counters(&mut self, counters: Index) {
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
