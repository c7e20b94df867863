//! Fan-out mode, side of the receive loop: distributes slots with frames to parser threads and
//! takes the slots back.

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
    rx::{Filled, Idle, Outlet, Slot, SlotMemory, SlotsLost, Stamper, Taken, pin},
    stats::{Budget, QueueCounters},
    sync::thread::spawn,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use std::{sync::Arc, thread::JoinHandle, time::Duration};
use wqcap_core::settings::{self, OnFull};

/// Maximum time that a receive loop waits for parser threads to return slots before it checks that
/// its parser threads are alive.
const LOOK: Duration = Duration::from_millis(50);

/// Attributes of a queue's fan-out to parser threads.
pub(crate) struct FanoutAttr<'a, S> {
    /// Index of the receive queue.
    pub(crate) queue: u16,
    /// Number of slots for frames of the queue.
    pub(crate) slots: u32,
    /// CPUs of the queue's parser threads, one entry per parser.
    pub(crate) seats: &'a [ParserCpu],
    /// Behaviour of a parser thread while its channel is empty.
    pub(crate) idle: settings::Idle,
    /// Action when a parser holds its share of slots: the receive loop waits, or drops frames.
    pub(crate) on_full: OnFull,
    /// Consumer after the parsers, which gets the frames that they keep.
    pub(crate) sink: S,
    /// `true` if the queue's frames must reach the sink in the order of their reception.
    pub(crate) ordered: bool,
    /// Memory of the queue's frame slots.
    pub(crate) memory: Arc<SlotMemory>,
    /// Published frame counters of the queue.
    pub(crate) counters: Arc<QueueCounters>,
    /// Budget of frames that the run may still capture; `None` means no limit.
    pub(crate) budget: Option<Arc<Budget>>,
    /// Cell with the present capture filter.
    pub(crate) cell: Arc<FilterCell>,
}

/// Parser threads of a queue, as its receive loop uses them.
pub(crate) struct Fanout {
    /// Index of the receive queue.
    queue: u16,
    /// Action when a parser holds its share of slots: the receive loop waits, or drops frames.
    on_full: OnFull,
    /// Channels from the receive loop to the parser threads.
    lanes: Vec<Lane>,
    /// Maximum frames that one parser thread may hold.
    share: usize,
    /// Channel on which work batches return from the resequencer to the receive loop.
    home: Receiver<WorkBatch>,
    /// Slots that parsers have returned and that are not reposted yet.
    returned: Vec<Slot>,
    /// Empty lists for the next batches of frames that are sent to parser threads; reused, so that
    /// a batch needs no allocation.
    spare: Vec<Vec<Item>>,
    /// Frames of a receive batch during their distribution to parsers.
    dealing: Vec<Filled>,
    /// Reader of the present capture filter.
    reader: FilterReader,
    /// Present capture filter; `None` until the filter first changes.
    filter: Option<Arc<Filter>>,
    /// Number of the next receive batch to send to the parsers.
    round: u64,
    /// Reason why frames can no longer be distributed to the parsers, such as a parser's panic.
    broken: Option<String>,
}

/// Channel from the receive loop to one parser thread.
struct Lane {
    /// Sender of work batches to the parser; `None` after the channel is closed.
    to: Option<Sender<WorkBatch>>,
    /// Thread of the parser, to be joined at the end; `None` after that.
    parser: Option<JoinHandle<()>>,
    /// Frames of the present receive batch that are dealt to this parser so far.
    open: Vec<Item>,
    /// Number of frames that may still be sent to the parser.
    room: usize,
    /// `true` if the parser thread has received the present capture filter.
    informed: bool,
}

