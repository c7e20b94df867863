//! A port: its wire, its rules, and how frames pass between the two.
//!
//! May import `counters`, `cq`, `delay_drop`, `event`, `frame`, `objects`, `rq`, `settings`, `sq`, `steering`, `sysfs`,
//! `wire`. Invariants: a frame that a lossless wire hands over is delivered whole or not at all; what is
//! not delivered is counted; counters are published once a burst.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use wqcap_rss::FrameClass;

use crate::device::clock::Now;
use crate::device::counters::{self, PortCounters};
use crate::device::cq::{Cq, CqeErrors, RxInfo};
use crate::device::delay_drop::DelayDrop;
use crate::device::memory::Regions;
use crate::device::rq::{Room, Rq};
use crate::device::sq::Sq;
use crate::device::state::FlowCounters;
use crate::frame::{Arrival, kind};
use crate::objects::{Index, Kind, LIMIT, Slab};
use crate::settings::PortSettings;
use crate::steering::{Glance, Steering, Target, Targets, Tir, Verdict};
use crate::sysfs;
use crate::wire::{Direction, Frame, Take, Taker, Wire, WireState};

/// Frames a port takes from its wire before the device is let go.
const BURST: usize = 64;
/// Bursts that a wire loses at most when it is found again: one without a pace would go on for ever.
const MOST_ARREARS: usize = 1 << 12;
/// How long a rule set has to stay as it is before a lossless wire gives up frames that match none:
/// programs install their rules one after the other.
const SETTLED_NS: u64 = 500_000_000;
/// How often a wire is asked what it lost by itself.
const DROPPED_NS: u64 = 20_000_000;

/// Everything that frames pass through, apart from the ports.
pub struct Rings {
    /// Completion queues.
    pub cqs: Slab<Cq>,
    /// Receive queues, of WQs and of QPs.
    pub rqs: Slab<Rq>,
    /// Send queues of QPs.
    pub sqs: Slab<Sq>,
    /// Hashes and tables of RSS QPs.
    pub tirs: Slab<Tir>,
    /// What rules count in.
    pub counters: Slab<FlowCounters>,
    /// What they may read and write.
    pub regions: Regions,
    /// How long frames wait for WQEs.
    pub delay_drop: DelayDrop,
}

impl Rings {
    /// A device without queues.
    pub fn new(max_wq: u32, delay_drop: DelayDrop) -> Self {
        Self {
            cqs: Slab::new(Kind::Cq, LIMIT),
            rqs: Slab::new(Kind::Rq, max_wq as usize),
            sqs: Slab::new(Kind::Sq, LIMIT),
            tirs: Slab::new(Kind::Tir, LIMIT),
            counters: Slab::new(Kind::Counters, LIMIT),
            regions: Regions::default(),
            delay_drop,
        }
    }

    /// A receive queue together with its CQ.
    #[inline]
    pub fn receive_queue(&mut self, rq: Index) -> Option<(&mut Rq, &mut Cq)> {
        let rq = self.rqs.at_mut(rq)?;
        let cq = self.cqs.at_mut(rq.cq)?;
        Some((rq, cq))
    }

    /// A send queue together with its CQ.
    pub fn send_queue(&mut self, sq: Index) -> Option<(&mut Sq, &mut Cq)> {
        let sq = self.sqs.at_mut(sq)?;
        let cq = self.cqs.at_mut(sq.cq)?;
        Some((sq, cq))
    }

    /// What a target would find if `before` others took a WQE of its queue first, and `cqes` CQEs went
    /// to its CQ.
    #[inline]
    fn room(&mut self, target: &Target, before: usize, cqes: usize) -> Room {
        match self.receive_queue(target.spread.rq) {
            Some((rq, cq)) => rq.room(cq, before as u16 + 1, cqes as u32),
            None => Room::NotReady,
        }
    }

    /// Whether any target that has no room holds the wire for it.
    fn delays(&self, target: &Target) -> bool {
        self.rqs
            .at(target.spread.rq)
            .is_some_and(|rq| rq.features.delay_drop)
    }

