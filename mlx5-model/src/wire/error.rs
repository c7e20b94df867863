//! Why a wire could not be opened.

use std::io;

use super::spec::WireSpec;

/// The wire, the step that failed, the reason, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("wire `{wire}`: {operation}: {source}{}{advice}", if advice.is_empty() { "" } else { "; " })]
pub struct WireError {
    wire: String,
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
