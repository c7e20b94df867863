//! How frames get their time stamps.

use crate::{
    config::{CaptureConfig, Clock, Timestamps},
    device::DeviceFacts,
};
use serde::Serialize;

/// How stamps are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stamps {
    /// The device's clock, held to the system's.
    HardwareSystem,
    /// The device's clock as it runs.
    HardwareNic,
    /// The system clock when a batch was polled.
    Software,
}

impl Stamps {
    /// As configured, and as the device can.
    pub(super) fn of(
        capture: &CaptureConfig,
        device: &DeviceFacts,
        notes: &mut Vec<String>,
    ) -> Self {
        match (capture.timestamps, capture.clock) {
            (Timestamps::Software, _) => Self::Software,
            _ if device.caps.clock_khz == 0 || device.caps.timestamp_mask == 0 => {
                notes.push(format!(
                    "{} stamps no completions: capture.timestamps is software",
                    device.name
                ));
                Self::Software
            }
            (Timestamps::Hardware, Clock::System) => Self::HardwareSystem,
            (Timestamps::Hardware, Clock::Nic) => Self::HardwareNic,
        }
    }
}
