//! Ordinary network interface as the port of a capture: the packet sockets of one fanout group.
//!
//! Imports: [`crate::plan`], and the sockets. Invariant: until the gates are opened, and after they
//! are closed, no frame gets into a ring.

use super::link::{InterfaceChange, LinkWatch};
use crate::{
    Error,
    device::counters::SocketDrops,
    plan::PortPlan,
    rx::{PacketQueue, Ring},
};
use std::{sync::Arc, time::Duration};
use wqcap_sockets::packet::{OddFrames, PacketAttr, PacketSocket};

/// Time after which the kernel passes a block of a packet socket's ring to the loop although it is
/// not full: the longest time that a frame waits at a low rate. Each such block wakes the loop.
const RETIRE: Duration = Duration::from_millis(60);

/// Packet sockets of a captured network interface, one for each queue.
pub(super) struct PacketPort {
    link: LinkWatch,
    sockets: Vec<Arc<PacketSocket>>,
    drops: Arc<SocketDrops>,
    /// Counts of the frames of each queue that need an explanation.
    odd_frames: Vec<Arc<OddFrames>>,
}

impl PacketPort {
    /// Opens the packet sockets of the port's queues, with closed gates, and their receive rings.
    ///
    /// # Errors
    /// CAP_NET_RAW is missing, the interface does not exist, or the kernel has no memory for a ring.
    pub(super) fn open(plan: &PortPlan) -> Result<(Self, Vec<Ring<PacketQueue>>), Error> {
        let (interface, queues) = (&plan.device.name, plan.queues);
        let attr = PacketAttr {
            blocks: plan.ring.wrs,
            block_bytes: plan.ring.buffer,
            retire: RETIRE,
            promiscuous: plan.promiscuous,
            direction: plan.direction,
        };
        let mut sockets = Vec::with_capacity(queues);
        let mut rings = Vec::with_capacity(queues);
        let mut odd_frames = Vec::with_capacity(queues);
        let mut group = None;
        for _ in 0..queues {
            let (socket, ring) = PacketSocket::open(interface, &attr)?;
            match group {
                _ if queues == 1 => {}
                None => group = Some(socket.create_fanout()?),
                Some(group) => socket.join_fanout(group)?,
            }
            let socket = Arc::new(socket);
            odd_frames.push(Arc::clone(ring.odd_frames()));
            rings.push(Ring::from_socket(Arc::clone(&socket), ring)?);
            sockets.push(socket);
        }
        let port = Self {
            link: LinkWatch::new(interface),
            drops: Arc::new(SocketDrops::of_packets(sockets.clone())),
            sockets,
            odd_frames,
        };
        Ok((port, rings))
    }

    /// Returns the number of super-frames of GRO, TSO and GSO that were received.
    pub(super) fn super_frames(&self) -> u64 {
        self.odd_frames.iter().map(|it| it.super_frames()).sum()
    }

    /// Returns the number of received frames that are longer than a block of a socket's ring.
    pub(super) fn too_long(&self) -> u64 {
        self.odd_frames.iter().map(|it| it.too_long()).sum()
    }

    /// Returns the counts of frames that the packet sockets dropped.
    pub(super) fn drops(&self) -> Arc<SocketDrops> {
        Arc::clone(&self.drops)
    }

    /// Lets frames into the rings of the packet sockets.
    ///
    /// # Errors
    /// The kernel refuses the program of a gate.
    pub(super) fn open_gates(&self) -> Result<(), Error> {
        for socket in &self.sockets {
            socket.open_gate()?;
        }
        Ok(())
    }

    /// Keeps further frames out of the rings of the packet sockets. The kernel passes the blocks
    /// that have frames to the loops within [`PacketPort::settle`].
    pub(super) fn close_gates(&self) {
        for socket in &self.sockets {
            if let Err(e) = socket.close_gate() {
                tracing::warn!(
                    "a packet socket cannot be closed to new frames and may receive frames until the end of the run: {e}"
                );
            }
        }
    }

    /// Returns the time after [`PacketPort::close_gates`] within which the kernel passes the last
    /// blocks to the loops. The kernel's timer runs late by up to a tick.
    pub(super) const fn settle() -> Duration {
        RETIRE.saturating_mul(2)
    }

    /// Returns `true` if the captured network interface is up and has a carrier.
    pub(super) fn is_up(&self) -> bool {
        self.link.is_up()
    }

    /// Returns the change of the captured network interface since the last call.
    pub(super) fn check(&mut self) -> Option<InterfaceChange> {
        let is_gone = self.sockets.iter().any(|it| it.is_orphaned());
        self.link.check(is_gone)
    }
}
