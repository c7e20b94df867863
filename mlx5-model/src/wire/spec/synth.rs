//! Parser of the wire
//! `synth:[size=64][,flows=1024][,pps=N][,count=N][,proto=..][,ip=..][,vlan=N][,dir=..][,lossy]`.

use std::fmt;
use std::num::NonZeroU64;

use super::text::{SpecError, SpecText, number};

const FLOWS: u32 = 1024;
const MAX_FLOWS: u32 = 1 << 20;
const SIZE: u32 = 64;
/// Size in bytes of the largest frame of a `synth` wire. Its IPv4 total length is a little below
/// the maximum.
const MAX_SIZE: u32 = 65_535;
const MAX_MEMORY: u64 = 1 << 30;
/// Frame sizes of "Simple IMIX" (7:4:1) in bytes without FCS, ordered so that large frames do not
/// follow each other.
const IMIX: [u32; 12] = [60, 590, 60, 60, 590, 60, 1514, 60, 590, 60, 60, 590];
/// Maximum memory in bytes for the frame templates of a `synth` wire, up to which every flow gets
/// one in every size.
const ALL_TEMPLATES: u64 = 16 << 20;
/// Size of a cache line in bytes. A frame template begins on its own line, so that its frame
/// touches as few lines as possible.
pub const LINE: usize = 64;

pub const ETHERNET: usize = 14;
pub const VLAN: usize = 4;
const PROTOS: [&str; 2] = ["udp", "tcp"];
const IPS: [&str; 2] = ["4", "6"];

#[derive(Clone, Debug, PartialEq)]
pub struct SynthSpec {
    pub sizes: Sizes,
    pub flows: u32,
    pub pps: Option<NonZeroU64>,
    pub count: Option<u64>,
    pub proto: Mix,
    pub ip: Mix,
    pub vlan: Option<u16>,
    /// Set when each flow of the `synth` wire has both directions, alternating.
    pub both: bool,
    pub lossy: bool,
}

/// Choice of one protocol of a pair or both: UDP or TCP, IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Mix of one protocol: only the first of the pair, UDP of UDP/TCP or IPv4 of IPv4/IPv6.
    First,
    /// Mix of one protocol: only the second of the pair, TCP of UDP/TCP or IPv6 of IPv4/IPv6.
    Second,
    /// Mix of both protocols of the pair, alternating by flow.
    Both,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    List(Vec<u32>),
    Range(u32, u32),
    Imix,
}

/// Frame templates that a `synth` wire prepares: their sizes, number and memory.
pub struct Layout {
    /// Frame sizes of the templates in bytes, used in turn.
    pub sizes: Vec<u32>,
    /// Number of frame templates of the `synth` wire.
    pub templates: usize,
    /// Memory of all frame templates of the `synth` wire, in bytes.
    pub bytes: u64,
}

