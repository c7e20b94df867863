//! Flow cutoff: of each flow the beginning is kept. This table follows the flows where there are no flow records.
//!
//! Most bytes of a network belong to few long flows, and most of these are encrypted: what they tell is in their first
//! packets. So each direction of a flow has a limit of bytes and of packets, and a frame that comes when one of them is
//! reached is cut off. Segments that begin or end a connection are kept, so that it is seen how long the flow went on.
//!
//! A flow is what flow records call one. Its first frame decides which limit it has: the first whose filter takes it. It
//! begins anew when it was silent for too long, by the frames' stamps, or when a connection that had ended is made again.
//!
//! Memory is bounded: a flow that finds the table full is kept whole. Each flow that is entered makes place for more than
//! one, if any near the sweep's cursor has been silent for too long: so nothing of this costs more than some frames do.

use crate::{
    analysis::{
        flow_table::{Entry, FlowPlace, Guess, Key, Table},
        limits::{CutoffPlan, CutoffReport, Limits, Volume, ends, is_control},
    },
    pipeline::Frame,
};

/// Flows that a new one checks for having been silent.
const SWEPT: usize = 4;

/// The flows of one queue, as far as they have come.
pub(super) struct Cutoff {
    limits: Limits,
    table: Table<CutFlow>,
    /// Where the next sweep begins.
    cursor: usize,
    report: CutoffReport,
}

/// How far a flow has come: on two cache lines, as it is aligned.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(super) struct CutFlow {
    key: Key,
    hash: u32,
    /// FIN or RST was seen.
    ended: bool,
    /// Frames have been cut off.
    cut: bool,
    last_ns: u64,
    /// What is left of its limit, each way.
    left: [Volume; 2],
}

impl Entry for CutFlow {
    type Apart = ();

    #[inline]
    fn is_of<'a>(&self, key: &Key, _apart: impl FnOnce() -> &'a ()) -> bool {
        self.key == *key
    }

    #[inline]
    fn hash(&self, _apart: &()) -> u32 {
        self.hash
    }
}

impl CutFlow {
    /// Whether a frame that comes now is another flow's, between the same ends.
    #[inline]
    fn begins_anew(&self, frame: &Frame<'_>, place: &FlowPlace, limits: &Limits) -> bool {
        limits.begins_anew(self.last_ns, self.ended, frame.ns, place.tcp_flags)
    }

    /// Counts a frame of it; whether this one is cut off.
    #[inline]
    fn cuts(&mut self, frame: &Frame<'_>, place: &FlowPlace, report: &mut CutoffReport) -> bool {
        let flags = place.tcp_flags;
        self.last_ns = frame.ns;
        self.ended |= ends(flags);
        let left = &mut self.left[usize::from(place.upward)];
        let over = left.bytes == 0 || left.packets == 0;
        left.bytes = left.bytes.saturating_sub(frame.len.into());
        left.packets = left.packets.saturating_sub(1);
        if !over || is_control(flags) {
            return false;
        }
        report.count(frame, !self.cut);
        self.cut = true;
        true
    }
}

impl Cutoff {
    /// To be made on the loop's own thread, so that its memory is near.
    pub(super) fn new(plan: &CutoffPlan) -> Self {
        Self {
            limits: Limits::new(plan),
            table: Table::new(plan.capacity),
            cursor: 0,
            report: CutoffReport::default(),
        }
    }

    /// Where its flows are found.
    #[inline]
    pub(super) fn table(&self) -> &Table<CutFlow> {
        &self.table
    }

    pub(super) fn report(&self) -> CutoffReport {
        self.report
    }

    /// Whether a frame of this flow is cut off. Out of line, so that stages without a cutoff have their registers for
    /// themselves.
    #[inline(never)]
    pub(super) fn cuts(&mut self, frame: &Frame<'_>, place: &FlowPlace, guess: Guess) -> bool {
        if let Some(flow) = self.table.guessed_mut(guess, &place.key)
            && !flow.begins_anew(frame, place, &self.limits)
        {
            return flow.cuts(frame, place, &mut self.report);
        }
        self.cuts_after_search(frame, place)
    }

    /// The same of a flow that begins, or is not where it seemed to be.
    #[cold]
    fn cuts_after_search(&mut self, frame: &Frame<'_>, place: &FlowPlace) -> bool {
        let found = self.table.search(place.hash, &place.key);
        let Some(at) = found.or_else(|| self.enter(frame, place)) else {
            self.report.untracked_frames += 1;
            return false;
        };
        if (self.table.get(at)).begins_anew(frame, place, &self.limits) {
            *self.table.get_mut(at) = self.first(frame, place);
        }
        (self.table.get_mut(at)).cuts(frame, place, &mut self.report)
    }

    /// A flow with nothing yet, not even this first frame.
    #[cold]
    fn first(&self, frame: &Frame<'_>, place: &FlowPlace) -> CutFlow {
        let limit = self.limits.of_first(frame.bytes, frame.len);
        CutFlow {
            key: place.key,
            hash: place.hash,
            ended: false,
            cut: false,
            last_ns: frame.ns,
            left: [self.limits.most(limit); 2],
        }
    }

