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
//! there, and can be printed, before anything is created. [`capture::Capture`] carries a plan out: it creates the
//! verbs objects ([`verbs`]) and each queue's ring ([`rx`]); a loop per queue, pinned to its core, polls its ring and
//! hands each frame to a stage that leaves out what is not wanted ([`pipeline::reduce`], by [`filter`] and [`frame`])
//! and then to a sink ([`sink`]), which copies it once, encoded, into a large block; a thread writes the blocks.
//!
//! Every frame ends in exactly one line of the ledger ([`stats`]).
//!
//! # A consumer of one's own
//!
//! What happens to frames is behind one seam, the trait [`pipeline::Consumer`], and [`capture::Capture::start_with`]
//! runs any that implements it. It does not see whether the queue's loop calls it ([`config::PipelineMode::Inline`])
//! or a parser thread ([`config::PipelineMode::Fanout`]): frames come borrowed from their slots, those of a flow in
//! their order, and what it answers is their line in the ledger.
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
//! `engine/examples/dns.rs` is a whole program, which counts DNS queries. Without a NIC it runs on the software one:
//!
//! ```text
//! cargo build --workspace && cargo build -p wqcap-engine --examples
//! target/debug/wqcap model --wire pcap:dns.pcap -- target/debug/examples/dns mlx5_0
//! ```
//!
//! # Rooms
//!
//! Four crates lie below this one and are handed on: [`verbs`] with [`memory`], [`frame`] with [`filter`], [`files`], and
//! [`control`]. Inside, imports go one way: from [`device`], what there is, and [`config`], what is wanted, by [`plan`] to
//! [`capture`], which knows all others. `ARCHITECTURE.md` has the map.
//!
//! # Invariants
//!
//! A slot is a token: it is on the ring, where the device may write, or somebody holds the token and may read.
//! Nothing allocates, locks, logs or asks for the time for each frame. Unsafe code is allowed in the pool and ring of
//! [`rx`], and where a system call has no safe face; each block says why it holds.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod capture;
pub mod config;
pub mod device;
mod error;
pub mod pipeline;
pub mod plan;

pub use error::{Error, ResourceError};
pub use wqcap_control as control;
pub use wqcap_core::{stats, sync::wakeup::Wakeup};
pub use wqcap_files::{
    self as files, anonymize, extract, file_list, format, index, merge, name, read, recover,
};
pub use wqcap_flows as analysis;
pub use wqcap_frame as frame;
pub use wqcap_frame::filter;
pub use wqcap_memory as memory;
pub use wqcap_rx as rx;
pub use wqcap_sink as sink;
pub use wqcap_verbs as verbs;

use wqcap_core::{sync, text, time};
