//! A burst of frames on the path from the wire to the queues.
//!
//! Imports `queues`, `steering` and `wire`. Invariants: a frame of a lossless wire is delivered to
//! all its targets or to none. Frames that are not delivered are counted.

use wqcap_rss::FrameClass;

use crate::frame::{ParsedFrame, kind};
use crate::steering::{FastMatch, FlowVerdict, NicSteering, Targets};
use crate::wire::{Delivery, Receiver, WireDirection, WireFrame};

use super::super::clock::Now;
use super::super::queues::Queues;
use super::super::rq::Room;
use super::faults::BURST;

/// Counts that a burst of frames adds to the port's counters.
#[derive(Default)]
pub struct BurstCounts {
    /// Number of frames of the burst that the host sent; they do not count as received.
    pub sent: u64,
    pub octets: u64,
    pub multicast: u64,
    pub out_of_buffer: u64,
    /// Number of frames of the burst that were longer than their WQE.
    pub too_long: u64,
    /// Number of frames of the burst that no flow rule took and that are not for the host.
    pub missed: u64,
}

/// Conditions under which a port holds received frames on the wire.
#[derive(Clone, Copy)]
pub struct HoldPolicy {
    pub lossless: bool,
    /// Set when the wire can buffer further frames for a while, as a NIC's own buffer does.
    pub has_room: bool,
    /// Set when the port's flow rules have not changed for so long that frames without a rule are
    /// no longer held.
    pub settled: bool,
    /// Time at which delay drop began to hold the frame at the wire's head; `None` if it holds no
    /// frame.
    pub held_since: Option<u64>,
}

/// Receiver of one burst of frames from a wire: delivers them to the queues.
pub struct Burst<'p> {
    queues: &'p mut Queues,
    steering: &'p NicSteering,
    targets: &'p mut Targets,
    pub policy: HoldPolicy,
    now: Now,
    /// Time stamp of the burst's last frame.
    pub stamp: u64,
    /// Lowest time stamp for a frame of the burst that the wire has not stamped.
    floor: u64,
    /// Set when the burst's last frame has found no room and stays on the wire.
    pub holds: bool,
    pub counts: BurstCounts,
}

/// Parsed headers of a frame, and the steering fast path's decision about its target queue.
#[derive(Default)]
pub struct Classified {
    class: FrameClass,
    kinds: u32,
    fast: FastMatch,
}

impl<'p> Burst<'p> {
    /// Creates a burst whose first frame is stamped after `stamp`, the time of the previous burst's
    /// last frame. Each frame has a separate time, as on a wire. Frames without a time of their own
    /// are stamped one nanosecond apart up to now and not beyond, because a completion is never
    /// from the future.
    #[inline(always)]
    pub fn new(
        queues: &'p mut Queues,
        steering: &'p NicSteering,
        targets: &'p mut Targets,
        policy: HoldPolicy,
        now: Now,
        stamp: u64,
    ) -> Self {
        Self {
            queues,
            steering,
            targets,
            policy,
            now,
            stamp,
            floor: now.shown_ns.saturating_sub(BURST as u64 - 1),
            holds: false,
            counts: BurstCounts::default(),
        }
    }

    /// Delivers a frame that the host sent: only sniffer rules see it, and it never waits for room.
    #[cold]
    fn deliver_sent(&mut self, frame: &ParsedFrame<'_>) -> Delivery {
        self.counts.sent += 1;
        self.deliver_to_sniffers(frame)
    }

    /// Delivers a received frame that the NIC's transport takes: only sniffer rules see it.
    #[cold]
    pub fn divert(&mut self, frame: &WireFrame<'_>, parsed: &Classified) -> Delivery {
        let received = self.stamped(frame, parsed);
        self.stamp = received.now_ns;
        self.counts.octets += frame.bytes.len() as u64;
        self.deliver_to_sniffers(&received)
    }

    fn deliver_to_sniffers(&mut self, frame: &ParsedFrame<'_>) -> Delivery {
        self.steering
            .resolve_sent(frame, &self.queues.tirs, self.targets);
        self.deliver_all(frame);
        Delivery::Taken
    }

    /// Returns a frame of the wire as a parsed frame with its time stamp by the device's clock.
    #[inline(always)]
    fn stamped<'f>(&self, frame: &WireFrame<'f>, parsed: &'f Classified) -> ParsedFrame<'f> {
        let came = match frame.came_ns {
            0 => self.floor,
            // The clock that the host sees may have drifted and jumped.
            ns => (self.now.shown_ns).saturating_sub(self.now.ns.saturating_sub(ns)),
        };
        ParsedFrame {
            bytes: frame.bytes,
            class: &parsed.class,
            kinds: parsed.kinds,
            now_ns: came.max(self.stamp + 1),
        }
    }

    /// Handles a received frame that no flow rule takes: it waits on a lossless wire until the flow
    /// rules are settled; otherwise it goes to the host's stack or is discarded.
    fn on_miss(&mut self, frame: &ParsedFrame<'_>) -> Delivery {
        if self.policy.lossless && !self.policy.settled {
            Delivery::Wait
        } else {
            self.counts.missed += u64::from(!self.steering.host_takes(frame));
            Delivery::Taken
        }
    }

