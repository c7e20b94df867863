//! Receive queue that exposes single completions with their raw entries; slow, for inspection.

use super::{Cqe, DirectCq, DirectWq, FrameStrides};
use crate::{
    Channel, CompletionStamps, Context, Cq, CqAttr, MiniFormat, Moderation, Mr, Pd, Striding,
    VerbsError, Wq, WqAttr, WqHandle, WqState, memory::Region, mlx5dv::mlx5_cqe64,
};
use std::{mem::offset_of, os::fd::BorrowedFd};

/// Status `IBV_WC_LOC_LEN_ERR` of a completion: the frame is longer than its buffer, and the WQ
/// stays ready.
const TOO_LONG: u32 = 1;
/// Offset of the number of a striding WQ's WQE in a CQE64 (`wqe_id` of `mlx5_cqe64` in
/// include/linux/mlx5/device.h).
const WQE_ID: usize = 2;
/// Offset of the byte count in a CQE64, which an error CQE of a striding WQ has, too
/// (`mlx5e_handle_rx_cqe_mpwrq` of Linux's en_rx.c reads it before it checks for errors).
const BYTE_COUNT: usize = offset_of!(mlx5_cqe64, byte_cnt);

/// Attributes for creating a receive queue for inspection.
#[derive(Clone, Copy, Debug, Default)]
pub struct InspectedAttr {
    /// Number of WQEs of the inspected queue, rounded up to a power of two.
    pub wrs: u32,
    /// Number of bytes of a scatter entry of a WQE. A striding WQE has one scatter entry, which may
    /// be shorter than its strides.
    pub buffer: u32,
    /// Number of scatter entries of a WQE, adjacent in memory.
    pub max_sge: u32,
    /// Creation flags of the inspected WQ (`ibv_wq_flags`).
    pub flags: u32,
    /// Kind of time stamps in the inspected queue's completions.
    pub stamps: CompletionStamps,
    /// Strides of a WQE's buffer, which many frames share; `None`: a WQE takes one frame.
    pub striding: Option<Striding>,
    /// Format of compressed completions; `None`: completions are not compressed.
    pub compression: Option<MiniFormat>,
    /// `true` to create a completion channel, on which a thread can wait for an event.
    pub channel: bool,
    /// Moderation of the completion channel's events.
    pub moderation: Option<Moderation>,
}

/// Completion with its raw CQ entry and the received bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspected {
    /// Decoded CQE of the completion.
    pub cqe: Cqe,
    /// Raw CQ entry of 64 bytes (`mlx5_cqe64`). Of a compressed completion, only the first one of
    /// a session has a CQE.
    pub raw: [u8; 64],
    /// Length of the frame in bytes, as the CQE reports it; 0 on an error and for a filler.
    pub len: u32,
    /// Copy of the bytes that were received with the completion; empty on an error and for a
    /// filler.
    pub bytes: Vec<u8>,
    /// Strides that the completion consumes; `None` if the WQ is not striding.
    pub strides: Option<InspectedStrides>,
    /// `true` if the completion's WQE is used up.
    pub is_last: bool,
}

/// Strides that a completion of a striding WQ consumes: as its CQE reports them, and as they follow
/// from the number of strides that the completions before it have consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InspectedStrides {
    /// Strides of the frame or filler, as the CQE reports them. For an error CQE, only the count is
    /// valid.
    pub reported: FrameStrides,
    /// Number of the WQE (`wqe_id`), as the CQE reports it. Mini CQEs do not have one.
    pub wqe_id: u16,
    /// Number of the WQE, computed from the completions before this one.
    pub counted_wqe: u16,
    /// Index of the first stride, computed from the completions before this one.
    pub counted_first: u32,
}

impl InspectedStrides {
    /// Returns `true` if the CQE reports the WQE and the first stride that follow from the
    /// completions before this one.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.wqe_id == self.counted_wqe && self.reported.first == self.counted_first
    }
}

impl Inspected {
    /// Returns `true` if the completion is a filler of a striding WQ: it has no frame.
    #[must_use]
    pub fn is_filler(&self) -> bool {
        let strides = self.strides.filter(|_| self.cqe.status == 0);
        strides.is_some_and(|it| it.reported.len.is_none())
    }

    /// Returns `true` if the completion belongs to a session of compressed completions. Its CQ
    /// entry is the title (format bits 2 and 3 of `op_own`) or no CQE.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        let op_own = self.raw[63];
        op_own >> 4 == 15 || op_own & 0x0c != 0
    }
}

