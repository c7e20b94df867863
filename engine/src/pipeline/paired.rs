//! Paired mode: one receive loop polls several ports, and calls the consumer of all their frames
//! itself.

use super::{Consumer, Frame};
use crate::{
    rx::{Filled, MergedBatch, MergedOutlet, MergedRun, SlotMemory},
    stats::{QueueCounters, VerdictCounts},
};
use std::sync::Arc;

/// Consumer of the frames of all ports on the core of a paired loop, with the counts of its
/// verdicts for each port.
pub(crate) struct Paired<C> {
    /// Consumer of the frames of all ports.
    consumer: C,
    /// Counters of each port: the number of frames so far by the consumer's verdict, and the
    /// published counters of the port's queue.
    ports: Vec<(VerdictCounts, Arc<QueueCounters>)>,
}

impl<C: Consumer> Paired<C> {
    /// Creates the outlet of a paired loop, which polls the queues of all ports. `counters` are
    /// those of each port's queue.
    pub(crate) fn new(consumer: C, counters: Vec<Arc<QueueCounters>>) -> Self {
        let ports = counters.into_iter();
        Self {
            consumer,
            ports: ports.map(|it| (VerdictCounts::default(), it)).collect(),
        }
    }

    /// Passes frames of one port, made by `frame`, to the consumer.
    #[inline(always)]
    fn feed<'f>(
        &mut self,
        run: MergedRun<'f>,
        frame: impl Fn(&'f Filled, &'f SlotMemory, u64) -> Frame<'f>,
    ) {
        let ends = &mut self.ports[run.queue].0;
        for (filled, ns) in run.frames.iter().zip(run.stamps) {
            let mut frame = frame(filled, run.memory, *ns);
            // Each port has one queue. A plan has fewer ports than 256.
            frame.port = run.queue as u8;
            let verdict = self.consumer.frame(&frame);
            ends.count(verdict, frame.len);
        }
    }

    fn captured(&self) -> u64 {
        self.ports.iter().map(|(ends, _)| ends.captured).sum()
    }
}

impl<C: Consumer> MergedOutlet for Paired<C> {
    fn take(&mut self, batch: &MergedBatch<'_>) -> u64 {
        let before = self.captured();
        self.consumer.begin_batch();
        self.consumer
            .prefetch(batch.runs().flat_map(MergedRun::bytes));
        for run in batch.runs() {
            match run.memory.has_fcs() {
                true => self.feed(run, Filled::frame),
                false => self.feed(run, Filled::frame_without_fcs),
            }
        }
        self.consumer.end_batch();
        for (ends, counters) in &self.ports {
            counters.publish_ends(ends);
        }
        self.captured() - before
    }

    fn idle(&mut self) {
        self.consumer.idle();
    }
}
