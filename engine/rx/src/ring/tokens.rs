//! Tokens of buffers that hold many frames: each frame has a token that names its buffer, and the
//! device or the kernel has one more while it may write to the buffer.

use super::pool::Slot;

/// Number of tokens of each receive buffer that were not returned.
#[derive(Debug, Default)]
pub(super) struct BufferTokens(Box<[u32]>);

impl BufferTokens {
    /// Creates the token counts of `buffers` receive buffers, none of which is posted yet: the
    /// token of the device exists from the start.
    pub(super) fn new(buffers: u32) -> Self {
        Self(vec![1; buffers as usize].into())
    }

    /// Counts tokens that were created for `frames` frames in a buffer.
    #[inline]
    pub(super) fn add(&mut self, buffer: u32, frames: usize) {
        self.0[buffer as usize] += frames as u32;
    }

    /// Counts returned tokens, and passes each buffer without any other token to `whole`, for
    /// posting. Tokens of one buffer are usually consecutive, so each run of them is counted in one
    /// step.
    #[inline]
    pub(super) fn gather(
        &mut self,
        mut home: impl Iterator<Item = Slot>,
        mut whole: impl FnMut(Slot),
    ) {
        let mut next = home.next();
        while let Some(slot) = next {
            let mut count = 1;
            next = loop {
                match home.next() {
                    Some(other) if other.index() == slot.index() => count += 1,
                    other => break other,
                }
            };
            let tokens = &mut self.0[slot.index() as usize];
            *tokens -= count;
            if *tokens == 0 {
                // The device's token, once the buffer is posted.
                *tokens = 1;
                whole(slot);
            }
        }
    }
}
