//! The ledger of all queues together.

use super::QueueLedger;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The lines of [`QueueLedger`], of all queues together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "they are described at QueueLedger")]
pub struct Total {
    pub received: u64,
    pub captured: u64,
    pub filtered: u64,
    pub sampled_out: u64,
    pub deduplicated: u64,
    pub dropped_pipeline: u64,
    pub dropped_storage: u64,
    pub late: u64,
    pub errors: u64,
    pub bytes: u64,
}

/// Of [`QueueLedger::total`], whose queue means nothing.
impl From<QueueLedger> for Total {
    fn from(it: QueueLedger) -> Self {
        Self {
            received: it.received,
            captured: it.captured,
            filtered: it.filtered,
            sampled_out: it.sampled_out,
            deduplicated: it.deduplicated,
            dropped_pipeline: it.dropped_pipeline,
            dropped_storage: it.dropped_storage,
            late: it.late,
            errors: it.errors,
            bytes: it.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::LINES;

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
