//! What clients and the control service say to each other: JSON, the same over every transport.
//!
//! These types are the one source of truth: `wqcap ctl schema` prints the JSON Schema made of them, and a test holds
//! `docs/control.schema.json` to it.
//!
//! A message is one JSON object. Over a Unix socket it is a line; over RDMA it is split into parts
//! ([`super::parts`]). The text never holds a line break.

use crate::{
    analysis::live,
    stats::{NicCounters, QueueLedger, Total},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The version of these messages. A service refuses another one and names its own.
pub const VERSION: u32 = 1;

/// From a client: do this.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`VERSION`].
    pub version: u32,
    /// The client's own number for it, which the answer carries.
    pub id: u64,
    /// A name for a change, at most 64 bytes: repeated under the same name, by whatever connection, it is not carried
    /// out again but answered as the first time. The service remembers the last 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub once: Option<String>,
    /// What to do.
    pub command: Command,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// State of the capture and of the control service.
    Status,
    /// The ledger as it stands, by queue and in total, and what the NIC lost.
    Stats,
    /// The RDMA devices of the machine, as `wqcap devices --json` prints them; `text` is the same for people.
    Devices,
    /// What is captured and how, as `wqcap check --json` prints it, with what has changed since the start; `text` is
    /// the same for people.
    Plan,
    /// From now on a `stats` answer each interval, under this request's number; another subscription takes its place.
    Subscribe {
        /// Milliseconds, 100 to 3,600,000.
        interval_ms: u32,
    },
    /// Captures again after `stop` or `drain`. Nothing happens while it runs.
    Start,
    /// Ends the capture in order, files and all. The process stays, to start again. Nothing happens when it is stopped.
    Stop,
    /// Lets nothing more in; what has come is written and its files are completed. Everything stays in place for `start`.
    Drain,
    /// Goes on to a new file on every queue that has one open.
    Rotate,
    /// Lets another filter hold.
    Filter {
        /// A pcap-filter(7) expression; empty: every frame.
        expression: String,
    },
    /// Adds a rule in the NIC. Nothing happens if it is there.
    RuleAdd {
        /// Its fields, as in a `[[rule]]` of the configuration.
        rule: BTreeMap<String, Value>,
    },
    /// Removes a rule. Nothing happens if there is none like it.
    RuleRemove {
        /// Its `id` alone, or all its fields.
        rule: BTreeMap<String, Value>,
    },
    /// Changes creation flags that a WQ can change while it receives; what is absent stays.
    WqFlags {
        /// The NIC takes the customer VLAN tag off.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cvlan_stripping: Option<bool>,
        /// The NIC delivers the frame check sequence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scatter_fcs: Option<bool>,
    },
    /// Spreads flows over the queues by other shares.
    Respread {
        /// A share of the indirection table for each queue; empty: by what each has received.
        #[serde(default)]
        weights: Vec<u32>,
    },
    /// Logs from another level on.
    Log {
        /// `error`, `warn`, `info`, `debug` or `trace`.
        level: LogLevel,
    },
    /// Reads the configuration file again and carries over what can change in a running capture.
    Reload,
    /// Ends the process as SIGTERM does.
    Shutdown,
}

impl Command {
    /// Whether it changes anything: what a read-only client may not do.
    #[must_use]
    pub fn is_change(&self) -> bool {
        !matches!(
            self,
            Self::Status | Self::Stats | Self::Devices | Self::Plan | Self::Subscribe { .. }
        )
    }
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What failed.
    Error,
    /// And what may fail.
    Warn,
    /// And what happens.
    Info,
    /// And how.
    Debug,
    /// And all else.
    Trace,
}

impl LogLevel {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// From the service: the outcome of a request, or one more `stats` of a subscription.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// [`VERSION`].
    pub version: u32,
    /// The request's number; 0 for a message that had none that could be read.
    pub id: u64,
    /// How it went.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// How a request went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was done.
    Ok(Body),
    /// It was not, and nothing has changed.
    Error(Refusal),
}

