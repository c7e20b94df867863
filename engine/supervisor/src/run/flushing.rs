//! Flush of received frames to the capture files, which SIGUSR2 requests, and its lines in the audit
//! trail.

use crate::answers::changed;
use std::time::{Duration, Instant};
use wqcap_control::{
    audit::{self, Peer},
    protocol::{Changed, Refusal, RefusalCode},
};
use wqcap_engine::capture::Capture;

/// Interval at which the supervisor checks whether a flush of capture files is complete.
const FLUSH_CHECK: Duration = Duration::from_millis(20);
/// Name of a flush by SIGUSR2 in the audit trail.
const FLUSH: &str = "SIGUSR2: flush";

/// Flush of received frames to the capture files that is in progress, with its requester.
pub(crate) struct Flushing {
    pub(crate) who: Peer,
    pub(crate) number: u64,
    pub(crate) since: Instant,
}

impl Flushing {
    /// Returns the time of the supervisor's next check: `other`, or earlier while a flush is in
    /// progress.
    pub(crate) fn due(flushing: Option<&Self>, other: Instant) -> Instant {
        flushing.map_or(other, |_| other.min(Instant::now() + FLUSH_CHECK))
    }

    /// Writes to the audit trail that the capture run ended before the requested flush was
    /// complete.
    pub(crate) fn report_run_ended(self) {
        let why = "the run ends, which completes the files";
        let refusal = Refusal::new(RefusalCode::State, why);
        audit::log_outcome(&self.who, FLUSH, &Err(refusal));
    }

    /// Returns `true` if the requested flush is complete, and then writes its result to the audit
    /// trail.
    pub(crate) fn report_if_over(&self, capture: &Capture) -> bool {
        let is_over = capture.has_flushed(self.number);
        if is_over {
            audit::log_outcome(&self.who, FLUSH, &Ok(self.outcome()));
        }
        is_over
    }

    fn outcome(&self) -> Changed {
        changed(&format!(
            "all frames received before the signal are in the files; this took {} ms",
            self.since.elapsed().as_millis()
        ))
    }
}

/// Writes to the audit trail that the flush which `who` requested is refused for the reason `why`.
pub(crate) fn refuse_flush(who: &Peer, why: &str) {
    audit::log_outcome(who, FLUSH, &Err(Refusal::new(RefusalCode::State, why)));
}
