//! Replacement of IP addresses by Crypto-PAn, which preserves special ranges.
//!
//! Source: Xu, Fan, Ammar, Moon, "Prefix-Preserving IP Address Anonymization: Measurement-Based
//! Security Evaluation and a New Cryptography-Based Scheme", ICNP 2002. The key and the preceding
//! bits decide whether a bit is flipped. The common prefix of two addresses therefore keeps its
//! length, and the mapping is injective.
//!
//! These properties hold for any function of the preceding bits. This implementation therefore
//! never flips the bits on the path to a range of [`V4`] or [`V6`], nor any bit within a kept
//! range. An address in such a range stays in it, and no other address enters it.

use crate::sealed::SecretKey;
use aes::{
    Aes128Enc,
    cipher::{Block, BlockCipherEncrypt, KeyInit},
};
use std::net::{Ipv4Addr, Ipv6Addr};
use zeroize::Zeroizing;

/// Range of IP addresses with a special meaning for the anonymization.
struct AddressRange {
    /// First IP address of the range, aligned to the highest bit of the number.
    first: u128,
    /// Prefix length of the IP address range in bits.
    len: u32,
    /// `true` if the anonymization does not replace the addresses in the range at all.
    kept: bool,
}

/// Returns a range of IP addresses that are replaced by addresses of the same range.
const fn closed(first: u128, len: u32) -> AddressRange {
    let kept = false;
    AddressRange { first, len, kept }
}

/// Returns a range of IP addresses that are not replaced.
const fn kept(first: u128, len: u32) -> AddressRange {
    let kept = true;
    AddressRange { first, len, kept }
}

/// Returns an IPv4 address as a number, aligned to the highest bit.
const fn v4(a: u8, b: u8, c: u8, d: u8) -> u128 {
    (Ipv4Addr::new(a, b, c, d).to_bits() as u128) << 96
}

/// Special ranges of IPv4 addresses, which the anonymization keeps apart. A range inside another
/// one follows it in the list.
const V4: [AddressRange; 6] = [
    // Unspecified.
    kept(v4(0, 0, 0, 0), 32),
    // Loopback, RFC 1122.
    kept(v4(127, 0, 0, 0), 8),
    // Link-local, RFC 3927.
    closed(v4(169, 254, 0, 0), 16),
    // Multicast, RFC 5771; groups other than the next ones may contain an AS number or an address.
    closed(v4(224, 0, 0, 0), 4),
    // Protocol groups: local network and internetwork control blocks.
    kept(v4(224, 0, 0, 0), 23),
    // Limited broadcast, RFC 919.
    kept(v4(255, 255, 255, 255), 32),
];

/// Special ranges of IPv6 addresses, which the anonymization keeps apart. A range inside another
/// one follows it in the list.
const V6: [AddressRange; 7] = [
    // Unspecified, loopback: RFC 4291.
    kept(Ipv6Addr::UNSPECIFIED.to_bits(), 128),
    kept(Ipv6Addr::LOCALHOST.to_bits(), 128),
    // Link-local.
    closed(0xfe80 << 112, 64),
    // Multicast; groups other than those of IANA may contain a prefix, RFC 3306.
    closed(0xff << 120, 8),
    kept(0xff << 120, 12),
    // IANA groups that contain a part of an address or name: solicited-node, RFC 4291, and node
    // information, RFC 4620.
    closed(0xff02_0000_0000_0000_0000_0001_ff00_0000, 104),
    closed(0xff02_0000_0000_0000_0000_0002_ff00_0000, 104),
];

/// Returns a mask of the first `len` bits of an IP address.
const fn first_bits(len: u32) -> u128 {
    match 128u32.checked_sub(len) {
        Some(0) => u128::MAX,
        Some(rest) if rest < 128 => u128::MAX << rest,
        _ => 0,
    }
}

/// Returns a mask of the bits of an IP address that the anonymization may flip.
fn free_bits(address: u128, ranges: &[AddressRange]) -> u128 {
    let mut free = u128::MAX;
    for range in ranges {
        let common = (address ^ range.first).leading_zeros().min(range.len);
        // Bits up to the first one that differs from the range's prefix, including that bit.
        let path = first_bits(range.len.min(common + 1));
        let inside = common == range.len;
        free = match (inside, range.kept) {
            (true, true) => 0,
            // A closed range inside a kept one.
            (true, false) => (free | !first_bits(range.len)) & !path,
            (false, _) => free & !path,
        };
    }
    free
}