    /// Delivers a received frame that the steering fast path cannot decide.
    fn deliver_slow(&mut self, frame: &ParsedFrame<'_>) -> Delivery {
        let verdict = self
            .steering
            .resolve(frame, &self.queues.tirs, self.targets);
        let delivery = match verdict {
            FlowVerdict::Deliver => self.deliver_or_hold(frame),
            FlowVerdict::Drop | FlowVerdict::Host => Delivery::Taken,
            FlowVerdict::Miss => self.on_miss(frame),
        };
        // A frame that waits is resolved again, and counted when it is taken.
        if delivery == Delivery::Taken {
            self.add_to_flow_counters(frame);
        }
        delivery
    }

    /// Counts a received frame in the flow counters of the matching entries.
    fn add_to_flow_counters(&mut self, frame: &ParsedFrame<'_>) {
        for counters in self.targets.counters() {
            if let Some(counters) = self.queues.counters.at_mut(*counters) {
                counters.packets += 1;
                counters.bytes += frame.bytes.len() as u64;
            }
        }
    }

    /// Delivers a received frame to its target queues, or holds it on the wire until they have
    /// room.
    fn deliver_or_hold(&mut self, frame: &ParsedFrame<'_>) -> Delivery {
        if self.must_hold(frame) {
            self.holds = true;
            return Delivery::Wait;
        }
        self.policy.held_since = None;
        self.deliver_all(frame);
        Delivery::Taken
    }

    /// Returns `true` if a received frame stays on the wire until its target queues have room.
    fn must_hold(&mut self, frame: &ParsedFrame<'_>) -> bool {
        let targets = self.targets.as_slice();
        let mut lacking = false;
        let mut full = false;
        let mut delayed = false;
        for (at, target) in targets.iter().enumerate() {
            let rq = target.rss.rq;
            let before = targets[..at]
                .iter()
                .filter(|other| other.rss.rq == rq)
                .count();
            match self.queues.room(target, frame, before, targets.len()) {
                Room::NoWqe => {
                    lacking = true;
                    full = true;
                    delayed |= self.queues.delays(target);
                }
                Room::NotReady => lacking = true,
                Room::Enough | Room::CqFull | Room::TooLong => {}
            }
        }
        if lacking && self.policy.lossless {
            return true;
        }
        if !delayed {
            return full && self.policy.has_room;
        }
        let since = *self.policy.held_since.get_or_insert(self.now.ns);
        let waited_ns = self.now.ns.saturating_sub(since);
        self.queues.delay_drop.holds(waited_ns)
    }

    /// Delivers a received frame to every target queue that has room, and counts the target queues
    /// without a WQE.
    fn deliver_all(&mut self, frame: &ParsedFrame<'_>) {
        for target in self.targets.as_slice() {
            match self.queues.deliver(frame, &self.now, *target) {
                Room::Enough => {}
                Room::NoWqe => self.counts.out_of_buffer += 1,
                Room::TooLong => self.counts.too_long += 1,
                // A queue in reset or in error drops frames without counting.
                Room::NotReady => {}
                Room::CqFull => {
                    if let Some((rq, cq)) = self.queues.receive_queue(target.rss.rq) {
                        cq.fail();
                        rq.fail(cq);
                    }
                }
            }
        }
    }
}

impl Receiver for Burst<'_> {
    type Parsed = Classified;

    #[inline(always)]
    fn parse(&self, frame: &WireFrame<'_>) -> Classified {
        let class = FrameClass::from_frame(frame.bytes);
        let parsed = ParsedFrame::new(frame.bytes, &class, 0);
        let fast = self.steering.resolve_fast(&parsed, &self.queues.tirs);
        let kinds = parsed.kinds;
        Classified { class, kinds, fast }
    }

    #[inline(always)]
    fn receive(&mut self, frame: WireFrame<'_>, parsed: &Classified) -> Delivery {
        let received = self.stamped(&frame, parsed);
        let delivery = match parsed.fast {
            _ if frame.direction == WireDirection::Transmitted => {
                return self.deliver_sent(&received);
            }
            FastMatch::One(target) => match self.queues.deliver(&received, &self.now, target) {
                Room::Enough => Delivery::Taken,
                Room::TooLong => {
                    self.counts.too_long += 1;
                    Delivery::Taken
                }
                _ => {
                    self.targets.set(target);
                    self.deliver_or_hold(&received)
                }
            },
            FastMatch::Miss => self.on_miss(&received),
            FastMatch::Undecided => self.deliver_slow(&received),
        };
        if delivery == Delivery::Taken {
            self.counts.octets += frame.bytes.len() as u64;
            if received.kinds & kind::MULTICAST != 0 {
                self.counts.multicast += 1;
            }
            self.stamp = received.now_ns;
        }
        delivery
    }
}
