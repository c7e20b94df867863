//! Wires: sources and destinations of a port's frames.
//!
//! A wire is a live interface, a capture file, a generator, another process, or a loop back to the
//! port. The NIC polls it for due frames and passes it the frames that the host sends. The NIC does
//! not depend on the kind of wire, except through [`WireSpec`].
//!
//! Imports nothing of the NIC, so that a wire can be tested, measured and replaced without a
//! device.
//!
//! Invariants:
//! - A frame is passed on whole and unchanged: no padding, no FCS, 14 bytes to 256 KiB long.
//! - A frame is delivered exactly once. After [`Delivery::Wait`], the next delivery is the same
//!   frame, byte for byte.
//! - [`Wire::drops`] counts the frames that a wire loses, [`Wire::skipped`] the records of its
//!   source that are not frames.
//! - [`Wire::burst`] allocates nothing and makes no system call per frame.

mod af_packet;
mod arrival;
mod delivery;
mod error;
#[cfg(test)]
mod lab;
mod loopback;
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
pub use spec::{SpecError, WireSpec};

use delivery::Each;
use error::WireError;
use spec::WireKind;

/// Open wire of a port: the source of its received frames and the destination of its sent ones. It
/// belongs to one thread at a time, the NIC's.
pub struct Wire(WireBackend);

// A wire is opened on one thread and used on another.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Wire>();
};

enum WireBackend {
    AfPacket(Box<af_packet::AfPacketWire>),
    Pcap(Box<pcap::PcapWire>),
    Synth(Box<synth::SynthWire>),
    Peer(Box<peer::PeerWire>),
    Loopback(loopback::LoopbackWire),
}

/// Evaluates `$call` with `$wire` bound to the open wire, for each kind of wire.
macro_rules! each {
    ($inner:expr, $wire:ident => $call:expr) => {
        match $inner {
            WireBackend::AfPacket($wire) => $call,
            WireBackend::Pcap($wire) => $call,
            WireBackend::Synth($wire) => $call,
            WireBackend::Peer($wire) => $call,
            WireBackend::Loopback($wire) => $call,
        }
    };
}

impl fmt::Debug for Wire {
    /// Writes only the kind of the wire as debug text, because the wire's buffers have megabytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0 {
            WireBackend::AfPacket(_) => "af_packet",
            WireBackend::Pcap(_) => "pcap",
            WireBackend::Synth(_) => "synth",
            WireBackend::Peer(_) => "peer",
            WireBackend::Loopback(_) => "loopback",
        };
        write!(f, "Wire({kind})")
    }
}

impl Wire {
    /// Opens the wire that `spec` describes, such as a live interface or a capture file.
    pub fn open(spec: &WireSpec) -> Result<Wire, WireError> {
        Ok(Wire(match &spec.kind {
            WireKind::AfPacket(it) => {
                WireBackend::AfPacket(Box::new(af_packet::AfPacketWire::open(spec, it)?))
            }
            WireKind::Pcap(it) => WireBackend::Pcap(Box::new(pcap::PcapWire::open(spec, it)?)),
            WireKind::Synth(it) => WireBackend::Synth(Box::new(synth::SynthWire::new(it))),
            WireKind::Peer(path) => WireBackend::Peer(Box::new(peer::PeerWire::open(spec, path)?)),
            WireKind::Loopback => WireBackend::Loopback(loopback::LoopbackWire::default()),
        }))
    }

    /// Returns `true` if the wire plays an input that can be read only once, such as a pipe.
    pub fn is_stream(&self) -> bool {
        matches!(&self.0, WireBackend::Pcap(wire) if wire.is_stream())
    }

    /// Delivers up to `budget` frames of the wire that are due at `now_ns` (the NIC's clock) to
    /// `receiver`, in order. Returns the number of frames taken. `now_ns` must not go backwards.
    #[inline]
    pub fn burst(&mut self, now_ns: u64, budget: usize, receiver: &mut impl Receiver) -> usize {
        each!(&mut self.0, wire => wire.burst(now_ns, budget, receiver))
    }

