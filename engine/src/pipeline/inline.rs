//! The inline shape: the loop feeds its consumer itself.

use super::{Consumer, Frame};
use crate::{
    rx::{Filled, Outlet, SlotMemory, Stamper, Taken},
    stats::{Ends, QueueCounters},
};
use std::sync::Arc;

/// A consumer on the loop's own core.
pub(crate) struct Inline<C> {
    consumer: C,
    ends: Ends,
    counters: Arc<QueueCounters>,
}

impl<C: Consumer> Inline<C> {
    pub(crate) fn new(consumer: C, counters: Arc<QueueCounters>) -> Self {
        Self {
            consumer,
            ends: Ends::default(),
            counters,
        }
    }

    /// Has the consumer take the frames of a batch, as `frame` makes them; how all have ended then.
    #[inline(always)]
    fn feed<'f>(
        &mut self,
        frames: &'f [Filled],
        memory: &'f SlotMemory,
        stamper: &mut Stamper,
        frame: impl Fn(&'f Filled, &'f SlotMemory, u64) -> Frame<'f>,
    ) -> Ends {
        let mut ends = self.ends;
        for filled in frames {
            let frame = frame(filled, memory, stamper.ns(filled));
            let verdict = self.consumer.frame(&frame);
            ends.count(verdict, frame.len);
        }
        ends
    }

    /// As [`Inline::feed`], each frame with its FCS.
    #[inline(never)]
    fn feed_with_fcs(
        &mut self,
        frames: &[Filled],
        memory: &SlotMemory,
        stamper: &mut Stamper,
    ) -> Ends {
        self.feed(frames, memory, stamper, Filled::frame)
    }
}

impl<C: Consumer> Outlet for Inline<C> {
    /// The tokens stay where they are, for the batch's reposting.
    #[inline]
    fn take(
        &mut self,
        frames: &mut Vec<Filled>,
        memory: &SlotMemory,
        stamper: &mut Stamper,
    ) -> Taken {
        self.consumer.batch();
        self.consumer
            .ahead(frames.iter().map(|it| it.bytes(memory)));
        // Decided once for a batch.
        let ends = match memory.has_fcs() {
            true => self.feed_with_fcs(frames, memory, stamper),
            false => self.feed(frames, memory, stamper, Filled::frame_without_fcs),
        };
        self.consumer.handled();
        self.counters.publish_ends(&ends);
        let before = std::mem::replace(&mut self.ends, ends);
        Taken {
            captured: ends.captured - before.captured,
            ..Taken::default()
        }
    }

    fn idle(&mut self) {
        self.consumer.idle();
    }
}
