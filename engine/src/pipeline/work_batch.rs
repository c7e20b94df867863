//! Batches of frames that travel between receive loop, parser threads and resequencer.

use super::{Frame, Verdict};
use crate::{
    filter::Filter,
    rx::{Filled, SlotMemory},
    sync::Arc,
};

/// Slot with a frame on its way through a parser, and the parser's decision.
pub(super) struct Item {
    /// Slot that holds the frame.
    pub(super) filled: Filled,
    /// Time of the frame's reception, in nanoseconds since 1970.
    pub(super) ns: u64,
    /// Index of the frame in its receive batch.
    pub(super) at: u32,
    /// Number of bytes of the frame that are kept after cutting; `u32::MAX` keeps all.
    pub(super) kept: u32,
    /// `true` if the frame's FCS was checked and does not match the frame.
    pub(super) bad_fcs: bool,
    /// Decision of the parser on the frame: kept, or why not.
    pub(super) verdict: Verdict,
}

impl Item {
    /// Creates an item for a frame without a decision: the frame is kept whole.
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

    /// Returns the item's frame, cut to the bytes that are kept.
    #[inline]
    pub(super) fn frame<'a>(&'a self, memory: &'a SlotMemory) -> Frame<'a> {
        let mut frame = self.filled.frame(memory, self.ns);
        frame.bytes = &frame.bytes[..frame.bytes.len().min(self.kept as usize)];
        if let Some(fcs) = &mut frame.fcs {
            fcs.bad = self.bad_fcs;
        }
        frame
    }

    /// Stores the decision of a judge (reduction stage) on the item's frame.
    #[inline]
    pub(super) fn set_verdict(&mut self, verdict: Verdict, kept: usize, bad_fcs: bool) {
        self.verdict = verdict;
        self.kept = u32::try_from(kept).unwrap_or(u32::MAX);
        self.bad_fcs = bad_fcs;
    }
}

/// Frames of one receive batch for one parser, in the order of their reception.
pub(super) struct WorkBatch {
    /// Number of the receive batch, counted without gaps.
    pub(super) round: u64,
    /// Number of work batches that the receive batch was divided into.
    pub(super) parts: usize,
    /// Index of the parser thread that gets the work batch.
    pub(super) lane: usize,
    /// Capture filter that applies from this work batch on; `None` if the parser has it already.
    pub(super) filter: Option<Arc<Filter>>,
    /// Frame slots of the work batch with their frames.
    pub(super) items: Vec<Item>,
}
