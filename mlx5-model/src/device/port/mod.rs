//! A port: its wire, link, rules and counters.
//!
//! Imports `counters`, `queues`, `settings`, `steering` and `wire`. Invariant: counters are
//! published once per burst.

mod admission;
mod burst;
mod faults;

use std::fmt::Display;
use std::path::Path;

use crate::process::print_line;
use crate::settings::{DeviceSettings, PortSettings, fault::FaultEnd};
use crate::steering::{NicSteering, Targets};
use crate::wire::{Delivery, Receiver, Wire, WireDirection, WireDrops, WireState};

use super::clock::Now;
use super::counters::{self, PortCounters, add};
use super::cqe::ErrorCounts;
use super::queues::Queues;
use admission::{Admitting, PortAdmission};
use burst::{Burst, BurstCounts, HoldPolicy};
use faults::{BURST, PortFaults};

/// Maximum number of bursts of frames that a wire loses when a device returns from its driver's
/// restart. An unpaced wire would lose frames forever.
const MAX_LOST_BURSTS: usize = 1 << 12;
/// Time in nanoseconds without a change of the flow rules, after which a lossless wire discards
/// frames that match no rule. Programs install their rules one after the other.
const SETTLED_NS: u64 = 500_000_000;
/// Number of rounds of the NIC's thread without a change of the flow rules, required in addition to
/// the time. On a busy machine a program may not install its next rule in that time, but then the
/// NIC's thread runs few rounds too.
const SETTLED_ROUNDS: u32 = 30_000;
/// Interval between two reads of a wire's drop counters, in nanoseconds.
const DROPPED_NS: u64 = 20_000_000;

/// Change of a port's link that programs are notified of by an asynchronous event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkChange {
    /// The port's link went down by a fault, or because a finite wire has ended and all its frames
    /// have been consumed.
    Down,
    /// The port's link came up again.
    Up,
    /// The port's wire is lost permanently.
    Lost,
}

/// Numbers of frames and octets that the port has sent since the counters were last published.
#[derive(Default)]
struct SentCounts {
    frames: u64,
    octets: u64,
    multicast: u64,
    /// Number of sent frames that neither the link nor the wire accepted.
    discarded: u64,
}

/// A port of the modelled device, with its wire, link and flow rules.
pub struct NicPort {
    device: usize,
    number: u8,
    settings: &'static PortSettings,
    admission: Option<PortAdmission>,
    /// Set when the port counts frames that match no flow rule.
    counts_missed: bool,
    counters: &'static PortCounters,
    wire: Option<Wire>,
    up: bool,
    pub steering: NicSteering,
    rules_changed_ns: u64,
    rounds_since_rules: u32,
    held_since: Option<u64>,
    /// Set while the frame at the head of the port's wire finds no room in its target queues.
    holding: bool,
    last_stamp: u64,
    targets: Targets,
    sent: SentCounts,
    wire_drops: WireDrops,
    dropped_read_ns: u64,
    /// Number of frames that the port has received since its wire was plugged in.
    received: u64,
    /// Time when the port's first flow rule was installed, in nanoseconds.
    first_rule_ns: Option<u64>,
    /// Number of the wire's notes for the user, such as a truncated capture file, that have been
    /// logged.
    notes_logged: usize,
    faults: PortFaults,
    /// Set when the port's wire stays plugged in while no program has the device open.
    keeps_wire: bool,
    /// Number of up and down changes of the netdev that the port's link has followed. The link
    /// follows one change at a time, so that even a short one is not missed.
    netdev_changes: u64,
    /// File whose existence starts the port's pcap or synth wire; `None`: the wire need not wait
    /// for a file.
    gate: Option<&'static Path>,
}

