//! Completion queues: CQEs with their owner bit, arming, moderation, overrun.
//!
//! May import `abi`, `event`, `memory`, `fds`. Invariants: a slot is written only while the consumer
//! index says it is the NIC's (or the CQ was made to ignore overruns); the last word of a CQE, with
//! opcode and owner in it, is stored last; an armed CQ fires once per arming, and after its CQEs can be
//! seen.
//!
//! The first CQE of a burst is held back and published after the others. A program polls that very
//! slot: written at once, its cache line would change cores for each frame, and that, not the copying,
//! would be what a frame costs. Since CQEs are consumed in order, nobody sees the difference, but that
//! they come by the burst.

#![allow(unsafe_code)]

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{self, mlx5_cqe64, mlx5_err_cqe};
use crate::device::event::{AsyncEvent, AsyncSource, EventChannel, Reported};
use crate::device::memory::{DoorbellRecord, Ring};
use crate::process::Errno;

/// Words of a CQ's doorbell record (PRM "CQ doorbell record").
const CONSUMER: usize = 0;
const ARM: usize = 1;
/// What the device leaves in the arm word to notice that the user has written it: the first arming
/// writes 0, which is also what the word began with. No arm command has its two highest bits set.
const NOT_ARMED: u32 = u32::MAX;
/// Indexes in doorbell records have 24 bits.
const INDEX_MASK: u32 = 0xff_ffff;
/// Slots ahead of the producer that are fetched for writing.
const PREFETCH: u32 = 16;
/// CQEs behind a held one at which it is published at the latest.
const HELD_BACK: u32 = 64;

/// One CQE in the making (PRM "CQE format"): eight big-endian words of which the last goes last.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cqe([u64; 8]);

// The words below are made of these fields.
const _: () = {
    // Of the generated layout's first half only this is named.
    assert!(offset_of!(mlx5_cqe64, srqn_uidx) == 32);
    assert!(offset_of!(mlx5_cqe64, byte_cnt) == 44);
    assert!(offset_of!(mlx5_cqe64, timestamp) == 48);
    assert!(offset_of!(mlx5_cqe64, sop_drop_qpn) == 56);
    assert!(offset_of!(mlx5_cqe64, wqe_counter) == 60);
    assert!(offset_of!(mlx5_cqe64, op_own) == 63);
    assert!(offset_of!(mlx5_err_cqe, srqn) == 32);
    assert!(offset_of!(mlx5_err_cqe, vendor_err_synd) == 54);
    assert!(offset_of!(mlx5_err_cqe, syndrome) == 55);
    assert!(offset_of!(mlx5_err_cqe, s_wqe_opcode_qpn) == 56);
};

/// What a received frame's CQE says besides where it went.
#[derive(Debug, Clone, Copy, Default)]
pub struct RxInfo {
    /// `rss_hash_result`, bytes 12 to 15.
    pub hash: u32,
    /// `rss_hash_type`, byte 16: bits 3:2 the IP version hashed (1 IPv4, 2 IPv6), bits 7:6 the transport
    /// (1 TCP, 2 UDP); bits 1:0 and 5:4 the same for the source fields.
    pub hash_type: u8,
    /// `hds_ip_ext`, byte 28: `MLX5_CQE_L3_OK`, `MLX5_CQE_L4_OK`.
    pub checks: u8,
    /// `l4_hdr_type_etc`, byte 29: bits 6:4 transport, bits 3:2 network layer, bit 0 `cv`.
    pub headers: u8,
    /// `vlan_info`, bytes 30 and 31.
    pub vlan: u16,
    /// `byte_cnt`.
    pub byte_count: u32,
    /// Flow tag, in the low 24 bits of `sop_drop_qpn`.
    pub tag: u32,
}

/// What a failed WQE's CQE says.
#[derive(Debug, Clone, Copy)]
pub struct Failure {
    /// `MLX5_CQE_SYNDROME_*`.
    pub syndrome: u8,
    /// `vendor_err_synd`.
    pub vendor: u8,
}

impl Failure {
    /// The queue was in error, or went into it, when the WQE's turn came.
    pub const FLUSHED: Self = Self {
        syndrome: abi::MLX5_CQE_SYNDROME_WR_FLUSH_ERR as u8,
        vendor: 0xf9,
    };
    /// A frame longer than its buffers.
    pub const TOO_LONG: Self = Self {
        syndrome: abi::MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR as u8,
        vendor: 0x32,
    };
    /// A key, a range or a right that does not hold.
    pub const PROTECTION: Self = Self {
        syndrome: abi::MLX5_CQE_SYNDROME_LOCAL_PROT_ERR as u8,
        vendor: 0x51,
    };
    /// A WQE that is no such thing.
    pub const BAD_WQE: Self = Self {
        syndrome: abi::MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR as u8,
        vendor: 0x68,
    };
}

