//! Reference implementation of steering: returns the rule and the queue of a frame.
//!
//! It follows the text of the contract and the bitwise definition of the Toeplitz hash. It shares
//! no code with crate `wqcap-rss`: the engine and the model both use that crate, so their agreement
//! alone would not prove that the crate is correct.

use std::fmt;
use wqcap_rss::{HashDepth, IndirectionTable, RssKey, Toeplitz};

/// Default RSS key: 0x6d5a repeated 20 times.
pub const SYMMETRIC_KEY: [u8; 40] = {
    let mut key = [0x6d; 40];
    let mut i = 1;
    while i < 40 {
        key[i] = 0x5a;
        i += 2;
    }
    key
};

/// Returns the Toeplitz hash by its definition: for each set bit n of the input, the 32 key bits
/// that begin at bit n are combined by XOR.
#[must_use]
pub fn toeplitz(key: &[u8; 40], input: &[u8]) -> u32 {
    let key_bit = |n: usize| u32::from(key[n / 8] >> (7 - n % 8) & 1);
    let mut hash = 0;
    for n in 0..input.len() * 8 {
        if input[n / 8] >> (7 - n % 8) & 1 == 1 {
            let window = (n..n + 32).fold(0, |window, bit| window << 1 | key_bit(bit));
            hash ^= window;
        }
    }
    hash
}

/// Kind of the rule that matches a frame, with the bytes that its QP hashes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// TCP or UDP rule; the QP hashes addresses and ports.
    Flow(Vec<u8>),
    /// Other IP rule; the QP hashes addresses.
    Hosts(Vec<u8>),
    /// Catch-all rule; the QP hashes nothing.
    CatchAll,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flow(input) => write!(f, "addresses and ports {input:02x?}"),
            Self::Hosts(input) => write!(f, "addresses {input:02x?}"),
            Self::CatchAll => f.write_str("the catch-all"),
        }
    }
}

/// Returns the rule that matches a frame of at least 14 bytes.
#[must_use]
pub fn steer(frame: &[u8]) -> Rule {
    let pair = |at: usize| frame.get(at..at + 2).map(|b| (b[0], b[1]));
    let mut at = 12;
    // A NIC's parser skips an outer and an inner tag, but not a third one.
    for _ in 0..2 {
        // A frame with a truncated tag has an EtherType that no IP rule matches.
        if matches!(pair(at), Some((0x81, 0x00) | (0x88, 0xa8))) && frame.len() >= at + 6 {
            at += 4;
        }
    }
    let packet = &frame[at + 2..];
    match pair(at) {
        Some((0x08, 0x00)) => steer_ipv4(packet),
        Some((0x86, 0xdd)) => steer_ipv6(packet),
        _ => Rule::CatchAll,
    }
}

fn steer_ipv4(packet: &[u8]) -> Rule {
    if packet.len() < 20 || packet[0] >> 4 != 4 {
        return Rule::CatchAll;
    }
    let header = usize::from(packet[0] & 15) * 4;
    if header < 20 || packet.len() < header {
        return Rule::CatchAll;
    }
    let more = packet[6] & 0x20 != 0;
    let later = packet[6] & 0x1f != 0 || packet[7] != 0;
    steer_transport(&packet[12..20], packet[9], more || later, &packet[header..])
}

fn steer_ipv6(packet: &[u8]) -> Rule {
    if packet.len() < 40 || packet[0] >> 4 != 6 {
        return Rule::CatchAll;
    }
    // After any extension header, such as a fragment header, the model hashes addresses only.
    steer_transport(&packet[8..40], packet[6], false, &packet[40..])
}

fn steer_transport(addresses: &[u8], protocol: u8, fragment: bool, rest: &[u8]) -> Rule {
    let header = match protocol {
        6 => 20,
        17 => 8,
        _ => return Rule::Hosts(addresses.to_vec()),
    };
    if fragment {
        Rule::Hosts(addresses.to_vec())
    } else if rest.len() < header {
        Rule::CatchAll
    } else {
        Rule::Flow([addresses, &rest[..4]].concat())
    }
}

/// Returns the queue of a frame under the default key. The table has `table_size` entries, to which
/// the queues are assigned in turn.
#[must_use]
pub fn queue(frame: &[u8], queues: usize, table_size: usize) -> usize {
    match steer(frame) {
        Rule::Flow(input) | Rule::Hosts(input) => {
            let entry = toeplitz(&SYMMETRIC_KEY, &input) as usize % table_size;
            entry % queues
        }
        Rule::CatchAll => 0,
    }
}

