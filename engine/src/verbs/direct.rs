//! A CQ and a receive WQ read and written in their own memory, as libmlx5's direct verbs hand them out.
//!
//! `ibv_poll_cq` and `ibv_post_wq_recv` go through a function pointer, a branch for everything a queue may be, and a
//! copy for each frame. The layouts are the device's documented interface, libmlx5 gives them to whoever asks
//! (`mlx5dv_init_obj(3)`), and a ring whose WQEs keep their addresses is reposted by moving a counter.
//!
//! Only where stores reach the device in program order without a barrier instruction: x86-64. Everywhere else, and on
//! other devices, a ring goes through the verbs.
//!
//! Sources: `infiniband/mlx5dv.h`; the NVIDIA Programmer's Reference Manual, "Completion Queue" (CQE, ownership,
//! doorbell record, arming) and "Work Queue" (receive WQE, doorbell record).

use super::{Context, Cq, Wq, WqState, cq::CqInner};
use crate::Error;
use std::{
    mem::{MaybeUninit, offset_of},
    os::fd::RawFd,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU32, Ordering, fence},
    },
};

#[allow(
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    dead_code,
    missing_docs
)]
#[allow(clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks)]
pub(super) mod ffi {
    include!(concat!(env!("OUT_DIR"), "/direct.rs"));
}

/// CQE opcodes, the high half of `op_own`.
const OP_RESP_SEND: u8 = 2;
const OP_INVALID: u8 = 15;
/// Where an error CQE has its syndrome (`mlx5_err_cqe`).
const SYNDROME: usize = offset_of!(ffi::mlx5_err_cqe, syndrome);
/// `l4_hdr_type_etc`, bit 0: the NIC took a VLAN tag off.
const CV: u8 = 1;
/// The lkey that ends a WQE's scatter list early (`MLX5_INVALID_LKEY`).
const END_OF_LIST: u32 = 0x100;
/// Where in a UAR page the CQ's doorbell is.
const CQ_DOORBELL: usize = 0x20;

/// A receive completion.
#[derive(Clone, Copy, Debug)]
pub struct Cqe {
    /// Which WQE, counted by the WQ modulo 2^16.
    pub wqe_counter: u16,
    /// `ibv_wc_status`; 0 is success. The other fields are void otherwise.
    pub status: u32,
    /// Bytes written.
    pub byte_len: u32,
    /// The device's stamp, of the kind that the CQ was created for.
    pub timestamp: u64,
    /// The tag control information of a VLAN tag that the NIC took off.
    pub stripped: Option<u16>,
}

/// Whether rings of this context can be reached directly.
#[must_use]
pub fn is_supported(context: &Context) -> bool {
    // SAFETY: a live context; the library only compares the provider.
    cfg!(target_arch = "x86_64")
        && unsafe { ffi::mlx5dv_is_supported((*context.0.raw).device.cast()) }
}

/// Tunnels whose inner headers the device can match and hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TunnelOffloads {
    /// `MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_VXLAN`.
    pub vxlan: bool,
    /// `MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_GRE`.
    pub gre: bool,
}

impl TunnelOffloads {
    /// Of an mlx5 device; other devices do not tell.
    #[must_use]
    pub fn of(context: &Context) -> Self {
        // SAFETY: plain integers; `comp_mask` says which of them are asked for.
        let mut attr: ffi::mlx5dv_context = unsafe { std::mem::zeroed() };
        attr.comp_mask = ffi::MLX5DV_CONTEXT_MASK_TUNNEL_OFFLOADS.into();
        // SAFETY: a live context and an attribute that outlives the call; the library asks the provider first.
        let told = unsafe {
            ffi::mlx5dv_is_supported((*context.0.raw).device.cast())
                && ffi::mlx5dv_query_device(context.0.raw.cast(), &raw mut attr) == 0
        };
        let has = |cap: u32| told && attr.tunnel_offloads_caps & cap != 0;
        Self {
            vxlan: has(ffi::MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_VXLAN),
            gre: has(ffi::MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_GRE),
        }
    }
}

/// A CQ that is polled in its own memory. The verbs poll it no more.
pub struct DirectCq {
    cq: Arc<CqInner>,
    buf: *mut u8,
    dbrec: *mut [u32; 2],
    uar: *mut u8,
    cqn: u32,
    mask: u32,
    log: u32,
    size: usize,
    /// Completions read, modulo 2^32.
    consumed: u32,
    arm_sn: u32,
}

// SAFETY: owned by one thread at a time; the memory belongs to the CQ, which the Arc keeps.
unsafe impl Send for DirectCq {}

