//! Layouts of the two interfaces that the model implements: the kernel's uverbs commands with
//! mlx5's driver data, and the rings that libmlx5 and the NIC share.
//!
//! Imports nothing. Invariant: no layout is typed by hand, here or elsewhere in the model.
//! Multi-byte fields of WQEs, CQEs and doorbell records are big-endian, whatever their type here.
//! Fields of commands are host-endian.

mod generated;
mod plain;

pub use generated::*;
pub use plain::{Plain, bytes_of, read_from, read_prefix};
