//! RWQ indirection tables.

use super::wq::{WqHandle, WqInner};
use crate::sys as ffi;
use crate::{
    device::{Context, ContextInner, operation},
    error::{VerbsError, check_created, log_destroy_error},
};
use std::sync::Arc;

/// RSS indirection table: the low bits of a frame's hash select an entry, and the entry names a WQ.
/// Clones share one handle and are cheap.
#[derive(Clone)]
pub struct RwqTable(pub(crate) Arc<RwqTableInner>);

pub(crate) struct RwqTableInner {
    pub(crate) raw: *mut ffi::ibv_rwq_ind_table,
    pub(super) context: Arc<ContextInner>,
    _wqs: Vec<Arc<WqInner>>,
}

// SAFETY: immutable after creation.
unsafe impl Send for RwqTableInner {}
// SAFETY: immutable after creation.
unsafe impl Sync for RwqTableInner {}

impl Drop for RwqTableInner {
    fn drop(&mut self) {
        if let Some(destroy) = operation!(self.context, destroy_rwq_ind_table) {
            // SAFETY: created by `create`, destroyed only here; QPs over it hold an Arc of self.
            log_destroy_error("ibv_destroy_rwq_ind_table", unsafe { destroy(self.raw) });
        }
    }
}

impl RwqTable {
    /// Creates an indirection table. The number of entries is a power of two; a WQ may occur
    /// several times.
    ///
    /// # Errors
    /// EINVAL for a size that is not a power of two or is above the device's limit, and for a WQ of
    /// another context.
    pub fn create(
        context: &Context,
        entries: impl IntoIterator<Item = WqHandle>,
    ) -> Result<Self, VerbsError> {
        let wqs: Vec<_> = entries.into_iter().map(|wq| wq.0).collect();
        let object = || format!("{}, {} entries", context.name(), wqs.len());
        const VERB: &str = "ibv_create_rwq_ind_table";
        let create = operation!(context.0, create_rwq_ind_table);
        let create =
            create.ok_or_else(|| VerbsError::from_errno(VERB, object(), libc::EOPNOTSUPP))?;
        if !wqs.len().is_power_of_two() {
            return Err(VerbsError::from_errno(VERB, object(), libc::EINVAL));
        }
        let contexts = wqs.iter().map(|wq| &wq.context);
        context.0.refuse_others(contexts, VERB, object)?;
        let mut pointers: Vec<_> = wqs.iter().map(|wq| wq.raw).collect();
        let mut init = ffi::ibv_rwq_ind_table_init_attr {
            log_ind_tbl_size: wqs.len().ilog2(),
            ind_tbl: pointers.as_mut_ptr(),
            comp_mask: 0,
        };
        // SAFETY: live WQs of this context, held by the new object; the pointer array outlives the
        // call.
        let raw = unsafe { create(context.0.raw, &raw mut init) };
        let raw = check_created(raw, VERB, object())?;
        Ok(Self(Arc::new(RwqTableInner {
            raw,
            context: Arc::clone(&context.0),
            _wqs: wqs,
        })))
    }
}
