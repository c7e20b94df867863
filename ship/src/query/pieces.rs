//! What is asked of a store for the wanted ranges of an object, request by request.
//!
//! Ranges that are near each other come by one request, with what is between them; long ones by several. What is fetched for
//! nothing is at most half of what is wanted, but for gaps that are smaller than a request is worth.

use std::ops::Range;

/// Gaps that are always fetched: less than another request takes.
const NEAR: u64 = 16 << 10;
/// Gaps that are never fetched.
const FAR: u64 = 1 << 20;

/// What one request fetches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) span: Range<u64>,
    /// What is wanted of it, in its order.
    pub(super) wanted: Vec<Range<u64>>,
}

/// All requests for an object, in the order of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    pub(super) all: Vec<Piece>,
    /// So many of the first have what is needed to look at the first record.
    pub(super) leads: usize,
}

impl Piece {
    pub(super) fn bytes(&self) -> u64 {
        self.span.end - self.span.start
    }

    fn wanted_bytes(&self) -> u64 {
        self.wanted.iter().map(|it| it.end - it.start).sum()
    }

    /// What is wanted of it in so long parts; what nobody wants at their ends is left out.
    fn cut(self, most: u64) -> impl Iterator<Item = Self> {
        let Self { span, wanted } = self;
        let parts = (0..(span.end - span.start).div_ceil(most)).map(move |n| {
            let start = span.start + n * most;
            start..span.end.min(start + most)
        });
        parts.filter_map(move |part| {
            let within = wanted.iter().map(|it| within(it, &part));
            let within: Vec<_> = within.filter(|it| !it.is_empty()).collect();
            Some(Self {
                span: within.first()?.start..within.last()?.end,
                wanted: within,
            })
        })
    }
}

fn within(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}

impl Pieces {
    /// Of ranges in their order, which do not overlap. About the first `lead` wanted bytes come by themselves, and no request
    /// is for more than `most`.
    pub(super) fn new(ranges: &[Range<u64>], lead: u64, most: u64) -> Self {
        let (first, rest) = split(ranges, lead);
        let cut = |it: Piece| it.cut(most);
        let mut all: Vec<_> = joined(&first).into_iter().flat_map(cut).collect();
        let leads = all.len();
        all.extend(joined(&rest).into_iter().flat_map(cut));
        Self { all, leads }
    }

    /// Bytes that all requests fetch.
    pub(super) fn bytes(&self) -> u64 {
        self.all.iter().map(Piece::bytes).sum()
    }

    /// Bytes of the first ones.
    pub(super) fn lead_bytes(&self) -> u64 {
        self.all[..self.leads].iter().map(Piece::bytes).sum()
    }

    /// Bytes of the ranges.
    pub(super) fn wanted_bytes(&self) -> u64 {
        self.all.iter().map(Piece::wanted_bytes).sum()
    }
}

/// The first `lead` bytes of ranges, and the others; all, if hardly more is left.
fn split(ranges: &[Range<u64>], lead: u64) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
    let all: u64 = ranges.iter().map(|it| it.end - it.start).sum();
    let mut left = if all <= lead * 2 { all } else { lead };
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    for it in ranges {
        let middle = it.start + left.min(it.end - it.start);
        left -= middle - it.start;
        first.extend((it.start < middle).then_some(it.start..middle));
        rest.extend((middle < it.end).then_some(middle..it.end));
    }
    (first, rest)
}

/// Ranges that are worth one request.
fn joined(ranges: &[Range<u64>]) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    for range in ranges {
        if let Some(last) = all.last_mut() {
            let gap = range.start - last.span.end;
            let wanted = last.wanted_bytes();
            let waste = last.bytes() - wanted + gap;
            let wanted = wanted + range.end - range.start;
            if gap <= NEAR || gap <= FAR && waste * 2 <= wanted {
                last.span.end = range.end;
                last.wanted.push(range.clone());
                continue;
            }
        }
        all.push(Piece {
            span: range.clone(),
            wanted: vec![range.clone()],
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    #[test]
    fn neighbours_come_by_one_request_as_far_as_that_is_worth_it() {
        let spans = |ranges: &[(u64, u64)]| {
            let ranges: Vec<_> = ranges.iter().map(|(start, end)| *start..*end).collect();
            let spans = joined(&ranges).into_iter();
            let spans = spans.map(|it| (it.span.start, it.span.end));
            spans.collect::<Vec<_>>()
        };
        let head = (0, 500);
        assert!(spans(&[]).is_empty());
        assert_eq!(spans(&[head, (500, MIB)]), [(0, MIB)]);
        assert_eq!(spans(&[head, (NEAR + 500, MIB)]), [(0, MIB)]);
        let far = [head, (9 * MIB, 10 * MIB)];
        assert_eq!(spans(&far), far);
        // Half of what is wanted, and a byte more.
        assert_eq!(spans(&[(0, MIB), (2 * MIB, 3 * MIB)]), [(0, 3 * MIB)]);
        let more = [(0, MIB), (2 * MIB, 3 * MIB - 1)];
        assert_eq!(spans(&more), more);
        // Never so far.
        let never = [(0, 50 * MIB), (51 * MIB + 1, 99 * MIB)];
        assert_eq!(spans(&never), never);
    }

    #[test]
    fn the_first_bytes_come_by_themselves_and_all_that_is_wanted_comes_once() {
        let ranges = [0..500, 2 * MIB..3 * MIB, 20 * MIB..29 * MIB];
        let it = Pieces::new(&ranges, 16 * KIB, 4 * MIB);
        let spans: Vec<_> = it.all.iter().map(|it| it.span.clone()).collect();
        let lead = 2 * MIB + 16 * KIB - 500;
        assert_eq!(it.leads, 2);
        assert_eq!(
            spans,
            [
                0..500,
                2 * MIB..lead,
                lead..3 * MIB,
                20 * MIB..24 * MIB,
                24 * MIB..28 * MIB,
                28 * MIB..29 * MIB
            ]
        );
        assert_eq!(
            (it.bytes(), it.wanted_bytes()),
            (500 + 10 * MIB, 500 + 10 * MIB)
        );
        assert_eq!(it.lead_bytes(), 16 * KIB);
        // Little is all in the first ones.
        let little = Pieces::new(&[0..500, MIB..MIB + 30 * KIB], 16 * KIB, 4 * MIB);
        assert_eq!((little.all.len(), little.leads), (2, 2));
        // A cut does not fetch what only stood between.
        let cut = Pieces::new(&[0..MIB, MIB + KIB..2 * MIB + 5], KIB, MIB);
        let wanted: Vec<_> = cut.all.iter().flat_map(|it| it.wanted.clone()).collect();
        let total: u64 = wanted.iter().map(|it| it.end - it.start).sum();
        assert_eq!(total, 2 * MIB + 5 - KIB);
        assert!(wanted.is_sorted_by(|a, b| a.end <= b.start), "{wanted:?}");
        assert!(cut.all.iter().all(|it| it.bytes() <= MIB));
    }

    #[test]
    fn what_is_fetched_for_nothing_is_bounded() {
        // Every so manyth block of a megabyte, of half of one, and of a quarter of one.
        for (block, step) in [(MIB, 2), (MIB, 3), (MIB / 2, 2), (MIB / 4, 2), (MIB / 4, 3)] {
            let ranges: Vec<_> = (0..100u64)
                .map(|i| i * step * block..(i * step + 1) * block)
                .collect();
            let it = Pieces::new(&ranges, 16 * KIB, 8 * MIB);
            assert!(it.bytes() * 2 <= it.wanted_bytes() * 3, "{block}, {step}");
        }
    }
}
