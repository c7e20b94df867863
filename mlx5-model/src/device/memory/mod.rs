//! Access of the device to the program's memory: rings and doorbell records by address, data by
//! lkey.
//!
//! Imports `abi`, `handles` and `process`. Invariant: every address was faulted in when it was
//! passed to the device. Data moves only through [`Regions::resolve`], which checks key, protection
//! domain, access right and bounds of every access.

mod region;
mod ring;

pub use region::{Access, Regions, check_region};
pub use ring::{DoorbellRecord, NicRing, copy_frame};
