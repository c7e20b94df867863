//! Keeping less than everything: a stage in front of the sink that filters, leaves out repetitions, samples and cuts.
//!
//! ```text
//! loop -> filter -> dedup -> sample -> cutoff -> slice -> sink
//!         filtered  deduplicated  sampled_out  cut_off
//!                                   └> observer: statistics and flow records, with the whole frame
//! ```
//!
//! Each step has its line in the ledger, and a frame ends at the first that refuses it. Repetitions go before sampling,
//! so that one in N is one in N different frames. What a flow's cutoff leaves out has been seen by the observer: flow
//! records tell all of a flow of which files have the beginning. Nothing is copied: a cut frame is a shorter slice of the same bytes,
//! and its length on the wire stays with it.
//!
//! Where repetitions are also sought among all queues, there are two stages for a frame: the queue's ends with `dedup`, and the
//! steps from `sample` on are those of a stage behind the order of time, so that no step counts a repetition.
//!
//! May import: [`crate::config`], [`crate::frame`], [`crate::filter`], [`crate::analysis::observer`], and the seam of
//! [`crate::pipeline`].
//!
//! Invariants: a stage that has nothing to do costs one branch per frame. A filter holds for whole batches.

mod ahead;
mod counters;
mod cutoff;
mod cutting;
mod fcs;
mod reduction;
mod sample;
mod slice;

use crate::{
    analysis::{flow_table::FlowPlace, observer::Observer},
    filter::{FilterCell, FilterReader},
    frame::{FlowKey, MalformedCounts, dedup::DedupWindow},
    pipeline::{Consumer, Frame, Judge, Verdict},
};
use ahead::{Ahead, Parsed};
pub use counters::{FcsReport, StageCounters};
use cutting::Cutting;
pub use reduction::Reduction;
use sample::FrameSampler;
use std::sync::Arc;
use wqcap_core::settings::SampleBy;
use wqcap_frame::Slice;

/// The stage of one queue, and what it feeds.
pub struct Stage<C> {
    inner: C,
    /// Whether there is anything to do.
    active: bool,
    reader: FilterReader,
    window: Option<DedupWindow>,
    sampler: FrameSampler,
    cutoff: Option<Cutting>,
    ahead: Ahead,
    slice: Slice,
    parses: bool,
    observer: Observer,
    malformed: MalformedCounts,
    verify_fcs: bool,
    fcs: FcsReport,
    published: Arc<StageCounters>,
}

impl<C: Consumer> Stage<C> {
    /// In front of `inner`. To be made on the loop's own thread, so that its memory is near.
    pub fn new(
        inner: C,
        reduction: &Reduction,
        cell: Arc<FilterCell>,
        published: Arc<StageCounters>,
        mut observer: Observer,
    ) -> Self {
        let sampler = match reduction.sample_by {
            SampleBy::Frame => FrameSampler::frames(reduction.sample),
            SampleBy::Flow => FrameSampler::flows(reduction.sample),
        };
        let mut stage = Self {
            inner,
            active: false,
            reader: FilterReader::new(cell),
            window: reduction.dedup_window(),
            cutoff: (reduction.cutoff.as_ref()).map(|it| Cutting::new(it, &mut observer)),
            ahead: Ahead::default(),
            slice: reduction.slice,
            parses: reduction.parses() || observer.is_active(),
            observer,
            sampler,
            malformed: MalformedCounts::default(),
            verify_fcs: reduction.verify_fcs,
            fcs: FcsReport::default(),
            published,
        };
        stage.settle();
        stage
    }

    fn settle(&mut self) {
        self.active = self.reader.filter().program().is_some()
            || self.window.is_some()
            || !matches!(self.sampler, FrameSampler::All)
            || self.verify_fcs
            || self.parses;
    }

    /// All steps.
    #[inline]
    fn reduce(&mut self, frame: &mut Frame<'_>) -> Verdict {
        if self.verify_fcs {
            self.fcs.verify(frame);
        }
        if !self.reader.filter().accepts(frame.bytes, frame.len) {
            return Verdict::Filtered;
        }
        if let Some(window) = &mut self.window
            && window.repeats(frame.bytes, frame.len, frame.ns)
        {
            return Verdict::Deduplicated;
        }
        let by_flow = self.sampler.wants_flows();
        if !by_flow && !self.sampler.keeps(|| 0) {
            return Verdict::SampledOut;
        }
        if self.parses
            && let Some(refusal) = self.reduce_parsed(frame, by_flow)
        {
            return refusal;
        }
        self.inner.frame(frame)
    }

