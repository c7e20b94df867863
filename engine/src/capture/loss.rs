//! Outages: a port that is down, a device that is lost, and the capture that continues afterwards.
//!
//! A port keeps its objects while it is down: rings, QPs and rules stay, and receive again when the
//! port is up. Files are completed when the port goes down, so that files on disk are complete
//! during the outage; the next files state the outage. A lost device loses all of its objects, so
//! the capture ends in order, with the frames completed by then. Another capture creates all
//! objects again and continues the counters.

use super::{Capture, End, Limits, Report, clock::ClockWatch, open::open_port, source::PortSource};
use crate::{
    Error,
    config::{OnLoss, OnPortDown, PipelineMode},
    device::{DeviceFacts, kernel},
    plan::Plan,
    stats::outage::Cause,
    time::system_ns,
    verbs::CVLAN_STRIPPING,
};
use std::time::{Duration, Instant};

/// Time between two attempts to capture a lost port again while other ports are captured.
const SEARCH: Duration = Duration::from_secs(1);

/// Search for lost ports while other ports are captured, with `device.on_loss = "retry"`.
pub(super) struct LossSearch {
    is_on: bool,
    /// Time of the next attempt to capture lost ports again.
    due: Instant,
    /// Latest report on the NIC's clock, for the writers of capture files.
    watch: ClockWatch,
}

impl LossSearch {
    /// Creates the search for lost ports of a run. It is off with parser threads: their loop keeps
    /// its receive memory, so its ring cannot be replaced.
    pub(super) fn new(plan: &Plan, watch: ClockWatch) -> Self {
        Self {
            is_on: plan.has_several_ports()
                && plan.on_loss == OnLoss::Retry
                && plan.pipeline.mode == PipelineMode::Inline,
            due: Instant::now(),
            watch,
        }
    }

    /// Returns `true` if the run searches for ports whose device or interface was lost.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }
}

impl Capture {
    /// Returns `plan` with all changes since the start of the capture: filter, rules, shares of the
    /// queues, VLAN stripping, limits of the capture files.
    #[must_use]
    pub fn current_plan(&self, plan: &Plan) -> Plan {
        let mut now = plan.clone();
        now.reduction.filter = (*self.shared.filter.get()).clone();
        now.port.steering.clone_from(self.steering());
        self.table().clone_into(&mut now.port.table);
        if let Some(writer) = self.writer.as_ref().filter(|_| now.output.dir.is_some()) {
            now.output.set_limits(writer.limits());
        }
        now.port.wq_flags &= !CVLAN_STRIPPING;
        if self.wq_flags.cvlan_stripping() {
            now.port.wq_flags |= CVLAN_STRIPPING;
        }
        now
    }

    /// Records the loss of the last captured port, and returns the [`End`] of the capture for it.
    fn lost(&self, how: String) -> End {
        self.shared.outages.begin(Cause::DeviceLost, system_ns());
        self.shared.note(format!("the device was lost: {how}"));
        End::DeviceLost(how)
    }

    /// Ends the capture if a receive loop has failed, except by the loss of its port: verbs on a lost
    /// device fail with EIO before its event is read.
    pub(super) fn judge_failed_loops(&mut self) {
        let failures = self.shared.control.failures.lock();
        let failed = failures.map(|mut it| std::mem::take(&mut *it));
        for queue in failed.unwrap_or_default() {
            let port = usize::from(self.shared.port_of[usize::from(queue)]);
            let it = &self.sources.ports()[port];
            if it.is_gone {
                continue;
            }
            match it.source.is_up() {
                // The loop's thread returns the reason.
                Ok(_) => _ = self.end.get_or_insert(End::Failed(String::new())),
                Err(e) => self.port_was_lost(port, format!("it does not respond: {e}")),
            }
        }
    }

