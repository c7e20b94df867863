//! Audit line and counters of each request.

use crate::identity::Caller;
use axum::http::StatusCode;
use std::{
    fmt::{self, Write as _},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use wqcap_control::audit::{Peer, log_answer, log_frequent};

/// Maximum length in characters of a request's description in an audit line.
const LONGEST: usize = 512;

/// Counters of the HTTP service since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Number of requests that the service answered.
    pub answered: AtomicU64,
    /// Number of answers that lack frames.
    pub incomplete: AtomicU64,
    /// Number of requests that were refused or failed.
    pub refused: AtomicU64,
    /// Number of bytes of packets that were sent in answers.
    pub bytes: AtomicU64,
    /// Number of frames that were sent in answers.
    pub frames: AtomicU64,
    /// Number of connections that the service accepted.
    pub connections: AtomicU64,
    /// Number of connections that were closed because too many were open.
    pub turned_away: AtomicU64,
    /// Number of TLS handshakes that failed.
    pub handshakes_failed: AtomicU64,
}

impl Counters {
    /// Returns the counters of the HTTP service in the text format of OpenMetrics.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, help, value) in [
            (
                "requests_answered",
                "Requests that were answered",
                &self.answered,
            ),
            (
                "answers_incomplete",
                "Answers that lack frames",
                &self.incomplete,
            ),
            (
                "requests_refused",
                "Requests that were refused or failed",
                &self.refused,
            ),
            ("packet_bytes", "Bytes of packets sent", &self.bytes),
            ("frames", "Frames sent", &self.frames),
            ("connections", "Connections accepted", &self.connections),
            (
                "connections_turned_away",
                "Connections closed because too many were open",
                &self.turned_away,
            ),
            (
                "tls_handshakes_failed",
                "TLS handshakes that failed",
                &self.handshakes_failed,
            ),
        ] {
            let value = value.load(Ordering::Relaxed);
            let _ = write!(
                text,
                "# HELP wqcap_serve_{name} {help}.\n# TYPE wqcap_serve_{name} counter\nwqcap_serve_{name}_total {value}\n"
            );
        }
        text + "# EOF\n"
    }
}

/// Request to the service whose audit line is to be written.
pub struct Audited {
    caller: Caller,
    what: String,
    begun: Instant,
    /// Set when the audit line of the request has been written.
    is_written: bool,
}

impl Drop for Audited {
    /// Writes the audit line of a request that ended without an outcome, for example because its
    /// client left before the answer.
    fn drop(&mut self) {
        if !self.is_written {
            log_frequent(
                &self.peer(),
                &self.what,
                "ended",
                Some("there is no answer"),
            );
        }
    }
}

/// Answers with packets that are in progress.
#[derive(Default)]
pub struct OpenAnswers(Mutex<Vec<Weak<OpenAnswer>>>);

/// Answer with packets that is in progress, whose audit line is written once: at its end, or at the end
/// of the service.
pub struct OpenAnswer {
    audited: Mutex<Option<Audited>>,
    /// Number of bytes that were passed on. The client has received at most these.
    pub sent: AtomicU64,
}

impl OpenAnswers {
    /// Adds an answer to a request.
    pub fn begin(&self, audited: Audited) -> Arc<OpenAnswer> {
        let answer = Arc::new(OpenAnswer {
            audited: Mutex::new(Some(audited)),
            sent: AtomicU64::new(0),
        });
        let mut all = self.all();
        all.retain(|it| it.strong_count() > 0);
        all.push(Arc::downgrade(&answer));
        answer
    }

