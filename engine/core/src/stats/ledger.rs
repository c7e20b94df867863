//! The ledger, in exactly one line of which every received frame ends, and the NIC's own counters.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Declares the lines once, for a queue and for all together.
macro_rules! lines {
    ($($(#[$doc:meta])* $line:ident,)+) => {
        /// One queue's lines, in frames. `received` is the sum of all others.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub struct QueueLedger {
            /// Queue number.
            pub queue: u16,
            $($(#[$doc])* pub $line: u64,)+
        }

        /// The lines of [`QueueLedger`], of all queues together.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[allow(missing_docs, reason = "they are described at QueueLedger")]
        pub struct Total {
            $(pub $line: u64,)+
        }

        /// From [`QueueLedger::total`], whose queue number has no meaning.
        impl From<QueueLedger> for Total {
            fn from(it: QueueLedger) -> Self {
                Self { $($line: it.$line,)+ }
            }
        }

        impl QueueLedger {
            /// Adds two runs of one queue, line by line.
            #[must_use]
            pub fn plus(&self, other: &Self) -> Self {
                Self { queue: self.queue, $($line: self.$line + other.$line,)+ }
            }
        }
    };
}

lines! {
    /// Frames the NIC delivered.
    received,
    /// Frames in files (or counted, with `output.format = "none"`).
    captured,
    /// Rejected by the filter.
    filtered,
    /// Left out by sampling.
    sampled_out,
    /// Left out as a duplicate.
    deduplicated,
    /// Left out since they came after the beginning of their flow.
    cut_off,
    /// Dropped: no room in a parser's channel.
    dropped_pipeline,
    /// Dropped: no free block, or the write failed.
    dropped_storage,
    /// Arrived too late for an ordered file.
    late,
    /// Completed in error, such as a frame longer than its buffers.
    errors,
    /// Bytes of captured frames, as on the wire.
    bytes,
}

/// A line of the ledger: its name and its value.
pub type LedgerLine = (&'static str, fn(&QueueLedger) -> u64);

/// The lines that `received` is the sum of, by their names in the summary, in tables and in errors.
pub const LINES: [LedgerLine; 9] = [
    ("captured", |it| it.captured),
    ("filtered", |it| it.filtered),
    ("sampled_out", |it| it.sampled_out),
    ("deduplicated", |it| it.deduplicated),
    ("cut_off", |it| it.cut_off),
    ("dropped_pipeline", |it| it.dropped_pipeline),
    ("dropped_storage", |it| it.dropped_storage),
    ("late", |it| it.late),
    ("errors", |it| it.errors),
];

/// Those that mean the capture lost a frame.
pub const LOSSES: [&str; 4] = ["dropped_pipeline", "dropped_storage", "late", "errors"];

/// A queue whose ledger does not add up: a frame ended in no line, or in two.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the ledger of queue {queue} does not add up: received {received}, but {sum} accounted for ({lines}); \
     this is a fault in wqcap: please report it"
)]
pub struct Unbalanced {
    /// Queue number.
    pub queue: u16,
    /// Frames the NIC delivered.
    pub received: u64,
    /// The sum of all lines.
    pub sum: u64,
    /// Each line with its frames.
    pub lines: String,
}

impl QueueLedger {
    /// A line by its name; 0 for a name that is none.
    #[must_use]
    pub fn line(&self, name: &str) -> u64 {
        LINES
            .iter()
            .find(|(it, _)| *it == name)
            .map_or(0, |(_, of)| of(self))
    }

    /// All queues together, as queue 0.
    #[must_use]
    pub fn total(queues: &[Self]) -> Self {
        queues.iter().fold(Self::default(), |sum, it| sum.plus(it))
    }

    /// The sum of all lines but `received`.
    fn accounted(&self) -> u64 {
        LINES.iter().map(|(_, of)| of(self)).sum()
    }

    /// Whether every received frame is in exactly one line, as [`QueueLedger::check`] says. It builds no text, so that it can be
    /// asked often.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.accounted() == self.received
    }

    /// Checks that every received frame is in exactly one line. That holds at the end of a run; during one, frames in
    /// the pipeline are in none.
    ///
    /// # Errors
    /// It does not hold.
    pub fn check(&self) -> Result<(), Unbalanced> {
        if self.is_balanced() {
            return Ok(());
        }
        let lines: Vec<_> = LINES
            .iter()
            .map(|(name, of)| format!("{name} {}", of(self)))
            .collect();
        Err(Unbalanced {
            queue: self.queue,
            received: self.received,
            sum: self.accounted(),
            lines: lines.join(", "),
        })
    }
}

/// Counters of the NIC by their names. One that cannot be read is never reported as zero.
pub type NicCounters = BTreeMap<String, Counter>;

/// Adds the counters of two runs; a sum with an unreadable counter is unreadable.
#[must_use]
pub fn nic_sum(one: NicCounters, other: NicCounters) -> NicCounters {
    let mut sums = one;
    for (name, counter) in other {
        let sum = match (sums.get(&name), counter) {
            (Some(Counter::Value(a)), Counter::Value(b)) => Counter::Value(a + b),
            (None, counter) => counter,
            _ => Counter::Unreadable(Unreadable::Unreadable),
        };
        sums.insert(name, sum);
    }
    sums
}

/// One counter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Counter {
    /// Its growth during the run.
    Value(u64),
    /// It should exist and cannot be read.
    Unreadable(Unreadable),
}

