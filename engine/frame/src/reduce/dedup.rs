//! Telling repetitions, as mirror ports and several taps make them.
//!
//! Frames are the same when all their bytes are, but for those that are ignored ([`Ignored`]): one that was routed in
//! between has another TTL and other MAC addresses. They are compared by a 64-bit hash with a seed that is drawn anew for
//! each run, so that nobody can make a frame that looks like a repetition of another.
//!
//! Memory is bounded: a table of fixed size, four entries to a bucket. Where more different frames than fit arrive
//! within the window, the oldest of a bucket is forgotten, and a repetition of it is kept: too much is kept then, never
//! too little.

use crate::{Headers, numbers::protocol};
use serde::{Deserialize, Serialize};
use std::{
    hash::{BuildHasher, RandomState},
    ops::Range,
};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// Frames per second of one queue for which a table is made: what a core can take.
const RATE: u64 = 10_000_000;
/// Buckets at least and at most: 64 KiB and 16 MiB.
const LEAST: usize = 1 << 10;
const MOST: usize = 1 << 18;

/// Four frames that were kept, by hash, with their times. A cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Bucket {
    /// 0: free.
    hashes: [u64; 4],
    kept: [u64; 4],
}

/// What may differ between a frame and its repetition, in the outermost headers: a word of TOML and of the command line.
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
    /// MAC addresses.
    Mac,
    /// VLAN tags: how many and which.
    Vlan,
    /// TTL or hop limit, and with it the checksum of the IPv4 header.
    Ttl,
    /// Checksums of the IPv4 header, TCP, UDP, ICMP and ICMPv6.
    Checksum,
}

/// All that may differ. Where anything may, padding behind the packet may, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    macs: bool,
    vlans: bool,
    ttl: bool,
    checksums: bool,
}

impl FromIterator<MayDiffer> for Ignored {
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

impl Ignored {
    /// What a frame has in common with its repetitions.
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

    /// Skips what is ignored from the IP header on, in ascending order.
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

/// The frames that were kept within the window.
#[derive(Debug)]
pub struct DedupWindow {
    length_ns: u64,
    ignored: Ignored,
    seed: u64,
    buckets: Box<[Bucket]>,
}

/// Buckets for a window of this length.
fn buckets(length_ns: u64) -> usize {
    let frames = u128::from(length_ns) * u128::from(RATE) / 1_000_000_000;
    usize::try_from(frames / 4)
        .unwrap_or(MOST)
        .clamp(LEAST, MOST)
        .next_power_of_two()
}

/// Bytes of a window of this length in nanoseconds.
#[must_use]
pub fn memory(length_ns: u64) -> u64 {
    (buckets(length_ns) * size_of::<Bucket>()) as u64
}

impl DedupWindow {
    /// A window of so many nanoseconds, for Ethernet frames where anything is ignored.
    #[must_use]
    pub fn new(length_ns: u64, ignored: Ignored) -> Self {
        Self {
            length_ns,
            ignored,
            seed: RandomState::new().hash_one(length_ns),
            buckets: vec![Bucket::default(); buckets(length_ns)].into_boxed_slice(),
        }
    }

    /// Whether a frame of `len` bytes on the wire repeats one that was kept less than the window's length before. If not,
    /// it is noted as kept.
    #[inline]
    pub fn repeats(&mut self, frame: &[u8], len: u32, ns: u64) -> bool {
        // Of a packet that was captured in part its length tells more; a tag is four bytes of it.
        let missing = u64::from(len).saturating_sub(frame.len() as u64);
        let seed = self.seed.wrapping_add(missing);
        let hash = if self.ignored == Ignored::default() {
            xxh3_64_with_seed(frame, seed)
        } else {
            self.ignored.hash(frame, seed)
        };
        // 0 is a free place.
        let hash = hash | 1;
        let mask = self.buckets.len() - 1;
        // Any bits will do.
        let bucket = &mut self.buckets[(hash >> 32) as usize & mask];
        let place = match bucket.hashes.iter().position(|it| *it == hash) {
            Some(place) if ns.saturating_sub(bucket.kept[place]) < self.length_ns => return true,
            Some(place) => place,
            // A free place has the time 0, so it is the oldest.
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
    fn repetitions_within_the_window() {
        let mut window = DedupWindow::new(5 * MS, Ignored::default());
        let mut repeats = |frame: &[u8], ns| {
            let len = u32::try_from(frame.len()).unwrap();
            window.repeats(frame, len, ns)
        };
        let (a, b) = ([1; 60], [2; 60]);
        let start = 1_700_000_000_000 * MS;
        assert!(!repeats(&a, start));
        assert!(!repeats(&b, start));
        assert!(repeats(&a, start));
        assert!(repeats(&a, start + 5 * MS - 1));
        // Counted from the frame that was kept, not from the last repetition: a steady repetition is not silenced.
        assert!(!repeats(&a, start + 5 * MS));
        assert!(repeats(&a, start + 6 * MS));
        // One byte, or one byte more, is another frame.
        assert!(!repeats(&[1; 61], start + 6 * MS));
        assert!(!repeats(&[], start + 6 * MS));
        assert!(repeats(&[], start + 6 * MS));
    }

    #[test]
    fn more_frames_than_fit_are_kept() {
        let mut window = DedupWindow::new(1, Ignored::default());
        assert_eq!(window.buckets.len(), LEAST);
        window.length_ns = u64::MAX;
        let frames = 100_000_u32;
        for i in 1..=frames {
            assert!(!window.repeats(&i.to_be_bytes(), 4, u64::from(i)));
        }
        // The youngest are still known, the oldest are not.
        assert!(window.repeats(&frames.to_be_bytes(), 4, u64::from(frames)));
        let old = (1..=1000_u32).filter(|i| window.repeats(&i.to_be_bytes(), 4, u64::from(frames)));
        assert_eq!(old.count(), 0);
    }

    /// TCP over IPv4 of 100 bytes, with these tags, MAC address, TTL, checksums and end.
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
    fn what_is_ignored_may_differ_and_nothing_else() {
        let original = tcp(&[7], 1, 64, 3, 5);
        let words = [
            MayDiffer::Mac,
            MayDiffer::Vlan,
            MayDiffer::Ttl,
            MayDiffer::Checksum,
        ];
        let of = |it: [bool; 4]| -> Ignored {
            let chosen = words.into_iter().zip(it).filter(|(_, it)| *it);
            chosen.map(|(word, _)| word).collect()
        };
        let all = of([true; 4]);
        let padded = [&original[..], &[0; 4]].concat();
        // What differs, by its place among the words.
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
            assert!(!window.repeats(&original, first, MS));
            window.repeats(frame, len(frame), MS)
        };
        for (what, other) in &cases {
            let too_strict = of([0, 1, 2, 3].map(|it| it != *what));
            let enough = of([0, 1, 2, 3].map(|it| it == *what));
            assert!(!repeats(too_strict, other, 0), "{too_strict:?}");
            assert!(repeats(enough, other, 0), "{enough:?}");
        }
        assert!(repeats(all, &padded, 0), "padding");
        let none = Ignored::default();
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