/// Cipher of IP addresses, Crypto-PAn, as published: without special ranges.
struct CryptoPan {
    /// Block cipher (AES-128) of Crypto-PAn.
    aes: Aes128Enc,
    /// Secret padding of the Crypto-PAn cipher input.
    pad: Zeroizing<u128>,
}

impl CryptoPan {
    /// Derives the block cipher and the padding of Crypto-PAn from the secret key.
    fn new(key: &SecretKey) -> Self {
        let (cipher, pad) = key.halves();
        let aes = Aes128Enc::new(cipher.into());
        let mut block = Block::<Aes128Enc>::from(*pad);
        aes.encrypt_block(&mut block);
        let pad = Zeroizing::new(u128::from_be_bytes(block.into()));
        Self { aes, pad }
    }

    /// Returns a mask of the bits that Crypto-PAn flips among the first `N` bits of an IP address.
    fn flips<const N: usize>(&self, address: u128) -> u128 {
        let mut blocks: [Block<Aes128Enc>; N] = std::array::from_fn(|bit| {
            // The cipher input has the preceding bits, followed by the padding.
            let front = first_bits(bit as u32);
            (address & front | *self.pad & !front).to_be_bytes().into()
        });
        self.aes.encrypt_blocks(&mut blocks);
        let flip =
            |(bit, block): (u32, &Block<Aes128Enc>)| u128::from(block[0] >> 7) << (127 - bit);
        (0..).zip(&blocks).map(flip).fold(0, |all, one| all | one)
    }
}

/// Cipher that replaces IPv4 and IPv6 addresses.
pub(super) struct AddressCipher(CryptoPan);

impl AddressCipher {
    /// Creates a cipher of IP addresses with a secret key.
    pub(super) fn new(key: &SecretKey) -> Self {
        Self(CryptoPan::new(key))
    }

    /// Returns the address that replaces an IPv4 address in anonymized frames.
    pub(super) fn v4(&self, address: [u8; 4]) -> [u8; 4] {
        let address = u128::from(u32::from_be_bytes(address)) << 96;
        let free = free_bits(address, &V4) & first_bits(32);
        let flips = if free == 0 {
            0
        } else {
            self.0.flips::<32>(address)
        };
        (((address ^ flips & free) >> 96) as u32).to_be_bytes()
    }

    /// Returns the address that replaces an IPv6 address in anonymized frames.
    pub(super) fn v6(&self, address: [u8; 16]) -> [u8; 16] {
        let address = u128::from_be_bytes(address);
        let free = free_bits(address, &V6);
        let flips = if free == 0 {
            0
        } else {
            self.0.flips::<128>(address)
        };
        (address ^ flips & free).to_be_bytes()
    }