impl SynthSpec {
    pub fn parse(wire: &SpecText<'_>, rest: &str) -> Result<Self, SpecError> {
        let (mut sizes, mut flows, mut pps, mut count) = (None, None, None, None);
        let (mut proto, mut ip, mut vlan, mut both, mut lossy) = (None, None, None, None, None);
        let words = rest.split(',').filter(|_| !rest.is_empty());
        for word in words {
            match (word, word.split_once('=')) {
                ("lossy", _) => wire.once("lossy", &mut lossy, true)?,
                (_, Some(("size", value))) => {
                    wire.once("size", &mut sizes, Sizes::parse(wire, value)?)?
                }
                (_, Some(("flows", value))) => {
                    let range = 1..=u64::from(MAX_FLOWS);
                    let n = number(value).filter(|it| range.contains(it));
                    let n = n.map(|it| it as u32);
                    wire.option("flows", value, &mut flows, n, "use 1 to 1048576")?;
                }
                (_, Some(("pps", value))) => wire.pps(value, &mut pps)?,
                (_, Some(("count", value))) => {
                    let allowed =
                        "use a number of frames, such as 1000000 or 1M; omit it for no limit";
                    wire.option("count", value, &mut count, number(value), allowed)?;
                }
                (_, Some(("proto", value))) => {
                    let mix = Mix::parse(value, PROTOS);
                    wire.option("proto", value, &mut proto, mix, "use udp, tcp or mix")?;
                }
                (_, Some(("ip", value))) => {
                    let mix = Mix::parse(value, IPS);
                    wire.option("ip", value, &mut ip, mix, "use 4, 6 or mix")?;
                }
                (_, Some(("vlan", value))) => {
                    let id = value.parse().ok().filter(|it| *it < 4096);
                    let allowed = "use a VLAN identifier, 0 to 4095";
                    wire.option("vlan", value, &mut vlan, id, allowed)?;
                }
                (_, Some(("dir", value))) => {
                    let is_both = match value {
                        "one" => Some(false),
                        "both" => Some(true),
                        _ => None,
                    };
                    wire.option("dir", value, &mut both, is_both, "use one or both")?;
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
        let mut spec = Self {
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
        let least = spec.min_size();
        spec.sizes = sizes.unwrap_or_else(|| Sizes::List(vec![SIZE.max(least)]));
        spec.check_sizes(wire, least)?;
        Ok(spec)
    }

    fn check_sizes(&self, wire: &SpecText<'_>, least: u32) -> Result<(), SpecError> {
        let smallest = match &self.sizes {
            Sizes::List(sizes) => sizes.iter().copied().min().unwrap_or(0),
            Sizes::Range(low, _) => *low,
            Sizes::Imix => least,
        };
        if smallest < least {
            let allowed = format!(
                "use a frame size of {least} bytes or more, which the headers of proto={},ip={}{} need",
                self.proto.name(PROTOS),
                self.ip.name(IPS),
                if self.vlan.is_some() {
                    " with a VLAN tag"
                } else {
                    ""
                },
            );
            return Err(wire.error("size", &smallest.to_string(), allowed));
        }
        let bytes = self.layout().bytes;
        if bytes > MAX_MEMORY {
            let value = format!("flows={},size={}", self.flows, self.sizes);
            let allowed = format!(
                "the frames of all flows take {} MiB of memory, the limit is {} MiB; \
                 use fewer flows or smaller frames",
                bytes >> 20,
                MAX_MEMORY >> 20
            );
            return Err(wire.error("flows and size", &value, allowed));
        }
        Ok(())
    }

    /// Returns the total size of the longest headers of any flow of the `synth` wire, in bytes.
    fn min_size(&self) -> u32 {
        let vlan = if self.vlan.is_some() { VLAN } else { 0 };
        let ip = if self.ip == Mix::First { 20 } else { 40 };
        let l4 = if self.proto == Mix::First { 8 } else { 20 };
        (ETHERNET + vlan + ip + l4) as u32
    }

    /// Computes the frame templates of a `synth` wire: every flow in every size if these fit in 16
    /// MiB. Otherwise all flows occur equally often and all sizes at least once.
    pub fn layout(&self) -> Layout {
        let sizes: Vec<u32> = match &self.sizes {
            Sizes::List(sizes) => sizes.clone(),
            Sizes::Range(low, high) => (*low..=*high).collect(),
            Sizes::Imix => IMIX.iter().map(|it| (*it).max(self.min_size())).collect(),
        };
        let flows = self.flows as usize * if self.both { 2 } else { 1 };
        let per_round: u64 = sizes
            .iter()
            .map(|it| u64::from(*it).next_multiple_of(LINE as u64))
            .sum();
        let bytes = |templates: usize| per_round * templates.div_ceil(sizes.len()) as u64;
        let all = flows / gcd(flows, sizes.len()) * sizes.len();
        let templates = match bytes(all) {
            0..=ALL_TEMPLATES => all,
            _ => flows * sizes.len().div_ceil(flows),
        };
        Layout {
            templates,
            bytes: bytes(templates),
            sizes,
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Sizes {
    fn parse(wire: &SpecText<'_>, value: &str) -> Result<Self, SpecError> {
        let allowed = "use bytes without FCS: 64, 64/594/1514, 64-1500 or imix";
        let size = |text: &str| {
            text.parse::<u32>()
                .ok()
                .filter(|it| *it <= MAX_SIZE)
                .ok_or_else(|| wire.error("size", text, format!("{allowed}; at most {MAX_SIZE}")))
        };
        if value == "imix" {
            return Ok(Self::Imix);
        }
        match value.split_once('-') {
            Some((low, high)) => {
                let (low, high) = (size(low)?, size(high)?);
                if low > high {
                    let allowed = "use an ascending range, such as 64-1500";
                    return Err(wire.error("size", value, allowed));
                }
                Ok(Self::Range(low, high))
            }
            None => Ok(Self::List(
                value.split('/').map(size).collect::<Result<_, _>>()?,
            )),
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

impl Mix {
    fn parse(value: &str, names: [&str; 2]) -> Option<Self> {
        match value {
            _ if value == names[0] => Some(Self::First),
            _ if value == names[1] => Some(Self::Second),
            "mix" => Some(Self::Both),
            _ => None,
        }
    }

    fn name(self, names: [&'static str; 2]) -> &'static str {
        match self {
            Mix::First => names[0],
            Mix::Second => names[1],
            Mix::Both => "mix",
        }
    }

    /// Returns `true` if the flow number `flow` uses the second protocol of the pair.
    pub fn is_second(self, flow: u32) -> bool {
        match self {
            Mix::First => false,
            Mix::Second => true,
            Mix::Both => flow % 2 == 1,
        }
    }
}
