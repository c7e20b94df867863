//! Fake queue without a device: a test scripts its completions.
#![allow(unsafe_code)]

use super::pool::{FrameFacts, Slot, SlotMemory};
use super::{Account, FLUSHED, Queue, Ring, RingAttr, RingError, Wake};
use std::{
    collections::VecDeque,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard},
};
use wqcap_verbs::{VerbsError, WqState};

/// Scripted action of the fake receive device.
#[derive(Debug)]
pub(crate) enum ScriptStep {
    /// The fake device writes these bytes into the next posted slot and completes it.
    Frame(Vec<u8>),
    /// The fake device completes the next posted slot with a frame of this time stamp.
    Stamped(u64),
    /// The fake device completes the next posted slot with this `ibv_wc_status`.
    Error(u32),
    /// The fake device completes a slot of this index, which is not posted.
    Bogus(u64),
    /// The fake device ends the current poll without another completion.
    Pause,
}

/// Script and state of the fake receive device, shared with the test.
#[derive(Debug, Default)]
pub(crate) struct Script {
    /// Remaining scripted actions of the fake device.
    pub(crate) steps: VecDeque<ScriptStep>,
    /// Slots that the fake device has, in the order of posting.
    pub(crate) posted: VecDeque<u32>,
    /// States to which the fake device's WQ was set, in order.
    pub(crate) states: Vec<WqState>,
    /// Largest number of slots posted to the fake device with one list.
    pub(crate) longest_list: usize,
    /// Number of WRs that the fake device's WQ still flushes in the error state; `None`: all.
    pub(crate) flushes: Option<usize>,
    /// `true`: the WRs that the fake device did not flush complete at the reset; `false`: they
    /// never complete.
    pub(crate) flushes_at_reset: bool,
    /// Scripted actions appended to `steps` when the fake device's WQ becomes ready.
    pub(crate) once_ready: Vec<ScriptStep>,
    /// Function that returns `true` for a present WQ state that the fake device refuses in a RESET
    /// request; `None`: no request is refused.
    pub(crate) refuses_reset: Option<fn(Option<WqState>) -> bool>,
    /// Number of times that the fake device was polled.
    pub(crate) polls: u64,
    /// `true`: frames of remaining actions have arrived, in a block that is not passed on.
    pub(crate) has_block: bool,
    /// `true`: most of the fake device's memory has frames that were not entered.
    pub(crate) is_short_of_memory: bool,
}

/// Receive queue of a fake device that follows a [`Script`].
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeQueue(Arc<Mutex<Script>>);

impl FakeQueue {
    pub(crate) fn script(&self) -> MutexGuard<'_, Script> {
        self.0
            .lock()
            .expect("no thread panics while it holds the script")
    }

    /// Creates a receive ring of `wrs` slots of 256 bytes over this fake queue.
    pub(crate) fn ring(&self, wrs: u32) -> Ring<Self> {
        let attr = RingAttr {
            wrs,
            buffer: 256,
            max_sge: 1,
            ..RingAttr::default()
        };
        Ring::without_device(self.clone(), attr).expect("memory can be allocated")
    }
}

fn facts(len: u32) -> FrameFacts {
    FrameFacts {
        len,
        ..FrameFacts::default()
    }
}

// SAFETY: `post` marks the slots whose tokens it consumes; no device writes to the slots.
unsafe impl Queue for FakeQueue {
    fn poll(&mut self, account: &mut Account<'_>, limit: usize) -> Result<(), RingError> {
        let mut script = self.script();
        script.polls += 1;
        for _ in 0..limit {
            let flushes = match script.states.last() {
                Some(WqState::Error) => script.flushes != Some(0),
                Some(WqState::Reset) => script.flushes_at_reset,
                _ => false,
            };
            match script.steps.pop_front() {
                Some(ScriptStep::Pause) => break,
                Some(ScriptStep::Bogus(index)) => account.enter(index, 0, facts(60))?,
                Some(ScriptStep::Frame(bytes)) => {
                    let index = script.posted.pop_front().expect("a slot is posted");
                    account.write(index, &bytes);
                    account.enter(index.into(), 0, facts(bytes.len() as u32))?;
                }
                Some(ScriptStep::Stamped(stamp)) => {
                    let index = script.posted.pop_front().expect("a slot is posted");
                    account.enter(index.into(), 0, FrameFacts { stamp, ..facts(60) })?;
                }
                Some(ScriptStep::Error(status)) => {
                    let index = script.posted.pop_front().expect("a slot is posted");
                    account.enter(index.into(), status, facts(0))?;
                }
                None if flushes => match script.posted.pop_front() {
                    Some(index) => {
                        script.flushes = script.flushes.map(|left| left.saturating_sub(1));
                        account.enter(index.into(), FLUSHED, facts(0))?;
                    }
                    None => break,
                },
                None => break,
            }
        }
        Ok(())
    }

    fn post(
        &mut self,
        posted: &mut [bool],
        slots: impl Iterator<Item = Slot>,
        _memory: &SlotMemory,
        _attr: RingAttr,
    ) -> Result<u32, i32> {
        let mut script = self.script();
        let before = script.posted.len();
        for slot in slots {
            assert!(!posted[slot.index() as usize], "posted twice");
            posted[slot.index() as usize] = true;
            script.posted.push_back(slot.index());
        }
        let count = script.posted.len() - before;
        script.longest_list = script.longest_list.max(count);
        Ok(u32::try_from(count).expect("the count fits in u32"))
    }

    fn set_state(&mut self, from: Option<WqState>, state: WqState) -> Result<(), VerbsError> {
        let mut script = self.script();
        if state == WqState::Reset && script.refuses_reset.is_some_and(|refuses| refuses(from)) {
            let refused = VerbsError::from_errno("ibv_modify_wq", "stale", libc::EINVAL);
            return Err(refused);
        }
        if state == WqState::Ready {
            script.posted.clear();
            let then = std::mem::take(&mut script.once_ready);
            script.steps.extend(then);
        }
        script.states.push(state);
        Ok(())
    }

    fn set_cvlan_stripping(&mut self, _on: bool) -> Result<(), VerbsError> {
        Ok(())
    }

    fn has_partial_block(&self) -> bool {
        let script = self.script();
        script.has_block && !script.steps.is_empty()
    }

    fn is_short_of_memory(&self) -> bool {
        self.script().is_short_of_memory
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self, _wake: Wake) -> Result<(), VerbsError> {
        Ok(())
    }

    fn take_event(&mut self) -> bool {
        false
    }
}
