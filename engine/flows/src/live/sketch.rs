//! Heavy hitters in bounded memory: the space-saving algorithm (Metwally, Agrawal, El Abbadi 2005),
//! in sets.
//!
//! Space-saving has a fixed number of counters. A key without a counter takes over the smallest
//! one, and inherits its count as the maximum error, so no count is ever too low. Finding the
//! smallest of all counters needs a heap. Here each key belongs to one set of [`WAYS`] counters, as
//! in a CPU cache, so the search compares eight adjacent counters. The guarantees of the paper hold
//! for each set: a key with more than 1/[`WAYS`] of its set's weight is present, and its count is
//! too high by at most that share.

/// Number of counters in each set of the heavy hitter sketch.
const WAYS: usize = 8;
/// Number of sets in the heavy hitter sketch: 1024 counters in total.
const SETS: usize = 128;

/// Heavy hitter: a key of a stream with its counted weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HeavyHitter<K> {
    pub(super) key: K,
    /// Counted weight of the key, never below its true weight.
    pub(super) count: u64,
    /// Maximum part of the key's counted weight that belongs to other keys.
    pub(super) error: u64,
}

/// Sketch of the heaviest keys of a stream, with their counts in bounded memory.
#[derive(Clone, Debug)]
pub(super) struct Sketch<K> {
    sets: Box<[[HeavyHitter<K>; WAYS]]>,
}

impl<K: Copy + Default> Default for Sketch<K> {
    fn default() -> Self {
        Self {
            sets: vec![[HeavyHitter::default(); WAYS]; SETS].into(),
        }
    }
}

impl<K: Copy + Default + Eq> Sketch<K> {
    /// Adds a weight of at least 1 to the key with this hash in the sketch.
    #[inline]
    pub(super) fn add(&mut self, hash: u64, key: &K, weight: u64) {
        // The low bits select the set.
        let set = &mut self.sets[hash as usize % SETS];
        let mut least = 0;
        for i in 0..WAYS {
            if set[i].key == *key && set[i].count > 0 {
                set[i].count += weight;
                return;
            }
            if set[i].count < set[least].count {
                least = i;
            }
        }
        let inherited = set[least].count;
        set[least] = HeavyHitter {
            key: *key,
            count: inherited + weight,
            error: inherited,
        };
    }

    /// Iterates over all counters of the sketch that are in use, in no particular order.
    pub(super) fn counters(&self) -> impl Iterator<Item = &HeavyHitter<K>> {
        self.sets.iter().flatten().filter(|it| it.count > 0)
    }

    pub(super) fn clear(&mut self) {
        self.sets.fill([HeavyHitter::default(); WAYS]);
    }

    /// Copies the sketch `other` without allocating.
    pub(super) fn copy_from(&mut self, other: &Self) {
        self.sets.copy_from_slice(&other.sets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Returns a hash that maps neighbouring keys to few sets of the sketch, so that the sets
    /// overflow.
    fn hash(key: u16) -> u64 {
        u64::from(key) % 3
    }

    proptest! {
        #[test]
        fn counts_are_never_too_low_and_heavy_keys_are_there(
            stream in prop::collection::vec((0_u16..100, 1_u64..2000), 0..3000)
        ) {
            let mut sketch = Sketch::default();
            let (mut exact, mut of_set) = (HashMap::new(), HashMap::new());
            for (key, weight) in stream {
                sketch.add(hash(key), &key, weight);
                *exact.entry(key).or_insert(0_u64) += weight;
                *of_set.entry(hash(key)).or_insert(0_u64) += weight;
            }
            let kept: HashMap<_, _> = sketch.counters().map(|it| (it.key, it)).collect();
            for (key, weight) in exact {
                let share = of_set[&hash(key)] / WAYS as u64;
                match kept.get(&key) {
                    Some(it) => {
                        prop_assert!(it.count >= weight && it.count - it.error <= weight);
                        prop_assert!(it.error <= share);
                    }
                    None => prop_assert!(weight <= share),
                }
            }
        }
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let mut sketch = Sketch::default();
        for round in 0..100_u64 {
            for key in 0..8_u16 {
                sketch.add(0, &key, 1 + round);
            }
            sketch.add(1, &0, 1);
        }
        assert_eq!(sketch.counters().count(), 9);
        assert!(sketch.counters().all(|it| it.error == 0));
        let mut copy = Sketch::default();
        copy.copy_from(&sketch);
        sketch.clear();
        assert_eq!(sketch.counters().count(), 0);
        assert_eq!(copy.counters().count(), 9);
    }
}
