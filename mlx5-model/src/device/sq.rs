//! Send queues of RAW_PACKET QPs: from WQE to frame.
//!
//! May import `abi`, `cq`, `event`, `frame`, `memory`, `objects`. Invariants: WQEs are executed in
//! order; no length a WQE says leads a copy out of the ring, a region or the frame's room; a WQE that
//! fails stops the queue, and the rest is flushed.

#![allow(unsafe_code)]

use std::mem::offset_of;

use crate::abi::{self, mlx5_wqe_ctrl_seg, mlx5_wqe_eth_seg};
use crate::device::cq::{Cq, Cqe, Failure};
use crate::device::event::{AsyncEvent, AsyncSource};
use crate::device::memory::{Access, DoorbellRecord, Regions, Ring};
use crate::frame::fill_checksums;
use crate::objects::Index;
use crate::process::Errno;

/// The send word of a doorbell record.
const PRODUCER: usize = abi::MLX5_SND_DBR as usize;
/// WQE basic block: what WQEs are counted in.
const BLOCK: usize = 64;
/// What sizes within a WQE are counted in.
const UNIT: usize = 16;
/// The largest frame that is put together.
const MAX_FRAME: usize = 65_536 + 64;
/// `MLX5_ETH_WQE_INSERT_VLAN` and `MLX5_ETH_WQE_SVLAN` in `eth_seg.insert.type` (PRM "Ethernet
/// segment"), which the user headers do not name.
const INSERT_VLAN: u16 = 1 << 15;
const INSERT_SVLAN: u16 = 1 << 0;
/// `fm_ce_se`, completion mode: always.
const ALWAYS_COMPLETE: u8 = abi::MLX5_WQE_CTRL_CQ_UPDATE as u8;
/// The second segment of a send on a raw packet QP, where its inline header begins.
const INLINE_START: usize = offset_of!(mlx5_wqe_eth_seg, inline_hdr_start);

/// Whether the queue executes WQEs (`enum mlx5_sq_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqState {
    /// Not yet, or held.
    Idle,
    /// WQEs are executed.
    Ready,
    /// WQEs are flushed.
    Error,
}

/// A WQE whose turn has come.
pub struct Posted {
    /// Its number, for the CQE.
    counter: u16,
    opcode: u8,
    complete: bool,
    /// Whether there is a frame to send, or why not.
    result: Result<bool, Failure>,
}

impl Posted {
    /// Whether the WQE left a frame to send.
    pub fn has_frame(&self) -> bool {
        self.result == Ok(true)
    }
}

impl PartialEq for Failure {
    fn eq(&self, other: &Self) -> bool {
        self.syndrome == other.syndrome
    }
}

/// A send queue.
pub struct Sq {
    ring: Ring,
    record: DoorbellRecord,
    blocks: u32,
    /// The next WQE, and how far the user had posted at the last look, in blocks.
    head: u16,
    producer: u16,
    state: SqState,
    /// Whether every WQE completes, asked or not.
    pub signal_all: bool,
    /// Where it completes.
    pub cq: Index,
    /// Whose memory it may read.
    pub pd: Index,
    /// The port it sends on, from 1.
    pub port: u8,
    /// `srqn_uidx` of its CQEs.
    pub uidx: u32,
    /// The QP's number.
    pub qpn: u32,
    /// Where its failures go.
    pub events: AsyncSource,
}

impl Sq {
    /// A queue that does nothing yet, of `blocks` basic blocks at `ring`.
    ///
    /// # Errors
    /// `EINVAL` for a size that is none, or as [`Ring::new`].
    pub fn new(
        ring: u64,
        record: u64,
        blocks: u32,
        cq: Index,
        pd: Index,
        uidx: u32,
        events: AsyncSource,
    ) -> Result<Self, Errno> {
        if !blocks.is_power_of_two() || blocks > 1 << 15 {
            return Err(libc::EINVAL);
        }
        Ok(Self {
            ring: Ring::new(ring, u64::from(blocks) * BLOCK as u64)?,
            record: DoorbellRecord::new(record)?,
            blocks,
            head: 0,
            producer: 0,
            state: SqState::Idle,
            signal_all: false,
            cq,
            pd,
            port: 1,
            uidx,
            qpn: 0,
            events,
        })
    }

    /// Whether it executes WQEs.
    pub fn state(&self) -> SqState {
        self.state
    }

    /// Changes the state; `restart` begins anew, as reset does.
    pub fn set_state(&mut self, state: SqState, restart: bool, cq: &mut Cq) {
        if restart {
            self.head = 0;
            self.producer = 0;
        }
        self.state = state;
        if state == SqState::Error {
            self.flush(cq);
        }
    }

