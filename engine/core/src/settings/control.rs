//! The `[control]` section of the configuration.

use super::SettingError;
use crate::section;
use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

section! {
    /// Configuration section `[control]` of the control service.
    pub struct ControlConfig {
        /// Path of the control service's Unix socket.
        pub unix: PathBuf = PathBuf::from("/run/wqcap/control.sock"),
        /// Mode of the control socket's file; absent: derived from the groups.
        pub mode: Option<FileMode> = None,
        /// Group of the control socket's file; absent: `read_group` or `write_group`, if only one
        /// of them is set.
        pub group: Option<String> = None,
        /// Group with read-only access to the control service; absent: none.
        pub read_group: Option<String> = None,
        /// Group with read-write access to the control service; absent: none.
        pub write_group: Option<String> = None,
        /// Address at which the control service is served over RDMA; absent: RDMA is not served.
        pub rdma: Option<SocketAddr> = None,
        /// File with the keys that RDMA clients of the control service must prove; absent: none.
        pub key_file: Option<PathBuf> = None,
        /// Number of receive WRs that the control service's SRQ holds at the start.
        pub srq: u32 = 64,
        /// Number of receive WRs to which the control service's SRQ may grow.
        pub srq_max: u32 = 1024,
        /// Time for which the control service's SRQ must not run low before it shrinks.
        #[serde(with = "span")]
        pub srq_calm: Duration = Duration::from_secs(30),
        /// Resize the control service's SRQ if the device can; otherwise the SRQ has its largest
        /// size from the start.
        pub srq_resize: bool = true,
    }
}

/// Permissions of a file, written in octal: `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileMode(pub u32);

impl TryFrom<String> for FileMode {
    type Error = SettingError;

    fn try_from(text: String) -> Result<Self, SettingError> {
        u32::from_str_radix(&text, 8)
            .ok()
            .filter(|mode| *mode <= 0o777)
            .map(Self)
            .ok_or(SettingError::NotAFileMode(text))
    }
}

impl From<FileMode> for String {
    fn from(mode: FileMode) -> Self {
        format!("{:04o}", mode.0)
    }
}

/// Serialization of a duration with its unit: `30s`.
mod span {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::time::Duration;

    pub fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(*span))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(text.trim()).map_err(|_| {
            D::Error::custom(format!(
                "{text:?} is not a duration; write a number with its unit: 60s, 5m, 2h"
            ))
        })
    }
}
