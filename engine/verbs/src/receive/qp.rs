//! QPs that flow rules lead to: shared part of [`RssQp`](super::RssQp) and
//! [`RawQpHandle`](super::RawQpHandle).

use super::rwq_table::RwqTableInner;
use crate::sys as ffi;
use crate::{cq::CqInner, error::log_destroy_error, mr::MrInner, pd::PdInner};
use std::sync::Arc;

pub(crate) struct QpInner {
    pub(crate) raw: *mut ffi::ibv_qp,
    pub(crate) _parents: QpParents,
    pub(crate) pd: Arc<PdInner>,
}

/// Objects that a QP uses until it is destroyed.
#[expect(dead_code, reason = "held only to keep the objects alive")]
pub(crate) enum QpParents {
    /// Indirection table of an RSS QP.
    Table(Arc<RwqTableInner>),
    /// CQ and memory of a QP with its own receive queue. The device writes into the memory as long
    /// as the QP exists.
    Queue(Arc<CqInner>, Arc<MrInner>),
}

// SAFETY: only the owner of the one `RawQp` posts or modifies; an RSS QP is immutable after creation. Rules hold the
// Arc only to keep the QP alive.
unsafe impl Send for QpInner {}
// SAFETY: shared references only read the pointer, and destroy the QP on the last drop.
unsafe impl Sync for QpInner {}

impl Drop for QpInner {
    fn drop(&mut self) {
        // SAFETY: created by `RssQp::create` or `RawQp::create`, destroyed only here; rules that lead to it hold an Arc
        // of self.
        log_destroy_error("ibv_destroy_qp", unsafe { ffi::ibv_destroy_qp(self.raw) });
    }
}
