//! Packet capture over RDMA verbs.
//!
//! # The frame's way
//!
//! ```text
//! wire -> WQ (one per core) -> CQ -> poll -> batch of filled slots -> reduce -> encode -> block -> writer -> file
//!          ^                                      |
//!          +---------- repost: one list ----------+
//! ```
//!
//! A [`config::Config`] and the [`device::DeviceFacts`] of the machine make a [`plan::Plan`]: everything is settled
//! there, and can be printed, before anything is created. [`capture::Capture`] carries a plan out: [`port`] creates the
//! verbs objects ([`verbs`]) and each queue's ring ([`rx`]); a loop per queue, pinned to its core, polls its ring and
//! hands each frame to a stage that leaves out what is not wanted ([`reduce`], by [`filter`] and [`frame`]) and then to a
//! sink ([`sink`]), which copies it once, encoded, into a large block; a thread writes the blocks.
//!
//! Every frame ends in exactly one line of the ledger ([`stats`]).
//!
//! # Rooms
//!
//! Imports go one way: [`verbs`] and [`memory`] know nothing above them; [`rx`] knows those two; [`sink`] and [`stats`]
//! know neither rings nor devices; [`observe`] looks on at what goes to the sinks; [`capture`] knows all. Clients that
//! look at a capture or change it are served by [`control`], which knows nothing of the rest but [`config`] and the
//! counters of [`stats`]. [`reader`] opens finished files and knows none of these,
//! nor do [`forecast`], which tells where their frames would go, [`merge`], which joins them, [`index`] and [`extract`], which find and
//! take out some of them, and [`recover`], which
//! finishes those left open. Unsafe code is allowed in [`verbs`], [`memory`], the pool and
//! ring of [`rx`], and where a system call has no safe face ([`nic`], promiscuous mode); each block says why it holds.

pub mod capture;
pub mod clock;
pub mod config;
pub mod control;
pub mod device;
mod error;
pub mod extract;
pub mod filter;
pub mod forecast;
pub mod frame;
pub mod index;
pub mod management;
pub mod memory;
pub mod merge;
pub mod name;
pub mod nic;
pub mod observe;
pub mod pipeline;
pub mod place;
pub mod plan;
pub mod port;
pub mod reader;
pub mod recover;
pub mod reduce;
pub mod respread;
pub mod rx;
pub mod sink;
pub mod stats;
pub mod steer;
mod unseen;
pub mod verbs;

pub use error::Error;