impl NicPort {
    /// Creates port `number` (from 1) of device `index`, without a wire and with the link down.
    pub fn new(
        index: usize,
        number: u8,
        device: &DeviceSettings,
        settings: &'static PortSettings,
    ) -> Self {
        Self {
            device: index,
            number,
            settings,
            admission: PortAdmission::new(device, settings),
            counts_missed: device.caps.steer_missed,
            counters: counters::port(index, number),
            wire: None,
            up: settings.link_up,
            // As `bnxt_qplib_create_flow` of drivers/infiniband/hw/bnxt_re/qplib_sp.c, which switches
            // on the firmware's mirror of RoCE frames.
            steering: NicSteering::new(settings.mac, !device.caps.rwq),
            rules_changed_ns: 0,
            rounds_since_rules: 0,
            held_since: None,
            holding: false,
            last_stamp: 0,
            targets: Targets::default(),
            sent: SentCounts::default(),
            wire_drops: WireDrops::default(),
            dropped_read_ns: 0,
            received: 0,
            first_rule_ns: None,
            notes_logged: 0,
            faults: PortFaults::default(),
            keeps_wire: false,
            netdev_changes: 0,
            gate: settings.gate.as_deref(),
        }
    }

    /// Returns the port's number, from 1.
    pub fn number(&self) -> u8 {
        self.number
    }

    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Returns `true` if the port delivers frames with a wrong FCS.
    pub fn delivers_bad_fcs(&self) -> bool {
        self.counters.has_rx_all()
    }

