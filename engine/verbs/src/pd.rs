//! Protection domains.

use crate::sys as ffi;
use crate::{
    device::{Context, ContextInner},
    error::{VerbsError, check_created, log_destroy_error},
};
use std::sync::Arc;

/// Protection domain (PD). Clones share one handle and are cheap.
#[derive(Clone)]
pub struct Pd(pub(crate) Arc<PdInner>);

pub(crate) struct PdInner {
    pub(crate) raw: *mut ffi::ibv_pd,
    pub(crate) context: Arc<ContextInner>,
}

// SAFETY: verbs on a PD are thread safe; the pointer lives as long as self.
unsafe impl Send for PdInner {}
// SAFETY: as for Send.
unsafe impl Sync for PdInner {}

impl Drop for PdInner {
    fn drop(&mut self) {
        // SAFETY: allocated by `Pd::alloc`, freed only here; MRs, WQs and QPs hold an Arc of self.
        log_destroy_error("ibv_dealloc_pd", unsafe { ffi::ibv_dealloc_pd(self.raw) });
    }
}

impl Pd {
    /// Returns the raw protection domain for verbs that this crate does not wrap. The caller must
    /// hold `self` during such a call.
    #[must_use]
    pub fn as_ptr(&self) -> *mut ffi::ibv_pd {
        self.0.raw
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn alloc(context: &Context) -> Result<Self, VerbsError> {
        // SAFETY: a live context, held by the new object.
        let raw = unsafe { ffi::ibv_alloc_pd(context.0.raw) };
        let raw = check_created(raw, "ibv_alloc_pd", context.name())?;
        Ok(Self(Arc::new(PdInner {
            raw,
            context: Arc::clone(&context.0),
        })))
    }
}
