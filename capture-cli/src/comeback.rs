//! When the device of a running capture is lost and `device.on_loss = "retry"`: looks for it, with growing waits, until
//! a capture goes on where the last one ended.
//!
//! Nothing else of the process ends meanwhile: control and metrics answer, the service manager hears what is going on,
//! and a signal, an order or a limit ends the wait as it would have ended the capture.

use crate::{
    check::settle,
    desk::{Desk, Next},
    failure::Failure,
    service::Service,
};
use engine::{
    capture::{Capture, End, Limits, Report},
    config::Config,
    control::backend::Done,
    plan::Plan,
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// The wait before the first try; each further one is twice as long, up to the longest.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);
/// A capture that has lasted so long was no failed try.
const CALM: Duration = Duration::from_secs(30);

/// How long to wait before the next try.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Backoff {
    /// From the shortest wait on.
    pub fn new() -> Self {
        Self(FIRST)
    }

    /// The next wait, each longer than the one before.
    fn next(&mut self) -> Duration {
        let wait = self.0;
        self.0 = (wait * 2).min(LONGEST);
        wait
    }

    /// A capture has run for so long. A device that is lost again and again at once is not to keep the machine busy.
    fn has_run(&mut self, time: Duration) {
        if time >= CALM {
            self.0 = FIRST;
        }
    }
}

/// What looking for the device takes.
pub struct Search<'a, 'd> {
    /// As configured, with the defaults that hold.
    pub config: &'a Config,
    /// What was captured when the device was lost.
    pub plan: Plan,
    /// Of the whole capture.
    pub limits: Limits,
    /// When its first WQ was ready.
    pub began: Instant,
    /// Set by signals.
    pub stop: &'a AtomicBool,
    pub service: &'a mut Service,
    pub desk: &'a mut Desk<'d>,
    /// Who ordered an end meanwhile.
    pub waiting: &'a mut Vec<Done>,
}

/// How a search has ended.
pub enum Outcome {
    /// It is back: the capture that goes on, and its plan.
    Back(Box<(Capture, Plan)>),
    /// There is nothing to go on with.
    Over(End, Next),
}

impl Search<'_, '_> {
    /// Looks until the device is back, or nobody waits for it any more. `earlier` is what was captured until now.
    pub fn run(self, earlier: &Report, ran: Duration, backoff: &mut Backoff) -> Outcome {
        backoff.has_run(ran);
        let name = self.plan.device.name.clone();
        let mut wait = backoff.next();
        tracing::warn!("{name}: lost; looking for it in {wait:?}");
        let mut due = Instant::now() + wait;
        let mut tries = 0;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Outcome::Over(End::Stopped, Next::End);
            }
            let limits = match self.limits.after(earlier, self.began.elapsed()) {
                Ok(limits) => limits,
                Err(end) => return Outcome::Over(end, Next::End),
            };
            match self.desk.serve_lost(self.waiting) {
                Next::GoOn => {}
                next => return Outcome::Over(End::Stopped, next),
            }
            let left = due.saturating_duration_since(Instant::now());
            self.service.search(&name, tries, left);
            if !left.is_zero() {
                continue;
            }
            tries += 1;
            match self.try_again(limits, earlier) {
                Ok(back) => return Outcome::Back(Box::new(back)),
                Err(failure) => {
                    wait = backoff.next();
                    let why = failure.messages.join("; ");
                    tracing::warn!("{name}: not back yet: {why}; looking again in {wait:?}");
                    due = Instant::now() + wait;
                }
            }
        }
    }

    /// Finds the device and makes everything anew.
    fn try_again(&self, limits: Limits, earlier: &Report) -> Result<(Capture, Plan), Failure> {
        let now = settle(&mut self.config.clone())?;
        if let (Some(netdev), None) = (&self.plan.netdev, &now.netdev) {
            return Err(Failure::failed(format!(
                "its network interface {netdev} is not there"
            )));
        }
        // It may have another name, or firmware; what is captured, and how, stays.
        let plan = Plan {
            device: now.device,
            netdev: now.netdev,
            ..self.plan.clone()
        };
        let capture = Capture::go_on(&plan, limits, earlier)?;
        Ok((capture, plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_limit_and_are_short_again_after_a_calm_time() {
        let mut backoff = Backoff::new();
        let waits: Vec<_> = (0..9).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(
            waits,
            [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
        );
        backoff.has_run(CALM / 2);
        assert_eq!(backoff.next(), LONGEST);
        backoff.has_run(CALM);
        assert_eq!(backoff.next(), FIRST);
    }
}
