//! Times in which nothing could be received: the device was gone, or its port was down.
//!
//! Whoever notices writes into an [`OutageLog`]; reports, metrics and the files that begin afterwards
//! read it. Times are the host's, in nanoseconds since 1970: when it was noticed, some milliseconds after it happened.

use crate::text::iso_8601;
use serde::Serialize;
use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

/// Outages that are remembered one by one. A port that flaps for days must not fill the memory.
const REMEMBERED: usize = 100;
/// How far a frame's stamp may be before the time at which it came: the NIC's clock is known as well as a busy host can
/// read it.
const CLOCKS_NS: u64 = 50_000_000;

/// Why nothing could be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The device was gone, or had failed as a whole.
    DeviceLost,
    /// The port was down.
    PortDown,
}

/// One time without reception.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Outage {
    /// Why.
    pub cause: Cause,
    /// From when on.
    pub from_ns: u64,
    /// Until when; `None`: it lasts.
    pub to_ns: Option<u64>,
}

impl Outage {
    /// The earliest stamp of a frame that came after it began. Queues go on behind a port's, which may be short, and there
    /// may be no later file to tell of it; behind a lost device's they are new.
    fn first_after_ns(&self) -> u64 {
        match self.cause {
            Cause::DeviceLost => self.from_ns,
            Cause::PortDown => self.from_ns.saturating_sub(CLOCKS_NS),
        }
    }
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = match self.cause {
            Cause::DeviceLost => "the device was lost",
            Cause::PortDown => "the port was down",
        };
        let time = |ns: u64| iso_8601(ns, 9);
        match self.to_ns {
            Some(to) => write!(f, "{cause} from {} to {}", time(self.from_ns), time(to)),
            None => write!(f, "{cause} from {} on", time(self.from_ns)),
        }
    }
}

/// All outages of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outages {
    count: u64,
    /// Nanoseconds of those that are over.
    over_ns: u64,
    last: VecDeque<Outage>,
}

impl Outages {
    /// How many there were, the one that lasts among them.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Seconds of all of them together, up to now.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.seconds_at(now.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX)))
    }

    fn seconds_at(&self, now_ns: u64) -> f64 {
        let lasting = self.lasting().map(|it| now_ns.saturating_sub(it.from_ns));
        (self.over_ns + lasting.sum::<u64>()) as f64 / 1e9
    }

    /// The last hundred.
    pub fn last(&self) -> impl Iterator<Item = &Outage> {
        self.last.iter()
    }

    /// Those that are not over.
    pub fn lasting(&self) -> impl Iterator<Item = &Outage> {
        self.last.iter().filter(|it| it.to_ns.is_none())
    }

    /// Those after the first `seen`, as far as they are remembered.
    fn since(&self, seen: u64) -> impl Iterator<Item = &Outage> {
        let new = usize::try_from(self.count.saturating_sub(seen)).unwrap_or(usize::MAX);
        self.last
            .iter()
            .skip(self.last.len().saturating_sub(new.min(self.last.len())))
    }

    /// One begins, unless it has begun already.
    pub fn begin(&mut self, cause: Cause, ns: u64) {
        if self.lasting().any(|it| it.cause == cause) {
            return;
        }
        self.count += 1;
        self.last.push_back(Outage {
            cause,
            from_ns: ns,
            to_ns: None,
        });
        if self.last.len() > REMEMBERED {
            self.last.pop_front();
        }
    }

    /// One is over; it, if there was one.
    pub fn end(&mut self, cause: Cause, ns: u64) -> Option<Outage> {
        let it = self
            .last
            .iter_mut()
            .find(|it| it.cause == cause && it.to_ns.is_none())?;
        it.to_ns = Some(ns.max(it.from_ns));
        self.over_ns += ns.saturating_sub(it.from_ns);
        Some(*it)
    }

    /// Those of a run and of the one after it.
    #[must_use]
    pub fn plus(mut self, later: Self) -> Self {
        self.count += later.count;
        self.over_ns += later.over_ns;
        self.last.extend(later.last);
        self.last
            .drain(..self.last.len().saturating_sub(REMEMBERED));
        self
    }
}

/// Outages of a run under way, shared by who notices them and who reports them.
#[derive(Clone, Debug, Default)]
pub struct OutageLog(Arc<Mutex<Outages>>);

impl OutageLog {
    /// Goes on from these.
    #[must_use]
    pub fn of(earlier: Outages) -> Self {
        Self(Arc::new(Mutex::new(earlier)))
    }

    /// As they stand.
    #[must_use]
    pub fn get(&self) -> Outages {
        self.lock().clone()
    }

    /// As [`Outages::begin`].
    pub fn begin(&self, cause: Cause, ns: u64) {
        self.lock().begin(cause, ns);
    }

