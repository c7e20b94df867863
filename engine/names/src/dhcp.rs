//! Messages of DHCP for IPv4: RFC 2131 section 2, options of RFC 2132. Those for IPv6 are in `dhcpv6`.
//!
//! The layout is fixed, and five options are wanted: the crates that read all of DHCP bring a whole resolver along.

use crate::{Unreadable, text::text};
use std::net::IpAddr;

/// Bytes of the fixed part.
///
/// | bytes | field |
/// |---|---|
/// | 1, 2 | type and length of the hardware address |
/// | 4..8 | transaction |
/// | 12..16 | address that the client has |
/// | 16..20 | address that it is given |
/// | 28..34 | its hardware address |
/// | 236..240 | magic cookie, behind which options begin |
const OPTIONS: usize = 240;
const MAGIC: [u8; 4] = [99, 130, 83, 99];
const PAD: u8 = 0;
const HOST_NAME: u8 = 12;
const REQUESTED: u8 = 50;
const TYPE: u8 = 53;
const END: u8 = 255;
/// RFC 2131 section 3.1, table 2, by number.
const TYPES: [&str; 8] = [
    "DISCOVER", "OFFER", "REQUEST", "DECLINE", "ACK", "NAK", "RELEASE", "INFORM",
];

/// What a client asks for, or is given, over IPv4 or IPv6.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DhcpMessage {
    /// The number that an answer has in common with its question.
    pub transaction: u32,
    /// `DISCOVER`; its number where it has no name; `None`: it is of BOOTP, without types.
    pub kind: Option<String>,
    /// The client's MAC address; `None`: its hardware is not Ethernet, or the message does not tell.
    pub client: Option<[u8; 6]>,
    /// The identifier of a client of DHCPv6, 130 bytes at most.
    pub duid: Option<Vec<u8>>,
    /// What the client calls itself.
    pub host: Option<String>,
    /// The address that it is given, or that it has.
    pub address: Option<IpAddr>,
    /// The address that it asks for.
    pub requested: Option<IpAddr>,
}

impl DhcpMessage {
    /// Reads one message of DHCP for IPv4.
    ///
    /// # Errors
    /// It is shorter than its fixed part, or an option is longer than the rest.
    pub fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        let (fixed, mut rest) = bytes.split_first_chunk::<OPTIONS>().ok_or(Unreadable)?;
        let address = |at: usize| {
            let bytes = [fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]];
            Some(IpAddr::from(bytes)).filter(|it| !it.is_unspecified())
        };
        let mut message = Self {
            transaction: u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]),
            address: address(16).or(address(12)),
            ..Self::default()
        };
        if fixed[1..3] == [1, 6] {
            message.client = fixed[28..].first_chunk().copied();
        }
        if fixed[236..] != MAGIC {
            return Ok(message);
        }
        while let Some((code, behind)) = rest.split_first() {
            rest = behind;
            if *code == END {
                break;
            }
            if *code == PAD {
                continue;
            }
            let (len, behind) = rest.split_first().ok_or(Unreadable)?;
            let option = behind.split_at_checked(usize::from(*len));
            let (value, behind) = option.ok_or(Unreadable)?;
            rest = behind;
            message.option(*code, value);
        }
        Ok(message)
    }

    fn option(&mut self, code: u8, value: &[u8]) {
        match (code, value) {
            (HOST_NAME, _) => {
                // Some end it as C does.
                let name = value.strip_suffix(&[0]).unwrap_or(value);
                self.host = Some(text(name)).filter(|it| !it.is_empty());
            }
            (REQUESTED, &[a, b, c, d]) => self.requested = Some([a, b, c, d].into()),
            (TYPE, &[number]) => {
                let name = usize::from(number)
                    .checked_sub(1)
                    .and_then(|at| TYPES.get(at));
                self.kind = Some(name.map_or_else(|| number.to_string(), |it| (*it).to_owned()));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(options: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; OPTIONS];
        bytes[..8].copy_from_slice(&[1, 1, 6, 0, 0, 0, 1, 2]);
        bytes[28..34].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        bytes[236..].copy_from_slice(&MAGIC);
        bytes.extend(options);
        bytes
    }

    fn read(options: &[u8]) -> DhcpMessage {
        DhcpMessage::read(&message(options)).unwrap()
    }

    #[test]
    fn a_client_tells_its_name() {
        let options = b"\x35\x01\x03\0\x0c\x04host\x32\x04\x0a\0\0\x07\xff\x0c\x01x";
        let expected = DhcpMessage {
            transaction: 0x102,
            kind: Some("REQUEST".into()),
            client: Some([2, 0, 0, 0, 0, 9]),
            duid: None,
            host: Some("host".into()),
            address: None,
            requested: Some([10, 0, 0, 7].into()),
        };
        assert_eq!(read(options), expected);
        // Without an end, and with C's.
        assert_eq!(read(b"\x0c\x05host\0").host.as_deref(), Some("host"));
        assert_eq!(read(b"\x0c\0").host, None);
        assert_eq!(read(&[TYPE, 1, 13]).kind.as_deref(), Some("13"));
        assert_eq!(read(&[TYPE, 1, 0]).kind.as_deref(), Some("0"));
    }

    #[test]
    fn the_address_is_the_one_that_is_given() {
        let mut bytes = message(&[]);
        bytes[12..16].copy_from_slice(&[10, 0, 0, 1]);
        let address = |bytes: &[u8]| DhcpMessage::read(bytes).unwrap().address;
        assert_eq!(address(&bytes), Some([10, 0, 0, 1].into()));
        bytes[16..20].copy_from_slice(&[10, 0, 0, 2]);
        assert_eq!(address(&bytes), Some([10, 0, 0, 2].into()));
    }

    #[test]
    fn what_is_older_or_of_other_hardware() {
        let mut bytes = message(&[TYPE, 1, 1]);
        bytes[1] = 6;
        bytes[239] = 0;
        let message = DhcpMessage::read(&bytes).unwrap();
        assert_eq!((message.client, message.kind), (None, None));
    }

    #[test]
    fn what_breaks_off_is_unreadable() {
        let whole = message(&[HOST_NAME, 3, b'a', b'b', b'c']);
        for len in (0..OPTIONS).chain(OPTIONS + 1..whole.len()) {
            assert_eq!(DhcpMessage::read(&whole[..len]), Err(Unreadable), "{len}");
        }
    }
}
