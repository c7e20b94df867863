//! The preloaded library: C symbols that replace those of the C library, and the functions that run
//! when it is loaded, at a fork and at exit.
//!
//! Imports `sysfs`, `uapi::open` and the modules below them.
//!
//! Invariants:
//! - Until the constructor has finished, and always when no wire is configured, every shim only
//!   calls the C library. The constructor itself calls the shims.
//! - A shim sets errno only when it fails; when it succeeds, errno stays as the program left it.
//! - No shim panics, allocates or locks for paths and descriptors that are not the model's.
//! - Variadic functions are declared with their one optional argument: stable Rust cannot define
//!   variadic ones, and the System V conventions of x86-64 and aarch64 pass the argument in the
//!   same way.

mod descriptor_shims;
mod ethtool;
mod load;
mod netdev;
mod netlink;
mod overlay;
mod path_resolve;
mod path_shims;
mod shim;
