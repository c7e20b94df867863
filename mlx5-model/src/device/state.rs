//! State of a device: its objects, ports, clock and open contexts.
//!
//! Imports all modules of the device that do the work. Invariants: all of the state is behind the
//! device's one lock. An object that another one uses is not destroyed. When a context closes, its
//! objects are destroyed in an order in which none is in use.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use wqcap_rss::{RssKey, Toeplitz};

use crate::handles::{ContextId, Index, LIMIT, ObjectKind, Slab};
use crate::process::Errno;
use crate::settings::{DeviceSettings, fault::FaultEnd};
use crate::steering::Destination;

use super::clock::Clock;
use super::counters;
use super::delay_drop::NicDelayDrop;
use super::event::{AsyncSource, EventChannel, NicEvent};
use super::fault_schedule::FaultSchedule;
use super::object::{
    FlowObject, MatcherObject, MrObject, PdDependent, PdObject, QpBody, QpObject, SrqObject,
    TableObject,
};
use super::port::{LinkChange, NicPort};
use super::queues::Queues;

/// Number of doorbell registers in one doorbell page, without those of the fast path
/// (`MLX5_NON_FP_BFREGS_PER_UAR`).
pub const BFREGS_OF_UAR: u32 = 2;
/// Maximum number of doorbell pages that a device context may allocate (`MLX5_MAX_DYN_BFREGS`
/// registers).
pub const DYNAMIC_UARS: u32 = 1024 / BFREGS_OF_UAR;

/// A device context: one open of the device's file.
pub struct ContextObject {
    pub events: Arc<EventChannel>,
    pub channels: Vec<Arc<EventChannel>>,
    /// Numbers of the doorbell pages that the program has allocated in this context by mapping
    /// them.
    pub uars: HashSet<u32>,
}

/// State of a modelled device behind its lock.
pub struct DeviceState {
    pub settings: &'static DeviceSettings,
    pub clock: Clock,
    pub contexts: HashMap<ContextId, ContextObject>,
    pub running: bool,
    pub queues: Queues,
    pub ports: Vec<NicPort>,
    pub pds: Slab<PdObject>,
    pub mrs: Slab<MrObject>,
    pub mws: Slab<PdDependent>,
    pub ahs: Slab<PdDependent>,
    pub tables: Slab<TableObject>,
    pub qps: Slab<QpObject>,
    pub flows: Slab<FlowObject>,
    pub matchers: Slab<MatcherObject>,
    pub srqs: Slab<SrqObject>,
    /// Number of receive queues created on the device so far, which faults use to name a queue.
    /// Those of QPs are not counted if the device has WQs.
    rqs_created: u32,
    pub schedule: FaultSchedule,
    /// Set when a fault of the device is pending or in effect. A round of the NIC's thread without
    /// faults checks only this flag.
    pub has_faults: bool,
    health: Health,
    /// Set once the driver has restarted the device, so that the device's faults are not scheduled
    /// again.
    restarted: bool,
    toeplitz: Vec<Weak<Toeplitz>>,
    pub frame: Vec<u8>,
}

/// Health of the modelled device: alive, dead or restarting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Alive,
    /// The device is dead and does nothing any more; its objects can only be destroyed.
    Dead {
        /// End of the restart by the driver that makes the dead device work again; `Never`: the
        /// device stays dead.
        restarted: FaultEnd,
    },
    /// The driver restarts the device, which cannot be opened meanwhile.
    Restarting,
}

impl DeviceState {
    /// Creates the state of a device that no program has opened. Fails when there is no memory for
    /// the clock's pages.
    pub fn new(index: usize, settings: &'static DeviceSettings) -> Result<Self, Errno> {
        let caps = &settings.caps;
        let first_port = counters::port(index, 1);
        let delay_drop = NicDelayDrop::new(caps.delay_drop_timeout_us, first_port);
        let ports = settings.ports.iter().zip(1..);
        Ok(Self {
            settings,
            clock: Clock::new(caps.clock_khz, caps.clock_drift_ppm)?
                .with_utc(caps.utc_offset_ns, caps.utc_drift_ppm),
            contexts: HashMap::new(),
            running: false,
            queues: Queues::new(caps.max_wq, delay_drop),
            ports: ports
                .map(|(port, number)| NicPort::new(index, number, settings, port))
                .collect(),
            pds: Slab::new(ObjectKind::Pd, LIMIT),
            mrs: Slab::new(ObjectKind::Mr, LIMIT),
            mws: Slab::new(ObjectKind::Mw, LIMIT),
            ahs: Slab::new(ObjectKind::Ah, LIMIT),
            tables: Slab::new(ObjectKind::Table, LIMIT),
            qps: Slab::new(ObjectKind::Qp, LIMIT),
            flows: Slab::new(ObjectKind::Flow, LIMIT),
            matchers: Slab::new(ObjectKind::Matcher, LIMIT),
            srqs: Slab::new(ObjectKind::Srq, caps.max_srq as usize),
            rqs_created: 0,
            schedule: FaultSchedule::new(&settings.faults),
            has_faults: !settings.faults.is_empty(),
            health: Health::Alive,
            restarted: false,
            toeplitz: Vec::new(),
            frame: Vec::new(),
        })
    }