/// Receive queue for inspection: a CQ, and a WQ that is ready and filled with WQEs. Received bytes
/// are copied, and a WQE that is used up is posted again at once.
pub struct InspectedQueue {
    cq: DirectCq,
    wq: DirectWq,
    memory: Mr,
    attr: InspectedAttr,
    /// Number of WQEs of a striding WQ that were used up since it became ready, modulo 2^16.
    head: u16,
    /// Number of strides that were consumed of the striding WQ's first unfinished WQE.
    used: u32,
}

impl InspectedQueue {
    /// Creates a WQ and its CQ, whose completions the selftest inspects.
    ///
    /// # Errors
    /// The error of a verb, EOPNOTSUPP if the rings cannot be accessed directly, or EPROTO if the
    /// ring has another size.
    pub fn create(context: &Context, pd: &Pd, attr: InspectedAttr) -> Result<Self, VerbsError> {
        let wrs = attr.wrs.max(1).next_power_of_two();
        let attr = InspectedAttr { wrs, ..attr };
        let channel = match attr.channel {
            true => Some(Channel::create(context)?),
            false => None,
        };
        let cq_attr = CqAttr {
            // libmlx5 rounds one more than this up to a power of two: the CQ has an entry for
            // every completion that can be outstanding, and wraps soon.
            entries: (wrs * attr.striding.map_or(1, |it| it.strides) - 1).max(1),
            vector: 0,
            stamps: attr.stamps,
            compression: attr.compression,
        };
        let mut cq = Cq::create(context, cq_attr, channel)?;
        if let Some(by) = attr.moderation {
            cq.moderate(by)?;
        }
        let bytes = wrs as usize * attr.pitch() as usize;
        let memory = Mr::register(pd, Region::allocate(bytes, None)?)?;
        let wq_attr = WqAttr {
            max_wr: wrs,
            max_sge: attr.max_sge.max(1),
            flags: attr.flags,
            striding: attr.striding,
        };
        let wq = Wq::create(pd, &cq, &memory, wq_attr)?;
        let (cq, wq) = (DirectCq::from_cq(cq)?, DirectWq::from_wq(wq)?);
        if wq.len() != wrs {
            let object = format!("WQ with {wrs} WRs requested, {} created", wq.len());
            return Err(VerbsError::from_errno(
                "ibv_create_wq",
                object,
                libc::EPROTO,
            ));
        }
        let mut queue = Self {
            cq,
            wq,
            memory,
            attr,
            head: 0,
            used: 0,
        };
        queue.make_ready(true)?;
        Ok(queue)
    }

    /// Returns the WQ's handle, for use in an indirection table.
    #[must_use]
    pub fn handle(&self) -> WqHandle {
        self.wq.wq().handle()
    }

    /// Returns the number that identifies the WQ in asynchronous events.
    #[must_use]
    pub fn id(&self) -> usize {
        self.wq.wq().id()
    }

    /// Returns the number of WQEs in the WQ.
    #[must_use]
    pub fn wrs(&self) -> u32 {
        self.wq.len()
    }

    /// Takes the next completion of the inspected queue. A WQE that is used up is handed to the
    /// device again, unless the WQ is in error.
    pub fn take(&mut self) -> Option<Inspected> {
        let (cqe, raw) = self.cq.cqes().take_raw()?;
        let mut it = Inspected {
            cqe,
            raw,
            len: 0,
            bytes: Vec::new(),
            strides: None,
            is_last: true,
        };
        match self.attr.striding {
            Some(shape) => self.take_strides(&mut it, shape),
            None if cqe.status == 0 => {
                it.len = cqe.byte_len;
                let len = cqe.byte_len.min(self.attr.pitch());
                it.bytes = self.copy(self.wq.index_of(cqe.wqe_counter), 0, len);
                self.repost();
            }
            None => {}
        }
        Some(it)
    }

