//! Owned, typed objects over libibverbs, librdmacm and libmlx5, and the memory that devices write
//! to.
//!
//! For programs that receive raw Ethernet frames, or exchange messages over shared receive queues.
//! A handle holds the parents of its object through an `Arc`, so handles can be dropped in any
//! order: an object is destroyed when its last holder is dropped, and `ibv_destroy_*` is never
//! called on an object in use.
//!
//! ```no_run
//! use wqcap_rss::{key::RssKey, profile::HashFields};
//! use wqcap_verbs::{Context, Cq, CqAttr, CompletionStamps, Mr, Pd, RssQp, RwqTable, Wq, WqAttr, memory::Region};
//!
//! # fn main() -> Result<(), wqcap_verbs::VerbsError> {
//! let context = Context::open("mlx5_0")?;
//! let pd = Pd::alloc(&context)?;
//! let stamps = CompletionStamps::None;
//! let cq = Cq::create(&context, CqAttr { entries: 512, vector: 0, stamps, compression: None }, None)?;
//! let memory = Mr::register(&pd, Region::allocate(512 * 2048, None)?)?;
//! let wq = Wq::create(&pd, &cq, &memory, WqAttr { max_wr: 512, max_sge: 1, flags: 0, striding: None })?;
//! let table = RwqTable::create(&context, [wq.handle()])?;
//! let qp = RssQp::create(&pd, &table, &RssKey::MICROSOFT, HashFields::IPV4)?;
//! # drop(qp);
//! # Ok(())
//! # }
//! ```
//!
//! `examples/count.rs` continues from here: it posts WRs, adds a rule and counts the frames that
//! arrive.
//!
//! # Modules
//!
//! [`memory`] contains mapped memory. `device` opens devices. `pd`, `mr` and `cq` are the basis of
//! both receive paths: `receive` for raw frames, with `direct` for rings that are read and written
//! in their own memory, and `message` for messages, whose connections `cm` establishes. Imports go
//! one way, in this order. The crate may import [`wqcap_rss`] for the fields that a NIC hashes; it
//! does not depend on frames, plans or threads.
//!
//! # Invariants
//!
//! A handle whose methods change a queue is not `Clone`, and these methods take `&mut`: two threads
//! cannot poll one CQ or post to one WQ.
//!
//! ```compile_fail
//! fn twice(wq: wqcap_verbs::Wq) -> (wqcap_verbs::Wq, wqcap_verbs::Wq) {
//!     (wq.clone(), wq)
//! }
//! ```
//!
//! ```compile_fail
//! fn shared(cq: &wqcap_verbs::Cq) {
//!     let _ = cq.poll(); // polling needs `&mut`
//! }
//! ```
//!
//! ```compile_fail
//! // A batch of completions borrows the CQ: it cannot be polled again while one is read.
//! fn nested(cq: &mut wqcap_verbs::Cq) {
//!     let first = cq.poll().unwrap().unwrap();
//!     let _second = cq.poll();
//!     drop(first);
//! }
//! ```
//!
//! Bytes that a device can reach are never unmapped: an [`Mr`] owns its [`memory::Region`], and a
//! WQ holds the `Mr` that it receives into. Unsafe code is allowed in the whole crate; each block
//! states why it is sound.
#![allow(unsafe_code)]

mod cm;
mod cq;
mod device;
mod direct;
mod error;
mod library;
mod message;
mod mlx5dv;
mod mr;
mod pd;
mod receive;
/// Raw bindings, whose structures are part of this interface: attributes, WRs, scatter entries.
pub mod sys;

pub use cm::{CmChannel, CmEvent, Connecting, Connection, Incoming, Listener, QpResources};
pub use cq::{
    Channel, Completion, CompletionStamps, Completions, Cq, CqAttr, MiniFormat, Moderation,
    PlainCq, PollError,
};
pub use device::CmKey;
pub use device::{
    AsyncEvent, AsyncEvents, ClockInfo, Context, StridingCaps, TunnelOffloads,
    allow_release_of_lost_objects, names,
};
pub use direct::{
    Cqe, Cqes, DirectCq, DirectWq, FrameStrides, Inspected, InspectedAttr, InspectedQueue,
    InspectedStrides, RingAccess, RingCaps,
};
pub use error::VerbsError;
pub use library::LibraryError;
pub use message::{
    MessageCompletion, MessageCq, MessageMemory, MessageSlot, OWN_WR_IDS, SRQ_RESIZE, Srq,
    status_text,
};
pub use mr::Mr;
pub use pd::Pd;
pub use receive::{
    CVLAN_STRIPPING, DELAY_DROP, Flow, FlowKind, FlowRule, FlowSpec, Inner, Masked,
    PCI_WRITE_END_PADDING, RawQp, RawQpAttr, RawQpHandle, RssQp, RwqTable, SCATTER_FCS, Striding,
    Wq, WqAttr, WqHandle, WqState,
};
pub use sys::load_connection_manager;
pub use wqcap_memory as memory;
