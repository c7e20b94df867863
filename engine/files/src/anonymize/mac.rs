//! Replacement of MAC addresses by a permutation that preserves the group and local bits.
//!
//! The vendor prefix (OUI) is replaced too, because it reveals the manufacturer and often the model
//! of a machine. A group address stays a group address, and a locally administered address stays
//! one. The permutation is a Feistel network of four rounds with AES as the round function (Luby,
//! Rackoff, "How to Construct Pseudorandom Permutations from Pseudorandom Functions", 1988), so the
//! mapping is injective. Group addresses defined by a standard are kept. Addresses of IP groups are
//! derived from the replaced IP group.

use super::address::AddressCipher;
use crate::sealed::SecretKey;
use aes::{
    Aes128Enc,
    cipher::{Block, BlockCipherEncrypt, KeyInit},
};
use zeroize::Zeroizing;

/// Label whose encryption with the anonymization key is the key for MAC addresses.
const LABEL: [u8; 16] = *b"wqcap: MAC addr.";
/// Number of bits in each half of a MAC address's 46 replaced bits.
const HALF: u32 = 23;
/// Mask of one half of a MAC address's 46 replaced bits.
const HALF_MASK: u64 = (1 << HALF) - 1;
/// Mask of the preserved bits in the first byte of a MAC address, group and locally administered:
/// IEEE 802 clause 8.2.
const SORT: u8 = 3;

/// Prefixes of group MAC addresses of link protocols: IEEE 802.1 and 802.3, IEEE 1588, Cisco.
const PROTOCOLS: [[u8; 3]; 3] = [[0x01, 0x80, 0xc2], [0x01, 0x1b, 0x19], [0x01, 0x00, 0x0c]];
/// Prefix of group MAC addresses of IPv4, followed by the lowest 23 bits of the IP address: RFC
/// 1112 section 6.4.
const IPV4_GROUPS: [u8; 3] = [0x01, 0x00, 0x5e];
/// Prefix of group MAC addresses of IPv6, followed by the lowest 32 bits of the IP address: RFC
/// 2464 section 7.
const IPV6_GROUPS: [u8; 2] = [0x33, 0x33];

/// Cipher that replaces MAC addresses.
pub(super) struct MacCipher(Aes128Enc);

impl MacCipher {
    /// Derives the cipher of MAC addresses from the key of the anonymization.
    pub(super) fn new(key: &SecretKey) -> Self {
        let (cipher, _) = key.halves();
        let mut block = Block::<Aes128Enc>::from(LABEL);
        Aes128Enc::new(cipher.into()).encrypt_block(&mut block);
        let own = Zeroizing::new(<[u8; 16]>::from(block));
        Self(Aes128Enc::new((&*own).into()))
    }

    /// Returns the MAC address that replaces `mac` in anonymized frames. If the IP group of a
    /// multicast frame is known, use [`group_of`] instead, which is exact.
    pub(super) fn replaced(&self, mac: [u8; 6], addresses: &AddressCipher) -> [u8; 6] {
        match mac {
            [0x01, 0x00, 0x5e, b, c, d] => {
                let group = addresses.v4([224, b & 0x7f, c, d]);
                [
                    0x01,
                    0x00,
                    0x5e,
                    b & 0x80 | group[1] & 0x7f,
                    group[2],
                    group[3],
                ]
            }
            [0x33, 0x33, a, b, c, d] => {
                let mut group = [0; 16];
                // Only solicited-node groups contain a part of an address.
                (group[0], group[1], group[11]) = (0xff, 0x02, u8::from(a == 0xff));
                group[12..].copy_from_slice(&[a, b, c, d]);
                let [.., a, b, c, d] = addresses.v6(group);
                [0x33, 0x33, a, b, c, d]
            }
            _ if is_kept(mac) => mac,
            // A result that is a kept address is permuted again (cycle walking), which is also a
            // permutation.
            _ => {
                let mut replaced = self.permuted(mac);
                while is_kept(replaced) || is_of_ip_group(replaced) {
                    replaced = self.permuted(replaced);
                }
                replaced
            }
        }
    }

    /// Applies the Feistel network to the 46 replaced bits of a MAC address.
    fn permuted(&self, mac: [u8; 6]) -> [u8; 6] {
        let [first, ..] = mac;
        let bits = mac.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        // The upper 6 bits of the first byte, and the other 40 bits.
        let bits = bits >> 42 << 40 | bits & ((1 << 40) - 1);
        let (mut left, mut right) = (bits >> HALF, bits & HALF_MASK);
        for round in 0..4 {
            (left, right) = (right, left ^ self.function(round, first & SORT, right));
        }
        let bits = left << HALF | right;
        let bits = bits >> 40 << 42 | u64::from(first & SORT) << 40 | bits & ((1 << 40) - 1);
        let [_, _, mac @ ..] = bits.to_be_bytes();
        mac
    }

