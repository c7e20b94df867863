//! Primitives by which threads share state, under one name: the models in `interleavings/` run the same sources with
//! loom's in their place. The threads themselves, and what wakes the one that owns a capture.

pub mod thread;
pub mod wakeup;
pub mod wall_clock;

pub use crossbeam_channel::Sender;
pub use std::{
    hint,
    sync::{Arc, Mutex, atomic},
};
