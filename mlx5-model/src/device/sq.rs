//! Send queues of RAW_PACKET QPs.
//!
//! Imports `cq`, `event`, `gather` and `memory`. Invariants: WQEs are executed in order; a WQE that
//! fails stops the queue, and the remaining ones are flushed.

use crate::abi;
use crate::handles::Index;
use crate::process::Errno;

use super::cq::CqObject;
use super::cqe::{NicCqe, WqeError};
use super::event::{AsyncSource, NicEvent};
use super::gather::GatherRing;
use super::memory::{DoorbellRecord, Regions};

/// Index of the send producer word in a work queue's doorbell record.
const PRODUCER: usize = abi::MLX5_SND_DBR as usize;

/// State of a send queue (`enum mlx5_sq_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqState {
    /// Send queue idle: WQEs are not read.
    Idle,
    /// Send queue ready: WQEs are executed.
    Ready,
    /// Send queue in error: WQEs are flushed.
    Error,
}

/// Result of executing a send WQE.
pub struct Executed {
    counter: u16,
    opcode: u8,
    complete: bool,
    /// `true` if the send WQE has a frame to send, or the reason of its failure.
    result: Result<bool, WqeError>,
}

impl Executed {
    /// Returns `true` if the executed send WQE has a frame to send.
    pub fn has_frame(&self) -> bool {
        self.result == Ok(true)
    }
}

/// Send queue of a RAW_PACKET QP.
pub struct Sq {
    wqes: GatherRing,
    record: DoorbellRecord,
    /// Index of the next WQE that the send queue executes, in basic blocks of 64 bytes.
    head: u16,
    /// Producer index of the send queue when its doorbell record was last read, in basic blocks of
    /// 64 bytes.
    producer: u16,
    state: SqState,
    /// Set when every WQE of the send queue completes, requested or not.
    pub signal_all: bool,
    pub cq: Index,
    pub pd: Index,
    pub port: u8,
    /// The program's index of the send queue (`srqn_uidx` of its CQEs).
    pub uidx: u32,
    pub qpn: u32,
    pub events: AsyncSource,
}

impl Sq {
    /// Creates an idle send queue of `blocks` basic blocks (64 bytes) at `ring`. Fails as
    /// [`GatherRing::new`] and [`DoorbellRecord::new`] do.
    pub fn new(
        ring: u64,
        record: u64,
        blocks: u32,
        cq: Index,
        pd: Index,
        uidx: u32,
        events: AsyncSource,
    ) -> Result<Self, Errno> {
        Ok(Self {
            wqes: GatherRing::new(ring, blocks)?,
            record: DoorbellRecord::new(record)?,
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

    #[inline]
    pub fn state(&self) -> SqState {
        self.state
    }

    /// Changes the send queue's state; with `restart` the queue returns to its first WQE, as a
    /// reset does.
    pub fn set_state(&mut self, state: SqState, restart: bool, cq: &mut CqObject) {
        if restart {
            self.head = 0;
            self.producer = 0;
        }
        self.state = state;
        if state == SqState::Error {
            self.flush(cq);
        }
    }

    #[inline]
    pub fn is_empty(&mut self) -> bool {
        if self.producer == self.head {
            self.producer = self.record.load(PRODUCER) as u16;
        }
        self.producer == self.head
    }

    /// Executes the send queue's next WQE, if the queue is ready and one is posted. Leaves its
    /// frame in `frame`.
    pub fn execute_next(&mut self, regions: &Regions, frame: &mut Vec<u8>) -> Option<Executed> {
        if self.state != SqState::Ready || self.is_empty() {
            return None;
        }
        let at = self.wqes.wqe(self.head);
        let control = self.wqes.control(at);
        let result = match u32::from(control.opcode) {
            abi::MLX5_OPCODE_NOP => Ok(false),
            abi::MLX5_OPCODE_SEND => self
                .wqes
                .gather(regions, self.pd, at, control, frame)
                .map(|()| true),
            _ => Err(WqeError::BAD_WQE),
        };
        let executed = Executed {
            counter: self.head,
            opcode: control.opcode,
            complete: self.signal_all || control.complete,
            result,
        };
        self.head = self.head.wrapping_add(control.blocks());
        Some(executed)
    }

    fn push_error(&self, cq: &mut CqObject, counter: u16, error: WqeError, opcode: u8) {
        let cqe = NicCqe::failed(self.uidx, counter, error, Some(opcode), self.qpn);
        cq.push_failed(&cqe);
    }

    /// Writes the CQE of an executed send WQE to the CQ if the WQE requests one or has failed.
    pub fn complete(&mut self, wqe: &Executed, cq: &mut CqObject, timestamp: u64, byte_count: u32) {
        match wqe.result {
            Ok(_) if wqe.complete => {
                let (counter, opcode) = (wqe.counter, wqe.opcode);
                let cqe = NicCqe::sent(self.uidx, counter, timestamp, opcode, self.qpn, byte_count);
                cq.push(&cqe);
                if cq.is_dead() {
                    self.fail(cq);
                }
            }
            Ok(_) => {}
            Err(error) => {
                self.push_error(cq, wqe.counter, error, wqe.opcode);
                self.fail(cq);
            }
        }
    }

    fn fail(&mut self, cq: &mut CqObject) {
        if self.state == SqState::Ready {
            self.set_state(SqState::Error, false, cq);
            self.events.raise(NicEvent::QpFatal);
        }
    }

    /// Completes every posted WQE of the send queue with a flush error, in order.
    pub fn flush(&mut self, cq: &mut CqObject) {
        // The limit of one round ends the loop if the producer index is invalid.
        let mut rounds = self.wqes.blocks();
        while self.state == SqState::Error && !cq.is_dead() && !self.is_empty() && rounds > 0 {
            let control = self.wqes.control(self.wqes.wqe(self.head));
            self.push_error(cq, self.head, WqeError::FLUSHED, control.opcode);
            self.head = self.head.wrapping_add(control.blocks());
            rounds -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)]

    use super::*;
    use crate::device::event::EventChannel;
    use std::sync::Arc;

    struct Bench {
        memory: Vec<u64>,
        regions: Regions,
        lkey: u32,
        cq: CqObject,
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
            let mut cq = CqObject::new(base + CQ as u64, records, 4, 64, false, source()).unwrap();
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
            self.cq.end_burst(0);
            // SAFETY: within the memory.
            unsafe { ((self.base() + CQ + index * 64 + at) as *const u8).read_volatile() }
        }
        /// Stores a send WQE of a control segment and these 16-byte units, and posts `blocks` more
        /// blocks.
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
            let start = self.sq.wqes.wqe(head);
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
            let posted = self.sq.execute_next(&self.regions, &mut frame)?;
            self.sq
                .complete(&posted, &mut self.cq, 5, frame.len() as u32);
            posted.has_frame().then_some(frame)
        }
    }

    #[test]
    fn inline_header_inline_data_and_buffers_join() {
        let mut bench = Bench::new();
        bench.store(DATA, &[9; 32]);
        // 18 bytes of header: 2 in the segment, 16 behind it; then 5 inline bytes, then gathered
        // ones.
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
        // Wraps at the end of the ring: blocks 2, 3, 0.
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
            &[
                Bench::eth(crate::device::gather::INSERT_VLAN, [0x20, 0x64]),
                gathered,
            ],
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
            assert_eq!(bench.sq.events.finish(), 0, "raised, not yet read");
        }
    }

    #[test]
    fn arbitrary_wqe_bytes_do_not_panic() {
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
