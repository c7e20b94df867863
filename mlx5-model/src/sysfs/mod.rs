//! Files under `/sys/class/infiniband*` and `/dev/infiniband` that programs see.
//!
//! Imports `settings` and the device's counters. [`run_dir`] owns the directory and its lifetime,
//! [`tree`] fills it, [`live`] renders the values that change, [`presence`] hides a device while its
//! driver restarts, and [`address`] has the devices' PCI addresses and virtual interfaces.
//!
//! Invariants: the first process that needs the tree writes it once, before any program can see it.
//! A value that can change afterwards is rendered when its file is opened, from memory that all
//! processes share.

pub mod address;
pub mod live;
pub mod presence;
pub mod run_dir;
pub mod tree;