    /// Returns the object of a device context. Fails with `EINVAL` before GET_CONTEXT.
    pub fn context(&self, context: ContextId) -> Result<&ContextObject, Errno> {
        self.contexts.get(&context).ok_or(libc::EINVAL)
    }

    /// Returns the index of the device's port `number`, which counts from 1. Fails with `EINVAL` if
    /// the port does not exist.
    pub fn port_index(&self, number: u32) -> Result<usize, Errno> {
        let index = (number as usize).wrapping_sub(1);
        if index < self.ports.len() {
            Ok(index)
        } else {
            Err(libc::EINVAL)
        }
    }

    /// Returns the destination of a verbs object's asynchronous events. Fails with `EINVAL` before
    /// GET_CONTEXT.
    pub fn event_source(&self, context: ContextId, user_handle: u64) -> Result<AsyncSource, Errno> {
        Ok(AsyncSource::new(
            &self.context(context)?.events,
            user_handle,
        ))
    }

    /// Returns the Toeplitz hash tables of an RSS key, which all QPs with this key share.
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

    /// Raises the event of a link change of port `number`, or of the device, in every device
    /// context.
    pub fn notify(&self, change: LinkChange, number: u8) {
        let event = match change {
            LinkChange::Down => NicEvent::PortErr,
            LinkChange::Up => NicEvent::PortActive,
            LinkChange::Lost => NicEvent::DeviceFatal,
        };
        for context in self.contexts.values() {
            context.events.raise(event, number.into());
        }
    }

    /// Plugs the device's wires in, for the first program that opens it. Faults are scheduled
    /// again, unless the device is dead or its driver has restarted it.
    pub fn plug(&mut self) {
        // The clock stood still while the device was at rest.
        let now_ns = self.clock.tick();
        self.ports.iter_mut().for_each(|port| port.plug(now_ns));
        self.rqs_created = 0;
        if !self.restarted {
            self.schedule = FaultSchedule::new(&self.settings.faults);
        }
        self.has_faults = self.is_dead() || !self.schedule.is_empty();
    }

    /// Returns `true` if only wires that signal their frames can give the NIC's thread work: no
    /// send queue exists, no fault is pending or in effect, and no wire keeps a pace.
    pub fn can_rest(&self) -> bool {
        !self.has_faults && self.queues.sqs.is_empty() && self.ports.iter().all(NicPort::can_rest)
    }

    /// Returns `true` if a frame waits on its wire for room in a queue.
    pub fn is_holding(&self) -> bool {
        self.ports.iter().any(NicPort::is_holding)
    }

    /// Returns `true` if the device has died: its objects can only be destroyed.
    pub fn is_dead(&self) -> bool {
        self.health != Health::Alive
    }

    /// Returns `true` while the driver restarts the device.
    pub fn is_restarting(&self) -> bool {
        self.health == Health::Restarting
    }

    /// Marks the device as dead until `restarted`, the end of the restart by its driver.
    pub fn die(&mut self, restarted: FaultEnd) {
        self.health = Health::Dead { restarted };
    }

    /// Starts the restart of the device by its driver, if one is due. Closes every context, which
    /// the kernel calls disassociating them, and returns the end of the restart. The wires stay
    /// plugged in.
    pub fn start_restart(&mut self) -> Option<FaultEnd> {
        let Health::Dead { restarted } = self.health else {
            return None;
        };
        if restarted == FaultEnd::Never {
            return None;
        }
        self.health = Health::Restarting;
        self.ports.iter_mut().for_each(NicPort::keep_wire);
        let contexts: Vec<_> = self.contexts.keys().copied().collect();
        for context in contexts {
            self.close_context(context);
        }
        Some(restarted)
    }