/// What a command tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// Of `status`.
    Status(Box<Status>),
    /// Of `stats`, and each interval of `subscribe`.
    Stats(Box<Stats>),
    /// Of `devices`.
    Devices(Value),
    /// Of `plan`.
    Plan(Value),
    /// Of `subscribe`.
    Subscribed {
        /// The interval that holds.
        interval_ms: u32,
    },
    /// Of every command that changes something.
    Changed(Changed),
}

/// What a change did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    /// False: it was so already.
    pub changed: bool,
    /// How it is now, in words.
    pub now: String,
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// For programs.
    pub code: Code,
    /// For people: the value, the limit, what to do.
    pub message: String,
}

impl Refusal {
    /// Of this kind, in these words.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// Kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// No message of this version, or a value out of range.
    Malformed,
    /// Longer than the service takes.
    TooLarge,
    /// More, or more often, than one client may.
    TooMany,
    /// The client may not do this.
    Denied,
    /// Not in the capture's present state.
    State,
    /// The capture, its device or this build cannot do it.
    Unsupported,
    /// It was tried and failed.
    Failed,
}

/// State of the capture and of the control service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The capture.
    pub capture: CaptureStatus,
    /// The service.
    pub control: ControlStatus,
}

/// State of the capture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CaptureStatus {
    /// Version of the program.
    pub wqcap: String,
    /// Its process.
    pub pid: u32,
    /// What it does.
    pub state: State,
    /// The RDMA device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// Receive queues.
    pub queues: u16,
    /// Seconds since the first WQ was ready.
    pub elapsed_s: f64,
    /// The filter that holds.
    pub filter: String,
    /// The level from which is logged.
    pub log: String,
    /// All queues together.
    pub ledger: Total,
}

/// What a capture does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Captures.
    Running,
    /// Lets nothing in, by `drain`.
    Drained,
    /// Has ended, by `stop`; or there is none.
    #[default]
    Stopped,
    /// Goes on by itself once the device, which is gone, is back (`device.on_loss = "retry"`).
    Lost,
}

/// State of the control service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ControlStatus {
    /// Over the Unix socket; absent: it is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix: Option<TransportStatus>,
    /// Over RDMA; absent: it is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaStatus>,
}

/// Counters of a transport, since the service began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TransportStatus {
    /// Clients connected now.
    pub clients: u64,
    /// Connections so far.
    pub accepted: u64,
    /// Connections turned away: too many, without the right, or without the key.
    pub refused: u64,
    /// Clients put out: garbage, oversize, stalled, flooding.
    pub expelled: u64,
    /// Requests so far.
    pub requests: u64,
}

/// The same of RDMA, and its SRQ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RdmaStatus {
    /// Counters.
    #[serde(flatten)]
    pub transport: TransportStatus,
    /// The shared receive queue.
    pub srq: SrqStatus,
}

/// The one shared receive queue of all RDMA clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SrqStatus {
    /// WRs it can hold now (`ibv_query_srq`), which may be more than was asked for.
    pub max_wr: u32,
    /// WRs posted now.
    pub posted: u32,
    /// The low watermark that is armed; 0: none.
    pub limit: u32,
    /// WRs it may grow to.
    pub cap: u32,
    /// Whether the device resizes it; if not, it has had its full size from the start.
    pub resizes: bool,
    /// `IBV_EVENT_SRQ_LIMIT_REACHED` so far.
    pub limit_events: u64,
    /// Times that the low watermark was armed.
    pub armed: u64,
    /// Times it grew.
    pub grown: u64,
    /// Times it shrank.
    pub shrunk: u64,
    /// Resizes that the device refused.
    pub resize_refused: u64,
    /// Senders told that no receive was posted (receiver not ready), where the device counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiver_not_ready: Option<u64>,
    /// Queue pairs attached now.
    pub qps: u64,
}

