//! What a user writes after `--wire`, and what it means.
//!
//! ```text
//! af_packet:IFACE[,ring=64MiB]
//! pcap:FILE[,loop=N][,pps=N | ,speed=X][,lossy]
//! synth:[size=64][,flows=1024][,pps=N][,count=N][,proto=..][,ip=..][,vlan=N][,dir=..][,lossy]
//! peer:PATH
//! loopback
//! ```
//!
//! The file name of `pcap:` may hold commas: options are read from its end for as long as they are words
//! that `pcap:` knows. `peer:` takes everything for its path.
//!
//! May import: `std`, `thiserror`, and from `synth` what its frames need. Invariants: all meaning is settled here, opening a wire finds no
//! further mistakes in its text; and what `Display` prints parses back to an equal spec.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use super::synth;

/// A wire as it was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct WireSpec {
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    AfPacket(AfPacketSpec),
    Pcap(PcapSpec),
    Synth(SynthSpec),
    Peer(String),
    Loopback,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct AfPacketSpec {
    pub(super) iface: String,
    /// Bytes, in whole MiB.
    pub(super) ring: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct PcapSpec {
    pub(super) file: String,
    /// How often it is played; 0 is for ever.
    pub(super) rounds: u64,
    pub(super) pace: PcapPace,
    pub(super) lossy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PcapPace {
    /// As fast as the frames are taken.
    Eager,
    Pps(NonZeroU64),
    /// The recorded pace, so many times faster.
    Speed(f64),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct SynthSpec {
    pub(super) sizes: Sizes,
    pub(super) flows: u32,
    pub(super) pps: Option<NonZeroU64>,
    pub(super) count: Option<u64>,
    pub(super) proto: Mix,
    pub(super) ip: Mix,
    pub(super) vlan: Option<u16>,
    /// Both directions of each flow, in turn.
    pub(super) both: bool,
    pub(super) lossy: bool,
}

/// One of two kinds, or both in turn: UDP and TCP, IPv4 and IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mix {
    /// UDP, IPv4.
    First,
    /// TCP, IPv6.
    Second,
    Both,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sizes {
    List(Vec<u32>),
    Range(u32, u32),
    Imix,
}

/// Something in a wire's text that cannot be: which part, what it was, and what may stand there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("wire `{wire}`: {part}: `{value}` is not allowed; {allowed}")]
pub struct SpecError {
    wire: String,
    part: String,
    value: String,
    allowed: String,
}

const KINDS: &str = "a wire is af_packet:IFACE, pcap:FILE, synth:OPTIONS, peer:PATH or loopback";
const MIB: u64 = 1 << 20;
const RING: u64 = 64 * MIB;
/// A smaller one is full after a few milliseconds; a larger one is a slip of the unit.
const RINGS: std::ops::RangeInclusive<u64> = 2 * MIB..=4096 * MIB;
const FLOWS: u32 = 1024;
const SIZE: u32 = 64;

impl WireSpec {
    pub(super) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Whether the wire comes to an end by itself.
    pub fn finite(&self) -> bool {
        match &self.kind {
            Kind::Pcap(it) => it.rounds != 0,
            Kind::Synth(it) => it.count.is_some(),
            Kind::AfPacket(_) | Kind::Peer(_) | Kind::Loopback => false,
        }
    }

    /// Whether the wire waits for a NIC that has no buffers: finite, and not told `lossy`. What plays
    /// for ever does not wait, as no real wire does.
    pub fn lossless(&self) -> bool {
        let lossy = match &self.kind {
            Kind::Pcap(it) => it.lossy,
            Kind::Synth(it) => it.lossy,
            Kind::AfPacket(_) | Kind::Peer(_) | Kind::Loopback => true,
        };
        self.finite() && !lossy
    }

    /// The network device behind the wire, if there is one.
    pub fn netdev(&self) -> Option<&str> {
        match &self.kind {
            Kind::AfPacket(it) => Some(&it.iface),
            _ => None,
        }
    }
}

impl FromStr for WireSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<WireSpec, SpecError> {
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (text, None),
        };
        let wire = Text(text);
        let kind = match (kind, rest) {
            ("loopback", None) => Kind::Loopback,
            ("loopback", Some(rest)) => {
                return Err(wire.error("options", rest, "loopback takes none"));
            }
            ("synth", rest) => Kind::Synth(synth(&wire, rest.unwrap_or(""))?),
            ("af_packet", Some(rest)) => Kind::AfPacket(af_packet(&wire, rest)?),
            ("pcap", Some(rest)) => Kind::Pcap(pcap(&wire, rest)?),
            ("peer", Some("")) => {
                return Err(wire.error(
                    "path",
                    "",
                    "the path of a Unix socket, as peer:/run/a.sock",
                ));
            }
            ("peer", Some(path)) => Kind::Peer(path.to_owned()),
            _ => return Err(wire.error("kind", kind, KINDS)),
        };
        Ok(WireSpec { kind })
    }
}

fn af_packet(wire: &Text<'_>, rest: &str) -> Result<AfPacketSpec, SpecError> {
    let mut words = rest.split(',');
    let iface = words.next().unwrap_or_default();
    // dev_valid_name, net/core/dev.c: up to 15 bytes, no slash, colon or space, not "." or "..".
    if iface.is_empty()
        || iface.len() > 15
        || iface == "."
        || iface == ".."
        || iface.contains(|c: char| c == '/' || c == ':' || c.is_whitespace())
    {
        return Err(wire.error(
            "interface",
            iface,
            "the name of a network interface, as af_packet:eth0",
        ));
    }
    let mut ring = None;
    for word in words {
        match word.split_once('=') {
            Some(("ring", value)) => {
                let allowed = "whole MiB from 2MiB to 4096MiB";
                let bytes = bytes(value)
                    .filter(|it| it % MIB == 0 && RINGS.contains(it))
                    .ok_or_else(|| wire.error("ring", value, allowed))?;
                wire.once("ring", &mut ring, bytes)?;
            }
            _ => return Err(wire.error("option", word, "af_packet takes ring=SIZE")),
        }
    }
    Ok(AfPacketSpec {
        iface: iface.to_owned(),
        ring: ring.unwrap_or(RING),
    })
}

fn pcap(wire: &Text<'_>, rest: &str) -> Result<PcapSpec, SpecError> {
    let (mut file, mut rounds, mut pps, mut speed, mut lossy) = (rest, None, None, None, None);
    while let Some((before, word)) = file.rsplit_once(',') {
        match (word, word.split_once('=')) {
            ("lossy", _) => wire.once("lossy", &mut lossy, true)?,
            (_, Some(("loop", value))) => {
                let allowed = "how often the file is played, 0 is for ever";
                let value = number(value).ok_or_else(|| wire.error("loop", value, allowed))?;
                wire.once("loop", &mut rounds, value)?;
            }
            (_, Some(("pps", value))) => wire.once("pps", &mut pps, wire.pps(value)?)?,
            (_, Some(("speed", value))) => {
                let allowed = "a factor above 0 and up to 1000000; 1 is the recorded pace";
                let value = value
                    .parse()
                    .ok()
                    .filter(|it: &f64| *it > 0.0 && *it <= 1e6)
                    .ok_or_else(|| wire.error("speed", value, allowed))?;
                wire.once("speed", &mut speed, value)?;
            }
            _ => break,
        }
        file = before;
    }
    if file.is_empty() {
        return Err(wire.error(
            "file",
            file,
            "the path of a pcap or pcapng file, as pcap:a.pcap",
        ));
    }
    let pace = match (pps, speed) {
        (None, None) => PcapPace::Eager,
        (Some(pps), None) => PcapPace::Pps(pps),
        (None, Some(speed)) => PcapPace::Speed(speed),
        (Some(pps), Some(speed)) => {
            let both = format!("pps={pps},speed={speed}");
            return Err(wire.error("pace", &both, "one of pps and speed"));
        }
    };
    Ok(PcapSpec {
        file: file.to_owned(),
        rounds: rounds.unwrap_or(1),
        pace,
        lossy: lossy.is_some(),
    })
}

fn synth(wire: &Text<'_>, rest: &str) -> Result<SynthSpec, SpecError> {
    let (mut sizes, mut flows, mut pps, mut count) = (None, None, None, None);
    let (mut proto, mut ip, mut vlan, mut both, mut lossy) = (None, None, None, None, None);
    let words = rest.split(',').filter(|_| !rest.is_empty());
    for word in words {
        match (word, word.split_once('=')) {
            ("lossy", _) => wire.once("lossy", &mut lossy, true)?,
            (_, Some(("size", value))) => wire.once("size", &mut sizes, wire.sizes(value)?)?,
            (_, Some(("flows", value))) => {
                let value = number(value)
                    .filter(|it| (1..=u64::from(synth::MAX_FLOWS)).contains(it))
                    .ok_or_else(|| wire.error("flows", value, "1 to 1048576"))?;
                wire.once("flows", &mut flows, value as u32)?;
            }
            (_, Some(("pps", value))) => wire.once("pps", &mut pps, wire.pps(value)?)?,
            (_, Some(("count", value))) => {
                let allowed =
                    "a number of frames, as 1000000 or 1M; without it the wire never ends";
                let value = number(value).ok_or_else(|| wire.error("count", value, allowed))?;
                wire.once("count", &mut count, value)?;
            }
            (_, Some(("proto", value))) => {
                let value = wire.mix("proto", value, ["udp", "tcp"])?;
                wire.once("proto", &mut proto, value)?;
            }
            (_, Some(("ip", value))) => {
                let value = wire.mix("ip", value, ["4", "6"])?;
                wire.once("ip", &mut ip, value)?;
            }
            (_, Some(("vlan", value))) => {
                let value = value
                    .parse()
                    .ok()
                    .filter(|it| *it < 4096)
                    .ok_or_else(|| wire.error("vlan", value, "a VLAN identifier, 0 to 4095"))?;
                wire.once("vlan", &mut vlan, value)?;
            }
            (_, Some(("dir", value))) => {
                let value = match value {
                    "one" => false,
                    "both" => true,
                    _ => return Err(wire.error("dir", value, "one or both")),
                };
                wire.once("dir", &mut both, value)?;
            }
            _ => {
                return Err(wire.error(
                    "option",
                    word,
                    "synth takes size, flows, pps, count, proto, ip, vlan, dir (each =VALUE) and lossy",
                ));
            }
        }
    }
    let mut spec = SynthSpec {
        sizes: Sizes::Imix,
        flows: flows.unwrap_or(FLOWS),
        pps,
        count,
        proto: proto.unwrap_or(Mix::First),
        ip: ip.unwrap_or(Mix::First),
        vlan,
        both: both.unwrap_or(false),
        lossy: lossy.is_some(),
    };
    let least = synth::least_size(&spec);
    spec.sizes = sizes.unwrap_or_else(|| Sizes::List(vec![SIZE.max(least)]));
    wire.check_sizes(&spec, least)?;
    Ok(spec)
}

/// The whole text, for errors to quote.
struct Text<'a>(&'a str);

