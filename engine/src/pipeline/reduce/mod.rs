//! Reduction: a stage in front of the sink that filters, deduplicates, samples, applies cutoffs and
//! slices frames.
//!
//! ```text
//! loop -> filter -> dedup -> sample -> cutoff -> slice -> sink
//!         filtered  deduplicated  sampled_out  cut_off
//!                                   └> observer: statistics and flow records, with the whole frame
//! ```
//!
//! Each step has its line in the ledger, and a frame ends at the first step that refuses it.
//! Deduplication comes before sampling, so that one in N different frames is kept. The observer
//! also sees the frames that a cutoff leaves out, so flow records cover whole flows of which files
//! have only the beginning. Frames are not copied: a cut frame is a shorter slice of the same
//! bytes, with its length on the wire.
//!
//! If repetitions are also removed across all queues, a frame passes two stages. The queue's stage
//! ends with `dedup`. The steps from `sample` on are in a stage after the merge in time order, so
//! that no step counts a repetition.
//!
//! May import: [`crate::config`], [`crate::frame`], [`crate::filter`],
//! [`crate::analysis::observer`], and the traits of [`crate::pipeline`].
//!
//! Invariants: a stage without steps costs one branch per frame. A filter applies to whole batches.

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
use ahead::{ParsedBatch, ParsedHeaders};
pub use counters::{FcsReport, StageCounters};
use cutting::CutoffTable;
pub use reduction::Reduction;
use sample::FrameSampler;
use std::sync::Arc;
use wqcap_core::settings::SampleBy;
use wqcap_frame::Slice;

/// Reduction stage in front of a consumer: one for each queue or parser thread, and after the merge
/// by time.
pub struct Stage<C> {
    /// Consumer that gets the frames that the stage keeps.
    inner: C,
    /// `true` if at least one reduction step has an effect, so that frames are not passed on
    /// unchanged.
    active: bool,
    /// Reader of the present capture filter.
    reader: FilterReader,
    /// Deduplication window of the stage; `None` keeps repetitions of frames.
    window: Option<DedupWindow>,
    /// Sampler that keeps one in N frames or flows.
    sampler: FrameSampler,
    /// Cutoff with its flow table, which limits how much of each flow is kept; `None` keeps flows
    /// whole.
    cutoff: Option<CutoffTable>,
    /// Parsed headers of the frames of the present batch.
    ahead: ParsedBatch,
    /// Protocol layer of a frame after which the frame is cut.
    slice: Slice,
    /// `true` if the reduction stage parses the headers of frames.
    parses: bool,
    /// Observer of the stage's frames, for statistics and flow records.
    observer: Observer,
    /// Number of malformed frames of the stage, by class.
    malformed: MalformedCounts,
    /// `true` if the reduction stage checks each frame's FCS.
    verify_fcs: bool,
    /// Counts of the frames whose FCS the stage checked.
    fcs: FcsReport,
    /// Published counters of the stage, which other threads read.
    published: Arc<StageCounters>,
}

