//! Choice of the source of the frames' time stamps: NIC, kernel or software.

use crate::{
    config::{CaptureConfig, Clock, Timestamps},
    device::DeviceFacts,
};
use serde::Serialize;

/// Source of the frames' time stamps: the NIC's clock or the system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stamps {
    /// NIC's clock, disciplined to the system clock, as the source of time stamps.
    HardwareSystem,
    /// NIC's clock without correction as the source of time stamps.
    HardwareNic,
    /// System clock as the source of time stamps, read by the kernel at each frame's reception.
    Kernel,
    /// System clock as the source of time stamps, read when a batch of frames is polled.
    Software,
}

impl Stamps {
    /// Chooses the configured source of time stamps, or `Software` if the device does not stamp
    /// completions.
    pub(super) fn from_config(
        capture: &CaptureConfig,
        device: &DeviceFacts,
        notes: &mut Vec<String>,
    ) -> Self {
        match (capture.timestamps, capture.clock) {
            (Timestamps::Software, _) => Self::Software,
            _ if device.kernel.is_some() => Self::Kernel,
            // The completions that `ibv_poll_cq` returns have no time stamps.
            _ if device.raw_qp_only
                || device.caps.clock_khz == 0
                || device.caps.timestamp_mask == 0 =>
            {
                notes.push(format!(
                    "the device {} does not time stamp completions: capture.timestamps = \"software\" is used",
                    device.name
                ));
                Self::Software
            }
            (Timestamps::Hardware, Clock::System) => Self::HardwareSystem,
            (Timestamps::Hardware, Clock::Nic) => Self::HardwareNic,
        }
    }
}