impl Text<'_> {
    fn error(&self, part: &str, value: &str, allowed: impl Into<String>) -> SpecError {
        SpecError {
            wire: self.0.to_owned(),
            part: part.to_owned(),
            value: value.to_owned(),
            allowed: allowed.into(),
        }
    }

    /// An option given twice is a mistake: one of the two was meant.
    fn once<T: fmt::Debug>(
        &self,
        part: &str,
        place: &mut Option<T>,
        value: T,
    ) -> Result<(), SpecError> {
        match place.replace(value) {
            None => Ok(()),
            Some(_) => Err(self.error(part, part, "it may stand once")),
        }
    }

    fn pps(&self, value: &str) -> Result<NonZeroU64, SpecError> {
        number(value).and_then(NonZeroU64::new).ok_or_else(|| {
            self.error(
                "pps",
                value,
                "frames a second from 1, as 1000000 or 1M; without it, no pacing",
            )
        })
    }

    fn mix(&self, part: &str, value: &str, names: [&str; 2]) -> Result<Mix, SpecError> {
        match value {
            _ if value == names[0] => Ok(Mix::First),
            _ if value == names[1] => Ok(Mix::Second),
            "mix" => Ok(Mix::Both),
            _ => Err(self.error(part, value, format!("{}, {} or mix", names[0], names[1]))),
        }
    }

    fn sizes(&self, value: &str) -> Result<Sizes, SpecError> {
        let allowed = "bytes without FCS: 64, 64/594/1514, 64-1500 or imix";
        let size = |text: &str| {
            text.parse::<u32>()
                .ok()
                .filter(|it| *it <= synth::MAX_SIZE)
                .ok_or_else(|| {
                    self.error(
                        "size",
                        text,
                        format!("{allowed}; up to {}", synth::MAX_SIZE),
                    )
                })
        };
        if value == "imix" {
            return Ok(Sizes::Imix);
        }
        match value.split_once('-') {
            Some((low, high)) => {
                let (low, high) = (size(low)?, size(high)?);
                if low > high {
                    return Err(self.error("size", value, "a range goes upwards, as 64-1500"));
                }
                Ok(Sizes::Range(low, high))
            }
            None => Ok(Sizes::List(
                value.split('/').map(size).collect::<Result<_, _>>()?,
            )),
        }
    }

    fn check_sizes(&self, spec: &SynthSpec, least: u32) -> Result<(), SpecError> {
        let smallest = match &spec.sizes {
            Sizes::List(sizes) => sizes.iter().copied().min().unwrap_or(0),
            Sizes::Range(low, _) => *low,
            Sizes::Imix => least,
        };
        if smallest < least {
            let allowed = format!(
                "the headers of proto={},ip={}{} need {least} bytes",
                spec.proto.name(["udp", "tcp"]),
                spec.ip.name(["4", "6"]),
                if spec.vlan.is_some() {
                    " with a VLAN tag"
                } else {
                    ""
                },
            );
            return Err(self.error("size", &smallest.to_string(), allowed));
        }
        let bytes = synth::memory(spec);
        if bytes > synth::MAX_MEMORY {
            let value = format!("flows={},size={}", spec.flows, spec.sizes);
            let allowed = format!(
                "the frames of all flows lie in memory, {} MiB here and at most {} MiB",
                bytes >> 20,
                synth::MAX_MEMORY >> 20
            );
            return Err(self.error("flows and size", &value, allowed));
        }
        Ok(())
    }
}