    /// Delivers a frame to a target that has room; otherwise does nothing and tells why.
    #[inline(always)]
    fn offer(&mut self, frame: &Arrival<'_>, now: &Now, target: Target) -> Room {
        let Some(rq) = self.rqs.at_mut(target.spread.rq) else {
            return Room::NotReady;
        };
        let Some(cq) = self.cqs.at_mut(rq.cq) else {
            return Room::NotReady;
        };
        let room = rq.room(cq, 1, 1);
        if room == Room::Enough {
            let info = RxInfo {
                hash: target.spread.hash,
                hash_type: target.spread.hash_type,
                tag: target.tag,
                ..RxInfo::default()
            };
            rq.deliver(cq, &self.regions, frame, now, info);
        }
        room
    }

    /// Whether the program has consumed everything that was received.
    fn are_drained(&mut self) -> bool {
        let Self { cqs, rqs, .. } = self;
        rqs.iter()
            .all(|(_, rq)| cqs.at_mut(rq.cq).is_none_or(Cq::is_drained))
    }
}

/// What happened to a port that its programs are to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The link went down: a finite wire has ended, and all of it has been consumed.
    Down,
    /// The link came up again.
    Up,
    /// The wire is gone for good.
    Lost,
}

/// A link that a fault has taken down.
struct Outage {
    /// `None`: for good.
    until_ns: Option<u64>,
}

/// Frames that take longer to get to memory.
struct Slow {
    ns: u64,
    until_ns: Option<u64>,
    /// When what was received so far has arrived.
    busy_ns: u64,
    received: u64,
}

#[derive(Default)]
struct Tally {
    /// Frames the host sent: not received.
    sent: u64,
    octets: u64,
    multicast: u64,
    out_of_buffer: u64,
}

/// What was sent since the counters were last published.
#[derive(Default)]
struct Sent {
    frames: u64,
    octets: u64,
    multicast: u64,
    /// Neither the link nor the wire took them.
    discarded: u64,
}

/// How frames are held back.
#[derive(Clone, Copy)]
struct Patience {
    lossless: bool,
    /// The rules have not changed for long enough.
    settled: bool,
    /// Since when delay drop has been holding the frame at the head.
    held_since: Option<u64>,
}

/// A port of the device.
pub struct Port {
    device: usize,
    number: u8,
    settings: &'static PortSettings,
    counters: &'static PortCounters,
    wire: Option<Wire>,
    up: bool,
    /// Its rules.
    pub steering: Steering,
    rules_changed_ns: u64,
    held_since: Option<u64>,
    last_stamp: u64,
    targets: Targets,
    sent: Sent,
    dropped_seen: u64,
    dropped_asked_ns: u64,
    /// Frames received since the wire was plugged in, and when the first rule was installed.
    received: u64,
    first_rule_ns: Option<u64>,
    /// Frames of the next burst at most; [`BURST`] unless a fault has a say.
    budget: usize,
    outage: Option<Outage>,
    slow: Option<Slow>,
    /// The wire stays plugged in while nobody has the device open.
    keeps_wire: bool,
}

impl Port {
    /// Port `number` (from 1) of a device, at rest.
    pub fn new(device: usize, number: u8, settings: &'static PortSettings) -> Self {
        Self {
            device,
            number,
            settings,
            counters: counters::port(device, number),
            wire: None,
            up: settings.link_up,
            steering: Steering::new(settings.mac),
            rules_changed_ns: 0,
            held_since: None,
            last_stamp: 0,
            targets: Targets::default(),
            sent: Sent::default(),
            dropped_seen: 0,
            dropped_asked_ns: 0,
            received: 0,
            first_rule_ns: None,
            budget: BURST,
            outage: None,
            slow: None,
            keeps_wire: false,
        }
    }

