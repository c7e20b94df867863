//! What is told of the frames that go on to the sink, beside what the sink makes of them.
//!
//! An observer sees each frame that the reductions have let pass, whole, with its headers parsed once for all who want
//! them. What the sink then has no room for has been seen all the same: so over a run, frames that were seen are
//! `captured + dropped_storage` in the ledger.
//!
//! May import: [`crate::frame`], [`crate::stats`], the clock of [`crate::rx`].

use crate::{frame::Headers, pipeline::Frame, rx::system_ns, stats::live};

/// Those who look on at one queue's frames.
#[derive(Default)]
pub struct Observer {
    /// Live statistics.
    pub live: Option<live::Recorder>,
}

impl Observer {
    /// Whether anyone looks on.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.live.is_some()
    }

    /// Shows a frame with its outermost and its innermost headers.
    #[inline]
    pub fn see(&mut self, frame: &Frame<'_>, outer: &Headers, inner: &Headers) {
        if let Some(live) = &mut self.live {
            live.count(frame.bytes, frame.len, frame.ns, outer, inner);
        }
    }

    /// The batch's frames have all been handled.
    #[inline]
    pub fn handled(&mut self) {
        if let Some(live) = &mut self.live {
            live.handled(system_ns);
        }
    }

    /// The queue has been empty for a moment.
    pub fn idle(&mut self) {
        if let Some(live) = &mut self.live {
            live.idle();
        }
    }
}
