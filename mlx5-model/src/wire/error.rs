//! Error type of [`Wire::open`](super::Wire::open).

use std::io;

use super::spec::WireSpec;

/// Error of opening a wire: the wire, the failed step, the cause and the remedy.
#[derive(Debug, thiserror::Error)]
#[error(
    "wire `{wire}`: {operation}: {source}{}{advice}",
    if advice.is_empty() { "" } else { "; " }
)]
pub struct WireError {
    wire: String,
    /// Failed step of opening a wire, such as "cannot open a packet socket".
    operation: String,
    source: io::Error,
    advice: String,
}

impl WireError {
    pub fn new(
        wire: &WireSpec,
        operation: impl Into<String>,
        source: io::Error,
        advice: impl Into<String>,
    ) -> WireError {
        WireError {
            wire: wire.text().to_owned(),
            operation: operation.into(),
            source,
            advice: advice.into(),
        }
    }
}
