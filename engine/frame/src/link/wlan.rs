//! Headers of 802.11 data frames, as tunnels of access points carry them.

use crate::{field::parsed_header, malformed::Malformed, next::Next, numbers::ethertype};

parsed_header! {
    /// Parsed header of an 802.11 data frame: IEEE 802.11 clause 9.3.2.1.
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0 | version (2 bits), type (2 bits; 2 for data), subtype (4 bits: QoS, null, ...) |
    /// | 1 | flags: to and from the distribution system, ..., protected (0x40), HT control (0x80) |
    /// | 2..4 | duration |
    /// | 4..24 | three addresses, sequence control |
    /// | .. | fourth address (6 bytes) between access points; QoS control (2 bytes; 0x80 in the first for A-MSDU); HT control (4 bytes) |
    ///
    /// Controllers of some vendors exchange the first two bytes; tshark has the preference "swap frame
    /// control" for that (packet-capwap.c). A data frame has its type in one of the two bytes only.
    Wlan
}

impl Wlan {
    /// Length in bytes of an 802.11 data header without optional fields.
    pub const LEN: usize = 24;

    /// Parses the header of an 802.11 frame. Frames other than data, frames without data and
    /// encrypted frames have a payload that is not parsed.
    ///
    /// # Errors
    /// `bytes` ends within the header of a data frame.
    pub fn new(bytes: &[u8]) -> Result<Self, Malformed> {
        let is_data = |byte: u8| byte & 0x0f == 0x08;
        let (control, flags) = match *bytes {
            [control, flags, ..] if is_data(control) => (control, flags),
            [flags, control, ..] if is_data(control) => (control, flags),
            [_, _, ..] => {
                return Ok(Self {
                    len: 2,
                    next: Next::Payload,
                });
            }
            _ => return Err(Malformed::TunnelShort),
        };
        let mut len = Self::LEN;
        if flags & 0x03 == 0x03 {
            len += 6;
        }
        let mut is_aggregate = false;
        if control & 0x80 != 0 {
            is_aggregate = bytes.get(len).ok_or(Malformed::TunnelShort)? & 0x80 != 0;
            len += if flags & 0x80 != 0 { 6 } else { 2 };
        }
        let behind = bytes.get(len..).ok_or(Malformed::TunnelShort)?;
        let has_data = control & 0x40 == 0 && flags & 0x40 == 0;
        let next = match u16::try_from(behind.len()) {
            _ if !has_data => Next::Payload,
            // Each frame of an aggregate has two addresses and a length, as in 802.3.
            _ if is_aggregate => Next::Ethernet,
            // LLC follows, as after an 802.3 length.
            Ok(rest) => Next::Ethertype(rest.min(ethertype::LONGEST_LENGTH)),
            Err(_) => Next::Ethertype(ethertype::LONGEST_LENGTH),
        };
        Ok(Self { len, next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(control: u8, flags: u8) -> (usize, Next) {
        let mut bytes = vec![control, flags];
        bytes.resize(40, 0);
        let wlan = Wlan::new(&bytes).unwrap();
        (wlan.header_len(), wlan.next())
    }

    #[test]
    fn optional_fields_are_counted() {
        for (control, flags, len) in [
            (0x08, 0x01, 24),
            (0x08, 0x03, 30),
            (0x88, 0x02, 26),
            (0x88, 0x82, 30),
            (0x88, 0x83, 36),
        ] {
            let llc = Next::Ethertype(40 - len as u16);
            assert_eq!(parse(control, flags), (len, llc));
            // The order of other controllers.
            assert_eq!(parse(flags, control), (len, llc));
            let mut bytes = vec![control, flags];
            bytes.resize(len - 1, 0);
            assert_eq!(Wlan::new(&bytes).unwrap_err(), Malformed::TunnelShort);
        }
        assert_eq!(Wlan::new(&[8]).unwrap_err(), Malformed::TunnelShort);
    }

    #[test]
    fn only_readable_data_is_parsed() {
        // Null data, encrypted data, a beacon, an acknowledgement.
        for (control, flags) in [(0x48, 0x01), (0x08, 0x41), (0x80, 0), (0xd4, 0)] {
            assert_eq!(parse(control, flags).1, Next::Payload);
        }
        let mut aggregate = vec![0x88, 0x02];
        aggregate.resize(40, 0);
        aggregate[24] = 0x80;
        assert_eq!(Wlan::new(&aggregate).unwrap().next(), Next::Ethernet);
    }
}
