//! Completion queues: CQEs with their owner bit, arming, moderation, overrun.
//!
//! Imports `cqe`, `session`, `event` and `memory`. Invariants: a slot is written only while the
//! consumer index assigns it to the NIC (or the CQ ignores overruns). The last word of a CQE, with
//! opcode and owner, is stored last. An armed CQ raises one event for each arming, after its CQEs
//! are visible.
//!
//! The first CQE of a burst is held back and published after the others, because a program polls
//! that slot. Written at once, its cache line would change cores for each frame, and that would
//! cost more than copying the frame. CQEs are consumed in order, so the program sees no difference,
//! except that CQEs come in bursts.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi;
use crate::process::cache::prefetch_for_write;
use crate::process::{Errno, refuse_if};

use super::cqe::{ErrorCounts, MASK_24, NicCqe};
use super::event::{AsyncSource, EventChannel, NicEvent, Reported};
use super::memory::{DoorbellRecord, NicRing};
use super::session::Session;

/// Index of the consumer index word in a CQ's doorbell record (PRM "CQ doorbell record").
const CONSUMER: usize = 0;
/// Index of the arm word in a CQ's doorbell record.
const ARM: usize = 1;
/// Mark that the device stores in the arm word of a CQ's doorbell record to detect a write by the
/// program. It cannot be 0: the first arming writes 0, which is also the word's initial value. No
/// arm command has its two highest bits set.
const NOT_ARMED: u32 = u32::MAX;
/// Number of CQE slots ahead of the producer index that are prefetched for writing.
const PREFETCH: u32 = 16;
/// Maximum number of CQEs behind a held CQE before the held one is published.
const MAX_HELD: u32 = 64;

/// Event moderation settings of a CQ from EX_MODIFY_CQ. If either is zero, events are not
/// moderated.
#[derive(Debug, Clone, Copy, Default)]
pub struct CqModeration {
    /// Number of CQEs after which an armed CQ raises its event.
    pub count: u16,
    /// Maximum delay of a CQ's event after the first CQE, in microseconds.
    pub period: u16,
}

/// Arming state of a CQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Armed {
    No,
    /// The CQ raises an event at the next CQE, or only at a CQE in error (no received frame is
    /// solicited).
    Yes {
        errors_only: bool,
    },
    /// Moderation delays the CQ's event. The first CQE came at `since_ns`, which is unknown until
    /// the end of its burst.
    Moderated {
        since_ns: Option<u64>,
        count: u32,
    },
}

/// Event channel of a CQ's completion events, with the program's handle of the CQ.
pub struct CompletionEvents {
    pub channel: Arc<EventChannel>,
    /// The program's handle of the CQ.
    pub element: u64,
    /// Number of completion events of the CQ that the program has read so far.
    pub reported: Reported,
}

/// Completion queue over a CQE ring in the program's memory.
pub struct CqObject {
    ring: NicRing,
    record: DoorbellRecord,
    /// Base-2 logarithm of the number of CQEs in the CQ's ring.
    log_entries: u32,
    /// Base-2 logarithm of a CQE's size in bytes.
    entry_shift: u32,
    producer: u32,
    /// Consumer index of the CQ as last read from its doorbell record; never ahead of the program's
    /// own.
    consumer: u32,
    /// Value of the CQ's producer index just after its last CQE in error was written.
    error_end: u32,
    /// Set while the first CQE of the burst is held: written to the ring only when the burst is
    /// published.
    held: bool,
    held_index: u32,
    held_cqe: NicCqe,
    /// CQEs of received frames that are being compressed, if the program has requested compression.
    /// They are the last ones before the CQ's producer index.
    session: Option<Box<Session>>,
    ignore_overrun: bool,
    overrun: bool,
    armed: Armed,
    pub moderation: CqModeration,
    pub completions: Option<CompletionEvents>,
    pub events: AsyncSource,
    /// Set when the CQ's timestamps are UTC (`MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS`).
    pub real_time: bool,
    pub number: u32,
    errors: ErrorCounts,
}

