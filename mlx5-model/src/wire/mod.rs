//! What the software NIC's port is plugged into.
//!
//! A wire is where frames come from and where they go to: a live interface, a capture file, a
//! generator, another process, or the port's own end. The NIC asks it for what is due and hands it
//! what the host sends; it never asks what kind of wire it is, apart from what [`WireSpec`] says of
//! loss and of the network device behind it.
//!
//! May import: nothing of the NIC. `std`, `libc`, `pcap-file` and `thiserror` only, so that a wire can
//! be tested, measured and replaced without a device.
//!
//! Invariants:
//! - A frame goes over whole and as it is: no padding, no FCS, nothing refused for being short down to
//!   14 bytes, nothing cut up to 256 KiB.
//! - A frame is handed over exactly once: one that was answered with [`Take::Wait`] is the next one
//!   handed over, byte for byte.
//! - What a wire loses by itself it counts in [`Wire::dropped`]; what its source never could carry, in
//!   [`Wire::skipped`].
//! - [`Wire::burst`] allocates nothing and makes no system call per frame.

mod af_packet;
mod gso;
mod loopback;
mod pace;
mod pcap;
mod peer;
mod spec;
mod synth;

use std::io;
use std::os::fd::RawFd;

pub use spec::WireSpec;

use spec::Kind;

/// The smallest frame a wire carries: an Ethernet header and nothing after it.
pub const MIN_FRAME: usize = 14;

/// The largest frame a wire carries: what libpcap takes for the largest packet there is
/// (`MAXIMUM_SNAPLEN`, pcap/pcap.h), and more than any "BIG TCP" frame on a file.
pub const MAX_FRAME: usize = 256 << 10;

/// Which way a frame went, seen from the host that owns the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It came in over the wire.
    Received,
    /// The host sent it by its own network stack; only sniffer rules want it.
    Transmitted,
}

/// A frame at the head of the wire, lent for the time of one call.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// From the destination MAC to the last byte before the FCS.
    pub bytes: &'a [u8],
    /// Which way it went.
    pub direction: Direction,
}

/// What the NIC did with the frame it was handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// It is the NIC's, delivered or counted as lost: the wire moves on.
    Taken,
    /// The NIC cannot take it now: it stays at the head, and the burst ends.
    Wait,
}

/// Whoever frames are handed to.
pub trait Taker {
    /// What can be said of a frame before it is its turn.
    type Look: Default;

    /// Looks at a frame, which may be one still to come in this burst. What is found out must not depend on the
    /// frames before it: a wire that knows them looks one ahead, so that the long way from a frame's bytes to its
    /// queue overlaps with the delivery of the frame before.
    fn look(&self, frame: &Frame<'_>) -> Self::Look;

    /// Takes the frame at the head of the wire, at which `look` was had in this burst.
    fn take(&mut self, frame: Frame<'_>, look: &Self::Look) -> Take;

    /// Hands over a frame that nobody has looked at.
    #[inline(always)]
    fn hand(&mut self, bytes: &[u8], direction: Direction) -> Take {
        let frame = Frame { bytes, direction };
        let look = self.look(&frame);
        self.take(frame, &look)
    }
}

/// A function that frames are handed to.
struct Each<F>(F);

impl<F: FnMut(Frame<'_>) -> Take> Taker for Each<F> {
    type Look = ();

    fn look(&self, _frame: &Frame<'_>) {}

    fn take(&mut self, frame: Frame<'_>, _look: &()) -> Take {
        self.0(frame)
    }
}

/// Whether more can come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireState {
    /// Plugged in. An interface that is merely down is still plugged in.
    Up,
    /// A finite wire has handed over its last frame.
    Ended,
    /// The interface behind it was deleted.
    Lost,
}

/// A wire that could not be opened: which one, at what step, why, and what can be done.
#[derive(Debug, thiserror::Error)]
#[error("wire `{wire}`: {operation}: {source}{}{advice}", if advice.is_empty() { "" } else { "; " })]
pub struct WireError {
    wire: String,
    operation: String,
    source: io::Error,
    advice: String,
}

impl WireError {
    fn new(
        wire: impl std::fmt::Display,
        operation: impl Into<String>,
        source: io::Error,
        advice: impl Into<String>,
    ) -> WireError {
        WireError {
            wire: wire.to_string(),
            operation: operation.into(),
            source,
            advice: advice.into(),
        }
    }
}

/// An open wire. It belongs to one thread at a time, the NIC's.
pub struct Wire(Inner);

// It is opened on one thread and driven on another.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Wire>();
};

enum Inner {
    AfPacket(Box<af_packet::AfPacketWire>),
    Pcap(Box<pcap::PcapWire>),
    Synth(Box<synth::SynthWire>),
    Peer(Box<peer::PeerWire>),
    Loopback(loopback::LoopbackWire),
}

/// One match over the kinds of wire.
macro_rules! each {
    ($inner:expr, $wire:ident => $call:expr) => {
        match $inner {
            Inner::AfPacket($wire) => $call,
            Inner::Pcap($wire) => $call,
            Inner::Synth($wire) => $call,
            Inner::Peer($wire) => $call,
            Inner::Loopback($wire) => $call,
        }
    };
}

impl std::fmt::Debug for Wire {
    /// Its kind: a wire's buffers are megabytes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.0 {
            Inner::AfPacket(_) => "af_packet",
            Inner::Pcap(_) => "pcap",
            Inner::Synth(_) => "synth",
            Inner::Peer(_) => "peer",
            Inner::Loopback(_) => "loopback",
        };
        write!(f, "Wire({kind})")
    }
}

