//! Receive queues: of a WQ, and of a RAW_PACKET QP.
//!
//! May import `abi`, `cq`, `event`, `frame`, `memory`, `objects`. Invariants: WQEs are consumed in the
//! order they were posted, each exactly once, each with exactly one CQE; nothing is written past a
//! scatter entry, outside a region, or through a key the queue's protection domain does not hold; the
//! producer index is re-read only when what is known to be posted is used up.

#![allow(unsafe_code)]

use crate::abi;
use crate::device::clock::Now;
use crate::device::cq::{Cq, Cqe, Failure, RxInfo, prefetch, prefetch_for_write};
use crate::device::event::{AsyncEvent, AsyncSource};
use crate::device::memory::{Access, DoorbellRecord, Regions, Ring, copy_frame};
use crate::frame::Arrival;
use crate::objects::Index;
use crate::process::Errno;

/// The receive word of a doorbell record.
const PRODUCER: usize = abi::MLX5_RCV_DBR as usize;
/// A scatter entry (`mlx5_wqe_data_seg`): byte count, lkey, address, all big-endian.
const SEGMENT: usize = size_of::<abi::mlx5_wqe_data_seg>();
/// The largest WQE (`max_rq_desc_sz`).
pub const MAX_WQE: u32 = 512;
/// WQEs ahead whose first buffer is fetched for writing.
const PREFETCH: u16 = 16;
/// WQEs ahead that are fetched themselves.
const PREFETCH_WQE: u16 = 32;
/// A protection domain that does not exist: there are never so many.
const NO_PD: Index = Index::MAX;

/// Whether the queue takes frames (`enum ib_wq_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RqState {
    /// Frames are dropped, WQEs are not looked at.
    Reset,
    /// Frames consume WQEs.
    Ready,
    /// WQEs are flushed as they come.
    Error,
}

/// Whose queue it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RqOwner {
    /// A WQ's, which the program has a handle for.
    Wq,
    /// A RAW_PACKET QP's.
    Qp,
}

/// How a queue is laid out in user memory.
#[derive(Debug, Clone, Copy)]
pub struct RqLayout {
    /// Where the ring begins.
    pub ring: u64,
    /// Where its doorbell record is.
    pub record: u64,
    /// WQEs, a power of two.
    pub count: u32,
    /// Base-2 logarithm of a WQE's size.
    pub shift: u32,
    /// Whether each WQE begins with a signature (`MLX5_WQ_FLAG_SIGNATURE`).
    pub signature: bool,
}

/// What a queue does to frames.
#[derive(Debug, Clone, Copy, Default)]
pub struct RqFeatures {
    /// The C-VLAN tag is taken out (`CVLAN_STRIPPING`).
    pub strip_cvlan: bool,
    /// The FCS is delivered behind the frame (`SCATTER_FCS`).
    pub scatter_fcs: bool,
    /// A frame without a WQE holds the wire (`DELAY_DROP`).
    pub delay_drop: bool,
}

/// What a frame is to find before it is delivered anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// There is a WQE and room in the CQ.
    Enough,
    /// No WQE is posted.
    NoWqe,
    /// The CQ is full.
    CqFull,
    /// The queue is in reset, or failed.
    NotReady,
}

/// A receive queue.
pub struct Rq {
    ring: Ring,
    record: DoorbellRecord,
    mask: u16,
    shift: u32,
    first_segment: usize,
    segments: usize,
    /// The next WQE to consume, and how far the user had posted at the last look.
    head: u16,
    producer: u16,
    state: RqState,
    /// What it does to frames.
    pub features: RqFeatures,
    /// Where it completes.
    pub cq: Index,
    /// Whose memory it may write.
    pub pd: Index,
    /// The domain its keys are held to: `pd`, unless a fault has taken them away.
    keys_of: Index,
    /// Which WQ of the device it is, counted from 0 as they were created.
    pub serial: u32,
    /// `srqn_uidx` of its CQEs.
    pub uidx: u32,
    /// Whose it is.
    pub owner: RqOwner,
    /// Where its failures go.
    pub events: AsyncSource,
    /// Indirection tables it stands in.
    pub users: u32,
    /// The next frame's FCS is a wrong one.
    damaged: bool,
}