    /// Its number, from 1.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Whether the link is up.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// What was asked for.
    pub fn settings(&self) -> &'static PortSettings {
        self.settings
    }

    /// Plugs the wire in: the first program opens the device. Without a wire the link is down. One that is still
    /// there from before the device's driver was restarted goes on where it is.
    pub fn plug(&mut self, now_ns: u64) {
        self.budget = BURST;
        self.outage = None;
        self.slow = None;
        if self.wire.is_some() {
            self.lose_arrears(now_ns);
            self.set_up(self.settings.link_up);
            return;
        }
        match Wire::open(&self.settings.wire) {
            Ok(wire) => {
                for note in wire.notes() {
                    self.tell(note);
                }
                self.wire = Some(wire);
                self.set_up(self.settings.link_up);
            }
            Err(error) => {
                self.tell(&error);
                self.set_up(false);
            }
        }
        self.dropped_seen = 0;
        self.received = 0;
        self.first_rule_ns = None;
    }

    /// The device leaves its programs, but not its wire.
    pub fn keep_wire(&mut self) {
        self.keeps_wire = true;
    }

    /// What a wire had meanwhile: a lossless one has waited, any other has lost it.
    fn lose_arrears(&mut self, now_ns: u64) {
        if !self.settings.wire.lossless() {
            self.drain(now_ns, MOST_ARREARS);
        } else if let Some(wire) = &mut self.wire {
            // Nothing has piled up behind the frame at the head.
            wire.each(now_ns, 1, |_| Take::Wait);
        }
    }

    fn tell(&self, what: impl std::fmt::Display) {
        // A closed standard error is no reason to end the program.
        let _ = writeln!(
            std::io::stderr(),
            "mlx5-model: mlx5_{} port {}: {what}",
            self.device,
            self.number
        );
    }

    /// Pulls the wire: the last program has closed the device.
    pub fn unplug(&mut self) {
        if self.keeps_wire {
            return;
        }
        let unsplit = self.wire.take().map_or(0, |wire| wire.unsplit());
        if unsplit > 0 {
            self.tell(format_args!(
                "{unsplit} merged frames could not be split and went over whole"
            ));
        }
    }

    fn set_up(&mut self, up: bool) {
        self.up = up;
        sysfs::set_port_state(self.device, self.number, up);
    }

    /// The rules have changed.
    pub fn rules_changed(&mut self, now_ns: u64) {
        self.rules_changed_ns = now_ns;
        if !self.steering.is_empty() {
            self.first_rule_ns.get_or_insert(now_ns);
        }
        if let Some(wire) = &mut self.wire {
            wire.set_sniffing(self.steering.has_sniffers());
        }
    }

    /// Wires that play by themselves wait for somebody to play to; a live one cannot.
    fn waits_for_rules(&self) -> bool {
        self.settings.wire_text.starts_with("pcap:") || self.settings.wire_text.starts_with("synth")
    }

    /// A descriptor that becomes readable when the wire has something.
    pub fn wait_fd(&self) -> Option<i32> {
        self.wire.as_ref().and_then(Wire::wait_fd)
    }

    /// When the wire is due again, if it keeps a pace.
    pub fn next_due_ns(&self) -> Option<u64> {
        if !self.up && !self.is_draining() {
            return None;
        }
        self.wire.as_ref().and_then(Wire::next_due_ns)
    }

    /// Frames received since the wire was plugged in.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// How long ago the first rule was installed.
    pub fn since_rule_ns(&self, now_ns: u64) -> Option<u64> {
        self.first_rule_ns.map(|first| now_ns.saturating_sub(first))
    }

    /// Whether a fault has taken the link down.
    pub fn is_down_for_a_while(&self) -> bool {
        self.outage.is_some()
    }

    /// Whether a fault is in effect that wants [`Port::disturb`] each round, or one to come has a say in
    /// the next burst.
    pub fn is_disturbed(&self) -> bool {
        self.outage.is_some() || self.slow.is_some() || self.budget != BURST
    }

    /// The link goes down. A link that is down already stays so.
    pub fn take_down(&mut self, now_ns: u64, for_ns: Option<u64>) -> Option<Change> {
        if !self.up {
            return None;
        }
        self.outage = Some(Outage {
            until_ns: for_ns.map(|ns| now_ns.saturating_add(ns)),
        });
        self.set_up(false);
        Some(Change::Down)
    }

    /// The device has died: no link, and none to come.
    pub fn die(&mut self) {
        self.outage = None;
        self.slow = None;
        self.set_up(false);
    }

    /// Frames take longer from now on.
    pub fn slow_down(&mut self, now_ns: u64, ns: u64, for_ns: Option<u64>) {
        self.slow = Some(Slow {
            ns: ns.max(1),
            until_ns: for_ns.map(|ns| now_ns.saturating_add(ns)),
            busy_ns: now_ns,
            received: self.received,
        });
    }

    /// Stamps begin anew where the clock is now.
    pub fn clock_jumped(&mut self) {
        self.last_stamp = 0;
    }

    /// Lets faults in effect go on, and says how many frames the next burst may have: no more than
    /// `left`.
    pub fn disturb(&mut self, now_ns: u64, left: u64) -> Option<Change> {
        let over = |until: Option<u64>| until.is_some_and(|until| now_ns >= until);
        let mut change = None;
        if self.is_draining() {
            self.drain(now_ns, BURST);
        }
        if self.outage.as_ref().is_some_and(|it| over(it.until_ns)) {
            self.outage = None;
            if self.wire.is_some() {
                if self.settings.wire.lossless() {
                    self.lose_arrears(now_ns);
                }
                self.set_up(true);
                change = Some(Change::Up);
            }
        }
        if self.slow.as_ref().is_some_and(|it| over(it.until_ns)) {
            self.slow = None;
        }
        let mut budget = left.min(BURST as u64);
        if let Some(slow) = &mut self.slow {
            let new = self.received.saturating_sub(slow.received);
            slow.received = self.received;
            // Time without frames is not made up for, but a burst may come at once.
            slow.busy_ns = slow
                .busy_ns
                .saturating_add(new.saturating_mul(slow.ns))
                .max(now_ns.saturating_sub(slow.ns.saturating_mul(BURST as u64)));
            budget = budget.min(now_ns.saturating_sub(slow.busy_ns) / slow.ns);
        }
        self.budget = budget as usize;
        change
    }

    /// Whether what the wire brings is lost because the link is down.
    fn is_draining(&self) -> bool {
        self.outage.is_some()
            && !self.settings.wire.lossless()
            && !(self.waits_for_rules() && self.steering.is_empty())
    }

    /// Loses what has come over the wire meanwhile, so many bursts of it at most.
    fn drain(&mut self, now_ns: u64, bursts: usize) {
        let Some(wire) = &mut self.wire else { return };
        let mut lost = 0;
        for _ in 0..bursts {
            let taken = wire.each(now_ns, BURST, |frame| {
                lost += u64::from(frame.direction == Direction::Received);
                Take::Taken
            });
            if taken < BURST {
                break;
            }
        }
        add(&self.counters.wire_dropped, lost);
    }

    /// Passes on what the wire has, one burst of it. Gives the number of frames taken.
    pub fn receive(&mut self, rings: &mut Rings, now: Now) -> usize {
        if !self.up || self.waits_for_rules() && self.steering.is_empty() {
            return 0;
        }
        let Some(wire) = &mut self.wire else { return 0 };
        let patience = Patience {
            lossless: self.settings.wire.lossless(),
            settled: now.ns.saturating_sub(self.rules_changed_ns) >= SETTLED_NS,
            held_since: self.held_since,
        };
        let mut tally = Tally::default();
        let mut pass = Pass {
            rings,
            steering: &self.steering,
            targets: &mut self.targets,
            tally: &mut tally,
            patience,
            now,
            // Each frame has a time of its own, as on a wire. They count up to now, not beyond: no
            // completion is from the future.
            stamp: self
                .last_stamp
                .max(now.shown_ns.saturating_sub(BURST as u64)),
        };
        let taken = wire.burst(now.ns, self.budget, &mut pass);
        let held_since = pass.patience.held_since;
        self.last_stamp = pass.stamp;
        // The frame that was held is gone: the next one to be held has all the time anew.
        let gone = taken > 0 && held_since == self.held_since;
        self.held_since = held_since.filter(|_| !gone);
        let received = taken as u64 - tally.sent.min(taken as u64);
        self.received += received;
        self.publish(&tally, received);
        taken
    }

    fn publish(&self, tally: &Tally, received: u64) {
        if received > 0 {
            self.counters
                .received(received, tally.octets, tally.multicast);
        }
        add(&self.counters.out_of_buffer, tally.out_of_buffer);
    }

    /// Sends a frame: onto the wire, and to sniffers.
    pub fn send(&mut self, rings: &mut Rings, frame: &[u8], now: Now) {
        let sent = self.up
            && self
                .wire
                .as_mut()
                .is_some_and(|wire| wire.send(frame).is_ok());
        if !sent {
            self.sent.discarded += 1;
            return;
        }
        self.sent.frames += 1;
        self.sent.octets += frame.len() as u64;
        self.sent.multicast += u64::from(frame.first().is_some_and(|byte| byte & 1 != 0));
        if self.steering.has_sniffers() {
            let mut tally = Tally::default();
            let patience = Patience {
                lossless: false,
                settled: true,
                held_since: None,
            };
            let mut pass = Pass {
                rings,
                steering: &self.steering,
                targets: &mut self.targets,
                tally: &mut tally,
                patience,
                now,
                stamp: now.shown_ns.saturating_sub(1),
            };
            pass.hand(frame, Direction::Transmitted);
            self.publish(&tally, 0);
        }
    }

    fn publish_sent(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        if sent.frames > 0 {
            self.counters.sent(sent.frames, sent.octets, sent.multicast);
        }
        add(&self.counters.port_xmit_discards, sent.discarded);
    }

    /// Counts completions in error.
    pub fn count_errors(&self, errors: &CqeErrors) {
        add(&self.counters.resp_cqe_error, errors.receive);
        add(&self.counters.resp_cqe_flush_error, errors.receive_flushed);
        add(
            &self.counters.resp_local_length_error,
            errors.receive_length,
        );
        add(&self.counters.req_cqe_error, errors.send);
        add(&self.counters.req_cqe_flush_error, errors.send_flushed);
    }

    /// Looks whether the wire has come to an end. To be called between bursts.
    pub fn tend(&mut self, rings: &mut Rings, now_ns: u64) -> Option<Change> {
        self.publish_sent();
        let wire = self.wire.as_mut()?;
        if now_ns.saturating_sub(self.dropped_asked_ns) >= DROPPED_NS {
            self.dropped_asked_ns = now_ns;
            let dropped = wire.dropped();
            let new = dropped.saturating_sub(self.dropped_seen);
            self.counters.wire_dropped.fetch_add(new, Ordering::Relaxed);
            self.dropped_seen = dropped;
        }
        if !self.up {
            return None;
        }
        match wire.state() {
            WireState::Up => None,
            // A wire without a single frame is at its end from the start; nobody has been there to see it yet.
            WireState::Ended if self.first_rule_ns.is_none() || !rings.are_drained() => None,
            WireState::Ended => {
                let skipped = wire.skipped();
                if skipped > 0 {
                    self.tell(format_args!(
                        "{skipped} records of the wire's source were no Ethernet frames"
                    ));
                }
                self.set_up(false);
                Some(Change::Down)
            }
            WireState::Lost => {
                self.set_up(false);
                Some(Change::Lost)
            }
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// One burst's way from the wire to the queues.
struct Pass<'p> {
    rings: &'p mut Rings,
    steering: &'p Steering,
    targets: &'p mut Targets,
    tally: &'p mut Tally,
    patience: Patience,
    now: Now,
    /// The last frame's time.
    stamp: u64,
}

/// What a frame is, and where it seems to go.
#[derive(Default)]
struct Look {
    class: FrameClass,
    kinds: u32,
    glance: Glance,
}

impl Taker for Pass<'_> {
    type Look = Look;

    #[inline(always)]
    fn look(&self, frame: &Frame<'_>) -> Look {
        let class = FrameClass::of(frame.bytes);
        let arrival = Arrival::new(frame.bytes, &class, 0);
        let glance = self.steering.glance(&arrival, &self.rings.tirs);
        let kinds = arrival.kinds;
        Look {
            class,
            kinds,
            glance,
        }
    }

    #[inline(always)]
    fn take(&mut self, frame: Frame<'_>, look: &Look) -> Take {
        let arrival = Arrival {
            bytes: frame.bytes,
            class: &look.class,
            kinds: look.kinds,
            now_ns: self.stamp + 1,
        };
        let take = match look.glance {
            _ if frame.direction == Direction::Transmitted => return self.sent(&arrival),
            Glance::One(target) => match self.rings.offer(&arrival, &self.now, target) {
                Room::Enough => Take::Taken,
                _ => {
                    self.targets.set(target);
                    self.crowded(&arrival)
                }
            },
            Glance::Miss => self.missed(),
            Glance::Unclear => self.resolve(&arrival),
        };
        if take == Take::Taken {
            self.tally.octets += frame.bytes.len() as u64;
            if arrival.kinds & kind::MULTICAST != 0 {
                self.tally.multicast += 1;
            }
            self.stamp += 1;
        }
        take
    }
}