impl Wire {
    /// Opens what `spec` describes.
    pub fn open(spec: &WireSpec) -> Result<Wire, WireError> {
        Ok(Wire(match spec.kind() {
            Kind::AfPacket(it) => {
                Inner::AfPacket(Box::new(af_packet::AfPacketWire::open(spec, it)?))
            }
            Kind::Pcap(it) => Inner::Pcap(Box::new(pcap::PcapWire::open(spec, it)?)),
            Kind::Synth(it) => Inner::Synth(Box::new(synth::SynthWire::new(it))),
            Kind::Peer(path) => Inner::Peer(Box::new(peer::PeerWire::open(spec, path)?)),
            Kind::Loopback => Inner::Loopback(loopback::LoopbackWire::default()),
        }))
    }

    /// Hands up to `budget` frames that are due at `now_ns` (the NIC's clock) to `taker`, in order, and
    /// returns how many were taken. `now_ns` must not go backwards.
    #[inline]
    pub fn burst(&mut self, now_ns: u64, budget: usize, taker: &mut impl Taker) -> usize {
        each!(&mut self.0, wire => wire.burst(now_ns, budget, taker))
    }

    /// As [`Wire::burst`], to a function.
    pub fn each(
        &mut self,
        now_ns: u64,
        budget: usize,
        take: impl FnMut(Frame<'_>) -> Take,
    ) -> usize {
        self.burst(now_ns, budget, &mut Each(take))
    }

    /// Sends one frame. Wires that only play (`pcap`, `synth`) swallow it.
    pub fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        match &mut self.0 {
            Inner::AfPacket(wire) => wire.send(frame),
            Inner::Peer(wire) => wire.send(frame),
            Inner::Loopback(wire) => {
                wire.send(frame);
                Ok(())
            }
            Inner::Pcap(_) | Inner::Synth(_) => Ok(()),
        }
    }

    /// Whether more can come. Costs nothing: what it knows was learnt in [`Wire::burst`].
    pub fn state(&self) -> WireState {
        match &self.0 {
            Inner::AfPacket(wire) => wire.state(),
            Inner::Pcap(wire) => wire.state(),
            Inner::Synth(wire) => wire.state(),
            Inner::Peer(_) | Inner::Loopback(_) => WireState::Up,
        }
    }

    /// How many frames the wire itself has lost since it was opened. On `af_packet` this is a system
    /// call (PACKET_STATISTICS): for whoever reads counters, not for every burst.
    pub fn dropped(&mut self) -> u64 {
        match &mut self.0 {
            Inner::AfPacket(wire) => wire.dropped(),
            Inner::Peer(wire) => wire.dropped(),
            Inner::Loopback(wire) => wire.dropped(),
            Inner::Pcap(_) | Inner::Synth(_) => 0,
        }
    }

    /// How many records of the source are no frames that Ethernet could carry: shorter than 14 bytes,
    /// or of another link type. Each round of a looped file counts them once only.
    pub fn skipped(&self) -> u64 {
        match &self.0 {
            Inner::Pcap(wire) => wire.skipped(),
            _ => 0,
        }
    }

    /// How many merged frames went over whole because there was no telling how to split them.
    pub fn unsplit(&self) -> u64 {
        match &self.0 {
            Inner::AfPacket(wire) => wire.unsplit(),
            _ => 0,
        }
    }

    /// What someone should be told once about this wire, a sentence each: a file cut short, an
    /// interface that still merges frames.
    pub fn notes(&self) -> &[String] {
        match &self.0 {
            Inner::AfPacket(wire) => wire.notes(),
            Inner::Pcap(wire) => wire.notes(),
            _ => &[],
        }
    }

    /// A descriptor that becomes readable when an idle wire has something to hand over. It can change
    /// from one burst to the next, may be ready without a frame behind it, and stays ready while the NIC
    /// makes a frame wait.
    pub fn wait_fd(&self) -> Option<RawFd> {
        match &self.0 {
            Inner::AfPacket(wire) => wire.wait_fd(),
            Inner::Peer(wire) => wire.wait_fd(),
            _ => None,
        }
    }

    /// When a paced wire's next frame is due, or when a wire wants its next [`Wire::burst`] at the
    /// latest. `None`: unpaced (see [`Wire::wait_fd`]), or at its end.
    pub fn next_due_ns(&self) -> Option<u64> {
        match &self.0 {
            Inner::Pcap(wire) => wire.next_due_ns(),
            Inner::Synth(wire) => wire.next_due_ns(),
            Inner::Peer(wire) => wire.next_due_ns(),
            Inner::AfPacket(_) | Inner::Loopback(_) => None,
        }
    }

    /// Whether the host's own sendings are wanted too. Only a live interface has any.
    pub fn set_sniffing(&mut self, on: bool) {
        if let Inner::AfPacket(wire) = &mut self.0 {
            wire.set_sniffing(on);
        }
    }
}