    /// Returns the prefix that replaces an IPv6 prefix of `len` bits; the bits after it are 0.
    pub(super) fn v6_prefix(&self, prefix: [u8; 16], len: u8) -> [u8; 16] {
        let bits = first_bits(u32::from(len).min(128));
        let prefix = (u128::from_be_bytes(prefix) & bits).to_be_bytes();
        (u128::from_be_bytes(self.v6(prefix)) & bits).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// Key of the sample trace in the authors' distribution of Crypto-PAn 1.0.
    const SAMPLE: [u8; 32] = [
        21, 34, 23, 141, 51, 164, 207, 128, 19, 10, 91, 22, 73, 144, 125, 16, 216, 152, 143, 131,
        121, 121, 101, 39, 98, 87, 76, 45, 42, 132, 34, 2,
    ];

    fn sample() -> AddressCipher {
        AddressCipher::new(&SecretKey::new(&SAMPLE))
    }

    /// Returns the replacement of an IPv4 address by Crypto-PAn without special ranges.
    fn published_v4(pan: &CryptoPan, address: &str) -> Ipv4Addr {
        let address: Ipv4Addr = address.parse().expect("an address");
        let wide = u128::from(address.to_bits()) << 96;
        Ipv4Addr::from_bits(((wide ^ pan.flips::<32>(wide)) >> 96) as u32)
    }

    /// Returns the replacement of an IPv6 address by Crypto-PAn without special ranges.
    fn published_v6(pan: &CryptoPan, address: &str) -> Ipv6Addr {
        let address: Ipv6Addr = address.parse().expect("an address");
        Ipv6Addr::from_bits(address.to_bits() ^ pan.flips::<128>(address.to_bits()))
    }

    /// The address cipher maps the addresses of `sample_trace_raw.dat` to those of
    /// `sample_trace_sanitized.dat`, from the authors' distribution.
    #[test]
    fn the_published_vectors_hold() {
        let pan = CryptoPan::new(&SecretKey::new(&SAMPLE));
        for (address, replaced) in [
            ("128.11.68.132", "135.242.180.132"),
            ("129.118.74.4", "134.136.186.123"),
            ("130.132.252.244", "133.68.164.234"),
            ("141.223.7.43", "141.167.8.160"),
            ("141.233.145.108", "141.129.237.235"),
            ("152.163.225.39", "151.140.114.167"),
            ("156.29.3.236", "147.225.12.42"),
            ("165.247.96.84", "162.9.99.234"),
            ("166.107.77.190", "160.132.178.185"),
            ("192.102.249.13", "252.138.62.131"),
            ("192.215.32.125", "252.43.47.189"),
            ("192.233.80.103", "252.25.108.8"),
            ("192.41.57.43", "252.222.221.184"),
            ("193.150.244.223", "253.169.52.216"),
            ("195.205.63.100", "255.186.223.5"),
            ("198.200.171.101", "249.199.68.213"),
            ("198.26.132.101", "249.36.123.202"),
            ("198.36.213.5", "249.7.21.132"),
            ("198.51.77.238", "249.18.186.254"),
            ("199.217.79.101", "248.38.184.213"),
            ("202.49.198.20", "245.206.7.234"),
            ("203.12.160.252", "244.248.163.4"),
            ("204.184.162.189", "243.192.77.90"),
            ("204.202.136.230", "243.178.4.198"),
            ("204.29.20.4", "243.33.20.123"),
            ("205.178.38.67", "242.108.198.51"),
            ("205.188.147.153", "242.96.16.101"),
            ("207.105.49.5", "241.118.205.138"),
            ("208.147.89.59", "227.237.98.191"),
            ("209.12.231.7", "226.243.167.8"),
            ("212.120.124.31", "228.135.163.231"),
            ("216.148.237.145", "235.84.194.111"),
            ("24.0.250.221", "100.15.198.226"),
            ("24.94.26.44", "100.88.228.35"),
            ("38.15.67.68", "64.3.66.187"),
            ("4.3.88.225", "124.60.155.63"),
            ("63.14.55.111", "95.9.215.7"),
            ("63.97.7.140", "95.97.9.123"),
            ("64.14.118.196", "0.255.183.58"),
            ("64.39.15.238", "0.219.7.41"),
            ("10.185.25.118", "117.161.29.118"),
        ] {
            assert_eq!(published_v4(&pan, address).to_string(), replaced);
        }
    }

    /// IPv6 vectors from two other implementations, because the authors published none: cryptopan
    /// for Go by Yawning Angel, and the page of yacryptopan.
    #[test]
    fn vectors_of_other_implementations_hold() {
        let pan = CryptoPan::new(&SecretKey::new(&SAMPLE));
        for (address, replaced) in [
            ("::1", "78ff:f001:9fc0:20df:8380:b1f1:704:ed"),
            ("::2", "78ff:f001:9fc0:20df:8380:b1f1:704:ef"),
            ("::ffff", "78ff:f001:9fc0:20df:8380:b1f1:704:f838"),
            ("2001:db8::1", "4401:2bc:603f:d91d:27f:ff8e:e6f1:dc1e"),
            ("2001:db8::2", "4401:2bc:603f:d91d:27f:ff8e:e6f1:dc1c"),
        ] {
            assert_eq!(published_v6(&pan, address).to_string(), replaced);
        }
        let pan = CryptoPan::new(&SecretKey::new(b"32-char-str-for-AES-key-and-pad."));
        assert_eq!(published_v4(&pan, "192.0.2.1").to_string(), "192.0.125.244");
        assert_eq!(
            published_v6(&pan, "2001:db8::1").to_string(),
            "27fe:8bc7:fee:1e:1e1f:f0fe:f0e1:83fd"
        );
    }

    #[test]
    fn special_addresses_keep_their_meaning() {
        let cipher = sample();
        let v4 = |text: &str| {
            let address: Ipv4Addr = text.parse().expect("an address");
            (address, Ipv4Addr::from(cipher.v4(address.octets())))
        };
        for kept in [
            "0.0.0.0",
            "127.0.0.1",
            "127.255.255.255",
            "224.0.0.1",
            "224.0.0.251",
            "224.0.1.129",
            "255.255.255.255",
        ] {
            let (was, is) = v4(kept);
            assert_eq!(was, is);
        }
        for replaced in ["10.0.0.1", "233.252.0.1", "239.1.2.3", "169.254.3.4"] {
            let (was, is) = v4(replaced);
            assert_ne!(was, is);
            assert_eq!(was.is_multicast(), is.is_multicast());
            assert_eq!(was.is_link_local(), is.is_link_local());
        }
        let v6 = |text: &str| {
            let address: Ipv6Addr = text.parse().expect("an address");
            (address, Ipv6Addr::from(cipher.v6(address.octets())))
        };
        for kept in ["::", "::1", "ff02::1", "ff02::fb", "ff05::1:3", "ff0e::101"] {
            let (was, is) = v6(kept);
            assert_eq!(was, is);
        }
        for (replaced, prefix) in [
            ("2001:db8::1", 0),
            ("64:ff9b::a00:1", 0),
            ("fe80::1234:56ff:fe78:9abc", 64),
            ("ff02::1:ff78:9abc", 104),
            ("ff02::2:ff78:9abc", 104),
            ("ff3e:40:2001:db8::1", 8),
        ] {
            let (was, is) = v6(replaced);
            assert_ne!(was, is);
            assert!((was.to_bits() ^ is.to_bits()).leading_zeros() >= prefix);
        }
    }

    #[test]
    fn a_replaced_prefix_ends_with_zeros() {
        let cipher = sample();
        let prefix: Ipv6Addr = "2001:db8:1:2::".parse().expect("an address");
        let host: Ipv6Addr = "2001:db8:1:2::77".parse().expect("an address");
        let is = u128::from_be_bytes(cipher.v6_prefix(host.octets(), 64));
        assert_eq!(is & !first_bits(64), 0);
        let replaced = |it: Ipv6Addr| u128::from_be_bytes(cipher.v6(it.octets()));
        assert_eq!(replaced(prefix) & first_bits(64), is);
        assert_eq!(replaced(host) & first_bits(64), is);
        assert_eq!(cipher.v6_prefix(host.octets(), 0), [0; 16]);
        assert_eq!(
            cipher.v6_prefix(host.octets(), 255),
            replaced(host).to_be_bytes()
        );
    }

    #[test]
    fn replacement_is_injective() {
        let cipher = sample();
        // Addresses around both ends of each range, and a spread over all addresses.
        let near = V4.iter().flat_map(|range| {
            let first = (range.first >> 96) as u32;
            let last = first | !((first_bits(range.len) >> 96) as u32);
            (0..300).flat_map(move |i| [first, last].map(|it| it.wrapping_add(i).wrapping_sub(150)))
        });
        let spread = (0..20_000u32).map(|i| i.wrapping_mul(0x9e37_79b9));
        let all: HashSet<u32> = near.chain(spread).collect();
        let replaced = all.iter().map(|it| cipher.v4(it.to_be_bytes()));
        assert_eq!(replaced.collect::<HashSet<_>>().len(), all.len());
    }

    /// Generates pairs of IP addresses with a common prefix; the first may share a prefix with a
    /// range.
    fn pairs(ranges: &'static [AddressRange]) -> impl Strategy<Value = (u128, u128)> {
        let near = (any::<u128>(), 0..=ranges.len(), 0..=128u32).prop_map(|(any, range, len)| {
            let first = ranges.get(range).map_or(any, |range| range.first);
            first & first_bits(len) | any & !first_bits(len)
        });
        (near, any::<u128>(), 0..=128u32)
            .prop_map(|(one, other, len)| (one, one & first_bits(len) | other & !first_bits(len)))
    }

    #[test]
    fn common_prefixes_keep_their_length() {
        let cipher = sample();
        let config = ProptestConfig::with_cases(3_000);
        proptest!(config.clone(), |((one, other) in pairs(&V4))| {
            let [one, other] = [one, other].map(|it| (it >> 96) as u32);
            let [a, b] = [one, other].map(|it| u32::from_be_bytes(cipher.v4(it.to_be_bytes())));
            prop_assert_eq!((a ^ b).leading_zeros(), (one ^ other).leading_zeros());
            prop_assert_eq!(a == b, one == other);
        });
        proptest!(config, |((one, other) in pairs(&V6))| {
            let [a, b] = [one, other].map(|it| u128::from_be_bytes(cipher.v6(it.to_be_bytes())));
            prop_assert_eq!((a ^ b).leading_zeros(), (one ^ other).leading_zeros());
        });
    }

    #[test]
    fn no_address_enters_or_leaves_a_range() {
        let cipher = sample();
        let is_in = |range: &AddressRange, address: u128| {
            (address ^ range.first) & first_bits(range.len) == 0
        };
        proptest!(ProptestConfig::with_cases(3_000), |((one, _) in pairs(&V6))| {
            let is = u128::from_be_bytes(cipher.v6(one.to_be_bytes()));
            for range in &V6 {
                prop_assert_eq!(is_in(range, one), is_in(range, is));
            }
        });
    }
}
