//! Send WQEs of RAW_PACKET QPs, and the frames that they describe.
//!
//! Imports `cqe`, `frame` and `memory`. Invariant: no length in a WQE leads a copy beyond the ring,
//! a region or the largest frame.

#![allow(unsafe_code)]

use std::mem::offset_of;

use crate::abi::{self, mlx5_wqe_ctrl_seg, mlx5_wqe_eth_seg};
use crate::frame::fill_checksums;
use crate::handles::Index;
use crate::process::{Errno, refuse_if};

use super::cqe::WqeError;
use super::memory::{Access, NicRing, Regions};

/// Size of a WQE basic block in bytes, the unit of a queue's indexes.
const BLOCK: usize = 64;
/// Unit of sizes within a send WQE, in bytes.
const UNIT: usize = 16;
/// Size of the largest frame that a send WQE may describe, in bytes.
const MAX_FRAME: usize = 65_536 + 64;
/// Bit of `MLX5_ETH_WQE_INSERT_VLAN` in `eth_seg.insert.type` (PRM "Ethernet segment"), which the
/// user headers do not define.
pub const INSERT_VLAN: u16 = 1 << 15;
/// Bit of `MLX5_ETH_WQE_SVLAN` in `eth_seg.insert.type`: the inserted tag is an S-VLAN tag.
const INSERT_SVLAN: u16 = 1 << 0;
/// Completion mode in `fm_ce_se` of a send WQE: the WQE always completes.
const ALWAYS_COMPLETE: u8 = abi::MLX5_WQE_CTRL_CQ_UPDATE as u8;
/// Offset of the inline header in the second segment of a send on a raw packet QP.
const INLINE_START: usize = offset_of!(mlx5_wqe_eth_seg, inline_hdr_start);

/// Control segment of a send WQE (`mlx5_wqe_ctrl_seg`).
#[derive(Clone, Copy)]
pub struct ControlSegment {
    pub opcode: u8,
    /// Size of the send WQE in units of 16 bytes.
    units: usize,
    /// Set when the send WQE requests a completion.
    pub complete: bool,
}

impl ControlSegment {
    /// Returns the number of basic blocks (64 bytes) that the send WQE occupies.
    pub fn blocks(self) -> u16 {
        (self.units * UNIT).div_ceil(BLOCK).max(1) as u16
    }
}

/// Ring of a send queue's WQEs in the program's memory.
pub struct GatherRing {
    ring: NicRing,
    blocks: u32,
}

impl GatherRing {
    /// Creates a send queue's ring of `blocks` basic blocks (64 bytes). Fails with `EINVAL` for an
    /// invalid number, or as [`NicRing::new`] does.
    pub fn new(addr: u64, blocks: u32) -> Result<Self, Errno> {
        refuse_if(!blocks.is_power_of_two() || blocks > 1 << 15, libc::EINVAL)?;
        let ring = NicRing::new(addr, u64::from(blocks) * BLOCK as u64)?;
        Ok(Self { ring, blocks })
    }

    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Reads the 16-byte unit of a send WQE at offset `at` in the ring, rounded down to a multiple
    /// of 16.
    #[inline]
    fn unit(&self, at: usize) -> [u8; UNIT] {
        let words = self.ring.at(at & !(UNIT - 1)).cast::<u64>();
        // SAFETY: any offset leads into the ring, aligned, and the length of a ring is a multiple
        // of 16 bytes. Volatile because the program owns WQEs that are not posted, and nothing that
        // is read is trusted.
        let [low, high] = unsafe { [words.read_volatile(), words.add(1).read_volatile()] };
        let mut unit = [0; UNIT];
        unit[..8].copy_from_slice(&low.to_ne_bytes());
        unit[8..].copy_from_slice(&high.to_ne_bytes());
        unit
    }

    pub fn wqe(&self, head: u16) -> usize {
        (u32::from(head) & (self.blocks - 1)) as usize * BLOCK
    }

    /// Reads the control segment of the send WQE at offset `at` in the ring.
    pub fn control(&self, at: usize) -> ControlSegment {
        let unit = self.unit(at);
        let size = unit[offset_of!(mlx5_wqe_ctrl_seg, qpn_ds) + 3] & 0x3f;
        let mode = unit[offset_of!(mlx5_wqe_ctrl_seg, fm_ce_se)];
        ControlSegment {
            opcode: unit[3],
            units: usize::from(size),
            complete: mode & ALWAYS_COMPLETE == ALWAYS_COMPLETE,
        }
    }

