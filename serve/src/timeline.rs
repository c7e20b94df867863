//! Timeline of the stored frames by interval, computed from the facts of the capture files, never
//! from packets.

use crate::{query::digits::digits, sensor::PinRow, store::StoreView};
use serde::Serialize;
use std::{collections::HashSet, ops::Range};
use utoipa::ToSchema;
use wqcap_files::index::IndexPart;

/// Minimum time in nanoseconds without a stored frame that counts as a gap.
const SHORTEST_GAP_NS: u64 = 2_000_000_000;
/// Maximum number of gaps, and of marks, in a timeline.
const MOST: usize = 1000;

/// Stored frames and bytes by interval. Times are decimal digits: nanoseconds since 1970.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Timeline {
    /// Start of the first interval.
    #[serde(serialize_with = "digits")]
    #[schema(value_type = String)]
    pub from_ns: u64,
    /// End of the last interval.
    #[serde(serialize_with = "digits")]
    #[schema(value_type = String)]
    pub to_ns: u64,
    /// Duration of an interval in nanoseconds.
    #[serde(serialize_with = "digits")]
    #[schema(value_type = String)]
    pub step_ns: u64,
    /// Intervals, in order.
    pub buckets: Vec<TimelineInterval>,
    /// Times without stored frames.
    pub gaps: Vec<Gap>,
    /// Marks of operators.
    pub marks: Vec<TimelineMark>,
    /// Pins that hold files.
    pub pins: Vec<PinRow>,
    /// Number of finished files.
    pub files: u64,
    /// Number of finished files without an index: their frames are not counted, and their bytes are
    /// spread evenly from the first frame to the last write.
    pub unindexed_files: u64,
    /// Notes for people.
    pub notes: Vec<String>,
}

/// Stored frames and bytes of one interval. A part of a file that reaches over several intervals is
/// spread evenly over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct TimelineInterval {
    /// Frames in finished, indexed files.
    pub frames: u64,
    /// Bytes of finished files.
    pub bytes: u64,
    /// Frames that the capture lost, as the files state.
    pub lost: u64,
}

/// Time without stored frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Gap {
    /// Start of the gap.
    #[serde(serialize_with = "digits")]
    #[schema(value_type = String)]
    pub from_ns: u64,
    /// End of the gap.
    #[serde(serialize_with = "digits")]
    #[schema(value_type = String)]
    pub to_ns: u64,
}

/// Mark that an operator set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct TimelineMark {
    /// Time of the frame with the mark; of the earliest one, if several queues have the mark.
    #[serde(serialize_with = "digits")]
    #[schema(value_type = String)]
    pub ns: u64,
    /// ID and text of the mark.
    pub text: String,
}

/// Computes the timeline of the time range `times` in `count` intervals, from the facts of the
/// capture files.
pub fn timeline(view: &StoreView, times: Range<u64>, count: u64, pins: Vec<PinRow>) -> Timeline {
    let length = times.end.saturating_sub(times.start).max(1);
    let step_ns = length.div_ceil(count.max(1));
    let mut it = Timeline {
        from_ns: times.start,
        to_ns: times.start.saturating_add(step_ns.saturating_mul(count)),
        step_ns,
        buckets: vec![TimelineInterval::default(); usize::try_from(count).unwrap_or(0)],
        pins,
        files: view.finished.len() as u64,
        ..Timeline::default()
    };
    let mut spans = Vec::new();
    for facts in view.facts() {
        for part in &facts.parts {
            spans.push(part.first_ns..part.last_ns);
            it.spread(part);
        }
        let marks = facts.marks.iter().filter(|(ns, _)| times.contains(ns));
        it.marks.extend(marks.map(|(ns, text)| TimelineMark {
            ns: *ns,
            text: text.clone(),
        }));
    }
    let indexed = view.facts().filter(|facts| facts.is_indexed).count() as u64;
    it.unindexed_files = it.files - indexed;
    it.marks.sort_by_key(|mark| mark.ns);
    // Each queue has the mark in its own file.
    let mut known = HashSet::new();
    it.marks.retain(|mark| known.insert(mark.text.clone()));
    it.gaps = gaps(spans, &times, SHORTEST_GAP_NS.max(step_ns));
    for (what, is_long) in [
        ("marks", it.marks.len() > MOST),
        ("gaps", it.gaps.len() > MOST),
    ] {
        if is_long {
            it.notes.push(format!(
                "the answer lists only the first {MOST} {what}, which is the limit"
            ));
        }
    }
    it.marks.truncate(MOST);
    it.gaps.truncate(MOST);
    it.notes.extend(view.losses.iter().cloned());
    if it.unindexed_files > 0 {
        it.notes.push(format!(
            "{} files have no index (output.index_dir): their frames and losses are not counted",
            it.unindexed_files
        ));
    }
    it
}

impl Timeline {
    /// Adds the frames and bytes of a file's part to the intervals of the timeline that it
    /// overlaps.
    fn spread(&mut self, part: &IndexPart) {
        let span = u128::from(part.last_ns.saturating_sub(part.first_ns).max(1));
        let Some(last) = part.last_ns.checked_sub(self.from_ns) else {
            return;
        };
        let first = part.first_ns.saturating_sub(self.from_ns) / self.step_ns;
        let all = self.buckets.len() as u64;
        // Cumulative, so that the sum over all intervals is exact.
        let before = |ns: u64, value: u64| {
            let passed = ns.clamp(
                part.first_ns,
                part.last_ns.max(part.first_ns.saturating_add(1)),
            );
            (u128::from(value) * u128::from(passed - part.first_ns) / span) as u64
        };
        for n in first..(last / self.step_ns).saturating_add(1).min(all) {
            let start = self.from_ns + n * self.step_ns;
            let end = start.saturating_add(self.step_ns);
            // The last interval has the frame at the end of the part.
            let end = if end > part.last_ns { u64::MAX } else { end };
            let share = |value| before(end, value) - before(start, value);
            let Ok(n) = usize::try_from(n) else { return };
            let bucket = &mut self.buckets[n];
            for (sum, value) in [
                (&mut bucket.frames, part.frames),
                (&mut bucket.bytes, part.bytes),
                (&mut bucket.lost, part.lost),
            ] {
                *sum = sum.saturating_add(share(value));
            }
        }
    }
}

