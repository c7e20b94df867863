//! Statistics of time gaps between neighbouring records of a merge, in bounded memory. Minimum and
//! maximum are exact; the median has an error of at most 1 %.

use hdrhistogram::Histogram;
use serde::Serialize;

pub(super) struct Gaps {
    all: Histogram<u64>,
    least: u64,
    most: u64,
}

/// Statistics of the time gaps between adjacent records of different streams of a merge; times in
/// nanoseconds are `None` if `count` is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GapFacts {
    /// Number of time gaps between adjacent records of different streams.
    pub count: u64,
    /// Shortest time gap between adjacent records of different streams, in nanoseconds.
    pub min_ns: Option<u64>,
    /// Median of the time gaps between adjacent records of different streams, in nanoseconds, with
    /// an error of at most 1 %.
    pub median_ns: Option<u64>,
    /// Longest time gap between adjacent records of different streams, in nanoseconds.
    pub max_ns: Option<u64>,
}

impl Gaps {
    pub(super) fn new() -> Self {
        Self {
            all: Histogram::new_with_max(u64::MAX, 2).expect("allowed bounds"),
            least: u64::MAX,
            most: 0,
        }
    }

    #[inline]
    pub(super) fn add(&mut self, gap: u64) {
        self.all.saturating_record(gap);
        self.least = self.least.min(gap);
        self.most = self.most.max(gap);
    }

    pub(super) fn facts(&self) -> GapFacts {
        let some = |ns| (!self.all.is_empty()).then_some(ns);
        let median = self.all.value_at_quantile(0.5);
        GapFacts {
            count: self.all.len(),
            min_ns: some(self.least),
            median_ns: some(median.max(self.least).min(self.most)),
            max_ns: some(self.most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for bits in 0..64 {
            let gap = (1u64 << bits) / 3 * 4;
            let mut gaps = Gaps::new();
            for gap in [u64::MAX, gap, 0] {
                gaps.add(gap);
            }
            let facts = gaps.facts();
            assert_eq!((facts.min_ns, facts.max_ns), (Some(0), Some(u64::MAX)));
            let median = facts.median_ns.expect("three");
            assert!(median.abs_diff(gap) <= gap / 100, "{gap}: {median}");
        }
    }
}
