//! Synchronisation primitives of the filter cell. The models in `interleavings/` compile the same
//! source with loom's primitives instead.

pub(crate) use std::sync::{Arc, Mutex, PoisonError, atomic};
