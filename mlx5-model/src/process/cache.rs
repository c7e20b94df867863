//! Prefetch hints for the processor's caches.
//!
//! Imports nothing. Invariant: any address is allowed; no memory that a program can see is read or
//! written.

#![allow(unsafe_code)]

/// Prefetches the cache line at an address for reading.
#[inline(always)]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch affects only caches, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches the cache line at an address for writing. An ordinary prefetch would fetch the line
/// for reading first and for writing again later.
#[inline(always)]
pub fn prefetch_for_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above; a processor without this instruction does nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