impl CqObject {
    /// Creates a CQ over a ring of `1 << log_entries` CQEs of `entry_size` bytes. Fails as
    /// [`NicRing::new`] and [`DoorbellRecord::new`] do.
    pub fn new(
        ring_addr: u64,
        record_addr: u64,
        log_entries: u32,
        entry_size: u32,
        ignore_overrun: bool,
        events: AsyncSource,
    ) -> Result<Self, Errno> {
        let ring = NicRing::new(ring_addr, u64::from(entry_size) << log_entries)?;
        let record = DoorbellRecord::new(record_addr)?;
        record.swap(ARM, NOT_ARMED);
        Ok(Self {
            ring,
            record,
            log_entries,
            entry_shift: entry_size.trailing_zeros(),
            producer: 0,
            consumer: 0,
            error_end: 0,
            held: false,
            held_index: 0,
            held_cqe: NicCqe::default(),
            session: None,
            ignore_overrun,
            overrun: false,
            armed: Armed::No,
            moderation: CqModeration::default(),
            completions: None,
            events,
            real_time: false,
            number: 0,
            errors: ErrorCounts::default(),
        })
    }

    pub fn entries(&self) -> u32 {
        1 << self.log_entries
    }

    /// Returns `true` if the CQ can take `count` CQEs without overrunning.
    #[inline(always)]
    pub fn has_room(&mut self, count: u32) -> bool {
        if self.overrun {
            return false;
        }
        if self.ignore_overrun || self.outstanding() + count <= self.entries() {
            return true;
        }
        self.consumer = self.record.load(CONSUMER);
        self.outstanding() + count <= self.entries()
    }

    #[inline]
    fn outstanding(&self) -> u32 {
        self.behind(self.consumer)
    }

    /// Returns the number of CQEs between a consumer index and the CQ's producer index. Only the
    /// index bits for the ring's slots and their owner bit count: DPDK's index has 16 bits once it
    /// has read a session (`rxq_zip.cq_ci` of `mlx5_rx.h`), and continues so.
    #[inline]
    fn behind(&self, consumer: u32) -> u32 {
        self.producer.wrapping_sub(consumer) & ((2 << self.log_entries) - 1)
    }

    /// Returns `true` if the program has consumed every CQE of the CQ.
    pub fn is_drained(&mut self) -> bool {
        self.consumer = self.record.load(CONSUMER);
        self.overrun || self.outstanding() == 0
    }

