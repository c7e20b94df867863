//! Receive queues, of WQs and of RAW_PACKET QPs.
//!
//! Imports `cq`, `event`, `frame`, `memory`, `scatter`, `strides` and the settings. Invariants: WQEs are consumed
//! in the order in which they were posted, each exactly once and with exactly one CQE. A WQE of a
//! striding queue has CQEs whose strides add up to its own, or a last one in error. The producer
//! index is read again only when the known WQEs are used up.

use crate::abi;
use crate::frame::ParsedFrame;
use crate::handles::Index;
use crate::process::Errno;

use super::clock::Now;
use super::cq::CqObject;
use super::cqe::{NicCqe, RxInfo, WqeError};
use super::event::{AsyncSource, NicEvent};
use super::memory::{DoorbellRecord, Regions};
use super::scatter::{RqLayout, ScatterRing};
use super::strides::{self, Strides, StridingCqes};
use crate::settings::WrongCqeField;

/// Index of the receive producer word in a work queue's doorbell record.
const PRODUCER: usize = abi::MLX5_RCV_DBR as usize;
/// Distance in WQEs at which a receive WQE's first buffer is prefetched for writing.
const PREFETCH: u16 = 16;
/// Distance in WQEs at which the receive WQE itself is prefetched.
const PREFETCH_WQE: u16 = 32;
/// Index of a protection domain that does not exist; real indexes are always lower.
const NO_PD: Index = Index::MAX;

/// State of a receive queue (`enum ib_wq_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RqState {
    /// Receive queue in reset: frames are dropped, WQEs are not read.
    Reset,
    /// Receive queue ready: frames consume WQEs.
    Ready,
    /// Receive queue in error: WQEs are flushed when they are posted.
    Error,
}

/// Verbs object to which a receive queue belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RqOwner {
    /// The receive queue is a WQ, for which the program has a handle.
    Wq,
    /// The receive queue belongs to a RAW_PACKET QP.
    Qp,
}

/// Changes that a receive queue makes to frames and their delivery.
#[derive(Debug, Clone, Copy, Default)]
pub struct RqFeatures {
    /// Removes the C-VLAN tag of received frames (`CVLAN_STRIPPING`).
    pub strip_cvlan: bool,
    /// Delivers the FCS behind each received frame (`SCATTER_FCS`).
    pub scatter_fcs: bool,
    /// Holds the wire for a received frame without a WQE (`DELAY_DROP`).
    pub delay_drop: bool,
}

/// Result of the check whether a receive queue can take a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Room for a frame: the receive queue has a WQE and its CQ has room.
    Enough,
    NoWqe,
    CqFull,
    /// No room for a frame: the receive queue is in reset or in error.
    NotReady,
    /// The frame is longer than the receive queue's next WQE and was dropped without a CQE.
    TooLong,
}

/// Receive queue of a WQ or a RAW_PACKET QP.
pub struct Rq {
    wqes: ScatterRing,
    /// Head WQE of a striding receive queue with its used strides; `None` for other queues.
    strides: Option<Strides>,
    record: DoorbellRecord,
    /// Counter of the next WQE that the receive queue consumes.
    head: u16,
    /// Producer counter of the receive queue when its doorbell record was last read.
    producer: u16,
    state: RqState,
    /// State of the receive queue in the driver's record, which only MODIFY_WQ updates
    /// (`mlx5_ib_modify_wq`).
    pub recorded: RqState,
    /// Number of the WQEs last posted to a receive queue in error that are consumed without a CQE.
    pub unflushed: u16,
    /// Set when the unflushed WQEs of a receive queue get their CQEs at its reset, before that
    /// command returns.
    pub flushes_at_reset: bool,
    /// Set when the receive queue drops a frame that is longer than its WQE, without a CQE. The
    /// kernel describes the counter of such frames (`rx_oversize_pkts_buffer` in
    /// Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst); that no WQE is
    /// consumed is inferred.
    pub drops_too_long: bool,
    pub features: RqFeatures,
    /// Deviations of a striding receive queue's CQEs from those that drivers expect.
    pub striding_cqes: StridingCqes,
    pub cq: Index,
    pub pd: Index,
    /// Protection domain that the receive queue's memory keys are checked against: `pd`, unless a
    /// fault has invalidated them.
    key_pd: Index,
    /// Number of the receive queue in the order of creation, from 0, by which faults name it; `None`
    /// for a QP of a device that has WQs.
    pub serial: Option<u32>,
    /// The program's index of the receive queue (`srqn_uidx` of its CQEs).
    pub uidx: u32,
    pub owner: RqOwner,
    pub events: AsyncSource,
    /// Set when the next frame that the receive queue takes must get a wrong FCS.
    damage_fcs: bool,
}

impl Rq {
    /// Creates a receive queue in reset. Fails as [`ScatterRing::new`] and [`DoorbellRecord::new`]
    /// do.
    pub fn new(
        layout: &RqLayout,
        cq: Index,
        pd: Index,
        uidx: u32,
        owner: RqOwner,
        events: AsyncSource,
    ) -> Result<Self, Errno> {
        Ok(Self {
            wqes: ScatterRing::new(layout)?,
            strides: layout.strides.map(Strides::new),
            record: DoorbellRecord::new(layout.record)?,
            head: 0,
            producer: 0,
            state: RqState::Reset,
            recorded: RqState::Reset,
            unflushed: 0,
            flushes_at_reset: false,
            drops_too_long: false,
            features: RqFeatures::default(),
            striding_cqes: StridingCqes::default(),
            cq,
            pd,
            key_pd: pd,
            serial: None,
            uidx,
            owner,
            events,
            damage_fcs: false,
        })
    }

