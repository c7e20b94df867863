//! The seam: what a capture feeds, whichever shape its pipeline has.

use crate::{
    frame::FCS_LEN,
    rx::{Filled, SlotMemory},
    stats::Ends,
};

/// One frame, borrowed from its slot for the length of a call.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// What there is of its bytes: all, unless a stage before has cut it.
    pub bytes: &'a [u8],
    /// Its length on the wire without the FCS, at least that of `bytes`.
    pub len: u32,
    /// Its FCS, where the device delivers it. Never part of `bytes`, which is what headers are sought in.
    pub fcs: Option<Fcs>,
    /// When it was received, in nanoseconds since 1970. Never runs backward within a queue.
    pub ns: u64,
}

/// A frame check sequence as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fcs {
    /// As on the wire.
    pub bytes: [u8; FCS_LEN],
    /// It was checked, and is another frame's.
    pub bad: bool,
}

impl<'a> Frame<'a> {
    /// The whole frame in a slot.
    #[inline]
    pub(super) fn of(filled: &'a Filled, memory: &'a SlotMemory, ns: u64) -> Self {
        let fcs = filled.fcs(memory);
        Self {
            fcs: fcs.map(|bytes| Fcs { bytes, bad: false }),
            ..Self::without_fcs(filled, memory, ns)
        }
    }

    /// The same of a queue that delivers no FCS.
    #[inline]
    pub(super) fn without_fcs(filled: &'a Filled, memory: &'a SlotMemory, ns: u64) -> Self {
        let bytes = filled.bytes(memory);
        Self {
            bytes,
            // A slot is far below 4 GiB.
            len: bytes.len() as u32,
            fcs: None,
            ns,
        }
    }
}

/// What became of a frame: its line in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Kept.
    Captured,
    /// The filter refused it.
    Filtered,
    /// Sampling left it out.
    SampledOut,
    /// It repeats one that was kept.
    Deduplicated,
    /// It comes after the beginning of its flow.
    CutOff,
    /// There was no room for it.
    DroppedStorage,
}

/// Takes frames. There is one for each thread that works on them: a queue's loop, or each parser of a queue. What it
/// does is part of each frame's cost.
///
/// Only [`Consumer::frame`] must be written. A consumer of one's own runs by [`crate::capture::Capture::start_with`].
pub trait Consumer: Send {
    /// Takes one frame. The bytes are gone when it returns.
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict;
    /// A batch begins: a chance to look, once for many frames, at what others may have changed.
    fn batch(&mut self) {}
    /// Frames that follow, as they came: a chance to look for many at once what each needs to be decided on. A hint:
    /// what follows may be fewer or others.
    fn ahead<'a>(&mut self, _frames: impl Iterator<Item = &'a [u8]>)
    where
        Self: Sized,
    {
    }
    /// The batch's frames have all been handled: their buffers go back to the NIC now.
    fn handled(&mut self) {}
    /// Another filter, a pcap-filter(7) expression, decides on the frames that follow; for those who keep notes.
    fn changed(&mut self, _filter: &str) {}
    /// There were no frames for a moment: a chance to let go of what is half full.
    fn idle(&mut self) {}
}

/// Which of a capture's consumers one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Number of the queue, from 0.
    pub queue: u16,
    /// Number among the queue's parsers, from 0; 0 where the loop itself works on frames.
    pub parser: u16,
}

impl Ends {
    /// One more frame of `len` bytes on the wire.
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

    /// With one more frame that ended in a rarer way: out of the way of the others.
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
