//! Packet capture over RDMA verbs.
//!
//! # Path of a frame
//!
//! ```text
//! wire -> WQ (one per core) -> CQ -> poll -> batch of filled slots -> reduce -> encode -> block -> writer -> file
//!          ^                                      |
//!          +---------- repost: one list ----------+
//! ```
//!
//! A [`config::Config`] and the [`device::DeviceFacts`] of the machine make a [`plan::Plan`]. The
//! plan settles every value, and can be printed, before any object is created. [`capture::Capture`]
//! executes a plan: it creates the verbs objects ([`verbs`]) and the ring of each queue ([`rx`]).
//! One loop per queue, pinned to its core, polls its ring and passes each frame to a stage that
//! filters and cuts frames ([`pipeline::reduce`], with [`filter`] and [`frame`]). The next stage is
//! a sink ([`sink`]), which encodes the frame into a large block; this is the only copy. A thread
//! writes the blocks.
//!
//! Every frame ends in exactly one line of the ledger ([`stats`]).
//!
//! # Custom consumers
//!
//! The trait [`pipeline::Consumer`] defines what happens to frames, and
//! [`capture::Capture::start_with`] runs any implementation of it. A consumer does not depend on
//! the thread that calls it: the queue's loop ([`config::PipelineMode::Inline`]) or a parser thread
//! ([`config::PipelineMode::Fanout`]). Frames are borrowed from their slots, frames of one flow
//! arrive in order, and the verdict that the consumer returns selects the frame's line in the
//! ledger.
//!
//! ```
//! use wqcap_engine::pipeline::{Consumer, Frame, Verdict};
//!
//! /// Keeps the longest frame's length.
//! struct Longest(u32);
//!
//! impl Consumer for Longest {
//!     fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
//!         self.0 = self.0.max(frame.len);
//!         Verdict::Captured
//!     }
//! }
//! ```
//!
//! `engine/examples/dns.rs` is a complete program that counts DNS queries. It also runs without a
//! NIC, on the software NIC:
//!
//! ```text
//! cargo build --workspace && cargo build -p wqcap-engine --examples
//! target/debug/wqcap model --wire pcap:dns.pcap -- target/debug/examples/dns mlx5_0
//! ```
//!
//! # Modules
//!
//! This crate is the facade of the crates below it, and re-exports them: [`verbs`], [`memory`],
//! [`frame`] with [`filter`], [`files`], [`stats`], [`rx`], [`sink`] and [`analysis`]. Imports
//! between its own modules have one direction: [`config`] (the user's settings), [`device`] (the
//! hardware), [`pipeline`], [`plan`], [`capture`]; each imports only modules named before it.
//! `ARCHITECTURE.md` has the map.
//!
//! # Invariants
//!
//! A slot is a token: either it is on the ring, where the device may write, or one owner holds the
//! token and may read. No code allocates, locks, logs or reads a clock for each frame. Unsafe code
//! is allowed in the pool and ring of [`rx`], and where a system call has no safe wrapper. Each
//! unsafe block states why it is sound.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod capture;
pub mod config;
pub mod device;
mod error;
pub mod pipeline;
pub mod plan;

pub use error::{Error, ResourceError};
pub use wqcap_core::{notes, stats, sync::caught, sync::wakeup::Wakeup};
pub use wqcap_files::{
    self as files, anonymize, extract, folder::file_list, format, index, merge, name, read, recover,
};
pub use wqcap_flows as analysis;
pub use wqcap_frame as frame;
pub use wqcap_frame::filter;
pub use wqcap_memory as memory;
pub use wqcap_rx as rx;
pub use wqcap_sink as sink;
pub use wqcap_verbs as verbs;

use wqcap_core::{sync, text, time};
