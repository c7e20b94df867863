//! Slice, the header after which frames are truncated, as it is written in the configuration and on
//! the command line.

use serde::{Deserialize, Serialize};

/// Header of a frame's innermost packet after which the frame is truncated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Slice {
    /// No truncation: whole frames are kept (`""`).
    #[default]
    Whole,
    /// Truncation after the L3 header, the IP header (`"l3"`).
    L3,
    /// Truncation after the L4 header, such as TCP or UDP (`"l4"`).
    L4,
    /// Truncation this many bytes after the L4 header (`"payload:64"`).
    Payload(u32),
}

/// Error for a text that is not a slice, the header after which frames are truncated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a slice; write \"\", \"l3\", \"l4\" or \"payload:N\"")]
pub struct SliceError(String);

impl TryFrom<String> for Slice {
    type Error = SliceError;

    fn try_from(text: String) -> Result<Self, SliceError> {
        match text.as_str() {
            "" => Ok(Self::Whole),
            "l3" => Ok(Self::L3),
            "l4" => Ok(Self::L4),
            _ => text
                .strip_prefix("payload:")
                .and_then(|n| n.parse().ok())
                .map(Self::Payload)
                .ok_or(SliceError(text)),
        }
    }
}

impl From<Slice> for String {
    fn from(slice: Slice) -> Self {
        match slice {
            Slice::Whole => Self::new(),
            Slice::L3 => "l3".into(),
            Slice::L4 => "l4".into(),
            Slice::Payload(n) => format!("payload:{n}"),
        }
    }
}
