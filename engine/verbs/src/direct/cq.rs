//! A CQ whose completions are read in its own memory.

use crate::{
    cq::{Cq, MiniFormat},
    error::VerbsError,
    mlx5dv as ffi,
};
use std::{
    mem::{MaybeUninit, offset_of},
    os::fd::BorrowedFd,
    sync::atomic::{AtomicU8, AtomicU32, Ordering, fence},
};

/// CQE opcodes, the high half of `op_own`.
const OP_RESP_SEND: u8 = 2;
const OP_INVALID: u8 = 15;
/// Opcode and CQE format of `op_own`, without the bits of solicited events and of the owner.
const KIND: u8 = 0xfc;
/// Of a completion of its own.
const RECEIVED: u8 = OP_RESP_SEND << 4;
/// Of a title: the completion that begins a session of mini CQEs (PRM "CQE compression").
const TITLE: u8 = RECEIVED | 3 << 2;
/// Mini CQEs of a slot.
const ARRAY: u32 = 8;
/// Where an error CQE has its syndrome (`mlx5_err_cqe`).
const SYNDROME: usize = offset_of!(ffi::mlx5_err_cqe, syndrome);
/// `l4_hdr_type_etc`, bit 0: the NIC took a VLAN tag off.
const CV: u8 = 1;
/// Where in a UAR page the CQ's doorbell is.
const CQ_DOORBELL: usize = 0x20;

/// A receive completion.
#[derive(Clone, Copy, Debug)]
pub struct Cqe {
    /// Which WQE, counted by the WQ modulo 2^16.
    pub wqe_counter: u16,
    /// `ibv_wc_status`; 0 is success. The other fields are void otherwise.
    pub status: u32,
    /// Bytes written; of a striding WQ to be read as [`Cqe::strides`].
    pub byte_len: u32,
    /// The device's stamp, of the kind that the CQ was created for.
    pub timestamp: u64,
    /// The tag control information of a VLAN tag that the NIC took off.
    pub stripped: Option<u16>,
}

/// What a completion of a striding WQ says of the WQE at the head of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameStrides {
    /// The first stride of the frame.
    pub first: u32,
    /// Strides that it takes.
    pub count: u32,
    /// Bytes of the frame; `None`: no frame, the next one did not fit into these strides (a filler).
    pub len: Option<u32>,
}

impl Cqe {
    /// A frame's, or the title of a session of frames.
    ///
    /// # Safety
    /// The entry is whole, and the device does not write it now.
    #[inline]
    unsafe fn received(cqe: *const ffi::mlx5_cqe64) -> Self {
        // SAFETY: the caller's word. Fields are big endian.
        unsafe {
            let head = &raw const (*cqe).__bindgen_anon_1.__bindgen_anon_1;
            let stripped =
                ((*head).l4_hdr_type_etc & CV != 0).then(|| u16::from_be((*head).vlan_info));
            Self {
                wqe_counter: u16::from_be((*cqe).wqe_counter),
                status: 0,
                byte_len: u32::from_be((*cqe).byte_cnt),
                timestamp: u64::from_be((*cqe).timestamp),
                stripped,
            }
        }
    }

    fn failed(wqe_counter: u16, status: u32) -> Self {
        Self {
            wqe_counter,
            status,
            byte_len: 0,
            timestamp: 0,
            stripped: None,
        }
    }

    /// The reading of a sound completion of a striding WQ. Bits of `byte_cnt` as in Linux
    /// (`mpwrq_get_cqe_byte_cnt`, `mpwrq_get_cqe_consumed_strides`, `mpwrq_is_filler_cqe` of
    /// drivers/net/ethernet/mellanox/mlx5/core/en_rx.c and include/linux/mlx5/device.h) and DPDK (MLX5_MPRQ_LEN_MASK,
    /// MLX5_MPRQ_STRIDE_NUM_MASK, MLX5_MPRQ_FILLER_MASK); `wqe_counter` is the stride there, too.
    #[inline]
    #[must_use]
    pub fn strides(&self) -> FrameStrides {
        FrameStrides {
            first: self.wqe_counter.into(),
            count: self.byte_len >> 16 & 0x3fff,
            len: (self.byte_len >> 31 == 0).then_some(self.byte_len & 0xffff),
        }
    }
}