    /// Whether nothing is posted.
    #[inline]
    pub fn is_idle(&mut self) -> bool {
        if self.producer == self.head {
            self.producer = self.record.load(PRODUCER) as u16;
        }
        self.producer == self.head
    }

    /// A 16-byte unit of a WQE; `at` is a multiple of that.
    #[inline]
    fn unit(&self, at: usize) -> [u8; UNIT] {
        let words = self.ring.at(at & !(UNIT - 1)).cast::<u64>();
        // SAFETY: the address leads into the ring wherever it points, aligned, and a ring is a multiple
        // of 16 bytes long; volatile because the user owns what is not posted, and nothing that is read
        // is trusted.
        let [low, high] = unsafe { [words.read_volatile(), words.add(1).read_volatile()] };
        let mut unit = [0; UNIT];
        unit[..8].copy_from_slice(&low.to_ne_bytes());
        unit[8..].copy_from_slice(&high.to_ne_bytes());
        unit
    }

    fn start(&self, head: u16) -> usize {
        (u32::from(head) & (self.blocks - 1)) as usize * BLOCK
    }

    /// Control segment (`mlx5_wqe_ctrl_seg`): opcode, size in units, completion mode.
    fn control(&self, at: usize) -> (u8, usize, u8) {
        let unit = self.unit(at);
        let size = unit[offset_of!(mlx5_wqe_ctrl_seg, qpn_ds) + 3] & 0x3f;
        let mode = unit[offset_of!(mlx5_wqe_ctrl_seg, fm_ce_se)];
        (unit[3], usize::from(size), mode)
    }

    /// Executes the next WQE, if the queue runs and one is posted. Its frame is left in `frame`.
    pub fn next(&mut self, regions: &Regions, frame: &mut Vec<u8>) -> Option<Posted> {
        if self.state != SqState::Ready || self.is_idle() {
            return None;
        }
        let at = self.start(self.head);
        let (opcode, units, mode) = self.control(at);
        let result = match u32::from(opcode) {
            abi::MLX5_OPCODE_NOP => Ok(false),
            abi::MLX5_OPCODE_SEND => self.gather(regions, at, units, frame).map(|()| true),
            _ => Err(Failure::BAD_WQE),
        };
        let complete = self.signal_all || mode & ALWAYS_COMPLETE == ALWAYS_COMPLETE;
        let posted = Posted {
            counter: self.head,
            opcode,
            complete,
            result,
        };
        self.advance(units);
        Some(posted)
    }

    fn advance(&mut self, units: usize) {
        let blocks = (units * UNIT).div_ceil(BLOCK).max(1);
        self.head = self.head.wrapping_add(blocks as u16);
    }

    /// Completes an executed WQE.
    pub fn complete(&mut self, posted: &Posted, cq: &mut Cq, timestamp: u64, byte_count: u32) {
        match posted.result {
            Ok(_) if posted.complete => {
                cq.push(&Cqe::sent(
                    self.uidx,
                    posted.counter,
                    timestamp,
                    posted.opcode,
                    self.qpn,
                    byte_count,
                ));
                if cq.is_dead() {
                    self.fail(cq);
                }
            }
            Ok(_) => {}
            Err(failure) => {
                cq.push_failed(&Cqe::failed(
                    self.uidx,
                    posted.counter,
                    failure,
                    Some(posted.opcode),
                    self.qpn,
                ));
                self.fail(cq);
            }
        }
    }

    fn fail(&mut self, cq: &mut Cq) {
        if self.state == SqState::Ready {
            self.set_state(SqState::Error, false, cq);
            self.events.raise(AsyncEvent::QpFatal);
        }
    }

    /// Completes every posted WQE with a flush error, in order.
    pub fn flush(&mut self, cq: &mut Cq) {
        // A producer index that is nonsense ends after one round.
        let mut rounds = self.blocks;
        while self.state == SqState::Error && !cq.is_dead() && !self.is_idle() && rounds > 0 {
            let (opcode, units, _) = self.control(self.start(self.head));
            cq.push_failed(&Cqe::failed(
                self.uidx,
                self.head,
                Failure::FLUSHED,
                Some(opcode),
                self.qpn,
            ));
            self.advance(units);
            rounds -= 1;
        }
    }

