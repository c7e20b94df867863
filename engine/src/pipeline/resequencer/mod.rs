//! Where a queue's parsers hand their work batches in, and frames leave for the file in the order of their reception.

mod batches;

use super::{
    Consumer, Verdict,
    work_batch::{Item, WorkBatch},
};
use crate::{
    rx::SlotMemory,
    stats::{Budget, Ends, QueueCounters},
    sync::{Arc, Mutex, Sender},
};
use batches::OpenBatches;

/// The resequencer of one queue.
pub(super) struct Resequencer<S> {
    state: Mutex<State<S>>,
}

/// What a resequencer is made of.
pub(super) struct ResequencerAttr<S> {
    /// Where kept frames go.
    pub(super) sink: S,
    /// Frames reach the sink in the order of their reception, not of their judgement.
    pub(super) ordered: bool,
    pub(super) memory: Arc<SlotMemory>,
    pub(super) counters: Arc<QueueCounters>,
    pub(super) budget: Option<Arc<Budget>>,
    /// The way home. It has room for every work batch there can be.
    pub(super) home: Sender<WorkBatch>,
}

struct State<S> {
    attr: ResequencerAttr<S>,
    rounds: OpenBatches<WorkBatch>,
    /// Room for a work batch that waits for no other.
    alone: Vec<WorkBatch>,
    ends: Ends,
    /// Text of the filter whose change the sink was told last.
    told: Option<String>,
}

/// The resequencer broke with another parser: its state is not to be trusted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Broken;

impl<S: Consumer> Resequencer<S> {
    pub(super) fn new(attr: ResequencerAttr<S>) -> Self {
        Self {
            state: Mutex::new(State {
                attr,
                rounds: OpenBatches::new(),
                alone: Vec::new(),
                ends: Ends::default(),
                told: None,
            }),
        }
    }

    /// Hands a judged work batch in. Whatever has its turn by that leaves: frames to the sink, slots to the loop.
    pub(super) fn hand_in(&self, work_batch: WorkBatch) -> Result<(), Broken> {
        let mut state = self.state.lock().map_err(|_| Broken)?;
        if state.attr.ordered {
            state
                .rounds
                .put(work_batch.round, work_batch.parts, work_batch);
            while let Some(mut parts) = state.rounds.pop() {
                state.leave(&mut parts);
                state.rounds.give_back(parts);
            }
        } else {
            let mut alone = std::mem::take(&mut state.alone);
            alone.push(work_batch);
            state.leave(&mut alone);
            state.alone = alone;
        }
        Ok(())
    }

    /// There were no frames for a moment.
    pub(super) fn idle(&self) {
        if let Ok(mut state) = self.state.lock() {
            state.attr.sink.idle();
        }
    }
}

impl<S: Consumer> State<S> {
    /// Ends the frames of work batches, counts them, and only then lets the slots go home.
    fn leave(&mut self, parts: &mut Vec<WorkBatch>) {
        self.tell(parts);
        self.attr.sink.batch();
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
            // It has room; a loop that is gone wants no slots.
            let _ = self.attr.home.send(work_batch);
        }
    }

    /// Tells the sink of another filter, before the first frames it holds for.
    fn tell(&mut self, parts: &[WorkBatch]) {
        let news = parts
            .iter()
            .find_map(|work_batch| work_batch.filter.as_ref());
        let Some(filter) = news else { return };
        if self.told.as_deref() != Some(filter.expression()) {
            self.attr.sink.changed(filter.expression());
            self.told = Some(filter.expression().to_owned());
        }
    }
}

/// Calls `each` for the items of a batch's work batches in the order of their reception.
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