/// A session of compressed completions that is being read. It has as many slots as completions; only the title's, the one
/// behind it and every eighth are written, the last two with arrays of mini CQEs (`mlx5_rx_poll_len` of DPDK's
/// drivers/net/mlx5/mlx5_rx.c, `mlx5e_decompress_cqes_cont` of Linux's en_rx.c).
struct Session {
    /// What all of its completions share.
    title: Cqe,
    /// A copy: its slot may be the device's again before its last mini CQE is read.
    minis: [u64; ARRAY as usize],
    /// Completions read.
    read: u32,
    /// Completions not read.
    left: u32,
}

/// A CQ that is polled in its own memory. The verbs poll it no more.
pub struct DirectCq {
    cq: Cq,
    buf: *mut u8,
    dbrec: *mut [u32; 2],
    uar: *mut u8,
    cqn: u32,
    mask: u32,
    log: u32,
    /// Of an entry, as a power of two.
    log_size: u32,
    /// Completions read, modulo 2^32.
    consumed: u32,
    arm_sn: u32,
    session: Session,
    /// Mini CQEs carry the index of a stride.
    strides: bool,
}

// SAFETY: owned by one thread at a time; the memory belongs to the CQ, which it holds.
unsafe impl Send for DirectCq {}

impl DirectCq {
    /// Takes a fresh CQ over.
    ///
    /// # Errors
    /// libmlx5 does not hand it out.
    pub fn of(cq: Cq) -> Result<Self, VerbsError> {
        let mut out = MaybeUninit::<ffi::mlx5dv_cq>::zeroed();
        let mut obj = MaybeUninit::<ffi::mlx5dv_obj>::zeroed();
        // SAFETY: a live CQ; `out` outlives the call, which fills it when it answers 0.
        let out = unsafe {
            (*obj.as_mut_ptr()).cq.in_ = cq.inner.raw.cast();
            (*obj.as_mut_ptr()).cq.out = out.as_mut_ptr();
            match ffi::mlx5dv_init_obj(obj.as_mut_ptr(), u64::from(ffi::MLX5DV_OBJ_CQ)) {
                0 => out.assume_init(),
                errno => return Err(VerbsError::from_errno("mlx5dv_init_obj", "a CQ", errno)),
            }
        };
        let strides = cq.compression == Some(MiniFormat::ChecksumStride);
        Ok(Self {
            cq,
            buf: out.buf.cast(),
            dbrec: out.dbrec.cast(),
            uar: out.cq_uar.cast(),
            cqn: out.cqn,
            mask: out.cqe_cnt - 1,
            log: out.cqe_cnt.trailing_zeros(),
            log_size: out.cqe_size.trailing_zeros(),
            consumed: 0,
            arm_sn: 0,
            session: Session {
                title: Cqe::failed(0, 0),
                minis: [0; ARRAY as usize],
                read: 0,
                left: 0,
            },
            strides,
        })
    }

    /// The entry of a completion, of which the index is counted from the CQ's beginning.
    #[inline]
    fn entry(&self, index: u32) -> *mut ffi::mlx5_cqe64 {
        let end = ((index & self.mask) as usize + 1) << self.log_size;
        // SAFETY: an index below the CQ's size; of a 128-byte entry the second half is the CQE64.
        unsafe { self.buf.add(end - size_of::<ffi::mlx5_cqe64>()).cast() }
    }

