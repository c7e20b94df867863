//! A CQ whose completions are read in its own memory.

use super::of_mlx5;
use crate::{
    cq::{Cq, MiniFormat},
    error::VerbsError,
    memory::prefetch_line,
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
/// `op_own`, bit 1: the completion raises an event that waits for such a one alone.
const SOLICITED: u8 = 2;
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

/// Entries ahead of the one that is read that are fetched, from the last cache or from memory, though none across the ring's
/// end: half a batch, since a batch's are read without a pause. DPDK looks ahead, too, by less (`rxq_cq_process_v` of
/// drivers/net/mlx5/mlx5_rxtx_vec_sse.h).
const AHEAD: usize = 32;

/// Where the entries of a CQ lie.
#[derive(Clone, Copy)]
struct Entries {
    buf: *mut u8,
    mask: u32,
    log: u32,
    /// Of an entry, as a power of two.
    log_size: u32,
}

impl Entries {
    /// The entry of a completion, of which the index is counted from the CQ's beginning.
    #[inline]
    fn entry(self, index: u32) -> *mut ffi::mlx5_cqe64 {
        let end = ((index & self.mask) as usize + 1) << self.log_size;
        // SAFETY: an index below the CQ's size; of a 128-byte entry the second half is the CQE64.
        unsafe { self.buf.add(end - size_of::<ffi::mlx5_cqe64>()).cast() }
    }

    /// The owner's bit of the entries that the device writes in the lap of a completion.
    #[inline]
    fn owner(self, index: u32) -> u8 {
        (index >> self.log) as u8 & 1
    }
}

/// A CQ that is polled in its own memory. The verbs poll it no more.
pub struct DirectCq {
    cq: Cq,
    entries: Entries,
    dbrec: *mut [u32; 2],
    uar: *mut u8,
    cqn: u32,
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
    /// EOPNOTSUPP for a CQ of another provider than libmlx5, EPROTO for a ring that this code cannot read, or the errno of
    /// `mlx5dv_init_obj`.
    pub fn of(cq: Cq) -> Result<Self, VerbsError> {
        of_mlx5(&cq.inner.context, "a CQ")?;
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
        if out.buf.is_null()
            || out.dbrec.is_null()
            || out.cq_uar.is_null()
            || !out.cqe_cnt.is_power_of_two()
            || !matches!(out.cqe_size, 64 | 128)
        {
            let object = format!("a CQ of {} CQEs, {} bytes each", out.cqe_cnt, out.cqe_size);
            return Err(VerbsError::from_errno(
                "mlx5dv_init_obj",
                object,
                libc::EPROTO,
            ));
        }
        let strides = cq.compression == Some(MiniFormat::ChecksumStride);
        Ok(Self {
            cq,
            entries: Entries {
                buf: out.buf.cast(),
                mask: out.cqe_cnt - 1,
                log: out.cqe_cnt.trailing_zeros(),
                log_size: out.cqe_size.trailing_zeros(),
            },
            dbrec: out.dbrec.cast(),
            uar: out.cq_uar.cast(),
            cqn: out.cqn,
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

    /// Reads completions. What was taken counts as read, and is the device's again, when the reader goes: one that is leaked
    /// (`mem::forget`) has read nothing.
    #[inline]
    pub fn cqes(&mut self) -> Cqes<'_> {
        Cqes {
            row: self.row(),
            cq: self,
        }
    }

    /// The entries from the next one to the lap's end.
    #[inline]
    fn row(&self) -> Row {
        let (entries, at) = (self.entries, self.consumed);
        let first = entries.entry(at).cast::<u8>();
        let len = match self.session.left {
            0 => entries.mask + 1 - (at & entries.mask),
            _ => 0,
        };
        Row {
            first,
            next: first,
            end: first.wrapping_add((len as usize) << entries.log_size),
            step: 1 << entries.log_size,
            frame: RECEIVED | entries.owner(at),
        }
    }

    /// The next completion, which is not a frame's, if it is one.
    #[cold]
    fn unusual(&mut self) -> Option<Cqe> {
        let cqe = self.entries.entry(self.consumed);
        // SAFETY: as in `Cqes::take`.
        let op_own = unsafe { AtomicU8::from_ptr(&raw mut (*cqe).op_own) }.load(Ordering::Acquire);
        if op_own >> 4 == OP_INVALID || op_own & 1 != self.entries.owner(self.consumed) {
            return None;
        }
        match op_own & KIND {
            // It was written since.
            RECEIVED => None,
            TITLE => {
                // SAFETY: the entry is whole and ours.
                let title = unsafe { Cqe::received(cqe) };
                self.session = Session {
                    title,
                    minis: [0; ARRAY as usize],
                    read: 0,
                    left: title.byte_len.clamp(1, self.entries.mask + 1),
                };
                Some(self.decompress())
            }
            _ => {
                self.consumed = self.consumed.wrapping_add(1);
                // SAFETY: as above.
                let (counter, syndrome) =
                    unsafe { ((*cqe).wqe_counter, cqe.cast::<u8>().add(SYNDROME).read()) };
                Some(Cqe::failed(u16::from_be(counter), status_of(syndrome)))
            }
        }
    }

    /// The next completion of the session.
    #[inline]
    fn decompress(&mut self) -> Cqe {
        let (slot, read) = (self.consumed, self.session.read);
        if read % ARRAY == 0 {
            // The first array is behind the title.
            let array = self.entries.entry(slot.wrapping_add(u32::from(read == 0)));
            // SAFETY: the device wrote it before the title, and its slot has not been given back.
            self.session.minis = unsafe { array.cast::<[u64; ARRAY as usize]>().read() };
        }
        if read > 0 {
            // What is in the slot is no CQE, but a mini CQE's bytes or a CQE of a lap ago: no later lap must take it for one.
            // SAFETY: a slot of the session, which is ours until it is given back.
            unsafe { AtomicU8::from_ptr(&raw mut (*self.entries.entry(slot)).op_own) }
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

/// Entries that lie in a row up to the lap's end, none while a session is read.
struct Row {
    /// The first: as long as there are any, the CQ's `consumed`.
    first: *mut u8,
    next: *mut u8,
    end: *mut u8,
    /// Bytes from one to the next.
    step: usize,
    /// `op_own` of those that are frames', but for the solicited event.
    frame: u8,
}

/// Completions being read. What a frame's costs is a look at its entry: where it lies and what it must be is at hand for a
/// whole row of them.
pub struct Cqes<'a> {
    cq: &'a mut DirectCq,
    row: Row,
}

impl Cqes<'_> {
    /// The next completion, if the device has written it.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Cqe> {
        loop {
            if self.row.next != self.row.end {
                let step = self.row.step;
                let cqe: *mut ffi::mlx5_cqe64 = self.row.next.cast();
                prefetch_line(self.row.next.wrapping_add(AHEAD * step));
                // SAFETY: an entry of the CQ. The device writes this byte last; everything else is read after it (acquire),
                // and the entry is not written again before it is given back.
                let op_own =
                    unsafe { AtomicU8::from_ptr(&raw mut (*cqe).op_own) }.load(Ordering::Acquire);
                if op_own & !SOLICITED != self.row.frame {
                    self.end_row();
                    return self.cq.unusual();
                }
                self.row.next = self.row.next.wrapping_add(step);
                // SAFETY: as above: the entry is whole and ours.
                return Some(unsafe { Cqe::received(cqe) });
            }
            self.end_row();
            if self.cq.session.left > 0 {
                return Some(self.cq.decompress());
            }
            self.row = self.cq.row();
        }
    }

    /// Counts what was read of the row, of which nothing more is read.
    #[inline]
    fn end_row(&mut self) {
        let read = (self.row.next.addr() - self.row.first.addr()) >> self.cq.entries.log_size;
        self.cq.consumed = self.cq.consumed.wrapping_add(read as u32);
        (self.row.first, self.row.end) = (self.row.next, self.row.next);
    }

    /// The next completion, and its entry as the device wrote it; of 128 bytes the second half.
    pub fn take_raw(&mut self) -> Option<(Cqe, [u8; 64])> {
        let cqe = self.take()?;
        self.end_row();
        let entry = self.cq.entries.entry(self.cq.consumed.wrapping_sub(1));
        // SAFETY: 64 bytes of the CQ's memory, which are not the device's again before this reader goes.
        Some((cqe, unsafe { entry.cast::<[u8; 64]>().read() }))
    }
}

impl Drop for Cqes<'_> {
    #[inline]
    fn drop(&mut self) {
        self.end_row();
        // SAFETY: the CQ's doorbell record, which only this reader writes; entries were read before (release).
        unsafe { AtomicU32::from_ptr((&raw mut (*self.cq.dbrec)[0]).cast()) }
            .store((self.cq.consumed & 0x00ff_ffff).to_be(), Ordering::Release);
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
