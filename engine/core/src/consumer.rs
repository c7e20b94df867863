//! Interface between a capture and the code that takes its frames: frames, consumers and verdicts.

use crate::stats::VerdictCounts;

/// Length of an Ethernet frame check sequence in bytes: IEEE 802.3 clause 3.1.1.
pub const FCS_LEN: usize = 4;

/// One received frame, borrowed from its slot for the duration of a call.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Frame<'a> {
    /// Bytes of the frame without the FCS: all of them, unless an earlier stage of the pipeline has
    /// cut the frame.
    pub bytes: &'a [u8],
    /// Length of the frame on the wire without the FCS, in bytes; at least the length of `bytes`.
    pub len: u32,
    /// Frame check sequence (FCS) of the frame, if the device delivers it. It is never part of
    /// `bytes`.
    pub fcs: Option<Fcs>,
    /// Time of the frame's reception in nanoseconds since 1970. In one capture of an RDMA device it
    /// never decreases within a queue.
    pub ns: u64,
    /// Index of the captured port that received the frame. A stage of one queue sees 0: its frames are
    /// of one port.
    pub port: u8,
}

impl<'a> Frame<'a> {
    /// Creates a frame without an FCS: its bytes, its length on the wire, and its time of reception
    /// in nanoseconds since 1970.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a [u8], len: u32, ns: u64) -> Self {
        let fcs = None;
        Self {
            bytes,
            len,
            fcs,
            ns,
            port: 0,
        }
    }
}

/// Frame check sequence of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fcs {
    /// Bytes of the frame check sequence, in the order in which they were on the wire.
    pub bytes: [u8; FCS_LEN],
    /// `true` if the FCS was checked and does not match the frame.
    pub bad: bool,
}

/// Verdict of a consumer on one received frame. It selects the line of the ledger (the counts of
/// frames by outcome) that counts the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Verdict for a frame that is kept.
    Captured,
    /// Verdict for a frame that the filter rejects.
    Filtered,
    /// Verdict for a frame that sampling leaves out.
    SampledOut,
    /// Verdict for a frame that repeats an earlier kept frame.
    Deduplicated,
    /// Verdict for a frame that is left out because its flow exceeds its cutoff, the configured
    /// limit of captured data per flow.
    CutOff,
    /// Verdict for a frame that is lost because the write buffers are full.
    DroppedStorage,
}

/// Consumer of captured frames. Each thread that passes frames to a consumer has its own: the
/// receive loop of a queue, or each parser thread of a queue. The time that a consumer takes is
/// part of the cost of each frame.
///
/// Only [`Consumer::frame`] is required. `Capture::start_with` of `wqcap-engine` runs a consumer.
pub trait Consumer: Send {
    /// Takes one frame and returns its verdict, which selects the ledger line that counts the
    /// frame. The frame's bytes are valid until the call returns.
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict;
    /// Marks the beginning of a batch of frames. A consumer reads state that other threads change
    /// here, once per batch.
    fn begin_batch(&mut self) {}
    /// Announces the frames that follow, in order of arrival, so that a consumer can prefetch what
    /// it needs for each. It is a hint: the frames that follow may be fewer, or other ones.
    fn prefetch<'a>(&mut self, _frames: impl Iterator<Item = &'a [u8]>)
    where
        Self: Sized,
    {
    }
    /// Marks the end of a batch: the consumer has handled all its frames, and their buffers return
    /// to the NIC now.
    fn end_batch(&mut self) {}
    /// Announces that another filter, a pcap-filter(7) expression, applies to the frames that
    /// follow.
    fn filter_changed(&mut self, _filter: &str) {}
    /// Reports that no frames have arrived for a moment, so that a consumer passes on its partly
    /// filled buffers.
    fn idle(&mut self) {}
}

/// Consumer that can also judge frames without passing them on; another thread then passes them on.
pub trait Judge: Consumer {
    /// Returns the verdict on a frame. Changes `frame` to what the next consumer receives: it may
    /// be cut, and its FCS may be marked as bad.
    fn judge(&mut self, frame: &mut Frame<'_>) -> Verdict;
    /// Counts frames that were lost before a consumer could judge them.
    fn missed(&mut self, frames: u64);
}

/// Consumer that keeps no frame (`output.format = "none"`): the ledger counts each frame as
/// captured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count;

impl Consumer for Count {
    #[inline]
    fn frame(&mut self, _frame: &Frame<'_>) -> Verdict {
        Verdict::Captured
    }
}

/// Queue and parser number that identify a consumer within a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConsumerPlace {
    /// Number of the consumer's receive queue, from 0.
    pub queue: u16,
    /// Number of the consumer's parser thread within its queue, from 0; 0 if the receive loop runs
    /// the consumer.
    pub parser: u16,
}

impl VerdictCounts {
    /// Counts one more frame, of `len` bytes on the wire without FCS, under its verdict.
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

    /// Returns the counts with one more frame of a rare verdict. The function is not inlined, so
    /// that the code for the usual verdicts stays short.
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
