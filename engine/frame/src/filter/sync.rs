//! Primitives by which threads share a filter, under one name: the models in `interleavings/` run the same source with
//! loom's in their place.

pub(crate) use std::sync::{Arc, Mutex, PoisonError, atomic};
