//! Queues of a device with the objects that they refer to: all parts between a port and the program
//! that a frame passes.
//!
//! Imports `cq`, `rq`, `sq`, `memory`, `delay_drop`, `object` and `steering`.

use crate::frame::ParsedFrame;
use crate::handles::{Index, LIMIT, ObjectKind, Slab};
use crate::steering::{Target, Tir};

use super::clock::Now;
use super::cq::CqObject;
use super::cqe::RxInfo;
use super::delay_drop::NicDelayDrop;
use super::memory::Regions;
use super::object::CountersObject;
use super::rq::{Room, Rq};
use super::sq::Sq;

/// Queues of a device, with indirection tables, counters and memory regions.
pub struct Queues {
    pub cqs: Slab<CqObject>,
    /// Receive queues of the device's WQs and QPs.
    pub rqs: Slab<Rq>,
    pub sqs: Slab<Sq>,
    /// TIRs: hashes and indirection tables of RSS QPs.
    pub tirs: Slab<Tir>,
    pub counters: Slab<CountersObject>,
    /// Registered memory that the queues may access.
    pub regions: Regions,
    pub delay_drop: NicDelayDrop,
}

impl Queues {
    /// Creates the empty lists of a device's queues, tables and memory regions.
    pub fn new(max_wq: u32, delay_drop: NicDelayDrop) -> Self {
        Self {
            cqs: Slab::new(ObjectKind::Cq, LIMIT),
            rqs: Slab::new(ObjectKind::Rq, max_wq as usize),
            sqs: Slab::new(ObjectKind::Sq, LIMIT),
            tirs: Slab::new(ObjectKind::Tir, LIMIT),
            counters: Slab::new(ObjectKind::Counters, LIMIT),
            regions: Regions::default(),
            delay_drop,
        }
    }

    /// Returns a receive queue with its CQ.
    #[inline]
    pub fn receive_queue(&mut self, rq: Index) -> Option<(&mut Rq, &mut CqObject)> {
        let rq = self.rqs.at_mut(rq)?;
        let cq = self.cqs.at_mut(rq.cq)?;
        Some((rq, cq))
    }

    /// Returns a send queue with its CQ.
    #[inline]
    pub fn send_queue(&mut self, sq: Index) -> Option<(&mut Sq, &mut CqObject)> {
        let sq = self.sqs.at_mut(sq)?;
        let cq = self.cqs.at_mut(sq.cq)?;
        Some((sq, cq))
    }

    /// Returns the room of a target queue: whether it can take a frame after `before` other copies
    /// of it, and its CQ can take `cqes` CQEs.
    #[inline]
    pub fn room(
        &mut self,
        target: &Target,
        frame: &ParsedFrame<'_>,
        before: usize,
        cqes: usize,
    ) -> Room {
        match self.receive_queue(target.rss.rq) {
            Some((rq, cq)) => rq.room(cq, frame, before as u16 + 1, cqes as u32),
            None => Room::NotReady,
        }
    }

    /// Returns `true` if a target queue has delay drop: while it has no room, its frames stay on
    /// the wire.
    pub fn delays(&self, target: &Target) -> bool {
        self.rqs
            .at(target.rss.rq)
            .is_some_and(|rq| rq.features.delay_drop)
    }

    /// Delivers a frame to a target queue if it has room; otherwise does nothing. Returns the room
    /// that the queue had.
    #[inline(always)]
    pub fn deliver(&mut self, frame: &ParsedFrame<'_>, now: &Now, target: Target) -> Room {
        let Some(rq) = self.rqs.at_mut(target.rss.rq) else {
            return Room::NotReady;
        };
        let Some(cq) = self.cqs.at_mut(rq.cq) else {
            return Room::NotReady;
        };
        let info = RxInfo {
            hash: target.rss.hash,
            hash_type: target.rss.hash_type,
            tag: target.tag,
            ..RxInfo::default()
        };
        rq.receive(cq, &self.regions, frame, now, info)
    }

    /// Returns `true` if the program has consumed all completions of frames that the device
    /// received.
    pub fn are_drained(&mut self) -> bool {
        let Self { cqs, rqs, .. } = self;
        rqs.iter()
            .all(|(_, rq)| cqs.at_mut(rq.cq).is_none_or(CqObject::is_drained))
    }

    /// Puts every receive queue of the overrun CQ `dead` into error. Send queues detect the overrun
    /// themselves.
    pub fn fail_receive_queues(&mut self, dead: Index) {
        let Self { cqs, rqs, .. } = self;
        if let Some(cq) = cqs.at_mut(dead) {
            for (_, rq) in rqs.iter_mut().filter(|(_, rq)| rq.cq == dead) {
                rq.fail(cq);
            }
        }
    }
}
