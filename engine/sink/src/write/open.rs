//! Open file of the writer: the chain of its blocks, and the data that has reached the disk.

use crate::{
    block::{Block, FileLedger, FrameTally},
    write::{
        closer::ClosingFile,
        disk::FileSlot,
        named::{NamedFile, ToSync},
    },
};
use std::collections::VecDeque;

/// Open capture file with the chain of its write blocks, from the first block not yet on disk.
#[derive(Default)]
pub(super) struct ChainedFile {
    /// Number of the capture file among the queue's files, from 1.
    pub(super) number: u64,
    /// Capture file on disk; `None`: the file could not be created, and its blocks are lost.
    pub(super) named: Option<NamedFile>,
    /// Slot of the capture file in io_uring's table of registered files.
    pub(super) place: Option<FileSlot>,
    /// Write blocks in the file's order, from the first one not on disk; empty: all blocks are on
    /// disk.
    pub(super) chain: VecDeque<BlockLink>,
    /// Number of the first link in the file's chain of blocks.
    first: u64,
    /// Bytes of whole frame records in the file's contiguous blocks on disk.
    whole: u64,
    /// Number of frames in the file's contiguous blocks on disk, and of their bytes.
    tally: FrameTally,
    /// Write blocks that wait for a partial block before them, which shares a sector with the next,
    /// or for the disk to accept another write.
    pub(super) waiting: VecDeque<Block>,
    /// Set while a partial block of the file is being written.
    pub(super) partial: bool,
    /// Set if a block of the file could not be written. The blocks behind it are lost.
    pub(super) broke: bool,
    /// Set if no more blocks will be added to the file.
    pub(super) ended: bool,
    /// Number of the file's block writes in progress.
    pub(super) flying: usize,
    /// Offset in the file of the next compressed block in bytes.
    pub(super) end: u64,
    /// Set if data of the file was written since its last sync.
    pub(super) unsynced: bool,
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
    pub(super) fn new(number: u64, named: Option<NamedFile>) -> Self {
        Self {
            number,
            broke: named.is_none(),
            named,
            ..Self::default()
        }
    }

    /// Returns the temporary name of the capture file while it is open.
    pub(super) fn name(&self) -> String {
        let named = self.named.as_ref();
        named
            .map(|it| it.part.display().to_string())
            .unwrap_or_default()
    }

    /// Returns a sync request for the closer, if data of the file was written since its last sync
    /// and that sync is done.
    pub(super) fn take_sync(&mut self) -> Option<ToSync> {
        if !self.unsynced {
            return None;
        }
        let order = self.named.as_mut()?.order_sync(self.whole)?;
        self.unsynced = false;
        Some(order)
    }

    /// Returns an error message if another program has truncated the capture file.
    pub(super) fn is_cut(&self) -> Option<String> {
        self.named.as_ref()?.is_cut(self.whole)
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
        link
    }

    /// Ends the write of a file's partial block: truncates the padding that direct I/O wrote.
    pub(super) fn finish_partial(&mut self) {
        self.partial = false;
        // Direct I/O wrote a whole sector, but readers of the open file must not see the padding.
        if let Some(named) = self.named.as_ref().filter(|n| n.direct)
            && let Err(e) = named.file.set_len(self.whole)
        {
            tracing::warn!(
                "cannot truncate the open capture file {} to its complete records: {e}",
                named.part.display()
            );
        }
    }

    /// Records the end of a block's write. The contiguous data of the file on disk grows up to the
    /// next block in progress. If it reaches a block that failed, that block and all blocks behind
    /// it are lost.
    pub(super) fn settle(&mut self, link: u64, written: bool, ledger: &FileLedger) {
        self.flying -= 1;
        self.unsynced |= written;
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
            self.broke = true;
            self.lose_chain(ledger);
        }
    }

    fn lose_chain(&mut self, ledger: &FileLedger) {
        for link in self.chain.drain(..) {
            self.first += 1;
            ledger.count_lost(&link.tally);
        }
    }

    /// Converts the capture file for the closer; `None`: the file could not be created. Blocks
    /// whose writes have not completed are lost.
    pub(super) fn into_closing(mut self, ledger: FileLedger) -> Option<ClosingFile> {
        self.lose_chain(&ledger);
        Some(ClosingFile {
            named: self.named?,
            len: self.whole,
            tally: self.tally,
            ledger,
        })
    }
}
