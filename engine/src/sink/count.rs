//! Sink of `output.format = "none"`: counts frames and writes nothing.

use crate::pipeline::{Consumer, Frame, Verdict};

/// Consumer that counts every frame as captured and discards it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count;

impl Consumer for Count {
    #[inline]
    fn frame(&mut self, _frame: &Frame<'_>) -> Verdict {
        Verdict::Captured
    }
}
