//! Parser of the text of a wire.
//!
//! ```text
//! af_packet:IFACE[,ring=128MiB]
//! pcap:FILE[,loop=N][,pps=N | ,speed=X][,lossy]
//! synth:[size=64][,flows=1024][,pps=N][,count=N][,proto=..][,ip=..][,vlan=N][,dir=..][,lossy]
//! peer:PATH
//! loopback
//! ```
//!
//! Invariant: the parser finds every error in the text. Opening a wire finds none there.

pub mod af_packet;
pub mod pcap;
pub mod synth;
mod text;

use std::str::FromStr;

use af_packet::AfPacketSpec;
use pcap::PcapSpec;
use synth::SynthSpec;
pub use text::SpecError;
use text::SpecText;

/// Parsed description of a wire, such as `pcap:FILE,loop=2`, from the user's text.
#[derive(Clone, Debug)]
pub struct WireSpec {
    text: String,
    pub kind: WireKind,
}

/// Kind of a wire, with its options.
#[derive(Clone, Debug, PartialEq)]
pub enum WireKind {
    AfPacket(AfPacketSpec),
    Pcap(PcapSpec),
    Synth(SynthSpec),
    /// Wire that is a cable to a modelled NIC in another process, over the Unix socket at this
    /// path.
    Peer(String),
    Loopback,
}

const KINDS: &str = "a wire is af_packet:IFACE, pcap:FILE, synth:OPTIONS, peer:PATH or loopback";

impl WireSpec {
    /// Default size of the receive ring of a wire on a live interface, in bytes.
    pub const DEFAULT_RING: u64 = text::RING;

    /// Returns the size of the receive ring of a wire on a live interface, in bytes; `None` for
    /// other wires.
    pub fn ring(&self) -> Option<u64> {
        match &self.kind {
            WireKind::AfPacket(it) => Some(it.ring),
            _ => None,
        }
    }

    /// Returns the description of the wire as the user wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns `true` if the wire ends by itself, after its last frame.
    pub fn finite(&self) -> bool {
        match &self.kind {
            WireKind::Pcap(it) => it.rounds != 0,
            WireKind::Synth(it) => it.count.is_some(),
            WireKind::AfPacket(_) | WireKind::Peer(_) | WireKind::Loopback => false,
        }
    }

    /// Returns `true` if the wire waits while the NIC has no buffers: it is finite and not `lossy`.
    /// An endless wire does not wait, as no real wire does.
    pub fn lossless(&self) -> bool {
        let lossy = match &self.kind {
            WireKind::Pcap(it) => it.lossy,
            WireKind::Synth(it) => it.lossy,
            WireKind::AfPacket(_) | WireKind::Peer(_) | WireKind::Loopback => true,
        };
        self.finite() && !lossy
    }

    /// Returns `true` if the wire plays a capture file or generated frames, so that it can wait
    /// until a program receives them.
    pub fn is_playback(&self) -> bool {
        matches!(self.kind, WireKind::Pcap(_) | WireKind::Synth(_))
    }

    /// Returns the name of the network interface behind a live wire; `None` for other wires.
    pub fn netdev(&self) -> Option<&str> {
        match &self.kind {
            WireKind::AfPacket(it) => Some(&it.iface),
            _ => None,
        }
    }

    /// Returns `true` if the wire is on a live network interface of the machine.
    pub fn is_live(&self) -> bool {
        matches!(self.kind, WireKind::AfPacket(_))
    }
}

impl FromStr for WireSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<WireSpec, SpecError> {
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (text, None),
        };
        let wire = SpecText(text);
        let kind = match (kind, rest) {
            ("loopback", None) => WireKind::Loopback,
            ("loopback", Some(rest)) => {
                return Err(wire.error("options", rest, "loopback takes no options"));
            }
            ("synth", rest) => WireKind::Synth(SynthSpec::parse(&wire, rest.unwrap_or(""))?),
            ("af_packet", Some(rest)) => WireKind::AfPacket(AfPacketSpec::parse(&wire, rest)?),
            // A wire of earlier versions.
            ("af_xdp", rest) => {
                let iface = rest.and_then(|it| it.split(',').next());
                let iface = iface.filter(|it| !it.is_empty()).unwrap_or("eth0");
                let instead = format!("capture {iface} itself: wqcap run -i {iface}");
                return Err(wire.error("kind", kind, instead));
            }
            ("pcap", Some(rest)) => WireKind::Pcap(PcapSpec::parse(&wire, rest)?),
            ("peer", Some("")) => {
                return Err(wire.error(
                    "path",
                    "",
                    "use the path of a Unix socket, such as peer:/run/a.sock",
                ));
            }
            ("peer", Some(path)) => WireKind::Peer(path.to_owned()),
            _ => return Err(wire.error("kind", kind, KINDS)),
        };
        let text = text.to_owned();
        Ok(WireSpec { text, kind })
    }
}

#[cfg(test)]
mod tests;
