//! CQ whose completions are read directly from its memory.

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

/// CQE opcode of a receive completion, in the high half of `op_own`.
const OP_RESP_SEND: u8 = 2;
/// CQE opcode of a CQ entry without a completion, in the high half of `op_own`.
const OP_INVALID: u8 = 15;
/// Mask of the opcode and the CQE format in a CQE's `op_own`, without the bits of solicited events
/// and of the owner.
const KIND: u8 = 0xfc;
/// Bit 1 of a CQE's `op_own`: solicited event. The completion also raises an event that is
/// requested for solicited completions only.
const SOLICITED: u8 = 2;
/// `op_own` of an uncompressed receive completion, without the owner bit.
const RECEIVED: u8 = OP_RESP_SEND << 4;
/// `op_own` of a title CQE, the completion that begins a session of mini CQEs (PRM "CQE
/// compression").
const TITLE: u8 = RECEIVED | 3 << 2;
/// Number of mini CQEs in a CQ slot.
const ARRAY: u32 = 8;
/// Offset of the syndrome in an error CQE (`mlx5_err_cqe`).
const SYNDROME: usize = offset_of!(ffi::mlx5_err_cqe, syndrome);
/// Bit 0 of a CQE's `l4_hdr_type_etc`: the NIC stripped a VLAN tag.
const CV: u8 = 1;
/// Offset of the CQ's doorbell in a UAR page.
const CQ_DOORBELL: usize = 0x20;

/// Receive completion, decoded from its CQE.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Cqe {
    /// Counter of the completed WQE, modulo 2^16.
    pub wqe_counter: u16,
    /// Status of the completed WQE (`ibv_wc_status`); 0 is success. On any other status, only
    /// `wqe_counter` and, for a striding WQ, the number of strides are valid.
    pub status: u32,
    /// Number of bytes that the device wrote for the WQE; for a striding WQ, see [`Cqe::strides`].
    pub byte_len: u32,
    /// Time stamp that the device wrote into the CQE, of the kind that the CQ was created for.
    pub timestamp: u64,
    /// Tag control information of the VLAN tag that the NIC stripped from the frame, if any.
    pub stripped: Option<u16>,
}

/// Strides that one frame takes in the buffer at the head of a striding WQ's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrameStrides {
    /// Index of the frame's first stride in its buffer; not valid for a filler.
    pub first: u32,
    /// Number of strides that the frame takes.
    pub count: u32,
    /// Length of the frame in bytes. `None` for a filler: the next frame did not fit into these
    /// strides.
    pub len: Option<u32>,
}

