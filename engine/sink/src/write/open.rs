//! Open file of the writer: the chain of its blocks, and the data that has reached the disk. All
//! transitions between the states of a file are here.
//!
//! ```text
//! Open <──> Tail        a partial block is being written
//!   │         │
//!   └────┬────┘         a block is lost
//!        v
//!     Broken
//! ```
//!
//! A file that is complete and has no block to write becomes a [`ClosingFile`], whatever its state.

use crate::{
    block::{ALIGN, Block, FileLedger, FrameTally},
    write::{
        closer::ClosingFile,
        disk::FileSlot,
        named::{NamedFile, ToSync, Truncated},
    },
};
use std::{collections::VecDeque, mem};

/// State of an open capture file: what happens to its next block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileState {
    /// The file's next block is written at once.
    Open,
    /// A partial block is being written. The next block repeats its last sector, and waits.
    Tail,
    /// A block of the file is lost. The file ends before it, and all further blocks are lost.
    Broken,
}

/// Decision of a file on its next block.
pub(super) enum BlockFate {
    /// The block is written now.
    Write(Block),
    /// The file keeps the block, which waits for another write.
    Waits,
    /// The block is lost, because a block before it is lost.
    Lost(Block),
    /// The block is lost, because its content cannot be written. The file ends before it.
    Breaks(Block),
}

/// Open capture file with the chain of its write blocks, from the first block not yet on disk.
pub(super) struct ChainedFile {
    /// Number of the capture file among the queue's files, from 1.
    pub(super) number: u64,
    pub(super) named: NamedFile,
    /// Slot of the capture file in io_uring's table of registered files.
    pub(super) place: Option<FileSlot>,
    state: FileState,
    /// `true` if no more blocks will be added to the file.
    is_complete: bool,
    /// Latest time stamp of the file's frame records in nanoseconds since 1970; 0: unknown.
    last_ns: u64,
    /// Write blocks in the file's order, from the first one not on disk; empty: all blocks are on
    /// disk.
    chain: VecDeque<BlockLink>,
    /// Number of the first link in the file's chain of blocks.
    first: u64,
    /// Number of bytes of whole frame records in the file's contiguous blocks on disk.
    whole: u64,
    /// Number of bytes of whole frame records that the last sync of the file included.
    synced: u64,
    /// Number of frames in the file's contiguous blocks on disk, and the number of their bytes.
    tally: FrameTally,
    /// Write blocks that wait for a partial block before them, or for the disk to accept another
    /// write.
    waiting: VecDeque<Block>,
    /// Number of the file's block writes in progress.
    flying: usize,
    /// Offset in the file of the next compressed block in bytes.
    end: u64,
}

/// Write block in the chain of a capture file.
pub(super) struct BlockLink {
    tally: FrameTally,
    /// File offset of the end of the block's last whole record.
    whole_end: u64,
    state: LinkState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LinkState {
    Flying,
    Written,
    Failed,
}

impl ChainedFile {
    /// Creates the queue's capture file number `number`, without blocks.
    pub(super) fn new(number: u64, named: NamedFile) -> Self {
        Self {
            number,
            named,
            place: None,
            state: FileState::Open,
            is_complete: false,
            last_ns: 0,
            chain: VecDeque::new(),
            first: 0,
            whole: 0,
            synced: 0,
            tally: FrameTally::default(),
            waiting: VecDeque::new(),
            flying: 0,
            end: 0,
        }
    }

    /// Returns `true` if the file has data on disk that no sync has included.
    pub(super) fn is_unsynced(&self) -> bool {
        self.synced < self.whole
    }

    /// Returns a sync request for the closer, if data of the file was written since its last sync
    /// and that sync is done.
    pub(super) fn take_sync(&mut self) -> Option<ToSync> {
        if !self.is_unsynced() {
            return None;
        }
        let order = self.named.order_sync(self.whole)?;
        self.synced = self.whole;
        Some(order)
    }

    /// Returns an error if another program has truncated the open capture file.
    pub(super) fn is_cut(&self) -> Option<Truncated> {
        self.named.is_cut(self.whole)
    }

    /// Records that no more blocks will be added to the file.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
    }

    /// Returns `true` if the file can be closed: it is complete, and no block is being written or
    /// waits.
    pub(super) fn is_done(&self) -> bool {
        self.is_complete && self.flying == 0 && self.waiting.is_empty()
    }

    /// Returns `true` if blocks of the file wait for another write.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sets the offset of a compressed block, which is next in the file.
    pub(super) fn place_packed(&mut self, block: &mut Block) {
        block.offset = self.end;
        self.end += block.len as u64;
    }

    /// Takes the file's next block and decides what happens to it.
    pub(super) fn accept(&mut self, block: Block) -> BlockFate {
        self.is_complete |= block.end;
        self.last_ns = self.last_ns.max(block.last_ns);
        match self.state {
            FileState::Broken => BlockFate::Lost(block),
            FileState::Open | FileState::Tail if block.spoilt => {
                self.state = FileState::Broken;
                BlockFate::Breaks(block)
            }
            FileState::Open if self.waiting.is_empty() => BlockFate::Write(block),
            FileState::Open | FileState::Tail => {
                self.waiting.push_back(block);
                BlockFate::Waits
            }
        }
    }

    /// Keeps a block, whose write cannot start now, in front of the blocks that wait.
    pub(super) fn keep(&mut self, block: Block) {
        self.waiting.push_front(block);
    }

    /// Ends the file before the blocks that are not being written.
    pub(super) fn give_up(&mut self) {
        self.state = FileState::Broken;
    }