/// Returns the gaps of at least `shortest` nanoseconds between the time ranges `spans`, within
/// `times`.
fn gaps(mut spans: Vec<Range<u64>>, times: &Range<u64>, shortest: u64) -> Vec<Gap> {
    spans.sort_by_key(|it| it.start);
    let mut gaps = Vec::new();
    let mut reached: Option<u64> = None;
    for span in spans {
        if let Some(reached) = reached
            && span.start > reached
        {
            let from_ns = reached.max(times.start);
            let to_ns = span.start.min(times.end);
            if to_ns > from_ns && to_ns - from_ns >= shortest {
                gaps.push(Gap { from_ns, to_ns });
            }
        }
        reached = reached.max(Some(span.end));
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{KnownFile, StoredFileFacts};
    use std::sync::Arc;

    const SECOND: u64 = 1_000_000_000;

    fn part(first: u64, last: u64, frames: u64) -> IndexPart {
        IndexPart {
            first_ns: first * SECOND,
            last_ns: last * SECOND,
            frames,
            bytes: 100 * frames,
            lost: 1,
        }
    }

    fn view(files: &[&[IndexPart]]) -> StoreView {
        let file = |parts: &&[IndexPart]| KnownFile {
            path: "x".into(),
            len: 1,
            facts: Some(Arc::new(StoredFileFacts {
                parts: parts.to_vec(),
                is_indexed: true,
                ..StoredFileFacts::default()
            })),
        };
        StoreView {
            finished: files.iter().map(file).collect(),
            ..StoreView::default()
        }
    }

    #[test]
    fn damaged_times_and_counts_do_not_overflow() {
        let all = u64::MAX;
        for (first_ns, last_ns) in [(all, all), (all - 1, all), (0, all), (5, 3)] {
            let part = IndexPart {
                first_ns,
                last_ns,
                frames: all,
                bytes: all,
                lost: all,
            };
            let view = view(&[&[part], &[part]]);
            for times in [0..all, 0..10, all - 1..all, first_ns..first_ns] {
                for count in [1, 7, 1999] {
                    let it = timeline(&view, times.clone(), count, Vec::new());
                    assert_eq!(it.buckets.len() as u64, count);
                }
            }
        }
    }

    #[test]
    fn parts_are_spread_over_the_intervals_without_loss() {
        let view = view(&[&[part(10, 20, 1000), part(20, 21, 7)], &[part(50, 50, 3)]]);
        let span = view.span().expect("frames");
        assert_eq!(span, 10 * SECOND..50 * SECOND + 1);
        for count in [1, 2, 3, 40, 41, 1999] {
            let it = timeline(&view, span.clone(), count, Vec::new());
            assert_eq!(it.buckets.len() as u64, count);
            assert_eq!(
                it.buckets.iter().map(|it| it.frames).sum::<u64>(),
                1010,
                "{count}"
            );
            assert_eq!(
                it.buckets.iter().map(|it| it.bytes).sum::<u64>(),
                101_000,
                "{count}"
            );
            assert_eq!(
                it.buckets.iter().map(|it| it.lost).sum::<u64>(),
                3,
                "{count}"
            );
        }
        let some = timeline(&view, 10 * SECOND..20 * SECOND, 10, Vec::new());
        let frames: Vec<_> = some.buckets.iter().map(|it| it.frames).collect();
        assert_eq!(frames, [100; 10]);
        // Before and after everything.
        for times in [0..9 * SECOND, 60 * SECOND..70 * SECOND] {
            let none = timeline(&view, times, 5, Vec::new());
            assert!(
                none.buckets
                    .iter()
                    .all(|it| *it == TimelineInterval::default())
            );
        }
    }

    #[test]
    fn a_mark_in_the_files_of_several_queues_is_one_mark() {
        let file = |marks: &[(u64, &str)]| KnownFile {
            path: "x".into(),
            len: 1,
            facts: Some(Arc::new(StoredFileFacts {
                marks: marks.iter().map(|(ns, it)| (*ns, (*it).into())).collect(),
                ..StoredFileFacts::default()
            })),
        };
        let view = StoreView {
            finished: vec![
                file(&[(21, "a: alert"), (30, "b: alert")]),
                file(&[(20, "a: alert")]),
            ],
            ..StoreView::default()
        };
        let marks = timeline(&view, 0..100, 10, Vec::new()).marks;
        let marks: Vec<_> = marks.iter().map(|it| (it.ns, it.text.as_str())).collect();
        assert_eq!(marks, [(20, "a: alert"), (30, "b: alert")]);
    }

    #[test]
    fn times_without_frames_are_gaps() {
        let view = view(&[&[part(10, 20, 1)], &[part(15, 25, 1), part(50, 60, 1)]]);
        let gap = |from: u64, to: u64| Gap {
            from_ns: from * SECOND,
            to_ns: to * SECOND,
        };
        let of =
            |from: u64, to: u64| timeline(&view, from * SECOND..to * SECOND, 60, Vec::new()).gaps;
        assert_eq!(of(0, 60), [gap(25, 50)]);
        assert_eq!(of(30, 40), [gap(30, 40)]);
        assert_eq!(of(10, 25), []);
    }
}
