//! Counts of frames by the verdict of their consumer.

/// Numbers of frames that a consumer has judged so far, by verdict.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerdictCounts {
    /// Number of frames that the consumer kept.
    pub captured: u64,
    /// Number of frames that the filter rejected.
    pub filtered: u64,
    /// Number of frames that sampling left out.
    pub sampled_out: u64,
    /// Number of frames left out because they repeat an earlier frame.
    pub deduplicated: u64,
    /// Number of frames left out because their flow exceeded its cutoff, the limit per flow.
    pub cut_off: u64,
    /// Number of frames lost because the write buffers were full.
    pub dropped_storage: u64,
    /// Number of bytes of the kept frames, on the wire without FCS.
    pub bytes: u64,
}