impl Rq {
    /// A queue in reset.
    ///
    /// # Errors
    /// `EINVAL` for a layout that is none, or as [`Ring::new`].
    pub fn new(
        layout: &RqLayout,
        cq: Index,
        pd: Index,
        uidx: u32,
        owner: RqOwner,
        events: AsyncSource,
    ) -> Result<Self, Errno> {
        let shift_fits =
            (SEGMENT.trailing_zeros()..=MAX_WQE.trailing_zeros()).contains(&layout.shift);
        if !layout.count.is_power_of_two() || layout.count > 1 << 15 || !shift_fits {
            return Err(libc::EINVAL);
        }
        let first_segment = usize::from(layout.signature);
        let segments = (1usize << layout.shift) / SEGMENT;
        if segments <= first_segment {
            return Err(libc::EINVAL);
        }
        Ok(Self {
            ring: Ring::new(layout.ring, u64::from(layout.count) << layout.shift)?,
            record: DoorbellRecord::new(layout.record)?,
            mask: (layout.count - 1) as u16,
            shift: layout.shift,
            first_segment,
            segments: segments - first_segment,
            head: 0,
            producer: 0,
            state: RqState::Reset,
            features: RqFeatures::default(),
            cq,
            pd,
            keys_of: pd,
            serial: 0,
            uidx,
            owner,
            events,
            users: 0,
            damaged: false,
        })
    }

    /// Whether it takes frames.
    pub fn state(&self) -> RqState {
        self.state
    }

    /// Changes the state. From reset it begins anew; into error it flushes what is posted.
    pub fn set_state(&mut self, state: RqState, cq: &mut Cq) {
        if state == RqState::Reset || self.state == RqState::Reset {
            self.head = 0;
            self.producer = 0;
            self.keys_of = self.pd;
        }
        self.state = state;
        if state == RqState::Error {
            self.flush(cq);
        }
    }

    #[inline]
    fn posted(&self) -> u16 {
        self.producer.wrapping_sub(self.head)
    }

    /// Whether `frames` frames in a row can be delivered, with `cqes` CQEs in the CQ that others may
    /// share.
    #[inline(always)]
    pub fn room(&mut self, cq: &mut Cq, frames: u16, cqes: u32) -> Room {
        if self.state != RqState::Ready {
            return Room::NotReady;
        }
        if self.posted() < frames {
            self.producer = self.record.load(PRODUCER) as u16;
            if self.posted() < frames {
                return Room::NoWqe;
            }
        }
        if cq.has_room(cqes) {
            Room::Enough
        } else {
            Room::CqFull
        }
    }

    /// Completes every posted WQE with a flush error, in order. What is posted later is flushed by the
    /// next call.
    pub fn flush(&mut self, cq: &mut Cq) {
        if self.state != RqState::Error || cq.is_dead() {
            return;
        }
        self.producer = self.record.load(PRODUCER) as u16;
        while self.posted() > 0 {
            cq.push_failed(&Cqe::failed(
                self.uidx,
                self.head,
                Failure::FLUSHED,
                None,
                0,
            ));
            if cq.is_dead() {
                return;
            }
            self.head = self.head.wrapping_add(1);
        }
    }

    /// The queue goes into error, and its program is told.
    pub fn fail(&mut self, cq: &mut Cq) {
        if self.state != RqState::Ready {
            return;
        }
        self.set_state(RqState::Error, cq);
        self.events.raise(match self.owner {
            RqOwner::Wq => AsyncEvent::WqFatal,
            RqOwner::Qp => AsyncEvent::QpFatal,
        });
    }

    /// No key is good for the queue any more, until it is reset: its next frame meets a protection error.
    pub fn lose_keys(&mut self) {
        self.keys_of = NO_PD;
    }

    /// The next frame comes with an FCS that is not its own.
    pub fn damage_next(&mut self) {
        self.damaged = true;
    }