impl DirectCq {
    /// Takes a fresh CQ over.
    ///
    /// # Errors
    /// libmlx5 does not hand it out.
    pub fn of(cq: Cq) -> Result<Self, Error> {
        let mut out = MaybeUninit::<ffi::mlx5dv_cq>::zeroed();
        let mut obj = MaybeUninit::<ffi::mlx5dv_obj>::zeroed();
        // SAFETY: a live CQ; `out` outlives the call, which fills it when it answers 0.
        let out = unsafe {
            (*obj.as_mut_ptr()).cq.in_ = cq.inner.raw.cast();
            (*obj.as_mut_ptr()).cq.out = out.as_mut_ptr();
            match ffi::mlx5dv_init_obj(obj.as_mut_ptr(), u64::from(ffi::MLX5DV_OBJ_CQ)) {
                0 => out.assume_init(),
                errno => return Err(super::from_errno("mlx5dv_init_obj", "a CQ", errno)),
            }
        };
        Ok(Self {
            cq: cq.into_inner(),
            buf: out.buf.cast(),
            dbrec: out.dbrec.cast(),
            uar: out.cq_uar.cast(),
            cqn: out.cqn,
            mask: out.cqe_cnt - 1,
            log: out.cqe_cnt.trailing_zeros(),
            size: out.cqe_size as usize,
            consumed: 0,
            arm_sn: 0,
        })
    }

    /// The next completion, if the device has written it.
    #[inline]
    pub fn take(&mut self) -> Option<Cqe> {
        let index = (self.consumed & self.mask) as usize;
        // SAFETY: an index below the CQ's size; of a 128-byte entry the second half is the CQE64.
        let cqe = unsafe {
            self.buf
                .add(index * self.size + self.size - size_of::<ffi::mlx5_cqe64>())
        };
        let cqe = cqe.cast::<ffi::mlx5_cqe64>();
        // SAFETY: the device writes this byte last. Everything else is read after it (acquire), and the entry is not
        // written again before `release` gives it back.
        let op_own = unsafe { AtomicU8::from_ptr(&raw mut (*cqe).op_own) }.load(Ordering::Acquire);
        let lap = (self.consumed >> self.log) & 1;
        if op_own >> 4 == OP_INVALID || u32::from(op_own & 1) != lap {
            return None;
        }
        self.consumed = self.consumed.wrapping_add(1);
        // SAFETY: as above: the entry is whole and ours. Fields are big endian.
        unsafe {
            let wqe_counter = u16::from_be((*cqe).wqe_counter);
            if op_own >> 4 != OP_RESP_SEND {
                let status = status_of(cqe.cast::<u8>().add(SYNDROME).read());
                return Some(Cqe {
                    wqe_counter,
                    status,
                    byte_len: 0,
                    timestamp: 0,
                    stripped: None,
                });
            }
            let head = &raw const (*cqe).__bindgen_anon_1.__bindgen_anon_1;
            let stripped =
                ((*head).l4_hdr_type_etc & CV != 0).then(|| u16::from_be((*head).vlan_info));
            Some(Cqe {
                wqe_counter,
                status: 0,
                byte_len: u32::from_be((*cqe).byte_cnt),
                timestamp: u64::from_be((*cqe).timestamp),
                stripped,
            })
        }
    }

    /// Gives what was read back to the device.
    #[inline]
    pub fn release(&mut self) {
        // SAFETY: the CQ's doorbell record, which only this reader writes; entries were read before (release).
        unsafe { AtomicU32::from_ptr((&raw mut (*self.dbrec)[0]).cast()) }
            .store((self.consumed & 0x00ff_ffff).to_be(), Ordering::Release);
    }

    /// Descriptor of the channel to sleep on, where there is one.
    #[must_use]
    pub fn event_fd(&self) -> Option<RawFd> {
        self.cq.event_fd()
    }

    /// Asks for an event at the next completion; one that is there already raises it at once.
    pub fn arm(&mut self) {
        let word = (self.arm_sn & 3) << 28 | (self.consumed & 0x00ff_ffff);
        // SAFETY: the CQ's doorbell record and its page of the UAR, mapped as long as the context is open.
        unsafe {
            AtomicU32::from_ptr((&raw mut (*self.dbrec)[1]).cast())
                .store(word.to_be(), Ordering::Release);
            fence(Ordering::SeqCst);
            let bell = (u64::from(word) << 32 | u64::from(self.cqn)).to_be();
            self.uar.add(CQ_DOORBELL).cast::<u64>().write_volatile(bell);
        }
    }

    /// Takes and acknowledges one event if there is one; true when there was.
    pub fn take_event(&mut self) -> bool {
        let taken = self.cq.take_event();
        if taken {
            self.arm_sn = self.arm_sn.wrapping_add(1);
        }
        taken
    }
}

