//! Outages: a port that is down, a device that is lost, and the capture that continues afterwards.
//!
//! A port keeps its objects while it is down: rings, QPs and rules stay, and receive again when the
//! port is up. Files are completed when the port goes down, so that files on disk are complete
//! during the outage; the next files state the outage. A lost device loses all of its objects, so
//! the capture ends in order, with the frames completed by then. Another capture creates all
//! objects again and continues the counters.

use super::{Capture, End, Limits, Report, Resources, source::PortSource, start::Startup};
use crate::{
    Error, config::OnPortDown, plan::Plan, stats::outage::Cause, sync::wakeup::Wakeup,
    time::system_ns, verbs::CVLAN_STRIPPING,
};
use std::time::{Duration, Instant};

impl Capture {
    /// Starts a capture that continues an earlier one of the same plan whose device was lost. The
    /// report has the sum of both captures' counters, and their notes and files. New files are
    /// started; they state what is missing before them. `limits` apply to the rest of the run
    /// ([`Limits::after`]).
    ///
    /// # Errors
    /// The errors of [`Capture::start`]. They are likely while the device is lost; the call may be
    /// repeated.
    pub fn continue_from(
        plan: &Plan,
        resources: &Resources,
        limits: Limits,
        earlier: &Report,
        wakeup: &Wakeup,
    ) -> Result<Self, Error> {
        Startup::new(plan, resources, limits, Some(earlier), wakeup).begin()
    }

    /// Returns the capture's plan with all changes since the start: filter, rules, shares of the
    /// queues, VLAN stripping.
    #[must_use]
    pub fn current_plan(&self, plan: &Plan) -> Plan {
        let mut now = plan.clone();
        now.reduction.filter = (*self.shared.filter.get()).clone();
        now.port.steering.clone_from(self.steering());
        self.table().clone_into(&mut now.port.table);
        now.port.wq_flags &= !CVLAN_STRIPPING;
        if self.wq_flags.cvlan_stripping() {
            now.port.wq_flags |= CVLAN_STRIPPING;
        }
        now
    }

    /// Records the loss of the RDMA device, and returns the [`End`] for it.
    pub(super) fn lost(&self, how: String) -> End {
        self.shared.outages.begin(Cause::DeviceLost, system_ns());
        self.shared.note(format!("the device was lost: {how}"));
        End::DeviceLost(how)
    }

    /// Returns `end`, or the loss of the RDMA device if it does not respond: verbs on a lost device
    /// fail with EIO before its event is read.
    pub(super) fn lost_or(&self, end: End) -> End {
        match self.sources.respond() {
            Ok(()) => end,
            Err(e) => self.lost(format!("it does not respond: {e}")),
        }
    }

    /// Ends the outage of a lost RDMA device, before the first rule is installed. Files started
    /// from then on state the whole outage.
    pub(super) fn end_device_outage(&self) {
        if let Some(outage) = self.shared.outages.end(Cause::DeviceLost, system_ns()) {
            self.shared
                .note(format!("the lost device is available again: {outage}"));
        }
    }

    /// Returns the time at which the capture's first WQ was ready.
    #[must_use]
    pub fn ready(&self) -> Instant {
        self.shared.ready
    }

    /// Returns `true` if the capture has ended by the loss of its RDMA device.
    #[must_use]
    pub fn has_lost_its_device(&self) -> bool {
        self.end.as_ref().is_some_and(End::is_loss)
    }

    /// Records which ports are down at the start of the capture. Changes before the start have no
    /// event.
    pub(super) fn note_port_state(&mut self) {
        for port in 0..self.sources.ports().len() {
            // A lost device is detected elsewhere.
            if let Ok(is_up) = self.sources.ports()[port].source.is_up() {
                self.sources.ports_mut()[port].is_down = !is_up;
                if !is_up {
                    self.shared.outages.begin(Cause::PortDown, system_ns());
                    self.note_port(port, "was down");
                }
            }
        }
        self.end_outage_of_ports();
    }

    pub(super) fn port_went_down(&mut self, port: usize) {
        self.sources.ports_mut()[port].is_down = true;
        if self.on_port_down == OnPortDown::Stop {
            if self.sources.ports().iter().all(|it| it.is_down) {
                self.end.get_or_insert(End::PortDown);
            }
            return;
        }
        self.shared.outages.begin(Cause::PortDown, system_ns());
        self.rotate();
        self.note_port(port, "went down");
    }

    pub(super) fn port_came_up(&mut self, port: usize) {
        self.sources.ports_mut()[port].is_down = false;
        self.end_outage_of_ports();
        self.note_port(port, "came up");
    }

    /// Ends the capture if the interface of its last port was removed. Otherwise the other ports
    /// continue.
    pub(super) fn interface_was_removed(&mut self, port: usize) {
        self.sources.ports_mut()[port].is_gone = true;
        if self.sources.ports().iter().all(|it| it.is_gone) {
            let end = self.lost("the network interface was removed".into());
            self.end.get_or_insert(end);
        } else {
            self.shared.outages.begin(Cause::PortDown, system_ns());
            self.rotate();
            self.note_port(port, "was removed; the other ports continue, and this one is captured again after a restart");
        }
    }

    /// Ends the outage of ports once none is down.
    fn end_outage_of_ports(&self) {
        let is_missing = |it: &PortSource| it.is_down || it.is_gone;
        if !self.sources.ports().iter().any(is_missing) {
            self.shared.outages.end(Cause::PortDown, system_ns());
        }
    }

    fn note_port(&self, port: usize, what: &str) {
        let name = match self.sources.ports() {
            [only] => only.source.number().to_string(),
            several => several[port].label.clone(),
        };
        self.shared.note(format!("port {name} {what}"));
    }
}

impl Limits {
    /// Returns the run's limits that remain after a capture with the report `earlier`, when
    /// `passed` has elapsed since its first WQ was ready.
    ///
    /// # Errors
    /// The end of the run, if a limit is reached.
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
