//! Meter of the write buffers in use.

use crate::block::Block;
use crossbeam_channel::Receiver;

/// Use of the write blocks of all queues, readable from any thread.
#[derive(Clone)]
pub struct Backlog {
    /// Channels of empty write blocks, by queue.
    pub(super) idle: Vec<Receiver<Block>>,
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
}

#[cfg(test)]
mod tests {
    use super::*;
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
            per_queue: 4,
            block: 4096,
        };
        assert_eq!((backlog.size(), backlog.used()), (4 * 4096, 4096));
    }
}