    /// Writes the audit lines of answers that are still in progress, because the service ends while
    /// their threads wait for a disk.
    pub fn end(&self, counters: &Counters) {
        for answer in self.all().drain(..).filter_map(|it| it.upgrade()) {
            answer.leave(counters);
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Weak<OpenAnswer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenAnswer {
    /// Takes the audit of the request, to write its line; `None`: the line is written.
    pub fn end(&self) -> Option<Audited> {
        let mut audited = self.audited.lock().unwrap_or_else(PoisonError::into_inner);
        audited.take()
    }

    /// Writes the audit line of an answer whose client left before its end, or did not read, unless the
    /// line is written.
    pub fn leave(&self, counters: &Counters) {
        if let Some(audited) = self.end() {
            audited.leave(counters, self.sent.load(Ordering::Relaxed));
        }
    }
}

/// Size of an answer with packets, and the reasons why the answer lacks frames.
#[derive(Clone, Debug, Default)]
pub struct AnswerFacts {
    /// Number of frames in the answer to the request.
    pub frames: u64,
    /// Number of bytes of packets in the answer to the request.
    pub bytes: u64,
    /// Reasons why the answer lacks frames; empty: the answer is complete.
    pub losses: Vec<String>,
    /// `true` if the answer lacks frames only because it reached a limit that the request states.
    pub at_own_limit: bool,
}

impl Audited {
    /// Begins the audit of a request. `what` describes its method, path and parameters.
    pub fn new(caller: Caller, what: impl fmt::Display) -> Self {
        let what = what.to_string();
        let what = match what.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}...", &what[..end]),
            None => what,
        };
        Self {
            caller,
            what,
            begun: Instant::now(),
            is_written: false,
        }
    }

    fn peer(&self) -> Peer {
        let Caller { address, .. } = self.caller;
        Peer::named(format!("{} at {address}", self.caller.shown()))
    }

    /// Writes the audit line of a request that an error ended.
    pub fn refuse(mut self, counters: &Counters, status: StatusCode, why: &str) {
        self.is_written = true;
        counters.refused.fetch_add(1, Ordering::Relaxed);
        let what = format!("{} ({})", self.what, status.as_u16());
        // The address alone: a name may be wrong.
        let bound = format!("requests from {}", self.caller.address.ip());
        log_frequent(&self.peer().limited_as(bound), &what, "refused", Some(why));
    }

    /// Writes the audit line of a request that was answered with packets.
    pub fn answer(mut self, counters: &Counters, facts: &AnswerFacts) {
        self.is_written = true;
        counters.answered.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(facts.bytes, Ordering::Relaxed);
        counters.frames.fetch_add(facts.frames, Ordering::Relaxed);
        let ms = self.begun.elapsed().as_millis();
        let new = format!(
            "sent {} frames with {} bytes in {ms} ms",
            facts.frames, facts.bytes
        );
        let why = facts.losses.join("; ");
        let result = match facts.losses.is_empty() {
            true => "complete",
            false => {
                counters.incomplete.fetch_add(1, Ordering::Relaxed);
                "incomplete"
            }
        };
        log_answer(
            &self.peer(),
            &self.what,
            result,
            &new,
            (!why.is_empty()).then_some(&*why),
        );
    }

    /// Writes the audit line of a request for packets whose client left before the end of the answer,
    /// or did not read. It has received at most `bytes`.
    fn leave(mut self, counters: &Counters, bytes: u64) {
        self.is_written = true;
        counters.answered.fetch_add(1, Ordering::Relaxed);
        counters.incomplete.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        let ms = self.begun.elapsed().as_millis();
        let new = format!("sent at most {bytes} bytes in {ms} ms");
        let why = "the client left or did not read, or the service ended";
        log_answer(&self.peer(), &self.what, "incomplete", &new, Some(why));
    }

    /// Writes the audit line of a request that was answered without packets. The number of such
    /// lines is limited, because the web page reads the state every few seconds.
    pub fn done(mut self, counters: &Counters) {
        self.is_written = true;
        counters.answered.fetch_add(1, Ordering::Relaxed);
        // A caller may open many connections.
        let bound = format!("{} at {}", self.caller.shown(), self.caller.address.ip());
        let peer = self.peer().limited_as(bound);
        log_frequent(&peer, &self.what, "answered", None);
    }

    /// Writes the audit line of a request that pinned or marked files.
    pub fn changed(mut self, counters: &Counters) {
        self.is_written = true;
        counters.answered.fetch_add(1, Ordering::Relaxed);
        let new = format!("done in {} ms", self.begun.elapsed().as_millis());
        log_answer(&self.peer(), &self.what, "changed", &new, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::CallerRole;
    use std::collections::BTreeSet;

    #[test]
    fn an_answer_has_one_line_also_if_the_service_ends_before_it() {
        let caller = Caller {
            name: None,
            role: CallerRole::Read,
            address: ([127, 0, 0, 1], 1).into(),
        };
        let (answers, counters) = (OpenAnswers::default(), Counters::default());
        let begin = || answers.begin(Audited::new(caller.clone(), "GET /api/v1/packets"));
        let [gone, reading] = [begin(), begin()];
        for (answer, sent) in [(&gone, 5), (&reading, 7)] {
            answer.sent.store(sent, Ordering::Relaxed);
        }
        gone.leave(&counters);
        answers.end(&counters);
        reading.leave(&counters);
        assert!(reading.end().is_none());
        let counted = [&counters.answered, &counters.incomplete, &counters.bytes];
        assert_eq!(counted.map(|it| it.load(Ordering::Relaxed)), [2, 2, 12]);
    }

    #[test]
    fn the_documentation_lists_exactly_these_counters() {
        let text = Counters::default().text();
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let made: BTreeSet<_> = samples.filter_map(|it| it.split(' ').next()).collect();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/serve.md");
        let documentation = std::fs::read_to_string(path).expect("docs/serve.md is readable");
        let rows = documentation.lines().filter_map(|line| {
            let name = line.strip_prefix("| `")?.split('`').next()?;
            name.starts_with("wqcap_serve_").then_some(name)
        });
        assert_eq!(made, rows.collect());
    }
}
