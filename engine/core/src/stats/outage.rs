//! Log of outages: periods without reception because the device was lost or its port was down.
//!
//! The thread that detects an outage writes it into an [`OutageLog`]. Reports, metrics and the
//! files that begin afterwards read it. Times are the host's, in nanoseconds since 1970. They are
//! times of detection, some milliseconds after the event.

use crate::{text::iso_8601, time::system_ns};
use serde::Serialize;
use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Maximum number of outages that are stored individually. A port that flaps for days must not fill
/// the memory.
const REMEMBERED: usize = 100;
/// Maximum time, in nanoseconds, by which a frame's stamp is earlier than its reception. The NIC's
/// clock is known only as precisely as a busy host can read it.
const CLOCKS_NS: u64 = 50_000_000;

/// Cause of an outage, in which a capture receives no frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// Loss or complete failure of the RDMA device.
    DeviceLost,
    /// Loss of the link: the device's port is down.
    PortDown,
}

/// Period in which the capture could not receive frames, and its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Outage {
    /// Cause of the outage.
    pub cause: Cause,
    /// Start of the outage, in nanoseconds since 1970.
    pub from_ns: u64,
    /// End of the outage, in nanoseconds since 1970; `None` if it is not over.
    pub to_ns: Option<u64>,
}

impl Outage {
    /// Returns the earliest time stamp of a frame that came after the start of the outage.
    ///
    /// After an outage of the port, which may be short, queues continue, and perhaps no later
    /// capture file reports the outage. So the result allows for the inaccuracy of stamps. After
    /// the loss of a device, queues are new.
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

/// Outages of a capture run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outages {
    /// Number of outages, including those that are no longer stored individually.
    count: u64,
    /// Total duration of the outages that are over, in nanoseconds.
    over_ns: u64,
    /// Last outages of the run, at most [`REMEMBERED`], oldest first.
    last: VecDeque<Outage>,
}

impl Outages {
    /// Returns the number of outages, including those that are not over.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the total duration of all outages up to now, in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.seconds_at(system_ns())
    }

    /// Returns the total duration of all outages up to `now_ns`, in seconds.
    fn seconds_at(&self, now_ns: u64) -> f64 {
        let lasting = self.lasting().map(|it| now_ns.saturating_sub(it.from_ns));
        (self.over_ns + lasting.sum::<u64>()) as f64 / 1e9
    }

    /// Returns the last outages, at most 100, oldest first.
    pub fn last(&self) -> impl Iterator<Item = &Outage> {
        self.last.iter()
    }

    /// Returns the outages of the run that are not over.
    pub fn lasting(&self) -> impl Iterator<Item = &Outage> {
        self.last.iter().filter(|it| it.to_ns.is_none())
    }

    /// Returns the outages after the first `seen`, as far as they are still stored.
    fn since(&self, seen: u64) -> impl Iterator<Item = &Outage> {
        let new = usize::try_from(self.count.saturating_sub(seen)).unwrap_or(usize::MAX);
        self.last
            .iter()
            .skip(self.last.len().saturating_sub(new.min(self.last.len())))
    }

    /// Records the start of an outage, unless an outage of this cause has started already.
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

    /// Records the end of an outage. Returns the outage, or `None` if there was no outage of this
    /// cause.
    pub fn end(&mut self, cause: Cause, ns: u64) -> Option<Outage> {
        let it = self
            .last
            .iter_mut()
            .find(|it| it.cause == cause && it.to_ns.is_none())?;
        it.to_ns = Some(ns.max(it.from_ns));
        self.over_ns += ns.saturating_sub(it.from_ns);
        Some(*it)
    }

    /// Appends the outages of the run that followed.
    #[must_use]
    pub fn followed_by(mut self, later: Self) -> Self {
        self.count += later.count;
        self.over_ns += later.over_ns;
        self.last.extend(later.last);
        self.last
            .drain(..self.last.len().saturating_sub(REMEMBERED));
        self
    }
}

/// Shared log of a run's outages, for the threads that detect outages and those that report them.
#[derive(Clone, Debug, Default)]
pub struct OutageLog(Arc<Mutex<Outages>>);

