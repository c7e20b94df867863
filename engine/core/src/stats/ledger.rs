//! Ledger, which counts every received frame in exactly one line, and the NIC's counters.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Declares the lines of the ledger (frames by outcome) once, for one queue and for the total.
macro_rules! lines {
    ($($(#[$doc:meta])* $line:ident,)+) => {
        /// Ledger of one queue, in frames. `received` is the sum of all other ledger lines.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub struct QueueLedger {
            /// Number of the ledger's queue.
            pub queue: u16,
            /// Index of the queue's port in the list of captured ports; 0 with a single port.
            #[serde(default, skip_serializing_if = "is_zero")]
            pub port: u16,
            $($(#[$doc])* pub $line: u64,)+
        }

        /// Ledger of all queues together, with the lines of [`QueueLedger`].
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[allow(missing_docs, reason = "documented at QueueLedger")]
        pub struct Total {
            $(pub $line: u64,)+
        }

        /// Converts the result of [`QueueLedger::total`], whose queue number has no meaning.
        impl From<QueueLedger> for Total {
            fn from(it: QueueLedger) -> Self {
                Self { $($line: it.$line,)+ }
            }
        }

        /// Converts the sums to a ledger of queue 0.
        impl From<Total> for QueueLedger {
            fn from(it: Total) -> Self {
                Self { queue: 0, port: 0, $($line: it.$line,)+ }
            }
        }

        impl QueueLedger {
            /// Adds the ledgers of two runs of one queue, line by line.
            #[must_use]
            pub fn plus(&self, other: &Self) -> Self {
                Self { queue: self.queue, port: self.port, $($line: self.$line.saturating_add(other.$line),)+ }
            }
        }
    };
}

lines! {
    /// Frames that the NIC delivered.
    received,
    /// Frames written to files (or counted, with `output.format = "none"`).
    captured,
    /// Frames rejected by the filter.
    filtered,
    /// Frames omitted by sampling.
    sampled_out,
    /// Frames omitted as duplicates of earlier frames.
    deduplicated,
    /// Frames omitted because they came after their flow's cutoff.
    cut_off,
    /// Frames dropped because a parser's channel had no room.
    dropped_pipeline,
    /// Frames dropped because no write buffer was free or the write failed.
    dropped_storage,
    /// Always 0. Version 0.1 did not write frames that arrived too late for their place in a capture
    /// file in time order.
    late,
    /// Frames whose receive completed in error, such as a frame longer than its buffers.
    errors,
    /// Bytes of captured frames, as on the wire.
    bytes,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(port: &u16) -> bool {
    *port == 0
}

/// Ledger line: its name, and a function that returns its number of frames in a queue's ledger.
pub type LedgerLine = (&'static str, fn(&QueueLedger) -> u64);

/// Ledger lines whose sum is `received`, with their names in the summary, in tables and in errors.
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

/// Ledger lines that count frames lost by the capture.
pub const LOSSES: [&str; 3] = ["dropped_pipeline", "dropped_storage", "errors"];

/// Error of a queue whose ledger does not add up: a frame is counted in no line, or in two.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the ledger of queue {queue} does not add up: received {received}, but {sum} accounted for ({lines}); \
     this is a fault in wqcap: please report it"
)]
pub struct Unbalanced {
    /// Number of the queue whose ledger does not add up.
    pub queue: u16,
    /// Number of frames that the NIC delivered to the queue.
    pub received: u64,
    /// Sum of all ledger lines of the queue except `received`.
    pub sum: u64,
    /// Names and values of the queue's ledger lines, as text.
    pub lines: String,
}

impl QueueLedger {
    /// Returns the name of the queue in tables: its number, and the name of its port if there are
    /// several `ports`.
    #[must_use]
    pub fn name(&self, ports: &[String]) -> String {
        match ports.get(usize::from(self.port)) {
            Some(port) if ports.len() > 1 => format!("{} {port}", self.queue),
            _ => self.queue.to_string(),
        }
    }

    /// Returns the value of the ledger line `name`; 0 if there is no such line.
    #[must_use]
    pub fn line(&self, name: &str) -> u64 {
        LINES
            .iter()
            .find(|(it, _)| *it == name)
            .map_or(0, |(_, value)| value(self))
    }

    /// Returns the number of frames lost by the capture: the sum of the ledger lines [`LOSSES`].
    #[must_use]
    pub fn lost(&self) -> u64 {
        let lines = LOSSES.iter().map(|name| self.line(name));
        lines.fold(0, u64::saturating_add)
    }

    /// Returns the number of frames that the capture left out as its settings request: by the
    /// filter, by sampling, as duplicates, and after the cutoff of their flow.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        let lines = [
            self.filtered,
            self.sampled_out,
            self.deduplicated,
            self.cut_off,
        ];
        lines.into_iter().fold(0, u64::saturating_add)
    }

    /// Returns the sum of the ledgers of all queues, as queue 0.
    #[must_use]
    pub fn total(queues: &[Self]) -> Self {
        queues.iter().fold(Self::default(), |sum, it| sum.plus(it))
    }

    /// Returns the sum of all ledger lines except `received`.
    fn accounted(&self) -> u64 {
        let lines = LINES.iter().map(|(_, value)| value(self));
        lines.fold(0, u64::saturating_add)
    }

    /// Returns `true` if every received frame is in exactly one ledger line, as
    /// [`QueueLedger::check`] requires. Builds no text, so that it can be called often.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.accounted() == self.received
    }

    /// Checks that every received frame is in exactly one ledger line. This holds at the end of a
    /// run; during a run, frames in the pipeline are in no line.
    ///
    /// # Errors
    /// The ledger does not add up.
    pub fn check(&self) -> Result<(), Unbalanced> {
        if self.is_balanced() {
            return Ok(());
        }
        let lines: Vec<_> = LINES
            .iter()
            .map(|(name, value)| format!("{name} {}", value(self)))
            .collect();
        Err(Unbalanced {
            queue: self.queue,
            received: self.received,
            sum: self.accounted(),
            lines: lines.join(", "),
        })
    }
}

