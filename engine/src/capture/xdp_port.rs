//! Ordinary network interface as the port of a capture by AF_XDP sockets, one for each receive queue
//! of the NIC.
//!
//! Invariant: until the gate is opened, and after it is closed, the kernel gets every frame.

use super::link::{InterfaceChange, LinkWatch};
use crate::{
    Error,
    device::counters::SocketDrops,
    plan::PortPlan,
    rx::{Ring, XdpQueue},
};
use std::{sync::Arc, time::Duration};
use wqcap_sockets::xdp::{XdpAttr, XdpHook, XdpInterface};

/// Time after the gate (the XDP program) is closed within which frames that passed it arrive: the
/// driver delivers the frames of one poll together.
const SETTLE: Duration = Duration::from_millis(20);

/// AF_XDP sockets of a captured network interface.
pub(super) struct XdpPort {
    sockets: XdpInterface,
    link: LinkWatch,
    drops: Arc<SocketDrops>,
    /// Number of receive queues of the interface in sysfs at the start; 0: unknown.
    queues: u32,
    /// Largest number of receive queues in sysfs since the start.
    most_queues: u32,
}

impl XdpPort {
    /// Opens the AF_XDP sockets of the port's queues, with a closed gate, and their receive rings.
    ///
    /// # Errors
    /// A capability is missing, the interface does not exist, has another XDP program or too large
    /// an MTU, or the kernel has no memory for a ring.
    pub(super) fn open(plan: &PortPlan) -> Result<(Self, Vec<Ring<XdpQueue>>), Error> {
        let interface = &plan.device.name;
        let attr = XdpAttr {
            queues: u32::try_from(plan.queues).unwrap_or(u32::MAX),
            chunks: plan.ring.wrs,
            chunk_bytes: plan.ring.buffer,
            numa_node: plan.device.numa_node,
            promiscuous: plan.promiscuous,
        };
        let (sockets, rings) = XdpInterface::open(interface, &attr)?;
        let with_socket = sockets.sockets().iter().zip(rings);
        let rings = with_socket.map(|(socket, ring)| Ring::from_xdp(Arc::clone(socket), ring));
        let rings = rings.collect::<Result<_, _>>()?;
        let queues = sockets.shown_queues();
        let port = Self {
            queues,
            most_queues: queues,
            link: LinkWatch::new(interface),
            drops: Arc::new(SocketDrops::Xdp(sockets.sockets().to_vec())),
            sockets,
        };
        Ok((port, rings))
    }

    /// Returns the counts of frames that the AF_XDP sockets dropped.
    pub(super) fn drops(&self) -> Arc<SocketDrops> {
        Arc::clone(&self.drops)
    }

    /// Describes where the XDP program of the interface runs and whether frames are copied to the
    /// AF_XDP sockets.
    pub(super) fn describe(&self) -> String {
        let interface = self.sockets.interface();
        let zero_copy = self.sockets.sockets().iter().all(|it| it.is_zero_copy());
        let how = match self.sockets.hook() {
            XdpHook::Native if zero_copy => "in the driver, without a copy".to_owned(),
            XdpHook::Native => "in the driver, with one copy".to_owned(),
            XdpHook::Generic => match self.sockets.native_refusal() {
                Some(e) => {
                    format!("in the kernel's network stack, because the driver refuses it ({e})")
                }
                None => "in the kernel's network stack".to_owned(),
            },
        };
        format!("{interface}: the XDP program runs {how}")
    }

    /// Lets frames into the rings of the AF_XDP sockets instead of the kernel.
    pub(super) fn open_gate(&self) {
        self.sockets.open_gate();
    }

    /// Lets the kernel get all further frames instead of the AF_XDP sockets.
    pub(super) fn close_gate(&self) {
        self.sockets.close_gate();
    }

    /// Returns the time after [`XdpPort::close_gate`] within which frames still arrive in the
    /// rings.
    pub(super) const fn settle() -> Duration {
        SETTLE
    }

    /// Returns `true` if the captured network interface is up and has a carrier.
    pub(super) fn is_up(&self) -> bool {
        self.link.is_up()
    }

    /// Returns the change of the captured network interface since the last call.
    pub(super) fn check(&mut self) -> Option<InterfaceChange> {
        let is_gone = self.sockets.is_orphaned();
        self.most_queues = self.most_queues.max(self.sockets.shown_queues());
        self.link.check(is_gone)
    }

    /// Returns `true` if the interface got receive queues after the start, which are not captured.
    pub(super) fn has_new_queues(&self) -> bool {
        self.queues > 0 && self.most_queues > self.queues
    }

    /// Describes the receive queues that the interface got after the start; `None`: there are none.
    pub(super) fn new_queues(&self) -> Option<String> {
        let (name, count) = (self.sockets.interface(), self.most_queues);
        self.has_new_queues().then(|| {
            format!(
                "{name}: the interface got receive queues after the start: it has {count}, and had {}; the kernel gets their \
                 frames, and the capture does not: start it again, or use device.backend = \"af_packet\"",
                self.queues
            )
        })
    }
}
