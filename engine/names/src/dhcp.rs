//! Parser of DHCP messages for IPv4: RFC 2131 section 2, options of RFC 2132 and RFC 4702. The
//! module `dhcpv6` parses DHCPv6.
//!
//! The layout is fixed, and only a few options are needed, so no DHCP crate is used: such crates
//! depend on a whole resolver.

use crate::{
    PayloadError,
    text::{self, text},
};
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
/// | 44..108 | server name, or more options |
/// | 108..236 | boot file, or more options |
/// | 236..240 | magic cookie; options follow |
const OPTIONS: usize = 240;
/// Magic cookie (fixed value) before the options of a DHCP message.
const MAGIC: [u8; 4] = [99, 130, 83, 99];
const PAD: u8 = 0;
const HOST_NAME: u8 = 12;
const REQUESTED: u8 = 50;
/// Code of the DHCP option that states which of the fields of server name and boot file contain
/// options: RFC 2132 section 9.3.
const OVERLOAD: u8 = 52;
const TYPE: u8 = 53;
const CLIENT_FQDN: u8 = 81;
/// Flag of DHCP option 81 (client FQDN): the name is in the wire format of DNS.
const WIRE_FORMAT: u8 = 4;
const END: u8 = 255;
/// Names of the DHCP message types 1 to 8, in this order: RFC 2131 section 3.1, table 2.
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
    /// Host name sent by the DHCP client, or its fully qualified domain name if it sends only that.
    pub host: Option<String>,
    /// IP address assigned to the DHCP client, or its current address.
    pub address: Option<IpAddr>,
    /// IP address requested by the DHCP client.
    pub requested: Option<IpAddr>,
    /// `true` if an option of the DHCP message exceeds the message or is damaged. The values of the
    /// other options are valid.
    pub is_damaged: bool,
}

impl DhcpMessage {
    /// Parses one DHCP message for IPv4. If an option exceeds the message, the options before it are
    /// returned.
    ///
    /// # Errors
    /// The message is shorter than its fixed part.
    pub fn read(bytes: &[u8]) -> Result<Self, PayloadError> {
        let (fixed, rest) = bytes.split_first_chunk::<OPTIONS>().ok_or(PayloadError)?;
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
        let mut options = DhcpOptions::default();
        options.add(rest);
        // The order of RFC 3396 section 5.
        let overload = options.overload.first().copied().unwrap_or_default();
        for (flag, field) in [(1, &fixed[108..236]), (2, &fixed[44..108])] {
            if overload & flag != 0 {
                options.add(field);
            }
        }
        message.record(&options);
        Ok(message)
    }

    /// Stores the values of the options of a DHCP message in its fields.
    fn record(&mut self, options: &DhcpOptions) {
        // Some clients end the name with a null byte.
        let name = |it: &[u8]| text(it.strip_suffix(&[0]).unwrap_or(it));
        self.host = Some(name(&options.host))
            .filter(|it| !it.is_empty())
            .or_else(|| match options.fqdn.as_slice() {
                // Flags and two result codes precede the name: RFC 4702 section 2.
                [flags, _, _, wire @ ..] if flags & WIRE_FORMAT != 0 => text::host(wire),
                [_, _, _, ascii @ ..] => Some(name(ascii)).filter(|it| !it.is_empty()),
                _ => None,
            });
        if let [a, b, c, d] = options.requested[..] {
            self.requested = Some([a, b, c, d].into());
        }
        if let [number] = options.kind[..] {
            let name = usize::from(number)
                .checked_sub(1)
                .and_then(|at| TYPES.get(at));
            self.kind = Some(name.map_or_else(|| number.to_string(), |it| (*it).to_owned()));
        }
        self.is_damaged = options.is_damaged;
    }
}