    /// Ends the outage of a lost RDMA device, before the first rule is installed. Capture files
    /// started from then on state the whole outage.
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
            // The end of a finite wire is no outage.
            match self.sources.ports().iter().all(PortSource::is_over) {
                true => _ = self.end.get_or_insert(End::PortDown),
                false => self.note_port(port, "went down"),
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

    /// Ends the capture if its last port was lost: the RDMA device, or the network interface.
    /// Otherwise the other ports continue.
    pub(super) fn port_was_lost(&mut self, port: usize, how: String) {
        self.sources.ports_mut()[port].is_gone = true;
        let ports = self.sources.ports();
        let ends_when_down = self.on_port_down == OnPortDown::Stop;
        if ports.iter().all(|it| it.is_gone)
            || ends_when_down && ports.iter().all(PortSource::is_over)
        {
            let end = self.lost(how);
            self.end.get_or_insert(end);
            return;
        }
        self.shared.outages.begin(Cause::PortDown, system_ns());
        self.rotate();
        self.nic.pause(port);
        let it = &self.sources.ports()[port];
        let what = match &it.plan.device.kernel {
            Some(_) => "was removed".to_owned(),
            None => {
                // The completion channel of a lost device wakes its loop again and again.
                self.leave_rings(port);
                format!("was lost: {how}")
            }
        };
        let when = match it.loops.take_rings() {
            true => "as soon as it is back",
            false => "after a restart",
        };
        self.note_port(
            port,
            &format!("{what}; the other ports continue, and this one is captured again {when}"),
        );
    }

    /// Requests that the receive loops of a lost port leave their rings once these are drained.
    fn leave_rings(&self, port: usize) {
        let of_queues = self.wq_flags.orders.iter().zip(self.shared.port_of.iter());
        for (orders, _) in of_queues.filter(|(_, it)| usize::from(**it) == port) {
            orders.leave_ring();
        }
    }

    /// Captures lost ports again whose device or interface is back, if other ports are captured.
    pub(super) fn search_for_lost_ports(&mut self) {
        let now = Instant::now();
        let is_lost = |it: &PortSource| it.is_gone && it.loops.take_rings();
        if now < self.search.due || !self.sources.ports().iter().any(is_lost) {
            return;
        }
        self.search.due = now + SEARCH;
        for port in 0..self.sources.ports().len() {
            if is_lost(&self.sources.ports()[port])
                && let Err(e) = self.capture_again(port)
            {
                let label = &self.sources.ports()[port].plan.label;
                tracing::debug!("port {label} is not back yet: {e}");
            }
        }
    }

    /// Opens a lost port again, and passes its new rings to the receive loops of its queues.
    fn capture_again(&mut self, port: usize) -> Result<(), Error> {
        let plan = &self.sources.ports()[port].plan;
        if plan.device.kernel.is_some() {
            // Another kind of interface, such as a TUN device, may have taken the name.
            let has_ethernet = |it: DeviceFacts| it.ports.iter().any(|port| port.ethernet);
            if !kernel::interface(&plan.device.name).is_some_and(has_ethernet) {
                return Ok(());
            }
        }
        let queues = (0u16..).zip(self.shared.port_of.iter());
        let queues = queues.filter(|(_, it)| usize::from(**it) == port);
        let queues: Vec<_> = queues.map(|(queue, _)| queue).collect();
        let (mut source, nic, rings) =
            open_port(plan, &queues, self.search.watch.clone(), &mut None)?;
        source.open(plan)?;
        let is_up = source.is_up()?;
        self.leave_rings(port);
        for what in self.sources.ports()[port].odd_frames() {
            self.shared.note(what);
        }
        let it = &mut self.sources.ports_mut()[port];
        it.loops.send(rings, &source, &it.plan);
        it.source = source;
        (it.is_gone, it.is_down) = (false, !is_up);
        self.nic.resume(port, nic);
        self.end_outage_of_ports();
        self.note_port(port, "is back, and is captured again");
        Ok(())
    }

    /// Ends the recorded outage of the capture's ports once none of them is down or lost.
    fn end_outage_of_ports(&self) {
        if !self.sources.ports().iter().any(PortSource::is_missing) {
            self.shared.outages.end(Cause::PortDown, system_ns());
        }
    }

    fn note_port(&self, port: usize, what: &str) {
        let name = match self.sources.ports() {
            [only] => only.source.number().to_string(),
            several => several[port].plan.label.clone(),
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