/// The ledger of a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// Seconds since the first WQ was ready.
    pub elapsed_s: f64,
    /// The ledger.
    pub ledger: Ledger,
    /// What the NIC lost before delivery, by its own names, at most a second ago.
    pub nic: NicCounters,
    /// What waits for the disk; absent: nothing is written to files now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// The traffic of now; absent: `capture.statistics` is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<live::Snapshot>,
}

/// The write buffers of all queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Disk {
    /// Bytes of them (`output.buffer`).
    pub buffer: u64,
    /// Bytes in use: being filled, compressed or written. At the whole size frames are dropped, or loops wait.
    pub used: u64,
}

/// By queue and in total.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ledger {
    /// All queues together.
    pub total: Total,
    /// By queue.
    pub queues: Vec<QueueLedger>,
}

/// The handshake of transports without peer credentials; see [`super::auth`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Handshake {
    /// From the service, first of all.
    Challenge {
        /// [`VERSION`].
        version: u32,
        /// 32 random bytes, in hex.
        nonce: String,
    },
    /// From the client: that it has the key.
    Proof {
        /// Which key it has.
        access: Access,
        /// 32 random bytes of its own, in hex.
        nonce: String,
        /// The client's HMAC, in hex.
        mac: String,
    },
    /// From the service: that it has the key too, and takes requests.
    Welcome {
        /// The service's HMAC, in hex.
        mac: String,
    },
}

/// What a client may do.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Look.
    ReadOnly,
    /// And change.
    ReadWrite,
}

impl Handshake {
    /// As text, without a line break.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Answer {
    /// With what was told.
    #[must_use]
    pub fn ok(id: u64, body: Body) -> Self {
        Self {
            version: VERSION,
            id,
            outcome: Outcome::Ok(body),
        }
    }

    /// With why not.
    #[must_use]
    pub fn error(id: u64, refusal: Refusal) -> Self {
        Self {
            version: VERSION,
            id,
            outcome: Outcome::Error(refusal),
        }
    }

    /// With either.
    #[must_use]
    pub fn of(id: u64, result: Result<Body, Refusal>) -> Self {
        match result {
            Ok(body) => Self::ok(id, body),
            Err(refusal) => Self::error(id, refusal),
        }
    }

    /// As text, without a line break.
    #[must_use]
    pub fn text(&self) -> String {
        // Types with string keys and finite numbers always print; a float that is none prints as null.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Every message, by direction; exists for the schema.
#[derive(JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code, reason = "never made: it names the messages to the schema")]
enum Messages {
    Request(Request),
    Answer(Answer),
    Handshake(Handshake),
}

/// The JSON Schema of all messages: each definition under `$defs`.
#[must_use]
pub fn schema() -> Value {
    let schema = schemars::schema_for!(Messages);
    schema.to_value()
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

    #[test]
    fn answers_read_back() {
        for answer in [
            Answer::ok(
                1,
                Body::Changed(Changed {
                    changed: true,
                    now: "stopped".into(),
                }),
            ),
            Answer::ok(2, Body::Stats(Box::default())),
            Answer::error(3, Refusal::new(Code::Denied, "no\nline breaks")),
        ] {
            let text = answer.text();
            assert!(!text.contains('\n'));
            assert_eq!(serde_json::from_str::<Answer>(&text).unwrap(), answer);
        }
        let text = Answer::error(3, Refusal::new(Code::TooMany, "x")).text();
        assert_eq!(
            text,
            r#"{"version":1,"id":3,"error":{"code":"too_many","message":"x"}}"#
        );
    }

    #[test]
    fn the_schema_in_the_documentation_is_that_of_the_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/control.schema.json");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let documented: Value = serde_json::from_str(&text).unwrap_or_default();
        assert!(
            documented == schema(),
            "docs/control.schema.json differs from the types: write it with `wqcap ctl schema`"
        );
    }
}
