//! `af_xdp:IFACE[,queues=N][,mode=auto][,zerocopy=auto][,ring=128MiB][,busy_poll]`

use super::text::{RING, SpecError, SpecText, number};

/// The most queues: more than any NIC has.
const MAX_QUEUES: u64 = 1024;

#[derive(Clone, Debug, PartialEq)]
pub struct AfXdpSpec {
    pub iface: String,
    /// Of how many of the interface's receive queues the frames are taken; `None`: of all.
    pub queues: Option<u32>,
    pub mode: XdpMode,
    pub zero_copy: ZeroCopy,
    /// Bytes of all queues together, in whole MiB.
    pub ring: u64,
    /// Whether the NIC's thread drives the driver's receive loop itself, in place of interrupts.
    pub busy_poll: bool,
}

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver where it can, else as `Skb`.
    Auto,
    /// In the driver, before the kernel makes a packet of the frame.
    Native,
    /// In the kernel's stack, for any driver.
    Skb,
}

/// Whether the NIC writes into the wire's memory itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Where the driver can.
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
                    wire.option("queues", value, &mut queues, n, "1 to 1024; all by default")?;
                }
                (_, Some(("mode", value))) => {
                    let parsed = match value {
                        "auto" => Some(XdpMode::Auto),
                        "native" => Some(XdpMode::Native),
                        "skb" => Some(XdpMode::Skb),
                        _ => None,
                    };
                    wire.option("mode", value, &mut mode, parsed, "auto, native or skb")?;
                }
                (_, Some(("zerocopy", value))) => {
                    let parsed = match value {
                        "auto" => Some(ZeroCopy::Auto),
                        "on" => Some(ZeroCopy::On),
                        "off" => Some(ZeroCopy::Off),
                        _ => None,
                    };
                    wire.option("zerocopy", value, &mut zero_copy, parsed, "auto, on or off")?;
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
                "mode=skb copies; zero copy takes a driver, mode=native",
            ));
        }
        Ok(spec)
    }
}
