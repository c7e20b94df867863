//! Parser of DHCPv6 messages: RFC 8415 sections 8 and 9, options of section 21. The client name is
//! an option of RFC 4704.
//!
//! A relay encapsulates the message of a client or server in its own message, and further relays
//! may do so again. The innermost message is parsed. Only the first address of a client is
//! recorded, and no prefix.

use crate::{DhcpMessage, PayloadError, text::host};
use std::net::{IpAddr, Ipv6Addr};

/// Length in bytes of a DHCPv6 relay message before its options: type, hop count, two addresses.
const RELAY: usize = 34;
const RELAY_FORW: u8 = 12;
const RELAY_REPL: u8 = 13;
/// Names of the DHCPv6 message types 1 to 11, in this order: RFC 8415 section 7.3.
const TYPES: [&str; 11] = [
    "SOLICIT",
    "ADVERTISE",
    "REQUEST",
    "CONFIRM",
    "RENEW",
    "REBIND",
    "REPLY",
    "RELEASE",
    "DECLINE",
    "RECONFIGURE",
    "INFORMATION-REQUEST",
];
const SOLICIT: u8 = 1;
const ADVERTISE: u8 = 2;
const REQUEST: u8 = 3;
const REPLY: u8 = 7;
const DECLINE: u8 = 9;

const CLIENT_ID: u16 = 1;
const IA_NA: u16 = 3;
const IA_TA: u16 = 4;
const IA_ADDRESS: u16 = 5;
const RELAY_MESSAGE: u16 = 9;
const CLIENT_FQDN: u16 = 39;
/// Code of the DHCPv6 relay option with the client's link-layer address: RFC 6939.
const CLIENT_LINK_LAYER: u16 = 79;
/// Maximum length of a DHCPv6 client's DUID in bytes: RFC 8415 section 11.1.
const MOST_DUID: usize = 130;

impl DhcpMessage {
    /// Parses one DHCPv6 message, inside any relay messages. If an option exceeds the message, the
    /// options before it are returned.
    ///
    /// # Errors
    /// The message is shorter than its fixed part, or a relay message contains no message.
    pub fn read_v6(mut bytes: &[u8]) -> Result<Self, PayloadError> {
        let mut client = None;
        let mut is_damaged = false;
        // Each encapsulated message is shorter than the one around it, so the loop terminates.
        while let [RELAY_FORW | RELAY_REPL, ..] = bytes {
            let mut rest = bytes.get(RELAY..).ok_or(PayloadError)?;
            let mut inner = None;
            while let Some((code, value)) = option(&mut rest, &mut is_damaged) {
                match (code, value) {
                    (RELAY_MESSAGE, value) => inner = Some(value),
                    (CLIENT_LINK_LAYER, &[0, 1, a, b, c, d, e, f]) => {
                        client = Some([a, b, c, d, e, f]);
                    }
                    _ => {}
                }
            }
            bytes = inner.ok_or(PayloadError)?;
        }
        let (&[kind, a, b, c], mut rest) = bytes.split_first_chunk().ok_or(PayloadError)?;
        let name = usize::from(kind)
            .checked_sub(1)
            .and_then(|at| TYPES.get(at));
        let mut message = Self {
            transaction: u32::from_be_bytes([0, a, b, c]),
            kind: Some(name.map_or_else(|| kind.to_string(), |it| (*it).to_owned())),
            ..Self::default()
        };
        let mut found = None;
        while let Some((code, value)) = option(&mut rest, &mut is_damaged) {
            let of_association = match code {
                CLIENT_ID => {
                    client = client.or(hardware(value));
                    message.duid = Some(value.get(..MOST_DUID).unwrap_or(value).to_vec());
                    continue;
                }
                CLIENT_FQDN => {
                    message.host = value.get(1..).and_then(host);
                    continue;
                }
                // Skip identifier and two times of IA_NA, and the identifier of IA_TA.
                IA_NA => value.get(12..),
                IA_TA => value.get(4..),
                _ => continue,
            };
            let is_given = matches!(kind, ADVERTISE | REPLY);
            match of_association {
                Some(options) => {
                    let first = address(options, is_given, &mut is_damaged);
                    found = found.or(first.map(IpAddr::V6));
                }
                None => is_damaged = true,
            }
        }
        (message.client, message.is_damaged) = (client, is_damaged);
        if matches!(kind, SOLICIT | REQUEST | DECLINE) {
            message.requested = found;
        } else {
            message.address = found;
        }
        Ok(message)
    }
}

/// Returns code and value of the next DHCPv6 option, and advances `rest`; `None` at the end. Sets
/// `is_damaged` if the option exceeds `rest`.
fn option<'a>(rest: &mut &'a [u8], is_damaged: &mut bool) -> Option<(u16, &'a [u8])> {
    if let Some((&[a, b, c, d], behind)) = rest.split_first_chunk()
        && let Some((value, behind)) =
            behind.split_at_checked(usize::from(u16::from_be_bytes([c, d])))
    {
        *rest = behind;
        return Some((u16::from_be_bytes([a, b]), value));
    }
    *is_damaged |= !rest.is_empty();
    None
}