/// NIC counters by name. A counter that cannot be read is never reported as zero.
pub type NicCounters = BTreeMap<String, Counter>;

/// Adds the NIC counters of two runs; a sum with an unreadable counter is unreadable.
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

/// Value of a NIC counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Counter {
    /// Increase of the NIC counter during the run.
    Value(u64),
    /// NIC counter that should exist and cannot be read.
    Unreadable(Unreadable),
}

impl Counter {
    /// Returns the value of the NIC counter, if it can be read.
    #[must_use]
    pub fn value(self) -> Option<u64> {
        match self {
            Self::Value(n) => Some(n),
            Self::Unreadable(_) => None,
        }
    }
}

/// Marker of an unreadable NIC counter, serialised as `"unreadable"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub enum Unreadable {
    /// The NIC counter cannot be read.
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

    /// Tests ledgers in which one line has the right number of frames, one frame too few, or one too
    /// many, for each line of the ledger.
    #[test]
    fn the_predicate_and_the_check_agree_on_every_line() {
        let with = |received: u64, name: &str, frames: u64| {
            let mut ledger = serde_json::to_value(QueueLedger::default()).unwrap();
            ledger["received"] = received.into();
            ledger[name] = frames.into();
            serde_json::from_value::<QueueLedger>(ledger).unwrap()
        };
        for (name, value) in LINES {
            for (received, frames, is_balanced) in [
                (0, 0, true),
                (5, 5, true),
                (5, 4, false),
                (5, 6, false),
                (0, 1, false),
            ] {
                let ledger = with(received, name, frames);
                assert_eq!(value(&ledger), frames, "{name}");
                assert_eq!(ledger.is_balanced(), is_balanced, "{name}: {ledger:?}");
                assert_eq!(ledger.check().is_ok(), is_balanced, "{name}: {ledger:?}");
            }
        }
        // `bytes` is not one of the summed lines.
        let bytes = with(0, "bytes", 9);
        assert!(bytes.is_balanced() && bytes.check().is_ok());
    }

    #[test]
    fn the_total_contains_every_line() {
        let lines = serde_json::to_value(Total::default()).unwrap();
        assert_eq!(
            lines.as_object().unwrap().len(),
            LINES.len() + 2,
            "all lines, received and bytes"
        );
        for (name, _) in LINES {
            assert_eq!(lines[name], 0, "{name}");
        }
    }
}
