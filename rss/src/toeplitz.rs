//! Toeplitz hash with lookup tables: one XOR per byte of input.
//!
//! Microsoft's definition adds, for each set bit of the input, the 32 key bits that begin at that
//! bit's position. The contribution of a byte depends only on its position and value, so tables
//! hold it.
//!
//! **May import** `key`, and `core`/`std`.
//!
//! **Invariant**: [`Toeplitz::hash`] equals the bitwise definition for each key and each input of
//! up to [`Toeplitz::MAX_INPUT`] bytes.

use crate::key::RssKey;
use std::fmt;

/// RSS key prepared for Toeplitz hashing: 36 KiB of tables, built once and shared by all threads
/// that hash.
#[derive(Clone)]
pub struct Toeplitz {
    key: RssKey,
    /// `rows[position][value]` is the contribution of input byte `value` at `position` to the
    /// Toeplitz hash.
    rows: Box<[[u32; 256]; Toeplitz::MAX_INPUT]>,
}

impl Toeplitz {
    /// Maximum length in bytes of the hash input that a 40-byte RSS key covers: two IPv6 addresses
    /// and two ports.
    pub const MAX_INPUT: usize = 36;

    /// Builds the Toeplitz hash tables for the RSS key `key`.
    #[must_use]
    pub fn new(key: &RssKey) -> Self {
        let mut rows = Box::new([[0u32; 256]; Self::MAX_INPUT]);
        for (place, row) in rows.iter_mut().enumerate() {
            for bit in 0..8 {
                let window = key.window(place * 8 + bit);
                for (value, sum) in row.iter_mut().enumerate() {
                    if value & (0x80 >> bit) != 0 {
                        *sum ^= window;
                    }
                }
            }
        }
        Self { key: *key, rows }
    }

    /// Returns the RSS key that the hash tables were built from.
    #[inline]
    #[must_use]
    pub const fn key(&self) -> &RssKey {
        &self.key
    }

    /// Returns the Toeplitz hash of `input`. Bytes beyond [`Toeplitz::MAX_INPUT`] add nothing,
    /// because no key bits apply to them.
    #[inline]
    #[must_use]
    pub fn hash(&self, input: &[u8]) -> u32 {
        self.update(0, 0, input)
    }

    /// Returns the Toeplitz hash of an input whose length is known at compile time; equals
    /// [`Toeplitz::hash`].
    #[inline]
    #[must_use]
    pub fn hash_all<const N: usize>(&self, input: &[u8; N]) -> u32 {
        const { assert!(N <= Self::MAX_INPUT) }
        let rows = self.rows.iter().zip(input);
        rows.fold(0, |hash, (row, &byte)| hash ^ row[usize::from(byte)])
    }

    /// Continues a Toeplitz hash with `bytes` of the hash input. `hash` is the hash of the earlier
    /// input bytes (0 for the first call), `position` the offset of `bytes` in the whole input. The
    /// parts of the input can come in any order, since the sum does not depend on it.
    #[inline]
    #[must_use]
    pub fn update(&self, hash: u32, position: usize, bytes: &[u8]) -> u32 {
        // Indexing by `u8` needs no bounds check. Addresses are multiples of four bytes and ports
        // are two or four bytes, so chunks of four keep the loop overhead low.
        let rows = self.rows.get(position..).unwrap_or(&[]);
        let bytes = bytes.get(..rows.len()).unwrap_or(bytes);
        let (row_fours, _) = rows.as_chunks::<4>();
        let (byte_fours, rest) = bytes.as_chunks::<4>();
        let hash = row_fours
            .iter()
            .zip(byte_fours)
            .fold(hash, |hash, (rows, bytes)| {
                let [a, b, c, d] = bytes.map(usize::from);
                hash ^ (rows[0][a] ^ rows[1][b]) ^ (rows[2][c] ^ rows[3][d])
            });
        let rows = rows.get(bytes.len() - rest.len()..).unwrap_or(&[]);
        rows.iter()
            .zip(rest)
            .fold(hash, |hash, (row, &byte)| hash ^ row[usize::from(byte)])
    }
}