/// `ibv_wc_status` of an error CQE's syndrome, as libmlx5 translates it.
fn status_of(syndrome: u8) -> u32 {
    match syndrome {
        0x01 => 1, // local length
        0x02 => 2, // local QP operation
        0x04 => 4, // local protection
        0x05 => 5, // flushed
        _ => 21,   // general
    }
}

/// A receive WQ whose WQEs are written in its own memory.
pub struct DirectWq {
    wq: Wq,
    buf: *mut u8,
    dbrec: *mut u32,
    stride: usize,
    mask: u32,
    /// WQEs handed to the device, modulo 2^32.
    produced: u32,
}

// SAFETY: owned by one thread at a time; the memory belongs to the WQ.
unsafe impl Send for DirectWq {}

impl DirectWq {
    /// Takes a fresh WQ over.
    ///
    /// # Errors
    /// libmlx5 does not hand it out.
    pub fn of(wq: Wq) -> Result<Self, Error> {
        let mut out = MaybeUninit::<ffi::mlx5dv_rwq>::zeroed();
        let mut obj = MaybeUninit::<ffi::mlx5dv_obj>::zeroed();
        // SAFETY: a live WQ; `out` outlives the call, which fills it when it answers 0.
        let out = unsafe {
            (*obj.as_mut_ptr()).rwq.in_ = wq.inner.raw.cast();
            (*obj.as_mut_ptr()).rwq.out = out.as_mut_ptr();
            match ffi::mlx5dv_init_obj(obj.as_mut_ptr(), u64::from(ffi::MLX5DV_OBJ_RWQ)) {
                0 => out.assume_init(),
                errno => return Err(super::from_errno("mlx5dv_init_obj", "a WQ", errno)),
            }
        };
        Ok(Self {
            wq,
            buf: out.buf.cast(),
            dbrec: out.dbrec.cast(),
            stride: out.stride as usize,
            mask: out.wqe_cnt - 1,
            produced: 0,
        })
    }

    /// The WQ, for a table.
    #[must_use]
    pub fn wq(&self) -> &Wq {
        &self.wq
    }

    /// The WQ, to be modified.
    pub fn wq_mut(&mut self) -> &mut Wq {
        &mut self.wq
    }

    /// WQEs of the ring: a power of two, at least what the WQ was asked for.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.mask + 1
    }

    /// Never: a WQ has at least one WQE.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The place of the next WQE to be handed over.
    #[inline]
    #[must_use]
    pub fn next_index(&self) -> u32 {
        self.produced & self.mask
    }

    /// The place of the WQE that a completion counts.
    #[inline]
    #[must_use]
    pub fn index_of(&self, wqe_counter: u16) -> u32 {
        u32::from(wqe_counter) & self.mask
    }

    /// Writes the scatter list of the WQE at `index`: `count` pieces of `len` bytes from `address` on.
    pub fn write(&mut self, index: u32, address: u64, len: u32, count: u32, lkey: u32) {
        let most = self.stride / size_of::<ffi::mlx5_wqe_data_seg>();
        let segments = ptr::slice_from_raw_parts_mut(
            // SAFETY: masked to the ring.
            unsafe { self.buf.add((index & self.mask) as usize * self.stride) }
                .cast::<ffi::mlx5_wqe_data_seg>(),
            most,
        );
        for (i, at) in (0..count.min(u32::try_from(most).unwrap_or(u32::MAX))).zip(0usize..) {
            let segment = ffi::mlx5_wqe_data_seg {
                byte_count: len.to_be(),
                lkey: lkey.to_be(),
                addr: (address + u64::from(i) * u64::from(len)).to_be(),
            };
            // SAFETY: `at` is below `most`; the WQE is not the device's until `hand_over`.
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

    /// Counts the WQE at [`DirectWq::next_index`] among those to be handed over.
    #[inline]
    pub fn advance(&mut self) {
        self.produced = self.produced.wrapping_add(1);
    }

    /// Hands every WQE counted so far to the device, with one store.
    ///
    /// # Safety
    /// What the WQEs point at lies in the memory the WQ was created with, and nobody reads or writes it until its
    /// completion.
    #[inline]
    pub unsafe fn hand_over(&mut self) {
        // SAFETY: the WQ's doorbell record, which only this poster writes; WQEs are written before it (release).
        unsafe { AtomicU32::from_ptr(self.dbrec) }
            .store((self.produced & 0xffff).to_be(), Ordering::Release);
    }

    /// Changes the state; a WQ that becomes ready after a reset begins to count anew.
    ///
    /// # Errors
    /// As [`Wq::set_state`].
    pub fn set_state(&mut self, state: WqState) -> Result<(), Error> {
        self.wq.set_state(state)?;
        if state == WqState::Reset {
            self.produced = 0;
        }
        Ok(())
    }
}
