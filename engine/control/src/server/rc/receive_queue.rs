//! Shared receive queue of all clients. It is refilled as receives complete, and resized as
//! [`SrqSizing`] decides.

use super::srq_sizing::SrqSizing;
use crate::{protocol::SrqStatus, server::ControlConfig};
use std::{fs, path::PathBuf, time::Duration, time::Instant};
use wqcap_verbs::{Context, Listener, MessageMemory, MessageSlot, Pd, SRQ_RESIZE, Srq, VerbsError};

pub struct ReceiveQueue {
    pub srq: Srq,
    /// Message slots of receives that are not posted to the SRQ.
    spare: Vec<MessageSlot>,
    posted: u32,
    sizing: SrqSizing,
    /// Number of WRs to which the SRQ shrinks as soon as at most this many are posted; `None`: it
    /// does not shrink now.
    shrinking: Option<u32>,
    status: SrqStatus,
    /// Directory in sysfs with the hardware counters of the device's port.
    hw_counters: PathBuf,
}

impl ReceiveQueue {
    /// Creates the shared receive queue (SRQ) on the listener's device, posts receive WRs and arms
    /// the limit. `spare` has one slot of `messages` for each WR that the SRQ may ever hold.
    ///
    /// # Errors
    /// The error of a verb.
    pub fn new(
        listener: &Listener,
        config: &ControlConfig,
        pd: &Pd,
        messages: &mut MessageMemory,
        spare: Vec<MessageSlot>,
        now: Instant,
    ) -> Result<Self, VerbsError> {
        let cap = u32::try_from(spare.len()).unwrap_or(u32::MAX);
        let context = listener.context();
        let resizes = config.srq_resize && can_resize(context, pd, messages)?;
        let mut sizing = SrqSizing::new(config.srq, cap, resizes, config.srq_calm, now);
        let srq = listener.srq(pd, messages, sizing.size())?;
        // The SRQ may hold more WRs than requested.
        sizing.resized(srq.query()?.max_wr, now);
        let mut queue = Self {
            srq,
            spare,
            posted: 0,
            sizing,
            shrinking: None,
            status: SrqStatus {
                cap,
                ..SrqStatus::default()
            },
            hw_counters: PathBuf::from(format!(
                "/sys/class/infiniband/{}/ports/{}/hw_counters",
                context.name(),
                listener.port()
            )),
        };
        queue.refill(messages);
        queue.arm();
        Ok(queue)
    }

    /// Records a completed receive WR, whose message slot can be posted again.
    pub fn completed(&mut self, slot: MessageSlot) {
        self.posted = self.posted.saturating_sub(1);
        self.spare.push(slot);
    }

    /// Posts receive WRs up to the intended size of the SRQ.
    pub fn refill(&mut self, messages: &mut MessageMemory) {
        let wanted = self.shrinking.unwrap_or(self.sizing.size());
        while self.posted < wanted {
            let Some(slot) = self.spare.pop() else { return };
            match self.srq.post(messages, slot) {
                Ok(()) => self.posted += 1,
                Err((slot, e)) => {
                    self.spare.push(slot);
                    tracing::warn!(
                        "control.rdma: cannot post a receive WR to the SRQ: {e}; {} of {wanted} WRs are posted",
                        self.posted
                    );
                    return;
                }
            }
        }
    }

    fn arm(&mut self) {
        match self.srq.arm(self.sizing.limit()) {
            Ok(()) => self.status.armed += 1,
            Err(e) => {
                tracing::warn!("control.rdma: cannot arm the low-water limit of the SRQ: {e}");
            }
        }
    }

    /// Handles an event that the SRQ reached its limit, so that it was nearly empty. The SRQ grows
    /// if it may, and the limit is armed again, since its event disarms it.
    pub fn limit_reached(&mut self, messages: &mut MessageMemory, now: Instant) {
        self.status.limit_events += 1;
        self.shrinking = None;
        if let Some(size) = self.sizing.limit_reached(now) {
            self.resize(size, now);
        }
        self.refill(messages);
        self.arm();
    }

    fn resize(&mut self, size: u32, now: Instant) {
        let before = self.sizing.size();
        if let Err(e) = self.srq.resize(size) {
            tracing::warn!(
                "control.rdma: cannot resize the SRQ from {before} to {size} WRs: {e}; the SRQ keeps its size"
            );
            self.status.resize_refused += 1;
            self.sizing.refused();
            return;
        }
        let granted = self.srq.query().map_or(size, |attr| attr.max_wr);
        self.sizing.resized(granted, now);
        if self.sizing.size() > before {
            self.status.grown += 1;
        } else {
            self.status.shrunk += 1;
        }
    }

    /// Halves the SRQ if it has not reached its limit during the calm time. Receive WRs posted
    /// beyond the new size must be consumed first; until then no WR is posted again.
    pub fn shrink_if_calm(&mut self, messages: &mut MessageMemory, now: Instant) {
        if self.shrinking.is_none() {
            self.shrinking = self.sizing.shrink_to(now);
        }
        let Some(size) = self.shrinking.filter(|size| self.posted <= *size) else {
            return;
        };
        self.shrinking = None;
        // The limit must not exceed the size.
        if self.srq.arm((size / 4).max(1)).is_ok() {
            self.status.armed += 1;
            self.resize(size, now);
        }
        self.refill(messages);
        self.arm();
    }

    /// Returns the time until [`ReceiveQueue::shrink_if_calm`] may shrink the SRQ; `None`: the SRQ
    /// cannot shrink.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        self.sizing.wait(now)
    }

    /// Returns the current state of the SRQ for the command `status`.
    pub fn status(&mut self) -> SrqStatus {
        let attr = self.srq.query().ok();
        self.status.max_wr = attr.map_or(0, |it| it.max_wr);
        self.status.limit = attr.map_or(0, |it| it.srq_limit);
        self.status.posted = self.posted;
        self.status.resizes = self.sizing.resizes();
        self.status.qps = self.srq.holders() as u64;
        self.status.receiver_not_ready = ["send_rnr_err", "out_of_buffer"]
            .iter()
            .find_map(|name| fs::read_to_string(self.hw_counters.join(name)).ok())
            .and_then(|text| text.trim().parse().ok());
        self.status.clone()
    }
}

/// Returns `true` if the device resizes SRQs, according to its capabilities and to a trial on an
/// unused SRQ.
fn can_resize(context: &Context, pd: &Pd, messages: &MessageMemory) -> Result<bool, VerbsError> {
    if context.query_device()?.orig_attr.device_cap_flags & SRQ_RESIZE == 0 {
        return Ok(false);
    }
    let tried = Srq::create(pd, messages, 4).and_then(|mut srq| srq.resize(8));
    if let Err(e) = &tried {
        tracing::info!(
            "control.rdma: the device reports that it resizes SRQs, but a trial failed: {e}; \
             the SRQ has its largest size from the start"
        );
    }
    Ok(tried.is_ok())
}