impl OutageLog {
    /// Creates an outage log that continues from the outages of an earlier run.
    #[must_use]
    pub fn continuing(earlier: Outages) -> Self {
        Self(Arc::new(Mutex::new(earlier)))
    }

    /// Returns a copy of the outages recorded so far: periods in which no frame could be received.
    #[must_use]
    pub fn get(&self) -> Outages {
        self.lock().clone()
    }

    /// Records the start of an outage, unless an outage of this cause has started already.
    pub fn begin(&self, cause: Cause, ns: u64) {
        self.lock().begin(cause, ns);
    }

    /// Records the end of an outage. Returns the outage, or `None` if there was no outage of this
    /// cause.
    pub fn end(&self, cause: Cause, ns: u64) -> Option<Outage> {
        self.lock().end(cause, ns)
    }

    /// Locks the log and returns its outages.
    fn lock(&self) -> MutexGuard<'_, Outages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reporter of outages: each outage is reported once, in the first capture file whose frames come
/// after its start.
#[derive(Clone, Debug, Default)]
pub struct OutageReporter {
    /// Log of the outages to report.
    log: OutageLog,
    /// Number of outages that were reported in capture files.
    reported: u64,
}

impl OutageReporter {
    /// Creates a reporter of an outage log. Reports begin with the outages that are not over.
    #[must_use]
    pub fn new(log: OutageLog) -> Self {
        let outages = log.get();
        let reported = outages.count - outages.lasting().count() as u64;
        Self { log, reported }
    }

    /// Returns the earliest time stamp of a frame that may have come after the start of the next
    /// unreported outage, or `u64::MAX` if all outages are reported.
    #[must_use]
    pub fn next_ns(&self) -> u64 {
        let outages = self.log.get();
        let next = outages.since(self.reported).next();
        next.map_or(u64::MAX, Outage::first_after_ns)
    }

    /// Returns a text on the unreported outages that may have started before the reception of a
    /// frame with the stamp `ns`, latest first.
    ///
    /// The text is empty if there are no such outages. A frame from before an outage may be read
    /// after it, because it waited on a ring.
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
        format!(
            "times in which the capture could not receive frames: {}",
            all.join("; ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_outages_are_counted_and_the_last_are_stored() {
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
        let both = outages.clone().followed_by(outages);
        assert_eq!((both.count(), both.last().count()), (302, REMEMBERED));
    }

    #[test]
    fn each_outage_is_reported_once() {
        let log = OutageLog::default();
        log.begin(Cause::PortDown, 1_000_000_000);
        log.end(Cause::PortDown, 1_500_000_000);
        log.begin(Cause::DeviceLost, 2_000_000_001);
        let mut reporter = OutageReporter::new(log.clone());
        assert_eq!(reporter.unreported(2_000_000_000), "");
        assert_eq!(reporter.next_ns(), 2_000_000_001);
        assert_eq!(
            reporter.unreported(2_000_000_001),
            "times in which the capture could not receive frames: the device was lost from 1970-01-01T00:00:02.000000001Z on"
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
            "times in which the capture could not receive frames: the port was down from 1970-01-01T00:00:04.000000000Z on; \
             the port was down from 1970-01-01T00:00:03.000000000Z to 1970-01-01T00:00:03.250000000Z"
        );
        assert!(reporter.unreported(u64::MAX).contains("05.000000000Z"));
        // A slow NIC's clock stamps frames after an outage of the port with times before it.
        log.end(Cause::PortDown, 4_250_000_000);
        log.end(Cause::DeviceLost, 5_250_000_000);
        log.begin(Cause::PortDown, 6_000_000_000);
        log.begin(Cause::DeviceLost, 6_000_000_001);
        let due = 6_000_000_000 - CLOCKS_NS;
        assert_eq!(reporter.next_ns(), due);
        assert_eq!(reporter.unreported(due - 1), "");
        assert!(reporter.unreported(due).ends_with("06.000000000Z on"));
        assert_eq!(reporter.next_ns(), 6_000_000_001);
        let mut other = OutageReporter::new(OutageLog::default());
        assert_eq!(other.unreported(u64::MAX), "");
    }
}
