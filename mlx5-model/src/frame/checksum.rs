//! Internet checksum (RFC 1071).
//!
//! Imports nothing. Invariant: sums are of native-endian words, and a folded sum is stored with
//! `to_ne_bytes` (RFC 1071 section 2(B): byte order independence).

/// Adds the 16-bit words of `bytes` to a running sum for the Internet checksum. Only the last bytes
/// that are added may have an odd length.
#[inline]
pub fn add(sum: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    // Adds four bytes at a time: 2^32 and 2^16 are both 1 modulo 0xffff, and 64 bits cannot
    // overflow with fewer than 2^32 words.
    let sum = words
        .iter()
        .fold(sum, |sum, word| sum + u64::from(u32::from_ne_bytes(*word)));
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum + u64::from(u32::from_ne_bytes(last))
}

/// Folds a running sum for the Internet checksum to 16 bits. The result is zero only if every
/// summed byte was zero.
#[inline]
pub fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

/// Returns the Internet checksum's running sum over a pseudo header for TCP or UDP (RFC 9293
/// section 3.1, RFC 8200 section 8.1). `addresses` is the source IP address followed by the
/// destination IP address.
#[inline]
pub fn pseudo(addresses: &[u8], protocol: u8, length: usize) -> u64 {
    let sum = add(0, addresses);
    let sum = add(sum, &(length as u32).to_be_bytes());
    add(sum, &[0, protocol])
}

/// Returns `true` if `sum`, over data that include their Internet checksum, shows that the checksum
/// is valid.
#[inline]
pub fn is_valid(sum: u64) -> bool {
    fold(sum) == 0xffff
}

/// Returns the bytes of an Internet checksum field from a sum over all data with that field at
/// zero.
#[inline]
pub fn finish(sum: u64) -> [u8; 2] {
    (!fold(sum)).to_ne_bytes()
}

/// Returns the bytes of UDP's checksum field, where zero means "no checksum" and is sent as 0xffff
/// (RFC 768).
#[inline]
pub fn finish_udp(sum: u64) -> [u8; 2] {
    match !fold(sum) {
        0 => [0xff, 0xff],
        sum => sum.to_ne_bytes(),
    }
}

/// Computes the checksum of `bytes` with `sum_of` while the checksum field at offset `at` is zero,
/// and stores the checksum in that field.
#[inline]
pub fn store(bytes: &mut [u8], at: usize, sum_of: impl FnOnce(&[u8]) -> [u8; 2]) {
    bytes[at..at + 2].fill(0);
    let sum = sum_of(bytes);
    bytes[at..at + 2].copy_from_slice(&sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(add(0, &bytes)).to_ne_bytes(), [0xdd, 0xf2]);
        // The sum in pieces, and with an odd end.
        assert_eq!(
            fold(add(add(0, &bytes[..2]), &bytes[2..])).to_ne_bytes(),
            [0xdd, 0xf2]
        );
        assert_eq!(fold(add(0, &[0x12])).to_ne_bytes(), [0x12, 0x00]);
    }

    #[test]
    fn a_known_ipv4_header() {
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0x00,
            0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert_eq!(finish(add(0, &header)), [0xb8, 0x61]);
    }

    #[test]
    fn folding_the_largest_sums() {
        assert_eq!(fold(u64::MAX), 0xffff);
        assert_eq!(fold(0), 0);
        assert_eq!(fold(0xffff), 0xffff);
        assert_eq!(fold(0x1_0000), 1);
        assert_eq!(finish_udp(0xffff), [0xff, 0xff]);
    }
}