    /// Puts a frame together from a send WQE's inline header, inline data and gathered buffers.
    fn gather(
        &self,
        regions: &Regions,
        at: usize,
        units: usize,
        frame: &mut Vec<u8>,
    ) -> Result<(), Failure> {
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
        while used < units {
            used += self.gather_one(regions, at + used * UNIT, frame)?;
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
        // An Ethernet header is the least that can be sent.
        if frame.len() < 14 {
            Err(Failure::TOO_LONG)
        } else {
            Ok(())
        }
    }

    /// Appends what one data segment says; gives the units it took.
    fn gather_one(
        &self,
        regions: &Regions,
        at: usize,
        frame: &mut Vec<u8>,
    ) -> Result<usize, Failure> {
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
            return Err(Failure::TOO_LONG);
        }
        let from = regions
            .resolve(lkey, self.pd, addr, len as u64, Access::Read)
            .ok_or(Failure::PROTECTION)?;
        // SAFETY: `resolve` has checked that `len` bytes at `from` belong to a region that the queue may
        // read; the program promised not to change them until the WQE completes.
        frame.extend_from_slice(unsafe { std::slice::from_raw_parts(from, len) });
        Ok(1)
    }

    /// Inline bytes wrap at the end of the ring.
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

fn insert_tag(frame: &mut Vec<u8>, service: bool, tci: u16) -> Result<(), Failure> {
    if frame.len() < 12 {
        return Err(Failure::BAD_WQE);
    }
    let tpid = if service { 0x88a8u16 } else { 0x8100 };
    let [a, b] = tpid.to_be_bytes();
    let [c, d] = tci.to_be_bytes();
    frame.splice(12..12, [a, b, c, d]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::event::EventChannel;
    use std::sync::Arc;

    struct Bench {
        memory: Vec<u64>,
        regions: Regions,
        lkey: u32,
        cq: Cq,
        sq: Sq,
        _channel: Arc<EventChannel>,
    }

    const RING: usize = 0;
    const CQ: usize = 4096;
    const RECORDS: usize = 8192;
    const DATA: usize = 12288;

    impl Bench {
        fn new() -> Self {
            let memory = vec![0u64; 4096];
            let base = (memory.as_ptr() as u64).next_multiple_of(64);
            let mut regions = Regions::default();
            let data = base + DATA as u64;
            let lkey = regions.register(1, 0, data, 4096, data).unwrap().lkey;
            let channel = EventChannel::asynchronous().unwrap();
            let source = || AsyncSource::new(&channel, 77);
            let records = base + RECORDS as u64;
            let mut cq = Cq::new(base + CQ as u64, records, 4, 64, false, source()).unwrap();
            let mut sq = Sq::new(base, records + 64, 4, 0, 1, 0x33, source()).unwrap();
            sq.set_state(SqState::Ready, true, &mut cq);
            Self {
                memory,
                regions,
                lkey,
                cq,
                sq,
                _channel: channel,
            }
        }
        fn base(&self) -> usize {
            (self.memory.as_ptr() as usize).next_multiple_of(64)
        }
        fn store(&mut self, at: usize, bytes: &[u8]) {
            for (i, byte) in bytes.iter().enumerate() {
                // SAFETY: within the memory.
                unsafe { ((self.base() + at + i) as *mut u8).write_volatile(*byte) };
            }
        }
        fn cqe(&mut self, index: usize, at: usize) -> u8 {
            self.cq.tend(0);
            // SAFETY: within the memory.
            unsafe { ((self.base() + CQ + index * 64 + at) as *const u8).read_volatile() }
        }
        /// Stores a WQE of these 16-byte units behind a control segment, and rings for `blocks` more.
        fn post(&mut self, head: u16, opcode: u8, units: &[[u8; 16]], blocks: u16) {
            let mut bytes = vec![
                0,
                0,
                0,
                opcode,
                0,
                0,
                0,
                units.len() as u8 + 1,
                0,
                0,
                0,
                8,
                0,
                0,
                0,
                0,
            ];
            bytes.extend(units.iter().flatten());
            let start = self.sq.start(head);
            for (i, byte) in bytes.iter().enumerate() {
                let at = (start + i) % 256;
                self.store(RING + at, &[*byte]);
            }
            self.store(
                RECORDS + 68,
                &u32::from(head.wrapping_add(blocks)).to_be_bytes(),
            );
        }
        fn eth(inline: u16, start: [u8; 2]) -> [u8; 16] {
            let mut unit = [0; 16];
            unit[12..14].copy_from_slice(&inline.to_be_bytes());
            unit[14..].copy_from_slice(&start);
            unit
        }
        fn data(&self, lkey: u32, at: usize, len: u32) -> [u8; 16] {
            let addr = (self.base() + DATA + at) as u64;
            let bytes = [
                &len.to_be_bytes()[..],
                &lkey.to_be_bytes(),
                &addr.to_be_bytes(),
            ]
            .concat();
            bytes.try_into().unwrap()
        }
        fn run(&mut self) -> Option<Vec<u8>> {
            let mut frame = vec![];
            let posted = self.sq.next(&self.regions, &mut frame)?;
            self.sq
                .complete(&posted, &mut self.cq, 5, frame.len() as u32);
            posted.has_frame().then_some(frame)
        }
    }

    #[test]
    fn inline_header_inline_data_and_buffers_join() {
        let mut bench = Bench::new();
        bench.store(DATA, &[9; 32]);
        // 18 bytes of header: 2 in the segment, 16 behind it; then 5 inline, then gathered.
        let mut inline = [0u8; 16];
        inline[..4].copy_from_slice(&(abi::MLX5_INLINE_SEG | 5).to_be_bytes());
        inline[4..9].copy_from_slice(&[5; 5]);
        let gathered = bench.data(bench.lkey, 0, 32);
        bench.post(
            0,
            abi::MLX5_OPCODE_SEND as u8,
            &[Bench::eth(18, [1, 2]), [3; 16], inline, gathered],
            2,
        );
        let frame = bench.run().unwrap();
        assert_eq!(frame[..2], [1, 2]);
        assert_eq!(frame[2..18], [3; 16]);
        assert_eq!(frame[18..23], [5; 5]);
        assert_eq!(frame[23..], [9; 32]);
        assert_eq!(
            (bench.cqe(0, 63), bench.cqe(0, 56), bench.cqe(0, 61)),
            (0, 0x0a, 0)
        );
        assert!(bench.run().is_none());
        // Wraps at the ring's end: blocks 2, 3, 0.
        let units = [
            Bench::eth(0, [0; 2]),
            gathered,
            gathered,
            gathered,
            gathered,
            gathered,
            gathered,
            gathered,
        ];
        bench.post(2, abi::MLX5_OPCODE_SEND as u8, &units, 3);
        assert_eq!(bench.run().unwrap().len(), 7 * 32);
        assert_eq!(bench.cqe(1, 61), 2);
    }

    #[test]
    fn a_tag_is_inserted_behind_the_addresses() {
        let mut bench = Bench::new();
        let data: Vec<u8> = (0..20).collect();
        bench.store(DATA, &data);
        let gathered = bench.data(bench.lkey, 0, 20);
        bench.post(
            0,
            0x0a,
            &[Bench::eth(INSERT_VLAN, [0x20, 0x64]), gathered],
            1,
        );
        let frame = bench.run().unwrap();
        assert_eq!(frame[..12], data[..12]);
        assert_eq!(frame[12..16], [0x81, 0, 0x20, 0x64]);
        assert_eq!(frame[16..], data[12..]);
    }

    #[test]
    fn a_bad_wqe_stops_the_queue_and_the_rest_is_flushed() {
        for (opcode, lkey_error, syndrome) in [(0x0a, 1, 4), (0x08, 0, 2)] {
            let mut bench = Bench::new();
            let bad = bench.data(bench.lkey ^ lkey_error, 0, 32);
            bench.post(1, 0x0a, &[Bench::eth(0, [0; 2]), bad], 1);
            bench.post(0, opcode, &[Bench::eth(0, [0; 2]), bad], 2);
            assert!(bench.run().is_none());
            assert_eq!((bench.cqe(0, 55), bench.cqe(0, 63) >> 4), (syndrome, 13));
            assert_eq!((bench.cqe(1, 55), bench.cqe(1, 61)), (5, 1));
            assert_eq!(bench.sq.state(), SqState::Error);
            assert_eq!(bench.sq.events.finish(), 0, "told, not yet read");
        }
    }

    #[test]
    fn any_wqe_at_all_is_survived() {
        let mut bench = Bench::new();
        let mut seed = 1u32;
        for head in 0..2000u16 {
            let units: Vec<[u8; 16]> = (0..head % 9)
                .map(|_| {
                    std::array::from_fn(|_| {
                        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        (seed >> 24) as u8
                    })
                })
                .collect();
            let mut cq_consumed = u32::from(head).to_be_bytes();
            cq_consumed[0] = 0;
            bench.store(RECORDS, &cq_consumed);
            let now = bench.sq.head;
            bench.post(now, 0x0a, &units, 1);
            bench.sq.state = SqState::Ready;
            bench.run();
        }
    }
}