impl Cqe {
    /// A frame was received.
    #[inline(always)]
    pub fn received(uidx: u32, wqe_counter: u16, timestamp: u64, info: &RxInfo) -> Self {
        Self([
            0,
            u64::from(info.hash),
            u64::from(info.hash_type) << 56,
            u64::from(info.checks) << 24 | u64::from(info.headers) << 16 | u64::from(info.vlan),
            u64::from(uidx) << 32,
            u64::from(info.byte_count),
            timestamp,
            last_word(info.tag & INDEX_MASK, wqe_counter, abi::MLX5_CQE_RESP_SEND),
        ])
    }

    /// A WQE was sent.
    #[inline]
    pub fn sent(
        uidx: u32,
        wqe_counter: u16,
        timestamp: u64,
        opcode: u8,
        qpn: u32,
        byte_count: u32,
    ) -> Self {
        let sop_drop_qpn = u32::from(opcode) << 24 | qpn & INDEX_MASK;
        Self([
            0,
            0,
            0,
            0,
            u64::from(uidx) << 32,
            u64::from(byte_count),
            timestamp,
            last_word(sop_drop_qpn, wqe_counter, abi::MLX5_CQE_REQ),
        ])
    }

    /// A WQE failed: of the receive side, or of the send side with its opcode.
    pub fn failed(
        uidx: u32,
        wqe_counter: u16,
        failure: Failure,
        send: Option<u8>,
        qpn: u32,
    ) -> Self {
        let opcode = if send.is_some() {
            abi::MLX5_CQE_REQ_ERR
        } else {
            abi::MLX5_CQE_RESP_ERR
        };
        let wqe = u32::from(send.unwrap_or(0)) << 24 | qpn & INDEX_MASK;
        let syndrome = u64::from(failure.vendor) << 8 | u64::from(failure.syndrome);
        Self([
            0,
            0,
            0,
            0,
            u64::from(uidx) << 32,
            0,
            syndrome,
            last_word(wqe, wqe_counter, opcode),
        ])
    }

    /// The CQ continues in another ring.
    fn resized() -> Self {
        Self([
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            last_word(0, 0, abi::MLX5_CQE_RESIZE_CQ),
        ])
    }

    fn opcode(&self) -> u32 {
        (self.0[7] as u32 & 0xff) >> 4
    }
}

#[inline]
fn last_word(sop_drop_qpn: u32, wqe_counter: u16, opcode: u32) -> u64 {
    u64::from(sop_drop_qpn) << 32 | u64::from(wqe_counter) << 16 | u64::from(opcode) << 4
}

/// Completions in error, by what the port counts.
#[derive(Debug, Clone, Copy, Default)]
pub struct CqeErrors {
    /// Of the receive side, all.
    pub receive: u64,
    /// Flushes among them.
    pub receive_flushed: u64,
    /// Frames too long among them.
    pub receive_length: u64,
    /// Of the send side, all.
    pub send: u64,
    /// Flushes among them.
    pub send_flushed: u64,
}

impl CqeErrors {
    fn count(&mut self, cqe: &Cqe) {
        let syndrome = cqe.0[6] as u32 & 0xff;
        let flushed = u64::from(syndrome == abi::MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
        if cqe.opcode() == abi::MLX5_CQE_REQ_ERR {
            self.send += 1;
            self.send_flushed += flushed;
        } else {
            self.receive += 1;
            self.receive_flushed += flushed;
            self.receive_length += u64::from(syndrome == abi::MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
        }
    }
}

/// What EX_MODIFY_CQ sets. Either at zero: no moderation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moderation {
    /// CQEs after which an armed CQ fires.
    pub count: u16,
    /// Microseconds after its first CQE in which it fires at the latest.
    pub period: u16,
}

/// Whether the CQ waits for something to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Armed {
    No,
    /// For any CQE, or for one in error only (no received frame is solicited).
    Yes {
        errors_only: bool,
    },
    /// It has CQEs to tell of, the first of them since `since_ns` (unknown until the burst it came with ends), but
    /// moderation holds it back.
    Holding {
        since_ns: Option<u64>,
        count: u32,
    },
}

