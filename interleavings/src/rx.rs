//! Stands in for a ring's slots: a token is a number, and its frame is that number.

use crate::frame::FCS_LEN;

/// No memory is needed.
pub(crate) struct SlotMemory;

/// A token, neither `Copy` nor `Clone` as the engine's.
pub(crate) struct Filled([u8; 1]);

impl Filled {
    pub(crate) fn new(number: u8) -> Self {
        Self([number])
    }

    pub(crate) fn bytes<'a>(&'a self, _memory: &'a SlotMemory) -> &'a [u8] {
        &self.0
    }

    pub(crate) fn fcs(&self, _memory: &SlotMemory) -> Option<[u8; FCS_LEN]> {
        None
    }
}
