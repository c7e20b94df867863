//! What a device knows: its objects, its ports, its clock, and whose they are.
//!
//! May import everything below `nic` and `uverbs`. Invariants: all of it lies behind the device's one
//! lock; an object in use by another cannot be destroyed; when a context goes, what it left goes in an
//! order in which nothing is in use.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use wqcap_rss::{RssKey, Toeplitz};

use crate::device::clock::{Clock, Now};
use crate::device::counters;
use crate::device::cq::Cq;
use crate::device::delay_drop::DelayDrop;
use crate::device::event::{AsyncEvent, AsyncSource, EventChannel};
use crate::device::memory::DoorbellRecord;
use crate::device::port::{Change, Port, Rings};
use crate::device::rq::{Rq, RqOwner, RqState};
use crate::device::sq::SqState;
use crate::objects::{ContextId, Index, Kind, LIMIT, Slab};
use crate::process::Errno;
use crate::settings::DeviceSettings;
use crate::settings::fault::{Effect, Fault, Schedule};
use crate::steering::{Action, Destination, Match, Place};

/// An open of the device.
pub struct Context {
    /// Where its asynchronous events go.
    pub events: Arc<EventChannel>,
    /// Its completion channels.
    pub channels: Vec<Arc<EventChannel>>,
}

/// A protection domain.
#[derive(Debug, Default)]
pub struct Pd {
    /// Objects in it.
    pub users: u32,
}

/// A memory region's handle.
#[derive(Debug)]
pub struct Mr {
    /// Its key.
    pub lkey: u32,
    /// Its domain.
    pub pd: Index,
}

/// Something that only has to be in a protection domain: a memory window, an address handle.
#[derive(Debug)]
pub struct InPd {
    /// The domain.
    pub pd: Index,
}

/// An RWQ indirection table.
#[derive(Debug)]
pub struct Table {
    /// The queues; 2^n of them.
    pub rqs: Box<[Index]>,
    /// QPs that spread over it.
    pub users: u32,
}

/// A shared receive queue. RAW_PACKET QPs receive from none on mlx5, so nothing is ever taken from it.
pub struct Srq {
    /// The domain.
    pub pd: Index,
    /// WRs at most.
    pub max_wr: u32,
    /// SGEs of a WR at most.
    pub max_sge: u32,
    /// The limit at which an event is raised, once; 0: none is set.
    pub limit: u32,
    /// Where the program says how many WRs it has posted.
    pub record: DoorbellRecord,
    /// Where the event goes.
    pub events: AsyncSource,
    /// QPs that receive from it.
    pub users: u32,
}

/// What a QP is made of.
#[derive(Debug)]
pub enum QpBody {
    /// An RSS QP: no queues of its own, no state.
    Rss {
        /// Its hash.
        tir: Index,
        /// The table it spreads over.
        table: Index,
    },
    /// A RAW_PACKET QP.
    Raw {
        /// Its receive queue, if it has one.
        rq: Option<Index>,
        /// Its send queue, if it has one.
        sq: Option<Index>,
        /// The CQ of its receive queue, and of its send queue.
        cqs: [Index; 2],
        /// The SRQ it was made with, from which it receives nothing.
        srq: Option<Index>,
    },
}

/// States of a QP (`enum ib_qp_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum QpState {
    Reset = 0,
    Init = 1,
    ReadyToReceive = 2,
    ReadyToSend = 3,
    SendQueueDrained = 4,
    SendQueueError = 5,
    Error = 6,
}

/// What CREATE_QP was asked for, and QUERY_QP tells.
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs)]
pub struct QpCaps {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub signal_all: bool,
}

/// A queue pair.
pub struct Qp {
    /// What it is made of.
    pub body: QpBody,
    /// The domain.
    pub pd: Index,
    /// Its state.
    pub state: QpState,
    /// The port it was bound to, from 1; 0: none yet.
    pub port: u8,
    /// What it was asked for.
    pub caps: QpCaps,
    /// Where its failures go.
    pub events: AsyncSource,
    /// Rules that lead to it.
    pub flows: u32,
}

/// What rules count their frames in.
#[derive(Debug, Default)]
pub struct FlowCounters {
    /// Frames so far.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// Which of the two a program wants, and at which place of what it reads.
    pub wanted: Vec<(u32, u32)>,
    /// Rules that count here.
    pub users: u32,
}