/// Values of the needed options of a DHCP message. All instances of an option are joined, because a
/// long value is divided among several: RFC 3396.
#[derive(Default)]
struct DhcpOptions {
    host: Vec<u8>,
    requested: Vec<u8>,
    overload: Vec<u8>,
    kind: Vec<u8>,
    fqdn: Vec<u8>,
    is_damaged: bool,
}

impl DhcpOptions {
    /// Adds the options in `rest`, a field of a DHCP message, to those found before.
    fn add(&mut self, mut rest: &[u8]) {
        loop {
            rest = match *rest {
                [] | [END, ..] => return,
                [PAD, ref behind @ ..] => behind,
                [code, len, ref behind @ ..] if behind.len() >= usize::from(len) => {
                    let (value, behind) = behind.split_at(len.into());
                    match code {
                        HOST_NAME => self.host.extend(value),
                        REQUESTED => self.requested.extend(value),
                        OVERLOAD => self.overload.extend(value),
                        TYPE => self.kind.extend(value),
                        CLIENT_FQDN => self.fqdn.extend(value),
                        _ => {}
                    }
                    behind
                }
                _ => {
                    self.is_damaged = true;
                    return;
                }
            };
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
            is_damaged: false,
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
    fn options_before_a_cut_are_kept() {
        let whole = message(b"\x35\x01\x03\x0c\x03abc\x3c\x14MS");
        for len in 0..OPTIONS {
            assert_eq!(DhcpMessage::read(&whole[..len]), Err(PayloadError), "{len}");
        }
        let kept = |len| {
            let message = DhcpMessage::read(&whole[..OPTIONS + len]).unwrap();
            (
                message.kind.is_some(),
                message.host.is_some(),
                message.is_damaged,
            )
        };
        for len in 1..=12 {
            let is_between = [3, 8].contains(&len);
            assert_eq!(kept(len), (len >= 3, len >= 8, !is_between), "{len}");
        }
    }

    #[test]
    fn a_name_in_option_81() {
        let host = |options: &[u8]| read(options).host;
        let name = "laptop.example.org";
        let ascii = [&[CLIENT_FQDN, 21, 0, 0, 0][..], name.as_bytes()].concat();
        assert_eq!(host(&ascii).as_deref(), Some(name));
        // The wire format, whole and partial, and in two parts.
        let whole = b"\x51\x17\x05\xff\xff\x06laptop\x07example\x03org\0";
        assert_eq!(host(whole).as_deref(), Some(name));
        let parts = b"\x51\x06\x04\0\0\x06la\x51\x04ptop";
        assert_eq!(host(parts).as_deref(), Some("laptop"));
        // Option 12 precedes it. Neither has a name.
        let both = [&ascii[..], &[HOST_NAME, 1, b'x']].concat();
        assert_eq!(host(&both).as_deref(), Some("x"));
        for none in [
            &[CLIENT_FQDN, 3, 1, 0, 0][..],
            &[CLIENT_FQDN, 2, 0, 0],
            &[CLIENT_FQDN, 4, 4, 0, 0, 9],
        ] {
            assert_eq!(host(none), None, "{none:?}");
        }
    }

    #[test]
    fn instances_of_an_option_are_joined_in_all_fields() {
        let host = |bytes: &[u8]| DhcpMessage::read(bytes).unwrap().host;
        let split = message(b"\x0c\x03lap\0\x35\x01\x03\x0c\x03top\xff\x0c\x01x");
        assert_eq!(host(&split).as_deref(), Some("laptop"));
        let mut overloaded = message(b"\x34\x01\x03\x0c\x01a\xff");
        overloaded[44..49].copy_from_slice(b"\x0c\x01c\xffx");
        overloaded[108..111].copy_from_slice(b"\x0c\x01b");
        assert_eq!(host(&overloaded).as_deref(), Some("abc"));
        for (flags, name) in [(1, "ab"), (2, "ac"), (0, "a")] {
            overloaded[OPTIONS + 2] = flags;
            assert_eq!(host(&overloaded).as_deref(), Some(name));
        }
    }
}
