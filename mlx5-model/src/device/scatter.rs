//! Receive WQEs: scatter lists in the program's ring, and the copy of frames into their buffers.
//!
//! Imports `cqe`, `memory` and `strides`. Invariant: nothing is written beyond a scatter entry,
//! outside a region, or through a key of another protection domain.

#![allow(unsafe_code)]

use crate::abi;
use crate::handles::Index;
use crate::process::cache::{prefetch, prefetch_for_write};
use crate::process::{Errno, refuse_if};

use super::cqe::WqeError;
use super::memory::{Access, NicRing, Regions, copy_frame};
use super::strides::StrideLayout;

/// Size of an entry of a receive WQE's scatter list (`mlx5_wqe_data_seg`): byte count, lkey,
/// address, all big-endian.
const SEGMENT: usize = size_of::<abi::mlx5_wqe_data_seg>();
/// Size of the largest receive WQE in bytes (`max_rq_desc_sz`).
pub const MAX_WQE: u32 = 512;

/// Memory layout of a receive queue in the program's memory.
#[derive(Debug, Clone, Copy)]
pub struct RqLayout {
    pub ring: u64,
    pub record: u64,
    /// Number of WQEs in the receive queue's ring, a power of two.
    pub count: u32,
    /// Base-2 logarithm of a receive WQE's size in bytes.
    pub shift: u32,
    /// Set when each receive WQE begins with a signature (`MLX5_WQ_FLAG_SIGNATURE`).
    pub signature: bool,
    /// Strides of each receive WQE's buffer in a striding queue; `None` for other queues.
    pub strides: Option<StrideLayout>,
}

/// Ring of a receive queue's WQEs in the program's memory.
pub struct ScatterRing {
    ring: NicRing,
    mask: u16,
    shift: u32,
    first_segment: usize,
    segments: usize,
}

impl ScatterRing {
    /// Creates the WQE ring of a receive queue. Fails with `EINVAL` for an invalid layout, or as
    /// [`NicRing::new`] does.
    pub fn new(layout: &RqLayout) -> Result<Self, Errno> {
        let shift_fits =
            (SEGMENT.trailing_zeros()..=MAX_WQE.trailing_zeros()).contains(&layout.shift);
        if !layout.count.is_power_of_two() || layout.count > 1 << 15 || !shift_fits {
            return Err(libc::EINVAL);
        }
        // A striding WQE begins with a `mlx5_wqe_srq_next_seg`, which is as large as an entry
        // (`mlx5_calc_rwq_size` of libmlx5).
        let first_segment = usize::from(layout.signature) + usize::from(layout.strides.is_some());
        let segments = (1usize << layout.shift) / SEGMENT;
        refuse_if(segments <= first_segment, libc::EINVAL)?;
        Ok(Self {
            ring: NicRing::new(layout.ring, u64::from(layout.count) << layout.shift)?,
            mask: (layout.count - 1) as u16,
            shift: layout.shift,
            first_segment,
            segments: segments - first_segment,
        })
    }

    #[inline(always)]
    pub fn wqe(&self, counter: u16) -> usize {
        usize::from(counter & self.mask) << self.shift
    }

    #[inline(always)]
    pub fn prefetch(&self, wqe: usize) {
        prefetch(self.ring.at(wqe));
    }

    /// Prefetches the first buffer of a receive WQE for writing, from byte `offset` of the buffer.
    #[inline(always)]
    pub fn prefetch_buffer(&self, wqe: usize, offset: usize) {
        let (_, _, addr) = self.segment(wqe, 0);
        prefetch_for_write(addr.wrapping_add(offset as u64) as *const u8);
    }