impl fmt::Debug for Toeplitz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The tables are omitted: they are 9216 numbers derived from the key.
        f.debug_tuple("Toeplitz").field(&self.key).finish()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// Computes the Toeplitz hash bit by bit from its definition, without tables: hash bit j (most
    /// significant first) is the parity of the input bits i for which key bit i + j is set.
    pub(crate) fn bitwise(key: &[u8; 40], input: &[u8]) -> u32 {
        let bit_of = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
        let mut hash = 0;
        for j in 0..32 {
            let parity = (0..input.len() * 8)
                .fold(0, |sum, i| sum ^ (bit_of(input, i) & bit_of(key, i + j)));
            hash = hash << 1 | u32::from(parity);
        }
        hash
    }

    /// Published RSS test vector: source address and port, destination address and port, hash over
    /// the addresses, hash over addresses and ports.
    pub(crate) type Vector<A> = (A, u16, A, u16, u32, u32);

    /// Returns the IPv4 vectors of Microsoft's RSS verification suite.
    pub(crate) fn ipv4_vectors() -> [Vector<Ipv4Addr>; 5] {
        let ip = |text: &str| text.parse().unwrap();
        [
            (
                ip("66.9.149.187"),
                2794,
                ip("161.142.100.80"),
                1766,
                0x323e_8fc2,
                0x51cc_c178,
            ),
            (
                ip("199.92.111.2"),
                14230,
                ip("65.69.140.83"),
                4739,
                0xd718_262a,
                0xc626_b0ea,
            ),
            (
                ip("24.19.198.95"),
                12898,
                ip("12.22.207.184"),
                38024,
                0xd2d0_a5de,
                0x5c2b_394a,
            ),
            (
                ip("38.27.205.30"),
                48228,
                ip("209.142.163.6"),
                2217,
                0x8298_9176,
                0xafc7_327f,
            ),
            (
                ip("153.39.163.191"),
                44251,
                ip("202.188.127.2"),
                1303,
                0x5d18_09c5,
                0x10e8_28a2,
            ),
        ]
    }

    /// Returns the IPv6 vectors of Microsoft's RSS verification suite.
    pub(crate) fn ipv6_vectors() -> [Vector<Ipv6Addr>; 3] {
        let ip = |text: &str| text.parse().unwrap();
        [
            (
                ip("3ffe:2501:200:1fff::7"),
                2794,
                ip("3ffe:2501:200:3::1"),
                1766,
                0x2cc1_8cd5,
                0x4020_7d3d,
            ),
            (
                ip("3ffe:501:8::260:97ff:fe40:efab"),
                14230,
                ip("ff02::1"),
                4739,
                0x0f0c_461c,
                0xdde5_1bbf,
            ),
            (
                ip("3ffe:1900:4545:3:200:f8ff:fe21:67cf"),
                44251,
                ip("fe80::200:f8ff:fe21:67cf"),
                38024,
                0x4b61_e985,
                0x02d1_feef,
            ),
        ]
    }

    fn check(input: &[u8], addresses: usize, l3: u32, l4: u32) {
        let toeplitz = Toeplitz::new(&RssKey::MICROSOFT);
        let key = RssKey::MICROSOFT;
        assert_eq!(toeplitz.hash(&input[..addresses]), l3, "{input:?}");
        assert_eq!(toeplitz.hash(input), l4, "{input:?}");
        assert_eq!(
            bitwise(key.as_bytes(), &input[..addresses]),
            l3,
            "{input:?}"
        );
        assert_eq!(bitwise(key.as_bytes(), input), l4, "{input:?}");
    }

    #[test]
    fn microsoft_ipv4() {
        for (src, sport, dst, dport, l3, l4) in ipv4_vectors() {
            let input = [
                &src.octets()[..],
                &dst.octets(),
                &sport.to_be_bytes(),
                &dport.to_be_bytes(),
            ]
            .concat();
            check(&input, 8, l3, l4);
        }
    }

    #[test]
    fn microsoft_ipv6() {
        for (src, sport, dst, dport, l3, l4) in ipv6_vectors() {
            let input = [
                &src.octets()[..],
                &dst.octets(),
                &sport.to_be_bytes(),
                &dport.to_be_bytes(),
            ]
            .concat();
            check(&input, 32, l3, l4);
        }
    }

    #[test]
    fn input_beyond_the_key_adds_nothing() {
        let toeplitz = Toeplitz::new(&RssKey::MICROSOFT);
        let input = [0xff; 64];
        assert_eq!(toeplitz.hash(&input), toeplitz.hash(&input[..36]));
        assert_eq!(toeplitz.update(7, 36, &input), 7);
        assert_eq!(toeplitz.update(7, usize::MAX, &input), 7);
    }

    #[test]
    fn debug_is_short() {
        let text = format!("{:?}", Toeplitz::new(&RssKey::SYMMETRIC));
        assert!(
            text.starts_with("Toeplitz(RssKey(6d5a") && text.len() < 120,
            "{text}"
        );
    }

    pub(crate) fn any_key() -> impl Strategy<Value = RssKey> {
        (any::<[u8; 32]>(), any::<[u8; 8]>()).prop_map(|(head, tail)| {
            let mut key = [0; 40];
            key[..32].copy_from_slice(&head);
            key[32..].copy_from_slice(&tail);
            RssKey::new(key)
        })
    }

    proptest! {
        #[test]
        fn tables_equal_the_definition(
            key in any_key(),
            input in vec(any::<u8>(), 0..=36),
        ) {
            prop_assert_eq!(Toeplitz::new(&key).hash(&input), bitwise(key.as_bytes(), &input));
        }

        #[test]
        fn pieces_equal_the_whole(
            key in any_key(),
            input in vec(any::<u8>(), 0..=36),
            cut in any::<prop::sample::Index>(),
        ) {
            let toeplitz = Toeplitz::new(&key);
            let cut = cut.index(input.len() + 1);
            let (head, tail) = input.split_at(cut);
            let hash = toeplitz.update(toeplitz.hash(head), cut, tail);
            prop_assert_eq!(hash, toeplitz.hash(&input));
        }

        #[test]
        fn a_symmetric_key_gives_both_directions_one_hash(
            pattern in any::<[u8; 2]>(),
            input in any::<[u8; 12]>(),
        ) {
            let mut key = [0; 40];
            key.chunks_exact_mut(2).for_each(|pair| pair.copy_from_slice(&pattern));
            let key = RssKey::new(key);
            prop_assert!(key.is_symmetric());
            let [a, b, c, d, e, f, g, h, p, q, r, s] = input;
            let toeplitz = Toeplitz::new(&key);
            prop_assert_eq!(
                toeplitz.hash(&input),
                toeplitz.hash(&[e, f, g, h, a, b, c, d, r, s, p, q])
            );
        }
    }
}