/// Match criteria that rules share.
#[derive(Debug)]
pub struct Matcher {
    /// Which bits count (PRM "fte_match_param").
    pub mask: Vec<u8>,
    /// Which of its sections do (`match_criteria_enable`).
    pub criteria: u8,
    /// Rules are NORMAL ones.
    pub is_normal: bool,
    /// Where they lie among them.
    pub priority: u16,
    /// Rules are for frames received.
    pub receives: bool,
    /// Rules there are.
    pub users: u32,
}

/// A flow rule.
pub struct Flow {
    /// The port it lies on, counted from 0.
    pub port: usize,
    /// The QP it leads to, if it does.
    pub qp: Option<Index>,
    /// The matcher it was made with.
    pub matcher: Option<Index>,
    /// The counters it was made with.
    pub counters: Option<Index>,
    /// What to take out when it goes.
    pub rules: FlowRules,
}

/// What a flow rule put into the tables.
pub enum FlowRules {
    /// Copies of everything.
    Sniffer(Destination),
    /// Entries, all with the same action.
    Entries(Vec<(Place, Match)>, Action),
}

/// Everything behind a device's lock.
pub struct State {
    /// What was asked for.
    pub settings: &'static DeviceSettings,
    /// The clock.
    pub clock: Clock,
    /// Opens of the device.
    pub contexts: HashMap<ContextId, Context>,
    /// Whether the NIC's thread runs.
    pub running: bool,
    /// Where frames pass through.
    pub rings: Rings,
    /// Its ports.
    pub ports: Vec<Port>,
    /// Protection domains.
    pub pds: Slab<Pd>,
    /// Memory regions.
    pub mrs: Slab<Mr>,
    /// Memory windows.
    pub mws: Slab<InPd>,
    /// Address handles.
    pub ahs: Slab<InPd>,
    /// RWQ indirection tables.
    pub tables: Slab<Table>,
    /// Queue pairs.
    pub qps: Slab<Qp>,
    /// Flow rules.
    pub flows: Slab<Flow>,
    /// Flow matchers.
    pub matchers: Slab<Matcher>,
    /// Shared receive queues.
    pub srqs: Slab<Srq>,
    /// WQs created so far: what faults count them by.
    pub wqs_created: u32,
    /// Faults to come, and whether any is to come or in effect: all that an undisturbed round looks at.
    schedule: Schedule,
    disturbed: bool,
    life: Life,
    /// Its driver has been restarted: faults are not to come once more.
    restarted: bool,
    toeplitz: Vec<Weak<Toeplitz>>,
    frame: Vec<u8>,
}

/// Whether the device is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Alive,
    /// It does nothing any more, and only takes leave of its objects.
    Dead {
        /// For how long nobody is to find it from now on; `None`: it stays as it is.
        leaves_for_ns: Option<u64>,
    },
    /// Its driver is being restarted: nobody finds it.
    Away,
}

/// Send WQEs of a queue executed in a row.
const SEND_BURST: usize = 64;

impl State {
    /// A device at rest.
    ///
    /// # Errors
    /// When there is no memory for the clock's pages.
    pub fn new(index: usize, settings: &'static DeviceSettings) -> Result<Self, Errno> {
        let ports = settings.ports.iter().enumerate();
        Ok(Self {
            settings,
            clock: Clock::new(settings.caps.clock_khz, settings.caps.clock_drift_ppm)?,
            contexts: HashMap::new(),
            running: false,
            rings: Rings::new(
                settings.caps.max_wq,
                DelayDrop::new(
                    settings.caps.delay_drop_timeout_us,
                    counters::port(index, 1),
                ),
            ),
            ports: ports
                .map(|(at, port)| Port::new(index, at as u8 + 1, port))
                .collect(),
            pds: Slab::new(Kind::Pd, LIMIT),
            mrs: Slab::new(Kind::Mr, LIMIT),
            mws: Slab::new(Kind::Mw, LIMIT),
            ahs: Slab::new(Kind::Ah, LIMIT),
            tables: Slab::new(Kind::Table, LIMIT),
            qps: Slab::new(Kind::Qp, LIMIT),
            flows: Slab::new(Kind::Flow, LIMIT),
            matchers: Slab::new(Kind::Matcher, LIMIT),
            srqs: Slab::new(Kind::Srq, settings.caps.max_srq as usize),
            wqs_created: 0,
            schedule: Schedule::new(&settings.faults),
            disturbed: !settings.faults.is_empty(),
            life: Life::Alive,
            restarted: false,
            toeplitz: Vec::new(),
            frame: Vec::new(),
        })
    }

