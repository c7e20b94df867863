//! Raw access to user memory: command structs, rings, doorbell records.

#![allow(unsafe_code)]

use std::mem::{MaybeUninit, size_of};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::abi;
use crate::process::Errno;

/// A uAPI struct: every bit pattern is a value of it, and it has no padding.
///
/// # Safety
/// Both must hold. The kernel's own rule for uAPI structs (explicit padding, no pointers, no bools)
/// gives them.
pub unsafe trait Plain: Sized {}

macro_rules! plain {
    ($($name:ident),* $(,)?) => {$(
        // SAFETY: a uAPI struct of integers with explicit padding, generated from its header.
        unsafe impl Plain for abi::$name {}
    )*};
}

plain!(
    ib_uverbs_cmd_hdr,
    ib_uverbs_ex_cmd_hdr,
    ib_uverbs_get_context,
    ib_uverbs_get_context_resp,
    ib_uverbs_query_device,
    ib_uverbs_query_device_resp,
    ib_uverbs_ex_query_device,
    ib_uverbs_ex_query_device_resp,
    ib_uverbs_query_port,
    ib_uverbs_query_port_resp,
    ib_uverbs_alloc_pd,
    ib_uverbs_alloc_pd_resp,
    ib_uverbs_dealloc_pd,
    ib_uverbs_open_xrcd,
    ib_uverbs_open_xrcd_resp,
    ib_uverbs_close_xrcd,
    ib_uverbs_reg_mr,
    ib_uverbs_reg_mr_resp,
    ib_uverbs_rereg_mr,
    ib_uverbs_rereg_mr_resp,
    ib_uverbs_dereg_mr,
    ib_uverbs_alloc_mw,
    ib_uverbs_alloc_mw_resp,
    ib_uverbs_dealloc_mw,
    ib_uverbs_create_comp_channel,
    ib_uverbs_create_comp_channel_resp,
    ib_uverbs_create_cq,
    ib_uverbs_create_cq_resp,
    ib_uverbs_ex_create_cq,
    ib_uverbs_ex_create_cq_resp,
    ib_uverbs_ex_modify_cq,
    ib_uverbs_resize_cq,
    ib_uverbs_resize_cq_resp,
    ib_uverbs_destroy_cq,
    ib_uverbs_destroy_cq_resp,
    ib_uverbs_create_ah,
    ib_uverbs_create_ah_resp,
    ib_uverbs_destroy_ah,
    ib_uverbs_attach_mcast,
    ib_uverbs_create_qp,
    ib_uverbs_ex_create_qp,
    ib_uverbs_create_qp_resp,
    ib_uverbs_ex_create_qp_resp,
    ib_uverbs_query_qp,
    ib_uverbs_query_qp_resp,
    ib_uverbs_modify_qp,
    ib_uverbs_ex_modify_qp,
    ib_uverbs_ex_modify_qp_resp,
    ib_uverbs_destroy_qp,
    ib_uverbs_destroy_qp_resp,
    ib_uverbs_create_flow,
    ib_uverbs_create_flow_resp,
    ib_uverbs_destroy_flow,
    ib_uverbs_flow_spec_hdr,
    ib_uverbs_create_srq,
    ib_uverbs_create_srq_resp,
    ib_uverbs_modify_srq,
    ib_uverbs_query_srq,
    ib_uverbs_query_srq_resp,
    ib_uverbs_destroy_srq,
    ib_uverbs_destroy_srq_resp,
    ib_uverbs_ex_create_wq,
    ib_uverbs_ex_create_wq_resp,
    ib_uverbs_ex_modify_wq,
    ib_uverbs_ex_destroy_wq,
    ib_uverbs_ex_destroy_wq_resp,
    ib_uverbs_ex_create_rwq_ind_table,
    ib_uverbs_ex_create_rwq_ind_table_resp,
    ib_uverbs_ex_destroy_rwq_ind_table,
    ib_uverbs_ioctl_hdr,
    ib_uverbs_attr,
    ib_uverbs_flow_spec_action_count,
    ib_uverbs_comp_event_desc,
    ib_uverbs_async_event_desc,
    mlx5_ib_alloc_ucontext_req_v2,
    mlx5_ib_alloc_ucontext_resp,
    mlx5_ib_alloc_pd_resp,
    mlx5_ib_query_device_resp,
    mlx5_ib_create_cq,
    mlx5_ib_create_cq_resp,
    mlx5_ib_resize_cq,
    mlx5_ib_create_srq,
    mlx5_ib_create_srq_resp,
    mlx5_ib_create_qp,
    mlx5_ib_create_qp_resp,
    mlx5_ib_create_qp_rss,
    mlx5_ib_create_wq,
    mlx5_ib_create_wq_resp,
    mlx5_ib_create_rwq_ind_tbl_resp,
    mlx5_ib_modify_wq,
    mlx5_ib_create_ah_resp,
    mlx5_ib_create_flow,
    mlx5_ib_flow_counters_data,
    mlx5_ib_flow_counters_desc,
    mlx5_ib_alloc_mw,
    mlx5_ib_clock_info,
);

