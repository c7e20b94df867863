//! RAII over libibverbs: one file per object, each an owned handle that holds its parents.
//!
//! May import: `rdma-sys`, `libc`, [`crate::Error`]. Knows nothing of frames, plans or threads.
//!
//! Architecture invariant: an object is destroyed when its last holder lets go, and every child holds its parents
//! through an `Arc`, so `ibv_destroy_*` never meets an object in use. A handle is not `Clone`; what changes a queue
//! takes `&mut`, so two threads cannot poll one CQ or post to one WQ:
//!
//! ```compile_fail
//! fn twice(wq: engine::verbs::Wq) -> (engine::verbs::Wq, engine::verbs::Wq) {
//!     (wq.clone(), wq)
//! }
//! ```
//!
//! ```compile_fail
//! fn shared(cq: &engine::verbs::Cq) {
//!     let _ = cq.poll(); // polling needs `&mut`
//! }
//! ```
//!
//! ```compile_fail
//! // A batch of completions borrows the CQ: it cannot be polled again while one is read.
//! fn nested(cq: &mut engine::verbs::Cq) {
//!     let first = cq.poll().unwrap().unwrap();
//!     let _second = cq.poll();
//!     drop(first);
//! }
//! ```
#![allow(unsafe_code)]

mod async_event;
pub mod bare;
mod clock;
mod cm;
mod context;
mod cq;
mod direct;
mod flow;
mod generator;
mod messages;
mod mr;
mod pd;
mod qp;
mod rwq_table;
mod srq;
mod wc;
mod wq;

pub use async_event::{AsyncEvent, AsyncEvents};
pub use clock::ClockInfo;
pub use cm::{CmChannel, CmEvent, CmKey, Connecting, Connection, Ends, Incoming, Listener};
pub use context::{Context, names, release_what_is_lost};
pub use cq::{Channel, Completion, CompletionStamps, Completions, Cq, CqAttr, Moderation};
pub use direct::{Cqe, DirectCq, DirectWq, TunnelOffloads, is_supported as is_direct};
pub use flow::{Flow, FlowKind, FlowRule, FlowSpec, Inner, Masked};
pub use generator::Generator;
pub use messages::{Messages, Slot};
pub use mr::Mr;
pub use pd::Pd;
pub use qp::RssQp;
pub use rwq_table::RwqTable;
pub use srq::{SRQ_RESIZE, Srq, SrqAttr};
pub use wc::{Done, MessageCq, status_text};
pub use wq::{
    CVLAN_STRIPPING, DELAY_DROP, PCI_WRITE_END_PADDING, SCATTER_FCS, Wq, WqAttr, WqHandle, WqState,
};

use crate::Error;
use std::io;

/// An error of `verb` on `object` from the calling thread's errno, with what that errno means there.
fn last_error(verb: &'static str, object: impl Into<String>) -> Error {
    from_errno(
        verb,
        object,
        io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO),
    )
}

/// An error of `verb` on `object` from a returned errno.
fn from_errno(verb: &'static str, object: impl Into<String>, errno: i32) -> Error {
    Error::Verb {
        verb,
        object: object.into(),
        source: io::Error::from_raw_os_error(errno),
        hint: hint(verb, errno).map(str::to_owned),
    }
}

/// What an errno of a verb means on mlx5, where it is not what its text says.
fn hint(verb: &str, errno: i32) -> Option<&'static str> {
    Some(match (verb, errno) {
        ("ibv_create_qp_ex" | "ibv_create_flow", libc::EPERM) => {
            "raw packet QPs and flow rules need CAP_NET_RAW: run as root, or `setcap cap_net_raw+ep` on the binary"
        }
        ("ibv_create_wq", libc::EPERM) => {
            "wq.delay_drop needs CAP_SYS_RAWIO: run as root, or `setcap cap_net_raw,cap_sys_rawio+ep` on the binary"
        }
        (
            "ibv_create_wq" | "ibv_create_rwq_ind_table" | "ibv_create_qp_ex" | "ibv_create_flow",
            libc::EOPNOTSUPP,
        ) => "the device or its driver does not offer this; `wqcap devices` lists what it can do",
        ("ibv_reg_mr", libc::ENOMEM) => {
            "the memory could not be locked: raise `ulimit -l` (LimitMEMLOCK=) or give CAP_IPC_LOCK, or make the rings smaller (capture.ring)"
        }
        ("rdma_create_event_channel", libc::ENODEV | libc::ENOENT) => {
            "the kernel's connection manager is not there: `modprobe rdma_ucm`"
        }
        ("rdma_bind_addr" | "rdma_resolve_addr", libc::ENODEV | libc::EADDRNOTAVAIL) => {
            "no RDMA device has or reaches this address; `rdma link` lists devices with their interfaces"
        }
        ("ibv_create_srq" | "rdma_create_srq", libc::EINVAL) => {
            "more WRs than the device takes (max_srq_wr, `ibv_devinfo -v`): lower control.srq_max"
        }
        ("ibv_create_srq" | "rdma_create_srq", libc::ENOMEM) => {
            "the device has no more SRQs, or no more memory may be locked (`ulimit -l`)"
        }
        ("ibv_modify_srq", libc::EINVAL) => {
            "the device resizes no SRQ (no IBV_DEVICE_SRQ_RESIZE), or more WRs are posted or a higher limit is armed than it would hold"
        }
        ("ibv_create_flow", libc::ENOMEM) => {
            "mlx5 answers so for a priority above 15 and when its flow tables are full"
        }
        ("ibv_create_flow", libc::EEXIST) => {
            "a rule with the same match and another action exists on this port"
        }
        _ => return None,
    })
}

/// Reports a destroy that failed. It cannot: every child holds its parents. If it does, it is a bug worth a line.
fn destroyed(verb: &'static str, ret: i32) {
    if ret != 0 {
        tracing::error!(verb, errno = ret, "{}", io::Error::from_raw_os_error(ret));
    }
}
