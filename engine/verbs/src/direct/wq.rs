//! Receive WQ whose WQEs are written directly in its memory.

use crate::{
    error::VerbsError,
    mlx5dv as ffi,
    receive::{Wq, WqState},
};
use std::{
    mem::MaybeUninit,
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

/// lkey that ends a WQE's scatter list before its last entry (`MLX5_INVALID_LKEY`).
const END_OF_LIST: u32 = 0x100;

/// Receive WQ whose WQEs are written directly in its memory.
///
/// A WQE contains the address that the device writes to, so writing a WQE is unsafe: the compiler
/// cannot check which WQEs the device owns.
///
/// ```compile_fail,E0133
/// fn redirect(wq: &mut wqcap_verbs::DirectWq, anywhere: u64) {
///     wq.write(0, anywhere, 2048, 1, 0);
/// }
/// ```
pub struct DirectWq {
    wq: Wq,
    buf: *mut u8,
    dbrec: *mut u32,
    stride: usize,
    /// Bytes in front of a WQE's scatter list. A striding WQ has a segment there that this kind of
    /// ring does not use (`mlx5_wqe_srq_next_seg`; `mlx5_calc_rwq_size` of rdma-core's
    /// providers/mlx5/verbs.c, `mlx5_rxq_initialize` of DPDK's drivers/net/mlx5/mlx5_rxq.c).
    head: usize,
    mask: u32,
    /// Number of WQEs of the WQ that were handed over to the device, modulo 2^32.
    produced: u32,
}

// SAFETY: owned by one thread at a time; the memory belongs to the WQ.
unsafe impl Send for DirectWq {}

impl DirectWq {
    /// Takes over a new WQ, to write its WQEs in its memory.
    ///
    /// # Errors
    /// EOPNOTSUPP for a WQ of a provider other than libmlx5, EPROTO for a ring layout that this
    /// code cannot read, or the errno of `mlx5dv_init_obj`.
    pub fn from_wq(wq: Wq) -> Result<Self, VerbsError> {
        let object = || format!("a WQ of {}", wq.inner.context.name());
        wq.inner.context.require_mlx5("mlx5dv_init_obj", object)?;
        let mut out = MaybeUninit::<ffi::mlx5dv_rwq>::zeroed();
        let mut obj = MaybeUninit::<ffi::mlx5dv_obj>::zeroed();
        // SAFETY: a live WQ; `out` outlives the call, which fills it if it returns 0.
        let out = unsafe {
            (*obj.as_mut_ptr()).rwq.in_ = wq.inner.raw.cast();
            (*obj.as_mut_ptr()).rwq.out = out.as_mut_ptr();
            match ffi::mlx5dv_init_obj(obj.as_mut_ptr(), u64::from(ffi::MLX5DV_OBJ_RWQ)) {
                0 => out.assume_init(),
                errno => return Err(VerbsError::from_errno("mlx5dv_init_obj", "a WQ", errno)),
            }
        };
        let head = if wq.attr().striding.is_some() {
            size_of::<ffi::mlx5_wqe_srq_next_seg>()
        } else {
            0
        };
        // A WQE contains at least one scatter entry.
        let least = head + size_of::<ffi::mlx5_wqe_data_seg>();
        if out.buf.is_null()
            || out.dbrec.is_null()
            || !out.wqe_cnt.is_power_of_two()
            || (out.stride as usize) < least
        {
            let object = format!("WQ with {} WQEs of {} bytes each", out.wqe_cnt, out.stride);
            return Err(VerbsError::from_errno(
                "mlx5dv_init_obj",
                object,
                libc::EPROTO,
            ));
        }
        Ok(Self {
            wq,
            buf: out.buf.cast(),
            dbrec: out.dbrec.cast(),
            stride: out.stride as usize,
            head,
            mask: out.wqe_cnt - 1,
            produced: 0,
        })
    }

    /// Returns the WQ, for use in an indirection table.
    #[must_use]
    pub fn wq(&self) -> &Wq {
        &self.wq
    }

    /// Turns CVLAN stripping of the WQ on or off.
    ///
    /// # Errors
    /// As [`Wq::set_cvlan_stripping`].
    pub fn set_cvlan_stripping(&mut self, on: bool) -> Result<(), VerbsError> {
        self.wq.set_cvlan_stripping(on)
    }

    /// Returns the number of WQEs in the WQ's ring: a power of two, at least the requested number.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.mask + 1
    }

    /// Returns `false`: a WQ has at least one WQE.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the WQ ring's index of the next WQE to hand over.
    #[inline]
    #[must_use]
    pub fn next_index(&self) -> u32 {
        self.produced & self.mask
    }

    /// Returns the WQ ring's index of the WQE that a completion's `wqe_counter` refers to.
    #[inline]
    #[must_use]
    pub fn index_of(&self, wqe_counter: u16) -> u32 {
        u32::from(wqe_counter) & self.mask
    }

    /// Writes the scatter list of the WQE at `index`: `count` entries of `len` bytes each, which
    /// are adjacent in memory from `address` on.
    ///
    /// # Safety
    /// The device does not own the WQE: it was not handed over since the WQ became ready, or it has
    /// completed since.
    pub unsafe fn write(&mut self, index: u32, address: u64, len: u32, count: u32, lkey: u32) {
        let most = (self.stride - self.head) / size_of::<ffi::mlx5_wqe_data_seg>();
        let at = (index & self.mask) as usize * self.stride;
        // SAFETY: masked to the ring, whose size is a power of two.
        let wqe = unsafe { self.buf.add(at) };
        // SAFETY: the first bytes of the WQE, which, as the caller guarantees, the device does not
        // own until `hand_over`.
        unsafe { ptr::write_bytes(wqe, 0, self.head) };
        let segments = ptr::slice_from_raw_parts_mut(
            // SAFETY: as above.
            unsafe { wqe.add(self.head) }.cast::<ffi::mlx5_wqe_data_seg>(),
            most,
        );
        for (i, at) in (0..count.min(u32::try_from(most).unwrap_or(u32::MAX))).zip(0usize..) {
            let segment = ffi::mlx5_wqe_data_seg {
                byte_count: len.to_be(),
                lkey: lkey.to_be(),
                addr: (address + u64::from(i) * u64::from(len)).to_be(),
            };
            // SAFETY: `at` is below `most`; the device does not own the WQE until `hand_over`.
            unsafe { (&raw mut (*segments)[at]).write(segment) };
        }
        if (count as usize) < most {
            let end = ffi::mlx5_wqe_data_seg {
                byte_count: 0,
                lkey: END_OF_LIST.to_be(),
                addr: 0,
            };
            // SAFETY: as above.
            unsafe { (&raw mut (*segments)[count as usize]).write(end) };
        }
    }

    /// Marks the WQE at [`DirectWq::next_index`] to be handed over to the device.
    #[inline]
    pub fn advance(&mut self) {
        self.produced = self.produced.wrapping_add(1);
    }

    /// Hands over all marked WQEs of the WQ to the device, with one store.
    ///
    /// # Safety
    /// The scatter entries of these WQEs lie in the memory that the WQ was created with, and no
    /// code reads or writes that memory until the WQEs complete.
    #[inline]
    pub unsafe fn hand_over(&mut self) {
        // SAFETY: the WQ's doorbell record, which only this poster writes; WQEs are written before
        // it (release).
        unsafe { AtomicU32::from_ptr(self.dbrec) }
            .store((self.produced & 0xffff).to_be(), Ordering::Release);
    }

    /// Changes the state of the WQ. A WQ that becomes ready after a reset counts its WQEs from zero
    /// again.
    ///
    /// # Errors
    /// As [`Wq::set_state`].
    pub fn set_state(&mut self, from: Option<WqState>, state: WqState) -> Result<(), VerbsError> {
        let was_reset = self.wq.state() == WqState::Reset;
        self.wq.set_state(from, state)?;
        if was_reset && state == WqState::Ready {
            self.produced = 0;
        }
        Ok(())
    }
}