/// A count: digits, and perhaps `k`, `M` or `G` (powers of ten).
fn number(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 1_000),
        b'M' => (&text[..text.len() - 1], 1_000_000),
        b'G' => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// A size: digits, and perhaps `KiB`, `MiB` or `GiB`.
fn bytes(text: &str) -> Option<u64> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let (digits, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))
        .unwrap_or((text, 1));
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

impl Mix {
    fn name(self, names: [&'static str; 2]) -> &'static str {
        match self {
            Mix::First => names[0],
            Mix::Second => names[1],
            Mix::Both => "mix",
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sizes::Imix => f.write_str("imix"),
            Sizes::Range(low, high) => write!(f, "{low}-{high}"),
            Sizes::List(sizes) => {
                for (i, size) in sizes.iter().enumerate() {
                    write!(f, "{}{size}", if i == 0 { "" } else { "/" })?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for WireSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Loopback => f.write_str("loopback"),
            Kind::Peer(path) => write!(f, "peer:{path}"),
            Kind::AfPacket(it) => {
                write!(f, "af_packet:{}", it.iface)?;
                if it.ring != RING {
                    write!(f, ",ring={}MiB", it.ring / MIB)?;
                }
                Ok(())
            }
            Kind::Pcap(it) => {
                write!(f, "pcap:{}", it.file)?;
                if it.rounds != 1 {
                    write!(f, ",loop={}", it.rounds)?;
                }
                match it.pace {
                    PcapPace::Eager => {}
                    PcapPace::Pps(pps) => write!(f, ",pps={pps}")?,
                    PcapPace::Speed(speed) => write!(f, ",speed={speed}")?,
                }
                f.write_str(if it.lossy { ",lossy" } else { "" })
            }
            Kind::Synth(it) => {
                write!(f, "synth:size={},flows={}", it.sizes, it.flows)?;
                if let Some(pps) = it.pps {
                    write!(f, ",pps={pps}")?;
                }
                if let Some(count) = it.count {
                    write!(f, ",count={count}")?;
                }
                if it.proto != Mix::First {
                    write!(f, ",proto={}", it.proto.name(["udp", "tcp"]))?;
                }
                if it.ip != Mix::First {
                    write!(f, ",ip={}", it.ip.name(["4", "6"]))?;
                }
                if let Some(vlan) = it.vlan {
                    write!(f, ",vlan={vlan}")?;
                }
                f.write_str(if it.both { ",dir=both" } else { "" })?;
                f.write_str(if it.lossy { ",lossy" } else { "" })
            }
        }
    }
}

#[cfg(test)]
mod tests;
