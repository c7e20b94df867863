//! Waiting for the supervisor's next event, in each phase.
//!
//! Requests of signals that no state depends on (flush, continued) are handled while waiting.

use super::{
    Supervisor,
    commands::report_reload,
    device_recovery::DeviceSearch,
    host::Host,
    order::Occurrence,
    run::{Flushing, LiveCapture},
    transitions::Event,
};
use std::{sync::atomic::Ordering, time::Duration};
use wqcap_control::{
    protocol::{Changed, Refusal},
    server::{ChangeReply, Requester},
};

/// Maximum delay until the supervisor handles a signal while no capture exists.
const TICK: Duration = Duration::from_millis(100);

impl Supervisor {
    /// Waits for the supervisor's next event while a capture runs or is drained, and takes
    /// snapshots of its counters.
    pub(super) fn await_with_capture(
        &mut self,
        live: &mut LiveCapture,
        host: &mut impl Host,
    ) -> Occurrence {
        loop {
            if self.is_stop_requested() {
                return Event::Signal.into();
            }
            self.attend_to_signals(live);
            if let Some(it) = self.requested_reload() {
                return it;
            }
            if let Ok(it) = self.orders.try_recv() {
                return it;
            }
            if let Some(interval) = live.timer.take(&live.capture) {
                self.backend.store_nic_counters(interval.now());
                self.backend.follow_table(&live.capture);
                host.snapshot(&interval);
            }
            let due = Flushing::due(live.flushing.as_ref(), live.timer.due());
            if live.capture.wait(due) {
                return match live.capture.has_lost_its_device() && self.retries() {
                    true => Event::DeviceLost.into(),
                    false => Event::CaptureEnded.into(),
                };
            }
        }
    }

    /// Waits for the supervisor's next event while the device is lost.
    pub(super) fn await_in_search(
        &mut self,
        search: &DeviceSearch,
        host: &mut impl Host,
    ) -> Occurrence {
        loop {
            let elapsed = search.run.began.elapsed();
            if self.is_stop_requested() {
                return Event::Signal.into();
            }
            if self.limits.after(&search.report, elapsed).is_err() {
                return Event::LimitReached.into();
            }
            if let Some(it) = self.await_without_capture() {
                return it;
            }
            let left = search.left();
            host.searching(search.device(), search.tries, left);
            if left.is_zero() {
                return Event::AttemptDue.into();
            }
        }
    }

    /// Waits for the supervisor's next event while the capture is stopped.
    pub(super) fn await_while_stopped(&mut self, host: &mut impl Host) -> Occurrence {
        loop {
            host.stopped();
            if self.is_stop_requested() {
                return Event::Signal.into();
            }
            if let Some(it) = self.await_without_capture() {
                return it;
            }
        }
    }

    /// Waits at most [`TICK`] for a reload or a command while no capture exists.
    fn await_without_capture(&self) -> Option<Occurrence> {
        self.refuse_without_capture();
        // The backend holds the sender, so the only error is the timeout.
        let reload = self.requested_reload();
        reload.or_else(|| self.orders.recv_timeout(TICK).ok())
    }

    fn is_stop_requested(&self) -> bool {
        self.signals.stop.load(Ordering::Relaxed)
    }

    /// Returns the event of a reload that a signal has requested; its result goes to the audit
    /// trail. `None`: no reload is requested.
    fn requested_reload(&self) -> Option<Occurrence> {
        let who = self.signals.reload.take()?;
        let report = move |outcome: Result<Changed, Refusal>| report_reload(&who, &outcome);
        let reply = ChangeReply::new(Requester::Owner, report);
        Some(Occurrence {
            event: Event::Reload,
            work: None,
            reply: Some(reply),
        })
    }
}
