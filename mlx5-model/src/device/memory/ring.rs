//! Rings and doorbell records in the program's memory, and the copy of a frame.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use crate::process::memory::fault_in;
use crate::process::{Errno, refuse_if};

/// A ring of WQEs or CQEs in the program's memory, which the program may read and write at any
/// time.
#[derive(Debug, Clone, Copy)]
pub struct NicRing {
    base: *mut u8,
    /// Length of the WQE or CQE ring in bytes minus 1; the length is a power of two.
    mask: usize,
}

// SAFETY: an address in the process; owner bits and doorbell records decide which thread may access
// a slot, not the pointer.
unsafe impl Send for NicRing {}

impl NicRing {
    /// Creates a WQE or CQE ring of `len` bytes at `addr`, which libmlx5 aligns to a page; slots
    /// need an alignment of 64. Fails with `EINVAL` if the ring is misaligned or its length is not
    /// a power of two, with `EFAULT` if it is not mapped.
    pub fn new(addr: u64, len: u64) -> Result<Self, Errno> {
        let fits = len.is_power_of_two() && len <= 1 << 31;
        refuse_if(!addr.is_multiple_of(64) || addr == 0 || !fits, libc::EINVAL)?;
        fault_in(addr, len, true)?;
        Ok(Self {
            base: addr as *mut u8,
            mask: len as usize - 1,
        })
    }

    /// Returns the address of byte `offset` in a WQE or CQE ring; the offset wraps at the end of
    /// the ring.
    #[inline(always)]
    pub fn at(&self, offset: usize) -> *mut u8 {
        self.base.wrapping_add(offset & self.mask)
    }
}

/// Doorbell record, a pair of 32-bit big-endian words (PRM "Doorbell record"): receive and send
/// producer index of a work queue, or consumer index and arm command of a CQ.
#[derive(Debug, Clone, Copy)]
pub struct DoorbellRecord(*const [AtomicU32; 2]);

// SAFETY: only atomic accesses go through the pointer.
unsafe impl Send for DoorbellRecord {}

impl DoorbellRecord {
    /// Opens the doorbell record at `addr`. Fails with `EINVAL` if it is misaligned, with `EFAULT`
    /// if it is not mapped.
    pub fn new(addr: u64) -> Result<Self, Errno> {
        refuse_if(!addr.is_multiple_of(8) || addr == 0, libc::EINVAL)?;
        fault_in(addr, 8, true)?;
        Ok(Self(addr as *const [AtomicU32; 2]))
    }

    #[inline]
    fn words(&self) -> &[AtomicU32; 2] {
        // SAFETY: the record was mapped and aligned when it was passed to the device, and stays so
        // while the queue lives: that is the uAPI's contract.
        unsafe { &*self.0 }
    }

    /// Reads a word of the doorbell record. Data that the program wrote before the word are visible
    /// afterwards.
    #[inline(always)]
    pub fn load(&self, word: usize) -> u32 {
        u32::from_be(self.words()[word & 1].load(Ordering::Acquire))
    }

    /// Overwrites a word of the doorbell record and returns its old value.
    #[inline]
    pub fn swap(&self, word: usize, value: u32) -> u32 {
        u32::from_be(self.words()[word & 1].swap(value.to_be(), Ordering::AcqRel))
    }
}

/// Copies a received frame to the program's memory. Short frames are copied inline: calling the C
/// library's copy and its selection of a method would cost as much as the bytes.
///
/// # Safety
/// `frame.len()` bytes at `to` may be written, and do not overlap `frame`.
#[inline(always)]
pub unsafe fn copy_frame(frame: &[u8], to: *mut u8) {
    if let (Some(first), Some(last)) = (frame.first_chunk::<32>(), frame.last_chunk::<32>())
        && frame.len() <= 64
    {
        // SAFETY: the frame has at least 32 bytes; the two copies overlap if it has less than 64.
        unsafe {
            to.cast::<[u8; 32]>().write_unaligned(*first);
            to.add(frame.len() - 32)
                .cast::<[u8; 32]>()
                .write_unaligned(*last);
        }
    } else {
        // SAFETY: by the contract of this function.
        unsafe { std::ptr::copy_nonoverlapping(frame.as_ptr(), to, frame.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_offset_leads_out_of_a_ring() {
        let memory = vec![0u64; 1024];
        let aligned = (memory.as_ptr() as u64).next_multiple_of(64);
        let ring = NicRing::new(aligned, 4096).unwrap();
        for offset in [0, 4095, 4096, usize::MAX] {
            let at = ring.at(offset) as u64;
            assert!(at >= aligned && at < aligned + 4096);
        }
        assert_eq!(NicRing::new(aligned + 8, 64).unwrap_err(), libc::EINVAL);
        assert_eq!(DoorbellRecord::new(aligned + 4).unwrap_err(), libc::EINVAL);
    }
}
