//! Where a queue's parsers hand their parcels in, and frames leave for the file in the order of their reception.

use super::{
    Consumer, Verdict,
    parcel::{Item, Parcel},
    rounds::Rounds,
};
use crate::{
    rx::SlotMemory,
    stats::{Budget, Ends, QueueCounters},
    sync::{Arc, Mutex, Sender},
};

/// The gate of one queue.
pub(super) struct Gate<S> {
    state: Mutex<State<S>>,
}

/// What a gate is made of.
pub(super) struct GateAttr<S> {
    /// Where kept frames go.
    pub(super) sink: S,
    /// Frames reach the sink in the order of their reception, not of their judgement.
    pub(super) ordered: bool,
    pub(super) memory: Arc<SlotMemory>,
    pub(super) counters: Arc<QueueCounters>,
    pub(super) budget: Option<Arc<Budget>>,
    /// The way home. It has room for every parcel there can be.
    pub(super) home: Sender<Parcel>,
}

struct State<S> {
    attr: GateAttr<S>,
    rounds: Rounds<Parcel>,
    /// Room for a parcel that waits for no other.
    alone: Vec<Parcel>,
    ends: Ends,
    /// Text of the filter whose change the sink was told last.
    told: Option<String>,
}

/// The gate broke with another parser: its state is not to be trusted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Broken;

impl<S: Consumer> Gate<S> {
    pub(super) fn new(attr: GateAttr<S>) -> Self {
        Self {
            state: Mutex::new(State {
                attr,
                rounds: Rounds::new(),
                alone: Vec::new(),
                ends: Ends::default(),
                told: None,
            }),
        }
    }

    /// Hands a judged parcel in. Whatever has its turn by that leaves: frames to the sink, slots to the loop.
    pub(super) fn hand_in(&self, parcel: Parcel) -> Result<(), Broken> {
        let mut state = self.state.lock().map_err(|_| Broken)?;
        if state.attr.ordered {
            state.rounds.put(parcel.round, parcel.parts, parcel);
            while let Some(mut parts) = state.rounds.pop() {
                state.leave(&mut parts);
                state.rounds.give_back(parts);
            }
        } else {
            let mut alone = std::mem::take(&mut state.alone);
            alone.push(parcel);
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
    /// Ends the frames of parcels, counts them, and only then lets the slots go home.
    fn leave(&mut self, parts: &mut Vec<Parcel>) {
        self.tell(parts);
        self.attr.sink.batch();
        let (before, mut frames) = (self.ends.captured, 0);
        let (sink, memory, ends) = (&mut self.attr.sink, &*self.attr.memory, &mut self.ends);
        in_order(parts, |item| {
            frames += 1;
            let frame = item.frame(memory);
            let verdict = match item.verdict {
                Verdict::Captured => sink.frame(frame),
                refused => refused,
            };
            ends.count(verdict, frame.len);
        });
        self.attr.counters.publish_ends(&self.ends);
        if let Some(budget) = &self.attr.budget {
            budget.settle(frames, self.ends.captured - before);
        }
        for parcel in parts.drain(..) {
            // It has room; a loop that is gone wants no slots.
            let _ = self.attr.home.send(parcel);
        }
    }

    /// Tells the sink of another filter, before the first frames it holds for.
    fn tell(&mut self, parts: &[Parcel]) {
        let news = parts.iter().find_map(|parcel| parcel.filter.as_ref());
        let Some(filter) = news else { return };
        if self.told.as_deref() != Some(filter.expression()) {
            self.attr.sink.changed(filter.expression());
            self.told = Some(filter.expression().to_owned());
        }
    }
}

/// Calls `each` for the items of a round's parcels in the order of their reception.
#[inline]
fn in_order(parts: &[Parcel], mut each: impl FnMut(&Item)) {
    if let [only] = parts {
        return only.items.iter().for_each(each);
    }
    let mut rest: Vec<&[Item]> = parts.iter().map(|parcel| &parcel.items[..]).collect();
    let of_first = |items: &&mut &[Item]| items.first().map_or(u32::MAX, |item| item.at);
    while let Some(items) = rest.iter_mut().min_by_key(of_first)
        && let Some((first, behind)) = items.split_first()
    {
        each(first);
        *items = behind;
    }
}