impl Fanout {
    /// Starts the parser threads of a queue.
    ///
    /// Each parser takes one element of `stages`: the cell of its filter, and a constructor of its
    /// judge (the stage that decides which frames are kept), which runs on the parser's thread.
    ///
    /// # Errors
    /// A thread cannot be created.
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
        // A work batch has at least one frame, so these capacities are never exceeded.
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
            let idle = Idle::resolve(attr.idle, seat.shared_core);
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
            returned: Vec::new(),
            spare: Vec::new(),
            dealing: Vec::new(),
            reader,
            filter: None,
            round: 0,
            broken: None,
        })
    }

    /// Returns the index of the parser thread that gets the frames of a frame's flow.
    #[inline]
    fn lane_of(&self, bytes: &[u8]) -> usize {
        match self.lanes.len() {
            1 => 0,
            // Sampling by flow uses the high half of the hash. Parsers are chosen by the low half,
            // so that sampling does not favour a parser.
            lanes => {
                let hash = FlowKey::spread(bytes, &Headers::innermost(bytes)) & 0xffff_ffff;
                usize::try_from((hash * lanes as u64) >> 32).unwrap_or(0)
            }
        }
    }

    /// Ends the present receive batch and sends each parser its work batch. Frames for a parser
    /// that has ended go to `refused`.
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
            // The channel has room: it takes as many work batches as its parser may hold frames.
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

    /// Takes back the frame slots of a work batch.
    #[inline]
    fn receive(&mut self, work_batch: WorkBatch) {
        let mut items = work_batch.items;
        self.lanes[work_batch.lane].room += items.len();
        self.returned
            .extend(items.drain(..).map(|item| item.filled.into_slot()));
        self.spare.push(items);
    }

    /// Waits until parsers return frame slots to the receive loop. Returns `false` on a timeout or
    /// if the parsers have ended.
    fn await_home(&mut self, timeout: Duration) -> bool {
        match self.home.recv_timeout(timeout) {
            Ok(work_batch) => {
                self.receive(work_batch);
                true
            }
            Err(RecvTimeoutError::Timeout) => {
                self.check_parsers();
                false
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.broken = Some(gone(self.queue, 0));
                false
            }
        }
    }

    /// Marks the fan-out as broken if a parser thread has ended. A parser ends before its loop only
    /// by a panic.
    #[cold]
    fn check_parsers(&mut self) {
        let ended = |lane: &Lane| lane.parser.as_ref().is_none_or(JoinHandle::is_finished);
        if let Some(number) = self.lanes.iter().position(ended) {
            self.broken = Some(gone(self.queue, number));
        }
    }

    /// Waits until the parser number `lane`, which holds its share of frames, has room for another.
    /// Returns `false` if it will have none.
    #[cold]
    fn make_room(&mut self, lane: usize, refused: &mut Vec<Filled>) -> bool {
        if self.on_full == OnFull::Drop {
            return false;
        }
        // The parser must first receive the frames that it is to return.
        self.send(refused);
        while self.lanes[lane].room == 0 && self.broken.is_none() {
            self.await_home(LOOK);
        }
        self.lanes[lane].room > 0
    }

    /// Returns the number of frames that parsers and the resequencer hold.
    fn away(&self) -> usize {
        self.lanes.iter().map(|lane| self.share - lane.room).sum()
    }
}

/// Returns the error message for the parser thread of `queue` that panicked.
fn gone(queue: u16, parser: usize) -> String {
    format!("queue {queue}: parser thread {parser} ended in a panic")
}

impl Outlet for Fanout {
    /// Returns the number of frames that the receive loop may poll. With `OnFull::Hold`, every
    /// parser must be able to take all of them.
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

    /// Distributes the frames of a receive batch to the parser threads. Frames that no parser has
    /// room for stay in `frames`.
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
            self.check_parsers();
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
        home.append(&mut self.returned);
    }

    fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Closes the parsers' channels and waits until the parsers have returned every frame slot.
    fn finish(&mut self, home: &mut Vec<Slot>) -> Result<(), SlotsLost> {
        for lane in &mut self.lanes {
            lane.to = None;
        }
        // The last parser drops the resequencer, which holds the sending end of this channel.
        while let Ok(work_batch) = self.home.recv() {
            self.receive(work_batch);
        }
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            if lane.parser.take().is_some_and(|it| it.join().is_err()) {
                self.broken = Some(gone(self.queue, number));
            }
        }
        home.append(&mut self.returned);
        match (self.away(), self.broken.take()) {
            (0, None) => Ok(()),
            (frames, reason) => Err(SlotsLost {
                frames: frames as u64,
                why: reason.unwrap_or_else(|| {
                    format!(
                        "queue {}: the parser threads did not return {frames} slots of the receive ring",
                        self.queue
                    )
                }),
            }),
        }
    }
}
