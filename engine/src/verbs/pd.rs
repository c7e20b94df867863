//! Protection domains.

use super::{Context, context::ContextInner, last_error};
use crate::Error;
use rdma_sys as ffi;
use std::sync::Arc;

/// A protection domain. Cheap to clone: clones share the one handle.
#[derive(Clone)]
pub struct Pd(pub(super) Arc<PdInner>);

pub(super) struct PdInner {
    pub(super) raw: *mut ffi::ibv_pd,
    pub(super) context: Arc<ContextInner>,
}

// SAFETY: verbs on a PD are thread safe; the pointer lives as long as self.
unsafe impl Send for PdInner {}
// SAFETY: as for Send.
unsafe impl Sync for PdInner {}

impl Drop for PdInner {
    fn drop(&mut self) {
        // SAFETY: allocated by `Pd::alloc`, freed only here; MRs, WQs and QPs hold an Arc of self.
        super::destroyed("ibv_dealloc_pd", unsafe { ffi::ibv_dealloc_pd(self.raw) });
    }
}

impl Pd {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn alloc(context: &Context) -> Result<Self, Error> {
        // SAFETY: a live context, held by the new object.
        let raw = unsafe { ffi::ibv_alloc_pd(context.0.raw) };
        if raw.is_null() {
            return Err(last_error("ibv_alloc_pd", context.name()));
        }
        Ok(Self(Arc::new(PdInner {
            raw,
            context: Arc::clone(&context.0),
        })))
    }
}