    #[inline]
    pub fn state(&self) -> RqState {
        self.state
    }

    /// Changes the receive queue's state. Reset returns to the first WQE; error flushes the posted
    /// WQEs.
    pub fn set_state(&mut self, state: RqState, cq: &mut CqObject) {
        if state == RqState::Reset && self.flushes_at_reset {
            self.flush_except(0, cq);
        }
        if state == RqState::Reset || self.state == RqState::Reset {
            self.head = 0;
            self.producer = 0;
            self.key_pd = self.pd;
            if let Some(strides) = &mut self.strides {
                strides.restart();
            }
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

    /// Checks whether the receive queue can take `frames` copies of a frame, with `cqes` CQEs in a
    /// CQ that other queues may share.
    pub fn room(
        &mut self,
        cq: &mut CqObject,
        frame: &ParsedFrame<'_>,
        frames: u16,
        cqes: u32,
    ) -> Room {
        match &self.strides {
            Some(head) => {
                let count = head.strides_for(self.delivered_len(frame));
                self.room_in_strides(cq, count, frames, cqes)
            }
            None => self.room_for_frames(cq, frames, cqes),
        }
    }

    /// Makes the check of [`Rq::room`] for a receive queue whose WQEs take one frame each.
    #[inline(always)]
    fn room_for_frames(&mut self, cq: &mut CqObject, frames: u16, cqes: u32) -> Room {
        if self.state != RqState::Ready {
            return Room::NotReady;
        }
        if !self.has_posted(frames) {
            return Room::NoWqe;
        }
        if cq.has_room(cqes) {
            Room::Enough
        } else {
            Room::CqFull
        }
    }

    #[inline(always)]
    fn has_posted(&mut self, wqes: u16) -> bool {
        if self.posted() < wqes {
            self.producer = self.record.load(PRODUCER) as u16;
        }
        self.posted() >= wqes
    }

    /// Makes the check of [`Rq::room`] for a striding receive queue and frames of `count` strides
    /// each; `None`: the frame is longer than a WQE.
    #[inline(always)]
    fn room_in_strides(
        &mut self,
        cq: &mut CqObject,
        count: Option<u32>,
        frames: u16,
        cqes: u32,
    ) -> Room {
        if self.state != RqState::Ready {
            return Room::NotReady;
        }
        let left = self.strides.as_ref().map_or(0, Strides::left);
        let fits = frames == 1 && count.is_some_and(|it| it <= left);
        if fits && self.has_posted(1) && cq.has_room(cqes) {
            Room::Enough
        } else {
            self.room_beyond(cq, count, frames, cqes)
        }
    }

    /// Makes the check of [`Rq::room`] for a striding receive queue when the head WQE alone does
    /// not suffice. A WQE without room for the frame is closed by a filler CQE at once, even
    /// without a next WQE. No source states this, but a program with one WQE would wait forever for
    /// the missing strides.
    #[cold]
    fn room_beyond(
        &mut self,
        cq: &mut CqObject,
        count: Option<u32>,
        frames: u16,
        cqes: u32,
    ) -> Room {
        let Some(head) = self.strides else {
            return Room::NotReady;
        };
        if !self.has_posted(1) {
            return Room::NoWqe;
        }
        let wqes = match count {
            Some(count) if count > head.left() => {
                if !cq.has_room(1) {
                    return Room::CqFull;
                }
                self.push_filler(cq, head);
                Strides::new(head.layout()).wqes(frames.into(), count)
            }
            Some(count) => head.wqes(frames.into(), count),
            None => frames.into(),
        };
        if !self.has_posted(wqes as u16) {
            return Room::NoWqe;
        }
        // Each WQE behind the first may end with a filler.
        if cq.has_room(cqes + wqes - 1) {
            Room::Enough
        } else {
            Room::CqFull
        }
    }

    /// Consumes the rest of a striding receive queue's head WQE with a filler CQE.
    fn push_filler(&mut self, cq: &mut CqObject, head: Strides) {
        let byte_count = strides::FILLER | strides::byte_count(head.left(), 0);
        let counter = match self.striding_cqes.filler_counter_zero {
            true => 0,
            false => head.next(),
        };
        let cqe = NicCqe::received(self.uidx, counter, 0, &RxInfo::default());
        cq.push(&cqe.in_wqe(self.head, byte_count));
        self.finish_wqe();
    }

    /// Advances the receive queue to its next WQE.
    fn finish_wqe(&mut self) {
        self.head = self.head.wrapping_add(1);
        if let Some(head) = &mut self.strides {
            head.restart();
        }
    }

    /// Writes the error CQE of the head receive WQE. In a striding queue the CQE consumes the WQE's
    /// remaining strides, or only `own` strides if the device's error CQEs consume those of their
    /// frame alone. The queue leaves the WQE when it is used up.
    ///
    /// For a striding queue the CQE names the WQE and the consumed strides as any other:
    /// `mlx5e_handle_rx_cqe_mpwrq` of Linux's `en_rx.c` reads both before it checks for errors,
    /// `mlx5_rx_poll_len` of DPDK's `mlx5_rx.c` reads the strides. That `wqe_counter` is then the
    /// WQE's is inferred.
    fn push_error(&mut self, cq: &mut CqObject, error: WqeError, own: u32) {
        let counter = self.head;
        let mut cqe = NicCqe::failed(self.uidx, counter, error, None, 0);
        let mut used_up = true;
        if let Some(head) = &mut self.strides {
            let count = match self.striding_cqes.error_own_strides {
                true => own.min(head.left()),
                false => head.left(),
            };
            cqe = cqe.in_wqe(counter, strides::byte_count(count, 0));
            used_up = head.take(count);
        }
        self.head = counter.wrapping_add(used_up.into());
        cq.push_failed(&cqe);
    }

    /// Completes the posted WQEs of a receive queue in error with a flush error, in order, except
    /// the last `unflushed` ones. The next call flushes WQEs that are posted later.
    pub fn flush(&mut self, cq: &mut CqObject) {
        self.flush_except(self.unflushed, cq);
    }

    fn flush_except(&mut self, last: u16, cq: &mut CqObject) {
        if self.state != RqState::Error || cq.is_dead() {
            return;
        }
        self.producer = self.record.load(PRODUCER) as u16;
        while self.posted() > last {
            self.push_error(cq, WqeError::FLUSHED, u32::MAX);
            if cq.is_dead() {
                return;
            }
        }
        if !self.flushes_at_reset {
            self.head = self.producer;
        }
    }

    /// Puts the receive queue into error and raises the event of its WQ or QP.
    pub fn fail(&mut self, cq: &mut CqObject) {
        if self.state != RqState::Ready {
            return;
        }
        self.set_state(RqState::Error, cq);
        self.events.raise(match self.owner {
            RqOwner::Wq => NicEvent::WqFatal,
            RqOwner::Qp => NicEvent::QpFatal,
        });
    }

    /// Invalidates the receive queue's memory keys until it is reset: its next frame fails with a
    /// protection error.
    pub fn invalidate_keys(&mut self) {
        self.key_pd = NO_PD;
    }

    /// Gives the next frame that the receive queue takes a wrong FCS.
    pub fn damage_next(&mut self) {
        self.damage_fcs = true;
    }

    /// Delivers a frame if the receive queue has room. Returns the room that the queue had. `info`
    /// holds the frame's hash and flow tag.
    ///
    /// Inlined with all its calls for an ordinary frame, so that values passed between the steps
    /// stay in registers. A value that is stored and loaded again in another width would wait for
    /// all stores before it. Those wait for cache lines that the program's core just had.
    #[inline(always)]
    pub fn receive(
        &mut self,
        cq: &mut CqObject,
        regions: &Regions,
        frame: &ParsedFrame<'_>,
        now: &Now,
        info: RxInfo,
    ) -> Room {
        if self.strides.is_some() {
            return self.receive_in_strides(cq, regions, frame, now, info);
        }
        match self.room_for_frames(cq, 1, 1) {
            Room::Enough => self.deliver(cq, regions, frame, now, info),
            room => room,
        }
    }

    /// Delivers a frame into a striding receive queue if it has room. Returns the room that the
    /// queue had.
    #[inline(always)]
    fn receive_in_strides(
        &mut self,
        cq: &mut CqObject,
        regions: &Regions,
        frame: &ParsedFrame<'_>,
        now: &Now,
        info: RxInfo,
    ) -> Room {
        let len = self.delivered_len(frame);
        let count = self.strides.as_ref().and_then(|it| it.strides_for(len));
        match self.room_in_strides(cq, count, 1, 1) {
            Room::Enough => self.deliver_in_strides(cq, regions, frame, now, info, count),
            room => room,
        }
    }

    /// Delivers a frame into the receive queue's next WQE, which exists by [`Rq::room`]. Returns
    /// [`Room::Enough`], or [`Room::TooLong`] if the frame was dropped.
    #[inline(always)]
    fn deliver(
        &mut self,
        cq: &mut CqObject,
        regions: &Regions,
        frame: &ParsedFrame<'_>,
        now: &Now,
        mut info: RxInfo,
    ) -> Room {
        let wqe = self.wqes.wqe(self.head);
        let counter = self.head;
        self.head = self.head.wrapping_add(1);
        self.prefetch();

        let strip = self.describe(frame, &mut info);
        let written = if strip || self.features.scatter_fcs {
            self.write_changed(regions, wqe, 0, frame, strip)
        } else {
            self.wqes
                .write_frame(regions, self.key_pd, wqe, 0, frame.bytes)
        };
        match written {
            Ok(byte_count) => {
                info.byte_count = byte_count;
                let timestamp = timestamp(cq, now, frame);
                cq.push(&NicCqe::received(self.uidx, counter, timestamp, &info));
            }
            Err(error) => {
                self.head = counter;
                if error == WqeError::TOO_LONG && self.drops_too_long {
                    return Room::TooLong;
                }
                self.refuse(cq, error, 0);
            }
        }
        if cq.is_dead() {
            self.fail(cq);
        }
        Room::Enough
    }

    /// Stores a received frame's header types and VLAN tag in the fields of its CQE. Returns `true`
    /// if the VLAN tag must be stripped.
    #[inline(always)]
    fn describe(&self, frame: &ParsedFrame<'_>, info: &mut RxInfo) -> bool {
        info.headers = frame.header_types();
        let cvlan = frame.cvlan();
        info.vlan = cvlan.unwrap_or(0);
        if self.owner == RqOwner::Qp {
            // Verbs report checksums only in the completions of a QP. Summing whole frames costs
            // more than all other steps.
            info.checks = frame.checks();
        }
        let strip = self.features.strip_cvlan && cvlan.is_some();
        info.headers |= u8::from(strip);
        strip
    }

    /// Returns the number of bytes that the receive queue writes for a frame: without a stripped
    /// VLAN tag, with the FCS if requested.
    #[inline(always)]
    fn delivered_len(&self, frame: &ParsedFrame<'_>) -> usize {
        let strip = self.features.strip_cvlan && frame.cvlan().is_some();
        let fcs = usize::from(self.features.scatter_fcs) * 4;
        frame.bytes.len() + fcs - usize::from(strip) * 4
    }

    /// Delivers a frame into the next strides of a striding receive queue's head WQE, where it fits
    /// by [`Rq::room`]. A frame that is longer than any WQE consumes the rest of the head WQE,
    /// which is inferred.
    #[inline(always)]
    fn deliver_in_strides(
        &mut self,
        cq: &mut CqObject,
        regions: &Regions,
        frame: &ParsedFrame<'_>,
        now: &Now,
        mut info: RxInfo,
        count: Option<u32>,
    ) -> Room {
        let wqe_id = self.head;
        let wqe = self.wqes.wqe(wqe_id);
        let Some(head) = &self.strides else {
            return Room::NotReady;
        };
        let (stride, offset) = (head.next(), head.offset());
        let Some(count) = count else {
            if self.drops_too_long {
                return Room::TooLong;
            }
            self.refuse(cq, WqeError::TOO_LONG, 1);
            return Room::Enough;
        };
        self.wqes
            .prefetch_buffer(wqe, head.ahead(count * u32::from(PREFETCH)));

        let strip = self.describe(frame, &mut info);
        let written = if strip || self.features.scatter_fcs {
            self.write_changed(regions, wqe, offset, frame, strip)
        } else {
            self.wqes
                .write_frame(regions, self.key_pd, wqe, offset, frame.bytes)
        };
        match written {
            Ok(len) => {
                let take = |head: &mut Strides| head.take(count);
                if self.strides.as_mut().is_some_and(take) {
                    self.head = wqe_id.wrapping_add(1);
                }
                let timestamp = timestamp(cq, now, frame);
                let (mut id, mut counter) = (wqe_id, stride);
                let mut byte_count = strides::byte_count(count, len);
                if self.striding_cqes.wrong != WrongCqeField::None {
                    let cqes = &self.striding_cqes;
                    cqes.falsify(&mut id, &mut counter, &mut byte_count);
                }
                let cqe = NicCqe::received(self.uidx, counter, timestamp, &info);
                cq.push(&cqe.in_wqe(id, byte_count));
            }
            Err(error) => self.refuse(cq, error, count),
        }
        if cq.is_dead() {
            self.fail(cq);
        }
        Room::Enough
    }

    /// Completes a receive WQE that could not take its frame with `error`. The receive queue fails
    /// unless the frame was too long.
    #[cold]
    fn refuse(&mut self, cq: &mut CqObject, error: WqeError, own: u32) {
        self.push_error(cq, error, own);
        if error != WqeError::TOO_LONG {
            self.fail(cq);
        }
    }

    /// Prefetches the receive WQEs that follow and their buffers, which are in the cache of the
    /// program's core.
    #[inline(always)]
    fn prefetch(&self) {
        let posted = self.posted();
        let ahead = |count: u16| self.wqes.wqe(self.head.wrapping_add(count - 1));
        if posted > PREFETCH {
            self.wqes.prefetch_buffer(ahead(PREFETCH), 0);
        }
        if posted > PREFETCH_WQE {
            self.wqes.prefetch(ahead(PREFETCH_WQE));
        }
    }

    /// Writes a received frame without its VLAN tag or with its FCS to a WQE's buffers. Returns the
    /// number of bytes written.
    #[cold]
    fn write_changed(
        &mut self,
        regions: &Regions,
        wqe: usize,
        offset: usize,
        frame: &ParsedFrame<'_>,
        strip: bool,
    ) -> Result<u32, WqeError> {
        // The tag's four bytes are between the addresses and the EtherType.
        let (head, tail) = frame.bytes.split_at(frame.bytes.len().min(12));
        let tail = if strip {
            tail.get(4..).unwrap_or(&[])
        } else {
            tail
        };
        let mut fcs = [0; 4];
        let mut fcs_len = 0;
        if self.features.scatter_fcs {
            fcs = frame.fcs();
            fcs_len = fcs.len();
            if std::mem::take(&mut self.damage_fcs) {
                fcs[0] ^= 0xff;
            }
        }
        let pieces = [head, tail, &fcs[..fcs_len]];
        self.wqes.write(regions, self.key_pd, wqe, offset, &pieces)
    }
}

/// Returns a received frame's timestamp in the format of its CQE: ticks of the NIC's clock, or UTC.
#[inline(always)]
fn timestamp(cq: &CqObject, now: &Now, frame: &ParsedFrame<'_>) -> u64 {
    if cq.real_time {
        real_time(now.utc_ns(frame.now_ns))
    } else {
        now.cycles(frame.now_ns)
    }
}

/// Converts a UTC time to the timestamp of a real-time CQE (PRM "Real time clock"): seconds in the
/// upper half, nanoseconds in the lower.
fn real_time(ns: u64) -> u64 {
    ((ns / 1_000_000_000) << 32) | (ns % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)]

    use super::*;
    use crate::device::event::EventChannel;
    use crate::device::strides::{FILLER, StrideLayout};
    use crate::process::descriptors::File;
    use std::sync::Arc;

    /// Receive queue of a test, with all its parts in the test's memory.
    struct Bench {
        memory: Vec<u64>,
        regions: Regions,
        lkey: u32,
        cq: CqObject,
        rq: Rq,
        shift: u32,
        channel: Arc<EventChannel>,
    }

    const RING: usize = 0;
    const CQ: usize = 4096;
    const RECORDS: usize = 8192;
    const DATA: usize = 12288;

    impl Bench {
        fn new(shift: u32, features: RqFeatures) -> Self {
            Self::with(shift, features, None)
        }

        /// Creates a striding receive queue whose WQEs have eight strides of 64 bytes.
        fn striding(features: RqFeatures, two_byte_shift: bool) -> Self {
            let strides = StrideLayout {
                log_bytes: 6,
                log_strides: 3,
                two_byte_shift,
            };
            Self::with(5, features, Some(strides))
        }

        fn with(shift: u32, features: RqFeatures, strides: Option<StrideLayout>) -> Self {
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
            let cq = CqObject::new(base + CQ as u64, records, 4, 64, false, source()).unwrap();
            let layout = RqLayout {
                ring: base + RING as u64,
                record: records + 64,
                count: 8,
                shift,
                signature: false,
                strides,
            };
            let mut rq = Rq::new(&layout, 0, 1, 0x55, RqOwner::Wq, source()).unwrap();
            rq.features = features;
            let mut bench = Self {
                memory,
                regions,
                lkey,
                cq,
                rq,
                shift,
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

        /// Posts a receive WQE with these buffers, each given by its offset into the data and its
        /// length.
        fn post(&mut self, index: u16, lkey: u32, buffers: &[(usize, u32)]) {
            let stride = 1usize << self.shift;
            let first = usize::from(self.rq.strides.is_some());
            for slot in first..stride / 16 {
                let (len, lkey, addr) = match buffers.get(slot - first) {
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
            let class = wqcap_rss::FrameClass::from_frame(bytes);
            let frame = ParsedFrame::new(bytes, &class, 42);
            let now = Now {
                ns: 42,
                shown_ns: 42,
                khz: 1_000_000,
                utc_ahead_ns: 0,
            };
            let info = RxInfo::default();
            self.rq
                .receive(&mut self.cq, &self.regions, &frame, &now, info)
        }

        /// Posts receive WQEs at these indexes, each with one buffer of 512 bytes at its index.
        fn post_wqes(&mut self, indexes: std::ops::Range<u16>) {
            for index in indexes {
                self.post(index, self.lkey, &[(usize::from(index % 8) * 512, 512)]);
            }
        }

        /// Returns `wqe_id`, `wqe_counter`, `byte_cnt` and opcode of a CQE.
        fn strided_cqe(&mut self, index: usize) -> (u16, u16, u32, u8) {
            let cqe = self.cqe(index);
            let word = |at: usize| u16::from_be_bytes([cqe[at], cqe[at + 1]]);
            let byte_count = u32::from(word(44)) << 16 | u32::from(word(46));
            (word(2), word(60), byte_count, cqe[63] >> 4)
        }

        fn cqe(&mut self, index: usize) -> Vec<u8> {
            self.cq.end_burst(0);
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
    fn a_too_long_frame_consumes_only_its_wqe() {
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
    fn a_dropped_frame_consumes_no_wqe() {
        let mut bench = Bench::new(4, RqFeatures::default());
        bench.rq.drops_too_long = true;
        bench.post(0, bench.lkey, &[(0, 20)]);
        assert_eq!(bench.receive(&[1; 21]), Room::TooLong);
        assert_eq!(bench.receive(&[2; 20]), Room::Enough);
        let cqe = bench.cqe(0);
        assert_eq!((cqe[61], cqe[63] >> 4), (0, abi::MLX5_CQE_RESP_SEND as u8));
        assert_eq!(bench.bytes(DATA, 20), [2; 20]);
        let mut striding = Bench::striding(RqFeatures::default(), false);
        striding.rq.drops_too_long = true;
        striding.post_wqes(0..1);
        assert_eq!(striding.receive(&[1; 600]), Room::TooLong);
        assert_eq!(striding.receive(&[2; 64]), Room::Enough);
        let (wqe, stride, ..) = striding.strided_cqe(0);
        assert_eq!((wqe, stride), (0, 0));
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
        assert_eq!(bench.event(), Some(NicEvent::WqFatal as u8));
        assert_eq!(bench.receive(&[9; 30]), Room::NotReady);
        bench.post(3, bench.lkey, &[(0, 100)]);
        bench.rq.flush(&mut bench.cq);
        assert_eq!((bench.cqe(3)[61], bench.cqe(3)[55]), (3, 5));
    }

    #[test]
    fn the_last_of_the_flushed_wrs_may_never_complete() {
        let mut bench = Bench::new(4, RqFeatures::default());
        bench.rq.unflushed = 2;
        bench.post(0, bench.lkey, &[(0, 100)]);
        bench.post(1, bench.lkey, &[(0, 100)]);
        bench.post(2, bench.lkey, &[(0, 100)]);
        bench.rq.fail(&mut bench.cq);
        assert_eq!((bench.cqe(0)[61], bench.cqe(0)[55]), (0, 5));
        bench.post(3, bench.lkey, &[(0, 100)]);
        bench.rq.flush(&mut bench.cq);
        assert_eq!(bench.cqe(1), [0; 64], "no CQE is written");
        // A reset discards them, and the queue works again.
        bench.rq.set_state(RqState::Reset, &mut bench.cq);
        bench.rq.set_state(RqState::Ready, &mut bench.cq);
        bench.post(0, bench.lkey, &[(0, 100)]);
        assert_eq!(bench.receive(&[9; 30]), Room::Enough);
        assert_eq!(bench.cqe(1)[61], 0);
    }

    #[test]
    fn the_last_of_the_flushed_wrs_may_complete_at_the_reset() {
        let mut bench = Bench::new(4, RqFeatures::default());
        (bench.rq.unflushed, bench.rq.flushes_at_reset) = (2, true);
        for index in 0..3 {
            bench.post(index, bench.lkey, &[(0, 100)]);
        }
        bench.rq.fail(&mut bench.cq);
        assert_eq!((bench.cqe(0)[61], bench.cqe(0)[55]), (0, 5));
        bench.rq.flush(&mut bench.cq);
        assert_eq!(bench.cqe(1), [0; 64], "no CQE is written");
        bench.rq.set_state(RqState::Reset, &mut bench.cq);
        let flushed: Vec<_> = (1..3)
            .map(|i| (bench.cqe(i)[61], bench.cqe(i)[55]))
            .collect();
        assert_eq!(flushed, [(1, 5), (2, 5)]);
        // The queue restarts.
        bench.rq.set_state(RqState::Ready, &mut bench.cq);
        bench.post(0, bench.lkey, &[(0, 100)]);
        assert_eq!(bench.receive(&[9; 30]), Room::Enough);
        assert_eq!(bench.cqe(3)[61], 0);
    }

    #[test]
    fn only_the_next_frame_is_damaged() {
        let features = RqFeatures {
            scatter_fcs: true,
            ..RqFeatures::default()
        };
        let mut bench = Bench::new(4, features);
        bench.post(0, bench.lkey, &[(0, 100)]);
        bench.post(1, bench.lkey, &[(200, 100)]);
        bench.rq.damage_next();
        let frame = [5; 60];
        let fcs = crc32fast::hash(&frame).to_le_bytes();
        for (at, right) in [(DATA, false), (DATA + 200, true)] {
            assert_eq!(bench.receive(&frame), Room::Enough);
            assert_eq!(bench.bytes(at, 60), frame);
            assert_eq!(bench.bytes(at + 60, 4) == fcs, right);
        }
    }

    #[test]
    fn a_tag_is_removed_and_the_fcs_appended() {
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
        let fcs = crc32fast::hash(&frame).to_le_bytes();
        let mut expected: Vec<u8> = (0..12).collect();
        expected.extend([0x12, 0x34, 7, 8, 9]);
        expected.extend(fcs);
        assert_eq!(bench.bytes(DATA, expected.len()), expected);
        let cqe = bench.cqe(0);
        assert_eq!(cqe[29] & 1, 1, "the bit cv is set");
        assert_eq!(cqe[30..32], [0x20, 0x64]);
        assert_eq!(cqe[47] as usize, expected.len());
    }

    const RECEIVED: u8 = abi::MLX5_CQE_RESP_SEND as u8;
    const FAILED: u8 = abi::MLX5_CQE_RESP_ERR as u8;

    #[test]
    fn frames_share_a_wqe_and_a_filler_ends_it() {
        let mut bench = Bench::striding(RqFeatures::default(), false);
        bench.post_wqes(0..4);
        let frames: Vec<Vec<u8>> = [60, 65, 64, 300, 512, 20]
            .iter()
            .zip(1..)
            .map(|(len, fill)| vec![fill; *len])
            .collect();
        for frame in &frames {
            assert_eq!(bench.receive(frame), Room::Enough);
        }
        // Strides 0, 1 and 2, 3; four are left for a frame of five. Then a whole WQE of 512 bytes,
        // behind another filler.
        for (cqe, expected) in [
            (0, 0, 1 << 16 | 60),
            (0, 1, 2 << 16 | 65),
            (0, 3, 1 << 16 | 64),
            (0, 4, FILLER | 4 << 16),
            (1, 0, 5 << 16 | 300),
            (1, 5, FILLER | 3 << 16),
            (2, 0, 8 << 16 | 512),
            (3, 0, 1 << 16 | 20),
        ]
        .into_iter()
        .enumerate()
        {
            let (wqe, stride, byte_count) = expected;
            assert_eq!(
                bench.strided_cqe(cqe),
                (wqe, stride, byte_count, RECEIVED),
                "{cqe}"
            );
        }
        for (at, frame) in [0, 64, 192, 512, 1024, 1536].into_iter().zip(&frames) {
            assert_eq!(bench.bytes(DATA + at, frame.len()), *frame);
        }
        assert_eq!(
            bench.bytes(DATA + 60, 4),
            [0; 4],
            "bytes behind a frame stay unchanged"
        );
    }

    #[test]
    fn frames_that_fill_a_wqe_to_the_last_stride_need_no_filler() {
        let mut bench = Bench::striding(RqFeatures::default(), false);
        bench.post_wqes(0..1);
        for _ in 0..2 {
            assert_eq!(bench.receive(&[1; 256]), Room::Enough);
        }
        assert_eq!(bench.receive(&[1; 14]), Room::NoWqe);
        bench.post_wqes(1..2);
        assert_eq!(bench.receive(&[1; 14]), Room::Enough);
        assert_eq!(bench.strided_cqe(2), (1, 0, 1 << 16 | 14, RECEIVED));
    }

    #[test]
    fn a_wqe_without_room_is_returned_without_a_next_wqe() {
        let mut bench = Bench::striding(RqFeatures::default(), false);
        bench.post_wqes(0..1);
        assert_eq!(bench.receive(&[1; 400]), Room::Enough);
        for _ in 0..2 {
            assert_eq!(bench.receive(&[2; 400]), Room::NoWqe);
        }
        assert_eq!(bench.strided_cqe(1), (0, 7, FILLER | 1 << 16, RECEIVED));
        bench.post_wqes(1..2);
        assert_eq!(bench.receive(&[2; 400]), Room::Enough);
        assert_eq!(bench.strided_cqe(2), (1, 0, 7 << 16 | 400, RECEIVED));
    }

    #[test]
    fn copies_of_a_frame_fit_all_or_none() {
        let mut bench = Bench::striding(RqFeatures::default(), false);
        bench.post_wqes(0..1);
        let bytes = [1; 200];
        let class = wqcap_rss::FrameClass::from_frame(&bytes);
        let frame = ParsedFrame::new(&bytes, &class, 0);
        let Bench { rq, cq, .. } = &mut bench;
        assert_eq!(rq.room(cq, &frame, 2, 2), Room::Enough);
        assert_eq!(rq.room(cq, &frame, 3, 3), Room::NoWqe);
        bench.post_wqes(1..2);
        let Bench { rq, cq, .. } = &mut bench;
        assert_eq!(rq.room(cq, &frame, 4, 4), Room::Enough);
        assert_eq!(rq.room(cq, &frame, 5, 5), Room::NoWqe);
    }

    #[test]
    fn the_cq_has_room_for_the_filler_too() {
        let mut bench = Bench::striding(RqFeatures::default(), false);
        bench.post_wqes(0..8);
        for _ in 0..14 {
            assert_eq!(bench.receive(&[1; 14]), Room::Enough);
        }
        // Two of sixteen CQEs are left: a filler and this frame take them.
        assert_eq!(bench.receive(&[1; 200]), Room::Enough);
        assert_eq!(bench.receive(&[1; 14]), Room::CqFull);
        assert!(!bench.cq.is_dead());
    }

    #[test]
    fn a_frame_longer_than_a_wqe_consumes_the_rest_of_one() {
        let mut bench = Bench::striding(RqFeatures::default(), false);
        bench.post_wqes(0..3);
        assert_eq!(bench.receive(&[1; 100]), Room::Enough);
        assert_eq!(bench.receive(&[2; 513]), Room::Enough);
        assert_eq!(bench.receive(&[3; 100]), Room::Enough);
        assert_eq!(bench.strided_cqe(1), (0, 0, 6 << 16, FAILED));
        assert_eq!(bench.cqe(1)[55], 1);
        assert_eq!(bench.strided_cqe(2), (1, 0, 2 << 16 | 100, RECEIVED));
        assert_eq!(bench.rq.state(), RqState::Ready);
        // A frame that is longer than its posted buffer does the same.
        bench.post(2, bench.lkey, &[(1024, 128)]);
        assert_eq!(bench.receive(&[4; 400]), Room::Enough);
        assert_eq!(bench.strided_cqe(3), (1, 2, FILLER | 6 << 16, RECEIVED));
        assert_eq!(bench.strided_cqe(4), (2, 2, 8 << 16, FAILED));
    }

    #[test]
    fn two_bytes_come_before_a_frame_and_count() {
        let mut bench = Bench::striding(RqFeatures::default(), true);
        bench.post_wqes(0..1);
        assert_eq!(bench.receive(&[1; 62]), Room::Enough);
        assert_eq!(bench.receive(&[2; 63]), Room::Enough);
        assert_eq!(bench.bytes(DATA, 3), [0, 0, 1]);
        assert_eq!(bench.bytes(DATA + 63, 4), [1, 0, 0, 2]);
        assert_eq!(bench.strided_cqe(0), (0, 0, 1 << 16 | 62, RECEIVED));
        assert_eq!(bench.strided_cqe(1), (0, 1, 2 << 16 | 63, RECEIVED));
    }

    #[test]
    fn strided_frames_lose_their_tag_and_keep_their_fcs() {
        let features = RqFeatures {
            strip_cvlan: true,
            scatter_fcs: true,
            delay_drop: false,
        };
        let strides = StrideLayout {
            log_bytes: 6,
            log_strides: 3,
            two_byte_shift: false,
        };
        let mut bench = Bench::with(6, features, Some(strides));
        // The buffer has two entries; the second begins in the middle of a frame.
        bench.post(0, bench.lkey, &[(0, 70), (1000, 442)]);
        let mut frame: Vec<u8> = (0..12).collect();
        frame.extend([0x81, 0x00, 0x20, 0x64, 0x12, 0x34]);
        frame.resize(64, 7);
        let mut expected = [&frame[..12], &frame[16..]].concat();
        expected.extend(crc32fast::hash(&frame).to_le_bytes());
        for cqe in 0..3 {
            assert_eq!(bench.receive(&frame), Room::Enough);
            let stride = cqe as u16;
            let found = bench.strided_cqe(cqe);
            assert_eq!(found, (0, stride, 1 << 16 | 64, RECEIVED));
        }
        assert_eq!(bench.bytes(DATA, 64), expected);
        assert_eq!(bench.bytes(DATA + 64, 6), expected[..6]);
        assert_eq!(bench.bytes(DATA + 1000, 58), expected[6..]);
        assert_eq!(bench.bytes(DATA + 1058, 64), expected);
        let plain = [8; 61];
        assert_eq!(bench.receive(&plain), Room::Enough);
        assert_eq!(bench.strided_cqe(3), (0, 3, 2 << 16 | 65, RECEIVED));
        assert_eq!(bench.bytes(DATA + 1122, 61), plain);
    }

    #[test]
    fn an_error_takes_the_rest_of_a_wqe_and_each_flushed_wqe_one_cqe() {
        let mut bench = Bench::striding(RqFeatures::default(), false);
        bench.post_wqes(0..3);
        assert_eq!(bench.receive(&[1; 100]), Room::Enough);
        bench.rq.invalidate_keys();
        assert_eq!(bench.receive(&[1; 14]), Room::Enough);
        assert_eq!(bench.event(), Some(NicEvent::WqFatal as u8));
        for (cqe, wqe, left, syndrome) in [(1, 0, 6, 4), (2, 1, 8, 5), (3, 2, 8, 5)] {
            let expected = (wqe, wqe, left << 16, FAILED);
            assert_eq!(bench.strided_cqe(cqe), expected);
            assert_eq!(bench.cqe(cqe)[55], syndrome);
        }
        // After the reset the queue begins with stride 0 of WQE 0.
        bench.rq.set_state(RqState::Reset, &mut bench.cq);
        bench.rq.set_state(RqState::Ready, &mut bench.cq);
        bench.post_wqes(0..2);
        assert_eq!(bench.receive(&[9; 300]), Room::Enough);
        bench.rq.fail(&mut bench.cq);
        let expected = [
            (0, 0, 5 << 16 | 300, RECEIVED),
            (0, 0, 3 << 16, FAILED),
            (1, 1, 8 << 16, FAILED),
        ];
        for (cqe, expected) in (4..).zip(expected) {
            assert_eq!(bench.strided_cqe(cqe), expected);
        }
        assert_eq!(bench.bytes(DATA, 300), [9; 300]);
    }

    #[test]
    fn a_fillers_counter_may_be_zero() {
        let mut bench = Bench::striding(RqFeatures::default(), false);
        bench.rq.striding_cqes.filler_counter_zero = true;
        bench.post_wqes(0..2);
        assert_eq!(bench.receive(&[1; 300]), Room::Enough);
        assert_eq!(bench.receive(&[2; 300]), Room::Enough);
        assert_eq!(bench.strided_cqe(1), (0, 0, FILLER | 3 << 16, RECEIVED));
        assert_eq!(bench.strided_cqe(2), (1, 0, 5 << 16 | 300, RECEIVED));
    }

    #[test]
    fn an_error_may_take_only_its_own_strides() {
        let mut bench = Bench::striding(RqFeatures::default(), false);
        bench.rq.striding_cqes.error_own_strides = true;
        bench.post_wqes(0..3);
        assert_eq!(bench.receive(&[1; 100]), Room::Enough);
        assert_eq!(bench.receive(&[2; 513]), Room::Enough);
        assert_eq!(bench.receive(&[3; 320]), Room::Enough);
        assert_eq!(bench.receive(&[4; 513]), Room::Enough);
        assert_eq!(bench.receive(&[5; 20]), Room::Enough);
        for (cqe, expected) in [
            (0, 0, 2 << 16 | 100, RECEIVED),
            (0, 0, 1 << 16, FAILED),
            (0, 3, 5 << 16 | 320, RECEIVED),
            (1, 1, 1 << 16, FAILED),
            (1, 1, 1 << 16 | 20, RECEIVED),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(bench.strided_cqe(cqe), expected, "{cqe}");
        }
        // A flush takes the rest of each WQE.
        bench.rq.fail(&mut bench.cq);
        assert_eq!(bench.strided_cqe(5), (1, 1, 6 << 16, FAILED));
        assert_eq!(bench.strided_cqe(6), (2, 2, 8 << 16, FAILED));
    }

    #[test]
    fn a_field_of_a_striding_cqe_may_be_wrong() {
        for (wrong, expected) in [
            (WrongCqeField::None, (0, 1, 2 << 16 | 100)),
            (WrongCqeField::WqeCounter, (0, 0, 2 << 16 | 100)),
            (WrongCqeField::Strides, (0, 1, 3 << 16 | 100)),
            (WrongCqeField::WqeId, (1, 1, 2 << 16 | 100)),
            (WrongCqeField::ByteCount, (0, 1, 2 << 16 | 104)),
        ] {
            let mut bench = Bench::striding(RqFeatures::default(), false);
            bench.rq.striding_cqes.wrong = wrong;
            bench.post_wqes(0..1);
            assert_eq!(bench.receive(&[1; 20]), Room::Enough);
            assert_eq!(bench.receive(&[2; 100]), Room::Enough);
            let (id, counter, byte_count) = expected;
            let found = bench.strided_cqe(1);
            assert_eq!(found, (id, counter, byte_count, RECEIVED), "{wrong:?}");
            assert_eq!(bench.bytes(DATA + 64, 100), [2; 100]);
        }
    }

    #[test]
    fn striding_wqes_wrap() {
        let mut bench = Bench::striding(RqFeatures::default(), false);
        bench.post_wqes(0..8);
        let mut consumed = (0u16, 0u32);
        let mut cqes = 0u32;
        for round in 0..400_000u32 {
            let len = 14 + (round * 37 % 499) as usize;
            assert_eq!(bench.receive(&vec![round as u8; len]), Room::Enough);
            loop {
                let (wqe, stride, byte_count, _) = bench.strided_cqe(cqes as usize % 16);
                cqes += 1;
                bench.store(RECORDS, &cqes.to_be_bytes());
                assert_eq!((wqe, u32::from(stride)), consumed, "{round}");
                consumed.1 += byte_count >> 16 & 0x3fff;
                assert!(consumed.1 <= 8);
                if consumed.1 == 8 {
                    bench.post_wqes(wqe.wrapping_add(8)..wqe.wrapping_add(9));
                    consumed = (wqe.wrapping_add(1), 0);
                }
                if byte_count & FILLER == 0 {
                    assert_eq!(byte_count & 0xffff, len as u32);
                    let at = DATA + usize::from(wqe % 8) * 512 + usize::from(stride) * 64;
                    assert_eq!(bench.bytes(at, len), vec![round as u8; len]);
                    break;
                }
            }
        }
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
    fn invalid_layouts_are_refused() {
        let channel = EventChannel::asynchronous().unwrap();
        let strides = StrideLayout::default();
        for (count, shift, strides) in [
            (0, 4, None),
            (3, 4, None),
            (1 << 16, 4, None),
            (8, 3, None),
            (8, 10, None),
            (8, 40, None),
            (8, 4, Some(strides)),
        ] {
            let layout = RqLayout {
                ring: 64,
                record: 64,
                count,
                shift,
                signature: false,
                strides,
            };
            let source = AsyncSource::new(&channel, 1);
            assert_eq!(
                Rq::new(&layout, 0, 0, 0, RqOwner::Wq, source).map(drop),
                Err(libc::EINVAL)
            );
        }
    }
}