/// The struct at the start of `bytes`, zero-extended when they are fewer, as the kernel reads the
/// structs that older programs know a shorter version of.
pub fn read_prefix<T: Plain>(bytes: &[u8]) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    let len = bytes.len().min(size_of::<T>());
    // SAFETY: the source holds `len` bytes and the destination at least as many; `Plain` makes any
    // bytes, the zeroes behind them included, a value.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast(), len);
        value.assume_init()
    }
}

/// The struct at the start of `bytes`, or nothing when they are fewer.
pub fn read_from<T: Plain>(bytes: &[u8]) -> Option<T> {
    (bytes.len() >= size_of::<T>()).then(|| read_prefix(bytes))
}

/// The bytes of a struct.
pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` structs have no padding, so each of their bytes is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Copies a response to where a command asked for it. Goes through the kernel, so that a bad
/// address is an errno and not a fault of the program's.
pub fn copy_to_user(addr: u64, bytes: &[u8]) -> Result<(), Errno> {
    if bytes.is_empty() {
        return Ok(());
    }
    let local = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: addr as *mut _,
        iov_len: bytes.len(),
    };
    // SAFETY: the local side is a live slice that the call only reads; the remote side is checked by
    // the kernel.
    let done = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
    if usize::try_from(done) == Ok(bytes.len()) {
        return Ok(());
    }
    if done < 0 && matches!(crate::process::real::errno(), libc::ENOSYS | libc::EPERM) {
        // A sandbox without that call: the address has at least to be mapped.
        fault_in(addr, bytes.len() as u64, true)?;
        // SAFETY: the range has just been found mapped and writable, and the program lent it to this
        // command until it returns.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
        return Ok(());
    }
    Err(libc::EFAULT)
}

/// Reads what a command points to. Goes through the kernel, as [`copy_to_user`] does.
///
/// # Errors
/// `EFAULT` if it cannot be read.
pub fn copy_from_user(addr: u64, bytes: &mut [u8]) -> Result<(), Errno> {
    if bytes.is_empty() {
        return Ok(());
    }
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: addr as *mut _,
        iov_len: bytes.len(),
    };
    // SAFETY: the local side is a live slice that is this call's alone; the remote side is checked by
    // the kernel.
    let done = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if usize::try_from(done) == Ok(bytes.len()) {
        return Ok(());
    }
    if done < 0 && matches!(crate::process::real::errno(), libc::ENOSYS | libc::EPERM) {
        fault_in(addr, bytes.len() as u64, false)?;
        // SAFETY: the range has just been found mapped and readable, and the program lent it to this
        // command until it returns.
        unsafe {
            std::ptr::copy_nonoverlapping(addr as *const u8, bytes.as_mut_ptr(), bytes.len());
        }
        return Ok(());
    }
    Err(libc::EFAULT)
}

/// Copies a frame. The shortest ones, of which there are most in the loads that a NIC is measured by, are copied
/// right here: the way to the C library's copy and its choice among ways costs as much as the bytes themselves.
///
/// # Safety
/// As many bytes at `to` may be written, and are none of `frame`'s.
#[inline(always)]
pub unsafe fn copy_frame(frame: &[u8], to: *mut u8) {
    if let (Some(first), Some(last)) = (frame.first_chunk::<32>(), frame.last_chunk::<32>())
        && frame.len() <= 64
    {
        // SAFETY: the frame is no shorter than 32 bytes; the two copies overlap where it is shorter than 64.
        unsafe {
            to.cast::<[u8; 32]>().write_unaligned(*first);
            to.add(frame.len() - 32)
                .cast::<[u8; 32]>()
                .write_unaligned(*last);
        }
    } else {
        // SAFETY: as the caller says.
        unsafe { std::ptr::copy_nonoverlapping(frame.as_ptr(), to, frame.len()) };
    }
}

const PAGE: u64 = 4096;

/// Makes every page of a range present (and private copies of it, if it is to be written), as
/// pinning does.
///
/// # Errors
/// `EFAULT` if some of it is not mapped or lacks the permission, as pinning has it.
pub fn fault_in(addr: u64, len: u64, write: bool) -> Result<(), Errno> {
    let end = addr.checked_add(len).ok_or(libc::EINVAL)?;
    let start = addr & !(PAGE - 1);
    let len = end.checked_next_multiple_of(PAGE).ok_or(libc::EINVAL)? - start;
    if len == 0 {
        return Ok(());
    }
    let advice = if write {
        libc::MADV_POPULATE_WRITE
    } else {
        libc::MADV_POPULATE_READ
    };
    loop {
        // SAFETY: populating changes no contents; the kernel checks the range.
        if unsafe { libc::madvise(start as *mut _, len as usize, advice) } == 0 {
            return Ok(());
        }
        match crate::process::real::errno() {
            libc::EINTR | libc::EAGAIN => {}
            // Kernels before 5.14, and mappings of device memory: being mapped must do.
            libc::EINVAL if !populate_works() => return is_mapped(start, len),
            _ => return Err(libc::EFAULT),
        }
    }
}

/// Whether this kernel knows `MADV_POPULATE_WRITE`.
fn populate_works() -> bool {
    static PROBE: AtomicU32 = AtomicU32::new(0);
    let page = (&raw const PROBE) as u64 & !(PAGE - 1);
    // SAFETY: populating this library's own data page changes no contents.
    unsafe { libc::madvise(page as *mut _, PAGE as usize, libc::MADV_POPULATE_WRITE) == 0 }
}

fn is_mapped(start: u64, len: u64) -> Result<(), Errno> {
    let mut residency = vec![0u8; (len / PAGE) as usize];
    // SAFETY: the vector has a byte for each page of the range.
    let result =
        unsafe { libc::mincore(start as *mut _, len as usize, residency.as_mut_ptr().cast()) };
    if result == 0 {
        Ok(())
    } else {
        Err(libc::EFAULT)
    }
}

/// A ring of WQEs or CQEs in user memory. The user reads and writes it at any time.
#[derive(Debug, Clone, Copy)]
pub struct Ring {
    base: *mut u8,
    /// Its length, a power of two, less one.
    mask: usize,
}

// SAFETY: an address in the process; who may touch which slot when is the rings' protocol (owner
// bits and doorbell records), not the pointer's.
unsafe impl Send for Ring {}

impl Ring {
    /// Takes over `len` bytes at `addr`, which libmlx5 aligns to a page; 64 is what the slots need.
    ///
    /// # Errors
    /// `EINVAL` for a misaligned ring or one whose length is no power of two, `EFAULT` for one that is
    /// not mapped.
    pub fn new(addr: u64, len: u64) -> Result<Self, Errno> {
        let fits = len.is_power_of_two() && len <= 1 << 31;
        if !addr.is_multiple_of(64) || addr == 0 || !fits {
            return Err(libc::EINVAL);
        }
        fault_in(addr, len, true)?;
        Ok(Self {
            base: addr as *mut u8,
            mask: len as usize - 1,
        })
    }

    /// The address `offset` bytes into the ring, which wraps: no offset leads out of it.
    #[inline(always)]
    pub fn at(&self, offset: usize) -> *mut u8 {
        self.base.wrapping_add(offset & self.mask)
    }
}

/// A pair of 32-bit big-endian words through which the user tells how far it is (PRM "Doorbell
/// record"): receive and send producer index for a work queue, consumer index and arm for a CQ.
#[derive(Debug, Clone, Copy)]
pub struct DoorbellRecord(*const [AtomicU32; 2]);

// SAFETY: only atomic accesses go through the pointer.
unsafe impl Send for DoorbellRecord {}

impl DoorbellRecord {
    /// Takes over the record at `addr`.
    ///
    /// # Errors
    /// `EINVAL` for a misaligned one, `EFAULT` for one that is not mapped.
    pub fn new(addr: u64) -> Result<Self, Errno> {
        if !addr.is_multiple_of(8) || addr == 0 {
            return Err(libc::EINVAL);
        }
        fault_in(addr, 8, true)?;
        Ok(Self(addr as *const [AtomicU32; 2]))
    }

    #[inline]
    fn words(&self) -> &[AtomicU32; 2] {
        // SAFETY: the record was mapped and aligned when it was handed over, and stays the queue's
        // for as long as the queue lives: that is the uAPI's contract.
        unsafe { &*self.0 }
    }

    /// Reads a word; what the user wrote before it is visible afterwards.
    #[inline(always)]
    pub fn load(&self, word: usize) -> u32 {
        u32::from_be(self.words()[word & 1].load(Ordering::Acquire))
    }

    /// Overwrites a word, which then is no longer the user's, and gives what stood there.
    #[inline]
    pub fn swap(&self, word: usize, value: u32) -> u32 {
        u32::from_be(self.words()[word & 1].swap(value.to_be(), Ordering::AcqRel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_structs_are_zero_extended_and_long_ones_cut() {
        let full: abi::ib_uverbs_destroy_cq = read_prefix(&[1; 64]);
        assert_eq!(full.cq_handle, 0x0101_0101);
        let short: abi::ib_uverbs_destroy_cq = read_prefix(&[1; 10]);
        assert_eq!((short.cq_handle, short.reserved), (0x0101, 0));
        assert!(read_from::<abi::ib_uverbs_destroy_cq>(&[0; 15]).is_none());
    }

    #[test]
    fn bad_addresses_are_errors() {
        assert_eq!(fault_in(8 << 40, 4096, true), Err(libc::EFAULT));
        assert_eq!(fault_in(u64::MAX - 10, 4096, true), Err(libc::EINVAL));
        assert_eq!(copy_to_user(16, &[1, 2]), Err(libc::EFAULT));
        let mut here = [0u8; 2];
        assert_eq!(copy_to_user(here.as_mut_ptr() as u64, &[1, 2]), Ok(()));
        assert_eq!(here, [1, 2]);
        let mut read = [0u8; 2];
        assert_eq!(copy_from_user(here.as_ptr() as u64, &mut read), Ok(()));
        assert_eq!(read, here);
        assert_eq!(copy_from_user(16, &mut read), Err(libc::EFAULT));
    }

    #[test]
    fn no_offset_leads_out_of_a_ring() {
        let memory = vec![0u64; 1024];
        let aligned = (memory.as_ptr() as u64).next_multiple_of(64);
        let ring = Ring::new(aligned, 4096).unwrap();
        for offset in [0, 4095, 4096, usize::MAX] {
            let at = ring.at(offset) as u64;
            assert!(at >= aligned && at < aligned + 4096);
        }
        assert_eq!(Ring::new(aligned + 8, 64).unwrap_err(), libc::EINVAL);
        assert_eq!(DoorbellRecord::new(aligned + 4).unwrap_err(), libc::EINVAL);
    }
}
