//! Requests for the wanted ranges of an object.
//!
//! Ranges that are near each other are fetched by one request, with the gap between them; long
//! ranges are fetched by several. Unwanted bytes are at most half of the wanted ones, not counting
//! gaps that cost less than a request.

use std::ops::Range;

/// Maximum gap in bytes between wanted ranges of an object that is always fetched with them: it
/// costs less than another request.
const NEAR: u64 = 16 << 10;
/// Maximum gap in bytes between wanted ranges of an object that one request may fetch.
const FAR: u64 = 1 << 20;

/// Byte range of a stored object that one request to the store fetches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) span: Range<u64>,
    /// Wanted ranges of the object in the span of the request, in ascending order.
    pub(super) wanted: Vec<Range<u64>>,
}

/// Requests for the wanted ranges of a stored object, in the order of its bytes. They are made one
/// after the other: a table may state any length of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    /// Leading requests, which are enough to read the object's first packet record.
    pub(super) leads: Vec<Piece>,
    /// Joined ranges after the leading requests, of any length.
    rest: Vec<Piece>,
}

/// Position in the requests after the leading ones of a stored object.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PieceCursor {
    /// Index of the joined range from which the next request is cut.
    index: usize,
    /// Offset in the object before which all requests have been made.
    offset: u64,
}

impl Piece {
    pub(super) fn bytes(&self) -> u64 {
        self.span.end - self.span.start
    }

    fn wanted_bytes(&self) -> u64 {
        sum(self.wanted.iter().map(|it| it.end - it.start))
    }
}

impl PieceCursor {
    /// Cuts the next request of at most `most` bytes from joined ranges. Unwanted bytes at its ends
    /// are left out. Returns `None` after the last one.
    fn next(&mut self, joined: &[Piece], most: u64) -> Option<Piece> {
        loop {
            let from = joined.get(self.index)?;
            let first = from.wanted.partition_point(|it| it.end <= self.offset);
            let Some(next) = from.wanted.get(first) else {
                self.index += 1;
                continue;
            };
            let start = next.start.max(self.offset);
            let part = start..start.saturating_add(most).min(from.span.end);
            self.offset = part.end;
            let wanted = from.wanted[first..].iter();
            let wanted = wanted.take_while(|it| it.start < part.end);
            let wanted: Vec<_> = wanted.map(|it| within(it, &part)).collect();
            return Some(Piece {
                span: start..wanted.last()?.end,
                wanted,
            });
        }
    }
}

fn within(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}

impl Pieces {
    /// Makes the requests for ascending ranges of an object that do not overlap. About the first
    /// `lead` wanted bytes get separate requests of at most `most` bytes.
    pub(super) fn new(ranges: &[Range<u64>], lead: u64, most: u64) -> Self {
        let (first, rest) = split(ranges, lead);
        let (first, mut cursor) = (joined(&first), PieceCursor::default());
        Self {
            leads: std::iter::from_fn(|| cursor.next(&first, most)).collect(),
            rest: joined(&rest),
        }
    }

    /// Returns the next request of at most `most` bytes after the leading ones; `None`: there are no
    /// more.
    pub(super) fn next(&self, cursor: &mut PieceCursor, most: u64) -> Option<Piece> {
        cursor.next(&self.rest, most)
    }

    /// Returns the number of bytes that all requests for the stored object fetch, with the gaps
    /// between them that are not fetched.
    pub(super) fn bytes(&self) -> u64 {
        sum(self.leads.iter().chain(&self.rest).map(Piece::bytes))
    }

    /// Returns the number of bytes that the stored object's leading requests fetch.
    pub(super) fn lead_bytes(&self) -> u64 {
        sum(self.leads.iter().map(Piece::bytes))
    }

    /// Returns the number of wanted bytes of the stored object, without fetched gaps.
    pub(super) fn wanted_bytes(&self) -> u64 {
        sum(self.leads.iter().chain(&self.rest).map(Piece::wanted_bytes))
    }
}

/// Returns the sum of lengths that a store states.
pub(super) fn sum(lengths: impl Iterator<Item = u64>) -> u64 {
    lengths.fold(0, u64::saturating_add)
}

/// Splits an object's wanted ranges after the first `lead` bytes. All ranges are in the first half
/// if their total is at most twice `lead`.
fn split(ranges: &[Range<u64>], lead: u64) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
    let all = sum(ranges.iter().map(|it| it.end - it.start));
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

