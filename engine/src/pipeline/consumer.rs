//! Trait of frame consumers, which both pipeline modes call, and the frame that is passed to them.

use crate::{
    frame::FCS_LEN,
    rx::{Filled, SlotMemory},
    stats::Ends,
};

/// Received frame, borrowed from its slot for the duration of a call.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Bytes of the frame: all, unless an earlier stage has cut them.
    pub bytes: &'a [u8],
    /// Length on the wire without the FCS, in bytes; at least the length of `bytes`.
    pub len: u32,
    /// FCS of the frame, if the device delivers it. It is never part of `bytes`, which are parsed
    /// for headers.
    pub fcs: Option<Fcs>,
    /// Time of reception, in nanoseconds since 1970. Never decreases within a queue.
    pub ns: u64,
}

/// Received frame check sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fcs {
    /// Bytes of the FCS in wire order.
    pub bytes: [u8; FCS_LEN],
    /// `true` if the FCS was checked and does not match the frame.
    pub bad: bool,
}

impl<'a> Frame<'a> {
    /// Returns the whole frame in a slot, with its FCS if the queue delivers one.
    #[inline]
    pub(super) fn from_slot(filled: &'a Filled, memory: &'a SlotMemory, ns: u64) -> Self {
        let fcs = filled.fcs(memory);
        Self {
            fcs: fcs.map(|bytes| Fcs { bytes, bad: false }),
            ..Self::without_fcs(filled, memory, ns)
        }
    }

    /// Returns the whole frame in a slot of a queue that does not deliver the FCS.
    #[inline]
    pub(super) fn without_fcs(filled: &'a Filled, memory: &'a SlotMemory, ns: u64) -> Self {
        let bytes = filled.bytes(memory);
        Self {
            bytes,
            // A slot is much smaller than 4 GiB.
            len: bytes.len() as u32,
            fcs: None,
            ns,
        }
    }
}

/// Fate of a frame: its line in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Kept frame.
    Captured,
    /// Frame that the filter rejected.
    Filtered,
    /// Frame that sampling left out.
    SampledOut,
    /// Repetition of a kept frame.
    Deduplicated,
    /// Frame beyond its flow's cutoff limit.
    CutOff,
    /// Frame without space in the write buffers.
    DroppedStorage,
}

/// Receiver of a capture's frames.
///
/// Each thread that processes frames has one consumer: a queue's loop, or each parser of a queue.
/// The work of a consumer is part of the cost of each frame.
///
/// Only [`Consumer::frame`] is required. [`crate::capture::Capture::start_with`] runs a capture
/// with your own consumer.
pub trait Consumer: Send {
    /// Processes one frame. The bytes are valid only during the call.
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict;
    /// Starts a batch. Settings that other threads may change can be checked here, once for many
    /// frames.
    fn batch(&mut self) {}
    /// Announces the frames of the batch, so that memory accesses for many frames can be started
    /// together. This is a hint: the frames that follow may be fewer or others.
    fn ahead<'a>(&mut self, _frames: impl Iterator<Item = &'a [u8]>)
    where
        Self: Sized,
    {
    }
    /// Ends a batch: all its frames have been processed, and their buffers return to the NIC.
    fn handled(&mut self) {}
    /// Reports that another filter, a pcap-filter(7) expression, applies to the frames that follow.
    fn changed(&mut self, _filter: &str) {}
    /// Reports that no frames have come for a moment. Partly filled buffers can be flushed here.
    fn idle(&mut self) {}
}

/// Position of a consumer in a capture: its queue and parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Queue index, counted from 0.
    pub queue: u16,
    /// Parser index within the queue, counted from 0; 0 in inline mode.
    pub parser: u16,
}

impl Ends {
    /// Counts a frame of `len` bytes on the wire.
    #[inline]
    pub(super) fn count(&mut self, verdict: Verdict, len: u32) {
        match verdict {
            Verdict::Captured => {
                self.captured += 1;
                self.bytes += u64::from(len);
            }
            Verdict::Filtered => self.filtered += 1,
            _ => *self = self.with_other(verdict),
        }
    }

    /// Counts a frame with one of the rarer verdicts. Kept out of line of the common ones.
    #[inline(never)]
    fn with_other(mut self, verdict: Verdict) -> Self {
        match verdict {
            Verdict::Captured | Verdict::Filtered => {}
            Verdict::SampledOut => self.sampled_out += 1,
            Verdict::Deduplicated => self.deduplicated += 1,
            Verdict::CutOff => self.cut_off += 1,
            Verdict::DroppedStorage => self.dropped_storage += 1,
        }
        self
    }
}
