//! When nothing can be received: a port that is down, a device that is lost, and a capture that continues afterwards.
//!
//! A port keeps its objects while it is down: rings, QPs and rules stay, and receive again when it is up. Files are
//! completed when it goes down, so that those on disk are whole for as long as it lasts, and the next ones state the
//! outage. A lost device takes all of its objects with it, so the capture ends in order, with what had completed by then;
//! another capture creates everything anew, and continues the counters.

use super::{Capture, End, Limits, Report, start::Startup};
use crate::{
    Error, config::OnPortDown, plan::Plan, stats::outage::Cause, sync::wakeup::Wakeup,
    time::system_ns, verbs::CVLAN_STRIPPING,
};
use std::time::{Duration, Instant};

impl Capture {
    /// Goes on after a capture of the same plan whose device was lost. Counters, notes and files of the report are
    /// those of both; files begin anew, and say what is missing before them. `limits` are for what is still to come
    /// ([`Limits::after`]).
    ///
    /// # Errors
    /// As [`Capture::start`], and likely for as long as the device is not back: it may be tried again.
    pub fn go_on(
        plan: &Plan,
        limits: Limits,
        earlier: &Report,
        wakeup: &Wakeup,
    ) -> Result<Self, Error> {
        Startup::new(plan, limits, Some(earlier), wakeup).begin()
    }

    /// The plan, with what has been changed since the start: filter, rules, shares of the queues, stripping.
    #[must_use]
    pub fn plan_now(&self, plan: &Plan) -> Plan {
        let mut now = plan.clone();
        now.reduction.filter = (*self.shared.filter.get()).clone();
        now.steering.clone_from(self.steering());
        self.table().clone_into(&mut now.table);
        now.wq_flags &= !CVLAN_STRIPPING;
        if self.wq_flags.cvlan_stripping() {
            now.wq_flags |= CVLAN_STRIPPING;
        }
        now
    }

    /// Notes that the device is gone; the end that follows.
    pub(super) fn lost(&self, how: String) -> End {
        self.shared.outages.begin(Cause::DeviceLost, system_ns());
        self.shared.note(format!("the device was lost: {how}"));
        End::DeviceLost(how)
    }

    /// This end, unless the device is why: verbs of one that is gone fail with EIO before its event is read.
    pub(super) fn lost_or(&self, end: End) -> End {
        match self.port.ask() {
            Ok(_) => end,
            Err(e) => self.lost(format!("it no longer answers: {e}")),
        }
    }

    /// About to let frames in: a device that was lost is back. Before the first rule, so that every file that begins
    /// from here on knows how long it was away.
    pub(super) fn is_back(&self) {
        if let Some(outage) = self.shared.outages.end(Cause::DeviceLost, system_ns()) {
            self.shared.note(format!("the device is back: {outage}"));
        }
    }

    /// When the first WQ was ready.
    #[must_use]
    pub fn ready(&self) -> Instant {
        self.shared.ready
    }

    /// Whether the device is why it ends.
    #[must_use]
    pub fn has_lost_its_device(&self) -> bool {
        self.end.as_ref().is_some_and(End::is_loss)
    }

    /// At the start: a port that is down already went down without an event, and one that is up may have come up so.
    pub(super) fn note_port_state(&self) {
        match self.port.ask() {
            Ok(true) => _ = self.shared.outages.end(Cause::PortDown, system_ns()),
            Ok(false) => {
                self.shared.outages.begin(Cause::PortDown, system_ns());
                self.note_port("was down");
            }
            // Found out elsewhere.
            Err(_) => {}
        }
    }

    pub(super) fn port_went_down(&mut self) {
        if self.on_port_down == OnPortDown::Stop {
            self.end.get_or_insert(End::PortDown);
            return;
        }
        self.shared.outages.begin(Cause::PortDown, system_ns());
        self.rotate();
        self.note_port("went down");
    }

    pub(super) fn port_came_up(&self) {
        self.shared.outages.end(Cause::PortDown, system_ns());
        self.note_port("came up");
    }

    fn note_port(&self, what: &str) {
        self.shared
            .note(format!("port {} {what}", self.port.number()));
    }
}

impl Limits {
    /// What is left of them when one capture has told `earlier`, and `passed` since its first WQ was ready; the end
    /// that has come, if nothing is left.
    ///
    /// # Errors
    /// The end.
    pub fn after(self, earlier: &Report, passed: Duration) -> Result<Self, End> {
        let captured = earlier.queues.iter().map(|queue| queue.captured).sum();
        let bytes = self
            .bytes
            .map(|it| it.saturating_sub(earlier.written.bytes));
        let files = self
            .files
            .map(|it| it.saturating_sub(earlier.written.files));
        let count = self.count.map(|count| count.saturating_sub(captured));
        let duration = self
            .duration
            .map(|duration| duration.saturating_sub(passed));
        if count == Some(0) {
            return Err(End::Count);
        }
        if duration.is_some_and(|left| left.is_zero()) {
            return Err(End::Duration);
        }
        if bytes == Some(0) {
            return Err(End::Bytes);
        }
        if files == Some(0) {
            return Err(End::Files);
        }
        Ok(Self {
            count,
            duration,
            bytes,
            files,
        })
    }
}