/// Returns an identifier of the frame's flow, which is equal for both directions; `None` if no
/// ports are hashed.
#[must_use]
pub fn flow(frame: &[u8]) -> Option<Vec<u8>> {
    let Rule::Flow(input) = steer(frame) else {
        return None;
    };
    let host = (input.len() - 4) / 2;
    let from = [&input[..host], &input[2 * host..2 * host + 2]].concat();
    let to = [&input[host..2 * host], &input[2 * host + 2..]].concat();
    // TCP and UDP may use the same ports. The protocol in front distinguishes the two flows.
    let protocol = u8::from(is_tcp(frame));
    let (low, high) = if from <= to { (from, to) } else { (to, from) };
    Some([&[protocol][..], &low, &high].concat())
}

/// Returns `true` if a frame for which [`steer`] returns [`Rule::Flow`] carries TCP.
fn is_tcp(frame: &[u8]) -> bool {
    let mut at = 12;
    while matches!(frame[at..at + 2], [0x81, 0x00] | [0x88, 0xa8]) {
        at += 4;
    }
    let packet = &frame[at + 2..];
    (if packet[0] >> 4 == 4 {
        packet[9]
    } else {
        packet[6]
    }) == 6
}

/// Returns the queue of a frame according to crate `wqcap-rss`.
///
/// # Panics
/// Panics if the crate refuses a table with these sizes.
#[must_use]
pub fn queue_by_rss(frame: &[u8], queues: u16, table_size: u32) -> usize {
    let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
    let table = IndirectionTable::new(table_size, queues, &[]).expect("a valid table size");
    let (_, _, queue) = wqcap_rss::queue_of(frame, HashDepth::L4, &toeplitz, &table);
    usize::from(queue)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames;

    /// Checks Microsoft's key with three rows of the table "Verifying the RSS hash calculation".
    #[test]
    fn the_hash_equals_published_values() {
        let key: [u8; 40] = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
            0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
            0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        let with_ports = [66, 9, 149, 187, 161, 142, 100, 80, 0x0a, 0xea, 0x06, 0xe6];
        assert_eq!(toeplitz(&key, &with_ports), 0x51cc_c178);
        assert_eq!(toeplitz(&key, &with_ports[..8]), 0x323e_8fc2);
        let v6 = [
            0x3f, 0xfe, 0x25, 0x01, 0x02, 0x00, 0x1f, 0xff, 0, 0, 0, 0, 0, 0, 0, 7, 0x3f, 0xfe,
            0x25, 0x01, 0x02, 0x00, 0x00, 0x03, 0, 0, 0, 0, 0, 0, 0, 1, 0x0a, 0xea, 0x06, 0xe6,
        ];
        assert_eq!(toeplitz(&key, &v6), 0x4020_7d3d);
    }

    #[test]
    fn both_directions_of_a_flow_share_the_queue_and_the_identifier() {
        let there = frames::Ends {
            from: 3,
            to: 9,
            sport: 1000,
            dport: 80,
        };
        for (one, other) in [
            (v4(there), v4(there.back())),
            (
                frames::Frame::ethernet(&[], frames::IPV6)
                    .ipv6(there, 6)
                    .tcp(there)
                    .done(),
                frames::Frame::ethernet(&[], frames::IPV6)
                    .ipv6(there.back(), 6)
                    .tcp(there.back())
                    .done(),
            ),
        ] {
            assert_eq!(queue(&one, 4, 128), queue(&other, 4, 128));
            assert!(flow(&one).is_some());
            assert_eq!(flow(&one), flow(&other));
        }
        let another = frames::Ends {
            sport: 1001,
            ..there
        };
        assert_ne!(flow(&v4(there)), flow(&v4(another)));
    }

    fn v4(ends: frames::Ends) -> Vec<u8> {
        frames::Frame::ethernet(&[(0x8100, 5)], frames::IPV4)
            .ipv4(ends, 17, 0)
            .udp(ends)
            .done()
    }

    #[test]
    fn the_crate_selects_the_queues_of_the_reference() {
        for frame in frames::assortment() {
            for (queues, table_size) in [(1, 1), (4, 128), (3, 64), (7, 8)] {
                let naive = queue(&frame, usize::from(queues), table_size as usize);
                assert_eq!(
                    naive,
                    queue_by_rss(&frame, queues, table_size),
                    "{} of {frame:02x?}",
                    steer(&frame)
                );
            }
        }
    }
}
