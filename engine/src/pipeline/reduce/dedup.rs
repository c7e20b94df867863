//! Leaving out repetitions, as mirror ports make them.
//!
//! Frames are the same when all their bytes are: one that was routed in between has another TTL and other MAC
//! addresses, and is another frame. They are compared by a 64-bit hash with a seed that is drawn anew for each run, so
//! that nobody can make a frame that looks like a repetition of another.
//!
//! Memory is bounded: a table of fixed size, four entries to a bucket. Where more different frames than fit arrive
//! within the window, the oldest of a bucket is forgotten, and a repetition of it is kept: too much is kept then, never
//! too little.

use std::hash::{BuildHasher, RandomState};
use xxhash_rust::xxh3::xxh3_64_with_seed;

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

/// The frames of one queue that were kept within the window.
#[derive(Debug)]
pub(super) struct DedupWindow {
    length_ns: u64,
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

/// Bytes of a window of this length, for each queue.
pub(crate) fn memory(length_ns: u64) -> u64 {
    (buckets(length_ns) * size_of::<Bucket>()) as u64
}

impl DedupWindow {
    pub(super) fn new(length_ns: u64) -> Self {
        Self {
            length_ns,
            seed: RandomState::new().hash_one(length_ns),
            buckets: vec![Bucket::default(); buckets(length_ns)].into_boxed_slice(),
        }
    }

    /// Whether a frame repeats one that was kept less than the window's length before. If not, it is noted as kept.
    #[inline]
    pub(super) fn repeats(&mut self, frame: &[u8], ns: u64) -> bool {
        let hash = xxh3_64_with_seed(frame, self.seed) | 1;
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
        let mut window = DedupWindow::new(5 * MS);
        let (a, b) = ([1; 60], [2; 60]);
        let start = 1_700_000_000_000 * MS;
        assert!(!window.repeats(&a, start));
        assert!(!window.repeats(&b, start));
        assert!(window.repeats(&a, start));
        assert!(window.repeats(&a, start + 5 * MS - 1));
        // Counted from the frame that was kept, not from the last repetition: a steady repetition is not silenced.
        assert!(!window.repeats(&a, start + 5 * MS));
        assert!(window.repeats(&a, start + 6 * MS));
        // One byte, or one byte more, is another frame.
        assert!(!window.repeats(&[1; 61], start + 6 * MS));
        assert!(!window.repeats(&[], start + 6 * MS));
        assert!(window.repeats(&[], start + 6 * MS));
    }

    #[test]
    fn more_frames_than_fit_are_kept() {
        let mut window = DedupWindow::new(1);
        assert_eq!(window.buckets.len(), LEAST);
        window.length_ns = u64::MAX;
        let frames = 100_000_u32;
        for i in 1..=frames {
            assert!(!window.repeats(&i.to_be_bytes(), u64::from(i)));
        }
        // The youngest are still known, the oldest are not.
        assert!(window.repeats(&frames.to_be_bytes(), u64::from(frames)));
        let old = (1..=1000_u32).filter(|i| window.repeats(&i.to_be_bytes(), u64::from(frames)));
        assert_eq!(old.count(), 0);
    }

    #[test]
    fn memory_is_bounded() {
        assert_eq!(memory(1), 64 << 10);
        assert_eq!(memory(5 * MS), 1 << 20);
        assert_eq!(memory(u64::MAX), 16 << 20);
    }
}