    /// The steps that look at headers; what a frame that is not kept ends as.
    #[inline(always)]
    fn reduce_parsed(&mut self, frame: &mut Frame<'_>, by_flow: bool) -> Option<Verdict> {
        let seed = self.ahead.seed();
        let known = self.ahead.of(frame.bytes);
        let mut parsed_now;
        let parsed = match known {
            Some(known) => &known.parsed,
            None => {
                parsed_now = Parsed::default();
                parsed_now.set(frame.bytes);
                &parsed_now
            }
        };
        let (outer, headers) = (&parsed.outer, parsed.inner());
        if let Some(class) = headers.malformed {
            self.malformed.count(class);
        }
        if by_flow && !self.sampler.keeps(|| FlowKey::spread(frame.bytes, headers)) {
            return Some(Verdict::SampledOut);
        }
        if let Some(cutoff) = &mut self.cutoff {
            let mut place_now;
            let (place, guess) = match known {
                Some(known) => (&known.place, known.guess),
                None => {
                    place_now = FlowPlace::default();
                    place_now.set(frame.bytes, outer, headers, seed);
                    (&place_now, cutoff.guess(&self.observer, &place_now))
                }
            };
            if cutoff.cuts(&mut self.observer, frame, [outer, headers], place, guess) {
                return Some(Verdict::CutOff);
            }
        } else {
            self.observer.see(frame, [outer, headers]);
        }
        frame.bytes = &frame.bytes[..slice::keep(self.slice, headers, frame.bytes.len())];
        None
    }
}

impl<C: Consumer> Judge for Stage<C> {
    #[inline]
    fn judge(&mut self, frame: &mut Frame<'_>) -> Verdict {
        if self.active {
            self.reduce(frame)
        } else {
            self.inner.frame(frame)
        }
    }

    fn missed(&mut self, frames: u64) {
        self.observer.missed(frames);
    }
}

impl<C: Consumer> Consumer for Stage<C> {
    #[inline(always)]
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        // A frame that nobody looks at is not copied.
        if self.active {
            self.reduce(&mut { *frame })
        } else {
            self.inner.frame(frame)
        }
    }

    #[inline]
    fn batch(&mut self) {
        self.publish();
        if self.reader.refresh() {
            self.settle();
            self.inner.changed(self.reader.filter().expression());
        }
        self.observer.batch();
        self.ahead.clear();
        self.inner.batch();
    }

    #[inline]
    fn ahead<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]>) {
        if let Some(cutoff) = &self.cutoff {
            cutoff.look_ahead(&self.observer, &mut self.ahead, frames);
        }
    }

    #[inline]
    fn handled(&mut self) {
        self.observer.handled();
        self.inner.handled();
    }

    fn changed(&mut self, filter: &str) {
        self.inner.changed(filter);
    }

    fn idle(&mut self) {
        self.observer.idle();
        self.publish();
        self.inner.idle();
    }
}

impl<C> Drop for Stage<C> {
    fn drop(&mut self) {
        self.publish();
    }
}