impl Pass<'_> {
    /// A frame of the host's own: sniffers alone see it, and nothing waits for them.
    #[cold]
    fn sent(&mut self, arrival: &Arrival<'_>) -> Take {
        self.tally.sent += 1;
        self.steering
            .resolve_sent(arrival, &self.rings.tirs, self.targets);
        self.deliver_all(arrival);
        Take::Taken
    }

    /// No rule takes the frame. It is the host's stack's, or nobody's, and the port has counted it.
    fn missed(&self) -> Take {
        if self.patience.lossless && !self.patience.settled {
            Take::Wait
        } else {
            Take::Taken
        }
    }

    /// Asks every table.
    fn resolve(&mut self, arrival: &Arrival<'_>) -> Take {
        let verdict = self
            .steering
            .resolve(arrival, &self.rings.tirs, self.targets);
        let take = match verdict {
            Verdict::Deliver => self.crowded(arrival),
            Verdict::Drop | Verdict::Host => Take::Taken,
            Verdict::Miss => self.missed(),
        };
        // A frame that waits is looked at again, and counted when it goes.
        if take == Take::Taken {
            self.count(arrival);
        }
        take
    }

    /// Counts a frame in the counters of the entries that matched.
    fn count(&mut self, arrival: &Arrival<'_>) {
        for counters in self.targets.counters() {
            if let Some(counters) = self.rings.counters.at_mut(*counters) {
                counters.packets += 1;
                counters.bytes += arrival.bytes.len() as u64;
            }
        }
    }

    /// Delivers to several targets, or to one that had no room.
    fn crowded(&mut self, arrival: &Arrival<'_>) -> Take {
        if self.has_to_wait() {
            return Take::Wait;
        }
        self.patience.held_since = None;
        self.deliver_all(arrival);
        Take::Taken
    }

    /// Whether the frame stays on the wire until its targets have room.
    fn has_to_wait(&mut self) -> bool {
        let targets = self.targets.as_slice();
        let mut lacking = false;
        let mut delayed = false;
        for (at, target) in targets.iter().enumerate() {
            let rq = target.spread.rq;
            let before = targets[..at]
                .iter()
                .filter(|other| other.spread.rq == rq)
                .count();
            match self.rings.room(target, before, targets.len()) {
                Room::NoWqe => {
                    lacking = true;
                    delayed |= self.rings.delays(target);
                }
                Room::NotReady => lacking = true,
                Room::Enough | Room::CqFull => {}
            }
        }
        if lacking && self.patience.lossless {
            return true;
        }
        if !delayed {
            return false;
        }
        let since = *self.patience.held_since.get_or_insert(self.now.ns);
        let waited_ns = self.now.ns.saturating_sub(since);
        self.rings.delay_drop.holds(waited_ns)
    }

    /// Delivers to every target that has room, and counts for those that have not.
    fn deliver_all(&mut self, arrival: &Arrival<'_>) {
        for target in self.targets.as_slice() {
            match self.rings.offer(arrival, &self.now, *target) {
                Room::Enough => {}
                Room::NoWqe => self.tally.out_of_buffer += 1,
                // A queue in reset or in error drops without counting.
                Room::NotReady => {}
                Room::CqFull => {
                    if let Some((rq, cq)) = self.rings.receive_queue(target.spread.rq) {
                        cq.fail();
                        rq.fail(cq);
                    }
                }
            }
        }
    }
}