/// Returns the first address in the options of a DHCPv6 identity association. If `is_given` is set,
/// addresses with a valid lifetime of 0 are skipped, because a server withdraws an address that
/// way. Sets `is_damaged` if an option is truncated.
fn address(mut options: &[u8], is_given: bool, is_damaged: &mut bool) -> Option<Ipv6Addr> {
    while let Some((code, value)) = option(&mut options, is_damaged) {
        if code != IA_ADDRESS {
            continue;
        }
        // The address, its preferred and its valid lifetime in seconds.
        let Some((address, times)) = value
            .split_first_chunk::<16>()
            .filter(|(_, times)| times.len() >= 8)
        else {
            *is_damaged = true;
            return None;
        };
        if !(is_given && times[4..8] == [0; 4]) {
            return Some(Ipv6Addr::from(*address));
        }
    }
    None
}

/// Returns the MAC address in a DHCPv6 DUID of type LLT or LL: RFC 8415 sections 11.2 and 11.4.
fn hardware(duid: &[u8]) -> Option<[u8; 6]> {
    match *duid {
        [0, 1, 0, 1, _, _, _, _, a, b, c, d, e, f] | [0, 3, 0, 1, a, b, c, d, e, f] => {
            Some([a, b, c, d, e, f])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);

    fn option(code: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(value.len()).unwrap();
        [&code.to_be_bytes()[..], &len.to_be_bytes(), value].concat()
    }

    fn message(kind: u8, options: &[Vec<u8>]) -> Vec<u8> {
        [&[kind, 1, 2, 3][..], &options.concat()].concat()
    }

    /// Encapsulates a DHCPv6 message in a relay message.
    fn relayed(kind: u8, options: &[Vec<u8>], inner: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind, 0];
        bytes.extend([0; 32]);
        bytes.extend(options.concat());
        bytes.extend(option(RELAY_MESSAGE, inner));
        bytes
    }

    fn read(kind: u8, options: &[Vec<u8>]) -> DhcpMessage {
        DhcpMessage::read_v6(&message(kind, options)).unwrap()
    }

    /// Builds a DHCPv6 address option with a valid lifetime of `valid` seconds.
    fn address_option(address: Ipv6Addr, valid: u8) -> Vec<u8> {
        let times = [0, 0, 0, 0, 0, 0, 0, valid];
        option(IA_ADDRESS, &[&address.octets()[..], &times].concat())
    }

    fn association(addresses: &[Vec<u8>]) -> Vec<u8> {
        option(IA_NA, &[&[0; 12][..], &addresses.concat()].concat())
    }

    #[test]
    fn a_request_has_the_client_name() {
        // Layout of RFC 8415 and RFC 4704: a DUID-LLT, the elapsed time, an address, a partial
        // name.
        let bytes = b"\x03\x01\x02\x03\
            \0\x01\0\x0e\0\x01\0\x01\x2a\x2b\x2c\x2d\x02\0\0\0\0\x09\
            \0\x08\0\x02\0\0\
            \0\x03\0\x28\0\0\0\x01\0\0\0\0\0\0\0\0\
            \0\x05\0\x18\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\0\
            \0\x27\0\x06\x01\x04host";
        let expected = DhcpMessage {
            transaction: 0x0001_0203,
            kind: Some("REQUEST".into()),
            client: Some([2, 0, 0, 0, 0, 9]),
            duid: Some(bytes[8..22].to_vec()),
            host: Some("host".into()),
            address: None,
            requested: Some(FIRST.into()),
            is_damaged: false,
        };
        assert_eq!(DhcpMessage::read_v6(bytes), Ok(expected));
    }

    #[test]
    fn names_are_absolute_or_partial() {
        let named = |name: &[u8]| read(1, &[option(CLIENT_FQDN, name)]).host;
        let whole = b"\0\x04host\x07example\0";
        assert_eq!(named(whole).as_deref(), Some("host.example"));
        assert_eq!(named(&whole[..14]).as_deref(), Some("host.example"));
        // Empty, the root, a truncated name, a pointer, plain text, and bytes after the root.
        for none in [
            &b""[..],
            b"\0",
            b"\0\0",
            &whole[..9],
            b"\0\xc0\0",
            b"\0host",
            b"\0\x01a\0\x01b",
        ] {
            assert_eq!(named(none), None, "{none:?}");
        }
    }

    #[test]
    fn the_address_is_assigned_current_or_requested() {
        let other = Ipv6Addr::LOCALHOST;
        let both = [association(&[
            address_option(other, 0),
            address_option(FIRST, 1),
        ])];
        let of_kind = |kind| {
            let message = read(kind, &both);
            (message.address, message.requested)
        };
        // A server withdraws an address with lifetime 0; lifetimes sent by a client have no
        // meaning.
        assert_eq!(of_kind(REPLY), (Some(FIRST.into()), None));
        assert_eq!(of_kind(ADVERTISE), (Some(FIRST.into()), None));
        assert_eq!(of_kind(5), (Some(other.into()), None));
        assert_eq!(of_kind(SOLICIT), (None, Some(other.into())));
        // The first association with an address is used, also a temporary one.
        let temporary = option(IA_TA, &[&[0; 4][..], &address_option(other, 1)].concat());
        let several = [
            association(&[]),
            temporary,
            association(&[address_option(FIRST, 1)]),
        ];
        assert_eq!(read(REPLY, &several).address, Some(other.into()));
    }

    #[test]
    fn relay_messages_are_unwrapped() {
        let bare = message(1, &[option(CLIENT_FQDN, b"\0\x01a")]);
        let mac = |last| option(CLIENT_LINK_LAYER, &[0, 1, 2, 0, 0, 0, 0, last]);
        let near = relayed(RELAY_FORW, &[mac(8)], &bare);
        let far = relayed(RELAY_FORW, &[mac(7)], &near);
        let there = DhcpMessage::read_v6(&far).unwrap();
        assert_eq!(there.kind.as_deref(), Some("SOLICIT"));
        assert_eq!(there.host.as_deref(), Some("a"));
        assert_eq!(there.client, Some([2, 0, 0, 0, 0, 8]));
        let back = relayed(RELAY_REPL, &[], &message(REPLY, &[]));
        let back = DhcpMessage::read_v6(&back).unwrap();
        assert_eq!(back.kind.as_deref(), Some("REPLY"));
        // A relay message without an encapsulated message.
        assert_eq!(DhcpMessage::read_v6(&far[..RELAY]), Err(PayloadError));
    }

    #[test]
    fn identifiers_with_and_without_a_mac_address() {
        let client = |duid: &[u8]| read(11, &[option(CLIENT_ID, duid)]).client;
        let link = [0, 3, 0, 1, 2, 0, 0, 0, 0, 9];
        assert_eq!(client(&link), Some([2, 0, 0, 0, 0, 9]));
        // Other hardware, another length, an enterprise number.
        assert_eq!(client(&[0, 3, 0, 6, 2, 0, 0, 0, 0, 9]), None);
        assert_eq!(client(&link[..9]), None);
        assert_eq!(client(&[0, 2, 0, 0, 0, 9, 1]), None);
        let long = read(11, &[option(CLIENT_ID, &[7; 999])]);
        assert_eq!(long.duid, Some(vec![7; MOST_DUID]));
        assert_eq!(long.kind.as_deref(), Some("INFORMATION-REQUEST"));
        assert_eq!(read(14, &[]).kind.as_deref(), Some("14"));
        assert_eq!(read(0, &[]).kind.as_deref(), Some("0"));
    }

    #[test]
    fn options_before_a_cut_are_kept() {
        let options = [
            option(CLIENT_ID, b"xyz"),
            association(&[address_option(FIRST, 1)]),
            option(CLIENT_FQDN, b"\0\x01a"),
        ];
        let whole = message(REPLY, &options);
        for len in 0..4 {
            assert_eq!(
                DhcpMessage::read_v6(&whole[..len]),
                Err(PayloadError),
                "{len}"
            );
        }
        let ends = [4, 11, 11 + options[1].len(), whole.len()];
        for len in 4..=whole.len() {
            let read = DhcpMessage::read_v6(&whole[..len]).unwrap();
            let kept = [
                read.duid.is_some(),
                read.address.is_some(),
                read.host.is_some(),
            ];
            assert_eq!(kept, [1, 2, 3].map(|at: usize| len >= ends[at]), "{len}");
            assert_eq!(read.is_damaged, !ends.contains(&len), "{len}");
        }
        for damaged in [
            option(IA_NA, &[0; 11]),
            option(IA_TA, &[0; 3]),
            association(&[option(IA_ADDRESS, &[0; 23])]),
            association(&[vec![0, 5, 0]]),
        ] {
            let named = [damaged, option(CLIENT_FQDN, b"\0\x01a")];
            let read = read(REPLY, &named);
            assert_eq!((read.address, read.host.as_deref()), (None, Some("a")));
            assert!(read.is_damaged);
        }
        // A relay message that is cut after the message of the client.
        let mut relayed = relayed(RELAY_FORW, &[], &message(1, &options));
        relayed.push(0);
        let read = DhcpMessage::read_v6(&relayed).unwrap();
        assert!(read.host.is_some() && read.is_damaged);
    }
}