    /// Returns `true` if the CQ has overrun. Queues that complete to it cannot continue.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.overrun
    }

    /// Puts the CQ into its overrun state and raises `IBV_EVENT_CQ_ERR`. No further CQE is written
    /// to the CQ.
    #[cold]
    pub fn fail(&mut self) {
        if !self.overrun {
            self.overrun = true;
            self.events.raise(NicEvent::CqErr);
        }
    }

    /// Makes a CQ compress the CQEs of received frames from now on.
    pub fn compress(&mut self, session: Session) {
        self.session = Some(Box::new(session));
    }

    /// Writes the CQE of a successful WQE. The CQ fails if it has no room ([`CqObject::has_room`]).
    #[inline(always)]
    pub fn push(&mut self, cqe: &NicCqe) {
        if !self.has_room(1) {
            self.fail();
            return;
        }
        if self.session.is_some() {
            self.add_to_session(*cqe);
        } else {
            self.write(cqe);
        }
        if self.armed != Armed::No {
            self.raise_if_armed(false);
        }
    }

    /// Adds a received frame's CQE to the CQ's compression session, or ends the session and writes
    /// the CQE after it. Takes a copy, so that other paths need not keep the CQE in memory.
    #[inline(never)]
    fn add_to_session(&mut self, cqe: NicCqe) {
        let first_slot = self.producer & (self.entries() - 1) == 0;
        let takes = |it: &mut Box<Session>| cqe.is_received() && it.takes(&cqe, first_slot);
        if !self.session.as_mut().is_some_and(takes) {
            self.end_session();
        }
        match &mut self.session {
            Some(session) if cqe.is_received() => {
                session.add(&cqe);
                self.producer = self.producer.wrapping_add(1);
            }
            _ => self.write(&cqe),
        }
    }

    /// Writes the CQEs of the CQ's compression session to the ring, the arrays of mini CQEs before
    /// the title.
    fn end_session(&mut self) {
        let Some(session) = self.session.as_mut().filter(|it| it.len() > 0) else {
            return;
        };
        let title_at = self.producer.wrapping_sub(session.len());
        let arrays = session.arrays();
        let title = session.end();
        for (slot, array) in arrays {
            self.store_array(title_at.wrapping_add(slot), &array);
        }
        self.write_at(title_at, &title);
    }

    /// Writes the CQE of a failed WQE, after the CQ's compression session. The CQ fails if it has
    /// no room.
    pub fn push_failed(&mut self, cqe: &NicCqe) {
        if !self.has_room(1) {
            self.fail();
            return;
        }
        self.end_session();
        self.write(cqe);
        // A command that flushes a queue must return after its CQEs are visible.
        self.publish();
        self.error_end = self.producer;
        self.errors.add(cqe);
        self.raise_if_armed(true);
    }

    /// Returns the address of the CQ ring's slot for an index. In a 128-byte CQE the 64 bytes of
    /// the layout are the second half.
    #[inline(always)]
    fn slot(&self, index: u32) -> *mut u8 {
        let slot = (index & (self.entries() - 1)) as usize;
        self.ring
            .at((slot << self.entry_shift) + (1 << self.entry_shift) - 64)
    }

    /// Stores a CQE in the CQ ring's slot for an index.
    #[inline(always)]
    fn store(&mut self, index: u32, cqe: &NicCqe) {
        // The owner bit toggles with each round of the ring.
        let owner = u64::from(index >> self.log_entries & abi::MLX5_CQE_OWNER_MASK);
        let slot = self.slot(index).cast::<u64>();
        let [head @ .., last] = &cqe.0;
        for (at, word) in head.iter().enumerate() {
            // SAFETY: the slot's 64 bytes are in the ring, aligned, and belong to the NIC until the
            // last word passes them to the program.
            unsafe { slot.add(at).write(word.to_be()) };
        }
        // SAFETY: as above; atomic because the program polls this word.
        let opcode_and_owner = unsafe { AtomicU64::from_ptr(slot.add(7)) };
        opcode_and_owner.store((last | owner).to_be(), Ordering::Release);
    }

    /// Stores an array of mini CQEs in the CQ ring's slot for an index. The program does not read
    /// them before the title.
    fn store_array(&mut self, index: u32, array: &NicCqe) {
        let slot = self.slot(index).cast::<u64>();
        for (at, word) in array.0.iter().enumerate() {
            // SAFETY: the slot's 64 bytes are in the ring, aligned, and belong to the NIC until the
            // title passes them to the program.
            unsafe { slot.add(at).write(word.to_be()) };
        }
    }

    /// Appends a CQE to the CQ, which becomes visible after those before it.
    #[inline(always)]
    fn write(&mut self, cqe: &NicCqe) {
        let index = self.producer;
        self.producer = index.wrapping_add(1);
        self.write_at(index, cqe);
    }

    #[inline(always)]
    fn write_at(&mut self, index: u32, cqe: &NicCqe) {
        if self.held {
            self.store(index, cqe);
            prefetch_for_write(self.slot(index.wrapping_add(PREFETCH)));
            if index.wrapping_sub(self.held_index) >= MAX_HELD.min(self.entries() - 1) {
                self.publish_held();
            }
        } else {
            self.held = true;
            self.held_index = index;
            self.held_cqe = *cqe;
        }
    }

    /// Makes the CQEs of the current burst visible to the program.
    fn publish(&mut self) {
        self.end_session();
        self.publish_held();
    }

    fn publish_held(&mut self) {
        if self.held {
            self.held = false;
            let cqe = self.held_cqe;
            self.store(self.held_index, &cqe);
        }
    }

    #[cold]
    fn raise_if_armed(&mut self, error: bool) {
        match self.armed {
            Armed::No => {}
            Armed::Yes { errors_only } => {
                if errors_only && !error {
                    return;
                }
                if self.is_moderated(errors_only) {
                    self.armed = Armed::Moderated {
                        since_ns: None,
                        count: 1,
                    };
                } else {
                    self.fire();
                }
            }
            Armed::Moderated { since_ns, count } => {
                let count = count + 1;
                self.armed = Armed::Moderated { since_ns, count };
                if count >= u32::from(self.moderation.count) {
                    self.fire();
                }
            }
        }
    }

    /// Returns `true` if moderation delays the CQ's completion events.
    fn is_moderated(&self, errors_only: bool) -> bool {
        self.moderation.count > 1 && self.moderation.period > 0 && !errors_only
    }

    fn fire(&mut self) {
        self.armed = Armed::No;
        self.publish();
        if let Some(completions) = &self.completions {
            completions
                .channel
                .complete(completions.element, &completions.reported);
        }
    }

    /// Returns the numbers of the CQ's completions in error since the last call; `None` if there
    /// were none.
    pub fn take_errors(&mut self) -> Option<ErrorCounts> {
        let any = self.errors.receive + self.errors.send > 0;
        any.then(|| std::mem::take(&mut self.errors))
    }

    /// Publishes the burst's CQEs in the CQ. Then checks whether the program has armed the CQ, and
    /// whether a moderated event is due. Must be called at the end of each burst.
    pub fn end_burst(&mut self, now_ns: u64) {
        self.publish();
        if let Armed::Moderated { since_ns, .. } = &mut self.armed {
            let since_ns = *since_ns.get_or_insert(now_ns);
            if now_ns.saturating_sub(since_ns) >= u64::from(self.moderation.period) * 1000 {
                self.fire();
            }
        }
        if self.record.load(ARM) == NOT_ARMED {
            return;
        }
        let arm = self.record.swap(ARM, NOT_ARMED);
        if arm == NOT_ARMED {
            return;
        }
        // PRM "CQ doorbell record": command sequence number, command, consumer index.
        let errors_only = arm & abi::MLX5_CQ_DB_REQ_NOT_SOL != 0;
        let consumer = arm & MASK_24;
        self.armed = Armed::Yes { errors_only };
        let waiting = self.behind(consumer);
        let error_waits = self.producer.wrapping_sub(self.error_end) < waiting;
        if waiting > 0 && (!errors_only || error_waits) {
            // CQEs from before the arming count, because the program has not consumed them.
            if self.is_moderated(errors_only) && waiting < u32::from(self.moderation.count) {
                self.armed = Armed::Moderated {
                    since_ns: Some(now_ns),
                    count: waiting,
                };
            } else {
                self.fire();
            }
        }
    }

    /// Raises a moderated event of the CQ that would be due before `until_ns`, because the NIC's
    /// thread does not check until then.
    pub fn fire_due_before(&mut self, until_ns: u64) {
        if let Armed::Moderated { since_ns, .. } = self.armed {
            let due =
                since_ns.map(|it| it.saturating_add(u64::from(self.moderation.period) * 1000));
            if due.is_none_or(|due| due < until_ns) {
                self.fire();
            }
        }
    }

    /// Continues a CQ in another ring in the program's memory (RESIZE_CQ). Unconsumed CQEs stay in
    /// the old ring, followed by one with opcode RESIZE. libmlx5 copies them to the new ring, one
    /// slot further. Fails with `EINVAL` if they would not fit, or as [`NicRing::new`] does.
    pub fn resize(
        &mut self,
        ring_addr: u64,
        log_entries: u32,
        entry_size: u32,
    ) -> Result<(), Errno> {
        refuse_if(!self.has_room(1), libc::EINVAL)?;
        self.consumer = self.record.load(CONSUMER);
        refuse_if(self.outstanding() + 1 > 1 << log_entries, libc::EINVAL)?;
        let ring = NicRing::new(ring_addr, u64::from(entry_size) << log_entries)?;
        self.end_session();
        self.write(&NicCqe::resized());
        self.publish();
        self.ring = ring;
        self.log_entries = log_entries;
        self.entry_shift = entry_size.trailing_zeros();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cqe::{RxInfo, WqeError};
    use crate::device::session::MiniCqeFormat;

    struct Memory {
        ring: Vec<u64>,
        record: Box<[u64; 2]>,
    }

    impl Memory {
        fn new() -> Self {
            Self {
                ring: vec![0xff; 4096],
                record: Box::new([0; 2]),
            }
        }
        fn base(&self) -> usize {
            (self.ring.as_ptr() as usize).next_multiple_of(64)
        }
        fn cq(&self, log: u32, size: u32) -> (CqObject, Arc<EventChannel>) {
            let channel = EventChannel::asynchronous().unwrap();
            let source = AsyncSource::new(&channel, 9);
            let record = self.record.as_ptr() as u64;
            (
                CqObject::new(self.base() as u64, record, log, size, false, source).unwrap(),
                channel,
            )
        }
        fn byte(&self, at: usize) -> u8 {
            // SAFETY: within the ring.
            unsafe { ((self.base() + at) as *const u8).read_volatile() }
        }
        fn set(&mut self, word: usize, value: u32) {
            let at = (&raw mut *self.record).cast::<u32>();
            // SAFETY: the record has four halves.
            unsafe { at.add(word).write_volatile(value.to_be()) };
        }
    }

    fn rx() -> NicCqe {
        let info = RxInfo {
            hash: 0x0102_0304,
            hash_type: 0x44,
            checks: 6,
            headers: 0x29,
            vlan: 0x0064,
            byte_count: 1500,
            tag: 0xff12_3456,
        };
        NicCqe::received(0x77, 0xabcd, 0x1122_3344_5566_7788, &info)
    }

    #[test]
    fn every_field_has_the_position_of_the_prm() {
        let memory = Memory::new();
        let (mut cq, _channel) = memory.cq(2, 64);
        cq.push(&rx());
        cq.publish();
        let bytes: Vec<u8> = (0..64).map(|at| memory.byte(at)).collect();
        assert_eq!(bytes[12..17], [1, 2, 3, 4, 0x44]);
        assert_eq!(bytes[28..32], [6, 0x29, 0, 100]);
        assert_eq!(bytes[32..36], [0, 0, 0, 0x77]);
        assert_eq!(bytes[44..48], 1500u32.to_be_bytes());
        assert_eq!(bytes[48..56], 0x1122_3344_5566_7788u64.to_be_bytes());
        assert_eq!(bytes[56..60], [0, 0x12, 0x34, 0x56]);
        assert_eq!(bytes[60..64], [0xab, 0xcd, 0, 0x20]);
        cq.push_failed(&NicCqe::failed(5, 3, WqeError::FLUSHED, None, 0));
        let bytes: Vec<u8> = (64..128).map(|at| memory.byte(at)).collect();
        assert_eq!((bytes[54], bytes[55], bytes[63]), (0xf9, 5, 0xe0));
    }

    #[test]
    fn the_owner_bit_changes_each_round_and_128_byte_cqes_use_the_second_half() {
        for (size, last) in [(64, 63), (128, 127)] {
            let mut memory = Memory::new();
            let (mut cq, _channel) = memory.cq(2, size as u32);
            for index in 0..12 {
                memory.set(0, index);
                cq.push(&rx());
                cq.publish();
                let at = (index as usize % 4) * size + last;
                assert_eq!(memory.byte(at), 0x20 | (index / 4 % 2) as u8, "{index}");
            }
        }
    }

    #[test]
    fn a_bursts_first_cqe_becomes_visible_last() {
        let memory = Memory::new();
        let (mut cq, _channel) = memory.cq(8, 64);
        for _ in 0..3 {
            cq.push(&rx());
        }
        assert_eq!((memory.byte(63), memory.byte(127)), (0, 0x20));
        cq.end_burst(0);
        assert_eq!(memory.byte(63), 0x20);
        // A long burst is published in parts, a failure at once.
        for _ in 0..=MAX_HELD {
            assert_eq!(memory.byte(3 * 64 + 63), 0);
            cq.push(&rx());
        }
        assert_eq!(memory.byte(3 * 64 + 63), 0x20);
        cq.push(&rx());
        cq.push_failed(&NicCqe::failed(1, 2, WqeError::FLUSHED, None, 0));
        let first = (4 + MAX_HELD as usize) * 64;
        assert_eq!(
            (memory.byte(first + 63), memory.byte(first + 127)),
            (0x20, 0xe0)
        );
    }

    #[test]
    fn a_consumer_index_may_have_sixteen_bits() {
        let mut memory = Memory::new();
        let (mut cq, _channel) = memory.cq(4, 64);
        for index in 0..200_000u32 {
            memory.set(0, index & 0xffff);
            assert!(cq.has_room(16) && !cq.has_room(17), "{index}");
            cq.push(&rx());
            cq.publish();
        }
    }

    #[test]
    fn an_overrun_stops_the_cq_and_raises_one_event() {
        let memory = Memory::new();
        let (mut cq, channel) = memory.cq(2, 64);
        for _ in 0..4 {
            assert!(cq.has_room(1));
            cq.push(&rx());
        }
        assert!(!cq.has_room(1));
        cq.push(&rx());
        cq.push(&rx());
        assert!(cq.is_dead());
        cq.end_burst(0);
        assert_eq!(memory.byte(63), 0x20, "earlier CQEs are visible");
        use crate::process::descriptors::File;
        let mut event = [0; 16];
        channel.read(channel.fd(), &mut event).unwrap();
        assert_eq!((event[0], event[8]), (9, 0));
        assert_eq!(cq.events.finish(), 1);
    }

    #[test]
    fn one_arming_raises_one_event_even_for_earlier_cqes() {
        let mut memory = Memory::new();
        let (mut cq, _events) = memory.cq(4, 64);
        let channel = EventChannel::completion().unwrap();
        let reported = Reported::default();
        cq.completions = Some(CompletionEvents {
            channel: Arc::clone(&channel),
            element: 3,
            reported: reported.clone(),
        });
        let fired = |count: u32| {
            use crate::process::descriptors::File;
            let mut poll = libc::pollfd {
                fd: channel.fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one pollfd.
            while unsafe { libc::poll(&mut poll, 1, 0) } == 1 {
                channel.read(channel.fd(), &mut [0; 8]).unwrap();
            }
            assert_eq!(reported.load(Ordering::Relaxed), count);
        };
        cq.push(&rx());
        cq.end_burst(0);
        fired(0);
        memory.set(1, 0);
        cq.end_burst(0);
        fired(1);
        // Armed with everything consumed: the next CQE raises the event, the one behind it does
        // not.
        memory.set(1, 1 << 28 | 1);
        cq.end_burst(0);
        fired(1);
        cq.push(&rx());
        cq.push(&rx());
        fired(2);
        // Solicited only: a frame raises no event, a failure does.
        memory.set(1, abi::MLX5_CQ_DB_REQ_NOT_SOL | 3);
        cq.end_burst(0);
        cq.push(&rx());
        fired(2);
        cq.push_failed(&NicCqe::failed(5, 3, WqeError::FLUSHED, None, 0));
        fired(3);
        // Moderated: by count, then by time.
        cq.moderation = CqModeration {
            count: 3,
            period: 10,
        };
        memory.set(1, 2 << 28 | 5);
        cq.end_burst(1_000);
        cq.push(&rx());
        cq.push(&rx());
        cq.end_burst(10_999);
        fired(3);
        cq.push(&rx());
        fired(4);
        memory.set(1, 3 << 28 | 8);
        cq.end_burst(20_000);
        cq.push(&rx());
        cq.end_burst(25_000);
        cq.end_burst(34_999);
        fired(4);
        cq.end_burst(35_000);
        fired(5);
        // Raised before a rest during which it would be due.
        memory.set(1, 9);
        cq.end_burst(40_000);
        cq.push(&rx());
        cq.end_burst(45_000);
        cq.fire_due_before(55_000);
        fired(5);
        cq.fire_due_before(55_001);
        fired(6);
    }

    /// Reads completions as `mlx5_rx_poll_len` of DPDK does: hash, counter of the title, length.
    /// `next` is the consumer index.
    fn poll(memory: &mut Memory, next: &mut u32, log: u32) -> Vec<(u32, u16, u32)> {
        const INVALID: u64 = (abi::MLX5_CQE_INVALID as u64) << 4;
        let at = |memory: &Memory, index: u32, word: u32| {
            let slot =
                (memory.base() as u64 + u64::from(index & ((1 << log) - 1)) * 64) as *mut u64;
            slot.wrapping_add(word as usize)
        };
        let mut all = Vec::new();
        loop {
            // SAFETY: within the ring.
            let word =
                |index, word| u64::from_be(unsafe { at(memory, index, word).read_volatile() });
            let own = word(*next, 7);
            if own & 1 != u64::from(*next >> log & 1) || own & 0xf0 == INVALID {
                memory.set(0, *next);
                return all;
            }
            assert_eq!(own >> 4 & 0xf, u64::from(abi::MLX5_CQE_RESP_SEND));
            let counter = (own >> 16) as u16;
            let count = match own >> 2 & 3 {
                3 => word(*next, 5) as u32,
                _ => {
                    all.push((word(*next, 1) as u32, counter, word(*next, 5) as u32));
                    *next += 1;
                    continue;
                }
            };
            for mini in 0..count {
                let array = *next + (mini / 8 * 8).max(1);
                let mini = word(array, mini % 8);
                all.push(((mini >> 32) as u32, counter, mini as u32));
            }
            for index in *next..*next + count {
                // SAFETY: as above.
                unsafe { at(memory, index, 7).write_volatile(INVALID.to_be()) };
            }
            *next += count;
        }
    }

    #[test]
    fn completions_of_a_session_read_like_uncompressed_ones() {
        for (log, max, wraps) in [(4, 64, false), (4, 64, true), (7, 64, false), (7, 5, true)] {
            let mut memory = Memory::new();
            let (mut cq, _channel) = memory.cq(log, 64);
            cq.compress(Session::new(MiniCqeFormat::Hash, max, wraps));
            // Every slot belongs to the NIC at first: libmlx5 initialises them so.
            memory.ring.fill(u64::MAX);
            let mut next = 0;
            let mut sent = 0u32;
            for burst in 0..2000u32 {
                let frames = burst * 7 % (1 << log) + 1;
                let first = sent;
                while sent < first + frames {
                    let info = RxInfo {
                        hash: sent.wrapping_mul(0x9e37_79b9),
                        headers: (sent / 41 % 3) as u8,
                        byte_count: 60 + sent % 1400,
                        ..RxInfo::default()
                    };
                    assert!(cq.has_room(1));
                    cq.push(&NicCqe::received(3, sent as u16, 0, &info));
                    sent += 1;
                }
                cq.end_burst(0);
                let read = poll(&mut memory, &mut next, log);
                assert_eq!(read.len(), frames as usize, "{log} {max} {burst}");
                let mut last = first;
                for ((hash, counter, len), number) in read.into_iter().zip(first..) {
                    assert_eq!(hash, number.wrapping_mul(0x9e37_79b9));
                    assert_eq!(len, 60 + number % 1400);
                    if counter == number as u16 {
                        last = number;
                    }
                    assert_eq!(counter, last as u16, "the counter of the title");
                    let round = |number: u32| number >> log;
                    assert!(number - last < max && (wraps || round(last) == round(number)));
                    assert_eq!(
                        last / 41 % 3,
                        number / 41 % 3,
                        "header types equal those of the title"
                    );
                }
            }
        }
    }

    #[test]
    fn a_session_ends_with_an_error_and_before_an_event() {
        let mut memory = Memory::new();
        let (mut cq, _events) = memory.cq(4, 64);
        memory.ring.fill(u64::MAX);
        cq.compress(Session::new(MiniCqeFormat::ChecksumStride, 64, false));
        for _ in 0..3 {
            cq.push(&rx());
        }
        assert_eq!(memory.byte(63), 0xff);
        cq.push_failed(&NicCqe::failed(5, 3, WqeError::FLUSHED, None, 0));
        assert_eq!(memory.byte(63), 0x2c, "a title");
        assert_eq!((memory.byte(47), memory.byte(3 * 64 + 63)), (3, 0xe0));
        // An armed CQ raises its event after the CQEs are visible.
        cq.end_burst(0);
        memory.set(1, 1 << 28 | 4);
        cq.end_burst(0);
        cq.push(&rx());
        assert_eq!(memory.byte(4 * 64 + 63), 0x20);
        cq.push(&rx());
        cq.resize(memory.base() as u64 + 8192, 5, 64).unwrap();
        assert_eq!(
            memory.byte(5 * 64 + 63),
            0x20,
            "a single CQE is not a title"
        );
        assert_eq!(
            memory.byte(6 * 64 + 63),
            (abi::MLX5_CQE_RESIZE_CQ << 4) as u8
        );
    }

    #[test]
    fn a_resize_writes_a_mark_and_continues_one_slot_further() {
        let memory = Memory::new();
        let other = Memory::new();
        let (mut cq, _channel) = memory.cq(2, 64);
        cq.push(&rx());
        cq.resize(other.base() as u64, 3, 64).unwrap();
        assert_eq!(memory.byte(64 + 63), (abi::MLX5_CQE_RESIZE_CQ << 4) as u8);
        cq.push(&rx());
        cq.publish();
        assert_eq!(other.byte(2 * 64 + 63), 0x20);
        assert_eq!(cq.entries(), 8);
        assert_eq!(cq.resize(other.base() as u64, 1, 64), Err(libc::EINVAL));
    }
}
