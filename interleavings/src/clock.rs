//! The engine's conversion is a line; here it is four numbers, and one form of stamps.

/// As in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form;

/// As in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conversion {
    pub(crate) form: Form,
    pub(crate) base: u64,
    pub(crate) base_ns: u64,
    pub(crate) slope: u64,
    pub(crate) base_mono_ns: u64,
}

#[path = "../../engine/rx/src/clock/shared.rs"]
mod shared;

pub(crate) use shared::{SharedConversion, Words};
