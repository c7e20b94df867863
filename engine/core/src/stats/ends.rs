//! Counts of frames by the verdict of their consumer.

/// Frames that a consumer has judged so far, by verdict.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerdictCounts {
    /// Frames that the consumer kept.
    pub captured: u64,
    /// Frames that the filter rejected.
    pub filtered: u64,
    /// Frames that sampling left out.
    pub sampled_out: u64,
    /// Frames that repeat an earlier frame.
    pub deduplicated: u64,
    /// Frames beyond the cutoff of their flow.
    pub cut_off: u64,
    /// Frames lost because the write buffers were full.
    pub dropped_storage: u64,
    /// Bytes on the wire of the kept frames.
    pub bytes: u64,
}
