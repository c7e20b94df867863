//! Detection of duplicate frames, which mirror ports and multiple taps produce.
//!
//! Two frames are duplicates if all their bytes are equal, except for ignored fields
//! ([`IgnoredFields`]): a frame that was routed between two taps has another TTL and other MAC
//! addresses. Frames are compared by a 64-bit hash. Its seed is random for each run, so a sender
//! cannot forge a frame that looks like a duplicate of another.
//!
//! Memory is bounded: a table of fixed size with four entries per bucket. If more distinct frames
//! than fit arrive within the window, the oldest entry of a bucket is replaced, and later
//! duplicates of that frame are kept. An overfull table therefore keeps too many frames, never too
//! few.

use crate::{Headers, numbers::protocol};
use serde::{Deserialize, Serialize};
use std::{
    hash::{BuildHasher, RandomState},
    ops::Range,
};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// Frames per second of one queue for which a deduplication table is sized: the maximum rate of a
/// core.
const RATE: u64 = 10_000_000;
/// Minimum number of buckets of a deduplication table: 64 KiB.
const LEAST: usize = 1 << 10;
/// Maximum number of buckets of a deduplication table: 16 MiB.
const MOST: usize = 1 << 18;

/// Bucket of the deduplication table in one cache line: hashes and times of four frames that were
/// kept.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Bucket {
    /// Hashes of the frames in a bucket that were kept; 0 for a free entry.
    hashes: [u64; 4],
    /// Times at which the bucket's frames were kept, in nanoseconds since 1970.
    kept: [u64; 4],
}

/// Field of the outermost headers that may differ between duplicates; its lowercase name is a value
/// in TOML and on the command line.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    strum::EnumString,
    strum::Display,
    strum::VariantNames,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum MayDiffer {
    /// MAC addresses, which may differ between duplicates.
    Mac,
    /// Number and values of VLAN tags, which may differ between duplicates.
    Vlan,
    /// TTL or hop limit, and the checksum of the IPv4 header, which may differ between duplicates.
    Ttl,
    /// Checksums of the IPv4 header, TCP, UDP, ICMP and ICMPv6, which may differ between
    /// duplicates.
    Checksum,
}

/// Set of fields that deduplication ignores when it compares frames. If any field is ignored,
/// padding after the packet is ignored too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IgnoredFields {
    macs: bool,
    vlans: bool,
    ttl: bool,
    checksums: bool,
}

impl FromIterator<MayDiffer> for IgnoredFields {
    fn from_iter<I: IntoIterator<Item = MayDiffer>>(words: I) -> Self {
        let mut ignored = Self::default();
        for word in words {
            *match word {
                MayDiffer::Mac => &mut ignored.macs,
                MayDiffer::Vlan => &mut ignored.vlans,
                MayDiffer::Ttl => &mut ignored.ttl,
                MayDiffer::Checksum => &mut ignored.checksums,
            } = true;
        }
        ignored
    }
}

impl IgnoredFields {
    /// Returns the hash of a frame's bytes without the fields that deduplication ignores.
    #[must_use]
    fn hash(self, frame: &[u8], seed: u64) -> u64 {
        let headers = Headers::parse(frame);
        let end = headers.end().min(frame.len());
        let tags = 4 * usize::from(headers.tags.count);
        let mut hash = Xxh3::with_seed(seed);
        let mut from = 0;
        let mut skip = |hole: Range<usize>| {
            hash.update(frame.get(from..hole.start.min(end)).unwrap_or_default());
            from = hole.end;
        };
        if self.macs {
            skip(0..12);
        }
        if self.vlans {
            skip(12..12 + tags);
        }
        if let Some(ip) = headers.l3() {
            self.skip_ip(&headers, ip, &mut skip);
        }
        skip(end..end);
        hash.digest()
    }

    /// Passes the byte ranges of the IP and transport fields that deduplication ignores to `skip`,
    /// in ascending order.
    fn skip_ip(self, headers: &Headers, ip: usize, skip: &mut impl FnMut(Range<usize>)) {
        let four = headers.tuple.version == 4;
        if self.ttl {
            let at = ip + if four { 8 } else { 7 };
            skip(at..at + 1);
        }
        if four && (self.ttl || self.checksums) {
            skip(ip + 10..ip + 12);
        }
        let checksum = match headers.tuple.protocol {
            protocol::TCP => 16,
            protocol::UDP => 6,
            protocol::ICMP | protocol::ICMPV6 => 2,
            _ => return,
        };
        if let Some(at) = headers.l4()
            && self.checksums
            && !headers.fragment.is_later()
        {
            skip(at + checksum..at + checksum + 2);
        }
    }
}

