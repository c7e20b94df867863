//! Sources of a capture's frames: for each port an RDMA device, or the sockets of an ordinary network
//! interface. The functions that both have are here; what only one has stays in its module.

use super::{
    clock::CaptureClock, link::InterfaceChange, packet_port::PacketPort, port::Port,
    xdp_port::XdpPort,
};
use crate::{
    Error,
    plan::{Plan, PortPlan, steering::Steering},
    rx::{DeviceQueue, PacketQueue, Replacement, Ring, StampSource, XdpQueue},
    stats::ClockReport,
    sync::wakeup::Wakeup,
    verbs::{AsyncEvent, AsyncEvents},
};
use crossbeam_channel::Sender;
use std::{
    os::fd::AsFd,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// Delay between the removal of the flow rules and the request to drain the queues: frames already
/// in the NIC arrive within it.
const SETTLE: Duration = Duration::from_millis(2);

/// Open source of a capture's frames: an RDMA port or the sockets of a network interface.
pub(super) enum Source {
    /// Port of an RDMA device as the source of frames.
    Verbs(Box<VerbsSource>),
    /// Packet sockets of an ordinary network interface as the source of frames.
    Packet(PacketPort),
    /// AF_XDP sockets of an ordinary network interface as the source of frames.
    Xdp(XdpPort),
}

/// Port of an RDMA device with its events and its clock.
pub(super) struct VerbsSource {
    pub(super) port: Port,
    pub(super) events: AsyncEvents,
    /// Flag of each receive queue, set when the device reports the queue in error, by the number of
    /// its WQ, or of its QP on a device without WQs.
    pub(super) fatal: Vec<(usize, Arc<AtomicBool>)>,
    pub(super) clock: Option<CaptureClock>,
}

/// Event of a source of frames: of the RDMA device or of the network interface.
pub(super) enum SourceEvent {
    /// Asynchronous event of the RDMA device.
    Device(AsyncEvent),
    /// Change of the captured network interface, such as going down.
    Link(InterfaceChange),
}

/// Open sources of a capture's frames, one for each port, in the order of
/// [`Plan::ports`](crate::plan::Plan::ports); at least one.
pub(super) struct Sources(Vec<PortSource>);

/// Open source of one port, and its plan.
pub(super) struct PortSource {
    pub(super) plan: PortPlan,
    pub(super) source: Source,
    /// Channels to the port's receive loops for the rings that replace theirs after the port was
    /// lost.
    pub(super) loops: LoopChannels,
    /// Number of kinds of odd frames of the port that log lines have reported.
    pub(super) reported_odd_frames: usize,
    /// `true` while the port is known to be down.
    pub(super) is_down: bool,
    /// `true` after the port's device was lost or its interface was removed.
    pub(super) is_gone: bool,
}

impl PortSource {
    /// Describes the frames of the port that need an explanation, a line for each kind that it has
    /// received: super-frames (of GRO, TSO and GSO), frames that do not fit into a block, and frames
    /// of receive queues that are not captured, because an interface got them after the start.
    pub(super) fn odd_frames(&self) -> Vec<String> {
        let it = match &self.source {
            Source::Packet(it) => it,
            Source::Xdp(it) => return it.new_queues().into_iter().collect(),
            Source::Verbs(_) => return Vec::new(),
        };
        let name = &self.plan.device.name;
        let remedy = format!(
            "for frames as on the link use `ethtool -K {name} gro off lro off tso off gso off`, also on a sender in the \
             same kernel"
        );
        let mut lines = Vec::new();
        match it.super_frames() {
            0 => {}
            count => lines.push(format!(
                "{name}: {count} super-frames, which GRO has merged or TSO and GSO have not cut yet, are recorded as the \
                 kernel has them; {remedy}"
            )),
        }
        match it.too_long() {
            0 => {}
            count => lines.push(format!(
                "{name}: {count} frames are not recorded, because they are super-frames of BIG TCP of more than about {} \
                 KiB, which a block of the socket's ring does not hold; they count as errors; {remedy}",
                self.plan.ring.buffer >> 10
            )),
        }
        lines
    }

    /// Logs the first odd frames of the port, when there is a further kind of them.
    pub(super) fn report_odd_frames(&mut self) {
        let kinds = match &self.source {
            Source::Packet(it) => {
                let counts = [it.super_frames(), it.too_long()];
                counts.iter().filter(|it| **it > 0).count()
            }
            Source::Xdp(it) => usize::from(it.has_new_queues()),
            Source::Verbs(_) => return,
        };
        if kinds > self.reported_odd_frames {
            self.reported_odd_frames = kinds;
            let lines = self.odd_frames();
            lines.iter().for_each(|line| tracing::warn!("{line}"));
        }
    }

    /// Returns `true` if no frame can arrive on the port, because it is down or lost.
    pub(super) fn is_missing(&self) -> bool {
        self.is_down || self.is_gone
    }

    /// Returns `true` if the port is down, or is lost and will not be captured again.
    pub(super) fn is_over(&self) -> bool {
        self.is_down || self.is_gone && !self.loops.take_rings()
    }
}

/// Receive rings of a port's queues, by the kind of the port.
pub(super) enum Rings {
    /// Receive rings of an RDMA device.
    Device(Vec<Ring>),
    /// Receive rings of packet sockets.
    Packet(Vec<Ring<PacketQueue>>),
    /// Receive rings of AF_XDP sockets.
    Xdp(Vec<Ring<XdpQueue>>),
}

/// Channels that pass replacements of rings to the receive loops of a port, by the kind of its
/// queues; empty if the loops end with their rings.
pub(super) enum LoopChannels {
    /// Channels to the receive loops of an RDMA device.
    Device(Vec<Sender<Replacement<DeviceQueue>>>),
    /// Channels to the receive loops of packet sockets.
    Packet(Vec<Sender<Replacement<PacketQueue>>>),
    /// Channels to the receive loops of AF_XDP sockets.
    Xdp(Vec<Sender<Replacement<XdpQueue>>>),
}

impl LoopChannels {
    /// Returns `true` if the receive loops accept rings that replace theirs.
    pub(super) fn take_rings(&self) -> bool {
        match self {
            Self::Device(all) => !all.is_empty(),
            Self::Packet(all) => !all.is_empty(),
            Self::Xdp(all) => !all.is_empty(),
        }
    }

    /// Passes the rings of a port's source that was opened again to the port's receive loops.
    pub(super) fn send(&self, rings: Rings, source: &Source, plan: &PortPlan) {
        match (self, rings) {
            (Self::Device(to), Rings::Device(rings)) => send(to, rings, source, plan),
            (Self::Packet(to), Rings::Packet(rings)) => send(to, rings, source, plan),
            (Self::Xdp(to), Rings::Xdp(rings)) => send(to, rings, source, plan),
            // The plan's backend stays the same.
            _ => {}
        }
    }
}

fn send<Q>(
    channels: &[Sender<Replacement<Q>>],
    rings: Vec<Ring<Q>>,
    source: &Source,
    plan: &PortPlan,
) {
    for (i, (to, ring)) in channels.iter().zip(rings).enumerate() {
        let (clock, wq_fatal) = source.of_loop(plan, i);
        // A loop that has ended takes none.
        let _ = to.send(Replacement {
            ring,
            clock,
            wq_fatal,
        });
    }
}

impl Sources {
    pub(super) fn new(ports: Vec<PortSource>) -> Self {
        Self(ports)
    }

    pub(super) fn ports(&self) -> &[PortSource] {
        &self.0
    }

    pub(super) fn ports_mut(&mut self) -> &mut [PortSource] {
        &mut self.0
    }

    /// Returns the next event of a port's source with the index of the port, if there is one.
    pub(super) fn take_event(&mut self) -> Option<(usize, SourceEvent)> {
        let ports = self.0.iter_mut().enumerate().filter(|(_, it)| !it.is_gone);
        let mut events = ports.filter_map(|(i, it)| Some((i, it.source.take_event()?)));
        events.next()
    }

    /// Waits until the capture's owner is woken, a device has an event, or `timeout` is over.
    /// Returns `true` unless the time is over.
    pub(super) fn wait(&self, wakeup: &Wakeup, timeout: Duration) -> bool {
        let events = self.present().filter_map(|it| match &it.source {
            Source::Verbs(it) => Some(it.events.as_fd()),
            Source::Packet(_) | Source::Xdp(_) => None,
        });
        wakeup.wait(events, timeout)
    }

    /// Returns the captured port, if it is the only one and belongs to an RDMA device.
    ///
    /// # Errors
    /// `what`, the setting to change, cannot change, because the capture is of an ordinary network
    /// interface or of several ports.
    pub(super) fn port_mut(&mut self, what: &'static str) -> Result<&mut Port, Error> {
        let problem = match self.0.as_mut_slice() {
            [
                PortSource {
                    source: Source::Verbs(it),
                    ..
                },
            ] => return Ok(&mut it.port),
            [_] => {
                "the capture is of an ordinary network interface, which has no flow rules and no indirection table"
            }
            _ => "this cannot change while several ports are captured",
        };
        Err(Error::config(what, "", problem))
    }

    /// Returns the QPs and flow rules of the first captured port; empty for an ordinary network
    /// interface.
    pub(super) fn steering(&self) -> &Steering {
        static NONE: Steering = Steering {
            qps: Vec::new(),
            rules: Vec::new(),
            asked: None,
            split: None,
        };
        match self.0.first().map(|it| &it.source) {
            Some(Source::Verbs(it)) => it.port.steering(),
            _ => &NONE,
        }
    }

    /// Returns the captured ports whose device or interface is present.
    fn present(&self) -> impl Iterator<Item = &PortSource> {
        self.0.iter().filter(|it| !it.is_gone)
    }

    /// Checks that each captured RDMA device that is present answers a query of its port.
    pub(super) fn respond(&self) -> Result<(), Error> {
        self.present()
            .try_for_each(|it| it.source.is_up().map(drop))
    }

    /// Lets frames arrive on every captured port.
    ///
    /// # Errors
    /// A verb or a system call failed.
    pub(super) fn open(&mut self, plan: &Plan) -> Result<(), Error> {
        let mut ports = self.0.iter_mut().zip(plan.ports());
        ports.try_for_each(|(it, plan)| it.source.open(plan))
    }

    /// Keeps further frames from arriving on any captured port.
    pub(super) fn close(&mut self) {
        self.0.iter_mut().for_each(|it| it.source.close());
    }

    /// Returns the time after [`Sources::close`] within which frames still arrive in the rings.
    pub(super) fn settle(&self) -> Duration {
        let times = self.0.iter().map(|it| it.source.settle());
        times.max().unwrap_or_default()
    }

    /// Reads the clocks of the NICs that stamp frames. Returns a note for each clock that has
    /// jumped.
    pub(super) fn read_clocks(&mut self) -> Vec<String> {
        self.0
            .iter_mut()
            .filter(|it| !it.is_gone)
            .filter_map(|it| it.source.read_clock())
            .collect()
    }

    /// Returns the report on the clock of the first NIC whose clock the capture uses.
    pub(super) fn clock_report(&self) -> Option<ClockReport> {
        self.0.iter().find_map(|it| it.source.clock_report())
    }
}

impl Source {
    /// Returns the next event of the RDMA device or network interface from which the port receives
    /// frames, such as a lost link; `None`: there is no new event.
    pub(super) fn take_event(&mut self) -> Option<SourceEvent> {
        match self {
            Self::Verbs(it) => it.events.take().map(SourceEvent::Device),
            Self::Packet(it) => it.check().map(SourceEvent::Link),
            Self::Xdp(it) => it.check().map(SourceEvent::Link),
        }
    }

    /// Returns the inputs of the receive loop of the port's queue number `queue`, counted from 0:
    /// the source of time stamps, and the flag that reports its WQ in error.
    pub(super) fn of_loop(&self, plan: &PortPlan, queue: usize) -> (StampSource, Arc<AtomicBool>) {
        match self {
            Self::Packet(_) | Self::Xdp(_) => (plan.stamp_source(None), Arc::default()),
            Self::Verbs(it) => {
                let clock = it.clock.as_ref().map(|it| Arc::clone(&it.shared));
                (plan.stamp_source(clock), Arc::clone(&it.fatal[queue].1))
            }
        }
    }

    /// Returns the number of the captured port on its RDMA device; 1 for a network interface.
    pub(super) fn number(&self) -> u8 {
        match self {
            Self::Verbs(it) => it.port.number(),
            Self::Packet(_) | Self::Xdp(_) => 1,
        }
    }

    /// Returns `true` if the captured port is up.
    ///
    /// # Errors
    /// EIO if the RDMA device is lost.
    pub(super) fn is_up(&self) -> Result<bool, Error> {
        match self {
            Self::Verbs(it) => it.port.is_up(),
            Self::Packet(it) => Ok(it.is_up()),
            Self::Xdp(it) => Ok(it.is_up()),
        }
    }

    /// Lets frames arrive on the captured port: installs the flow rules, or opens the gates of the
    /// sockets.
    ///
    /// # Errors
    /// A verb or a system call failed.
    pub(super) fn open(&mut self, plan: &PortPlan) -> Result<(), Error> {
        match self {
            Self::Verbs(it) => it.port.install_rules(plan),
            Self::Packet(it) => it.open_gates(),
            Self::Xdp(it) => {
                it.open_gate();
                Ok(())
            }
        }
    }

    /// Keeps further frames from arriving on the captured port: removes the flow rules, or closes
    /// the gates.
    pub(super) fn close(&mut self) {
        match self {
            Self::Verbs(it) => it.port.remove_rules(),
            Self::Packet(it) => it.close_gates(),
            Self::Xdp(it) => it.close_gate(),
        }
    }

    /// Returns the time after [`Source::close`] within which frames still arrive in the rings.
    const fn settle(&self) -> Duration {
        match self {
            Self::Verbs(_) => SETTLE,
            Self::Packet(_) => PacketPort::settle(),
            Self::Xdp(_) => XdpPort::settle(),
        }
    }

    /// Reads the NIC's clock, if the capture uses it. Returns a note if a clock has jumped.
    pub(super) fn read_clock(&mut self) -> Option<String> {
        match self {
            Self::Verbs(it) => it.clock.as_mut()?.read(&it.port),
            Self::Packet(_) | Self::Xdp(_) => None,
        }
    }

    /// Returns the report on the NIC's clock, if the capture uses it.
    pub(super) fn clock_report(&self) -> Option<ClockReport> {
        match self {
            Self::Verbs(it) => it.clock.as_ref().map(CaptureClock::report),
            Self::Packet(_) | Self::Xdp(_) => None,
        }
    }
}
