//! Counts of frames by a consumer's verdict.

/// Number of frames by verdict so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    /// Frames that were kept.
    pub(crate) captured: u64,
    /// Frames that the filter rejected.
    pub(crate) filtered: u64,
    /// Frames that sampling left out.
    pub(crate) sampled_out: u64,
    /// Repetitions of kept frames.
    pub(crate) deduplicated: u64,
    /// Frames beyond their flow's cutoff limit.
    pub(crate) cut_off: u64,
    /// Frames without space in the write buffers.
    pub(crate) dropped_storage: u64,
    /// Bytes on the wire of captured frames.
    pub(crate) bytes: u64,
}