impl Cqe {
    /// Decodes the CQE of a received frame, or the title CQE of a session of compressed
    /// completions.
    ///
    /// # Safety
    /// The device has written the entry and does not change it during the call.
    #[inline]
    unsafe fn received(cqe: *const ffi::mlx5_cqe64) -> Self {
        // SAFETY: guaranteed by the caller. Fields are big endian.
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

    /// Creates the completion of a failed receive WR.
    fn failed(wqe_counter: u16, status: u32, byte_len: u32) -> Self {
        Self {
            wqe_counter,
            status,
            byte_len,
            timestamp: 0,
            stripped: None,
        }
    }

    /// Decodes the strides from a completion of a striding WQ: those of its frame, of a filler, or of
    /// a failed frame, of which only the count is valid. The bits of
    /// `byte_cnt` are as in Linux (`mpwrq_get_cqe_byte_cnt`, `mpwrq_get_cqe_consumed_strides`,
    /// `mpwrq_is_filler_cqe` of drivers/net/ethernet/mellanox/mlx5/core/en_rx.c and
    /// include/linux/mlx5/device.h) and DPDK (MLX5_MPRQ_LEN_MASK, MLX5_MPRQ_STRIDE_NUM_MASK,
    /// MLX5_MPRQ_FILLER_MASK). `wqe_counter` is the stride index there, too.
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

/// Session of compressed completions that is being read. It takes as many CQ slots as completions.
/// The device writes only the title's slot, the slot behind it and every eighth slot; the latter
/// two contain arrays of mini CQEs (`mlx5_rx_poll_len` of DPDK's drivers/net/mlx5/mlx5_rx.c,
/// `mlx5e_decompress_cqes_cont` of Linux's en_rx.c).
struct CompressionSession {
    /// Title CQE, with the fields that all completions of the compression session share.
    title: Cqe,
    /// Copy of the current array of mini CQEs: its CQ slot may return to the device before its last
    /// mini CQE is read.
    minis: [u64; ARRAY as usize],
    /// Number of completions of the compression session that were read.
    read: u32,
    /// Number of completions of the compression session that are left to read.
    left: u32,
}

/// Number of CQ entries by which the prefetch runs ahead of the entry that is read. The prefetch
/// loads them from the last-level cache or from memory; entries beyond the ring's end are not
/// prefetched. Half a batch, since a batch is read without a pause. DPDK prefetches less far ahead
/// (`rxq_cq_process_v` of drivers/net/mlx5/mlx5_rxtx_vec_sse.h).
const PREFETCH_DISTANCE: usize = 32;

/// Memory layout of the entries of a CQ.
#[derive(Clone, Copy)]
struct Entries {
    buf: *mut u8,
    mask: u32,
    log: u32,
    /// log2 of a CQ entry's size in bytes.
    log_size: u32,
}

impl Entries {
    /// Returns the CQ entry of a completion; `index` counts completions from the CQ's creation.
    #[inline]
    fn entry(self, index: u32) -> *mut ffi::mlx5_cqe64 {
        let end = ((index & self.mask) as usize + 1) << self.log_size;
        // SAFETY: the masked index is below the CQ's size; in a 128-byte entry the second half is
        // the CQE64.
        unsafe { self.buf.add(end - size_of::<ffi::mlx5_cqe64>()).cast() }
    }

    /// Returns the owner bit of the CQ entries that the device writes in the lap of completion
    /// `index` around the ring.
    #[inline]
    fn owner(self, index: u32) -> u8 {
        (index >> self.log) as u8 & 1
    }
}

/// CQ that is polled directly in its memory. The verbs no longer poll it.
pub struct DirectCq {
    cq: Cq,
    entries: Entries,
    dbrec: *mut [u32; 2],
    uar: *mut u8,
    cqn: u32,
    /// Number of the CQ's completions that were read, modulo 2^32.
    consumed: u32,
    arm_sn: u32,
    session: CompressionSession,
    /// `true` if mini CQEs contain the index of a frame's first stride.
    strides: bool,
}

// SAFETY: owned by one thread at a time; `cq` keeps the memory alive.
unsafe impl Send for DirectCq {}

impl DirectCq {
    /// Takes over a new CQ, to poll it in its memory.
    ///
    /// # Errors
    /// EOPNOTSUPP for a CQ of a provider other than libmlx5, EPROTO for a ring layout that this
    /// code cannot read, or the errno of `mlx5dv_init_obj`.
    pub fn from_cq(cq: Cq) -> Result<Self, VerbsError> {
        let object = || format!("a CQ of {}", cq.inner.context.name());
        cq.inner.context.require_mlx5("mlx5dv_init_obj", object)?;
        let mut out = MaybeUninit::<ffi::mlx5dv_cq>::zeroed();
        let mut obj = MaybeUninit::<ffi::mlx5dv_obj>::zeroed();
        // SAFETY: a live CQ; `out` outlives the call, which fills it if it returns 0.
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
            let object = format!(
                "CQ with {} CQEs of {} bytes each",
                out.cqe_cnt, out.cqe_size
            );
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
            session: CompressionSession {
                title: Cqe::failed(0, 0, 0),
                minis: [0; ARRAY as usize],
                read: 0,
                left: 0,
            },
            strides,
        })
    }

