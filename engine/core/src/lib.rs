//! Vocabulary of wqcap: the types that receive loops, sinks, flow tables, the control service and
//! commands share.
//!
//! | module | contents |
//! |---|---|
//! | [`consumer`] | a received frame, the trait that takes frames, and the verdict on each frame |
//! | [`stats`] | the ledger, its live counters, and the snapshots that programs print |
//! | [`settings`] | values of configuration keys: words, sizes, times, the `[control]` section |
//! | [`sync`] | atomics, locks and channels under one name; threads, wake-ups, steps of the system clock |
//! | [`time`] | clocks of the host, in nanoseconds |
//! | [`notes`] | what readers of a run's files should know, in bounded number and length |
//! | [`text`] | times and numbers as messages print them |
//! | [`error`] | a file, a thread or memory that the operating system refuses |
//!
//! # Invariants
//!
//! This crate imports no other crate of the project, calls no foreign library, and opens no file.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod consumer;
pub mod error;
pub mod notes;
pub mod settings;
pub mod stats;
pub mod sync;
pub mod text;
pub mod time;