    /// As [`Outages::end`].
    pub fn end(&self, cause: Cause, ns: u64) -> Option<Outage> {
        self.lock().end(cause, ns)
    }

    fn lock(&self) -> MutexGuard<'_, Outages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports each outage once, to the first file whose frames come after it began.
#[derive(Clone, Debug, Default)]
pub struct OutageReporter {
    log: OutageLog,
    reported: u64,
}

impl OutageReporter {
    /// Of this log, from the first outage on that is not over yet.
    #[must_use]
    pub fn of(log: OutageLog) -> Self {
        let outages = log.get();
        let reported = outages.count - outages.lasting().count() as u64;
        Self { log, reported }
    }

    /// From which stamp on frames may have come after the first outage that is not reported began; `u64::MAX`: all are.
    #[must_use]
    pub fn next_ns(&self) -> u64 {
        let outages = self.log.get();
        let next = outages.since(self.reported).next();
        next.map_or(u64::MAX, Outage::first_after_ns)
    }

    /// Outages not reported yet that may have begun before a frame with the stamp `ns` came, the latest first; empty:
    /// nothing. A frame from before an outage may be read behind it, where it has waited on a ring.
    pub fn unreported(&mut self, ns: u64) -> String {
        let outages = self.log.get();
        let new: Vec<_> = outages.since(self.reported).collect();
        let begun = new.iter().take_while(|it| it.first_after_ns() <= ns);
        let mut all: Vec<_> = begun.map(ToString::to_string).collect();
        self.reported = outages.count - (new.len() - all.len()) as u64;
        if all.is_empty() {
            return String::new();
        }
        all.reverse();
        format!("nothing could be received: {}", all.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_are_counted_measured_and_remembered_up_to_a_point() {
        let mut outages = Outages::default();
        assert_eq!(outages.end(Cause::PortDown, 5), None);
        for i in 0..150 {
            outages.begin(Cause::PortDown, i * 10);
            outages.begin(Cause::PortDown, i * 10 + 1);
            outages.end(Cause::PortDown, i * 10 + 4);
        }
        outages.begin(Cause::DeviceLost, 2_000);
        assert_eq!((outages.count(), outages.last().count()), (151, REMEMBERED));
        assert_eq!(outages.lasting().count(), 1);
        let seconds = outages.seconds_at(2_400);
        assert!((seconds - 1000e-9).abs() < 1e-12, "{seconds}");
        let both = outages.clone().plus(outages);
        assert_eq!((both.count(), both.last().count()), (302, REMEMBERED));
    }

    #[test]
    fn each_is_reported_once() {
        let log = OutageLog::default();
        log.begin(Cause::PortDown, 1_000_000_000);
        log.end(Cause::PortDown, 1_500_000_000);
        log.begin(Cause::DeviceLost, 2_000_000_001);
        let mut reporter = OutageReporter::of(log.clone());
        assert_eq!(reporter.unreported(2_000_000_000), "");
        assert_eq!(reporter.next_ns(), 2_000_000_001);
        assert_eq!(
            reporter.unreported(2_000_000_001),
            "nothing could be received: the device was lost from 1970-01-01T00:00:02.000000001Z on"
        );
        assert_eq!(reporter.unreported(u64::MAX), "");
        assert_eq!(reporter.next_ns(), u64::MAX);
        log.begin(Cause::PortDown, 3_000_000_000);
        log.end(Cause::PortDown, 3_250_000_000);
        log.begin(Cause::PortDown, 4_000_000_000);
        log.end(Cause::DeviceLost, 2_500_000_000);
        log.begin(Cause::DeviceLost, 5_000_000_000);
        assert_eq!(
            reporter.unreported(4_500_000_000),
            "nothing could be received: the port was down from 1970-01-01T00:00:04.000000000Z on; \
             the port was down from 1970-01-01T00:00:03.000000000Z to 1970-01-01T00:00:03.250000000Z"
        );
        assert!(reporter.unreported(u64::MAX).contains("05.000000000Z"));
        // Frames behind a port's that the NIC's clock, a little late, has stamped before it.
        log.end(Cause::PortDown, 4_250_000_000);
        log.end(Cause::DeviceLost, 5_250_000_000);
        log.begin(Cause::PortDown, 6_000_000_000);
        log.begin(Cause::DeviceLost, 6_000_000_001);
        let due = 6_000_000_000 - CLOCKS_NS;
        assert_eq!(reporter.next_ns(), due);
        assert_eq!(reporter.unreported(due - 1), "");
        assert!(reporter.unreported(due).ends_with("06.000000000Z on"));
        assert_eq!(reporter.next_ns(), 6_000_000_001);
        let mut other = OutageReporter::of(OutageLog::default());
        assert_eq!(other.unreported(u64::MAX), "");
    }
}
