//! How much waits to be written, for those who look on.

use crate::block::Block;
use crossbeam_channel::Receiver;

/// The blocks of all queues, seen from any thread.
#[derive(Clone)]
pub struct Backlog {
    /// By queue: blocks that nobody needs.
    pub(super) idle: Vec<Receiver<Block>>,
    /// Blocks of a queue, and bytes of a block.
    pub(super) per_queue: usize,
    pub(super) block: usize,
}

impl Backlog {
    /// Bytes of write buffers in all.
    #[must_use]
    pub fn size(&self) -> u64 {
        (self.idle.len() * self.per_queue * self.block) as u64
    }

    /// Bytes of blocks that are being filled, compressed or written, or wait for it. At the whole size frames are
    /// dropped, or loops wait.
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
    fn what_is_not_idle_is_used() {
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
