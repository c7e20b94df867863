//! The user's memory, as the device reaches it: rings and doorbell records by address, data by
//! lkey, command structs by copy.
//!
//! May import `abi` and `fds`. Invariant: nothing here trusts an address that has not been faulted
//! in when it was handed over, and data moves only through [`Regions::resolve`], which checks the
//! key, the protection domain, the access right and the bounds of every single access.
//!
//! What it cannot guard against is what real pinning would survive: a program that unmaps a ring or
//! a region it still has registered. There the device's access faults, as the program's own would.

mod region;
mod user;

pub use region::{Access, Regions, check_region};
pub use user::{
    DoorbellRecord, Plain, Ring, bytes_of, copy_frame, copy_from_user, copy_to_user, fault_in,
    read_from, read_prefix,
};
