//! Stand-ins for the engine's clock conversion: a linear function of four numbers, and one form of
//! timestamps.

/// Stand-in for the form of hardware timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StampForm;

/// Stand-in for the conversion of hardware timestamps to nanoseconds, with the engine's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conversion {
    pub(crate) form: StampForm,
    pub(crate) base: u64,
    pub(crate) base_ns: u64,
    pub(crate) slope: u64,
    pub(crate) base_mono_ns: u64,
}

impl Conversion {
    /// Stand-in for the conversion of stamps in UTC, which no model uses.
    pub(crate) fn utc(around_ns: u64) -> Self {
        Self {
            form: StampForm,
            base: around_ns,
            base_ns: around_ns,
            slope: 1,
            base_mono_ns: 0,
        }
    }
}

#[path = "../../engine/rx/src/clock/shared.rs"]
mod shared;

pub(crate) use shared::{SharedConversion, Words};
