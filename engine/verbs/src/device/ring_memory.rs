//! The memory of libmlx5's rings: CQs, WQs and doorbell records (`mlx5dv_set_context_attr`, man 3).
//!
//! libmlx5 would take it from the heap, in pages of 4 KiB. A CQ for frames that share buffers has megabytes, and is gone
//! through from end to end: huge pages spare the processor and the device a look-up every 64 completions, and whoever makes
//! and frees the ring hundreds of pages.
//!
//! Invariant: what is lent is of this process alone, and stays where it is until libmlx5 gives it back.

use crate::{memory::Region, mlx5dv as dv};
use rdma_sys as ffi;
use std::{
    collections::HashMap,
    ffi::c_void,
    panic::catch_unwind,
    ptr,
    sync::{Mutex, PoisonError},
};

/// What a context's rings have, by address.
#[derive(Debug, Default)]
pub(super) struct RingMemory(Mutex<HashMap<usize, Region>>);

impl RingMemory {
    /// Has the rings that are made from now on take their memory here. Where libmlx5 cannot, or the context is another
    /// provider's, they take it from the heap.
    ///
    /// # Safety
    /// The context is open, and closed before this is dropped.
    pub(super) unsafe fn serve(&self, context: *mut ffi::ibv_context) {
        let mut allocators = dv::mlx5dv_ctx_allocators {
            alloc: Some(lend),
            free: Some(take_back),
            data: ptr::from_ref(self).cast_mut().cast(),
        };
        // SAFETY: a live context, of libmlx5 as asked first; the library copies the structure, whose `data` outlives the
        // context by the caller's promise.
        unsafe {
            if dv::mlx5dv_is_supported((*context).device.cast()) {
                dv::mlx5dv_set_context_attr(
                    context.cast(),
                    dv::MLX5DV_CTX_ATTR_BUF_ALLOCATORS,
                    (&raw mut allocators).cast(),
                );
            }
        }
    }

    fn lend(&self, len: usize) -> Option<*mut u8> {
        let region = Region::several(1, len).ok()?.pop()?;
        let start = region.as_ptr();
        let mut lent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lent.insert(start.addr(), region);
        Some(start)
    }

    fn take_back(&self, start: *mut c_void) {
        let mut lent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lent.remove(&start.addr());
    }
}

/// `mlx5dv_ctx_allocators.alloc`.
unsafe extern "C" fn lend(len: usize, data: *mut c_void) -> *mut c_void {
    let lend = || {
        // SAFETY: `data` is what `serve` was told, which lives as long as the context.
        let it = unsafe { &*data.cast::<RingMemory>() };
        it.lend(len)
    };
    // A panic must not go on into C.
    let start = catch_unwind(lend).ok().flatten();
    start.map_or(ptr::null_mut(), <*mut u8>::cast)
}

/// `mlx5dv_ctx_allocators.free`.
unsafe extern "C" fn take_back(start: *mut c_void, data: *mut c_void) {
    let take_back = || {
        // SAFETY: as in `lend`.
        let it = unsafe { &*data.cast::<RingMemory>() };
        it.take_back(start);
    };
    let _ = catch_unwind(take_back);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_zeroed_whole_pages_and_comes_back() {
        let it = RingMemory::default();
        let data = ptr::from_ref(&it).cast_mut().cast();
        for len in [1, 4096, (3 << 20) + 1] {
            // SAFETY: `data` is a `RingMemory`, as long as this runs.
            let start = unsafe { lend(len, data) };
            assert!(!start.is_null() && start.addr().is_multiple_of(4096));
            // SAFETY: so many bytes were lent.
            let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) };
            assert!(bytes.iter().all(|it| *it == 0));
            assert_eq!(it.0.lock().unwrap().len(), 1);
            // SAFETY: as above.
            unsafe { take_back(start, data) };
            assert!(it.0.lock().unwrap().is_empty());
        }
        // SAFETY: as above. More than any machine has.
        assert!(unsafe { lend(1 << 62, data) }.is_null());
    }
}