/// Table of the frames kept within the deduplication window, the time in which repetitions are
/// detected.
#[derive(Debug)]
pub struct DedupWindow {
    /// Length in nanoseconds of the time within which duplicates are detected.
    length_ns: u64,
    /// Fields that deduplication does not compare.
    ignored: IgnoredFields,
    /// Random seed of the hash by which frames are compared.
    seed: u64,
    /// Hash table of kept frames; its length is a power of two.
    buckets: Box<[Bucket]>,
}

/// Returns the number of buckets for a deduplication window of `length_ns` nanoseconds.
fn buckets(length_ns: u64) -> usize {
    let frames = u128::from(length_ns) * u128::from(RATE) / 1_000_000_000;
    usize::try_from(frames / 4)
        .unwrap_or(MOST)
        .clamp(LEAST, MOST)
        .next_power_of_two()
}

/// Returns the memory in bytes of the table for a deduplication window of `length_ns` nanoseconds.
#[must_use]
pub fn memory(length_ns: u64) -> u64 {
    (buckets(length_ns) * size_of::<Bucket>()) as u64
}

impl DedupWindow {
    /// Creates a deduplication window of `length_ns` nanoseconds. If `ignored` is not empty, frames
    /// must be Ethernet frames.
    #[must_use]
    pub fn new(length_ns: u64, ignored: IgnoredFields) -> Self {
        Self {
            length_ns,
            ignored,
            seed: RandomState::new().hash_one(length_ns),
            buckets: vec![Bucket::default(); buckets(length_ns)].into_boxed_slice(),
        }
    }

    /// Returns `true` if a frame with `len` bytes on the wire duplicates a frame that was kept
    /// within the window before `ns`. Otherwise records the frame as kept.
    #[inline]
    pub fn check_and_record(&mut self, frame: &[u8], len: u32, ns: u64) -> bool {
        // The number of bytes that were not captured is part of the comparison. The full length is
        // not, because an ignored tag adds 4 bytes to it.
        let missing = u64::from(len).saturating_sub(frame.len() as u64);
        let seed = self.seed.wrapping_add(missing);
        let hash = if self.ignored == IgnoredFields::default() {
            xxh3_64_with_seed(frame, seed)
        } else {
            self.ignored.hash(frame, seed)
        };
        // 0 marks a free entry.
        let hash = hash | 1;
        let mask = self.buckets.len() - 1;
        // All bits of the hash are equally random.
        let bucket = &mut self.buckets[(hash >> 32) as usize & mask];
        let place = match bucket.hashes.iter().position(|it| *it == hash) {
            Some(place) if ns.saturating_sub(bucket.kept[place]) < self.length_ns => return true,
            Some(place) => place,
            // A free entry has time 0, so it is the oldest.
            None => (1..4).fold(0, |oldest, i| {
                if bucket.kept[i] < bucket.kept[oldest] {
                    i
                } else {
                    oldest
                }
            }),
        };
        (bucket.hashes[place], bucket.kept[place]) = (hash, ns);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn duplicates_within_the_window_are_detected() {
        let mut window = DedupWindow::new(5 * MS, IgnoredFields::default());
        let mut repeats = |frame: &[u8], ns| {
            let len = u32::try_from(frame.len()).unwrap();
            window.check_and_record(frame, len, ns)
        };
        let (a, b) = ([1; 60], [2; 60]);
        let start = 1_700_000_000_000 * MS;
        assert!(!repeats(&a, start));
        assert!(!repeats(&b, start));
        assert!(repeats(&a, start));
        assert!(repeats(&a, start + 5 * MS - 1));
        // The window starts at the kept frame, not at the last duplicate, so a frame that is sent
        // periodically is kept once per window.
        assert!(!repeats(&a, start + 5 * MS));
        assert!(repeats(&a, start + 6 * MS));
        // A frame with one more byte is another frame.
        assert!(!repeats(&[1; 61], start + 6 * MS));
        assert!(!repeats(&[], start + 6 * MS));
        assert!(repeats(&[], start + 6 * MS));
    }

    #[test]
    fn frames_beyond_the_table_size_are_kept() {
        let mut window = DedupWindow::new(1, IgnoredFields::default());
        assert_eq!(window.buckets.len(), LEAST);
        window.length_ns = u64::MAX;
        let frames = 100_000_u32;
        for i in 1..=frames {
            assert!(!window.check_and_record(&i.to_be_bytes(), 4, u64::from(i)));
        }
        // The newest frames are in the table, the oldest are not.
        assert!(window.check_and_record(&frames.to_be_bytes(), 4, u64::from(frames)));
        let old = (1..=1000_u32)
            .filter(|i| window.check_and_record(&i.to_be_bytes(), 4, u64::from(frames)));
        assert_eq!(old.count(), 0);
    }

    /// Builds a TCP/IPv4 frame of 100 bytes plus tags, with the given tags, MAC address byte, TTL,
    /// checksum byte and last byte.
    fn tcp(tags: &[u16], mac: u8, ttl: u8, checksum: u8, last: u8) -> Vec<u8> {
        let mut frame = vec![mac; 12];
        for tag in tags {
            frame.extend([0x81, 0, 0, tag.to_be_bytes()[1]]);
        }
        frame.extend([8, 0, 0x45, 0, 0, 86, 0, 7, 0, 0, ttl, 6, checksum, 1]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 1, 2, 0, 0, 0, 1]);
        frame.extend([0, 0, 0, 1, 0x50, 0x10, 1, 0, checksum, 2, 0, 0]);
        frame.resize(99 + 4 * tags.len(), 5);
        frame.push(last);
        frame
    }

