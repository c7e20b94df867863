//! The preloaded library: the C symbols that replace the C library's (by path and by descriptor), and what runs when
//! it is loaded, at a fork and at exit.
//!
//! Imports `sysfs`, `uapi::open` and what is below them.
//!
//! Invariants:
//! - Until the constructor has finished, and for ever when no wire is asked for, every shim is a
//!   call to the C library and nothing else. The constructor itself comes through the shims.
//! - A shim sets errno exactly when it fails; when it succeeds errno is as the program left it.
//! - No shim panics, allocates or locks for what is not the model's.
//! - Variadic functions are declared with their one optional argument: stable Rust cannot define
//!   variadic ones, and the System V conventions of x86-64 and aarch64 pass it just so.

mod descriptor_shims;
mod ethtool;
mod load;
mod netdev;
mod overlay;
mod path_resolve;
mod path_shims;
mod shim;