/// Where completion events go.
pub struct Completions {
    /// The program's channel.
    pub channel: Arc<EventChannel>,
    /// The program's own handle for the CQ.
    pub element: u64,
    /// How many events it has read.
    pub reported: Reported,
}

/// A completion queue.
pub struct Cq {
    ring: Ring,
    record: DoorbellRecord,
    /// Base-2 logarithms of the number of CQEs and of a CQE's size.
    log_entries: u32,
    entry_shift: u32,
    producer: u32,
    /// As last read from the record; behind what the user has consumed, never ahead.
    consumer: u32,
    /// The producer behind the last CQE in error.
    error_end: u32,
    /// The first CQE of the burst, if it is still to be published.
    held: bool,
    held_index: u32,
    held_cqe: Cqe,
    ignore_overrun: bool,
    overrun: bool,
    armed: Armed,
    /// What EX_MODIFY_CQ set.
    pub moderation: Moderation,
    /// Where completion events go, if anywhere.
    pub completions: Option<Completions>,
    /// Where the CQ's own failures go.
    pub events: AsyncSource,
    /// Whether the timestamps are UTC (`MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS`).
    pub real_time: bool,
    /// The number in the NIC (CQN).
    pub number: u32,
    /// WQs and QPs that complete here.
    pub users: u32,
    errors: CqeErrors,
}