    #[test]
    fn only_ignored_fields_may_differ() {
        let original = tcp(&[7], 1, 64, 3, 5);
        let words = [
            MayDiffer::Mac,
            MayDiffer::Vlan,
            MayDiffer::Ttl,
            MayDiffer::Checksum,
        ];
        let ignoring = |it: [bool; 4]| -> IgnoredFields {
            let chosen = words.into_iter().zip(it).filter(|(_, it)| *it);
            chosen.map(|(word, _)| word).collect()
        };
        let all = ignoring([true; 4]);
        let padded = [&original[..], &[0; 4]].concat();
        // Index of the differing field in `words`, and the frame that differs in it.
        let cases = [
            (0, tcp(&[7], 2, 64, 3, 5)),
            (1, tcp(&[8], 1, 64, 3, 5)),
            (1, tcp(&[], 1, 64, 3, 5)),
            (2, tcp(&[7], 1, 63, 3, 5)),
            (3, tcp(&[7], 1, 64, 4, 5)),
        ];
        let repeats = |ignored, frame: &[u8], missing: usize| {
            let mut window = DedupWindow::new(5 * MS, ignored);
            let len = |it: &[u8]| u32::try_from(it.len() + missing).unwrap();
            let first = u32::try_from(original.len()).unwrap();
            assert!(!window.check_and_record(&original, first, MS));
            window.check_and_record(frame, len(frame), MS)
        };
        for (what, other) in &cases {
            let too_strict = ignoring([0, 1, 2, 3].map(|it| it != *what));
            let enough = ignoring([0, 1, 2, 3].map(|it| it == *what));
            assert!(!repeats(too_strict, other, 0), "{too_strict:?}");
            assert!(repeats(enough, other, 0), "{enough:?}");
        }
        assert!(repeats(all, &padded, 0), "padding");
        let none = IgnoredFields::default();
        assert!(!repeats(none, &padded, 0), "padding, with nothing ignored");
        assert!(!repeats(all, &tcp(&[7], 1, 64, 3, 6), 0), "its last byte");
        assert!(!repeats(all, &original, 1), "a byte more on the wire");
        for short in 0..original.len() {
            assert!(!repeats(all, &original[..short], 0), "{short} bytes");
        }
    }

    #[test]
    fn memory_is_bounded() {
        assert_eq!(memory(1), 64 << 10);
        assert_eq!(memory(5 * MS), 1 << 20);
        assert_eq!(memory(u64::MAX), 16 << 20);
    }
}
