//! The program's memory as the device reaches it: rings and doorbell records by address, data by lkey.
//!
//! Imports `abi`, `handles` and `process`. Invariant: no address is used that was not faulted in when it was handed over, and
//! data moves only through [`Regions::resolve`], which checks key, protection domain, access right and bounds of
//! every access.

mod region;
mod ring;

pub use region::{Access, Regions, check_region};
pub use ring::{DoorbellRecord, NicRing, copy_frame};
