//! The process that the model is preloaded into: its descriptors, the C library's own functions, memory and threads.
//!
//! Imports nothing of the model.

pub mod cache;
pub mod descriptors;
pub mod memory;
pub mod real;
pub mod thread;

pub use real::{Errno, MapRequest};

use rustix::thread::{CapabilitySet, capabilities};

/// Whether the calling thread has a Linux capability now: programs give capabilities up.
pub fn has_capability(capability: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|it| it.effective.contains(capability))
}

/// Fails with `errno` if something is to be refused: the checks of a command, a line each.
#[inline]
pub fn refuse_if(refused: bool, errno: Errno) -> Result<(), Errno> {
    if refused { Err(errno) } else { Ok(()) }
}