    /// Delivers due frames of the wire to the closure `receive`; see [`Wire::burst`].
    pub fn each(
        &mut self,
        now_ns: u64,
        budget: usize,
        receive: impl FnMut(WireFrame<'_>) -> Delivery,
    ) -> usize {
        self.burst(now_ns, budget, &mut Each(receive))
    }

    /// Sends one frame over the wire. Playback wires (`pcap`, `synth`) discard it.
    pub fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        match &mut self.0 {
            WireBackend::AfPacket(wire) => wire.send(frame),
            WireBackend::Peer(wire) => wire.send(frame),
            WireBackend::Loopback(wire) => {
                wire.send(frame);
                Ok(())
            }
            WireBackend::Pcap(_) | WireBackend::Synth(_) => Ok(()),
        }
    }

    /// Returns whether more frames can arrive on the wire, as the last [`Wire::burst`] found.
    pub fn state(&self) -> WireState {
        match &self.0 {
            WireBackend::AfPacket(wire) => wire.state(),
            WireBackend::Pcap(wire) => wire.state(),
            WireBackend::Synth(wire) => wire.state(),
            WireBackend::Peer(_) | WireBackend::Loopback(_) => WireState::Up,
        }
    }

    /// Returns the number of frames, by cause, that the wire has lost since it was opened. On a
    /// live interface this takes system calls, which are too expensive for every burst.
    pub fn drops(&mut self) -> WireDrops {
        match &mut self.0 {
            WireBackend::AfPacket(wire) => wire.drops(),
            // The other end did not take the frames. Its port is unknown here, so `port` stays 0.
            WireBackend::Peer(wire) => WireDrops {
                ring: wire.dropped(),
                ..WireDrops::default()
            },
            WireBackend::Loopback(wire) => WireDrops {
                port: wire.dropped(),
                ..WireDrops::default()
            },
            WireBackend::Pcap(_) | WireBackend::Synth(_) => WireDrops::default(),
        }
    }

    /// Returns the number of records in a wire's capture files that are not Ethernet frames:
    /// shorter than 14 bytes, or of another link type. Further rounds of a looped file do not count
    /// again.
    pub fn skipped(&self) -> u64 {
        match &self.0 {
            WireBackend::Pcap(wire) => wire.skipped(),
            _ => 0,
        }
    }

    /// Returns the wire's notes for the user, one sentence each, such as that the capture file is
    /// truncated.
    pub fn notes(&self) -> &[String] {
        match &self.0 {
            WireBackend::Pcap(wire) => wire.notes(),
            _ => &[],
        }
    }

    /// Returns a descriptor that becomes readable when an idle wire has a frame; `None` if the wire
    /// has none. The descriptor can change from one burst to the next, may be readable without a
    /// frame, and stays readable while the NIC makes a frame wait.
    pub fn wait_fd(&self) -> Option<RawFd> {
        match &self.0 {
            WireBackend::AfPacket(wire) => wire.wait_fd(),
            WireBackend::Peer(wire) => wire.wait_fd(),
            _ => None,
        }
    }

    /// Returns the time by the NIC's clock at which a paced wire's next frame is due, or at which a
    /// wire needs its next [`Wire::burst`] at the latest. `None` if the wire is unpaced (see
    /// [`Wire::wait_fd`]) or has ended.
    pub fn next_due_ns(&self) -> Option<u64> {
        match &self.0 {
            WireBackend::Pcap(wire) => wire.next_due_ns(),
            WireBackend::Synth(wire) => wire.next_due_ns(),
            WireBackend::Peer(wire) => wire.next_due_ns(),
            WireBackend::AfPacket(_) | WireBackend::Loopback(_) => None,
        }
    }

    /// Returns `true` if the wire can hold further frames for a while: it is a live interface whose
    /// ring is at most three quarters full.
    pub fn has_room(&self) -> bool {
        match &self.0 {
            WireBackend::AfPacket(wire) => wire.has_room(),
            _ => false,
        }
    }

    /// Switches the delivery of frames that the host itself sends on the wire's interface on or
    /// off. Only a live interface has such frames.
    pub fn set_sniffing(&mut self, on: bool) {
        if let WireBackend::AfPacket(wire) = &mut self.0 {
            wire.set_sniffing(on);
        }
    }
}
