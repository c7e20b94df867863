//! Parser of DHCP messages for IPv4: RFC 2131 section 2, options of RFC 2132. The module `dhcpv6`
//! parses DHCPv6.
//!
//! The layout is fixed, and only a few options are needed, so no DHCP crate is used: such crates
//! depend on a whole resolver.

use crate::{PayloadError, text::text};
use std::net::IpAddr;

/// Length of a DHCP message's fixed part in bytes.
///
/// | bytes | field |
/// |---|---|
/// | 1, 2 | type and length of the hardware address |
/// | 4..8 | transaction |
/// | 12..16 | current address of the client |
/// | 16..20 | address assigned to the client |
/// | 28..34 | hardware address of the client |
/// | 236..240 | magic cookie; options follow |
const OPTIONS: usize = 240;
/// Magic cookie before the options of a DHCP message.
const MAGIC: [u8; 4] = [99, 130, 83, 99];
const PAD: u8 = 0;
const HOST_NAME: u8 = 12;
const REQUESTED: u8 = 50;
const TYPE: u8 = 53;
const END: u8 = 255;
/// Names of the DHCP message types 1 to 8: RFC 2131 section 3.1, table 2.
const TYPES: [&str; 8] = [
    "DISCOVER", "OFFER", "REQUEST", "DECLINE", "ACK", "NAK", "RELEASE", "INFORM",
];

/// Parsed DHCP message for IPv4 or IPv6: identity, name and addresses of the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DhcpMessage {
    /// DHCP transaction identifier, equal in a request and its reply.
    pub transaction: u32,
    /// Name of the DHCP message type, such as `DISCOVER`, or its number if it has no name; `None`
    /// for BOOTP.
    pub kind: Option<String>,
    /// MAC address of the DHCP client; `None` if its hardware is not Ethernet or the message has no
    /// address.
    pub client: Option<[u8; 6]>,
    /// Unique identifier (DUID) of a DHCPv6 client, at most 130 bytes.
    pub duid: Option<Vec<u8>>,
    /// Host name sent by the DHCP client.
    pub host: Option<String>,
    /// IP address assigned to the DHCP client, or its current address.
    pub address: Option<IpAddr>,
    /// IP address requested by the DHCP client.
    pub requested: Option<IpAddr>,
}

impl DhcpMessage {
    /// Parses one DHCP message for IPv4.
    ///
    /// # Errors
    /// The message is shorter than its fixed part, or an option exceeds the message.
    pub fn read(bytes: &[u8]) -> Result<Self, PayloadError> {
        let (fixed, mut rest) = bytes.split_first_chunk::<OPTIONS>().ok_or(PayloadError)?;
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
            let (len, behind) = rest.split_first().ok_or(PayloadError)?;
            let option = behind.split_at_checked(usize::from(*len));
            let (value, behind) = option.ok_or(PayloadError)?;
            rest = behind;
            message.option(*code, value);
        }
        Ok(message)
    }

    /// Records the value of a DHCP option.
    fn option(&mut self, code: u8, value: &[u8]) {
        match (code, value) {
            (HOST_NAME, _) => {
                // Some clients end the name with a null byte.
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
    fn a_request_has_the_client_name() {
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
        // Options without an END, and a name with a final null byte.
        assert_eq!(read(b"\x0c\x05host\0").host.as_deref(), Some("host"));
        assert_eq!(read(b"\x0c\0").host, None);
        assert_eq!(read(&[TYPE, 1, 13]).kind.as_deref(), Some("13"));
        assert_eq!(read(&[TYPE, 1, 0]).kind.as_deref(), Some("0"));
    }

    #[test]
    fn the_assigned_address_precedes_the_current_one() {
        let mut bytes = message(&[]);
        bytes[12..16].copy_from_slice(&[10, 0, 0, 1]);
        let address = |bytes: &[u8]| DhcpMessage::read(bytes).unwrap().address;
        assert_eq!(address(&bytes), Some([10, 0, 0, 1].into()));
        bytes[16..20].copy_from_slice(&[10, 0, 0, 2]);
        assert_eq!(address(&bytes), Some([10, 0, 0, 2].into()));
    }

    #[test]
    fn bootp_and_other_hardware() {
        let mut bytes = message(&[TYPE, 1, 1]);
        bytes[1] = 6;
        bytes[239] = 0;
        let message = DhcpMessage::read(&bytes).unwrap();
        assert_eq!((message.client, message.kind), (None, None));
    }

    #[test]
    fn truncated_messages_are_unreadable() {
        let whole = message(&[HOST_NAME, 3, b'a', b'b', b'c']);
        for len in (0..OPTIONS).chain(OPTIONS + 1..whole.len()) {
            assert_eq!(DhcpMessage::read(&whole[..len]), Err(PayloadError), "{len}");
        }
    }
}
