//! The process that the model is preloaded into: its descriptors, the C library's own functions, memory, threads and
//! capabilities.
//!
//! Imports nothing of the model.

pub mod capabilities;
pub mod descriptors;
pub mod memory;
pub mod real;
pub mod thread;

pub use real::{Errno, MapRequest};
