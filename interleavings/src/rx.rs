//! Stand-in for the slots of a ring: a token is a number, and its frame is a byte with that number.

use crate::pipeline::Frame;

/// Stand-in for the memory of the slots; empty, because a token contains its frame.
pub(crate) struct SlotMemory;

/// Stand-in for a filled slot; neither `Copy` nor `Clone`, like the engine's token.
pub(crate) struct Filled([u8; 1]);

impl Filled {
    pub(crate) fn new(number: u8) -> Self {
        Self([number])
    }

    pub(crate) fn bytes<'a>(&'a self, _memory: &'a SlotMemory) -> &'a [u8] {
        &self.0
    }

    pub(crate) fn frame<'a>(&'a self, memory: &'a SlotMemory, ns: u64) -> Frame<'a> {
        Frame::new(self.bytes(memory), 1, ns)
    }
}