    /// Enters a flow; `None`: there is no room.
    #[cold]
    fn enter(&mut self, frame: &Frame<'_>, place: &FlowPlace) -> Option<usize> {
        self.sweep(frame.ns);
        if self.table.is_full() {
            return None;
        }
        let flow = self.first(frame, place);
        self.table.insert(flow, ());
        Some(self.table.len() - 1)
    }

    /// Takes out those of the next flows that have been silent for too long.
    fn sweep(&mut self, ns: u64) {
        for _ in 0..SWEPT {
            if self.table.is_empty() {
                break;
            }
            if self.cursor >= self.table.len() {
                self.cursor = 0;
            }
            let last_ns = self.table.get(self.cursor).last_ns;
            if self.limits.is_silent(last_ns, ns) {
                // There stands another one now, to be checked next.
                self.table.remove(self.cursor);
            } else {
                self.cursor += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::ahead::{Ahead, MOST},
        *,
    };
    use crate::{
        analysis::flow_table::hash_seed,
        filter::Filter,
        frame::{Headers, Tcp},
    };
    use crate::analysis::limits::FlowLimit;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const IDLE_NS: u64 = 1000;

    fn plan(limits: &[(&str, Option<u64>, Option<u64>)], capacity: usize) -> CutoffPlan {
        let limit = |&(filter, bytes, packets): &(&str, _, _)| FlowLimit {
            filter: Filter::compile(filter).unwrap(),
            bytes,
            packets,
        };
        CutoffPlan {
            limits: limits.iter().map(limit).collect(),
            idle_ns: IDLE_NS,
            capacity,
        }
    }

    /// TCP between 10.0.0.1:1000 and 10.0.1.`flow`:80, of `len` bytes, there or back.
    fn tcp(flow: u8, back: bool, flags: u8, len: usize) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend_from_slice(&[8, 0, 0x45, 0]);
        frame.extend_from_slice(&(u16::try_from(len).unwrap() - 14).to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0, 0, 64, 6, 0, 0]);
        let mut ends = [([10, 0, 0, 1], [3, 232]), ([10, 0, 1, flow], [0, 80])];
        if back {
            ends.reverse();
        }
        frame.extend(ends.iter().flat_map(|it| it.0));
        frame.extend(ends.iter().flat_map(|it| it.1));
        frame.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 1, 0, 0, 0, 0, 0]);
        frame.resize(len, 0);
        frame
    }

    fn cuts(cutoff: &mut Cutoff, bytes: &[u8], ns: u64) -> bool {
        cuts_known(cutoff, &mut Ahead::default(), bytes, ns)
    }

    fn cuts_known(cutoff: &mut Cutoff, ahead: &mut Ahead, bytes: &[u8], ns: u64) -> bool {
        let outer = Headers::parse(bytes);
        let frame = Frame {
            bytes,
            len: u32::try_from(bytes.len()).unwrap(),
            fcs: None,
            ns,
        };
        let (place, guess) = match ahead.of(bytes) {
            Some(known) => (known.place, known.guess),
            None => {
                let mut place = FlowPlace::default();
                place.set(bytes, &outer, &outer, hash_seed());
                (place, cutoff.table().guess(place.hash, &place.key))
            }
        };
        cutoff.cuts(&frame, &place, guess)
    }

    /// How each of some frames of 100 bytes ends, one nanosecond apart.
    fn run(cutoff: &mut Cutoff, frames: &[(u8, bool, u8)]) -> Vec<bool> {
        let each = (0..).zip(frames);
        each.map(|(ns, &(flow, back, flags))| cuts(cutoff, &tcp(flow, back, flags, 100), ns))
            .collect()
    }

    #[test]
    fn a_flow_has_what_the_plan_counts_for_it() {
        let bytes = Table::<CutFlow>::FLOW_BYTES as u64;
        assert_eq!(bytes, CutoffPlan::FLOW_BYTES);
        assert_eq!(CutoffPlan::capacity_of(0), 1);
    }

    #[test]
    fn each_way_of_a_flow_has_its_own_limit() {
        let mut cutoff = Cutoff::new(&plan(&[("", None, Some(2))], 8));
        let there = (1, false, Tcp::ACK);
        let back = (1, true, Tcp::ACK);
        let other = (2, false, Tcp::ACK);
        let ends = run(
            &mut cutoff,
            &[there, there, back, there, back, other, back, there],
        );
        let cut = [false, false, false, true, false, false, true, true];
        assert_eq!(ends, cut);
        let report = CutoffReport {
            flows: 1,
            bytes: 300,
            untracked_frames: 0,
        };
        assert_eq!(cutoff.report(), report);
    }

    #[test]
    fn a_frame_is_kept_if_it_begins_before_the_limit_of_bytes() {
        let frame = (1, false, 0);
        for (most, kept) in [(0, 0), (1, 1), (100, 1), (101, 2), (200, 2), (201, 3)] {
            let mut cutoff = Cutoff::new(&plan(&[("", Some(most), None)], 8));
            let cut = run(&mut cutoff, &[frame; 5]);
            assert_eq!(cut.iter().filter(|it| !**it).count(), kept, "{most} bytes");
        }
    }

    #[test]
    fn what_begins_or_ends_a_connection_is_kept() {
        let mut cutoff = Cutoff::new(&plan(&[("", None, Some(0))], 8));
        let flags = [
            Tcp::SYN,
            Tcp::SYN | Tcp::ACK,
            Tcp::ACK,
            Tcp::FIN | Tcp::ACK,
            Tcp::RST,
        ];
        let ends = run(&mut cutoff, &flags.map(|it| (1, false, it)));
        assert_eq!(ends, [false, false, true, false, false]);
    }

    #[test]
    fn the_first_filter_that_takes_the_first_frame_decides() {
        let limits = [
            ("dst host 10.0.1.1", None, None),
            ("dst host 10.0.1.2", None, Some(1)),
            ("ip6", None, Some(0)),
        ];
        let mut cutoff = Cutoff::new(&plan(&limits, 8));
        // Whole; one of each way, whichever way the filter means; no limit at all.
        for (flow, cut) in [(1, false), (2, true), (3, false)] {
            let frames = [false, true, false, true].map(|back| (flow, back, 0));
            assert_eq!(
                run(&mut cutoff, &frames),
                [false, false, cut, cut],
                "{flow}"
            );
        }
    }

    #[test]
    fn a_flow_begins_anew_after_silence_or_its_end() {
        let mut cutoff = Cutoff::new(&plan(&[("", None, Some(1))], 8));
        let mut at = |flags, ns| cuts(&mut cutoff, &tcp(1, false, flags, 100), ns);
        assert_eq!([at(Tcp::ACK, 0), at(Tcp::ACK, 999)], [false, true]);
        assert_eq!([at(Tcp::ACK, 1998), at(Tcp::ACK, 2998)], [true, false]);
        // A second SYN, as of a retransmission, changes nothing.
        assert_eq!([at(Tcp::SYN, 2999), at(Tcp::ACK, 3000)], [false, true]);
        assert_eq!(
            [at(Tcp::FIN | Tcp::ACK, 3001), at(Tcp::ACK, 3002)],
            [false, true]
        );
        let again = [at(Tcp::SYN, 3003), at(Tcp::ACK, 3004)];
        assert_eq!(again, [false, true], "the SYN is the one packet");
    }

    #[test]
    fn flows_beyond_the_table_are_kept_until_there_is_room() {
        let mut cutoff = Cutoff::new(&plan(&[("", None, Some(0))], 2));
        let mut at = |flow, ns| cuts(&mut cutoff, &tcp(flow, false, 0, 100), ns);
        assert_eq!([at(1, 0), at(2, 500), at(3, 999)], [true, true, false]);
        assert!(at(3, 1000), "the first has been silent");
        assert_eq!([at(2, 1001), at(1, 1002)], [true, false]);
        assert_eq!(cutoff.report().untracked_frames, 2);
    }

    proptest! {
        #[test]
        fn it_is_what_a_map_without_bounds_says(
            frames in prop::collection::vec((0_u8..20, any::<bool>(), 60_usize..200, 0_u64..300, any::<bool>()), 0..400),
            bytes in prop::option::of(0_u64..600),
            packets in prop::option::of(0_u64..6),
            batch in 1..2 * MOST,
        ) {
            let mut cutoff = Cutoff::new(&plan(&[("", bytes, packets)], 20));
            let mut flows: HashMap<u8, (u64, [(u64, u64); 2])> = HashMap::new();
            let (mut now, mut ahead) = (0, Ahead::default());
            let tcp = |&(flow, back, len, ..): &(_, _, _, _, _)| tcp(flow, back, 0, len);
            let bytes_of: Vec<_> = frames.iter().map(tcp).collect();
            for (i, (&(flow, back, len, later, refused), frame)) in frames.iter().zip(&bytes_of).enumerate() {
                if i % batch == 0 {
                    ahead.look(bytes_of[i..].iter().take(batch).map(Vec::as_slice), cutoff.table());
                }
                now += later;
                if refused {
                    continue;
                }
                let (last, ways) = flows.entry(flow).or_insert((now, [(0, 0); 2]));
                if now - *last >= IDLE_NS {
                    *ways = [(0, 0); 2];
                }
                *last = now;
                let way = &mut ways[usize::from(back)];
                let cut = bytes.is_some_and(|it| way.0 >= it) || packets.is_some_and(|it| way.1 >= it);
                *way = (way.0 + len as u64, way.1 + 1);
                prop_assert_eq!(cuts_known(&mut cutoff, &mut ahead, frame, now), cut);
            }
            prop_assert_eq!(cutoff.report().untracked_frames, 0);
        }
    }
}
