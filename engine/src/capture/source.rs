//! Source of a capture's frames: the port of an RDMA device, or the packet sockets of an ordinary
//! network interface. The functions that both have are here; what only one has stays in its module.

use super::{
    clock::CaptureClock,
    packet_port::{InterfaceChange, PacketPort},
    port::Port,
};
use crate::{
    Error,
    plan::{PortPlan, steering::Steering},
    stats::ClockReport,
    sync::wakeup::Wakeup,
    verbs::{AsyncEvent, AsyncEvents},
};
use std::{
    os::fd::AsFd,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// Delay between the removal of the flow rules and the request to drain the queues: frames already
/// in the NIC arrive within it.
const SETTLE: Duration = Duration::from_millis(2);

/// Open source of a capture's frames.
pub(super) enum Source {
    /// Port of an RDMA device.
    Verbs(Box<VerbsSource>),
    /// Packet sockets of an ordinary network interface.
    Packet(PacketPort),
}

/// Port of an RDMA device with its events and its clock.
pub(super) struct VerbsSource {
    pub(super) port: Port,
    pub(super) events: AsyncEvents,
    /// Flag for each WQ, by the WQ's number, that is set when the device reports the WQ in error.
    pub(super) fatal: Vec<(usize, Arc<AtomicBool>)>,
    pub(super) clock: Option<CaptureClock>,
}

/// Event of a capture's source.
pub(super) enum SourceEvent {
    /// Event of the RDMA device.
    Device(AsyncEvent),
    /// Change of the network interface.
    Link(InterfaceChange),
}

impl Source {
    /// Returns the next event of the source, if there is one.
    pub(super) fn take_event(&mut self) -> Option<SourceEvent> {
        match self {
            Self::Verbs(it) => it.events.take().map(SourceEvent::Device),
            Self::Packet(it) => it.check().map(SourceEvent::Link),
        }
    }

    /// Waits until the owner is woken, the device has an event, or `timeout` is over. Returns
    /// `true` unless the time is over.
    pub(super) fn wait(&self, wakeup: &Wakeup, timeout: Duration) -> bool {
        match self {
            Self::Verbs(it) => wakeup.wait(it.events.as_fd(), timeout),
            Self::Packet(_) => wakeup.wait_alone(timeout),
        }
    }

    /// Returns the port of the RDMA device.
    ///
    /// # Errors
    /// The capture is of an ordinary network interface; `what` is not possible on it.
    pub(super) fn port_mut(&mut self, what: &'static str) -> Result<&mut Port, Error> {
        match self {
            Self::Verbs(it) => Ok(&mut it.port),
            Self::Packet(_) => Err(Error::config(
                what,
                "",
                "the capture is of an ordinary network interface, which has no flow rules and no indirection table",
            )),
        }
    }

    /// Returns the flow rules of the port; none on an ordinary network interface.
    pub(super) fn steering(&self) -> &Steering {
        static NONE: Steering = Steering {
            qps: Vec::new(),
            rules: Vec::new(),
            asked: None,
            split: None,
        };
        match self {
            Self::Verbs(it) => it.port.steering(),
            Self::Packet(_) => &NONE,
        }
    }

    /// Returns the number of the captured port.
    pub(super) fn number(&self) -> u8 {
        match self {
            Self::Verbs(it) => it.port.number(),
            Self::Packet(_) => 1,
        }
    }

    /// Returns `true` if the port is up.
    ///
    /// # Errors
    /// EIO if the RDMA device is lost.
    pub(super) fn is_up(&self) -> Result<bool, Error> {
        match self {
            Self::Verbs(it) => it.port.is_up(),
            Self::Packet(it) => Ok(it.is_up()),
        }
    }

    /// Lets frames arrive: installs the flow rules, or opens the gates of the sockets.
    ///
    /// # Errors
    /// A verb or a system call failed.
    pub(super) fn open(&mut self, plan: &PortPlan) -> Result<(), Error> {
        match self {
            Self::Verbs(it) => it.port.install_rules(plan),
            Self::Packet(it) => it.open_gates(),
        }
    }

    /// Keeps further frames from arriving: removes the flow rules, or closes the gates.
    pub(super) fn close(&mut self) {
        match self {
            Self::Verbs(it) => it.port.remove_rules(),
            Self::Packet(it) => it.close_gates(),
        }
    }

    /// Returns the time after [`Source::close`] within which frames still arrive.
    pub(super) const fn settle(&self) -> Duration {
        match self {
            Self::Verbs(_) => SETTLE,
            Self::Packet(_) => PacketPort::settle(),
        }
    }

    /// Reads the NIC's clock, if the capture uses it. Returns a note on a jump of a clock.
    pub(super) fn read_clock(&mut self) -> Option<String> {
        match self {
            Self::Verbs(it) => it.clock.as_mut()?.read(&it.port),
            Self::Packet(_) => None,
        }
    }

    /// Returns the report on the NIC's clock, if the capture uses it.
    pub(super) fn clock_report(&self) -> Option<ClockReport> {
        match self {
            Self::Verbs(it) => it.clock.as_ref().map(CaptureClock::report),
            Self::Packet(_) => None,
        }
    }
}
