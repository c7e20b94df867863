//! Primitives by which threads share state, under one name: the models in `interleavings/` run the same sources with
//! loom's in their place. The threads themselves, and what wakes the one that owns a capture.

pub(crate) mod thread;
pub(crate) mod wakeup;
pub(crate) mod wall_clock;

pub(crate) use crossbeam_channel::Sender;
pub(crate) use std::{
    hint,
    sync::{Arc, Mutex, atomic},
};
