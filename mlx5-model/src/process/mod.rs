//! Access to the process that the model is preloaded into: its descriptors, the C library's own
//! functions, memory and threads.
//!
//! Imports nothing of the model.

pub mod cache;
pub mod descriptors;
pub mod memory;
pub mod real;
pub mod thread;

pub use real::{Errno, MapRequest};

use rustix::thread::{CapabilitySet, capabilities};
use std::{
    fmt::Display,
    io::{self, Write as _},
};

/// Returns `true` if the calling thread has a Linux capability now; programs can drop capabilities
/// at any time.
pub fn has_capability(capability: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|it| it.effective.contains(capability))
}

/// Returns the error `errno` if `refused` is set, which makes one check of a verbs command one
/// line.
#[inline]
pub fn refuse_if(refused: bool, errno: Errno) -> Result<(), Errno> {
    if refused { Err(errno) } else { Ok(()) }
}

/// Writes a line to standard error, after the name of the model. Settings may have any text, so
/// characters that a terminal obeys are replaced. A closed standard error does not end the program.
pub fn print_line(what: impl Display) {
    let directions = ['\u{61c}', '\u{200e}', '\u{200f}'];
    let obeyed = |c: char| {
        c.is_control()
            || directions.contains(&c)
            || ('\u{2028}'..='\u{202e}').contains(&c)
            || ('\u{2066}'..='\u{2069}').contains(&c)
    };
    let line = format!("mlx5-model: {what}").replace(obeyed, "\u{fffd}");
    let _ = writeln!(io::stderr(), "{line}");
}
