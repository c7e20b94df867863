//! What travels between loop, parsers and resequencer.

use super::{Frame, Verdict};
use crate::{
    filter::Filter,
    rx::{Filled, SlotMemory},
    sync::Arc,
};

/// A slot with its frame on its way through a parser, and what has become of it.
pub(super) struct Item {
    pub(super) filled: Filled,
    /// When it was received, in nanoseconds since 1970.
    pub(super) ns: u64,
    /// Its place among the frames of its batch.
    pub(super) at: u32,
    /// Bytes that are kept of it.
    pub(super) kept: u32,
    /// Its FCS was checked, and is another frame's.
    pub(super) bad_fcs: bool,
    pub(super) verdict: Verdict,
}

impl Item {
    /// One that nobody has judged: kept whole.
    pub(super) fn new(filled: Filled, ns: u64, at: u32) -> Self {
        Self {
            filled,
            ns,
            at,
            kept: u32::MAX,
            bad_fcs: false,
            verdict: Verdict::Captured,
        }
    }

    /// The frame as it was judged: cut to what is kept of it.
    #[inline]
    pub(super) fn frame<'a>(&'a self, memory: &'a SlotMemory) -> Frame<'a> {
        let mut frame = self.filled.frame(memory, self.ns);
        frame.bytes = &frame.bytes[..frame.bytes.len().min(self.kept as usize)];
        if let Some(fcs) = &mut frame.fcs {
            fcs.bad = self.bad_fcs;
        }
        frame
    }

    /// Enters what a judge says of it.
    #[inline]
    pub(super) fn judged(&mut self, verdict: Verdict, kept: usize, bad_fcs: bool) {
        self.verdict = verdict;
        self.kept = u32::try_from(kept).unwrap_or(u32::MAX);
        self.bad_fcs = bad_fcs;
    }
}

/// The frames of one batch that go to one parser, in the order of their reception.
pub(super) struct WorkBatch {
    /// Counted by the loop, without gaps.
    pub(super) round: u64,
    /// WorkBatches of that batch.
    pub(super) parts: usize,
    /// Number of the parser.
    pub(super) lane: usize,
    /// The filter that holds from this batch on, where the parser does not know it yet.
    pub(super) filter: Option<Arc<Filter>>,
    pub(super) items: Vec<Item>,
}