    /// The next completion, if the device has written it.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Cqe> {
        if self.session.left > 0 {
            return Some(self.decompress());
        }
        let cqe = self.entry(self.consumed);
        // SAFETY: the device writes this byte last. Everything else is read after it (acquire), and the entry is not
        // written again before `release` gives it back.
        let op_own = unsafe { AtomicU8::from_ptr(&raw mut (*cqe).op_own) }.load(Ordering::Acquire);
        let lap = (self.consumed >> self.log) & 1;
        if op_own >> 4 == OP_INVALID || u32::from(op_own & 1) != lap {
            return None;
        }
        if op_own & KIND != RECEIVED {
            return Some(self.unusual(op_own & KIND));
        }
        self.consumed = self.consumed.wrapping_add(1);
        // SAFETY: as above: the entry is whole and ours.
        Some(unsafe { Cqe::received(cqe) })
    }

    /// The next completion, which is no frame's, or a title.
    #[cold]
    fn unusual(&mut self, kind: u8) -> Cqe {
        let cqe = self.entry(self.consumed);
        if kind == TITLE {
            // SAFETY: the entry is whole and ours.
            let title = unsafe { Cqe::received(cqe) };
            self.session = Session {
                title,
                minis: [0; ARRAY as usize],
                read: 0,
                left: title.byte_len.clamp(1, self.mask + 1),
            };
            return self.decompress();
        }
        self.consumed = self.consumed.wrapping_add(1);
        // SAFETY: as above.
        let (counter, syndrome) =
            unsafe { ((*cqe).wqe_counter, cqe.cast::<u8>().add(SYNDROME).read()) };
        Cqe::failed(u16::from_be(counter), status_of(syndrome))
    }

    /// The next completion of the session.
    #[inline]
    fn decompress(&mut self) -> Cqe {
        let (slot, read) = (self.consumed, self.session.read);
        if read % ARRAY == 0 {
            // The first array is behind the title.
            let array = self.entry(slot.wrapping_add(u32::from(read == 0)));
            // SAFETY: the device wrote it before the title, and its slot has not been given back.
            self.session.minis = unsafe { array.cast::<[u64; ARRAY as usize]>().read() };
        }
        if read > 0 {
            // What is in the slot is no CQE, but a mini CQE's bytes or a CQE of a lap ago: no later lap must take it for one.
            // SAFETY: a slot of the session, which is ours until `release`.
            unsafe { AtomicU8::from_ptr(&raw mut (*self.entry(slot)).op_own) }
                .store(OP_INVALID << 4, Ordering::Relaxed);
        }
        let mini = u64::from_be(self.session.minis[(read % ARRAY) as usize]);
        self.consumed = slot.wrapping_add(1);
        self.session.read += 1;
        self.session.left -= 1;
        let title = self.session.title;
        Cqe {
            // Where there are no strides, WQEs follow each other; fewer than 2^16 are on a ring.
            wqe_counter: match self.strides {
                true => (mini >> 32) as u16,
                false => title.wqe_counter.wrapping_add(read as u16),
            },
            byte_len: mini as u32,
            ..title
        }
    }

    /// The entry that was taken last, as the device wrote it; of 128 bytes the second half. Before `release`: then the device
    /// may write it again.
    #[must_use]
    pub fn last(&self) -> [u8; 64] {
        let entry = self.entry(self.consumed.wrapping_sub(1));
        // SAFETY: 64 bytes of the CQ's memory.
        unsafe { entry.cast::<[u8; 64]>().read() }
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
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
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
        flush_writes();
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

/// Makes earlier stores to write-combining memory leave the CPU: a UAR page may be mapped so, and a doorbell that stays in
/// the CPU's buffer asks for no event. As `mmio_flush_writes` of rdma-core (util/udma_barrier.h), which `mlx5_arm_cq`
/// (providers/mlx5/cq.c) calls after its doorbell.
#[inline]
fn flush_writes() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has it, and it changes no memory.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier, which changes no memory and no register.
    unsafe {
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
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
