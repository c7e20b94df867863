//! Requests from a client to the service.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use strum::Display;

/// Request of a client to carry out one command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Protocol version of the request, [`VERSION`](super::VERSION).
    pub version: u32,
    /// Number of the request, chosen by the client; the answer has the same number.
    pub id: u64,
    /// Idempotency key of a change, at most 64 bytes. A request that repeats a key, over any
    /// connection, is not carried out again: it gets the answer of the first request. The service
    /// remembers the last 256 keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub once: Option<String>,
    /// Command that the request asks for.
    pub command: Command,
}

/// Command that a client requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Read the state of the capture and of the control service.
    Status,
    /// Read the current ledger, by queue and in total, and the losses of the NIC.
    Stats,
    /// List the RDMA devices of the machine, as `wqcap devices --json` prints them; `text` contains
    /// the list for people.
    Devices,
    /// Read the plan of the capture as it is in force now, in the form of `wqcap check --json`.
    /// `changed` lists the differences from the start of the process, by key. `text` contains the
    /// plan for people.
    Plan,
    /// Send a `stats` answer each interval, with this request's number. A new subscription replaces
    /// the client's previous one.
    Subscribe {
        /// Interval of the subscription in milliseconds, 100 to 3,600,000.
        interval_ms: u32,
    },
    /// Start capturing again after `stop` or `drain`. No effect while the capture runs.
    Start,
    /// End the capture in order and complete its files. The process stays and can start the capture
    /// again. No effect if the capture is stopped.
    Stop,
    /// Let no more frames into the capture, write the frames that have arrived, and complete the
    /// files. `start` continues the capture.
    Drain,
    /// Continue in a new capture file on every queue that has an open file.
    Rotate,
    /// Replace the filter of captured frames.
    Filter {
        /// New filter as a pcap-filter(7) expression; empty for every frame.
        expression: String,
    },
    /// Add a flow rule in the NIC. No effect if the rule exists.
    RuleAdd {
        /// Fields of the flow rule to add, as in a `[[rule]]` of the configuration.
        rule: BTreeMap<String, Value>,
    },
    /// Remove a flow rule in the NIC. No effect if the rule does not exist.
    RuleRemove {
        /// Flow rule to remove: its `id` alone, or all its fields.
        rule: BTreeMap<String, Value>,
    },
    /// Change those creation flags of the WQs that can change while frames are received; absent
    /// flags stay as they are.
    WqFlags {
        /// `true` if the NIC is to strip the customer VLAN tag.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cvlan_stripping: Option<bool>,
        /// `true` if the NIC is to deliver the frame check sequence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scatter_fcs: Option<bool>,
    },
    /// Change how flows spread over the receive queues.
    Respread {
        /// Weight of each queue in the indirection table; empty to derive the weights from what
        /// each queue has received.
        #[serde(default)]
        weights: Vec<u32>,
    },
    /// Mark this moment: pin the capture files of the surrounding time, and record the mark with
    /// the next frame of each open pcapng file.
    Mark {
        /// Description of the mark, in one line of at most 900 bytes.
        text: String,
        /// Milliseconds before now that the mark covers.
        #[serde(default = "minute")]
        before_ms: u64,
        /// Milliseconds after now that the mark covers.
        #[serde(default = "minute")]
        after_ms: u64,
        /// Frames that the mark covers, as a pcap-filter(7) expression; empty for every frame.
        #[serde(default)]
        filter: String,
    },
    /// Set the log level of the process.
    Log {
        /// New log level: `error`, `warn`, `info`, `debug` or `trace`.
        level: LogLevel,
    },
    /// Read the configuration file again and apply the keys that can change in a running capture.
    Reload,
    /// End the process of the capture, as SIGTERM does.
    Shutdown,
}

/// Returns the default of the time that a mark covers before and after its moment: a minute in
/// milliseconds.
fn minute() -> u64 {
    60_000
}

/// Kind of a control command, which determines how the service handles the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// Command that the service answers from the published state of the capture, without the
    /// capture's owner.
    Query(Query),
    /// Command that subscribes the client to statistics.
    Subscription {
        /// Interval between two `stats` answers in milliseconds.
        interval_ms: u32,
    },
    /// Command that passes a change to the owner of the capture. Clients with read-only access may
    /// not send it.
    Change,
}

/// Control command that only reads the state of the capture or of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// Query of the command [`Command::Status`].
    Status,
    /// Query of the command [`Command::Stats`].
    Stats,
    /// Query of the command [`Command::Devices`].
    Devices,
    /// Query of the command [`Command::Plan`].
    Plan,
}

impl Command {
    /// Returns how the control service handles the command. Every command is listed, so that a new
    /// command does not compile without a decision here.
    #[must_use]
    pub fn kind(&self) -> CommandKind {
        match self {
            Self::Status => CommandKind::Query(Query::Status),
            Self::Stats => CommandKind::Query(Query::Stats),
            Self::Devices => CommandKind::Query(Query::Devices),
            Self::Plan => CommandKind::Query(Query::Plan),
            Self::Subscribe { interval_ms } => CommandKind::Subscription {
                interval_ms: *interval_ms,
            },
            Self::Start
            | Self::Stop
            | Self::Drain
            | Self::Rotate
            | Self::Filter { .. }
            | Self::RuleAdd { .. }
            | Self::RuleRemove { .. }
            | Self::WqFlags { .. }
            | Self::Respread { .. }
            | Self::Mark { .. }
            | Self::Log { .. }
            | Self::Reload
            | Self::Shutdown => CommandKind::Change,
        }
    }

    /// Returns `true` if the command changes anything. A read-only client may not send such a
    /// command.
    #[must_use]
    pub fn is_change(&self) -> bool {
        self.kind() == CommandKind::Change
    }
}

/// Log level: the least severe events that are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum LogLevel {
    /// Log level at which only failures are logged.
    Error,
    /// Log level at which failures and likely failures are logged.
    Warn,
    /// Log level at which events of normal operation are also logged.
    Info,
    /// Log level at which details of normal operation are also logged.
    Debug,
    /// Log level at which all events are logged.
    Trace,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_read_as_documented() {
        let request: Request = serde_json::from_value(json!({
            "version": 1, "id": 7, "once": "a", "command": {"do": "filter", "expression": "tcp"}
        }))
        .unwrap();
        assert_eq!(request.id, 7);
        assert!(request.command.is_change());
        for (value, part) in [
            (
                json!({"version": 1, "id": 1, "command": {"do": "dance"}}),
                "dance",
            ),
            (json!({"version": 1, "id": 1}), "command"),
            (
                json!({"version": 1, "id": 1, "command": {"do": "filter"}}),
                "expression",
            ),
            (
                json!({"version": 1, "id": 1, "x": 0, "command": {"do": "status"}}),
                "`x`",
            ),
            (
                json!({"version": 1, "id": -1, "command": {"do": "status"}}),
                "-1",
            ),
        ] {
            let problem = serde_json::from_value::<Request>(value)
                .unwrap_err()
                .to_string();
            assert!(problem.contains(part), "{problem}");
        }
    }
}
