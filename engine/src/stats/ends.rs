//! What a consumer says of the frames it was handed.

/// How frames have ended so far that a consumer has judged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    pub(crate) captured: u64,
    pub(crate) filtered: u64,
    pub(crate) sampled_out: u64,
    pub(crate) deduplicated: u64,
    pub(crate) cut_off: u64,
    pub(crate) dropped_storage: u64,
    pub(crate) bytes: u64,
}
