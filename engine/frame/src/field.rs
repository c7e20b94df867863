//! Fields in network order.

/// Two bytes.
#[inline]
pub(crate) fn be16(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}
