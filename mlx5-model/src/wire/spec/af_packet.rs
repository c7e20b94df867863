//! `af_packet:IFACE[,ring=64MiB]`

use super::text::{SpecError, SpecText, bytes};

const MIB: u64 = 1 << 20;
const RING: u64 = 64 * MIB;
/// A smaller ring is full after a few milliseconds; a larger one is a mistake of the unit.
const RINGS: std::ops::RangeInclusive<u64> = 2 * MIB..=4096 * MIB;

#[derive(Clone, Debug, PartialEq)]
pub struct AfPacketSpec {
    pub iface: String,
    /// Bytes, in whole MiB.
    pub ring: u64,
}

impl AfPacketSpec {
    pub fn parse(wire: &SpecText<'_>, rest: &str) -> Result<Self, SpecError> {
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
                "the name of a network interface, such as af_packet:eth0",
            ));
        }
        let mut ring = None;
        for word in words {
            match word.split_once('=') {
                Some(("ring", value)) => {
                    let allowed = "whole MiB from 2MiB to 4096MiB";
                    let bytes = bytes(value).filter(|it| it % MIB == 0 && RINGS.contains(it));
                    wire.option("ring", value, &mut ring, bytes, allowed)?;
                }
                _ => return Err(wire.error("option", word, "af_packet takes ring=SIZE")),
            }
        }
        Ok(Self {
            iface: iface.to_owned(),
            ring: ring.unwrap_or(RING),
        })
    }
}
