//! Parser of the wire `af_packet:IFACE[,ring=128MiB]`.

use super::text::{RING, SpecError, SpecText};

#[derive(Clone, Debug, PartialEq)]
pub struct AfPacketSpec {
    pub iface: String,
    /// Size of an `af_packet` wire's receive ring in bytes, a multiple of 1 MiB.
    pub ring: u64,
}

impl AfPacketSpec {
    pub fn parse(wire: &SpecText<'_>, rest: &str) -> Result<Self, SpecError> {
        let mut words = rest.split(',');
        let iface = wire.interface("af_packet", words.next().unwrap_or_default())?;
        let mut ring = None;
        for word in words {
            match word.split_once('=') {
                Some(("ring", value)) => wire.ring(value, &mut ring)?,
                _ => return Err(wire.error("option", word, "af_packet takes ring=SIZE")),
            }
        }
        let ring = ring.unwrap_or(RING);
        Ok(Self { iface, ring })
    }
}
