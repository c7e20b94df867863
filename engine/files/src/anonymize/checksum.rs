//! Update of checksums over replaced bytes: the ones' complement sum of IPv4, TCP, UDP, ICMP and
//! GRE, RFC 1071.
//!
//! A correct checksum stays correct, even if a part of its data was not captured, because it is
//! updated by the difference of the bytes (RFC 1624). A wrong checksum stays wrong, but is not
//! updated by the difference: an attacker who guesses its old value (hosts with checksum offload
//! write 0 or the sum of the pseudo-header) would learn the difference between original and
//! replaced addresses. The CRC-32c of SCTP covers no address, and SCTP packets are not changed.

/// Ones' complement sum of an Internet checksum before folding to 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum(u64);

impl Sum {
    /// Returns the ones' complement sum of bytes that begin at an even offset.
    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        let (pairs, rest) = bytes.as_chunks::<2>();
        let sum: u64 = pairs
            .iter()
            .map(|it| u64::from(u16::from_be_bytes(*it)))
            .sum();
        let last = rest.first().map_or(0, |it| u64::from(*it) << 8);
        Self(sum + last)
    }

    /// Returns the ones' complement sum of a number's 16-bit words.
    pub(super) fn of_number(number: usize) -> Self {
        Self(number as u64)
    }

    /// Returns `true` for the ones' complement sum of a header with a correct checksum.
    pub(super) fn is_complete(self) -> bool {
        self.folded() == 0xffff
    }

    /// Returns the sum of two ones' complement sums.
    pub(super) fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    fn add_word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word))
    }

    /// Returns the ones' complement sum folded to 16 bits.
    fn folded(self) -> u16 {
        let mut sum = self.0;
        while let (low, high @ 1..) = (sum & 0xffff, sum >> 16) {
            sum = low + high;
        }
        sum as u16
    }
}

/// Returns `true` if two folded checksum sums are equal; 0 and 0xffff both represent zero.
fn is_same(one: u16, other: u16) -> bool {
    one % 0xffff == other % 0xffff
}

/// Checksum sums of a pseudo-header with the original and with the replaced addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct PseudoHeader {
    /// Ones' complement sum of the pseudo-header with the original addresses.
    pub(super) before: Sum,
    /// Ones' complement sum of the pseudo-header with the replaced addresses.
    pub(super) after: Sum,
}

/// Checksum in a frame that the anonymization must update.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checksum {
    /// Offset of the checksum field in the frame.
    pub(super) field: usize,
    /// Offset in the frame of the first byte that the checksum covers.
    pub(super) start: usize,
    /// End (exclusive) in the frame of the bytes that the checksum covers.
    pub(super) end: usize,
    /// `true` if all bytes that the checksum covers are in the frame.
    pub(super) whole: bool,
    /// Sums of the pseudo-header, if the checksum covers one.
    pub(super) pseudo: Option<PseudoHeader>,
    /// `true` if the checksum value 0 means that the checksum is absent (UDP).
    pub(super) optional: bool,
}

impl Checksum {
    /// Updates the checksum in the frame `new`, in which all covered bytes have been replaced.
    /// `old` is the original frame.
    pub(super) fn update(&self, old: &[u8], new: &mut [u8]) {
        let field = self.field..self.field + 2;
        let (Some([a, b]), Some(_)) = (old.get(field.clone()), new.get(field.clone())) else {
            return;
        };
        let was = u16::from_be_bytes([*a, *b]);
        if was == 0 && self.optional {
            return;
        }
        // Adding the complement of the checksum field removes the field from the sum.
        let sum = |bytes: &[u8]| {
            let over = bytes.get(self.start..self.end).unwrap_or_default();
            Sum::of_bytes(over).add_word(!was)
        };
        let pseudo =
            |which: fn(&PseudoHeader) -> Sum| self.pseudo.as_ref().map(which).unwrap_or_default();
        let before = sum(old).add(pseudo(|it| it.before));
        let after = sum(new).add(pseudo(|it| it.after));
        let right_before = !before.folded();
        let right_after = !after.folded();
        let partial = self
            .pseudo
            .map(|it| (it.before.folded(), it.after.folded()));
        let is = match partial {
            _ if self.whole && is_same(was, right_before) => right_after,
            // The host left the checksum to its NIC.
            _ if was == 0 => 0,
            Some((partial_before, partial_after)) if was == partial_before => partial_after,
            _ if self.whole => wrong_checksum(right_after),
            _ => !after.add_word(!was).add_word(!before.folded()).folded(),
        };
        let is = if is == 0 && self.optional { 0xffff } else { is };
        new[field].copy_from_slice(&is.to_be_bytes());
    }
}

