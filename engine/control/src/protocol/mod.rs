//! Messages between clients and the control service: JSON, identical on every transport.
//!
//! A message is one JSON object without a line break. Over a Unix socket it is one line. Over RDMA
//! it is split into fragments ([`fragment`]), and clients authenticate first ([`handshake`],
//! [`auth`]).
//!
//! These types are the only source of the protocol: `wqcap ctl schema` prints the JSON Schema
//! derived from them, and a test compares it with `docs/control.schema.json`.

mod answer;
pub mod auth;
pub mod fragment;
pub mod handshake;
mod request;
mod secret;
mod status;

pub use answer::{Answer, AnswerBody, AnswerOutcome, Changed, Refusal, RefusalCode};
pub use handshake::{AccessLevel, Challenge, HANDSHAKE_VERSION, Handshake};
pub use request::{Command, CommandKind, LogLevel, Query, Request};
pub use status::{
    CaptureState, CaptureStatus, ControlStatus, RdmaStatus, SrqStatus, Status, TransportStatus,
};

pub use wqcap_core::stats::{LedgerSnapshot, Outlook, Stats, WriteBuffers};

use schemars::JsonSchema;

/// Version of the control protocol. A service rejects any other version and reports its own.
pub const VERSION: u32 = 1;

/// All messages of the control protocol, by direction; exists for the schema only.
#[derive(JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(
    dead_code,
    reason = "never constructed: it names the messages to the schema"
)]
enum Messages {
    Request(Request),
    Answer(Answer),
    Handshake(Handshake),
}

/// Returns the JSON Schema of all messages of the control protocol; each type is under `$defs`.
#[must_use]
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Messages).to_value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_schema_matches_the_types() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/control.schema.json"
        );
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let documented: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        assert!(
            documented == schema(),
            "docs/control.schema.json differs from the types: write it with `wqcap ctl schema`"
        );
    }
}
