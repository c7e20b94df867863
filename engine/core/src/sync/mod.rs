//! Threads, wake-ups, clocks, and the synchronization primitives of the engine.
//!
//! Sources that the models in `interleavings/` run with loom's primitives import the primitives
//! from this module.

pub mod caught;
pub mod thread;
pub mod wakeup;
pub mod wall_clock;

pub use crossbeam_channel::Sender;
pub use std::{
    hint,
    sync::{Arc, Mutex, atomic},
};