    /// Assembles the frame to send from a send WQE's inline header, inline data and buffers.
    pub fn gather(
        &self,
        regions: &Regions,
        pd: Index,
        at: usize,
        control: ControlSegment,
        frame: &mut Vec<u8>,
    ) -> Result<(), WqeError> {
        frame.clear();
        let segment = at + size_of::<mlx5_wqe_ctrl_seg>();
        let ethernet = self.unit(segment);
        let flags = ethernet[offset_of!(mlx5_wqe_eth_seg, cs_flags)];
        let word = |offset: usize| u16::from_be_bytes([ethernet[offset], ethernet[offset + 1]]);
        let inline = word(offset_of!(mlx5_wqe_eth_seg, inline_hdr_sz));
        let insert = (inline & INSERT_VLAN != 0).then(|| word(INLINE_START));
        let inline_len = if insert.is_some() {
            0
        } else {
            usize::from(inline & 0x3ff)
        };
        self.copy_inline(segment + INLINE_START, inline_len, frame);

        // Two bytes of inline header fit in the segment itself.
        let mut used = 1 + (INLINE_START + inline_len.max(2)).div_ceil(UNIT);
        while used < control.units {
            used += self.gather_one(regions, pd, at + used * UNIT, frame)?;
        }
        if let Some(tci) = insert {
            insert_tag(frame, inline & INSERT_SVLAN != 0, tci)?;
        }
        let wants = |flag: u32| u32::from(flags) & flag != 0;
        let (l3, l4) = (
            wants(abi::MLX5_ETH_WQE_L3_CSUM),
            wants(abi::MLX5_ETH_WQE_L4_CSUM),
        );
        if l3 || l4 {
            fill_checksums(frame, l3, l4);
        }
        // The shortest frame is an Ethernet header.
        if frame.len() < 14 {
            Err(WqeError::TOO_LONG)
        } else {
            Ok(())
        }
    }

    /// Appends the bytes of one data segment of a send WQE to the frame that is sent. Returns the
    /// segment's size in units of 16 bytes.
    fn gather_one(
        &self,
        regions: &Regions,
        pd: Index,
        at: usize,
        frame: &mut Vec<u8>,
    ) -> Result<usize, WqeError> {
        let unit = self.unit(at);
        let [a, b, c, d, e, f, g, h, addr @ ..] = unit;
        let head = u32::from_be_bytes([a, b, c, d]);
        if head & abi::MLX5_INLINE_SEG != 0 {
            let len = (head & 0x3ff) as usize;
            self.copy_inline(at + 4, len, frame);
            return Ok((4 + len).div_ceil(UNIT));
        }
        let lkey = u32::from_be_bytes([e, f, g, h]);
        let addr = u64::from_be_bytes(addr);
        let len = head as usize;
        if frame.len() + len > MAX_FRAME {
            return Err(WqeError::TOO_LONG);
        }
        let from = regions
            .resolve(lkey, pd, addr, len as u64, Access::Read)
            .ok_or(WqeError::PROTECTION)?;
        // SAFETY: `resolve` has checked that the queue may read `len` bytes at `from`. The program
        // must not change them until the WQE completes.
        frame.extend_from_slice(unsafe { std::slice::from_raw_parts(from, len) });
        Ok(1)
    }

    /// Appends `len` inline bytes of a send WQE at offset `at` to the frame; they wrap at the end
    /// of the ring.
    fn copy_inline(&self, mut at: usize, mut len: usize, frame: &mut Vec<u8>) {
        while len > 0 {
            let unit = self.unit(at);
            let rest = &unit[at % UNIT..];
            let piece = &rest[..rest.len().min(len)];
            frame.extend_from_slice(piece);
            at += piece.len();
            len -= piece.len();
        }
    }
}

fn insert_tag(frame: &mut Vec<u8>, service: bool, tci: u16) -> Result<(), WqeError> {
    if frame.len() < 12 {
        return Err(WqeError::BAD_WQE);
    }
    let tpid = if service { 0x88a8u16 } else { 0x8100 };
    let [a, b] = tpid.to_be_bytes();
    let [c, d] = tci.to_be_bytes();
    frame.splice(12..12, [a, b, c, d]);
    Ok(())
}
