//! Time gaps between neighbouring records: minimum and maximum exactly, the median to one part in 32, in bounded memory.

use serde::Serialize;

/// Slots of an octave.
const SLOTS: u64 = 32;
const OCTAVE_BITS: u32 = SLOTS.trailing_zeros();

/// Counts by size: one slot for each number below [`SLOTS`], then [`SLOTS`] slots for each doubling.
pub(super) struct Gaps {
    slots: Vec<u64>,
    count: u64,
    least: u64,
    most: u64,
}

/// Distances in time, in nanoseconds; `None`: there were none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GapFacts {
    /// How many there were.
    pub count: u64,
    /// The least.
    pub min_ns: Option<u64>,
    /// The median, to three parts in a hundred.
    pub median_ns: Option<u64>,
    /// The most.
    pub max_ns: Option<u64>,
}

impl Gaps {
    pub(super) fn new() -> Self {
        Self {
            slots: vec![0; slot(u64::MAX) + 1],
            count: 0,
            least: u64::MAX,
            most: 0,
        }
    }

    #[inline]
    pub(super) fn add(&mut self, gap: u64) {
        self.slots[slot(gap)] += 1;
        self.count += 1;
        self.least = self.least.min(gap);
        self.most = self.most.max(gap);
    }

    pub(super) fn facts(&self) -> GapFacts {
        let some = |ns| (self.count > 0).then_some(ns);
        let mut below = 0;
        let median = self.slots.iter().position(|n| {
            below += n;
            below * 2 >= self.count
        });
        GapFacts {
            count: self.count,
            min_ns: some(self.least),
            median_ns: some(
                middle(median.unwrap_or(0)).clamp(self.least.min(self.most), self.most),
            ),
            max_ns: some(self.most),
        }
    }
}

#[inline]
fn slot(gap: u64) -> usize {
    if gap < SLOTS {
        return gap as usize;
    }
    let shift = gap.ilog2() - OCTAVE_BITS;
    (u64::from(shift + 1) * SLOTS + (gap >> shift) - SLOTS) as usize
}

/// The middle of a slot.
fn middle(slot: usize) -> u64 {
    let slot = slot as u64;
    if slot < SLOTS {
        return slot;
    }
    let shift = slot / SLOTS - 1;
    let low = (SLOTS + slot % SLOTS) << shift;
    low + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_slot_near_it() {
        let mut last = 0;
        for bits in 0..64 {
            let low = 1u64 << bits;
            for gap in [low, low + low / 3, low + (low - 1)] {
                let at = slot(gap);
                assert!(at >= last, "{gap}");
                last = at;
                assert!(middle(at).abs_diff(gap) <= gap / 32, "{gap}");
            }
        }
        assert_eq!(slot(u64::MAX) + 1, Gaps::new().slots.len());
    }

    #[test]
    fn medians() {
        let mut gaps = Gaps::new();
        assert_eq!(gaps.facts().median_ns, None);
        for gap in [7, 1, 3] {
            gaps.add(gap);
        }
        let facts = gaps.facts();
        assert_eq!(
            (facts.min_ns, facts.median_ns, facts.max_ns),
            (Some(1), Some(3), Some(7))
        );
        let mut one = Gaps::new();
        one.add(1_000_001);
        assert_eq!(one.facts().median_ns, Some(1_000_001));
    }
}
