//! Audit trail in the log: one line for each change, reload and signal, and for each request that
//! was refused.
//!
//! Every line is an event of target `audit` with the same fields: `time` (UTC), `who`, `what`,
//! `result`, and, if present, `old`, `new` (the value in force), `why` and `left_out`. This module
//! writes all of them.
//!
//! Invariant: a change that took effect is always written. A peer that may not change anything can
//! send requests without effect endlessly. Therefore each peer gets a few lines without effect, and
//! then one line per interval; the omitted lines are counted.

use crate::protocol::{Changed, Command, Refusal, RefusalCode};
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};
use wqcap_core::text::shortened;

/// Number of audit lines on requests without effect that a peer gets before the rate limit applies.
const BURST: u32 = 8;
/// Interval between two audit lines on requests without effect of a rate-limited peer.
const EVERY: Duration = Duration::from_secs(10);
/// Maximum number of peers with a separate rate limit of audit lines; all other peers share one
/// limit.
const PEERS: usize = 64;
/// Maximum length in bytes of a command in the audit trail.
const LONGEST: usize = 256;
/// Maximum length in bytes of a value, before or after a change, and of a reason in the audit
/// trail.
const LONGEST_VALUE: usize = 1024;

static BOUNDS: Mutex<PeerLimits> = Mutex::new(PeerLimits(BTreeMap::new()));

/// Peer that sent a request or signal: its name in the audit trail, and the name under which its
/// audit lines are limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    name: String,
    bound: String,
}

impl Peer {
    /// Creates the peer for a process, whose user and process IDs the kernel guarantees, for the
    /// audit trail.
    #[must_use]
    pub fn process(uid: u32, pid: i32) -> Self {
        Self {
            name: format!("uid {uid} pid {pid}"),
            bound: format!("uid {uid}"),
        }
    }

    /// Creates the peer for any other origin of a request, such as a key at an address, for the
    /// audit trail.
    pub fn named(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            bound: name.clone(),
            name,
        }
    }

    /// Returns the peer with another name for the rate limit of its audit lines.
    #[must_use]
    pub fn limited_as(self, bound: String) -> Self {
        Self { bound, ..self }
    }
}

/// Writes to the audit trail that a request for stored data was answered. `result` states whether
/// completely, `new` describes the answer, and `why` its missing part.
pub fn log_answer(who: &Peer, what: &str, result: &str, new: &str, why: Option<&str>) {
    AuditLine {
        new: Some(new),
        why,
        ..AuditLine::new(who, what, result)
    }
    .write();
}

/// Writes to the audit trail that a request was answered or refused that may be frequent. Each peer
/// has a limit of such lines; omitted lines are counted.
pub fn log_frequent(who: &Peer, what: &str, result: &str, why: Option<&str>) {
    without_effect(&AuditLine {
        why,
        ..AuditLine::new(who, what, result)
    });
}

/// Writes the outcome of a requested change to the audit trail.
pub fn log_outcome(who: &Peer, what: &str, outcome: &Result<Changed, Refusal>) {
    match outcome {
        Ok(it) if it.changed => AuditLine {
            old: it.was.as_deref(),
            new: Some(&it.now),
            ..AuditLine::new(who, what, "changed")
        }
        .write(),
        Ok(it) => without_effect(&AuditLine {
            new: Some(&it.now),
            ..AuditLine::new(who, what, "unchanged")
        }),
        Err(refusal) => log_refusal(who, what, refusal),
    }
}

/// Writes to the audit trail that a request was refused or failed.
pub fn log_refusal(who: &Peer, what: &str, refusal: &Refusal) {
    let result = match refusal.code {
        RefusalCode::Failed => "failed",
        _ => "refused",
    };
    without_effect(&AuditLine {
        why: Some(&refusal.message),
        ..AuditLine::new(who, what, result)
    });
}

/// Writes to the audit trail that a request repeats an earlier one and got its answer.
pub fn log_repeat(who: &Peer, what: &str) {
    without_effect(&AuditLine::new(who, what, "repeated"));
}

/// Writes to the audit trail that a signal arrived; `new` is its effect on the process.
pub fn log_signal(who: &Peer, name: &str, new: &str) {
    AuditLine {
        new: Some(new),
        ..AuditLine::new(who, name, "changed")
    }
    .write();
}

/// Writes that `lines` lines of the audit trail were dropped because stderr was not read. The
/// writer of the log calls this function when its queue has room again.
pub fn log_dropped(lines: u64) {
    AuditLine {
        why: Some("stderr was not read, and the queue of lines was full"),
        left_out: Some(lines),
        ..AuditLine::new(&Peer::named("wqcap"), "lines of this trail", "dropped")
    }
    .write();
}

/// Writes the number of omitted audit lines of each peer, if due. A server calls this function in
/// each round.
pub fn write_left_out() {
    let due = bounds(|it| it.due(Instant::now()));
    for (bound, left_out) in due {
        AuditLine {
            left_out: Some(left_out),
            ..AuditLine::new(&Peer::named(bound), "more of the same", "without effect")
        }
        .write();
    }
}

/// Returns a control command with its arguments on one line, for the audit trail.
#[must_use]
pub fn describe(command: &Command) -> String {
    let value = serde_json::to_value(command).unwrap_or_default();
    let name = value["do"].as_str().unwrap_or_default();
    let arguments = value.as_object().into_iter().flatten();
    let text = arguments
        .filter(|(key, _)| *key != "do")
        .fold(name.to_owned(), |text, (key, value)| {
            format!("{text} {key}={value}")
        });
    shortened(&text, LONGEST).into_owned()
}