impl<C> Stage<C> {
    #[inline]
    fn publish(&self) {
        if self.parses {
            self.published.publish_malformed(&self.malformed);
        }
        if self.verify_fcs {
            self.published.publish_fcs(self.fcs);
        }
        if let Some(cutoff) = &self.cutoff {
            (self.published).publish_cutoff(cutoff.report(&self.observer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        analysis::limits::CutoffReport,
        config::{CaptureConfig, Config, CutoffConfig, Span},
        filter::Filter,
    };
    use std::{collections::BTreeMap, time::Duration};

    /// Keeps what it is given.
    #[derive(Default)]
    struct Kept {
        frames: Vec<(Vec<u8>, u32)>,
        notes: Vec<String>,
    }

    impl Consumer for Kept {
        fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
            self.frames.push((frame.bytes.to_vec(), frame.len));
            Verdict::Captured
        }

        fn changed(&mut self, filter: &str) {
            self.notes.push(filter.to_owned());
        }
    }

    fn udp(port: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend_from_slice(&[8, 0, 0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0, port, 0, 53, 0, 12, 0, 0]);
        frame.extend_from_slice(b"text");
        frame
    }

    fn stage(reduction: &Reduction) -> Stage<Kept> {
        let cell = Arc::new(FilterCell::new(reduction.filter.clone()));
        let observer = Observer::default();
        Stage::new(Kept::default(), reduction, cell, Arc::default(), observer)
    }

    fn give(stage: &mut Stage<Kept>, bytes: &[u8], ns: u64) -> Verdict {
        let len = u32::try_from(bytes.len()).unwrap();
        stage.frame(&Frame {
            bytes,
            len,
            fcs: None,
            ns,
        })
    }

    fn reduction(filter: &str, dedup_ns: u64, sample: u32, slice: Slice) -> Reduction {
        crate::plan::reduction(&Config {
            capture: CaptureConfig {
                filter: filter.into(),
                dedup: Span(Duration::from_nanos(dedup_ns)),
                sample,
                slice,
                ..CaptureConfig::default()
            },
            ..Config::default()
        })
        .unwrap()
    }

    #[test]
    fn nothing_to_do_is_nothing_done() {
        let mut stage = stage(&reduction("", 0, 1, Slice::Whole));
        assert!(!stage.active);
        assert_eq!(give(&mut stage, &udp(1), 0), Verdict::Captured);
        assert_eq!(stage.inner.frames, [(udp(1), 46)]);
    }

    #[test]
    fn each_step_has_its_verdict_in_order() {
        let mut stage = stage(&reduction("udp port 1 or udp port 2", 1000, 2, Slice::L4));
        let verdicts: Vec<_> = [
            (3, 0),
            (1, 0),
            (1, 1),
            (2, 2),
            (1, 999),
            (1, 1000),
            (3, 1001),
        ]
        .into_iter()
        .map(|(port, ns)| give(&mut stage, &udp(port), 5000 + ns))
        .collect();
        assert_eq!(
            verdicts,
            [
                Verdict::Filtered,
                Verdict::Captured,
                Verdict::Deduplicated,
                Verdict::SampledOut,
                Verdict::Deduplicated,
                Verdict::Captured,
                Verdict::Filtered,
            ]
        );
        // Cut behind UDP, its length on the wire kept.
        let cut = (udp(1)[..42].to_vec(), 46);
        assert_eq!(stage.inner.frames, [cut.clone(), cut]);
    }

    #[test]
    fn the_beginning_of_each_flow_is_kept_and_the_rest_counted() {
        let reduction = crate::plan::reduction(&Config {
            cutoff: vec![CutoffConfig {
                packets: Some(2),
                ..CutoffConfig::default()
            }],
            ..Config::default()
        });
        let mut stage = stage(&reduction.unwrap());
        let mut give = |port| give(&mut stage, &udp(port), 0);
        let kept = Verdict::Captured;
        assert_eq!([give(1), give(1), give(2)], [kept; 3]);
        assert_eq!(
            [give(1), give(2), give(2)],
            [Verdict::CutOff, kept, Verdict::CutOff]
        );
        Consumer::batch(&mut stage);
        let report = CutoffReport {
            flows: 2,
            bytes: 92,
            untracked_frames: 0,
        };
        assert_eq!(stage.published.cutoff(), report);
        assert_eq!(stage.inner.frames.len(), 4);
    }

    #[test]
    fn flows_are_kept_as_a_whole() {
        let by_flow = Reduction {
            sample_by: SampleBy::Flow,
            ..reduction("", 0, 4, Slice::Whole)
        };
        let mut stage = stage(&by_flow);
        let mut kept = 0;
        for port in 1..=200 {
            let there = udp(port);
            let mut back = there.clone();
            back[26..34].rotate_left(4);
            back[34..38].rotate_left(2);
            let verdicts = [&there, &back, &there].map(|frame| give(&mut stage, frame, 0));
            assert!(verdicts.iter().all(|it| *it == verdicts[0]), "{port}");
            kept += usize::from(verdicts[0] == Verdict::Captured);
        }
        assert!((30..70).contains(&kept), "{kept} of 200 flows");
    }

    #[test]
    fn another_filter_holds_from_the_next_batch_on() {
        let reduction = reduction("", 0, 1, Slice::Whole);
        let cell = Arc::new(FilterCell::new(reduction.filter.clone()));
        let mut stage = Stage::new(
            Kept::default(),
            &reduction,
            Arc::clone(&cell),
            Arc::default(),
            Observer::default(),
        );
        Consumer::batch(&mut stage);
        cell.set(Filter::compile("arp").unwrap());
        assert_eq!(give(&mut stage, &udp(1), 0), Verdict::Captured);
        Consumer::batch(&mut stage);
        assert_eq!(give(&mut stage, &udp(1), 0), Verdict::Filtered);
        cell.set(Filter::default());
        Consumer::batch(&mut stage);
        assert!(!stage.active);
        assert_eq!(give(&mut stage, &udp(1), 0), Verdict::Captured);
        assert_eq!(stage.inner.notes, ["arp", ""]);
    }

    #[test]
    fn malformed_frames_are_counted_and_kept() {
        let published = Arc::new(StageCounters::default());
        let reduction = reduction("", 0, 1, Slice::L4);
        assert!(reduction.parses());
        let cell = Arc::new(FilterCell::default());
        let mut stage = Stage::new(
            Kept::default(),
            &reduction,
            cell,
            Arc::clone(&published),
            Observer::default(),
        );
        assert_eq!(give(&mut stage, &udp(1)[..40], 0), Verdict::Captured);
        assert_eq!(give(&mut stage, &[1, 2, 3], 0), Verdict::Captured);
        Consumer::batch(&mut stage);
        assert_eq!(stage.inner.frames[0].0, udp(1)[..40]);
        let mut counts = BTreeMap::new();
        published.add_malformed_to(&mut counts);
        let expected = [("ethernet_short", 1), ("ipv4_total_length", 1)];
        assert_eq!(counts, BTreeMap::from(expected));
    }
}