/// Returns a checksum that differs from the correct one, `right`, for frames whose checksum was
/// wrong before the anonymization.
fn wrong_checksum(right: u16) -> u16 {
    match right ^ 1 {
        0 => 3,
        wrong => wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the checksum that the anonymization writes. The first 4 bytes are the pseudo-header;
    /// the checksum field is at 6..8 of the bytes after it.
    fn updated(old: &[u8], new: &[u8], whole: bool, optional: bool) -> u16 {
        let pseudo = PseudoHeader {
            before: Sum::of_bytes(&old[..4]),
            after: Sum::of_bytes(&new[..4]),
        };
        let checksum = Checksum {
            field: 10,
            start: 4,
            end: old.len(),
            whole,
            pseudo: Some(pseudo),
            optional,
        };
        let mut out = new.to_vec();
        checksum.update(old, &mut out);
        u16::from_be_bytes([out[10], out[11]])
    }

    /// Returns the correct checksum of `bytes`, computed independently.
    fn right(bytes: &[u8]) -> u16 {
        let mut bytes = bytes.to_vec();
        bytes[10..12].fill(0);
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |it| u32::from(*it));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn sums_match_known_values() {
        // The example of RFC 1071 section 3.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::of_bytes(&bytes).folded(), 0xddf2);
        assert_eq!(Sum::of_bytes(&[1]).folded(), 0x100);
        assert_eq!(Sum::default().folded(), 0);
        assert_eq!(
            Sum(u64::MAX >> 8).folded(),
            Sum(0x00ff_ffff_ffff_ffff).folded()
        );
    }

    #[test]
    fn correct_checksums_stay_correct_and_wrong_ones_stay_wrong() {
        let bytes = || prop::collection::vec(any::<u8>(), 12..80);
        proptest!(|(old in bytes(), changes in bytes(), error in 1..0xffffu16, optional in any::<bool>())| {
            let mut old = old;
            let mut new = old.clone();
            for (new, change) in new.iter_mut().zip(&changes) {
                *new ^= change & 0x7f;
            }
            let was = right(&old);
            let was = if was == 0 && optional { 0xffff } else { was };
            for bytes in [&mut old, &mut new] {
                bytes[10..12].copy_from_slice(&was.to_be_bytes());
            }
            let is = updated(&old, &new, true, optional);
            prop_assert!(is_same(is, right(&new)));
            prop_assert!(is != 0 || !optional);

            // Only a part of the covered bytes is in the frame.
            let cut = 12 + (old.len() - 12) / 4 * 2;
            if was != Sum::of_bytes(&old[..4]).folded() {
                let mut same_behind = new.clone();
                same_behind[cut..].copy_from_slice(&old[cut..]);
                let is = updated(&old[..cut], &new[..cut], false, optional);
                prop_assert!(is_same(is, right(&same_behind)) || was == 0);
            }

            let wrong = (u32::from(was) + u32::from(error)) % 0xffff;
            let wrong = wrong as u16;
            for bytes in [&mut old, &mut new] {
                bytes[10..12].copy_from_slice(&wrong.to_be_bytes());
            }
            let is = updated(&old, &new, true, optional);
            prop_assert!(!is_same(is, right(&new)) || wrong == 0 && optional || is == 0
                || is == Sum::of_bytes(&new[..4]).folded(), "{} {}", is, right(&new));
        });
    }

    #[test]
    fn offloaded_checksums_stay_offloaded() {
        let old = [10, 1, 2, 3, 0, 80, 0, 81, 0, 0, 0, 0, 9];
        let new = [77, 8, 9, 3, 0, 80, 0, 81, 0, 0, 0, 0, 9];
        for whole in [true, false] {
            assert_eq!(updated(&old, &new, whole, false), 0);
            let partial = |bytes: [u8; 13]| Sum::of_bytes(&bytes[..4]).folded();
            let mut left = [old, new];
            for bytes in &mut left {
                bytes[10..12].copy_from_slice(&partial(old).to_be_bytes());
            }
            assert_eq!(updated(&left[0], &left[1], whole, true), partial(new));
        }
    }
}
