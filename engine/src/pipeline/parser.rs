//! A parser: a thread that judges the frames of the work batches it is sent.

use super::{Consumer, Frame, Verdict, resequencer::Resequencer, work_batch::WorkBatch};
use crate::{filter::FilterCell, rx::SlotMemory};
use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use serde::Serialize;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a parser goes without a work batch before its consumer is told, and again and again.
const IDLE_AFTER: Duration = Duration::from_millis(200);
/// Looks at an empty channel between two at the clock.
const EMPTY_LOOKS: u32 = 1024;

/// Where a parser runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ParserCpu {
    /// CPU it is pinned to.
    pub core: usize,
    /// Others have the same core.
    pub shared_core: bool,
}

/// What a parser does while it has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Look again: the least delay, a whole core.
    Spin,
    /// Look again, but let others run on this core in between.
    Yield,
    /// Sleep on the channel.
    Sleep,
}

/// Judges frames: a stage in front of a consumer.
pub(crate) trait Judge {
    /// What becomes of the frame, and the frame as it is handed on: cut, its FCS marked.
    fn judge<'f>(&mut self, frame: Frame<'f>) -> (Verdict, Frame<'f>);
    /// Frames of one batch follow.
    fn batch(&mut self);
    /// They have all been judged, and handed in.
    fn handled(&mut self);
    /// There were no frames for a moment.
    fn idle(&mut self);
}

/// A parser's thread.
pub(super) struct Parser<J, S> {
    pub(super) inbox: Receiver<WorkBatch>,
    pub(super) judge: J,
    /// Where `judge` looks for its filter. Nobody else turns it, so that the filter changes with a work batch.
    pub(super) cell: Arc<FilterCell>,
    pub(super) resequencer: Arc<Resequencer<S>>,
    pub(super) memory: Arc<SlotMemory>,
    pub(super) rest: Rest,
}

impl<J: Judge, S: Consumer> Parser<J, S> {
    /// Runs until the loop sends no more and the last work batch is handed in.
    pub(super) fn run(mut self) {
        while let Some(mut work_batch) = self.next() {
            if let Some(filter) = &work_batch.filter {
                self.cell.set((**filter).clone());
            }
            self.judge.batch();
            for item in &mut work_batch.items {
                let (verdict, frame) = self.judge.judge(item.frame(&self.memory));
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
            let found = match self.rest {
                Rest::Sleep => self.inbox.recv_timeout(IDLE_AFTER),
                Rest::Spin => self.look(std::hint::spin_loop),
                Rest::Yield => self.look(std::thread::yield_now),
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

    /// Looks at the channel for as long as the consumer need not be told.
    fn look(&self, between: impl Fn()) -> Result<WorkBatch, RecvTimeoutError> {
        let mut until = None;
        loop {
            for _ in 0..EMPTY_LOOKS {
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