    /// Writes an unchanged received frame at byte `offset` of a WQE's buffers, nearly always into
    /// one buffer. Returns the frame's length.
    #[inline(always)]
    pub fn write_frame(
        &self,
        regions: &Regions,
        pd: Index,
        wqe: usize,
        offset: usize,
        bytes: &[u8],
    ) -> Result<u32, WqeError> {
        let (to, room) = self.buffer(regions, pd, wqe, 0, offset, bytes.len())?;
        if room < bytes.len() {
            return self.write(regions, pd, wqe, offset, &[bytes]);
        }
        // SAFETY: `buffer` has checked that the queue may write `room` bytes at `to`, and the frame
        // is not longer. A program that accesses them meanwhile races with itself.
        unsafe { copy_frame(bytes, to) };
        Ok(bytes.len() as u32)
    }

    /// Writes the `pieces` of a received frame one after the other, from byte `offset` of a WQE's
    /// buffers. Returns their total length.
    #[cold]
    pub fn write(
        &self,
        regions: &Regions,
        pd: Index,
        wqe: usize,
        mut offset: usize,
        pieces: &[&[u8]],
    ) -> Result<u32, WqeError> {
        let total: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut left = total;
        let mut index = 0;
        let mut room = 0;
        let mut to = std::ptr::null_mut::<u8>();
        for piece in pieces {
            let mut piece = *piece;
            while !piece.is_empty() {
                while room == 0 {
                    (to, room) = self.buffer(regions, pd, wqe, index, offset, left)?;
                    if room == 0 {
                        offset -= self.entry(wqe, index)?.0;
                    } else {
                        offset = 0;
                    }
                    index += 1;
                }
                let len = piece.len().min(room);
                // SAFETY: `buffer` has checked that the queue may write `room` bytes at `to`, and
                // `len` is at most that. A program that accesses them meanwhile races with itself.
                unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), to, len) };
                to = to.wrapping_add(len);
                room -= len;
                left -= len;
                piece = &piece[len..];
            }
        }
        Ok(total as u32)
    }

    /// Reads entry `index` of a receive WQE's scatter list: byte count, lkey, address.
    #[inline(always)]
    fn segment(&self, wqe: usize, index: usize) -> (u32, u32, u64) {
        let at = self
            .ring
            .at(wqe + (self.first_segment + index) * SEGMENT)
            .cast::<u64>();
        // SAFETY: the 16 bytes are in the ring, aligned. Volatile because the program may be
        // writing a WQE that it has not posted, and all values are checked before use.
        let (head, addr) = unsafe { (at.read_volatile(), at.add(1).read_volatile()) };
        let head = u64::from_be(head);
        ((head >> 32) as u32, head as u32, u64::from_be(addr))
    }

    /// Returns entry `index` of a receive WQE's scatter list with its effective byte count. Fails
    /// with `TOO_LONG` beyond the last entry.
    #[inline(always)]
    fn entry(&self, wqe: usize, index: usize) -> Result<(usize, u32, u64), WqeError> {
        if index >= self.segments {
            return Err(WqeError::TOO_LONG);
        }
        let (bytes, lkey, addr) = self.segment(wqe, index);
        if bytes == 0 && lkey == abi::MLX5_INVALID_LKEY {
            return Err(WqeError::TOO_LONG);
        }
        // PRM "WQE data segment": 31 bits, and zero means all of them.
        let bytes = if bytes & 0x7fff_ffff == 0 {
            1 << 31
        } else {
            (bytes & 0x7fff_ffff) as usize
        };
        Ok((bytes, lkey, addr))
    }

    /// Returns the address of scatter list entry `index` of a WQE from byte `offset`, and how many
    /// of the `left` bytes fit there.
    #[inline(always)]
    fn buffer(
        &self,
        regions: &Regions,
        pd: Index,
        wqe: usize,
        index: usize,
        offset: usize,
        left: usize,
    ) -> Result<(*mut u8, usize), WqeError> {
        let (bytes, lkey, addr) = self.entry(wqe, index)?;
        let offset = offset.min(bytes);
        let len = (bytes - offset).min(left);
        let addr = addr.wrapping_add(offset as u64);
        let to = regions
            .resolve(lkey, pd, addr, len as u64, Access::Write)
            .ok_or(WqeError::PROTECTION)?;
        Ok((to, len))
    }
}