    /// Ends the restart of the device by its driver: the device works again.
    pub fn finish_restart(&mut self) {
        self.health = Health::Alive;
        self.restarted = true;
    }

    /// Closes a device context and destroys its objects, users before the objects that they use.
    pub fn close_context(&mut self, context: ContextId) {
        for index in self.flows.of_context(context) {
            self.remove_flow(index);
        }
        self.matchers.remove_all_of(context);
        self.queues.counters.remove_all_of(context);
        for index in self.qps.of_context(context) {
            self.remove_qp(index);
        }
        for index in self.srqs.of_context(context) {
            self.remove_srq(index);
        }
        for index in self.tables.of_context(context) {
            self.remove_table(index);
        }
        for index in self.queues.rqs.of_context(context) {
            self.remove_rq(index);
        }
        self.queues.cqs.remove_all_of(context);
        self.mws.remove_all_of(context);
        self.ahs.remove_all_of(context);
        for index in self.mrs.of_context(context) {
            self.remove_mr(index);
        }
        self.pds.remove_all_of(context);
        self.contexts.remove(&context);
        if self.contexts.is_empty() {
            self.ports.iter_mut().for_each(NicPort::unplug);
        }
    }

    /// Returns the destination of frames that a flow rule sends to a QP. Fails with `EINVAL` if the
    /// QP has no receive queue.
    pub fn destination(&self, qp: Index) -> Result<Destination, Errno> {
        match self.qps.at(qp).map(|qp| &qp.body) {
            Some(QpBody::Rss { tir, .. }) => Ok(Destination::Tir(*tir)),
            Some(QpBody::Raw { rq: Some(rq), .. }) => Ok(Destination::Rq(*rq)),
            _ => Err(libc::EINVAL),
        }
    }

    /// Adds a flow rule, whose flow counters are bound already, to its port's flow tables. Returns
    /// the rule's handle. Fails with `ENOMEM` when the device has no room for another rule, and as
    /// [`FlowRules::add_to`] does; the tables are then unchanged.
    ///
    /// [`FlowRules::add_to`]: super::object::FlowRules::add_to
    pub fn add_flow(&mut self, context: ContextId, flow: FlowObject) -> Result<u32, Errno> {
        // The uses are counted first: they are released in the same way whether adding the rule
        // fails or the rule is destroyed.
        self.qps.add_user(flow.qp);
        self.matchers.add_user(flow.matcher);
        let now_ns = self.clock.now_ns();
        let added = match self.ports.get_mut(flow.port) {
            None => Err(libc::EINVAL),
            // Checked before the tables change, because the NIC uses an entry at once.
            Some(_) if self.flows.is_full() => Err(libc::ENOMEM),
            Some(port) => {
                let added = flow.rules.add_to(&mut port.steering);
                added.inspect(|()| port.rules_changed(now_ns))
            }
        };
        if let Err(errno) = added {
            self.release_flow(&flow);
            return Err(errno);
        }
        self.flows.insert(context, flow)
    }

    /// Destroys a flow rule and releases the objects that it uses.
    pub fn remove_flow(&mut self, index: Index) {
        let Some(flow) = self.flows.remove(index) else {
            return;
        };
        let now_ns = self.clock.now_ns();
        if let Some(port) = self.ports.get_mut(flow.port) {
            flow.rules.remove_from(&mut port.steering);
            port.rules_changed(now_ns);
        }
        self.release_flow(&flow);
    }

    /// Releases the objects that a flow rule uses.
    fn release_flow(&mut self, flow: &FlowObject) {
        self.qps.remove_user(flow.qp);
        self.matchers.remove_user(flow.matcher);
        if let Some(index) = flow.counters {
            let counters = &mut self.queues.counters;
            counters.remove_user(index);
            // As `mlx5_ib_counters_clear_description`: the next rule sets the layout again.
            if counters.users(index) == 0
                && let Some(counters) = counters.at_mut(index)
            {
                counters.layout.clear();
            }
        }
    }

