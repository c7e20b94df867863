//! What a port of the NIC is plugged into.
//!
//! A wire is where frames come from and where they go to: a live interface, a capture file, a generator, another
//! process, or the port's own end. The NIC asks it for the frames that are due and gives it those that the host
//! sends; it never asks which kind of wire it is, apart from what [`WireSpec`] says.
//!
//! Imports nothing of the NIC, so that a wire can be tested, measured and replaced without a device.
//!
//! Invariants:
//! - A frame is passed on whole and unchanged: no padding, no FCS, from 14 bytes to 256 KiB.
//! - A frame is delivered exactly once: one that was answered with [`Delivery::Wait`] is the next one
//!   delivered, byte for byte.
//! - What a wire loses it counts in [`Wire::drops`]; what its source holds beside frames, in
//!   [`Wire::skipped`].
//! - [`Wire::burst`] allocates nothing and makes no system call per frame.

mod af_packet;
mod af_xdp;
mod arrival;
mod delivery;
mod error;
mod gso;
#[cfg(test)]
mod lab;
mod loopback;
mod mapping;
mod offloads;
mod pace;
mod packet_socket;
mod pcap;
mod peer;
mod spec;
mod synth;

use std::fmt;
use std::io;
use std::os::fd::RawFd;

pub use delivery::{Delivery, Receiver, WireDirection, WireDrops, WireFrame, WireState};
pub use spec::WireSpec;

use delivery::Each;
use error::WireError;
use spec::WireKind;

/// An open wire. It belongs to one thread at a time, the NIC's.
pub struct Wire(Backend);

// It is opened on one thread and used on another.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Wire>();
};

enum Backend {
    AfPacket(Box<af_packet::AfPacketWire>),
    AfXdp(Box<af_xdp::AfXdpWire>),
    Pcap(Box<pcap::PcapWire>),
    Synth(Box<synth::SynthWire>),
    Peer(Box<peer::PeerWire>),
    Loopback(loopback::LoopbackWire),
}

/// A match over the kinds of wire with one result.
macro_rules! each {
    ($inner:expr, $wire:ident => $call:expr) => {
        match $inner {
            Backend::AfPacket($wire) => $call,
            Backend::AfXdp($wire) => $call,
            Backend::Pcap($wire) => $call,
            Backend::Synth($wire) => $call,
            Backend::Peer($wire) => $call,
            Backend::Loopback($wire) => $call,
        }
    };
}

impl fmt::Debug for Wire {
    /// Its kind: a wire's buffers are megabytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0 {
            Backend::AfPacket(_) => "af_packet",
            Backend::AfXdp(_) => "af_xdp",
            Backend::Pcap(_) => "pcap",
            Backend::Synth(_) => "synth",
            Backend::Peer(_) => "peer",
            Backend::Loopback(_) => "loopback",
        };
        write!(f, "Wire({kind})")
    }
}

impl Wire {
    /// Opens the wire that `spec` describes.
    pub fn open(spec: &WireSpec) -> Result<Wire, WireError> {
        Ok(Wire(match &spec.kind {
            WireKind::AfPacket(it) => {
                Backend::AfPacket(Box::new(af_packet::AfPacketWire::open(spec, it)?))
            }
            WireKind::AfXdp(it) => Backend::AfXdp(Box::new(af_xdp::AfXdpWire::open(spec, it)?)),
            WireKind::Pcap(it) => Backend::Pcap(Box::new(pcap::PcapWire::open(spec, it)?)),
            WireKind::Synth(it) => Backend::Synth(Box::new(synth::SynthWire::new(it))),
            WireKind::Peer(path) => Backend::Peer(Box::new(peer::PeerWire::open(spec, path)?)),
            WireKind::Loopback => Backend::Loopback(loopback::LoopbackWire::default()),
        }))
    }

    /// Delivers up to `budget` frames that are due at `now_ns` (the NIC's clock) to `receiver`, in order. Returns the
    /// number of frames taken. `now_ns` must not go backwards.
    #[inline]
    pub fn burst(&mut self, now_ns: u64, budget: usize, receiver: &mut impl Receiver) -> usize {
        each!(&mut self.0, wire => wire.burst(now_ns, budget, receiver))
    }

