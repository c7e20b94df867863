//! Resequencer: takes work batches from a queue's parsers and passes frames to the sink in the
//! order of their reception.

mod batches;

use super::{
    Consumer, Verdict,
    work_batch::{Item, WorkBatch},
};
use crate::{
    rx::SlotMemory,
    stats::{Budget, QueueCounters, VerdictCounts},
    sync::{Arc, Mutex, Sender},
};
use batches::OpenBatches;

/// Resequencer of one queue: it puts the frames of its parsers back in order of reception.
pub(super) struct Resequencer<S> {
    /// State of the resequencer, which the parsers share and lock.
    state: Mutex<ResequencerState<S>>,
}

/// Parts from which the resequencer of a queue is created.
pub(super) struct ResequencerAttr<S> {
    /// Consumer after the parsers, which gets the frames that they keep.
    pub(super) sink: S,
    /// `true` if frames reach the sink in the order of their reception, `false` if in the order in
    /// which the parsers finish them.
    pub(super) ordered: bool,
    /// Memory of the queue's frame slots.
    pub(super) memory: Arc<SlotMemory>,
    /// Published frame counters of the queue.
    pub(super) counters: Arc<QueueCounters>,
    /// Budget of frames that the run may still capture; `None` means no limit.
    pub(super) budget: Option<Arc<Budget>>,
    /// Channel on which work batches return to the receive loop. The channel has room for all work
    /// batches of the queue.
    pub(super) home: Sender<WorkBatch>,
}

/// State of the resequencer of a queue, which its parsers share.
struct ResequencerState<S> {
    /// Sink and counters of the queue, and the channel on which empty work batches return to its
    /// receive loop.
    attr: ResequencerAttr<S>,
    /// Work batches of parsers that wait for earlier work batches.
    batches: OpenBatches<WorkBatch>,
    /// Reused list for the single work batch that a queue without an order of frames passes on.
    alone: Vec<WorkBatch>,
    /// Number of the queue's frames so far, by verdict.
    ends: VerdictCounts,
    /// Expression of the capture filter that the sink was last notified of.
    reported_filter: Option<String>,
}

/// Error of a resequencer whose state is unreliable after a panic of another parser.
#[derive(Clone, Copy, Debug)]
pub(super) struct Broken;

impl<S: Consumer> Resequencer<S> {
    /// Creates the resequencer of one queue, which puts the frames of its parsers back in order.
    pub(super) fn new(attr: ResequencerAttr<S>) -> Self {
        Self {
            state: Mutex::new(ResequencerState {
                attr,
                batches: OpenBatches::new(),
                alone: Vec::new(),
                ends: VerdictCounts::default(),
                reported_filter: None,
            }),
        }
    }

    /// Takes a parser's work batch with its decisions. Every work batch whose turn has come is
    /// delivered: frames go to the sink, slots to the receive loop.
    pub(super) fn submit(&self, work_batch: WorkBatch) -> Result<(), Broken> {
        let mut state = self.state.lock().map_err(|_| Broken)?;
        if state.attr.ordered {
            state
                .batches
                .push(work_batch.round, work_batch.parts, work_batch);
            while let Some(mut parts) = state.batches.pop() {
                state.deliver(&mut parts);
                state.batches.recycle(parts);
            }
        } else {
            let mut alone = std::mem::take(&mut state.alone);
            alone.push(work_batch);
            state.deliver(&mut alone);
            state.alone = alone;
        }
        Ok(())
    }

    /// Notifies the sink that no frame has arrived on the queue for a moment.
    pub(super) fn idle(&self) {
        if let Ok(mut state) = self.state.lock() {
            state.attr.sink.idle();
        }
    }
}

impl<S: Consumer> ResequencerState<S> {
    /// Passes the frames of work batches to the sink, publishes the counts, and then returns the
    /// frame slots to the receive loop.
    fn deliver(&mut self, parts: &mut Vec<WorkBatch>) {
        self.report_filter(parts);
        self.attr.sink.begin_batch();
        let (before, mut frames) = (self.ends.captured, 0);
        let (sink, memory, ends) = (&mut self.attr.sink, &*self.attr.memory, &mut self.ends);
        in_order(parts, |item| {
            frames += 1;
            let frame = item.frame(memory);
            let verdict = match item.verdict {
                Verdict::Captured => sink.frame(&frame),
                refused => refused,
            };
            ends.count(verdict, frame.len);
        });
        self.attr.counters.publish_ends(&self.ends);
        if let Some(budget) = &self.attr.budget {
            budget.settle(frames, self.ends.captured - before);
        }
        for work_batch in parts.drain(..) {
            // The channel has room. A loop that has ended needs no slots.
            let _ = self.attr.home.send(work_batch);
        }
    }

    /// Notifies the sink of a new capture filter, before the first frames that it applies to.
    fn report_filter(&mut self, parts: &[WorkBatch]) {
        let new = parts
            .iter()
            .find_map(|work_batch| work_batch.filter.as_ref());
        let Some(filter) = new else { return };
        if self.reported_filter.as_deref() != Some(filter.expression()) {
            self.attr.sink.filter_changed(filter.expression());
            self.reported_filter = Some(filter.expression().to_owned());
        }
    }
}

/// Calls `each` for the items of a receive batch's work batches in the order of their reception.
#[inline]
fn in_order(parts: &[WorkBatch], mut each: impl FnMut(&Item)) {
    if let [only] = parts {
        return only.items.iter().for_each(each);
    }
    let mut rest: Vec<&[Item]> = parts
        .iter()
        .map(|work_batch| &work_batch.items[..])
        .collect();
    let of_first = |items: &&mut &[Item]| items.first().map_or(u32::MAX, |item| item.at);
    while let Some(items) = rest.iter_mut().min_by_key(of_first)
        && let Some((first, behind)) = items.split_first()
    {
        each(first);
        *items = behind;
    }
}
