//! The fan-out shape, on the loop's side: slots are dealt out to parsers, and come home.

use super::{
    Consumer, Judge,
    parser::{Parser, ParserCpu},
    resequencer::{Resequencer, ResequencerAttr},
    work_batch::{Item, WorkBatch},
};
use crate::{
    Error,
    filter::{Filter, FilterCell, FilterReader},
    frame::{FlowKey, Headers},
    rx::{Filled, Idle, Lost, Outlet, Slot, SlotMemory, Stamper, Taken, pin},
    stats::{Budget, QueueCounters},
    sync::thread::spawn,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use std::{sync::Arc, thread::JoinHandle, time::Duration};
use wqcap_core::settings::{self, OnFull};

/// How long a loop waits for slots before it looks whether those who have them still live.
const LOOK: Duration = Duration::from_millis(50);

/// What a queue's fan-out is made of.
pub(crate) struct FanoutAttr<'a, S> {
    pub(crate) queue: u16,
    /// Slots of the queue.
    pub(crate) slots: u32,
    /// Where its parsers run, one entry each.
    pub(crate) seats: &'a [ParserCpu],
    /// What parsers do while they have nothing to do.
    pub(crate) idle: settings::Idle,
    /// When a parser is full: wait, instead of dropping.
    pub(crate) on_full: OnFull,
    /// Where kept frames go, and whether in the order of their reception.
    pub(crate) sink: S,
    pub(crate) ordered: bool,
    pub(crate) memory: Arc<SlotMemory>,
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) budget: Option<Arc<Budget>>,
    /// The filter that holds.
    pub(crate) cell: Arc<FilterCell>,
}

/// A queue's parsers, as their loop sees them.
pub(crate) struct Fanout {
    queue: u16,
    on_full: OnFull,
    lanes: Vec<Lane>,
    /// Frames that may be with one parser.
    share: usize,
    home: Receiver<WorkBatch>,
    /// Slots that came home and are not reposted yet.
    came: Vec<Slot>,
    /// Emptied lists of work batches, for reuse.
    spare: Vec<Vec<Item>>,
    /// A batch's frames while they are dealt out.
    dealing: Vec<Filled>,
    reader: FilterReader,
    /// The filter, once it has changed.
    filter: Option<Arc<Filter>>,
    round: u64,
    broken: Option<String>,
}

/// The way to one parser.
struct Lane {
    /// `None`: nothing more is sent.
    to: Option<Sender<WorkBatch>>,
    parser: Option<JoinHandle<()>>,
    /// Frames of the present round.
    open: Vec<Item>,
    /// Frames that may still be sent.
    room: usize,
    /// It knows the filter that holds.
    informed: bool,
}

impl Fanout {
    /// Starts a queue's parsers. For each of them there is one of `stages`: what it judges by, to be made on its own
    /// thread, and the cell that its filter comes through.
    ///
    /// # Errors
    /// A thread cannot be had.
    pub(crate) fn start<J, S, M>(
        attr: FanoutAttr<'_, S>,
        stages: impl IntoIterator<Item = (Arc<FilterCell>, M)>,
    ) -> Result<Self, Error>
    where
        J: Judge,
        S: Consumer + 'static,
        M: FnOnce() -> J + Send + 'static,
    {
        let share = (attr.slots as usize / 2 / attr.seats.len().max(1)).max(1);
        // A work batch has one frame at least, so that neither channel is ever fuller than this.
        let (home_in, home) = crossbeam_channel::bounded(share * attr.seats.len());
        let reader = FilterReader::new(attr.cell);
        let resequencer = Arc::new(Resequencer::new(ResequencerAttr {
            sink: attr.sink,
            ordered: attr.ordered,
            memory: Arc::clone(&attr.memory),
            counters: attr.counters,
            budget: attr.budget,
            home: home_in,
        }));
        let mut lanes = Vec::with_capacity(attr.seats.len());
        for (number, (seat, (cell, judge))) in attr.seats.iter().zip(stages).enumerate() {
            let (to, inbox) = crossbeam_channel::bounded(share);
            let (resequencer, memory) = (Arc::clone(&resequencer), Arc::clone(&attr.memory));
            let idle = Idle::of(attr.idle, seat.shared_core);
            let (core, queue) = (seat.core, attr.queue);
            let parser = spawn(&format!("wqcap-q{queue:02}p{number}"), move || {
                pin(core, format_args!("parser {number} of queue {queue}"));
                let parser = Parser {
                    inbox,
                    judge: judge(),
                    cell,
                    resequencer,
                    memory,
                    idle,
                };
                parser.run();
            })?;
            lanes.push(Lane {
                to: Some(to),
                parser: Some(parser),
                open: Vec::new(),
                room: share,
                informed: true,
            });
        }
        Ok(Self {
            queue: attr.queue,
            on_full: attr.on_full,
            lanes,
            share,
            home,
            came: Vec::new(),
            spare: Vec::new(),
            dealing: Vec::new(),
            reader,
            filter: None,
            round: 0,
            broken: None,
        })
    }

    /// The parser that a frame's flow belongs to.
    #[inline]
    fn lane_of(&self, bytes: &[u8]) -> usize {
        match self.lanes.len() {
            1 => 0,
            // The low half: sampling by flow chooses by the high one, and must not choose a parser with it.
            lanes => {
                let hash = FlowKey::spread(bytes, &Headers::innermost(bytes)) & 0xffff_ffff;
                usize::try_from((hash * lanes as u64) >> 32).unwrap_or(0)
            }
        }
    }

