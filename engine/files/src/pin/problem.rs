//! Reasons why a pin (protection of capture files from deletion), its file or the folder of pins is
//! invalid.

use super::Pin;
use serde::{Serialize, Serializer};

/// Maximum number of pins, which protect capture files from deletion, in a capture folder.
pub const MOST_PINS: usize = 1024;
/// Suffix of a pin's file name, after its ID.
pub(super) const ENDING: &str = ".json";

/// Reason why a pin, which protects capture files from deletion, is invalid. Serialized as its
/// text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum PinProblem {
    /// The time range of the pin is empty: it ends at or before its start.
    #[error("the pin's start must be before its end")]
    Times,
    /// The pin has no reason.
    #[error("the pin must have a reason")]
    NoReason,
    /// A text of the pin is longer than [`Pin::LONGEST`].
    #[error(
        "the pin's {field} has {len} bytes; at most {} are allowed",
        Pin::LONGEST
    )]
    LongText {
        /// Name of the pin's field: `reason` or `filter`.
        field: &'static str,
        /// Length of the field's text in bytes.
        len: usize,
    },
    /// A text of the pin has control characters.
    #[error("the pin's {field} must be one line of text")]
    Lines {
        /// Name of the pin's field: `reason` or `filter`.
        field: &'static str,
    },
    /// The name of the file in the folder of pins is not that of a pin.
    #[error("the name of a pin file must end in {ENDING}")]
    FileName,
    /// The file in the folder of pins is longer than any pin.
    #[error("the file has more bytes than a pin file may have, and is not read")]
    FileLength,
    /// The content of the file is not that of a pin; the text is the reason.
    #[error("the file is not a pin: {0}")]
    Content(String),
    /// The system refuses access to the pin's file or the folder of pins; the text is its error.
    #[error("{0}")]
    Io(String),
    /// The path of the folder of pins leads to a file that is no folder.
    #[error("the path of the pins is not a directory")]
    NotAFolder,
    /// The folder has more than [`MOST_PINS`] pins.
    #[error(
        "the directory has more than {MOST_PINS} pins, which is the limit; the other pins were not read"
    )]
    TooMany,
}

impl From<std::io::Error> for PinProblem {
    fn from(e: std::io::Error) -> Self {
        Self::Io(e.to_string())
    }
}

impl Serialize for PinProblem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
