//! How long the disk holds what is captured.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How long the disk holds what is captured, at the rate of now.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outlook {
    /// Bytes a second of the files that were finished in the last hour.
    pub bytes_per_s: f64,
    /// If `deletes`, files go when they are so many seconds old. Otherwise the disk is full in so many.
    pub seconds: f64,
    /// The oldest files are deleted to make room.
    pub deletes: bool,
}