    /// Round function of the Feistel network: returns the first 23 bits of the AES encryption of
    /// round, preserved bits and half.
    fn function(&self, round: u8, sort: u8, half: u64) -> u64 {
        let mut block = Block::<Aes128Enc>::default();
        (block[0], block[1]) = (round, sort);
        block[8..].copy_from_slice(&half.to_be_bytes());
        self.0.encrypt_block(&mut block);
        let [a, b, c, ..] = <[u8; 16]>::from(block);
        u64::from_be_bytes([0, 0, 0, 0, 0, a, b, c]) & HALF_MASK
    }
}

/// Returns `true` for MAC addresses that the anonymization does not replace: all zeros, which ARP
/// uses for an unknown address, broadcast, and group addresses defined by a standard.
fn is_kept(mac: [u8; 6]) -> bool {
    mac == [0; 6] || mac == [0xff; 6] || PROTOCOLS.iter().any(|it| mac.starts_with(it))
}

/// Returns `true` for a MAC address that stands for an IP multicast group.
fn is_of_ip_group(mac: [u8; 6]) -> bool {
    mac.starts_with(&IPV4_GROUPS) || mac.starts_with(&IPV6_GROUPS)
}

/// Returns the MAC address of the IP multicast group `is` if `mac` is that of the IP multicast
/// group `was`.
pub(super) fn group_of(mac: [u8; 6], was: &[u8], is: &[u8]) -> Option<[u8; 6]> {
    let mac_of = |group: &[u8]| match *group {
        [a, b, c, d] if a >> 4 == 0xe => Some([0x01, 0x00, 0x5e, b & 0x7f, c, d]),
        [0xff, .., a, b, c, d] if group.len() == 16 => Some([0x33, 0x33, a, b, c, d]),
        _ => None,
    };
    if mac_of(was) == Some(mac) {
        mac_of(is)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn ciphers() -> (MacCipher, AddressCipher) {
        let key = SecretKey::new(b"a key of 32 bytes, for the tests");
        (MacCipher::new(&key), AddressCipher::new(&key))
    }

    #[test]
    fn only_the_group_and_local_bits_are_preserved() {
        let (macs, addresses) = ciphers();
        let mut seen = HashSet::new();
        let mut same = [0; 6];
        for i in 0..60_000u64 {
            // Consecutive addresses, and addresses that differ only in the vendor prefix.
            let bits = if i % 2 == 0 { i } else { i << 26 };
            let [_, _, mac @ ..] = (0x0050_5612_3456 ^ bits).to_be_bytes();
            if is_kept(mac) || is_of_ip_group(mac) {
                continue;
            }
            let is = macs.replaced(mac, &addresses);
            assert_eq!(mac[0] & SORT, is[0] & SORT);
            assert!(seen.insert(is) && !is_kept(is) && !is_of_ip_group(is));
            for (same, (was, is)) in same.iter_mut().zip(mac.iter().zip(is)) {
                *same += u32::from(*was == is);
            }
        }
        assert!(seen.len() > 50_000);
        // A byte is unchanged by chance in one of 256 addresses; two bits of the first byte are
        // preserved.
        let most = seen.len() as u32 / 256 * 2;
        assert!(
            same[0] < 4 * most && same[1..].iter().all(|n| *n < most),
            "{same:?}"
        );
    }

    #[test]
    fn standard_groups_are_kept_and_ip_groups_are_derived() {
        let (macs, addresses) = ciphers();
        for kept in [
            [0; 6],
            [0xff; 6],
            [0x01, 0x80, 0xc2, 0, 0, 0x0e],
            [0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xcc],
            [0x01, 0x00, 0x5e, 0, 0, 0xfb],
            [0x33, 0x33, 0, 0, 0, 0x01],
        ] {
            assert_eq!(macs.replaced(kept, &addresses), kept);
        }
        // A cluster address that contains an IP address.
        let cluster = macs.replaced([0x03, 0xbf, 10, 1, 2, 3], &addresses);
        assert!(cluster[0] & SORT == SORT && cluster[2..] != [10, 1, 2, 3]);

        let node = u128::to_be_bytes(0xff02_0000_0000_0000_0000_0001_ff12_3456);
        let mac = [0x33, 0x33, 0xff, 0x12, 0x34, 0x56];
        let is = macs.replaced(mac, &addresses);
        assert_ne!(is, mac);
        assert_eq!(group_of(mac, &node, &addresses.v6(node)), Some(is));

        let group = [239, 1, 2, 3];
        let mac = [0x01, 0x00, 0x5e, 1, 2, 3];
        let is = addresses.v4(group);
        let of_group = group_of(mac, &group, &is).expect("the address of the group");
        assert_eq!(of_group[3..], [is[1] & 0x7f, is[2], is[3]]);
        assert_eq!(group_of(mac, &[239, 1, 2, 4], &is), None);
        assert_eq!(group_of(mac, &[10, 1, 2, 3], &is), None);
    }
}
