//! Threads, wake-ups, clocks, and the synchronization primitives of the engine.
//!
//! Sources that the models in `interleavings/` run with loom's primitives import the primitives
//! from this module.

pub(crate) mod thread;
pub(crate) mod wakeup;
pub(crate) mod wall_clock;

pub(crate) use crossbeam_channel::Sender;
pub(crate) use std::{
    hint,
    sync::{Arc, Mutex, atomic},
};
