//! Parser threads, which decide for the frames of work batches whether they are kept.

use super::{Consumer, Judge, resequencer::Resequencer, work_batch::WorkBatch};
use crate::{
    filter::FilterCell,
    rx::{Idle, SlotMemory},
};
use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use serde::Serialize;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Interval at which a parser that gets no work batch calls `idle` of its judge and its sink.
const IDLE_AFTER: Duration = Duration::from_millis(200);
/// Number of polls of a parser's empty channel between two readings of the clock.
const EMPTY_POLLS: u32 = 1024;

/// CPU on which a parser thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ParserCpu {
    /// CPU that the parser thread is pinned to.
    pub core: usize,
    /// `true` if another loop or parser shares the parser's core.
    pub shared_core: bool,
}

/// Parser thread: the stage that it runs, with its channels.
pub(super) struct Parser<J, S> {
    /// Channel of work batches from the receive loop to the parser.
    pub(super) inbox: Receiver<WorkBatch>,
    /// Stage that decides which frames the parser keeps.
    pub(super) judge: J,
    /// Cell with the capture filter of `judge`. Only this thread changes it, so that the filter
    /// changes with a work batch.
    pub(super) cell: Arc<FilterCell>,
    /// Resequencer of the queue, which takes the finished work batches.
    pub(super) resequencer: Arc<Resequencer<S>>,
    /// Memory of the queue's frame slots.
    pub(super) memory: Arc<SlotMemory>,
    /// Behaviour of the parser while its channel is empty.
    pub(super) idle: Idle,
}

impl<J: Judge, S: Consumer> Parser<J, S> {
    /// Processes work batches until the receive loop closes the parser's channel.
    pub(super) fn run(mut self) {
        while let Some(mut work_batch) = self.next() {
            if let Some(filter) = &work_batch.filter {
                self.cell.set((**filter).clone());
            }
            self.judge.begin_batch();
            let frames = work_batch.items.iter();
            self.judge
                .prefetch(frames.map(|it| it.filled.bytes(&self.memory)));
            for item in &mut work_batch.items {
                let mut frame = item.frame(&self.memory);
                let verdict = self.judge.judge(&mut frame);
                let (kept, bad_fcs) = (frame.bytes.len(), frame.fcs.is_some_and(|it| it.bad));
                item.set_verdict(verdict, kept, bad_fcs);
            }
            if self.resequencer.submit(work_batch).is_err() {
                return;
            }
            self.judge.end_batch();
        }
    }

    /// Returns the parser's next work batch, or `None` if the channel is closed.
    fn next(&mut self) -> Option<WorkBatch> {
        loop {
            let found = match self.idle {
                Idle::Sleep => self.inbox.recv_timeout(IDLE_AFTER),
                Idle::Spin => self.poll(std::hint::spin_loop),
                Idle::Yield => self.poll(std::thread::yield_now),
            };
            match found {
                Ok(work_batch) => return Some(work_batch),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    self.judge.idle();
                    self.resequencer.idle();
                }
            }
        }
    }

    /// Polls the parser's channel for at most [`IDLE_AFTER`].
    fn poll(&self, between: impl Fn()) -> Result<WorkBatch, RecvTimeoutError> {
        let mut until = None;
        loop {
            for _ in 0..EMPTY_POLLS {
                match self.inbox.try_recv() {
                    Ok(work_batch) => return Ok(work_batch),
                    Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                    Err(TryRecvError::Empty) => between(),
                }
            }
            let now = Instant::now();
            if now >= *until.get_or_insert(now + IDLE_AFTER) {
                return Err(RecvTimeoutError::Timeout);
            }
        }
    }
}
