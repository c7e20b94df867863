//! The seam between a capture and the code that takes its frames.

use crate::stats::VerdictCounts;

/// Length of an Ethernet frame check sequence, in bytes.
pub const FCS_LEN: usize = 4;

/// One received frame, borrowed from its slot for the duration of a call.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Bytes of the frame without the FCS: all of them, unless an earlier stage has cut the frame.
    pub bytes: &'a [u8],
    /// Length on the wire without the FCS, in bytes; at least the length of `bytes`.
    pub len: u32,
    /// Frame check sequence, if the device delivers it. It is never part of `bytes`.
    pub fcs: Option<Fcs>,
    /// Time of reception in nanoseconds since 1970. It never decreases within a queue.
    pub ns: u64,
}

/// Frame check sequence of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fcs {
    /// The bytes of the FCS in wire order.
    pub bytes: [u8; FCS_LEN],
    /// `true` if the FCS was checked and does not match the frame.
    pub bad: bool,
}

/// Result of a consumer for one frame: the line of the ledger that counts the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The frame is kept.
    Captured,
    /// The filter rejects the frame.
    Filtered,
    /// Sampling leaves the frame out.
    SampledOut,
    /// The frame repeats an earlier one that was kept.
    Deduplicated,
    /// The frame lies beyond the cutoff of its flow.
    CutOff,
    /// The frame is lost because the write buffers are full.
    DroppedStorage,
}

/// Takes the frames of a capture. Each thread that works on frames has its own consumer: the receive loop of a queue, or each
/// parser of a queue. The time that a consumer takes is part of the cost of each frame.
///
/// Only [`Consumer::frame`] is required. `Capture::start_with` of `wqcap-engine` runs a consumer.
pub trait Consumer: Send {
    /// Takes one frame and returns the ledger line that counts it. The bytes are valid until the call returns.
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict;
    /// Marks the begin of a batch: the place to read state that other threads may have changed, once for many frames.
    fn begin_batch(&mut self) {}
    /// Announces frames that follow, in order of arrival, so that a consumer can prefetch what it needs for each. It is a
    /// hint: the frames that follow may be fewer, or other ones.
    fn prefetch<'a>(&mut self, _frames: impl Iterator<Item = &'a [u8]>)
    where
        Self: Sized,
    {
    }
    /// Marks the end of a batch: all of its frames have been handled, and their buffers return to the NIC now.
    fn end_batch(&mut self) {}
    /// Announces that another filter, a pcap-filter(7) expression, applies to the frames that follow.
    fn filter_changed(&mut self, _filter: &str) {}
    /// Reports that no frames have arrived for a moment: the place to pass on what is half full.
    fn idle(&mut self) {}
}

/// Stage in front of a consumer that only judges frames; another thread passes them on.
pub trait Judge: Consumer {
    /// Returns the verdict on a frame. Changes `frame` to what the consumer behind the stage receives: it may be cut, and its
    /// FCS may be marked as bad.
    fn judge(&mut self, frame: &mut Frame<'_>) -> Verdict;
    /// Counts frames that were lost before they could be judged.
    fn missed(&mut self, frames: u64);
}

/// Consumer that keeps no frame (`output.format = "none"`): the ledger counts each frame as captured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count;

impl Consumer for Count {
    #[inline]
    fn frame(&mut self, _frame: &Frame<'_>) -> Verdict {
        Verdict::Captured
    }
}

/// Identity of a consumer within a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConsumerPlace {
    /// Queue number, from 0.
    pub queue: u16,
    /// Number among the parsers of the queue, from 0; 0 if the receive loop itself works on frames.
    pub parser: u16,
}

impl VerdictCounts {
    /// Counts one more frame of `len` bytes on the wire.
    #[inline]
    pub fn count(&mut self, verdict: Verdict, len: u32) {
        match verdict {
            Verdict::Captured => {
                self.captured += 1;
                self.bytes += u64::from(len);
            }
            Verdict::Filtered => self.filtered += 1,
            _ => *self = self.with_rare(verdict),
        }
    }

    /// Returns the counts with one more frame that ended in a rare way. It is not inlined, so that the usual ways stay short.
    #[inline(never)]
    fn with_rare(mut self, verdict: Verdict) -> Self {
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
