//! Memory of libmlx5's rings: CQs, WQs and doorbell records (`mlx5dv_set_context_attr`, man 3).
//!
//! By default, libmlx5 allocates it from the heap, in pages of 4 KiB. A CQ for frames that share
//! buffers has megabytes, which are traversed from end to end. Huge pages save the processor and
//! the device an address translation every 64 completions, and save hundreds of pages when the ring
//! is created and freed.
//!
//! Invariant: lent memory belongs to this process alone and stays in place until libmlx5 returns
//! it.

use crate::sys as ffi;
use crate::{memory::Region, mlx5dv as dv};
use std::{
    collections::HashMap,
    ffi::c_void,
    panic::catch_unwind,
    ptr,
    sync::{Mutex, PoisonError},
};

/// Memory lent to the CQ and WQ rings of a device context, by address.
#[derive(Debug, Default)]
pub(super) struct RingMemory(Mutex<HashMap<usize, Region>>);

impl RingMemory {
    /// Makes libmlx5 take the memory of CQ and WQ rings created from now on from `self`. If libmlx5
    /// cannot, or the context belongs to another provider, rings use the heap.
    ///
    /// # Safety
    /// The context is open, and is closed before `self` is dropped.
    pub(super) unsafe fn serve(&self, context: *mut ffi::ibv_context) {
        let mut allocators = dv::mlx5dv_ctx_allocators {
            alloc: Some(lend),
            free: Some(take_back),
            data: ptr::from_ref(self).cast_mut().cast(),
        };
        // SAFETY: a live context of libmlx5, as checked first; the library copies the structure,
        // and the caller guarantees that `data` outlives the context.
        unsafe {
            if dv::is_mlx5((*context).device) {
                dv::mlx5dv_set_context_attr(
                    context.cast(),
                    dv::MLX5DV_CTX_ATTR_BUF_ALLOCATORS,
                    (&raw mut allocators).cast(),
                );
            }
        }
    }

    fn lend(&self, len: usize) -> Option<*mut u8> {
        let region = Region::allocate_many(1, len).ok()?.pop()?;
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

/// Allocation callback of ring memory for libmlx5 (`mlx5dv_ctx_allocators.alloc`).
unsafe extern "C" fn lend(len: usize, data: *mut c_void) -> *mut c_void {
    let lend = || {
        // SAFETY: `data` is the pointer that `serve` passed, which outlives the context.
        let it = unsafe { &*data.cast::<RingMemory>() };
        it.lend(len)
    };
    // A panic must not unwind into C.
    let start = catch_unwind(lend).ok().flatten();
    start.map_or(ptr::null_mut(), <*mut u8>::cast)
}

/// Free callback of ring memory for libmlx5 (`mlx5dv_ctx_allocators.free`).
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
    fn lent_memory_is_zeroed_whole_pages_and_can_be_returned() {
        let it = RingMemory::default();
        let data = ptr::from_ref(&it).cast_mut().cast();
        for len in [1, 4096, (3 << 20) + 1] {
            // SAFETY: `data` is a `RingMemory` that outlives the call.
            let start = unsafe { lend(len, data) };
            assert!(!start.is_null() && start.addr().is_multiple_of(4096));
            // SAFETY: `len` bytes were lent.
            let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) };
            assert!(bytes.iter().all(|it| *it == 0));
            assert_eq!(it.0.lock().unwrap().len(), 1);
            // SAFETY: as above.
            unsafe { take_back(start, data) };
            assert!(it.0.lock().unwrap().is_empty());
        }
        // SAFETY: as above. The size exceeds the memory of any machine.
        assert!(unsafe { lend(1 << 62, data) }.is_null());
    }
}
