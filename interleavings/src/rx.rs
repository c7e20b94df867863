//! Stands in for a ring's slots: a token is a number, and its frame is that number.

use crate::pipeline::{Fcs, Frame};

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

    pub(crate) fn frame<'a>(&'a self, memory: &'a SlotMemory, ns: u64) -> Frame<'a> {
        Frame {
            bytes: self.bytes(memory),
            len: 1,
            fcs: None::<Fcs>,
            ns,
        }
    }
}