impl Cq {
    /// A CQ over a user's ring of `1 << log_entries` CQEs of `entry_size` bytes.
    ///
    /// # Errors
    /// As [`Ring::new`] and [`DoorbellRecord::new`].
    pub fn new(
        ring_addr: u64,
        record_addr: u64,
        log_entries: u32,
        entry_size: u32,
        ignore_overrun: bool,
        events: AsyncSource,
    ) -> Result<Self, Errno> {
        let ring = Ring::new(ring_addr, u64::from(entry_size) << log_entries)?;
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
            held_cqe: Cqe::default(),
            ignore_overrun,
            overrun: false,
            armed: Armed::No,
            moderation: Moderation::default(),
            completions: None,
            events,
            real_time: false,
            number: 0,
            users: 0,
            errors: CqeErrors::default(),
        })
    }

    /// CQEs in the ring.
    pub fn entries(&self) -> u32 {
        1 << self.log_entries
    }

    /// Whether it can take `count` CQEs without overrunning.
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
        self.producer.wrapping_sub(self.consumer) & INDEX_MASK
    }

    /// Whether the user has consumed every CQE.
    pub fn is_drained(&mut self) -> bool {
        self.consumer = self.record.load(CONSUMER);
        self.overrun || self.outstanding() == 0
    }

    /// Whether it has overrun: it is dead, and so is what completes here.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.overrun
    }

    /// The CQ overran: a CQE is lost, and no further one will come.
    #[cold]
    pub fn fail(&mut self) {
        if !self.overrun {
            self.overrun = true;
            self.events.raise(AsyncEvent::CqErr);
        }
    }

    /// Writes the CQE of a success. The caller has asked [`Cq::has_room`]; if it has not, the CQ fails.
    #[inline(always)]
    pub fn push(&mut self, cqe: &Cqe) {
        if !self.has_room(1) {
            self.fail();
            return;
        }
        self.write(cqe);
        if self.armed != Armed::No {
            self.notice(false);
        }
    }

    /// Writes the CQE of a failure.
    pub fn push_failed(&mut self, cqe: &Cqe) {
        if !self.has_room(1) {
            self.fail();
            return;
        }
        self.write(cqe);
        // Commands answer when they are done, so their flushes are seen then.
        self.publish();
        self.error_end = self.producer;
        self.errors.count(cqe);
        self.notice(true);
    }

    /// In a 128-byte CQE the 64 bytes that count are the second half.
    #[inline(always)]
    fn slot(&self, index: u32) -> *mut u8 {
        let slot = (index & (self.entries() - 1)) as usize;
        self.ring
            .at((slot << self.entry_shift) + (1 << self.entry_shift) - 64)
    }

    /// Stores a CQE in the slot of that index.
    #[inline(always)]
    fn store(&mut self, index: u32, cqe: &Cqe) {
        // The owner bit changes with each round of the ring.
        let owner = u64::from(index >> self.log_entries & abi::MLX5_CQE_OWNER_MASK);
        let slot = self.slot(index).cast::<u64>();
        let [head @ .., last] = &cqe.0;
        for (at, word) in head.iter().enumerate() {
            // SAFETY: the slot's 64 bytes lie in the ring, aligned, and are the NIC's until the last
            // word gives them to the user.
            unsafe { slot.add(at).write(word.to_be()) };
        }
        // SAFETY: as above; atomic because the user polls this word.
        let opcode_and_owner = unsafe { AtomicU64::from_ptr(slot.add(7)) };
        opcode_and_owner.store((last | owner).to_be(), Ordering::Release);
    }

    /// Produces a CQE, which is seen when those before it are.
    #[inline(always)]
    fn write(&mut self, cqe: &Cqe) {
        let index = self.producer;
        self.producer = index.wrapping_add(1);
        if self.held {
            self.store(index, cqe);
            prefetch_for_write(self.slot(index.wrapping_add(PREFETCH)));
            if index.wrapping_sub(self.held_index) >= HELD_BACK.min(self.entries() - 1) {
                self.publish();
            }
        } else {
            self.held = true;
            self.held_index = index;
            self.held_cqe = *cqe;
        }
    }

    /// Lets the user see what has been written.
    fn publish(&mut self) {
        if self.held {
            self.held = false;
            let cqe = self.held_cqe;
            self.store(self.held_index, &cqe);
        }
    }

    #[cold]
    fn notice(&mut self, error: bool) {
        match self.armed {
            Armed::No => {}
            Armed::Yes { errors_only } => {
                if errors_only && !error {
                    return;
                }
                if self.moderates(errors_only) {
                    self.armed = Armed::Holding {
                        since_ns: None,
                        count: 1,
                    };
                } else {
                    self.fire();
                }
            }
            Armed::Holding { since_ns, count } => {
                let count = count + 1;
                self.armed = Armed::Holding { since_ns, count };
                if count >= u32::from(self.moderation.count) {
                    self.fire();
                }
            }
        }
    }

    /// Whether events wait for more CQEs, or for their time.
    fn moderates(&self, errors_only: bool) -> bool {
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

    /// Hands over the completions in error since the last call.
    pub fn take_errors(&mut self) -> Option<CqeErrors> {
        let any = self.errors.receive + self.errors.send > 0;
        any.then(|| std::mem::take(&mut self.errors))
    }

    /// Publishes what the burst brought; then looks whether the user has armed the CQ, and whether an
    /// event that moderation holds is due. To be called at the end of each burst.
    pub fn tend(&mut self, now_ns: u64) {
        self.publish();
        if let Armed::Holding { since_ns, .. } = &mut self.armed {
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
        let consumer = arm & INDEX_MASK;
        self.armed = Armed::Yes { errors_only };
        let waiting = self.producer.wrapping_sub(consumer) & INDEX_MASK;
        let errors = self.error_end.wrapping_sub(consumer) & INDEX_MASK;
        if waiting > 0 && (!errors_only || errors > 0 && errors <= waiting) {
            // What came before the arming counts: the user has not seen it.
            if self.moderates(errors_only) && waiting < u32::from(self.moderation.count) {
                self.armed = Armed::Holding {
                    since_ns: Some(now_ns),
                    count: waiting,
                };
            } else {
                self.fire();
            }
        }
    }

    /// Continues in another ring (RESIZE_CQ). CQEs not consumed stay in the old one, closed by one of
    /// opcode RESIZE, and libmlx5 copies them over, one place further on.
    ///
    /// # Errors
    /// `EINVAL` if they would not fit, or as [`Ring::new`].
    pub fn resize(
        &mut self,
        ring_addr: u64,
        log_entries: u32,
        entry_size: u32,
    ) -> Result<(), Errno> {
        if !self.has_room(1) {
            return Err(libc::EINVAL);
        }
        self.consumer = self.record.load(CONSUMER);
        if self.outstanding() + 1 > 1 << log_entries {
            return Err(libc::EINVAL);
        }
        let ring = Ring::new(ring_addr, u64::from(entry_size) << log_entries)?;
        self.write(&Cqe::resized());
        self.publish();
        self.ring = ring;
        self.log_entries = log_entries;
        self.entry_shift = entry_size.trailing_zeros();
        Ok(())
    }
}

/// Asks for a cache line that will be read soon.
#[inline(always)]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect but on caches, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks for a cache line that will be written soon. Reading it first, as an ordinary prefetch does, would
/// ask for it twice.
#[inline(always)]
pub fn prefetch_for_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect but on caches, whatever the address. Processors that do not know
    // this one do nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

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
        fn cq(&self, log: u32, size: u32) -> (Cq, Arc<EventChannel>) {
            let channel = EventChannel::asynchronous().unwrap();
            let source = AsyncSource::new(&channel, 9);
            let record = self.record.as_ptr() as u64;
            (
                Cq::new(self.base() as u64, record, log, size, false, source).unwrap(),
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

    fn rx() -> Cqe {
        let info = RxInfo {
            hash: 0x0102_0304,
            hash_type: 0x44,
            checks: 6,
            headers: 0x29,
            vlan: 0x0064,
            byte_count: 1500,
            tag: 0xff12_3456,
        };
        Cqe::received(0x77, 0xabcd, 0x1122_3344_5566_7788, &info)
    }

    #[test]
    fn every_field_is_where_the_reference_has_it() {
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
        cq.push_failed(&Cqe::failed(5, 3, Failure::FLUSHED, None, 0));
        let bytes: Vec<u8> = (64..128).map(|at| memory.byte(at)).collect();
        assert_eq!((bytes[54], bytes[55], bytes[63]), (0xf9, 5, 0xe0));
    }

    #[test]
    fn the_owner_bit_changes_each_round_and_128_byte_cqes_count_behind() {
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
    fn a_bursts_first_cqe_is_seen_last() {
        let memory = Memory::new();
        let (mut cq, _channel) = memory.cq(8, 64);
        for _ in 0..3 {
            cq.push(&rx());
        }
        assert_eq!((memory.byte(63), memory.byte(127)), (0, 0x20));
        cq.tend(0);
        assert_eq!(memory.byte(63), 0x20);
        // A long burst is seen in parts, a failure at once.
        for _ in 0..=HELD_BACK {
            assert_eq!(memory.byte(3 * 64 + 63), 0);
            cq.push(&rx());
        }
        assert_eq!(memory.byte(3 * 64 + 63), 0x20);
        cq.push(&rx());
        cq.push_failed(&Cqe::failed(1, 2, Failure::FLUSHED, None, 0));
        let first = (4 + HELD_BACK as usize) * 64;
        assert_eq!(
            (memory.byte(first + 63), memory.byte(first + 127)),
            (0x20, 0xe0)
        );
    }

    #[test]
    fn an_overrun_kills_it_and_is_told_once() {
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
        cq.tend(0);
        assert_eq!(memory.byte(63), 0x20, "what came before is seen");
        use crate::process::descriptors::File;
        let mut event = [0; 16];
        channel.read(channel.fd(), &mut event).unwrap();
        assert_eq!((event[0], event[8]), (9, 0));
        assert_eq!(cq.events.finish(), 1);
    }

    #[test]
    fn armed_once_fires_once_even_for_what_came_before() {
        let mut memory = Memory::new();
        let (mut cq, _events) = memory.cq(4, 64);
        let channel = EventChannel::completion().unwrap();
        let reported = Reported::default();
        cq.completions = Some(Completions {
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
        cq.tend(0);
        fired(0);
        memory.set(1, 0);
        cq.tend(0);
        fired(1);
        // Armed with everything consumed: the next CQE fires, the one behind it does not.
        memory.set(1, 1 << 28 | 1);
        cq.tend(0);
        fired(1);
        cq.push(&rx());
        cq.push(&rx());
        fired(2);
        // Solicited only: a frame does not fire, a failure does.
        memory.set(1, abi::MLX5_CQ_DB_REQ_NOT_SOL | 3);
        cq.tend(0);
        cq.push(&rx());
        fired(2);
        cq.push_failed(&Cqe::failed(5, 3, Failure::FLUSHED, None, 0));
        fired(3);
        // Moderated: by count, then by time.
        cq.moderation = Moderation {
            count: 3,
            period: 10,
        };
        memory.set(1, 2 << 28 | 5);
        cq.tend(1_000);
        cq.push(&rx());
        cq.push(&rx());
        cq.tend(10_999);
        fired(3);
        cq.push(&rx());
        fired(4);
        memory.set(1, 3 << 28 | 8);
        cq.tend(20_000);
        cq.push(&rx());
        cq.tend(25_000);
        cq.tend(34_999);
        fired(4);
        cq.tend(35_000);
        fired(5);
    }

    #[test]
    fn a_resize_leaves_a_mark_and_goes_on_one_further() {
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
