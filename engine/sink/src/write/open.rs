//! A file that is being written: the chain of its blocks, and what of them has reached the disk.

use crate::{
    block::{Block, Ledger, Tally},
    write::{
        closer::ClosingFile,
        disk::FileSlot,
        named::{Named, ToSync},
    },
};
use std::collections::VecDeque;

/// An open file and the chain of its blocks from the first one not yet on disk.
#[derive(Default)]
pub(super) struct Open {
    pub(super) number: u64,
    /// `None`: it could not be created; its blocks are lost.
    pub(super) named: Option<Named>,
    /// Where the disk knows it.
    pub(super) place: Option<FileSlot>,
    /// Empty: every block so far is on disk.
    pub(super) chain: VecDeque<Link>,
    /// Link number of the chain's first.
    first: u64,
    /// Bytes of the unbroken run of blocks on disk, up to their last record's end.
    whole: u64,
    /// What is in that run.
    tally: Tally,
    /// Blocks that wait for a partial one before them, which shares a sector with the next, or for room on their way.
    pub(super) waiting: VecDeque<Block>,
    pub(super) partial: bool,
    /// A block of it could not be written; those behind it are lost.
    pub(super) broke: bool,
    /// No more blocks will come.
    pub(super) ended: bool,
    /// Writes under way.
    pub(super) flying: usize,
    /// Where the next packed block belongs.
    pub(super) end: u64,
    /// Something was written since it was synced last.
    pub(super) unsynced: bool,
}

/// A block of a file, in the file's order.
pub(super) struct Link {
    tally: Tally,
    whole_end: u64,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Flying,
    Written,
    Failed,
}

impl Open {
    /// The file that is a queue's so-many-th.
    pub(super) fn new(number: u64, named: Option<Named>) -> Self {
        Self {
            number,
            broke: named.is_none(),
            named,
            ..Self::default()
        }
    }

    /// Its name while it is open.
    pub(super) fn name(&self) -> String {
        let named = self.named.as_ref();
        named
            .map(|it| it.part.display().to_string())
            .unwrap_or_default()
    }

    /// To have it synced, if anything was written since the last time and that is done.
    pub(super) fn take_sync(&mut self) -> Option<ToSync> {
        if !self.unsynced {
            return None;
        }
        let order = self.named.as_mut()?.order_sync(self.whole)?;
        self.unsynced = false;
        Some(order)
    }

    /// Why it breaks: another program has cut it.
    pub(super) fn is_cut(&self) -> Option<String> {
        self.named.as_ref()?.is_cut(self.whole)
    }

    /// A block joins the chain, on its way; its link number.
    pub(super) fn chain(&mut self, block: &Block) -> u64 {
        let link = self.first + self.chain.len() as u64;
        self.chain.push_back(Link {
            tally: block.tally.clone(),
            whole_end: block.offset + block.whole as u64,
            state: State::Flying,
        });
        self.flying += 1;
        link
    }

    /// The partial block is on disk.
    pub(super) fn show(&mut self) {
        self.partial = false;
        // Direct I/O wrote a whole sector: whoever reads the open file must not see the padding.
        if let Some(named) = self.named.as_ref().filter(|n| n.direct)
            && let Err(e) = named.file.set_len(self.whole)
        {
            tracing::warn!(
                "cannot cut {} to its records while it is open: {e}",
                named.part.display()
            );
        }
    }

    /// A block's write has ended. The unbroken run grows as far as it can; where it meets a block that failed, that
    /// block and all behind it are lost.
    pub(super) fn settle(&mut self, link: u64, written: bool, ledger: &Ledger) {
        self.flying -= 1;
        self.unsynced |= written;
        let index = link
            .checked_sub(self.first)
            .and_then(|i| usize::try_from(i).ok());
        // A link that is not in the chain any more was lost with a block before it.
        let Some(link) = index.and_then(|i| self.chain.get_mut(i)) else {
            return;
        };
        link.state = if written {
            State::Written
        } else {
            State::Failed
        };
        while let Some(link) = self.chain.pop_front_if(|l| l.state == State::Written) {
            self.first += 1;
            self.whole = link.whole_end;
            self.tally.add(&link.tally);
        }
        if self.chain.front().is_some_and(|l| l.state == State::Failed) {
            self.broke = true;
            self.lose_chain(ledger);
        }
    }

    fn lose_chain(&mut self, ledger: &Ledger) {
        for link in self.chain.drain(..) {
            self.first += 1;
            ledger.lost(&link.tally);
        }
    }

    /// What the closer needs of it; `None`: there is no file. Blocks whose writes have not been told to have ended are lost.
    pub(super) fn leave(mut self, ledger: Ledger) -> Option<ClosingFile> {
        self.lose_chain(&ledger);
        Some(ClosingFile {
            named: self.named?,
            len: self.whole,
            tally: self.tally,
            ledger,
        })
    }
}