    pub fn settings(&self) -> &'static PortSettings {
        self.settings
    }

    /// Plugs the port's wire in, when the first program opens the device. Without a wire the link
    /// is down. A wire that was kept while the device's driver restarted continues from its
    /// position, and so does a wire whose input can be read only once.
    pub fn plug(&mut self, now_ns: u64) {
        self.faults = PortFaults::default();
        // A netdev that is down takes the link down at once.
        self.netdev_changes = self.counters.netdev_changes() & !1;
        if let Some(wire) = &self.wire {
            // A stream waits while it is not read.
            if !wire.is_stream() {
                self.drop_missed_frames(now_ns);
            }
            self.set_up(self.settings.link_up);
            return;
        }
        match Wire::open(&self.settings.wire) {
            Ok(wire) => {
                self.wire = Some(wire);
                self.notes_logged = 0;
                self.log_notes();
                self.set_up(self.settings.link_up);
            }
            Err(error) => {
                self.log(&error);
                self.set_up(false);
            }
        }
        self.wire_drops = WireDrops::default();
        self.received = 0;
        self.first_rule_ns = None;
    }

    /// Unplugs the port's wire, when the last program has closed the device. A wire whose input can be
    /// read only once is kept: a program may open a device, look at it, and open it again.
    pub fn unplug(&mut self) {
        if self.keeps_wire || self.wire.as_ref().is_some_and(Wire::is_stream) {
            return;
        }
        self.wire = None;
    }

    /// Keeps the port's wire while the device's driver restarts.
    pub fn keep_wire(&mut self) {
        self.keeps_wire = true;
    }

    /// Drops frames that arrived while the port did not read the wire. A lossless wire has waited;
    /// any other wire loses them.
    fn drop_missed_frames(&mut self, now_ns: u64) {
        if !self.settings.wire.lossless() {
            self.drain(now_ns, MAX_LOST_BURSTS);
        } else if let Some(wire) = &mut self.wire {
            // Restarts the wire's pace at the frame at its head.
            wire.each(now_ns, 1, |_| Delivery::Wait);
        }
    }

    /// Logs the wire's notes for the user that have been added since the last call.
    fn log_notes(&mut self) {
        let notes = self.wire.as_ref().map_or(&[][..], Wire::notes);
        for note in notes.iter().skip(self.notes_logged) {
            self.log(note);
        }
        let logged = notes.len();
        self.notes_logged = logged;
    }

    fn log(&self, what: impl Display) {
        print_line(format_args!(
            "mlx5_{} port {}: {what}",
            self.device, self.number
        ));
    }

    fn set_up(&mut self, up: bool) {
        self.up = up;
        self.counters.set_link_up(up);
    }

    /// Updates the port's state after a change of its flow rules; must be called after each change.
    pub fn rules_changed(&mut self, now_ns: u64) {
        self.rules_changed_ns = now_ns;
        self.rounds_since_rules = 0;
        if !self.steering.is_empty() {
            self.first_rule_ns.get_or_insert(now_ns);
        }
        if let Some(wire) = &mut self.wire {
            wire.set_sniffing(self.steering.has_sniffers());
        }
    }

    /// Returns `true` if the port's pcap or synth wire waits: for the port's first flow rule, or
    /// for the file of its gate.
    fn waits_to_play(&self) -> bool {
        self.settings.wire.is_playback() && (self.steering.is_empty() || self.gate.is_some())
    }

    /// Returns a descriptor that becomes readable when the port's wire has a frame.
    pub fn wait_fd(&self) -> Option<i32> {
        self.wire.as_ref().and_then(Wire::wait_fd)
    }

    /// Returns the time when the next frame of the port's wire is due, if the wire keeps a pace.
    pub fn next_due_ns(&self) -> Option<u64> {
        if !self.up && !self.is_draining() {
            return None;
        }
        self.wire.as_ref().and_then(Wire::next_due_ns)
    }

    /// Returns `true` if the port's wire signals its frames, and frames come at no other time.
    pub fn can_rest(&self) -> bool {
        self.settings.wire.is_live()
    }

    /// Returns `true` if the frame at the head of the port's wire has found no room in its target
    /// queues.
    pub fn is_holding(&self) -> bool {
        self.holding
    }

    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns the time since the port's first flow rule was installed, in nanoseconds.
    pub fn since_rule_ns(&self, now_ns: u64) -> Option<u64> {
        self.first_rule_ns.map(|first| now_ns.saturating_sub(first))
    }

    /// Returns `true` if an injected fault has taken the port's link down.
    pub fn has_outage(&self) -> bool {
        self.faults.has_outage()
    }

    /// Returns `true` if [`NicPort::update_faults`] has to run before the port's next burst.
    pub fn has_faults(&self) -> bool {
        self.faults.are_active()
    }

    /// Takes the port's link down. A link that is already down stays down.
    pub fn take_down(&mut self, now_ns: u64, end: FaultEnd) -> Option<LinkChange> {
        if !self.up {
            return None;
        }
        self.faults.start_outage(now_ns, end);
        self.set_up(false);
        Some(LinkChange::Down)
    }

    /// Takes the port's link down permanently, because the device has died.
    pub fn die(&mut self) {
        self.faults = PortFaults::default();
        self.set_up(false);
    }

    /// Delays each frame that the port receives by `ns` nanoseconds from now on.
    pub fn slow_down(&mut self, now_ns: u64, ns: u64, for_ns: Option<u64>) {
        self.faults.slow_down(now_ns, self.received, ns, for_ns);
    }

    /// Lets the port's timestamps continue from the clock's new time after a jump.
    pub fn clock_jumped(&mut self) {
        self.last_stamp = 0;
    }

    /// Ends faults of the port whose time is over, and limits the next burst to `left` frames.
    pub fn update_faults(&mut self, now_ns: u64, left: u64) -> Option<LinkChange> {
        if self.is_draining() {
            self.drain(now_ns, BURST);
        }
        let mut change = None;
        if self.faults.end_outage(now_ns) && self.wire.is_some() {
            if self.settings.wire.lossless() {
                self.drop_missed_frames(now_ns);
            }
            self.set_up(true);
            change = Some(LinkChange::Up);
        }
        self.faults.limit_burst(now_ns, self.received, left);
        change
    }

    /// Returns `true` if the port's wire loses its frames because a fault has taken the link down.
    fn is_draining(&self) -> bool {
        self.faults.has_outage() && !self.settings.wire.lossless() && !self.waits_to_play()
    }

    /// Takes frames from the port's wire and drops them as lost, in at most `bursts` bursts.
    fn drain(&mut self, now_ns: u64, bursts: usize) {
        let Some(wire) = &mut self.wire else { return };
        let mut lost = 0;
        for _ in 0..bursts {
            let taken = wire.each(now_ns, BURST, |frame| {
                lost += u64::from(frame.direction == WireDirection::Received);
                Delivery::Taken
            });
            if taken < BURST {
                break;
            }
        }
        add(&self.counters.wire_dropped, lost);
    }

    /// Delivers one burst of frames from the port's wire to the queues. Returns the number of
    /// frames taken.
    pub fn receive(&mut self, queues: &mut Queues, now: Now) -> usize {
        self.gate = self.gate.filter(|path| !path.exists());
        if !self.up || self.waits_to_play() {
            return 0;
        }
        let dropped = self.drop_faulty(now.ns);
        if dropped > 0 {
            return dropped;
        }
        let Some(wire) = &mut self.wire else { return 0 };
        self.rounds_since_rules = self.rounds_since_rules.saturating_add(1);
        let policy = HoldPolicy {
            lossless: self.settings.wire.lossless(),
            has_room: wire.has_room(),
            settled: now.ns.saturating_sub(self.rules_changed_ns) >= SETTLED_NS
                && self.rounds_since_rules >= SETTLED_ROUNDS,
            held_since: self.held_since,
        };
        let stamp = self.last_stamp;
        let (steering, targets) = (&self.steering, &mut self.targets);
        let mut burst = Burst::new(queues, steering, targets, policy, now, stamp);
        let mut foreign = 0;
        let taken = match &self.admission {
            None => wire.burst(now.ns, self.faults.budget, &mut burst),
            Some(admission) => {
                let mut admitting = Admitting {
                    admission,
                    burst: &mut burst,
                    too_long: 0,
                    foreign: 0,
                };
                let taken = wire.burst(now.ns, self.faults.budget, &mut admitting);
                foreign = admitting.foreign;
                add(&self.counters.rx_oversize_pkts_phy, admitting.too_long);
                taken
            }
        };
        let (counts, held_since) = (burst.counts, burst.policy.held_since);
        self.holding = burst.holds;
        self.last_stamp = burst.stamp;
        // If the held frame is gone, the next held frame gets the whole time.
        let gone = taken > 0 && held_since == self.held_since;
        self.held_since = held_since.filter(|_| !gone);
        let received = taken as u64 - counts.sent.min(taken as u64);
        self.received += received;
        self.publish(&counts, received - foreign);
        taken
    }

    /// Drops received frames that a fault has damaged or that the PCIe bus does not take, before
    /// any flow rule, and counts them. Frames that the host sends are not dropped. Returns the
    /// number of dropped frames.
    fn drop_faulty(&mut self, now_ns: u64) -> usize {
        let (faults, counters) = (&mut self.faults, self.counters);
        let (left, counter) = if faults.damaged > 0 {
            (&mut faults.damaged, &counters.rx_crc_errors_phy)
        } else {
            let counter = &counters.outbound_pci_buffer_overflow;
            (&mut faults.overflowing, counter)
        };
        let most = (*left).min(faults.budget);
        if most == 0 {
            return 0;
        }
        let Some(wire) = &mut self.wire else { return 0 };
        let mut received = 0;
        let taken = wire.each(now_ns, most, |frame| {
            if frame.direction != WireDirection::Received {
                return Delivery::Wait;
            }
            received += 1;
            Delivery::Taken
        });
        *left -= received;
        self.received += received as u64;
        add(counter, received as u64);
        taken
    }

    /// Gives the next frame of the port's wire a wrong FCS.
    pub fn corrupt_next_fcs(&mut self) {
        self.faults.damaged += 1;
    }

    /// Makes the port lose its next `frames` frames, because the PCIe bus does not take them.
    pub fn overflow(&mut self, frames: usize) {
        self.faults.overflowing += frames;
    }

    fn publish(&self, counts: &BurstCounts, received: u64) {
        if received > 0 {
            let BurstCounts {
                octets, multicast, ..
            } = *counts;
            self.counters.received(received, octets, multicast);
        }
        add(&self.counters.out_of_buffer, counts.out_of_buffer);
        add(&self.counters.rx_oversize_pkts_buffer, counts.too_long);
        if self.counts_missed {
            add(&self.counters.rx_steer_missed_packets, counts.missed);
        }
    }

    /// Sends a frame to the port's wire, and delivers it to the port's sniffer rules.
    pub fn send(&mut self, queues: &mut Queues, frame: &[u8], now: Now) {
        let wire = self.wire.as_mut().filter(|_| self.up);
        if wire.is_none_or(|wire| wire.send(frame).is_err()) {
            self.sent.discarded += 1;
            return;
        }
        self.sent.frames += 1;
        self.sent.octets += frame.len() as u64;
        self.sent.multicast += u64::from(frame.first().is_some_and(|byte| byte & 1 != 0));
        if self.steering.has_sniffers() {
            let policy = HoldPolicy {
                lossless: false,
                has_room: false,
                settled: true,
                held_since: None,
            };
            let stamp = now.shown_ns.saturating_sub(1);
            let (steering, targets) = (&self.steering, &mut self.targets);
            let mut burst = Burst::new(queues, steering, targets, policy, now, stamp);
            burst.deliver(frame, WireDirection::Transmitted);
            let counts = burst.counts;
            self.publish(&counts, 0);
        }
    }

    fn publish_sent(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        self.counters.sent(sent.frames, sent.octets, sent.multicast);
        add(&self.counters.port_xmit_discards, sent.discarded);
    }

    /// Makes the port's link follow the netdev: down with it, and up with it unless a fault keeps
    /// the link down.
    #[cold]
    fn follow_netdev(&mut self) -> Option<LinkChange> {
        self.netdev_changes += 1;
        let can_be_up = self.netdev_changes & 1 == 0 && self.wire.is_some() && !self.has_outage();
        if can_be_up == self.up {
            return None;
        }
        self.set_up(can_be_up);
        Some(if self.up {
            LinkChange::Up
        } else {
            LinkChange::Down
        })
    }

    /// Adds numbers of completions in error to the port's counters.
    pub fn count_errors(&self, errors: &ErrorCounts) {
        let counters = self.counters;
        add(&counters.resp_cqe_error, errors.receive);
        add(&counters.resp_cqe_flush_error, errors.receive_flushed);
        add(&counters.resp_local_length_error, errors.receive_length);
        add(&counters.req_cqe_error, errors.send);
        add(&counters.req_cqe_flush_error, errors.send_flushed);
    }

    /// Publishes the port's counters, and checks whether the wire has ended. Must be called between
    /// bursts.
    pub fn end_burst(&mut self, queues: &mut Queues, now_ns: u64) -> Option<LinkChange> {
        self.publish_sent();
        if self.netdev_changes != self.counters.netdev_changes() {
            return self.follow_netdev();
        }
        let wire = self.wire.as_mut()?;
        if now_ns.saturating_sub(self.dropped_read_ns) >= DROPPED_NS {
            self.dropped_read_ns = now_ns;
            let drops = wire.drops();
            let new = drops.since(&self.wire_drops);
            add(&self.counters.wire_dropped, new.total());
            add(&self.counters.wire_dropped_ring, new.ring);
            add(&self.counters.wire_dropped_size, new.size);
            add(&self.counters.rx_discards_phy, new.port);
            self.wire_drops = drops;
        }
        if !self.up {
            return None;
        }
        match wire.state() {
            WireState::Up => None,
            // A wire without a single frame has ended from the start; the link stays up until the
            // first rule.
            WireState::Ended if self.first_rule_ns.is_none() || !queues.are_drained() => None,
            WireState::Ended => {
                let skipped = wire.skipped();
                self.log_notes();
                if skipped > 0 {
                    self.log(format_args!(
                        "{skipped} records of the wire's source were skipped: not Ethernet frames"
                    ));
                }
                self.set_up(false);
                Some(LinkChange::Down)
            }
            WireState::Lost => {
                self.set_up(false);
                Some(LinkChange::Lost)
            }
        }
    }
}