    /// Destroys an unused QP. Returns the number of the QP's events that the program has read.
    pub fn remove_qp(&mut self, index: Index) -> u32 {
        let Some(qp) = self.qps.remove(index) else {
            return 0;
        };
        self.pds.remove_user(qp.pd);
        match qp.body {
            QpBody::Rss { tir, table } => {
                self.queues.tirs.remove(tir);
                self.tables.remove_user(table);
            }
            QpBody::Raw { rq, sq, cqs, srq } => {
                if let Some(rq) = rq {
                    self.queues.rqs.remove(rq);
                }
                if let Some(sq) = sq {
                    self.queues.sqs.remove(sq);
                }
                for cq in cqs {
                    self.queues.cqs.remove_user(cq);
                }
                self.srqs.remove_user(srq);
            }
        }
        qp.events.finish()
    }

    /// Returns the number of a new receive queue, by which faults name it.
    pub fn number_rq(&mut self) -> u32 {
        let number = self.rqs_created;
        self.rqs_created = number.wrapping_add(1);
        number
    }

    /// Destroys an unused WQ. Returns the number of the WQ's events that the program has read.
    pub fn remove_rq(&mut self, index: Index) -> u32 {
        let Some(rq) = self.queues.rqs.remove(index) else {
            return 0;
        };
        self.pds.remove_user(rq.pd);
        self.queues.cqs.remove_user(rq.cq);
        rq.events.finish()
    }

    pub fn remove_table(&mut self, index: Index) {
        let Some(table) = self.tables.remove(index) else {
            return;
        };
        for rq in table.rqs.iter() {
            self.queues.rqs.remove_user(*rq);
        }
    }

    /// Destroys an unused CQ. Returns how many of its completion events and of its asynchronous
    /// events the program has read.
    pub fn remove_cq(&mut self, index: Index) -> (u32, u32) {
        let Some(mut cq) = self.queues.cqs.remove(index) else {
            return (0, 0);
        };
        // Errors since the last burst, which would not be counted later.
        if let Some(errors) = cq.take_errors()
            && let Some(port) = self.ports.first()
        {
            port.count_errors(&errors);
        }
        let completions = cq.completions.as_ref().map_or(0, |completions| {
            completions.channel.purge(&completions.reported);
            completions.reported.load(Ordering::Relaxed)
        });
        (completions, cq.events.finish())
    }

    pub fn remove_mr(&mut self, index: Index) {
        if let Some(mr) = self.mrs.remove(index) {
            self.queues.regions.remove(mr.lkey);
            self.pds.remove_user(mr.pd);
        }
    }

    /// Destroys an unused SRQ. Returns the number of the SRQ's events that the program has read.
    pub fn remove_srq(&mut self, index: Index) -> u32 {
        let Some(srq) = self.srqs.remove(index) else {
            return 0;
        };
        self.pds.remove_user(srq.pd);
        srq.events.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::object::{CountersObject, FlowRules};
    use crate::frame::kind;
    use crate::settings::Settings;
    use crate::steering::{Fate, FlowAction, Match, TableId};

    const CONTEXT: ContextId = 1;

    #[test]
    fn a_rule_without_room_leaves_no_entry_and_no_use() {
        let settings = Settings::parse("loopback", "").expect("valid settings");
        let settings = Box::leak(Box::new(settings));
        let mut state = DeviceState::new(0, &settings.devices[0]).expect("memory for the clock");
        state.flows = Slab::new(ObjectKind::Flow, 1);
        let mut counters = Slab::new(ObjectKind::Counters, 1);
        counters
            .insert(CONTEXT, CountersObject::default())
            .expect("the slab has room");
        state.queues.counters = counters;
        let add = |state: &mut DeviceState, kinds| {
            let action = FlowAction {
                fate: Fate::Drop,
                tag: None,
                counters: Some(0),
            };
            state.queues.counters.add_user(0);
            let rules = FlowRules::Entries(vec![(TableId::Multicast, Match::kinds(kinds))], action);
            let flow = FlowObject {
                port: 0,
                qp: None,
                matcher: None,
                counters: Some(0),
                rules,
            };
            state.add_flow(CONTEXT, flow)
        };
        let first = add(&mut state, kind::UDP).expect("the first rule fits");
        assert_eq!(add(&mut state, kind::TCP), Err(libc::ENOMEM));
        assert_eq!(state.queues.counters.users(0), 1);
        let first = state.flows.find(first, CONTEXT).expect("the flow exists");
        state.remove_flow(first);
        assert!(state.ports[0].steering.is_empty(), "an entry remains");
        assert_eq!(state.queues.counters.users(0), 0);
        // The freed room can be used again.
        add(&mut state, kind::TCP).expect("the freed room is used");
    }
}