    /// Ends the present round: every parser gets its part of it. Frames that find their parser gone go to `refused`.
    fn send(&mut self, refused: &mut Vec<Filled>) {
        let parts = self.lanes.iter().filter(|it| !it.open.is_empty()).count();
        if parts == 0 {
            return;
        }
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            if lane.open.is_empty() {
                continue;
            }
            let list = self.spare.pop().unwrap_or_default();
            let work_batch = WorkBatch {
                round: self.round,
                parts,
                lane: number,
                filter: self.filter.clone().filter(|_| !lane.informed),
                items: std::mem::replace(&mut lane.open, list),
            };
            // There is room: a channel takes as many work batches as its parser may have frames.
            match lane.to.as_ref().map(|to| to.send(work_batch)) {
                Some(Ok(())) => lane.informed = true,
                Some(Err(back)) => {
                    let items = back.into_inner().items;
                    lane.room += items.len();
                    refused.extend(items.into_iter().map(|item| item.filled));
                    self.broken = Some(gone(self.queue, number));
                }
                None => {}
            }
        }
        self.round += 1;
    }

    /// A work batch's slots are home.
    #[inline]
    fn receive(&mut self, work_batch: WorkBatch) {
        let mut items = work_batch.items;
        self.lanes[work_batch.lane].room += items.len();
        self.came
            .extend(items.drain(..).map(|item| item.filled.into_slot()));
        self.spare.push(items);
    }

    /// Waits until slots come home; false: the time is over.
    fn await_home(&mut self, timeout: Duration) -> bool {
        match self.home.recv_timeout(timeout) {
            Ok(work_batch) => {
                self.receive(work_batch);
                true
            }
            Err(RecvTimeoutError::Timeout) => {
                self.look_after_parsers();
                false
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.broken = Some(gone(self.queue, 0));
                false
            }
        }
    }

    /// A parser ends before its loop does by a panic alone.
    #[cold]
    fn look_after_parsers(&mut self) {
        let ended = |lane: &Lane| lane.parser.as_ref().is_none_or(JoinHandle::is_finished);
        if let Some(number) = self.lanes.iter().position(ended) {
            self.broken = Some(gone(self.queue, number));
        }
    }

    /// A place on a lane that has none; false: there will be none.
    #[cold]
    fn make_room(&mut self, lane: usize, refused: &mut Vec<Filled>) -> bool {
        if self.on_full == OnFull::Drop {
            return false;
        }
        // What the parser is to hand back first must have reached it.
        self.send(refused);
        while self.lanes[lane].room == 0 && self.broken.is_none() {
            self.await_home(LOOK);
        }
        self.lanes[lane].room > 0
    }

    /// Frames that are with parsers or at the resequencer.
    fn away(&self) -> usize {
        self.lanes.iter().map(|lane| self.share - lane.room).sum()
    }
}

fn gone(queue: u16, parser: usize) -> String {
    format!("queue {queue}: parser {parser} ended in a panic")
}

impl Outlet for Fanout {
    /// Holding, no more than every parser could take, whichever the frames turn out to belong to.
    fn room(&self) -> usize {
        if self.on_full == OnFull::Hold {
            self.lanes.iter().map(|lane| lane.room).min().unwrap_or(0)
        } else {
            usize::MAX
        }
    }

    fn wait(&mut self, timeout: Duration) {
        self.await_home(timeout.min(LOOK));
    }

    /// Leaves the frames that found no room.
    fn take(
        &mut self,
        frames: &mut Vec<Filled>,
        memory: &SlotMemory,
        stamper: &mut Stamper,
    ) -> Taken {
        if self.reader.refresh() {
            self.filter = Some(Arc::new(self.reader.filter().clone()));
            for lane in &mut self.lanes {
                lane.informed = false;
            }
        }
        let mut dealing = std::mem::take(&mut self.dealing);
        std::mem::swap(frames, &mut dealing);
        let count = dealing.len();
        for (at, filled) in (0..).zip(dealing.drain(..)) {
            let number = self.lane_of(filled.bytes(memory));
            let ns = stamper.ns(&filled);
            if self.lanes[number].room == 0 && !self.make_room(number, frames) {
                frames.push(filled);
                continue;
            }
            let lane = &mut self.lanes[number];
            lane.room -= 1;
            lane.open.push(Item::new(filled, ns, at));
        }
        self.send(frames);
        self.dealing = dealing;
        if !frames.is_empty() {
            self.look_after_parsers();
        }
        Taken {
            captured: 0,
            away: count - frames.len(),
            refused: frames.len() as u64,
        }
    }

    #[inline]
    fn collect(&mut self, home: &mut Vec<Slot>) {
        while let Ok(work_batch) = self.home.try_recv() {
            self.receive(work_batch);
        }
        home.append(&mut self.came);
    }

    fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Lets the parsers finish what they have, and waits for every slot.
    fn finish(&mut self, home: &mut Vec<Slot>) -> Result<(), Lost> {
        for lane in &mut self.lanes {
            lane.to = None;
        }
        // The resequencer goes with the last parser, and the channel's other end with the resequencer.
        while let Ok(work_batch) = self.home.recv() {
            self.receive(work_batch);
        }
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            if lane.parser.take().is_some_and(|it| it.join().is_err()) {
                self.broken = Some(gone(self.queue, number));
            }
        }
        home.append(&mut self.came);
        match (self.away(), self.broken.take()) {
            (0, None) => Ok(()),
            (frames, why) => Err(Lost {
                frames: frames as u64,
                why: why.unwrap_or_else(|| {
                    format!("queue {}: {frames} slots did not come home", self.queue)
                }),
            }),
        }
    }
}