    /// Delivers a frame into the next WQE; [`Rq::room`] has said that there is one. `info` holds the
    /// hash and the flow tag.
    ///
    /// Inlined, as is all it calls for an ordinary frame: what passes between the steps then stays in
    /// registers. Stored and loaded again in another width it would wait for the stores before it, and
    /// those wait for the cache lines that the program's core just had.
    #[inline(always)]
    pub fn deliver(
        &mut self,
        cq: &mut Cq,
        regions: &Regions,
        frame: &Arrival<'_>,
        now: &Now,
        mut info: RxInfo,
    ) {
        let wqe = self.wqe(0);
        let counter = self.head;
        self.head = self.head.wrapping_add(1);
        self.prefetch();

        info.headers = frame.header_types();
        let cvlan = frame.cvlan();
        info.vlan = cvlan.unwrap_or(0);
        if self.owner == RqOwner::Qp {
            // Only a QP's completions show them through verbs, and summing whole frames costs more
            // than all the rest.
            info.checks = frame.checks();
        }
        let strip = self.features.strip_cvlan && cvlan.is_some();
        let scattered = if strip || self.features.scatter_fcs {
            info.headers |= u8::from(strip);
            self.scatter_changed(regions, wqe, frame, strip)
        } else {
            self.scatter_whole(regions, wqe, frame.bytes)
        };
        match scattered {
            Ok(byte_count) => {
                info.byte_count = byte_count;
                let timestamp = if cq.real_time {
                    real_time(frame.now_ns)
                } else {
                    now.cycles(frame.now_ns)
                };
                cq.push(&Cqe::received(self.uidx, counter, timestamp, &info));
            }
            Err(failure) => self.refuse(cq, counter, failure),
        }
        if cq.is_dead() {
            self.fail(cq);
        }
    }

    /// Completes a WQE that its frame did not fit.
    #[cold]
    fn refuse(&mut self, cq: &mut Cq, counter: u16, failure: Failure) {
        cq.push_failed(&Cqe::failed(self.uidx, counter, failure, None, 0));
        if failure.syndrome != Failure::TOO_LONG.syndrome {
            self.fail(cq);
        }
    }

    /// WQEs to come, and their buffers, are in another core's cache, where the program had them last.
    #[inline(always)]
    fn prefetch(&self) {
        let posted = self.posted();
        if posted > PREFETCH {
            let (_, _, addr) = self.segment(self.wqe(PREFETCH - 1), 0);
            prefetch_for_write(addr as *const u8);
        }
        if posted > PREFETCH_WQE {
            prefetch(self.ring.at(self.wqe(PREFETCH_WQE - 1)));
        }
    }

    /// Where in the ring the WQE `ahead` of the next one begins.
    #[inline(always)]
    fn wqe(&self, ahead: u16) -> usize {
        usize::from(self.head.wrapping_add(ahead) & self.mask) << self.shift
    }

    /// Frames that are delivered otherwise than they came. Gives the number of bytes delivered.
    #[cold]
    fn scatter_changed(
        &mut self,
        regions: &Regions,
        wqe: usize,
        frame: &Arrival<'_>,
        strip: bool,
    ) -> Result<u32, Failure> {
        // Between the addresses and the EtherType lie the tag's four bytes.
        let (head, tail) = frame.bytes.split_at(frame.bytes.len().min(12));
        let tail = if strip {
            tail.get(4..).unwrap_or(&[])
        } else {
            tail
        };
        let mut fcs = frame.fcs();
        if self.features.scatter_fcs && std::mem::take(&mut self.damaged) {
            fcs[0] ^= 0xff;
        }
        let fcs = if self.features.scatter_fcs {
            &fcs[..]
        } else {
            &[]
        };
        self.scatter(regions, wqe, &[head, tail, fcs])
    }

    /// Frames that are delivered as they came: nearly always into one buffer.
    #[inline(always)]
    fn scatter_whole(&self, regions: &Regions, wqe: usize, bytes: &[u8]) -> Result<u32, Failure> {
        let (to, room) = self.buffer(regions, wqe, 0, bytes.len())?;
        if room < bytes.len() {
            return self.scatter(regions, wqe, &[bytes]);
        }
        // SAFETY: `buffer` has checked that `room` bytes at `to` belong to a region that the queue may
        // write, and the frame is no longer; the user may race, which is its own affair.
        unsafe { copy_frame(bytes, to) };
        Ok(bytes.len() as u32)
    }