    /// Returns the waiting blocks of a broken file, which are lost.
    pub(super) fn take_lost(&mut self) -> VecDeque<Block> {
        match self.state {
            FileState::Broken => mem::take(&mut self.waiting),
            FileState::Open | FileState::Tail => VecDeque::new(),
        }
    }

    /// Ends the state [`FileState::Tail`] once the partial block is on disk: truncates its padding.
    /// Direct I/O wrote a whole sector, but readers of the open file must not see the padding.
    pub(super) fn end_tail(&mut self) {
        if self.state != FileState::Tail || !self.chain.is_empty() {
            return;
        }
        self.state = FileState::Open;
        if self.named.direct
            && let Err(e) = self.named.file.set_len(self.whole)
        {
            tracing::warn!(
                "cannot truncate the open capture file {} to its complete records: {e}",
                self.named.part.display()
            );
        }
    }

    /// Returns the first waiting block if it can be written now.
    pub(super) fn next_waiting(&mut self) -> Option<Block> {
        match self.state {
            FileState::Open => self.waiting.pop_front(),
            FileState::Tail | FileState::Broken => None,
        }
    }

    /// Appends a write block whose write starts to the file's chain. Returns the number of its
    /// link.
    pub(super) fn chain(&mut self, block: &Block) -> u64 {
        let link = self.first + self.chain.len() as u64;
        self.chain.push_back(BlockLink {
            tally: block.tally.clone(),
            whole_end: block.offset + block.whole as u64,
            state: LinkState::Flying,
        });
        self.flying += 1;
        if !block.len.is_multiple_of(ALIGN) {
            self.state = FileState::Tail;
        }
        link
    }

    /// Records the end of a block's write. The contiguous data of the file on disk grows up to the
    /// next block in progress. If it reaches a block that failed, that block and all blocks behind
    /// it are lost.
    pub(super) fn settle(&mut self, link: u64, written: bool, ledger: &FileLedger) {
        self.flying -= 1;
        let index = link
            .checked_sub(self.first)
            .and_then(|i| usize::try_from(i).ok());
        // A link that is no longer in the chain was lost with a block before it.
        let Some(link) = index.and_then(|i| self.chain.get_mut(i)) else {
            return;
        };
        link.state = if written {
            LinkState::Written
        } else {
            LinkState::Failed
        };
        while let Some(link) = self.chain.pop_front_if(|l| l.state == LinkState::Written) {
            self.first += 1;
            self.whole = link.whole_end;
            self.tally.add(&link.tally);
        }
        if self
            .chain
            .front()
            .is_some_and(|l| l.state == LinkState::Failed)
        {
            self.state = FileState::Broken;
            self.lose_chain(ledger);
        }
    }

    fn lose_chain(&mut self, ledger: &FileLedger) {
        for link in self.chain.drain(..) {
            self.first += 1;
            ledger.count_lost(&link.tally);
        }
    }

    /// Converts the capture file for the closer, and returns the blocks that still wait. Blocks
    /// whose writes have not completed are lost.
    pub(super) fn into_closing(mut self, ledger: FileLedger) -> (ClosingFile, VecDeque<Block>) {
        self.lose_chain(&ledger);
        let closing = ClosingFile {
            named: self.named,
            len: self.whole,
            tally: self.tally,
            last_ns: self.last_ns,
            ledger,
        };
        (closing, self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::naming::Naming;
    use std::sync::Arc;
    use wqcap_core::stats::QueueCounters;
    use wqcap_memory::Region;

    fn block(offset: u64, len: usize) -> Block {
        let mut block = Block::new(Region::allocate(2 * ALIGN, None).expect("memory"));
        (block.offset, block.len, block.whole) = (offset, len, len);
        block.tally.frames = 1;
        block
    }

    #[test]
    fn blocks_wait_behind_a_partial_one_and_are_lost_behind_a_lost_one() {
        let dir = tempfile::tempdir().expect("dir");
        let name = Default::default();
        let naming = Arc::new(Naming::new(dir.path().to_owned(), name, "pcap".into()));
        let named = NamedFile::create(&naming, None, 1, None).expect("created");
        let counters = Arc::<QueueCounters>::default();
        let ledger = FileLedger::Queue(Arc::clone(&counters));
        let mut file = ChainedFile::new(1, named);
        let write = |file: &mut ChainedFile, block| match file.accept(block) {
            BlockFate::Write(block) => file.chain(&block),
            _ => panic!("the block is not written"),
        };
        let (full, partial) = (2 * ALIGN, ALIGN + 7);
        let first = write(&mut file, block(0, full));
        let tail = write(&mut file, block(full as u64, partial));
        let waits = file.accept(block((full + ALIGN) as u64, full));
        assert!(matches!(waits, BlockFate::Waits) && file.has_waiting());
        file.settle(tail, true, &ledger);
        file.end_tail();
        assert!(file.next_waiting().is_none(), "a block before is written");
        assert!(!file.is_unsynced());
        file.settle(first, true, &ledger);
        file.end_tail();
        assert!(file.is_unsynced() && file.take_sync().is_some() && !file.is_unsynced());
        let next = file.next_waiting().expect("the partial block is on disk");
        let next = file.chain(&next);
        file.settle(next, false, &ledger);
        let mut last = block(0, full);
        last.end = true;
        assert!(matches!(file.accept(last), BlockFate::Lost(_)));
        assert!(file.is_done());
        let (closing, waiting) = file.into_closing(ledger);
        assert_eq!((closing.len, waiting.len()), ((full + partial) as u64, 0));
        assert_eq!(closing.tally.frames, 2);
        assert_eq!(counters.ledger(0).dropped_storage, 1);
    }
}