impl Counter {
    /// What it says, if it can be read.
    #[must_use]
    pub fn value(self) -> Option<u64> {
        match self {
            Self::Value(n) => Some(n),
            Self::Unreadable(_) => None,
        }
    }
}

/// Prints as `"unreadable"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Unreadable {
    /// The only value.
    #[serde(rename = "unreadable")]
    Unreadable,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_without_a_line_is_an_error() {
        let ledger = QueueLedger {
            queue: 3,
            received: 8,
            captured: 6,
            errors: 1,
            ..QueueLedger::default()
        };
        let problem = ledger.check().unwrap_err().to_string();
        assert!(problem.contains("queue 3") && problem.contains("received 8, but 7 accounted for"));
        assert!(
            problem.contains("captured 6") && problem.contains("errors 1"),
            "{problem}"
        );
        let total = QueueLedger::total(&[ledger, ledger]);
        assert_eq!((total.received, total.line("errors")), (16, 2));
        assert_eq!(total.line("no line"), 0);
    }

    /// With a frame in any one line, and with one too many in any line.
    #[test]
    fn the_predicate_and_the_check_agree_on_every_line() {
        let with = |received: u64, name: &str, frames: u64| {
            let mut ledger = serde_json::to_value(QueueLedger::default()).unwrap();
            ledger["received"] = received.into();
            ledger[name] = frames.into();
            serde_json::from_value::<QueueLedger>(ledger).unwrap()
        };
        for (name, of) in LINES {
            for (received, frames, is_balanced) in [
                (0, 0, true),
                (5, 5, true),
                (5, 4, false),
                (5, 6, false),
                (0, 1, false),
            ] {
                let ledger = with(received, name, frames);
                assert_eq!(of(&ledger), frames, "{name}");
                assert_eq!(ledger.is_balanced(), is_balanced, "{name}: {ledger:?}");
                assert_eq!(ledger.check().is_ok(), is_balanced, "{name}: {ledger:?}");
            }
        }
        // What is not a line does not count.
        let bytes = with(0, "bytes", 9);
        assert!(bytes.is_balanced() && bytes.check().is_ok());
    }

    #[test]
    fn every_line_is_there() {
        let lines = serde_json::to_value(Total::default()).unwrap();
        assert_eq!(
            lines.as_object().unwrap().len(),
            LINES.len() + 2,
            "received and bytes are no lines"
        );
        for (name, _) in LINES {
            assert_eq!(lines[name], 0, "{name}");
        }
    }
}