    /// As [`Wire::burst`], to a function.
    pub fn each(
        &mut self,
        now_ns: u64,
        budget: usize,
        receive: impl FnMut(WireFrame<'_>) -> Delivery,
    ) -> usize {
        self.burst(now_ns, budget, &mut Each(receive))
    }

    /// Sends one frame. Wires that only play (`pcap`, `synth`) drop it.
    pub fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        match &mut self.0 {
            Backend::AfPacket(wire) => wire.send(frame),
            Backend::AfXdp(wire) => wire.send(frame),
            Backend::Peer(wire) => wire.send(frame),
            Backend::Loopback(wire) => {
                wire.send(frame);
                Ok(())
            }
            Backend::Pcap(_) | Backend::Synth(_) => Ok(()),
        }
    }

    /// Whether more frames can come, as found in [`Wire::burst`].
    pub fn state(&self) -> WireState {
        match &self.0 {
            Backend::AfPacket(wire) => wire.state(),
            Backend::AfXdp(wire) => wire.state(),
            Backend::Pcap(wire) => wire.state(),
            Backend::Synth(wire) => wire.state(),
            Backend::Peer(_) | Backend::Loopback(_) => WireState::Up,
        }
    }

    /// The frames that the wire has lost since it was opened. On a live interface these are system calls, too expensive
    /// for every burst.
    pub fn drops(&mut self) -> WireDrops {
        match &mut self.0 {
            Backend::AfPacket(wire) => wire.drops(),
            Backend::AfXdp(wire) => wire.drops(),
            // The other end has not taken it; which port that has, this one cannot know.
            Backend::Peer(wire) => WireDrops {
                ring: wire.dropped(),
                ..WireDrops::default()
            },
            Backend::Loopback(wire) => WireDrops {
                port: wire.dropped(),
                ..WireDrops::default()
            },
            Backend::Pcap(_) | Backend::Synth(_) => WireDrops::default(),
        }
    }

    /// The number of records in the source that are not Ethernet frames: shorter than 14 bytes, or of another link
    /// type. Rounds of a looped file do not count again.
    pub fn skipped(&self) -> u64 {
        match &self.0 {
            Backend::Pcap(wire) => wire.skipped(),
            _ => 0,
        }
    }

    /// The number of merged frames that could not be split and were passed on whole.
    pub fn unsplit(&self) -> u64 {
        match &self.0 {
            Backend::AfPacket(wire) => wire.unsplit(),
            _ => 0,
        }
    }

    /// What the user should know of this wire, a sentence each: a truncated file, an interface that still merges
    /// frames.
    pub fn notes(&self) -> &[String] {
        match &self.0 {
            Backend::AfPacket(wire) => wire.notes(),
            Backend::AfXdp(wire) => wire.notes(),
            Backend::Pcap(wire) => wire.notes(),
            _ => &[],
        }
    }

    /// A descriptor that becomes readable when an idle wire has a frame. It can change from one burst to the next,
    /// may be ready without a frame, and stays ready while the NIC makes a frame wait.
    pub fn wait_fd(&self) -> Option<RawFd> {
        match &self.0 {
            Backend::AfPacket(wire) => wire.wait_fd(),
            Backend::AfXdp(wire) => wire.wait_fd(),
            Backend::Peer(wire) => wire.wait_fd(),
            _ => None,
        }
    }

    /// Lets frames gather on an idle wire: a descriptor that becomes readable when they have filled a good part of its
    /// ring. `None`: nothing tells of that.
    pub fn begin_gathering(&self) -> Option<RawFd> {
        match &self.0 {
            Backend::AfXdp(wire) => Some(wire.begin_gathering()),
            _ => None,
        }
    }

    /// When a paced wire's next frame is due, or when a wire needs its next [`Wire::burst`] at the latest. `None`:
    /// unpaced (see [`Wire::wait_fd`]), or ended.
    pub fn next_due_ns(&self) -> Option<u64> {
        match &self.0 {
            Backend::Pcap(wire) => wire.next_due_ns(),
            Backend::Synth(wire) => wire.next_due_ns(),
            Backend::Peer(wire) => wire.next_due_ns(),
            Backend::AfPacket(_) | Backend::AfXdp(_) | Backend::Loopback(_) => None,
        }
    }

    /// Whether the wire can keep what comes next for a while: it is a live interface whose ring is not near its end.
    pub fn has_room(&self) -> bool {
        match &self.0 {
            Backend::AfPacket(wire) => wire.has_room(),
            Backend::AfXdp(wire) => wire.has_room(),
            _ => false,
        }
    }

    /// Whether the host's own frames are wanted too. Only a live interface has any, and XDP does not see them.
    pub fn set_sniffing(&mut self, on: bool) {
        if let Backend::AfPacket(wire) = &mut self.0 {
            wire.set_sniffing(on);
        }
    }
}
