//! A parser: a thread that judges the frames of the work batches it is sent.

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

/// After so long without a work batch, and each time again, the consumer's `idle` is called.
const IDLE_AFTER: Duration = Duration::from_millis(200);
/// Polls of an empty channel between two readings of the clock.
const EMPTY_POLLS: u32 = 1024;

/// Where a parser runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ParserCpu {
    /// CPU it is pinned to.
    pub core: usize,
    /// Others have the same core.
    pub shared_core: bool,
}

/// A parser's thread.
pub(super) struct Parser<J, S> {
    pub(super) inbox: Receiver<WorkBatch>,
    pub(super) judge: J,
    /// Where `judge` looks for its filter. Nobody else turns it, so that the filter changes with a work batch.
    pub(super) cell: Arc<FilterCell>,
    pub(super) resequencer: Arc<Resequencer<S>>,
    pub(super) memory: Arc<SlotMemory>,
    pub(super) idle: Idle,
}

impl<J: Judge, S: Consumer> Parser<J, S> {
    /// Runs until the loop sends no more and the last work batch is handed in.
    pub(super) fn run(mut self) {
        while let Some(mut work_batch) = self.next() {
            if let Some(filter) = &work_batch.filter {
                self.cell.set((**filter).clone());
            }
            self.judge.batch();
            let frames = work_batch.items.iter();
            self.judge
                .ahead(frames.map(|it| it.filled.bytes(&self.memory)));
            for item in &mut work_batch.items {
                let mut frame = item.frame(&self.memory);
                let verdict = self.judge.judge(&mut frame);
                let (kept, bad_fcs) = (frame.bytes.len(), frame.fcs.is_some_and(|it| it.bad));
                item.judged(verdict, kept, bad_fcs);
            }
            if self.resequencer.hand_in(work_batch).is_err() {
                return;
            }
            self.judge.handled();
        }
    }

    /// The next work batch; `None`: there will be none.
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

    /// Polls the channel for at most [`IDLE_AFTER`].
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
