//! The summary of a run, typed.
//!
//! Reading is strict: a line that is missing is a failure, since the contract says that all are always there.

use serde_json::Value;
use std::{collections::BTreeMap, path::PathBuf};

/// A JSON number that counts something.
///
/// # Panics
/// When it is none.
#[must_use]
#[track_caller]
pub fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// The lines of a ledger, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// What the NIC delivered.
    pub received: u64,
    /// In files, or counted where none are written.
    pub captured: u64,
    /// Refused by the filter.
    pub filtered: u64,
    /// Left out by sampling.
    pub sampled_out: u64,
    /// Left out as repetitions.
    pub deduplicated: u64,
    /// After the beginning of their flow.
    pub cut_off: u64,
    /// No room in a parser's channel.
    pub dropped_pipeline: u64,
    /// No room in the write buffers, or a write failed.
    pub dropped_storage: u64,
    /// Too late for an ordered file.
    pub late: u64,
    /// Completed in error.
    pub errors: u64,
}

impl Lines {
    fn parse(value: &Value) -> Self {
        let line = |name: &str| {
            value[name]
                .as_u64()
                .unwrap_or_else(|| panic!("the ledger has no number \"{name}\": {value}"))
        };
        Self {
            received: line("received"),
            captured: line("captured"),
            filtered: line("filtered"),
            sampled_out: line("sampled_out"),
            deduplicated: line("deduplicated"),
            cut_off: line("cut_off"),
            dropped_pipeline: line("dropped_pipeline"),
            dropped_storage: line("dropped_storage"),
            late: line("late"),
            errors: line("errors"),
        }
    }

    /// Every way a received frame can end, in the contract's order.
    fn ends(&self) -> [u64; 9] {
        [
            self.captured,
            self.filtered,
            self.sampled_out,
            self.deduplicated,
            self.cut_off,
            self.dropped_pipeline,
            self.dropped_storage,
            self.late,
            self.errors,
        ]
    }
}

/// The ledger of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Of all queues.
    pub total: Lines,
    /// By queue, in order of their numbers.
    pub queues: Vec<Lines>,
}

impl Ledger {
    fn parse(value: &Value) -> Self {
        let queues = value["queues"]
            .as_array()
            .unwrap_or_else(|| panic!("no queues in the ledger: {value}"));
        for (i, queue) in queues.iter().enumerate() {
            assert_eq!(
                queue["queue"].as_u64(),
                Some(i as u64),
                "queues are not in order: {value}"
            );
        }
        Self {
            total: Lines::parse(&value["total"]),
            queues: queues.iter().map(Lines::parse).collect(),
        }
    }

    /// Asserts what must hold in every run: each frame ended in exactly one place, per queue and in total.
    ///
    /// # Panics
    /// When it does not hold.
    #[track_caller]
    pub fn assert_sums(&self) {
        for (i, queue) in self.queues.iter().enumerate() {
            assert_eq!(
                queue.received,
                queue.ends().iter().sum::<u64>(),
                "queue {i} does not add up: {queue:?}"
            );
        }
        assert_eq!(
            self.total.received,
            self.total.ends().iter().sum::<u64>(),
            "the total does not add up: {self:?}"
        );
        assert_eq!(
            self.total.received,
            self.queues.iter().map(|q| q.received).sum::<u64>(),
            "{self:?}"
        );
        for end in 0..self.total.ends().len() {
            let of_queues: u64 = self.queues.iter().map(|q| q.ends()[end]).sum();
            assert_eq!(
                self.total.ends()[end],
                of_queues,
                "line {end} of the total is not the queues' sum: {self:?}"
            );
        }
    }
}

/// What `--summary` wrote.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The ledger.
    pub ledger: Ledger,
    /// What was lost before delivery, by name; `None`: unreadable.
    pub nic: BTreeMap<String, Option<u64>>,
    /// The capture files.
    pub files: Vec<PathBuf>,
    /// From the first WQ ready to the last file closed.
    pub duration_s: f64,
    /// All of it.
    pub json: Value,
}

impl Summary {
    /// Reads a summary's text.
    ///
    /// # Panics
    /// When a part of the contract is missing, or a ledger does not add up: every test that reads a summary checks
    /// the sums.
    #[must_use]
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let json: Value = serde_json::from_str(text)
            .unwrap_or_else(|e| panic!("the summary is no JSON ({e}): {text}"));
        let ledger = Ledger::parse(&json["ledger"]);
        ledger.assert_sums();
        let nic = json["nic"]
            .as_object()
            .unwrap_or_else(|| panic!("no \"nic\" in the summary: {json}"));
        let nic = nic
            .iter()
            .map(|(name, value)| match value {
                Value::String(text) if text == "unreadable" => (name.clone(), None),
                value => (
                    name.clone(),
                    Some(value.as_u64().unwrap_or_else(|| panic!("{name} = {value}"))),
                ),
            })
            .collect();
        let files = json["files"]
            .as_array()
            .unwrap_or_else(|| panic!("no \"files\" in the summary: {json}"));
        let files = files
            .iter()
            .map(|f| PathBuf::from(f.as_str().expect("file names are strings")))
            .collect();
        let duration_s = json["duration_s"]
            .as_f64()
            .unwrap_or_else(|| panic!("no \"duration_s\": {json}"));
        Self {
            ledger,
            nic,
            files,
            duration_s,
            json,
        }
    }

    /// A counter of the NIC that must be there and readable.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    #[track_caller]
    pub fn nic(&self, name: &str) -> u64 {
        match self.nic.get(name) {
            Some(Some(value)) => *value,
            Some(None) => panic!("{name} is unreadable: {}", self.json),
            None => panic!("no counter {name}: {}", self.json),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(received: u64, captured: u64, in_queue: u64) -> String {
        let lines = |received: u64, captured: u64| {
            format!(
                r#""received":{received},"captured":{captured},"filtered":0,"sampled_out":0,"deduplicated":0,"cut_off":0,
                "dropped_pipeline":0,"dropped_storage":0,"late":0,"errors":0"#
            )
        };
        format!(
            r#"{{"ledger":{{"total":{{{}}},"queues":[{{"queue":0,{}}}]}},
            "nic":{{"out_of_buffer":"unreadable","wire_dropped":3}},"files":["a"],"duration_s":0.5}}"#,
            lines(received, captured),
            lines(in_queue, in_queue)
        )
    }

    #[test]
    fn a_summary_that_adds_up() {
        let summary = Summary::parse(&summary(7, 7, 7));
        assert_eq!(summary.ledger.total.captured, 7);
        assert_eq!(summary.nic("wire_dropped"), 3);
        assert_eq!(summary.nic["out_of_buffer"], None);
    }

    #[test]
    #[should_panic = "does not add up"]
    fn a_frame_without_an_end_is_seen() {
        let _ = Summary::parse(&summary(7, 6, 7));
    }

    #[test]
    #[should_panic = "received"]
    fn a_total_that_is_not_the_sum_of_the_queues_is_seen() {
        let _ = Summary::parse(&summary(7, 7, 6));
    }

    #[test]
    #[should_panic = "no number"]
    fn a_missing_line_is_seen() {
        let _ = Summary::parse(&summary(7, 7, 7).replace("\"late\":0,", ""));
    }
}
