//! The engine's conversion is a line; here it is three numbers.

/// As in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conversion {
    pub(crate) base_ticks: u64,
    pub(crate) base_ns: u64,
    pub(crate) slope: u64,
}

#[path = "../../engine/src/clock/shared.rs"]
mod shared;

pub(crate) use shared::SharedConversion;
