//! Checks of a queue's first frames against what the NIC was asked for: the form of its time stamps,
//! and the FCS.

use crate::{
    clock::SharedConversion,
    error::RingError,
    ring::{Filled, SlotMemory},
    worker::StampSource,
};
use wqcap_core::time::system_ns;

/// Number of frames of which at least one must have its right FCS. The port drops frames with a
/// wrong one, unless `rx-all` is set.
const FCS_FRAMES: u32 = 8;

/// Checks of a queue's first frames that are still to be made.
#[derive(Debug)]
pub(super) struct FirstFrames {
    is_pending: bool,
    checks_stamps: bool,
    /// Number of frames that may still have a wrong FCS before the queue stops.
    fcs_left: u32,
}

impl FirstFrames {
    pub(super) fn new(clock: &StampSource, memory: &SlotMemory) -> Self {
        let checks_stamps = matches!(clock, StampSource::Device(_));
        let fcs_left = if memory.has_fcs() { FCS_FRAMES } else { 0 };
        Self {
            is_pending: checks_stamps || fcs_left > 0,
            checks_stamps,
            fcs_left,
        }
    }

    /// Returns `true` until the first frames of the queue are checked.
    #[inline]
    pub(super) fn are_pending(&self) -> bool {
        self.is_pending
    }

    /// Checks the first received frames of a queue. Returns `true` if the NIC stamps them in UTC
    /// instead of ticks, and no other queue has found that before.
    ///
    /// # Errors
    /// No frame has its FCS.
    #[cold]
    pub(super) fn check(
        &mut self,
        frames: &[Filled],
        memory: &SlotMemory,
        clock: &StampSource,
    ) -> (bool, Result<(), RingError>) {
        let mut in_utc = false;
        if let (true, StampSource::Device(clock), Some(first)) =
            (self.checks_stamps, clock, frames.first())
        {
            self.checks_stamps = false;
            in_utc = is_first_in_utc(clock, first.stamp());
        }
        for frame in frames.iter().filter(|it| !it.tag_lost()) {
            let Some(fcs) = frame.fcs(memory).filter(|_| self.fcs_left > 0) else {
                break;
            };
            self.fcs_left -= 1;
            if crc32fast::hash(frame.bytes(memory)).to_le_bytes() == fcs {
                self.fcs_left = 0;
            } else if self.fcs_left == 0 {
                return (in_utc, Err(RingError::Fcs(FCS_FRAMES)));
            }
        }
        self.is_pending = self.checks_stamps || self.fcs_left > 0;
        (in_utc, Ok(()))
    }
}

/// Switches the conversion to UTC if a stamp is in UTC. Returns `true` if this call switched it.
fn is_first_in_utc(clock: &SharedConversion, stamp: u64) -> bool {
    clock.load().is_utc_stamp(stamp, system_ns()) && clock.switch_to_utc()
}