    /// Returns a reader of the CQ's completions. CQ entries count as read, and return to the
    /// device, when the reader is dropped. A leaked reader (`mem::forget`) has read nothing.
    #[inline]
    pub fn cqes(&mut self) -> Cqes<'_> {
        Cqes {
            row: self.row(),
            cq: self,
        }
    }

    /// Returns the row of contiguous CQ entries from the next one to the end of the ring.
    #[inline]
    fn row(&self) -> EntryRow {
        let (entries, at) = (self.entries, self.consumed);
        let first = entries.entry(at).cast::<u8>();
        let len = match self.session.left {
            0 => entries.mask + 1 - (at & entries.mask),
            _ => 0,
        };
        EntryRow {
            first,
            next: first,
            end: first.wrapping_add((len as usize) << entries.log_size),
            step: 1 << entries.log_size,
            frame: RECEIVED | entries.owner(at),
        }
    }

    /// Takes the next completion if it is a title or an error CQE; `None` if the device has not
    /// written it.
    #[cold]
    fn take_title_or_error(&mut self) -> Option<Cqe> {
        let cqe = self.entries.entry(self.consumed);
        // SAFETY: as in `Cqes::take`.
        let op_own = unsafe { AtomicU8::from_ptr(&raw mut (*cqe).op_own) }.load(Ordering::Acquire);
        if op_own >> 4 == OP_INVALID || op_own & 1 != self.entries.owner(self.consumed) {
            return None;
        }
        match op_own & KIND {
            // Written after the caller's check; the next call takes it.
            RECEIVED => None,
            TITLE => {
                // SAFETY: the device has written the entry and does not change it.
                let title = unsafe { Cqe::received(cqe) };
                self.session = CompressionSession {
                    title,
                    minis: [0; ARRAY as usize],
                    read: 0,
                    left: title.byte_len.clamp(1, self.entries.mask + 1),
                };
                Some(self.decompress())
            }
            _ => {
                self.consumed = self.consumed.wrapping_add(1);
                // Linux reads the strides of an error CQE where those of other CQEs are
                // (`mpwrq_get_cqe_consumed_strides` in `mlx5e_handle_rx_cqe_mpwrq`).
                // SAFETY: as above.
                let (counter, byte_count, syndrome) = unsafe {
                    let syndrome = cqe.cast::<u8>().add(SYNDROME).read();
                    ((*cqe).wqe_counter, (*cqe).byte_cnt, syndrome)
                };
                let (counter, byte_count) = (u16::from_be(counter), u32::from_be(byte_count));
                Some(Cqe::failed(counter, status_of(syndrome), byte_count))
            }
        }
    }

    /// Returns the next completion of the compression session.
    #[inline]
    fn decompress(&mut self) -> Cqe {
        let (slot, read) = (self.consumed, self.session.read);
        if read % ARRAY == 0 {
            // The first array is in the slot behind the title.
            let array = self.entries.entry(slot.wrapping_add(u32::from(read == 0)));
            // SAFETY: the device wrote it before the title, and its slot has not returned to the
            // device.
            self.session.minis = unsafe { array.cast::<[u64; ARRAY as usize]>().read() };
        }
        if read > 0 {
            // The slot does not contain a CQE, but bytes of mini CQEs or a CQE of an earlier lap.
            // Invalidate it, so that a later lap does not take it for a CQE.
            // SAFETY: a slot of the session, which the device does not write until it is returned.
            unsafe { AtomicU8::from_ptr(&raw mut (*self.entries.entry(slot)).op_own) }
                .store(OP_INVALID << 4, Ordering::Relaxed);
        }
        let mini = u64::from_be(self.session.minis[(read % ARRAY) as usize]);
        self.consumed = slot.wrapping_add(1);
        self.session.read += 1;
        self.session.left -= 1;
        let title = self.session.title;
        Cqe {
            // Without strides, WQEs complete in sequence; a ring has fewer than 2^16 of them.
            wqe_counter: match self.strides {
                true => (mini >> 32) as u16,
                false => title.wqe_counter.wrapping_add(read as u16),
            },
            byte_len: mini as u32,
            ..title
        }
    }

    /// Returns the file descriptor of the CQ's completion channel, if the CQ has one.
    #[must_use]
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.cq.event_fd()
    }

    /// Requests an event for the CQ's next completion; a completion that is already in the CQ
    /// raises it at once.
    pub fn arm(&mut self) {
        let word = (self.arm_sn & 3) << 28 | (self.consumed & 0x00ff_ffff);
        // SAFETY: the CQ's doorbell record and its page of the UAR, mapped as long as the context
        // is open.
        unsafe {
            AtomicU32::from_ptr((&raw mut (*self.dbrec)[1]).cast())
                .store(word.to_be(), Ordering::Release);
            fence(Ordering::SeqCst);
            let bell = (u64::from(word) << 32 | u64::from(self.cqn)).to_be();
            self.uar.add(CQ_DOORBELL).cast::<u64>().write_volatile(bell);
        }
        flush_writes();
    }

    /// Takes and acknowledges one completion event; returns `true` if there was one.
    pub fn take_event(&mut self) -> bool {
        let taken = self.cq.take_event();
        if taken {
            self.arm_sn = self.arm_sn.wrapping_add(1);
        }
        taken
    }
}