    /// A context's record.
    ///
    /// # Errors
    /// `EINVAL` before GET_CONTEXT.
    pub fn context(&self, context: ContextId) -> Result<&Context, Errno> {
        self.contexts.get(&context).ok_or(libc::EINVAL)
    }

    /// The index of port `number`, which counts from 1.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    pub fn port_index(&self, number: u32) -> Result<usize, Errno> {
        let index = (number as usize).wrapping_sub(1);
        if index < self.ports.len() {
            Ok(index)
        } else {
            Err(libc::EINVAL)
        }
    }

    /// Finds a protection domain and counts a user of it.
    ///
    /// # Errors
    /// `EINVAL` if the context has no such domain.
    pub fn use_pd(&mut self, handle: u32, context: ContextId) -> Result<Index, Errno> {
        let index = self.pds.find(handle, context)?;
        if let Some(pd) = self.pds.at_mut(index) {
            pd.users += 1;
        }
        Ok(index)
    }

    /// Takes a user off a protection domain.
    pub fn leave_pd(&mut self, pd: Index) {
        if let Some(pd) = self.pds.at_mut(pd) {
            pd.users = pd.users.saturating_sub(1);
        }
    }

    /// Counts a user of a CQ, or takes one off.
    pub fn use_cq(&mut self, cq: Index, change: i32) {
        if let Some(cq) = self.rings.cqs.at_mut(cq) {
            cq.users = cq.users.saturating_add_signed(change);
        }
    }

    /// The tables for a key, shared with every QP that has it.
    pub fn toeplitz(&mut self, key: &RssKey) -> Arc<Toeplitz> {
        self.toeplitz.retain(|known| known.strong_count() > 0);
        let known = self
            .toeplitz
            .iter()
            .filter_map(Weak::upgrade)
            .find(|known| known.key() == key);
        known.unwrap_or_else(|| {
            let new = Arc::new(Toeplitz::new(key));
            self.toeplitz.push(Arc::downgrade(&new));
            new
        })
    }

    /// One round of the NIC's work: sends, receives, events. Gives how much there was.
    pub fn work(&mut self) -> usize {
        let mut now = Now {
            ns: self.clock.tick(),
            shown_ns: self.clock.shown_ns(),
            khz: self.settings.caps.clock_khz,
        };
        if self.disturbed {
            self.disturb(now.ns);
            now.shown_ns = self.clock.shown_ns();
            if self.is_dead() {
                return 0;
            }
        }
        let mut work = self.send(now);
        for port in &mut self.ports {
            work += port.receive(&mut self.rings, now);
        }
        self.tend(now.ns);
        work
    }

    fn send(&mut self, now: Now) -> usize {
        let mut work = 0;
        let busy: Vec<Index> = self
            .rings
            .sqs
            .iter_mut()
            .filter_map(|(index, sq)| {
                (sq.state() != SqState::Idle && !sq.is_idle()).then_some(index)
            })
            .collect();
        for index in busy {
            work += self.send_queue(index, now);
        }
        work
    }

    fn send_queue(&mut self, index: Index, now: Now) -> usize {
        let mut done = 0;
        let mut frame = std::mem::take(&mut self.frame);
        while done < SEND_BURST {
            let Some(sq) = self.rings.sqs.at_mut(index) else {
                break;
            };
            let Some(posted) = sq.next(&self.rings.regions, &mut frame) else {
                break;
            };
            if posted.has_frame()
                && let Some(port) = self.ports.get_mut(usize::from(sq.port).wrapping_sub(1))
            {
                port.send(&mut self.rings, &frame, now);
            }
            if let Some((sq, cq)) = self.rings.send_queue(index) {
                sq.complete(&posted, cq, now.cycles(now.shown_ns), frame.len() as u32);
            }
            done += 1;
        }
        self.frame = frame;
        if let Some((sq, cq)) = self.rings.send_queue(index) {
            sq.flush(cq);
        }
        done
    }

    /// What has to be looked at once a burst.
    fn tend(&mut self, now_ns: u64) {
        self.rings.delay_drop.rearm();
        let Rings { rqs, cqs, .. } = &mut self.rings;
        for (_, rq) in rqs
            .iter_mut()
            .filter(|(_, rq)| rq.state() == RqState::Error)
        {
            if let Some(cq) = cqs.at_mut(rq.cq) {
                rq.flush(cq);
            }
        }
        for (_, cq) in cqs.iter_mut() {
            cq.tend(now_ns);
            if let Some(errors) = cq.take_errors()
                && let Some(port) = self.ports.first()
            {
                port.count_errors(&errors);
            }
        }
        for at in 0..self.ports.len() {
            let Some(port) = self.ports.get_mut(at) else {
                continue;
            };
            if let Some(change) = port.tend(&mut self.rings, now_ns) {
                let number = u64::from(port.number());
                self.announce(change, number);
            }
        }
    }

    fn announce(&self, change: Change, port: u64) {
        let event = match change {
            Change::Down => AsyncEvent::PortErr,
            Change::Up => AsyncEvent::PortActive,
            Change::Lost => AsyncEvent::DeviceFatal,
        };
        for context in self.contexts.values() {
            context.events.raise(event, port);
        }
    }

    /// Begins anew, for the first program that opens the device: faults are still to come, unless the
    /// device is dead, and stays so, or has had its driver restarted, and goes on.
    pub fn plug(&mut self) {
        // Nobody has looked at the clock while the device was at rest.
        let now_ns = self.clock.tick();
        self.ports.iter_mut().for_each(|port| port.plug(now_ns));
        self.wqs_created = 0;
        if !self.restarted {
            self.schedule = Schedule::new(&self.settings.faults);
        }
        self.disturbed = self.is_dead() || !self.schedule.is_empty();
    }

    /// Whether the device has died: it does nothing any more, and takes leave of its objects at most.
    pub fn is_dead(&self) -> bool {
        self.life != Life::Alive
    }

    /// Whether its driver is being restarted.
    pub fn is_away(&self) -> bool {
        self.life == Life::Away
    }

    /// If the device is to leave: takes everything from the programs that have it open, which the kernel
    /// calls to disassociate them, and tells for how long it is gone. Wires stay where they are.
    pub fn leave(&mut self) -> Option<u64> {
        let Life::Dead {
            leaves_for_ns: Some(ns),
        } = self.life
        else {
            return None;
        };
        self.life = Life::Away;
        self.ports.iter_mut().for_each(Port::keep_wire);
        let contexts: Vec<_> = self.contexts.keys().copied().collect();
        for context in contexts {
            self.close_context(context);
        }
        Some(ns)
    }

    /// The driver has the device again.
    pub fn come_back(&mut self) {
        self.life = Life::Alive;
        self.restarted = true;
    }

    /// Lets faults that are due strike, those in effect go on, and looks whether any is left.
    #[cold]
    fn disturb(&mut self, now_ns: u64) {
        if self.is_dead() {
            return;
        }
        let mut schedule = std::mem::take(&mut self.schedule);
        schedule.run(|fault| self.is_due(fault, now_ns) && self.strike(fault, now_ns));
        self.schedule = schedule;
        let mut disturbed = self.is_dead() || !self.schedule.is_empty();
        for at in 0..self.ports.len() {
            let Some(port) = self.ports.get_mut(at) else {
                continue;
            };
            let left = self.schedule.frames_left(port.number(), port.received());
            let change = port.disturb(now_ns, left);
            disturbed |= port.is_disturbed();
            let number = u64::from(port.number());
            if let Some(change) = change {
                self.announce(change, number);
            }
        }
        self.disturbed = disturbed;
    }

    fn is_due(&self, fault: &Fault, now_ns: u64) -> bool {
        // Nothing more goes wrong on a device that has died in the same round.
        if self.is_dead() {
            return false;
        }
        let port = self.ports.get(usize::from(fault.port).wrapping_sub(1));
        port.is_some_and(|port| fault.is_due(port.received(), port.since_rule_ns(now_ns)))
    }

    /// Carries a fault out; false if what it is to hit is not there yet.
    fn strike(&mut self, fault: &Fault, now_ns: u64) -> bool {
        let at = usize::from(fault.port).wrapping_sub(1);
        match fault.effect {
            Effect::WqFatal { queue } => match self.ready_wq(queue) {
                Some((rq, cq)) => rq.fail(cq),
                None => return false,
            },
            Effect::BadLkey { queue } => match self.ready_wq(queue) {
                Some((rq, _)) => rq.lose_keys(),
                None => return false,
            },
            Effect::BadFcs { queue } => match self.ready_wq(queue) {
                Some((rq, _)) => rq.damage_next(),
                None => return false,
            },
            Effect::CqOverrun { queue } => match self.ready_wq(queue) {
                Some((rq, cq)) => {
                    cq.fail();
                    let dead = rq.cq;
                    self.fail_queues(dead);
                }
                None => return false,
            },
            Effect::PortDown { for_ns } => {
                let Some(port) = self.ports.get_mut(at) else {
                    return true;
                };
                if port.is_down_for_a_while() {
                    return false;
                }
                let number = u64::from(port.number());
                if let Some(change) = port.take_down(now_ns, for_ns) {
                    self.announce(change, number);
                }
            }
            Effect::DeviceFatal { for_ns } => {
                self.life = Life::Dead {
                    leaves_for_ns: for_ns,
                };
                for port in &mut self.ports {
                    port.die();
                }
                self.announce(Change::Lost, 0);
            }
            Effect::SlowPci { ns, for_ns } => {
                if let Some(port) = self.ports.get_mut(at) {
                    port.slow_down(now_ns, ns, for_ns);
                }
            }
            Effect::ClockJump { ns } => {
                self.clock.jump(ns);
                self.ports.iter_mut().for_each(Port::clock_jumped);
            }
            Effect::ClockBusy { for_ns } => self.clock.keep_updating(for_ns),
        }
        true
    }

    /// The WQ that was created as number `serial`, with its CQ, if it takes frames.
    fn ready_wq(&mut self, serial: u32) -> Option<(&mut Rq, &mut Cq)> {
        let (index, _) = self.rings.rqs.iter().find(|(_, rq)| {
            rq.owner == RqOwner::Wq && rq.serial == serial && rq.state() == RqState::Ready
        })?;
        self.rings.receive_queue(index)
    }

    /// Every receive queue of a CQ that is dead goes into error. Its send queues find out by themselves.
    fn fail_queues(&mut self, dead: Index) {
        let Rings { rqs, cqs, .. } = &mut self.rings;
        if let Some(cq) = cqs.at_mut(dead) {
            for (_, rq) in rqs.iter_mut().filter(|(_, rq)| rq.cq == dead) {
                rq.fail(cq);
            }
        }
    }

    /// Destroys what a context left, and forgets it.
    pub fn close_context(&mut self, context: ContextId) {
        for index in self.flows.of_context(context) {
            self.remove_flow(index);
        }
        for index in self.matchers.of_context(context) {
            self.matchers.remove(index);
        }
        for index in self.rings.counters.of_context(context) {
            self.rings.counters.remove(index);
        }
        for index in self.qps.of_context(context) {
            self.remove_qp(index);
        }
        for index in self.srqs.of_context(context) {
            self.remove_srq(index);
        }
        for index in self.tables.of_context(context) {
            self.remove_table(index);
        }
        for index in self.rings.rqs.of_context(context) {
            self.remove_rq(index);
        }
        for index in self.rings.cqs.of_context(context) {
            self.rings.cqs.remove(index);
        }
        for index in self.mws.of_context(context) {
            self.mws.remove(index);
        }
        for index in self.ahs.of_context(context) {
            self.ahs.remove(index);
        }
        for index in self.mrs.of_context(context) {
            self.remove_mr(index);
        }
        for index in self.pds.of_context(context) {
            self.pds.remove(index);
        }
        self.contexts.remove(&context);
        if self.contexts.is_empty() {
            self.ports.iter_mut().for_each(Port::unplug);
        }
    }

    /// Takes a flow rule out of its port's tables.
    pub fn remove_flow(&mut self, index: Index) {
        let Some(flow) = self.flows.remove(index) else {
            return;
        };
        let now_ns = self.clock.now_ns();
        if let Some(port) = self.ports.get_mut(flow.port) {
            match &flow.rules {
                FlowRules::Sniffer(to) => port.steering.unsniff(*to),
                FlowRules::Entries(entries, action) => {
                    for (place, rule) in entries {
                        port.steering.remove(*place, rule, *action);
                    }
                }
            }
            port.rules_changed(now_ns);
        }
        self.leave_flow(&flow);
    }

    /// Takes a rule off what it uses.
    pub fn leave_flow(&mut self, flow: &Flow) {
        if let Some(qp) = flow.qp.and_then(|qp| self.qps.at_mut(qp)) {
            qp.flows = qp.flows.saturating_sub(1);
        }
        if let Some(matcher) = flow.matcher.and_then(|it| self.matchers.at_mut(it)) {
            matcher.users = matcher.users.saturating_sub(1);
        }
        if let Some(counters) = flow.counters.and_then(|it| self.rings.counters.at_mut(it)) {
            counters.users = counters.users.saturating_sub(1);
            // `mlx5_ib_counters_clear_description`: the next rule says anew what is wanted.
            if counters.users == 0 {
                counters.wanted.clear();
            }
        }
    }

    /// Destroys a QP that nothing uses; gives the number of its events that were read.
    pub fn remove_qp(&mut self, index: Index) -> u32 {
        let Some(qp) = self.qps.remove(index) else {
            return 0;
        };
        self.leave_pd(qp.pd);
        match qp.body {
            QpBody::Rss { tir, table } => {
                self.rings.tirs.remove(tir);
                if let Some(table) = self.tables.at_mut(table) {
                    table.users = table.users.saturating_sub(1);
                }
            }
            QpBody::Raw { rq, sq, cqs, srq } => {
                if let Some(rq) = rq {
                    self.rings.rqs.remove(rq);
                }
                if let Some(sq) = sq {
                    self.rings.sqs.remove(sq);
                }
                for cq in cqs {
                    self.use_cq(cq, -1);
                }
                if let Some(srq) = srq.and_then(|srq| self.srqs.at_mut(srq)) {
                    srq.users = srq.users.saturating_sub(1);
                }
            }
        }
        qp.events.finish()
    }

    /// Destroys a WQ that nothing uses; gives the number of its events that were read.
    pub fn remove_rq(&mut self, index: Index) -> u32 {
        let Some(rq) = self.rings.rqs.remove(index) else {
            return 0;
        };
        self.leave_pd(rq.pd);
        self.use_cq(rq.cq, -1);
        rq.events.finish()
    }

    /// Destroys a table that nothing uses.
    pub fn remove_table(&mut self, index: Index) {
        let Some(table) = self.tables.remove(index) else {
            return;
        };
        for rq in table.rqs.iter() {
            if let Some(rq) = self.rings.rqs.at_mut(*rq) {
                rq.users = rq.users.saturating_sub(1);
            }
        }
    }

    /// Destroys a CQ that nothing uses; gives how many of its completion events and of its
    /// asynchronous ones were read.
    pub fn remove_cq(&mut self, index: Index) -> (u32, u32) {
        let Some(mut cq) = self.rings.cqs.remove(index) else {
            return (0, 0);
        };
        // What has come since the last burst: nobody will look at this CQ again.
        if let Some(errors) = cq.take_errors()
            && let Some(port) = self.ports.first()
        {
            port.count_errors(&errors);
        }
        let completions = cq.completions.as_ref().map_or(0, |completions| {
            completions.channel.purge(&completions.reported);
            load(&completions.reported)
        });
        (completions, cq.events.finish())
    }

    /// Destroys a memory region.
    pub fn remove_mr(&mut self, index: Index) {
        if let Some(mr) = self.mrs.remove(index) {
            self.rings.regions.remove(mr.lkey);
            self.leave_pd(mr.pd);
        }
    }

    /// Destroys an SRQ that nothing uses; gives the number of its events that were read.
    pub fn remove_srq(&mut self, index: Index) -> u32 {
        let Some(srq) = self.srqs.remove(index) else {
            return 0;
        };
        self.leave_pd(srq.pd);
        srq.events.finish()
    }
}

fn load(counter: &AtomicU32) -> u32 {
    counter.load(Ordering::Relaxed)
}
