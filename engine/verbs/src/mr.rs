//! Registered memory.

use crate::sys as ffi;
use crate::{
    error::{VerbsError, check_created, log_destroy_error},
    memory::Region,
    pd::{Pd, PdInner},
};
use std::{ptr, sync::Arc};

/// Registered memory region (MR) that the device may write to. It owns the memory: bytes that a
/// device can reach are never unmapped. Clones share one registration and are cheap.
///
/// The device writes to the bytes whenever a WR allows it, so they are accessible only through a
/// raw pointer and not as a slice:
///
/// ```compile_fail,E0133
/// fn read(mr: &wqcap_verbs::Mr) -> &[u8] {
///     &*mr.memory()
/// }
/// ```
#[derive(Clone)]
pub struct Mr(pub(crate) Arc<MrInner>);

pub(crate) struct MrInner {
    raw: *mut ffi::ibv_mr,
    // Dropped after `raw` is deregistered: the order of these fields is the order of teardown.
    memory: Region,
    pub(crate) pd: Arc<PdInner>,
}

// SAFETY: the registration is immutable after creation; the bytes are accessed only through raw
// pointers, whose users justify their exclusive access.
unsafe impl Send for MrInner {}
// SAFETY: as for Send.
unsafe impl Sync for MrInner {}

impl Drop for MrInner {
    fn drop(&mut self) {
        // SAFETY: registered by `Mr::register`, released only here; WQs that receive into it hold
        // an Arc of self.
        log_destroy_error("ibv_dereg_mr", unsafe { ffi::ibv_dereg_mr(self.raw) });
    }
}

impl Mr {
    /// Registers memory for receiving from the device, with relaxed ordering where the device
    /// supports it.
    ///
    /// # Errors
    /// ENOMEM if the memory may not be locked.
    pub fn register(pd: &Pd, memory: Region) -> Result<Self, VerbsError> {
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ffi::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING;
        // SAFETY: the region is mapped for `len` bytes and outlives the registration, as self owns
        // both. Relaxed ordering is an optional flag: libibverbs removes it for kernels that do not
        // support it.
        let raw = unsafe {
            let start = memory.as_ptr();
            let iova = start.addr() as u64;
            ffi::ibv_reg_mr_iova2(pd.0.raw, start.cast(), memory.len(), iova, access.0)
        };
        let raw = check_created(raw, "ibv_reg_mr", format!("{} bytes", memory.len()))?;
        Ok(Self(Arc::new(MrInner {
            raw,
            memory,
            pd: Arc::clone(&pd.0),
        })))
    }

    /// Returns the local key (lkey) of the memory region.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        // SAFETY: a live registration.
        unsafe { (*self.0.raw).lkey }
    }

    /// Returns the address and the length of the registered memory.
    #[must_use]
    pub fn memory(&self) -> *mut [u8] {
        ptr::slice_from_raw_parts_mut(self.0.memory.as_ptr(), self.0.memory.len())
    }
}