/// Row of contiguous CQ entries up to the end of the ring; empty while a compression session is
/// read.
struct EntryRow {
    /// First CQ entry of the row. If the row is not empty, its index is the CQ's `consumed`.
    first: *mut u8,
    next: *mut u8,
    end: *mut u8,
    /// Bytes from one CQ entry to the next.
    step: usize,
    /// `op_own` of a frame's completion in this lap around the CQ, without the solicited event bit.
    frame: u8,
}

/// Reader of a CQ's completions. The completion of a frame costs one check of its entry: the
/// address and the expected `op_own` are computed once for a whole row of entries.
pub struct Cqes<'a> {
    cq: &'a mut DirectCq,
    row: EntryRow,
}

impl Cqes<'_> {
    /// Returns the next completion of the CQ, if the device has written it.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Cqe> {
        loop {
            if self.row.next != self.row.end {
                let step = self.row.step;
                let cqe: *mut ffi::mlx5_cqe64 = self.row.next.cast();
                prefetch_line(self.row.next.wrapping_add(PREFETCH_DISTANCE * step));
                // SAFETY: an entry of the CQ. The device writes this byte last. The other bytes are
                // read after it (acquire), and the device does not write the entry again before it
                // is returned.
                let op_own =
                    unsafe { AtomicU8::from_ptr(&raw mut (*cqe).op_own) }.load(Ordering::Acquire);
                if op_own & !SOLICITED != self.row.frame {
                    self.end_row();
                    return self.cq.take_title_or_error();
                }
                self.row.next = self.row.next.wrapping_add(step);
                // SAFETY: as above: the device has written the entry and does not change it.
                return Some(unsafe { Cqe::received(cqe) });
            }
            self.end_row();
            if self.cq.session.left > 0 {
                return Some(self.cq.decompress());
            }
            self.row = self.cq.row();
        }
    }

    /// Adds the CQ entries that were read from the row to `consumed`, and empties the row.
    #[inline]
    fn end_row(&mut self) {
        let read = (self.row.next.addr() - self.row.first.addr()) >> self.cq.entries.log_size;
        self.cq.consumed = self.cq.consumed.wrapping_add(read as u32);
        (self.row.first, self.row.end) = (self.row.next, self.row.next);
    }

    /// Returns `true` if the device may compress the CQ's completions.
    #[must_use]
    pub fn are_compressible(&self) -> bool {
        self.cq.cq.compression.is_some()
    }

    /// Returns the next completion, and its CQ entry as the device wrote it: for 128-byte entries,
    /// the second half.
    pub fn take_raw(&mut self) -> Option<(Cqe, [u8; 64])> {
        let cqe = self.take()?;
        self.end_row();
        let entry = self.cq.entries.entry(self.cq.consumed.wrapping_sub(1));
        // SAFETY: 64 bytes of the CQ's memory, which do not return to the device before this reader
        // is dropped.
        Some((cqe, unsafe { entry.cast::<[u8; 64]>().read() }))
    }
}

impl Drop for Cqes<'_> {
    #[inline]
    fn drop(&mut self) {
        self.end_row();
        // SAFETY: the CQ's doorbell record, which only this reader writes; entries were read before
        // it (release).
        unsafe { AtomicU32::from_ptr((&raw mut (*self.cq.dbrec)[0]).cast()) }
            .store((self.cq.consumed & 0x00ff_ffff).to_be(), Ordering::Release);
    }
}

/// Flushes earlier stores to write-combining memory out of the CPU. A UAR page may be mapped as
/// write-combining, and a doorbell that stays in the CPU's buffer requests no event. Equals
/// `mmio_flush_writes` of rdma-core (util/udma_barrier.h), which `mlx5_arm_cq`
/// (providers/mlx5/cq.c) calls after its doorbell.
#[inline]
fn flush_writes() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has this instruction, and it changes no memory.
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

/// Returns the `ibv_wc_status` for the syndrome of an error CQE, as libmlx5 translates it.
fn status_of(syndrome: u8) -> u32 {
    match syndrome {
        0x01 => 1, // local length
        0x02 => 2, // local QP operation
        0x04 => 4, // local protection
        0x05 => 5, // flushed
        _ => 21,   // general
    }
}
