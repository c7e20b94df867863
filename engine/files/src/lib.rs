//! Capture files: everything about them that needs no NIC.

#![forbid(unsafe_code)]

pub mod extract;
#[cfg(test)]
mod fixtures;
pub mod folder;
pub mod format;
pub mod index;
pub mod merge;
pub mod name;
pub mod read;
pub mod recover;