    /// Entry `index` of a WQE's scatter list: bytes, lkey, address.
    #[inline(always)]
    fn segment(&self, wqe: usize, index: usize) -> (u32, u32, u64) {
        let at = self
            .ring
            .at(wqe + (self.first_segment + index) * SEGMENT)
            .cast::<u64>();
        // SAFETY: the 16 bytes lie in the ring, aligned; volatile because the user may be writing a WQE
        // it has not posted, and whatever is read is checked before use.
        let (head, addr) = unsafe { (at.read_volatile(), at.add(1).read_volatile()) };
        let head = u64::from_be(head);
        ((head >> 32) as u32, head as u32, u64::from_be(addr))
    }

    /// Writes `pieces`, one after the other, into the WQE's buffers.
    #[cold]
    fn scatter(&self, regions: &Regions, wqe: usize, pieces: &[&[u8]]) -> Result<u32, Failure> {
        let total: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut left = total;
        let mut index = 0;
        let mut room = 0;
        let mut to = std::ptr::null_mut::<u8>();
        for piece in pieces {
            let mut piece = *piece;
            while !piece.is_empty() {
                if room == 0 {
                    (to, room) = self.buffer(regions, wqe, index, left)?;
                    index += 1;
                }
                let len = piece.len().min(room);
                // SAFETY: `buffer` has checked that `room` bytes at `to` belong to a region that the
                // queue may write, and `len` is no more; the user may race, which is its own affair.
                unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), to, len) };
                to = to.wrapping_add(len);
                room -= len;
                left -= len;
                piece = &piece[len..];
            }
        }
        Ok(total as u32)
    }

    /// Where entry `index` of a WQE leads, and how many of the `left` bytes go there.
    #[inline(always)]
    fn buffer(
        &self,
        regions: &Regions,
        wqe: usize,
        index: usize,
        left: usize,
    ) -> Result<(*mut u8, usize), Failure> {
        if index >= self.segments {
            return Err(Failure::TOO_LONG);
        }
        let (bytes, lkey, addr) = self.segment(wqe, index);
        if bytes == 0 && lkey == abi::MLX5_INVALID_LKEY {
            return Err(Failure::TOO_LONG);
        }
        // PRM "WQE data segment": 31 bits, and zero means all of them.
        let bytes = if bytes & 0x7fff_ffff == 0 {
            1 << 31
        } else {
            (bytes & 0x7fff_ffff) as usize
        };
        let len = bytes.min(left);
        let to = regions
            .resolve(lkey, self.keys_of, addr, len as u64, Access::Write)
            .ok_or(Failure::PROTECTION)?;
        Ok((to, len))
    }
}

