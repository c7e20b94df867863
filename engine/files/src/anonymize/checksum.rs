//! Checksums over what was replaced: the one's complement sum of IPv4, TCP, UDP, ICMP and GRE, RFC 1071.
//!
//! A checksum that was right is right afterwards, also if a part of what it is over is not there: it changes by as much as the
//! bytes do (RFC 1624). One that was wrong stays wrong, and tells nothing of the addresses: if it changed by as much,
//! whoever guesses what it was (0 and the sum of the pseudo-header are what hosts leave to their NIC) would learn the
//! difference between old addresses and new ones. SCTP's CRC-32c is over no address, and nothing of an SCTP packet
//! changes.

/// A one's complement sum, not folded yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum(u64);

impl Sum {
    /// Of bytes that begin at an even offset.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let (pairs, rest) = bytes.as_chunks::<2>();
        let sum: u64 = pairs
            .iter()
            .map(|it| u64::from(u16::from_be_bytes(*it)))
            .sum();
        let last = rest.first().map_or(0, |it| u64::from(*it) << 8);
        Self(sum + last)
    }

    /// Of a number, as its 16-bit words.
    pub(super) fn of_number(number: usize) -> Self {
        Self(number as u64)
    }

    /// Whether this is the sum of a header whose checksum is right.
    pub(super) fn is_complete(self) -> bool {
        self.folded() == 0xffff
    }

    pub(super) fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    fn add_word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word))
    }

    fn folded(self) -> u16 {
        let mut sum = self.0;
        while let (low, high @ 1..) = (sum & 0xffff, sum >> 16) {
            sum = low + high;
        }
        sum as u16
    }
}

/// Whether two sums are the same: there are two zeros.
fn is_same(one: u16, other: u16) -> bool {
    one % 0xffff == other % 0xffff
}

/// The parts of a pseudo-header that are not addresses, and the sums of addresses before and after.
#[derive(Clone, Copy, Debug)]
pub(super) struct PseudoHeader {
    pub(super) before: Sum,
    pub(super) after: Sum,
}

/// A checksum to be mended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checksum {
    /// Where it stands.
    pub(super) field: usize,
    /// What it is over, as far as that is there.
    pub(super) start: usize,
    pub(super) end: usize,
    /// All of that is there.
    pub(super) whole: bool,
    pub(super) pseudo: Option<PseudoHeader>,
    /// 0 says that there is no checksum: UDP.
    pub(super) optional: bool,
}

impl Checksum {
    /// Mends it in `new`, where everything that it is over has been replaced.
    pub(super) fn mend(&self, old: &[u8], new: &mut [u8]) {
        let field = self.field..self.field + 2;
        let (Some([a, b]), Some(_)) = (old.get(field.clone()), new.get(field.clone())) else {
            return;
        };
        let was = u16::from_be_bytes([*a, *b]);
        if was == 0 && self.optional {
            return;
        }
        // A word of zeros is as good as none, so a field that is taken out is a word that is added.
        let sum = |bytes: &[u8]| {
            let over = bytes.get(self.start..self.end).unwrap_or_default();
            Sum::of(over).add_word(!was)
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
            // Left to the NIC.
            _ if was == 0 => 0,
            Some((partial_before, partial_after)) if was == partial_before => partial_after,
            _ if self.whole => another(right_after),
            _ => !after.add_word(!was).add_word(!before.folded()).folded(),
        };
        let is = if is == 0 && self.optional { 0xffff } else { is };
        new[field].copy_from_slice(&is.to_be_bytes());
    }
}

/// A checksum that is wrong.
fn another(right: u16) -> u16 {
    match right ^ 1 {
        0 => 3,
        wrong => wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The field is at 6..8 of what the sum is over, 4 bytes of a pseudo-header in front.
    fn mended(old: &[u8], new: &[u8], whole: bool, optional: bool) -> u16 {
        let pseudo = PseudoHeader {
            before: Sum::of(&old[..4]),
            after: Sum::of(&new[..4]),
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
        checksum.mend(old, &mut out);
        u16::from_be_bytes([out[10], out[11]])
    }

    /// The straightforward way.
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
    fn known_sums() {
        // The example of RFC 1071 section 3.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::of(&bytes).folded(), 0xddf2);
        assert_eq!(Sum::of(&[1]).folded(), 0x100);
        assert_eq!(Sum::default().folded(), 0);
        assert_eq!(
            Sum(u64::MAX >> 8).folded(),
            Sum(0x00ff_ffff_ffff_ffff).folded()
        );
    }

    #[test]
    fn right_stays_right_and_wrong_stays_wrong() {
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
            let is = mended(&old, &new, true, optional);
            prop_assert!(is_same(is, right(&new)));
            prop_assert!(is != 0 || !optional);

            // As if more were behind it.
            let cut = 12 + (old.len() - 12) / 4 * 2;
            if was != Sum::of(&old[..4]).folded() {
                let mut same_behind = new.clone();
                same_behind[cut..].copy_from_slice(&old[cut..]);
                let is = mended(&old[..cut], &new[..cut], false, optional);
                prop_assert!(is_same(is, right(&same_behind)) || was == 0);
            }

            let wrong = (u32::from(was) + u32::from(error)) % 0xffff;
            let wrong = wrong as u16;
            for bytes in [&mut old, &mut new] {
                bytes[10..12].copy_from_slice(&wrong.to_be_bytes());
            }
            let is = mended(&old, &new, true, optional);
            prop_assert!(!is_same(is, right(&new)) || wrong == 0 && optional || is == 0
                || is == Sum::of(&new[..4]).folded(), "{} {}", is, right(&new));
        });
    }

    #[test]
    fn what_a_host_left_to_its_nic_stays_so() {
        let old = [10, 1, 2, 3, 0, 80, 0, 81, 0, 0, 0, 0, 9];
        let new = [77, 8, 9, 3, 0, 80, 0, 81, 0, 0, 0, 0, 9];
        for whole in [true, false] {
            assert_eq!(mended(&old, &new, whole, false), 0);
            let partial = |bytes: [u8; 13]| Sum::of(&bytes[..4]).folded();
            let mut left = [old, new];
            for bytes in &mut left {
                bytes[10..12].copy_from_slice(&partial(old).to_be_bytes());
            }
            assert_eq!(mended(&left[0], &left[1], whole, true), partial(new));
        }
    }
}
