//! Typed summary of a run.
//!
//! Parsing is strict: a missing line is a failure, because the contract requires all lines.

use serde_json::Value;
use std::{collections::BTreeMap, path::PathBuf};

/// Returns a JSON value as an unsigned count.
///
/// # Panics
/// Panics if the value is not an unsigned integer.
#[must_use]
#[track_caller]
pub fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Ledger lines of one queue or of the total, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Frames delivered by the NIC.
    pub received: u64,
    /// Frames in files, or only counted if the run writes no files.
    pub captured: u64,
    /// Frames that the filter rejected.
    pub filtered: u64,
    /// Frames dropped by sampling.
    pub sampled_out: u64,
    /// Frames dropped as duplicates.
    pub deduplicated: u64,
    /// Frames after the cutoff of their flow.
    pub cut_off: u64,
    /// Frames dropped because a parser's channel was full.
    pub dropped_pipeline: u64,
    /// Frames dropped because the write buffers were full or a write failed.
    pub dropped_storage: u64,
    /// Always 0.
    pub late: u64,
    /// Frames whose completion reported an error.
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

    /// Returns all lines except `received`, in the order of the contract.
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

/// Ledger of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Lines of all queues together.
    pub total: Lines,
    /// Lines of each queue, in queue order.
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

    /// Asserts that each received frame is counted in exactly one other line, per queue and in the
    /// total.
    ///
    /// # Panics
    /// Panics if a sum does not match.
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

/// Summary written by `--summary`.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Ledger of the run.
    pub ledger: Ledger,
    /// Counters of frames that the NIC lost before delivery, by name; `None` if unreadable.
    pub nic: BTreeMap<String, Option<u64>>,
    /// Paths of the capture files.
    pub files: Vec<PathBuf>,
    /// Seconds from the first ready WQ to the last closed file.
    pub duration_s: f64,
    /// Complete JSON of the summary.
    pub json: Value,
}

impl Summary {
    /// Parses the text of a summary and checks the sums of its ledger.
    ///
    /// # Panics
    /// Panics if a required part is missing or the ledger does not add up.
    #[must_use]
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let json: Value = serde_json::from_str(text)
            .unwrap_or_else(|e| panic!("the summary is not JSON ({e}): {text}"));
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

    /// Returns the NIC counter `name`.
    ///
    /// # Panics
    /// Panics if the counter is missing or unreadable.
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
    fn a_summary_that_adds_up_is_parsed() {
        let summary = Summary::parse(&summary(7, 7, 7));
        assert_eq!(summary.ledger.total.captured, 7);
        assert_eq!(summary.nic("wire_dropped"), 3);
        assert_eq!(summary.nic["out_of_buffer"], None);
    }

    #[test]
    #[should_panic = "does not add up"]
    fn a_frame_that_no_line_counts_is_detected() {
        let _ = Summary::parse(&summary(7, 6, 7));
    }

    #[test]
    #[should_panic = "received"]
    fn a_total_that_differs_from_the_sum_of_the_queues_is_detected() {
        let _ = Summary::parse(&summary(7, 7, 6));
    }

    #[test]
    #[should_panic = "no number"]
    fn a_missing_line_is_detected() {
        let _ = Summary::parse(&summary(7, 7, 7).replace("\"late\":0,", ""));
    }
}
