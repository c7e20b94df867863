//! Choice of the time stamp source of frames.

use crate::{
    config::{CaptureConfig, Clock, Timestamps},
    device::DeviceFacts,
};
use serde::Serialize;

/// Source of the frames' time stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stamps {
    /// Time stamps of the NIC's clock, disciplined to the system clock.
    HardwareSystem,
    /// Time stamps of the NIC's clock without correction.
    HardwareNic,
    /// Time stamps of the system clock that the kernel gave each frame at its reception.
    Kernel,
    /// Time stamps of the system clock at the time when a batch of frames is polled.
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
