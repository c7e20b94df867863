//! Inline mode: the receive loop calls the consumer of the queue's frames itself.

use super::{Consumer, Frame};
use crate::{
    rx::{Filled, Outlet, SlotMemory, Stamper, Taken},
    stats::{QueueCounters, VerdictCounts},
};
use std::sync::Arc;

/// Consumer on the receive loop's core, with the counts of its verdicts.
pub(crate) struct Inline<C> {
    /// Consumer of the queue's frames.
    consumer: C,
    /// Number of the queue's frames so far, by the consumer's verdict.
    ends: VerdictCounts,
    /// Published frame counters of the queue.
    counters: Arc<QueueCounters>,
}

impl<C: Consumer> Inline<C> {
    /// Creates the outlet of a queue without parser threads: the receive loop calls `consumer`
    /// itself.
    pub(crate) fn new(consumer: C, counters: Arc<QueueCounters>) -> Self {
        Self {
            consumer,
            ends: VerdictCounts::default(),
            counters,
        }
    }

    /// Passes the frames of a receive batch, made by `frame`, to the consumer. Returns the updated
    /// counts of verdicts.
    #[inline(always)]
    fn feed<'f>(
        &mut self,
        frames: &'f [Filled],
        memory: &'f SlotMemory,
        stamper: &mut Stamper,
        frame: impl Fn(&'f Filled, &'f SlotMemory, u64) -> Frame<'f>,
    ) -> VerdictCounts {
        let mut ends = self.ends;
        for filled in frames {
            let frame = frame(filled, memory, stamper.ns(filled));
            let verdict = self.consumer.frame(&frame);
            ends.count(verdict, frame.len);
        }
        ends
    }

    /// Passes the frames of a receive batch with their FCS to the consumer. Returns the updated
    /// counts of verdicts.
    #[inline(never)]
    fn feed_with_fcs(
        &mut self,
        frames: &[Filled],
        memory: &SlotMemory,
        stamper: &mut Stamper,
    ) -> VerdictCounts {
        self.feed(frames, memory, stamper, Filled::frame)
    }
}

impl<C: Consumer> Outlet for Inline<C> {
    /// Passes all frames of a receive batch to the consumer. The slots' tokens stay in `frames` for
    /// the reposting of the batch.
    #[inline]
    fn take(
        &mut self,
        frames: &mut Vec<Filled>,
        memory: &SlotMemory,
        stamper: &mut Stamper,
    ) -> Taken {
        self.consumer.begin_batch();
        self.consumer
            .prefetch(frames.iter().map(|it| it.bytes(memory)));
        // The choice is made once per batch.
        let ends = match memory.has_fcs() {
            true => self.feed_with_fcs(frames, memory, stamper),
            false => self.feed(frames, memory, stamper, Filled::frame_without_fcs),
        };
        self.consumer.end_batch();
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
