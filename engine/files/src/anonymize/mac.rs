//! MAC addresses: a permutation of all that are alike in the two bits that say what sort of address it is.
//!
//! Nothing of a vendor's prefix (OUI) is left: it tells who made a machine, and often what machine it is. An address that
//! was a group's, or administered locally, is still one. The permutation is a Feistel network of four rounds with AES as its
//! function (Luby, Rackoff, "How to Construct Pseudorandom Permutations from Pseudorandom Functions", 1988), so no two
//! addresses become one. Groups that a standard names are kept, those of IP groups go with them.

use super::address::AddressCipher;
use crate::sealed::SecretKey;
use aes::{
    Aes128Enc,
    cipher::{Block, BlockCipherEncrypt, KeyInit},
};
use zeroize::Zeroizing;

/// What the key of the MAC addresses is the cipher text of.
const LABEL: [u8; 16] = *b"wqcap: MAC addr.";
/// Bits of each half of the 46 that are replaced.
const HALF: u32 = 23;
const HALF_MASK: u64 = (1 << HALF) - 1;
/// Group and locally administered: the lowest bits of the first byte, IEEE 802 clause 8.2.
const SORT: u8 = 3;

/// Groups of protocols of the link: IEEE 802.1 and 802.3, IEEE 1588, Cisco.
const PROTOCOLS: [[u8; 3]; 3] = [[0x01, 0x80, 0xc2], [0x01, 0x1b, 0x19], [0x01, 0x00, 0x0c]];
/// Groups of IPv4, with the lowest 23 bits of the address: RFC 1112 section 6.4.
const IPV4_GROUPS: [u8; 3] = [0x01, 0x00, 0x5e];
/// Groups of IPv6, with the lowest 32 bits of the address: RFC 2464 section 7.
const IPV6_GROUPS: [u8; 2] = [0x33, 0x33];

/// Replaces MAC addresses.
pub(super) struct MacCipher(Aes128Enc);

impl MacCipher {
    pub(super) fn new(key: &SecretKey) -> Self {
        let (cipher, _) = key.halves();
        let mut block = Block::<Aes128Enc>::from(LABEL);
        Aes128Enc::new(cipher.into()).encrypt_block(&mut block);
        let own = Zeroizing::new(<[u8; 16]>::from(block));
        Self(Aes128Enc::new((&*own).into()))
    }

    /// In place of an address. Where the IP group is known that it belongs to, [`group_of`] tells better.
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
                // Only those of solicited-node groups have a part of an address in them.
                (group[0], group[1], group[11]) = (0xff, 0x02, u8::from(a == 0xff));
                group[12..].copy_from_slice(&[a, b, c, d]);
                let [.., a, b, c, d] = addresses.v6(group);
                [0x33, 0x33, a, b, c, d]
            }
            _ if is_kept(mac) => mac,
            // What comes out as an address that is kept goes round again: that, too, is a permutation.
            _ => {
                let mut replaced = self.permuted(mac);
                while is_kept(replaced) || is_of_ip_group(replaced) {
                    replaced = self.permuted(replaced);
                }
                replaced
            }
        }
    }

    fn permuted(&self, mac: [u8; 6]) -> [u8; 6] {
        let [first, ..] = mac;
        let bits = mac.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        // The upper 6 bits of the first byte, and the other 40.
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

    fn function(&self, round: u8, sort: u8, half: u64) -> u64 {
        let mut block = Block::<Aes128Enc>::default();
        (block[0], block[1]) = (round, sort);
        block[8..].copy_from_slice(&half.to_be_bytes());
        self.0.encrypt_block(&mut block);
        let [a, b, c, ..] = <[u8; 16]>::from(block);
        u64::from_be_bytes([0, 0, 0, 0, 0, a, b, c]) & HALF_MASK
    }
}

/// All zero, which ARP has where an address is not known, broadcast, and groups that a standard names.
fn is_kept(mac: [u8; 6]) -> bool {
    mac == [0; 6] || mac == [0xff; 6] || PROTOCOLS.iter().any(|it| mac.starts_with(it))
}

fn is_of_ip_group(mac: [u8; 6]) -> bool {
    mac.starts_with(&IPV4_GROUPS) || mac.starts_with(&IPV6_GROUPS)
}

/// The address that frames to an IP group are sent to, if `mac` is the one of the group that is replaced.
pub(super) fn group_of(mac: [u8; 6], was: &[u8], is: &[u8]) -> Option<[u8; 6]> {
    let of = |group: &[u8]| match *group {
        [a, b, c, d] if a >> 4 == 0xe => Some([0x01, 0x00, 0x5e, b & 0x7f, c, d]),
        [0xff, .., a, b, c, d] if group.len() == 16 => Some([0x33, 0x33, a, b, c, d]),
        _ => None,
    };
    if of(was) == Some(mac) { of(is) } else { None }
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
    fn the_sort_of_an_address_stays_and_nothing_else() {
        let (macs, addresses) = ciphers();
        let mut seen = HashSet::new();
        let mut same = [0; 6];
        for i in 0..60_000u64 {
            // Neighbours, and addresses that differ in the vendor alone.
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
        // By chance a byte is what it was in one of 256; the first keeps two bits.
        let most = seen.len() as u32 / 256 * 2;
        assert!(
            same[0] < 4 * most && same[1..].iter().all(|n| *n < most),
            "{same:?}"
        );
    }

    #[test]
    fn groups_of_standards_are_kept_and_those_of_ip_go_with_theirs() {
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
        // A cluster's address with its IP address in it.
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
        let of_group = group_of(mac, &group, &is).expect("its own");
        assert_eq!(of_group[3..], [is[1] & 0x7f, is[2], is[3]]);
        assert_eq!(group_of(mac, &[239, 1, 2, 4], &is), None);
        assert_eq!(group_of(mac, &[10, 1, 2, 3], &is), None);
    }
}