/// A UTC timestamp as real-time CQEs carry it (PRM "Real time clock"): seconds in the upper half,
/// nanoseconds in the lower.
fn real_time(ns: u64) -> u64 {
    ((ns / 1_000_000_000) << 32) | (ns % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::event::EventChannel;
    use crate::process::descriptors::File;
    use std::sync::Arc;

    /// A queue with everything it needs in user memory.
    struct Bench {
        memory: Vec<u64>,
        regions: Regions,
        lkey: u32,
        cq: Cq,
        rq: Rq,
        channel: Arc<EventChannel>,
    }

    const RING: usize = 0;
    const CQ: usize = 4096;
    const RECORDS: usize = 8192;
    const DATA: usize = 12288;

    impl Bench {
        fn new(shift: u32, features: RqFeatures) -> Self {
            let memory = vec![0u64; 4096];
            let base = (memory.as_ptr() as u64).next_multiple_of(64);
            let mut regions = Regions::default();
            let data = base + DATA as u64;
            let lkey = regions
                .register(1, abi::IB_UVERBS_ACCESS_LOCAL_WRITE, data, 4096, data)
                .unwrap()
                .lkey;
            let channel = EventChannel::asynchronous().unwrap();
            let source = || AsyncSource::new(&channel, 77);
            let records = base + RECORDS as u64;
            let cq = Cq::new(base + CQ as u64, records, 4, 64, false, source()).unwrap();
            let layout = RqLayout {
                ring: base + RING as u64,
                record: records + 64,
                count: 8,
                shift,
                signature: false,
            };
            let mut rq = Rq::new(&layout, 0, 1, 0x55, RqOwner::Wq, source()).unwrap();
            rq.features = features;
            let mut bench = Self {
                memory,
                regions,
                lkey,
                cq,
                rq,
                channel,
            };
            bench.rq.set_state(RqState::Ready, &mut bench.cq);
            bench
        }

        fn base(&self) -> usize {
            (self.memory.as_ptr() as usize).next_multiple_of(64)
        }

        fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
            // SAFETY: within the memory.
            (0..len)
                .map(|i| unsafe { ((self.base() + at + i) as *const u8).read_volatile() })
                .collect()
        }

        fn store(&mut self, at: usize, bytes: &[u8]) {
            for (i, byte) in bytes.iter().enumerate() {
                // SAFETY: within the memory.
                unsafe { ((self.base() + at + i) as *mut u8).write_volatile(*byte) };
            }
        }

        /// Posts a WQE with these buffers, as offset into the data and length.
        fn post(&mut self, index: u16, lkey: u32, buffers: &[(usize, u32)]) {
            let stride = 1usize << self.rq.shift;
            for slot in 0..stride / 16 {
                let (len, lkey, addr) = match buffers.get(slot) {
                    Some(&(at, len)) => (len, lkey, (self.base() + DATA + at) as u64),
                    None => (0, abi::MLX5_INVALID_LKEY, 0),
                };
                let segment = [
                    &len.to_be_bytes()[..],
                    &lkey.to_be_bytes(),
                    &addr.to_be_bytes(),
                ]
                .concat();
                self.store(RING + usize::from(index % 8) * stride + slot * 16, &segment);
            }
            self.store(
                RECORDS + 64,
                &u32::from(index.wrapping_add(1)).to_be_bytes(),
            );
        }

        fn receive(&mut self, bytes: &[u8]) -> Room {
            let room = self.rq.room(&mut self.cq, 1, 1);
            if room == Room::Enough {
                let class = wqcap_rss::FrameClass::of(bytes);
                let frame = Arrival::new(bytes, &class, 42);
                self.rq.deliver(
                    &mut self.cq,
                    &self.regions,
                    &frame,
                    &Now {
                        ns: 42,
                        shown_ns: 42,
                        khz: 1_000_000,
                    },
                    RxInfo::default(),
                );
            }
            room
        }

        fn cqe(&mut self, index: usize) -> Vec<u8> {
            self.cq.tend(0);
            self.bytes(CQ + index * 64, 64)
        }

        fn event(&self) -> Option<u8> {
            let mut poll = libc::pollfd {
                fd: self.channel.fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one pollfd.
            let ready = unsafe { libc::poll(&mut poll, 1, 0) } == 1;
            let mut event = [0; 16];
            ready.then(|| {
                self.channel
                    .read(self.channel.fd(), &mut event)
                    .map(|_| event[8])
                    .unwrap()
            })
        }
    }

    #[test]
    fn a_frame_is_scattered_over_several_buffers() {
        let mut bench = Bench::new(6, RqFeatures::default());
        bench.post(0, bench.lkey, &[(0, 10), (100, 10), (200, 100)]);
        let frame: Vec<u8> = (0..50).collect();
        assert_eq!(bench.receive(&frame), Room::Enough);
        assert_eq!(bench.bytes(DATA, 10), frame[..10]);
        assert_eq!(bench.bytes(DATA + 10, 1), [0]);
        assert_eq!(bench.bytes(DATA + 100, 10), frame[10..20]);
        assert_eq!(bench.bytes(DATA + 200, 30), frame[20..]);
        let cqe = bench.cqe(0);
        assert_eq!(cqe[44..48], 50u32.to_be_bytes());
        assert_eq!((cqe[35], cqe[55], cqe[63]), (0x55, 42, 0x20));
        assert_eq!(bench.receive(&frame), Room::NoWqe);
    }

    #[test]
    fn too_long_costs_the_wqe_and_nothing_else() {
        let mut bench = Bench::new(5, RqFeatures::default());
        bench.post(0, bench.lkey, &[(0, 20)]);
        bench.post(1, bench.lkey, &[(100, 20), (200, 20)]);
        assert_eq!(bench.receive(&[1; 21]), Room::Enough);
        assert_eq!(bench.receive(&[2; 40]), Room::Enough);
        let (first, second) = (bench.cqe(0), bench.cqe(1));
        assert_eq!(
            (first[55], first[63] >> 4),
            (1, abi::MLX5_CQE_RESP_ERR as u8)
        );
        assert_eq!((second[61], second[63]), (1, 0x20));
        assert_eq!(bench.rq.state(), RqState::Ready);
        assert_eq!(bench.event(), None);
    }

    #[test]
    fn a_bad_key_fails_the_queue_and_flushes_the_rest_in_order() {
        let mut bench = Bench::new(4, RqFeatures::default());
        bench.post(0, bench.lkey ^ 1, &[(0, 100)]);
        bench.post(1, bench.lkey, &[(0, 100)]);
        bench.post(2, bench.lkey, &[(0, 100)]);
        assert_eq!(bench.receive(&[9; 30]), Room::Enough);
        assert_eq!(bench.bytes(DATA, 1), [0]);
        let syndromes: Vec<_> = (0..3)
            .map(|i| (bench.cqe(i)[61], bench.cqe(i)[55]))
            .collect();
        assert_eq!(syndromes, [(0, 4), (1, 5), (2, 5)]);
        assert_eq!(bench.rq.state(), RqState::Error);
        assert_eq!(bench.event(), Some(AsyncEvent::WqFatal as u8));
        assert_eq!(bench.receive(&[9; 30]), Room::NotReady);
        bench.post(3, bench.lkey, &[(0, 100)]);
        bench.rq.flush(&mut bench.cq);
        assert_eq!((bench.cqe(3)[61], bench.cqe(3)[55]), (3, 5));
    }

    #[test]
    fn a_damaged_frame_is_the_next_one_alone() {
        let features = RqFeatures {
            scatter_fcs: true,
            ..RqFeatures::default()
        };
        let mut bench = Bench::new(4, features);
        bench.post(0, bench.lkey, &[(0, 100)]);
        bench.post(1, bench.lkey, &[(200, 100)]);
        bench.rq.damage_next();
        let frame = [5; 60];
        let fcs = crate::frame::crc32(&frame).to_le_bytes();
        for (at, right) in [(DATA, false), (DATA + 200, true)] {
            assert_eq!(bench.receive(&frame), Room::Enough);
            assert_eq!(bench.bytes(at, 60), frame);
            assert_eq!(bench.bytes(at + 60, 4) == fcs, right);
        }
    }

    #[test]
    fn a_tag_is_taken_out_and_the_fcs_put_behind() {
        let features = RqFeatures {
            strip_cvlan: true,
            scatter_fcs: true,
            delay_drop: false,
        };
        let mut bench = Bench::new(4, features);
        bench.post(0, bench.lkey, &[(0, 100)]);
        let mut frame: Vec<u8> = (0..12).collect();
        frame.extend([0x81, 0x00, 0x20, 0x64, 0x12, 0x34, 7, 8, 9]);
        assert_eq!(bench.receive(&frame), Room::Enough);
        let fcs = crate::frame::crc32(&frame).to_le_bytes();
        let mut expected: Vec<u8> = (0..12).collect();
        expected.extend([0x12, 0x34, 7, 8, 9]);
        expected.extend(fcs);
        assert_eq!(bench.bytes(DATA, expected.len()), expected);
        let cqe = bench.cqe(0);
        assert_eq!(cqe[29] & 1, 1, "cv");
        assert_eq!(cqe[30..32], [0x20, 0x64]);
        assert_eq!(cqe[47] as usize, expected.len());
    }

    #[test]
    fn indexes_wrap() {
        let mut bench = Bench::new(4, RqFeatures::default());
        for round in 0..70_000u32 {
            bench.post(round as u16, bench.lkey, &[(0, 100)]);
            bench.store(RECORDS, &round.to_be_bytes());
            assert_eq!(bench.receive(&[1; 14]), Room::Enough, "{round}");
        }
    }

    #[test]
    fn layouts_that_are_none_are_refused() {
        let channel = EventChannel::asynchronous().unwrap();
        for (count, shift) in [(0, 4), (3, 4), (1 << 16, 4), (8, 3), (8, 10), (8, 40)] {
            let layout = RqLayout {
                ring: 64,
                record: 64,
                count,
                shift,
                signature: false,
            };
            let source = AsyncSource::new(&channel, 1);
            assert_eq!(
                Rq::new(&layout, 0, 0, 0, RqOwner::Wq, source).map(drop),
                Err(libc::EINVAL)
            );
        }
    }
}