impl<C: Consumer> Stage<C> {
    /// Creates a reduction stage in front of the consumer `inner`.
    ///
    /// Should be called on the thread that runs the stage, so that its memory is local to the
    /// thread's NUMA node.
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
            cutoff: (reduction.cutoff.as_ref()).map(|it| CutoffTable::new(it, &mut observer)),
            ahead: ParsedBatch::default(),
            slice: reduction.slice,
            parses: reduction.parses() || observer.is_active(),
            observer,
            sampler,
            malformed: MalformedCounts::default(),
            verify_fcs: reduction.verify_fcs,
            fcs: FcsReport::default(),
            published,
        };
        stage.update_active();
        stage
    }

    /// Sets `active`: `true` if the stage has a reduction step. Called after a change of the
    /// filter.
    fn update_active(&mut self) {
        self.active = self.reader.filter().program().is_some()
            || self.window.is_some()
            || !matches!(self.sampler, FrameSampler::All)
            || self.verify_fcs
            || self.parses;
    }

    /// Applies all reduction steps to a frame, and returns its verdict: kept, or left out by which
    /// step.
    #[inline]
    fn reduce(&mut self, frame: &mut Frame<'_>) -> Verdict {
        if self.verify_fcs {
            self.fcs.verify(frame);
        }
        if !self.reader.filter().accepts(frame.bytes, frame.len) {
            return Verdict::Filtered;
        }
        if let Some(window) = &mut self.window
            && window.check_and_record(frame.bytes, frame.len, frame.ns)
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

    /// Applies the reduction steps that need parsed headers. Returns the verdict of a frame that is
    /// not kept, else `None`.
    #[inline(always)]
    fn reduce_parsed(&mut self, frame: &mut Frame<'_>, by_flow: bool) -> Option<Verdict> {
        let seed = self.ahead.seed();
        let known = self.ahead.find(frame.bytes);
        let mut parsed_now;
        let parsed = match known {
            Some(known) => &known.parsed,
            None => {
                parsed_now = ParsedHeaders::default();
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
            self.observer.count(frame, [outer, headers]);
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
        // Without steps, the frame's descriptor is not copied.
        if self.active {
            self.reduce(&mut { *frame })
        } else {
            self.inner.frame(frame)
        }
    }

    #[inline]
    fn begin_batch(&mut self) {
        self.publish();
        if self.reader.refresh() {
            self.update_active();
            self.inner.filter_changed(self.reader.filter().expression());
        }
        self.observer.batch();
        self.ahead.clear();
        self.inner.begin_batch();
    }

    #[inline]
    fn prefetch<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]>) {
        match &self.cutoff {
            Some(cutoff) => cutoff.look_ahead(&self.observer, &mut self.ahead, frames),
            None => self.inner.prefetch(frames),
        }
    }

    #[inline]
    fn end_batch(&mut self) {
        self.observer.end_batch();
        self.inner.end_batch();
    }

    fn filter_changed(&mut self, filter: &str) {
        self.inner.filter_changed(filter);
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
    /// Publishes the counters of the reduction stage, so that other threads read them.
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

    /// Consumer that stores the frames and the filters that a reduction stage passes on.
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

        fn filter_changed(&mut self, filter: &str) {
            self.notes.push(filter.to_owned());
        }
    }

    /// Returns a UDP frame of 46 bytes from source port `port`.
    fn udp(port: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend_from_slice(&[8, 0, 0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0, port, 0, 53, 0, 12, 0, 0]);
        frame.extend_from_slice(b"text");
        frame
    }

    /// Creates a reduction stage in front of a consumer that stores frames.
    fn stage(reduction: &Reduction) -> Stage<Kept> {
        let cell = Arc::new(FilterCell::new(reduction.filter.clone()));
        let observer = Observer::default();
        Stage::new(Kept::default(), reduction, cell, Arc::default(), observer)
    }

    /// Passes a frame to the reduction stage and returns its verdict.
    fn give(stage: &mut Stage<Kept>, bytes: &[u8], ns: u64) -> Verdict {
        let len = u32::try_from(bytes.len()).unwrap();
        stage.frame(&Frame::new(bytes, len, ns))
    }

    /// Returns the reduction steps with these settings.
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
    fn a_stage_without_steps_is_inactive() {
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
        // Cut after the UDP header, with the length on the wire.
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
        Consumer::begin_batch(&mut stage);
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
    fn a_new_filter_applies_from_the_next_batch_on() {
        let reduction = reduction("", 0, 1, Slice::Whole);
        let cell = Arc::new(FilterCell::new(reduction.filter.clone()));
        let mut stage = Stage::new(
            Kept::default(),
            &reduction,
            Arc::clone(&cell),
            Arc::default(),
            Observer::default(),
        );
        Consumer::begin_batch(&mut stage);
        cell.set(Filter::compile("arp").unwrap());
        assert_eq!(give(&mut stage, &udp(1), 0), Verdict::Captured);
        Consumer::begin_batch(&mut stage);
        assert_eq!(give(&mut stage, &udp(1), 0), Verdict::Filtered);
        cell.set(Filter::default());
        Consumer::begin_batch(&mut stage);
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
        Consumer::begin_batch(&mut stage);
        assert_eq!(stage.inner.frames[0].0, udp(1)[..40]);
        let mut counts = BTreeMap::new();
        published.add_malformed_to(&mut counts);
        let expected = [("ethernet_short", 1), ("ipv4_total_length", 1)];
        assert_eq!(counts, BTreeMap::from(expected));
    }
}
