//! Meter of the write buffers in use, and of the time for which they wait for the disk.

use crate::{
    block::{Block, SentBlocks},
    reorder::WINDOW,
};
use crossbeam_channel::Receiver;
use std::{sync::Arc, time::Duration};

/// Use of the write blocks of all queues, readable from any thread.
#[derive(Clone)]
pub struct Backlog {
    /// Channels of empty write blocks, by queue.
    pub(super) idle: Vec<Receiver<Block>>,
    /// Write blocks that are not on the disk yet, by queue.
    pub(super) sent: Vec<Arc<SentBlocks>>,
    /// Relay blocks that the ordering thread has not returned yet, by queue; empty without one.
    pub(super) relayed: Vec<Arc<SentBlocks>>,
    /// Number of write blocks per queue.
    pub(super) per_queue: usize,
    /// Size of a write block in bytes.
    pub(super) block: usize,
}

impl Backlog {
    /// Returns the total size of all queues' write buffers in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        (self.idle.len() * self.per_queue * self.block) as u64
    }

    /// Returns the number of bytes in write blocks that are being filled, compressed or written, or
    /// wait for that. When all blocks are in use, frames are dropped, or receive loops wait.
    #[must_use]
    pub fn used(&self) -> u64 {
        let idle: usize = self.idle.iter().map(Receiver::len).sum();
        self.size().saturating_sub((idle * self.block) as u64)
    }

    /// Returns the time for which the oldest frames have been waiting for the disk, or been written;
    /// 0: all are on the disk. The second that frames may wait for their order is left out.
    #[must_use]
    pub fn waiting(&self) -> Duration {
        let age = |blocks: &[Arc<SentBlocks>]| {
            let oldest = blocks.iter().filter_map(|it| it.oldest()).min();
            oldest.map_or(Duration::ZERO, |it| it.elapsed())
        };
        // A frame in a write block was in a relay block before.
        age(&self.sent) + age(&self.relayed).saturating_sub(WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use wqcap_memory::Region;

    #[test]
    fn blocks_that_are_not_empty_are_used() {
        let (sender, idle) = crossbeam_channel::bounded(4);
        for _ in 0..3 {
            let region = Region::allocate(4096, None).expect("memory");
            assert!(sender.send(Block::new(region)).is_ok());
        }
        let backlog = Backlog {
            idle: vec![idle],
            sent: Vec::new(),
            relayed: Vec::new(),
            per_queue: 4,
            block: 4096,
        };
        assert_eq!((backlog.size(), backlog.used()), (4 * 4096, 4096));
        assert_eq!(backlog.waiting(), Duration::ZERO);
    }

    #[test]
    fn the_oldest_block_of_all_queues_is_measured() {
        let sent = [0; 2].map(|_| Arc::new(SentBlocks::default()));
        let relayed = Arc::<SentBlocks>::default();
        let backlog = Backlog {
            idle: Vec::new(),
            sent: sent.to_vec(),
            relayed: vec![Arc::clone(&relayed)],
            per_queue: 0,
            block: 4096,
        };
        let [first, second] = sent;
        let pause = Duration::from_millis(20);
        let before = |time| Instant::now().checked_sub(time).expect("a time");
        first.add_at(before(pause));
        second.add();
        first.add();
        assert!(backlog.waiting() >= pause);
        first.remove_oldest();
        second.remove_oldest();
        assert!(backlog.waiting() > Duration::ZERO);
        first.remove_oldest();
        assert_eq!(backlog.waiting(), Duration::ZERO);
        relayed.add();
        assert_eq!(backlog.waiting(), Duration::ZERO, "the order takes time");
        relayed.remove_oldest();
        relayed.add_at(before(WINDOW + pause));
        assert!(backlog.waiting() >= pause);
    }
}