    /// Adds the strides of a striding WQ's completion and, for a frame, its bytes.
    fn take_strides(&mut self, it: &mut Inspected, shape: Striding) {
        let at = |n: usize| it.raw[n];
        let byte_count = [0, 1, 2, 3].map(|n| at(BYTE_COUNT + n));
        // An error CQE has the consumed strides where other CQEs have them.
        let cqe = match it.cqe.status {
            0 => it.cqe,
            _ => Cqe {
                byte_len: u32::from_be_bytes(byte_count),
                ..it.cqe
            },
        };
        let reported = cqe.strides();
        it.strides = Some(InspectedStrides {
            reported,
            wqe_id: u16::from_be_bytes([at(WQE_ID), at(WQE_ID + 1)]),
            counted_wqe: self.head,
            counted_first: self.used,
        });
        let fits = reported.first.saturating_add(reported.count) <= shape.strides;
        if let (0, Some(len)) = (cqe.status, reported.len) {
            it.len = len;
            if fits && len <= reported.count * shape.stride {
                let index = self.wq.index_of(self.head);
                it.bytes = self.copy(index, reported.first * shape.stride, len);
            }
        }
        // A completion without strides would never use a WQE up.
        self.used += match reported.count {
            0 => shape.strides,
            count => count,
        };
        it.is_last = self.used >= shape.strides;
        if it.is_last {
            (self.head, self.used) = (self.head.wrapping_add(1), 0);
            if matches!(it.cqe.status, 0 | TOO_LONG) {
                self.repost();
            }
        }
    }

    /// Copies `len` received bytes from offset `from` of the buffer of the WQE at `index`.
    fn copy(&self, index: u32, from: u32, len: u32) -> Vec<u8> {
        let at = index as usize * self.attr.pitch() as usize + from as usize;
        // SAFETY: bytes of one WQE's buffer, as the callers check. Their completion was taken, so
        // the device no longer writes to them.
        unsafe {
            let start = self.memory.memory().cast::<u8>().add(at);
            std::slice::from_raw_parts(start, len as usize).to_vec()
        }
    }

    /// Hands the WQE that was used up to the device again.
    fn repost(&mut self) {
        self.wq.advance();
        // SAFETY: WQEs complete in order, so this is the WQE that has just completed, unchanged:
        // it points to its buffer, to which no reference remains.
        unsafe { self.wq.hand_over() };
    }

    /// Changes the state of the WQ, as [`DirectWq::set_state`] does.
    ///
    /// # Errors
    /// The error of the verb.
    pub fn set_state(&mut self, from: Option<WqState>, state: WqState) -> Result<(), VerbsError> {
        self.wq.set_state(from, state)
    }

    /// Changes the WQ from reset to ready and hands over all its WQEs. If `sound` is `false`, the
    /// WQEs have an invalid key (lkey), so that the device cannot write to their buffers.
    /// Completions from before the reset that were not taken are discarded.
    ///
    /// # Errors
    /// EINVAL if the WQ is not in reset, or the error of the verb.
    pub fn make_ready(&mut self, sound: bool) -> Result<(), VerbsError> {
        if self.wq.wq().state() != WqState::Reset {
            let object = format!("WQ, state {:?} to Ready", self.wq.wq().state());
            return Err(VerbsError::from_errno(
                "ibv_modify_wq",
                object,
                libc::EINVAL,
            ));
        }
        while self.cq.cqes().take().is_some() {}
        (self.head, self.used) = (0, 0);
        self.wq.set_state(None, WqState::Ready)?;
        let key = self.memory.lkey();
        // The index of a key is in its upper 24 bits (PRM, "Memory Key"): with other upper bits it
        // is the key of no memory region.
        let key = if sound { key } else { key ^ 0x5a5a_5a00 };
        let start = self.memory.memory().addr() as u64;
        let (buffer, sges) = (self.attr.buffer, self.attr.max_sge.max(1));
        for _ in 0..self.wq.len() {
            let at = self.wq.next_index();
            let address = start + u64::from(at) * u64::from(self.attr.pitch());
            // SAFETY: the WQ was in reset, where the device owns no WQE, and no WQE was handed over
            // since.
            unsafe { self.wq.write(at, address, buffer, sges, key) };
            self.wq.advance();
        }
        // SAFETY: each WQE points at its buffer in the memory that the WQ was created with, and
        // `take` reads bytes only after their completion.
        unsafe { self.wq.hand_over() };
        Ok(())
    }

    /// Returns the file descriptor of the completion channel, if the inspected queue has one.
    #[must_use]
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.cq.event_fd()
    }

    /// Requests an event for the next completion, as [`DirectCq::arm`] does.
    pub fn arm(&mut self) {
        self.cq.arm();
    }

    /// Takes and acknowledges one completion event; returns `true` if there was one.
    pub fn take_event(&mut self) -> bool {
        self.cq.take_event()
    }
}

impl InspectedAttr {
    /// Returns the bytes from the start of one WQE's buffer to the start of the next.
    fn pitch(&self) -> u32 {
        match self.striding {
            Some(shape) => shape.buffer(),
            None => self.buffer * self.max_sge.max(1),
        }
    }
}
