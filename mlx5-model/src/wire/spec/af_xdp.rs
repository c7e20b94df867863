//! Parser of the wire
//! `af_xdp:IFACE[,queues=N][,mode=auto][,zerocopy=auto][,ring=128MiB][,busy_poll]`.

use super::text::{RING, SpecError, SpecText, number};

/// Maximum number of receive queues of an `af_xdp` wire, more than any NIC has.
const MAX_QUEUES: u64 = 1024;

#[derive(Clone, Debug, PartialEq)]
pub struct AfXdpSpec {
    pub iface: String,
    /// Number of the interface's receive queues whose frames the `af_xdp` wire takes; `None`: all
    /// queues.
    pub queues: Option<u32>,
    pub mode: XdpMode,
    pub zero_copy: ZeroCopy,
    /// Memory of an `af_xdp` wire for frames of all queues together, in bytes, a multiple of 1 MiB.
    pub ring: u64,
    /// Set when the NIC's thread runs the interface driver's receive loop itself, instead of
    /// interrupts.
    pub busy_poll: bool,
}

/// Place where the XDP program of an `af_xdp` wire runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// The XDP program runs in the driver if the driver supports that, otherwise as with `Skb`.
    Auto,
    /// The XDP program runs in the driver, before the kernel makes a packet of the frame.
    Native,
    /// The XDP program runs in the kernel's network stack, with any driver.
    Skb,
}

/// Use of AF_XDP's zero copy, with which the NIC writes directly into the wire's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Zero copy of AF_XDP frames if the driver supports it.
    Auto,
    On,
    Off,
}

impl AfXdpSpec {
    pub fn parse(wire: &SpecText<'_>, rest: &str) -> Result<Self, SpecError> {
        let mut words = rest.split(',');
        let iface = wire.interface("af_xdp", words.next().unwrap_or_default())?;
        let (mut queues, mut mode, mut zero_copy) = (None, None, None);
        let (mut ring, mut busy_poll) = (None, None);
        for word in words {
            match (word, word.split_once('=')) {
                ("busy_poll", _) => wire.once("busy_poll", &mut busy_poll, true)?,
                (_, Some(("queues", value))) => {
                    let range = 1..=MAX_QUEUES;
                    let n = number(value).filter(|it| range.contains(it));
                    let n = n.map(|it| it as u32);
                    let allowed = "use 1 to 1024; the default is all queues";
                    wire.option("queues", value, &mut queues, n, allowed)?;
                }
                (_, Some(("mode", value))) => {
                    let parsed = match value {
                        "auto" => Some(XdpMode::Auto),
                        "native" => Some(XdpMode::Native),
                        "skb" => Some(XdpMode::Skb),
                        _ => None,
                    };
                    wire.option("mode", value, &mut mode, parsed, "use auto, native or skb")?;
                }
                (_, Some(("zerocopy", value))) => {
                    let parsed = match value {
                        "auto" => Some(ZeroCopy::Auto),
                        "on" => Some(ZeroCopy::On),
                        "off" => Some(ZeroCopy::Off),
                        _ => None,
                    };
                    let allowed = "use auto, on or off";
                    wire.option("zerocopy", value, &mut zero_copy, parsed, allowed)?;
                }
                (_, Some(("ring", value))) => wire.ring(value, &mut ring)?,
                _ => {
                    return Err(wire.error(
                        "option",
                        word,
                        "af_xdp takes queues, mode, zerocopy, ring (each =VALUE) and busy_poll",
                    ));
                }
            }
        }
        let spec = Self {
            iface,
            queues,
            mode: mode.unwrap_or(XdpMode::Auto),
            zero_copy: zero_copy.unwrap_or(ZeroCopy::Auto),
            ring: ring.unwrap_or(RING),
            busy_poll: busy_poll.is_some(),
        };
        if (spec.mode, spec.zero_copy) == (XdpMode::Skb, ZeroCopy::On) {
            return Err(wire.error(
                "zerocopy",
                "on",
                "mode=skb always copies; use mode=native for zero copy",
            ));
        }
        Ok(spec)
    }
}