/// Joins those wanted ranges of an object that one request fetches.
fn joined(ranges: &[Range<u64>]) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    // Wanted bytes of the last request; a sum over its ranges for each range takes minutes for a
    // table with a million of them.
    let mut wanted = 0;
    for range in ranges {
        let bytes = range.end - range.start;
        if let Some(last) = all.last_mut() {
            let gap = range.start - last.span.end;
            let waste = last.bytes() - wanted + gap;
            if gap <= NEAR || gap <= FAR && waste <= (wanted + bytes) / 2 {
                last.span.end = range.end;
                last.wanted.push(range.clone());
                wanted += bytes;
                continue;
            }
        }
        wanted = bytes;
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
    fn a_million_ranges_are_joined_at_once() {
        let ranges: Vec<_> = (0..1_000_000).map(|n| 2 * n..2 * n + 1).collect();
        let begun = std::time::Instant::now();
        let it = Pieces::new(&ranges, 16 * KIB, 8 * MIB);
        assert_eq!(it.wanted_bytes(), 1_000_000);
        assert_eq!(it.rest.len(), 1);
        // A sum for each range takes minutes.
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }

    /// Returns all requests of an object, each of at most `most` bytes.
    fn all(pieces: &Pieces, most: u64) -> Vec<Piece> {
        let (mut all, mut cursor) = (pieces.leads.clone(), PieceCursor::default());
        all.extend(std::iter::from_fn(|| pieces.next(&mut cursor, most)));
        all
    }

    #[test]
    fn a_stated_length_needs_no_memory() {
        let long = 1 << 62;
        for ranges in [vec![0..500, 500..long], vec![0..long, long..2 * long]] {
            let it = Pieces::new(&ranges, 16 * KIB, 256 * KIB);
            let mut cursor = PieceCursor::default();
            let first = it.next(&mut cursor, 256 * KIB).expect("a request");
            let second = it.next(&mut cursor, 256 * KIB).expect("another request");
            assert_eq!((first.bytes(), second.bytes()), (256 * KIB, 256 * KIB));
            assert_eq!(first.span.end, second.span.start);
            assert_eq!(it.wanted_bytes(), ranges.last().map_or(0, |it| it.end));
        }
    }

    #[test]
    fn near_ranges_are_fetched_by_one_request() {
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
        // Half of the wanted bytes, and one byte more.
        assert_eq!(spans(&[(0, MIB), (2 * MIB, 3 * MIB)]), [(0, 3 * MIB)]);
        let more = [(0, MIB), (2 * MIB, 3 * MIB - 1)];
        assert_eq!(spans(&more), more);
        // A gap above the limit is never fetched.
        let never = [(0, 50 * MIB), (51 * MIB + 1, 99 * MIB)];
        assert_eq!(spans(&never), never);
    }

    #[test]
    fn the_first_bytes_are_separate_and_each_wanted_byte_is_fetched_once() {
        let ranges = [0..500, 2 * MIB..3 * MIB, 20 * MIB..29 * MIB];
        let it = Pieces::new(&ranges, 16 * KIB, 4 * MIB);
        let spans: Vec<_> = all(&it, 4 * MIB).into_iter().map(|it| it.span).collect();
        let lead = 2 * MIB + 16 * KIB - 500;
        assert_eq!(it.leads.len(), 2);
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
        // A short object is fetched by the leading requests.
        let little = Pieces::new(&[0..500, MIB..MIB + 30 * KIB], 16 * KIB, 4 * MIB);
        assert_eq!((all(&little, 4 * MIB).len(), little.leads.len()), (2, 2));
        // Gaps at the ends of a piece are not fetched.
        let cut = Pieces::new(&[0..MIB, MIB + KIB..2 * MIB + 5], KIB, MIB);
        let cut = all(&cut, MIB);
        let wanted: Vec<_> = cut.iter().flat_map(|it| it.wanted.clone()).collect();
        let total: u64 = wanted.iter().map(|it| it.end - it.start).sum();
        assert_eq!(total, 2 * MIB + 5 - KIB);
        assert!(wanted.is_sorted_by(|a, b| a.end <= b.start), "{wanted:?}");
        assert!(cut.iter().all(|it| it.bytes() <= MIB));
    }

    #[test]
    fn unwanted_bytes_are_bounded() {
        // Every Nth block of 1 MiB, of 512 KiB, and of 256 KiB.
        for (block, step) in [(MIB, 2), (MIB, 3), (MIB / 2, 2), (MIB / 4, 2), (MIB / 4, 3)] {
            let ranges: Vec<_> = (0..100u64)
                .map(|i| i * step * block..(i * step + 1) * block)
                .collect();
            let it = Pieces::new(&ranges, 16 * KIB, 8 * MIB);
            assert!(it.bytes() * 2 <= it.wanted_bytes() * 3, "{block}, {step}");
        }
    }
}
