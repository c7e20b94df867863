//! `output.format = "none"`: frames are counted, nothing is kept.

use crate::pipeline::{Consumer, Frame, Verdict};

/// Keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count;

impl Consumer for Count {
    #[inline]
    fn frame(&mut self, _frame: &Frame<'_>) -> Verdict {
        Verdict::Captured
    }
}
