//! The audit trail in the log: a line for each change, reload and signal, and for each request that was refused.
//!
//! Every line is an event of target `audit` with the same fields: `time` (UTC), `who`, `what`, `result`, and as far as they
//! exist `old`, `new` (what holds), `why` and `left_out`. All of them are written here.
//!
//! Invariant: what has changed something is always written. What has changed nothing can be asked for without end by a peer
//! that may not change anything, so each peer has a few such lines, and then one in a while; the others are counted.

use crate::protocol::{Changed, Command, Refusal, RefusalCode};
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

/// Lines of a peer without effect before they are bounded.
const BURST: u32 = 8;
/// The time between two of them from then on.
const EVERY: Duration = Duration::from_secs(10);
/// Peers that are told apart; all others together have the lines of one.
const PEERS: usize = 64;
/// Characters of what a peer has sent.
const LONGEST: usize = 256;

static BOUNDS: Mutex<Bounds> = Mutex::new(Bounds(BTreeMap::new()));

/// Who asks: as it is written, and as what is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    name: String,
    bound: String,
}

impl Peer {
    /// A process, which the kernel vouches for.
    #[must_use]
    pub fn process(uid: u32, pid: i32) -> Self {
        Self {
            name: format!("uid {uid} pid {pid}"),
            bound: format!("uid {uid}"),
        }
    }

    /// Somebody else: a key at an address, the kernel.
    pub fn named(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            bound: name.clone(),
            name,
        }
    }
}

/// Writes what came of a change that was asked for.
pub fn outcome(who: &Peer, what: &str, outcome: &Result<Changed, Refusal>) {
    match outcome {
        Ok(it) if it.changed => Line {
            old: it.was.as_deref(),
            new: Some(&it.now),
            ..Line::of(who, what, "changed")
        }
        .write(),
        Ok(it) => without_effect(&Line {
            new: Some(&it.now),
            ..Line::of(who, what, "unchanged")
        }),
        Err(refusal) => refused(who, what, refusal),
    }
}

/// Writes that a request was refused, or has failed.
pub fn refused(who: &Peer, what: &str, refusal: &Refusal) {
    let result = match refusal.code {
        RefusalCode::Failed => "failed",
        _ => "refused",
    };
    without_effect(&Line {
        why: Some(&refusal.message),
        ..Line::of(who, what, result)
    });
}

/// Writes that a request was answered as an earlier one that it repeats.
pub fn repeated(who: &Peer, what: &str) {
    without_effect(&Line::of(who, what, "repeated"));
}

/// Writes that a signal has come, which changes what the process does.
pub fn signal(who: &Peer, name: &str, new: &str) {
    Line {
        new: Some(new),
        ..Line::of(who, name, "changed")
    }
    .write();
}

/// Writes that a number of lines of this trail were dropped because nothing read them. The program that writes the log calls it
/// once there is room again.
pub fn dropped(lines: u64) {
    Line {
        why: Some("stderr was not read, and no more lines could wait"),
        left_out: Some(lines),
        ..Line::of(&Peer::named("wqcap"), "lines of this trail", "dropped")
    }
    .write();
}

/// Writes how many lines of each peer were left out, where that is due. A server calls it in each of its rounds.
pub fn write_left_out() {
    let due = bounds(|it| it.due(Instant::now()));
    for (bound, left_out) in due {
        Line {
            left_out: Some(left_out),
            ..Line::of(&Peer::named(bound), "more of the same", "without effect")
        }
        .write();
    }
}

/// A command with its arguments, on one line.
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
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn without_effect(line: &Line<'_>) {
    if let Some(left_out) = bounds(|it| it.admit(&line.who.bound, Instant::now())) {
        Line {
            left_out: Some(left_out).filter(|it| *it > 0),
            ..*line
        }
        .write();
    }
}

fn bounds<T>(then: impl FnOnce(&mut Bounds) -> T) -> T {
    then(&mut BOUNDS.lock().unwrap_or_else(PoisonError::into_inner))
}

#[derive(Clone, Copy)]
struct Line<'a> {
    who: &'a Peer,
    what: &'a str,
    result: &'a str,
    old: Option<&'a str>,
    new: Option<&'a str>,
    why: Option<&'a str>,
    left_out: Option<u64>,
}

impl<'a> Line<'a> {
    fn of(who: &'a Peer, what: &'a str, result: &'a str) -> Self {
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
        tracing::info!(
            target: "audit",
            time = %humantime::format_rfc3339_millis(SystemTime::now()),
            who = self.who.name,
            what = self.what,
            result = self.result,
            old = self.old,
            new = self.new,
            why = self.why,
            left_out = self.left_out,
        );
    }
}

/// By peer, the lines it may still have, since when, and how many were left out.
struct Bounds(BTreeMap<String, Bound>);

struct Bound {
    lines: u32,
    since: Instant,
    left_out: u64,
}

impl Bound {
    /// Gives back a line for each time [`EVERY`] that has passed.
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

impl Bounds {
    /// Whether a line of this peer may be written, and how many were left out before it.
    fn admit(&mut self, peer: &str, now: Instant) -> Option<u64> {
        self.0.retain(|_, it| {
            it.refill(now);
            it.lines < BURST || it.left_out > 0
        });
        let known = self.0.contains_key(peer) || self.0.len() < PEERS;
        let peer = if known { peer } else { "other peers" };
        let bound = self.0.entry(peer.to_owned()).or_insert(Bound {
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

    /// Whose left-out lines may be told now, and how many they are.
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
    fn a_flood_has_its_burst_and_then_a_line_in_a_while_which_counts_the_others() {
        let mut bounds = Bounds(BTreeMap::new());
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
        assert_eq!(bounds.0.len(), 1, "who is calm again is forgotten");
    }

    #[test]
    fn peers_beyond_the_number_that_is_told_apart_share_the_lines_of_one() {
        let mut bounds = Bounds(BTreeMap::new());
        let now = Instant::now();
        let written = (0..10_000).filter(|peer| bounds.admit(&peer.to_string(), now).is_some());
        assert_eq!(written.count(), PEERS + BURST as usize);
        assert_eq!(bounds.0.len(), PEERS + 1);
    }

    #[test]
    fn a_command_is_described_with_its_arguments_and_not_at_any_length() {
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
        assert_eq!(long.chars().count(), LONGEST + 3);
    }
}