fn without_effect(line: &AuditLine<'_>) {
    if let Some(left_out) = bounds(|it| it.admit(&line.who.bound, Instant::now())) {
        AuditLine {
            left_out: Some(left_out).filter(|it| *it > 0),
            ..*line
        }
        .write();
    }
}

fn bounds<T>(then: impl FnOnce(&mut PeerLimits) -> T) -> T {
    then(&mut BOUNDS.lock().unwrap_or_else(PoisonError::into_inner))
}

#[derive(Clone, Copy)]
struct AuditLine<'a> {
    who: &'a Peer,
    what: &'a str,
    result: &'a str,
    old: Option<&'a str>,
    new: Option<&'a str>,
    why: Option<&'a str>,
    left_out: Option<u64>,
}

impl<'a> AuditLine<'a> {
    fn new(who: &'a Peer, what: &'a str, result: &'a str) -> Self {
        Self {
            who,
            what,
            result,
            old: None,
            new: None,
            why: None,
            left_out: None,
        }
    }

    fn write(&self) {
        let value = |it: &'a str| shortened(it, LONGEST_VALUE);
        let (old, new, why) = (
            self.old.map(value),
            self.new.map(value),
            self.why.map(value),
        );
        tracing::info!(
            target: "audit",
            time = %humantime::format_rfc3339_millis(SystemTime::now()),
            who = self.who.name,
            what = self.what,
            result = self.result,
            old = old.as_deref(),
            new = new.as_deref(),
            why = why.as_deref(),
            left_out = self.left_out,
        );
    }
}

/// Rate limits of the audit lines of all peers, by the peers' limit names.
struct PeerLimits(BTreeMap<String, PeerLimit>);

/// Rate limit of the audit lines of one peer: the number of lines that the peer still gets, the
/// time of the last refill, and the number of omitted lines.
struct PeerLimit {
    lines: u32,
    since: Instant,
    left_out: u64,
}

impl PeerLimit {
    /// Allows the peer one more audit line for each interval [`EVERY`] that has passed.
    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since).as_secs() / EVERY.as_secs();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        self.lines = self.lines.saturating_add(passed).min(BURST);
        self.since = if self.lines == BURST {
            now
        } else {
            self.since + EVERY * passed
        };
    }
}

impl PeerLimits {
    /// Returns the number of audit lines of the peer omitted before, if a line may be written now;
    /// `None`: the line is omitted.
    fn admit(&mut self, peer: &str, now: Instant) -> Option<u64> {
        self.0.retain(|_, it| {
            it.refill(now);
            it.lines < BURST || it.left_out > 0
        });
        let known = self.0.contains_key(peer) || self.0.len() < PEERS;
        let peer = if known { peer } else { "other peers" };
        let bound = self.0.entry(peer.to_owned()).or_insert(PeerLimit {
            lines: BURST,
            since: now,
            left_out: 0,
        });
        if bound.lines == 0 {
            bound.left_out += 1;
            return None;
        }
        bound.lines -= 1;
        Some(std::mem::take(&mut bound.left_out))
    }

    /// Returns the peers whose omitted audit lines may be reported now, with the numbers of these
    /// lines.
    fn due(&mut self, now: Instant) -> Vec<(String, u64)> {
        let due = self.0.iter_mut().filter_map(|(peer, bound)| {
            bound.refill(now);
            if bound.left_out == 0 || bound.lines == 0 {
                return None;
            }
            bound.lines -= 1;
            Some((peer.clone(), std::mem::take(&mut bound.left_out)))
        });
        due.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_flood_gets_its_burst_and_then_a_line_per_interval_with_a_count() {
        let mut bounds = PeerLimits(BTreeMap::new());
        let start = Instant::now();
        let written = (0..1000).filter(|_| bounds.admit("uid 1", start).is_some());
        assert_eq!(written.count(), BURST as usize);
        assert_eq!(bounds.due(start), [], "not yet");
        assert_eq!(bounds.admit("uid 2", start), Some(0), "another peer");
        let later = start + EVERY;
        let left_out = 1000 - u64::from(BURST);
        assert_eq!(bounds.admit("uid 1", later), Some(left_out));
        assert_eq!(bounds.admit("uid 1", later), None);
        let later = later + EVERY;
        assert_eq!(bounds.due(later), [("uid 1".to_owned(), 1)]);
        assert_eq!(bounds.due(later + EVERY), []);
        assert_eq!(bounds.admit("uid 1", later + EVERY * 100), Some(0));
        assert_eq!(bounds.0.len(), 1, "idle peers are removed");
    }

    #[test]
    fn peers_beyond_the_maximum_share_one_limit() {
        let mut bounds = PeerLimits(BTreeMap::new());
        let now = Instant::now();
        let written = (0..10_000).filter(|peer| bounds.admit(&peer.to_string(), now).is_some());
        assert_eq!(written.count(), PEERS + BURST as usize);
        assert_eq!(bounds.0.len(), PEERS + 1);
    }

    #[test]
    fn a_command_is_described_with_its_arguments_up_to_a_maximum_length() {
        let of = |value| describe(&serde_json::from_value(value).unwrap());
        assert_eq!(of(json!({"do": "rotate"})), "rotate");
        assert_eq!(
            of(json!({"do": "filter", "expression": "tcp\n"})),
            r#"filter expression="tcp\n""#
        );
        assert_eq!(
            of(json!({"do": "rule-add", "rule": {"id": "dns"}})),
            r#"rule-add rule={"id":"dns"}"#
        );
        let long = of(json!({"do": "filter", "expression": "ä".repeat(9999)}));
        assert!(
            long.len() < LONGEST + 40 && long.ends_with(" more bytes)"),
            "{long}"
        );
    }
}
