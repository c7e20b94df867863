//! From a client to the service: requests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use strum::Display;

/// A request to carry out one command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The protocol version, [`VERSION`](super::VERSION).
    pub version: u32,
    /// The client's own number for this request; the answer carries the same number.
    pub id: u64,
    /// Idempotency key of a change, at most 64 bytes. A request that repeats a key, over any connection, is not carried
    /// out again: it gets the answer of the first. The service remembers the last 256 keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub once: Option<String>,
    /// What to do.
    pub command: Command,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Read the state of the capture and of the control service.
    Status,
    /// Read the current ledger, by queue and in total, and what the NIC lost.
    Stats,
    /// List the RDMA devices of the machine, as `wqcap devices --json` prints them; `text` holds the same for people.
    Devices,
    /// Read what is captured and how, as `wqcap check --json` prints it, as it holds now: `changed` has what differs from the
    /// start of the process, by key. `text` holds the same for people.
    Plan,
    /// Send a `stats` answer each interval, under this request's number. A new subscription replaces the previous one.
    Subscribe {
        /// Milliseconds, 100 to 3,600,000.
        interval_ms: u32,
    },
    /// Start capturing again after `stop` or `drain`. No effect while the capture runs.
    Start,
    /// End the capture in order and complete its files. The process stays and can start again. No effect when stopped.
    Stop,
    /// Let no more frames in, write those that have arrived, and complete the files. `start` continues.
    Drain,
    /// Continue in a new file on every queue that has one open.
    Rotate,
    /// Replace the filter.
    Filter {
        /// A pcap-filter(7) expression; empty: every frame.
        expression: String,
    },
    /// Add a flow rule in the NIC. No effect if it exists.
    RuleAdd {
        /// Its fields, as in a `[[rule]]` of the configuration.
        rule: BTreeMap<String, Value>,
    },
    /// Remove a flow rule. No effect if it does not exist.
    RuleRemove {
        /// Its `id` alone, or all its fields.
        rule: BTreeMap<String, Value>,
    },
    /// Change the creation flags of the WQs that can change while they receive; absent ones stay as they are.
    WqFlags {
        /// The NIC strips the customer VLAN tag.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cvlan_stripping: Option<bool>,
        /// The NIC delivers the frame check sequence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scatter_fcs: Option<bool>,
    },
    /// Change how flows spread over the queues.
    Respread {
        /// A share of the indirection table for each queue; empty: by what each queue has received.
        #[serde(default)]
        weights: Vec<u32>,
    },
    /// Mark this moment: pin the files of the times around it, and have the next frame of each open pcapng file tell of it.
    Mark {
        /// What it is, in one line of at most 900 bytes.
        text: String,
        /// Milliseconds before now that it reaches back.
        #[serde(default = "minute")]
        before_ms: u64,
        /// Milliseconds from now on.
        #[serde(default = "minute")]
        after_ms: u64,
        /// Which frames, a pcap-filter(7) expression; empty: every frame.
        #[serde(default)]
        filter: String,
    },
    /// Set the log level.
    Log {
        /// `error`, `warn`, `info`, `debug` or `trace`.
        level: LogLevel,
    },
    /// Read the configuration file again and apply the keys that can change in a running capture.
    Reload,
    /// End the process, as SIGTERM does.
    Shutdown,
}

/// What a mark reaches over, unless that is said.
fn minute() -> u64 {
    60_000
}

/// Treatment of a command by the control service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// It answers from published state.
    Query(Query),
    /// It sends statistics to the client from then on.
    Subscription {
        /// Milliseconds between two answers.
        interval_ms: u32,
    },
    /// It passes a change on to the owner of the capture. Clients with read-only access may send none.
    Change,
}

/// A command that only reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// [`Command::Status`].
    Status,
    /// [`Command::Stats`].
    Stats,
    /// [`Command::Devices`].
    Devices,
    /// [`Command::Plan`].
    Plan,
}

impl Command {
    /// Returns how the control service treats the command. Every command is listed, so that a new one does not compile without a
    /// decision here.
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

    /// Whether it changes anything; a read-only client may not send it then.
    #[must_use]
    pub fn is_change(&self) -> bool {
        self.kind() == CommandKind::Change
    }
}

/// The least severe events that are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum LogLevel {
    /// Failures.
    Error,
    /// Likely failures.
    Warn,
    /// What happens.
    Info,
    /// How it happens.
    Debug,
    /// Everything.
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
