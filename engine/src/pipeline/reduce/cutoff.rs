//! Flow cutoff: keeps the beginning of each flow. This table tracks the flows of a capture without
//! flow records.
//!
//! Most bytes of a network belong to a few long flows, and most of these are encrypted: their
//! useful information is in the first packets. So each direction of a flow has a limit on bytes and
//! on packets, and frames after one of them is reached are cut off. Segments that begin or end a
//! connection are kept, so that the duration of the flow is visible.
//!
//! Flows are defined as in flow records. A flow's first frame determines its limit: the first limit
//! whose filter matches. A flow counts as new after a long silence, measured by the frames' stamps,
//! or when an ended connection is opened again.
//!
//! Memory is bounded: a flow that does not fit into the table is kept whole. Each insertion checks
//! [`SWEPT`] flows from a cursor on and removes the silent ones. The cost of an insertion is thus
//! comparable to that of a few frames.

use crate::{
    analysis::{
        flow_table::{Entry, FlowPlace, Guess, Key, Table},
        limits::{CutoffLimits, CutoffPlan, CutoffReport, FlowVolume, ends, is_control},
    },
    pipeline::Frame,
};

/// Number of flows that are checked for silence when a flow is inserted into the cutoff's table.
const SWEPT: usize = 4;

/// Cutoff of one reduction stage: limits how much of each flow is kept, with the state of the
/// flows.
pub(super) struct Cutoff {
    /// Configured limits on how much of each flow is kept (`[[cutoff]]`).
    limits: CutoffLimits,
    /// Table of the flows whose frames the cutoff counts.
    table: Table<CutFlow>,
    /// Index in the flow table at which the next sweep of silent flows begins.
    cursor: usize,
    /// Counts of frames that the cutoff has left out.
    report: CutoffReport,
}

/// State of one flow for the cutoff, which limits how much of it is kept. The alignment keeps it on
/// two cache lines.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(super) struct CutFlow {
    /// Key of the flow: its protocol, and the addresses and ports of both ends.
    key: Key,
    /// Hash of the flow's key.
    hash: u32,
    /// `true` after a TCP FIN or RST of the flow, which ends its connection.
    ended: bool,
    /// `true` after a frame of the flow has been left out.
    cut: bool,
    /// Time of the flow's last frame, in nanoseconds since 1970.
    last_ns: u64,
    /// Remaining bytes and packets of the flow's limit in each direction.
    left: [FlowVolume; 2],
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
    /// Returns `true` if a frame begins a new flow with the same key as this one.
    #[inline]
    fn is_restarted(&self, frame: &Frame<'_>, place: &FlowPlace, limits: &CutoffLimits) -> bool {
        limits.restarts(self.last_ns, self.ended, frame.ns, place.tcp_flags)
    }

    /// Counts a frame of the flow towards its cutoff limit. Returns `true` if the frame is beyond
    /// the limit, so that it is left out.
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
    /// Creates the cutoff of a reduction stage with an empty flow table. Should be called on the
    /// loop's thread, so that the memory is local to its NUMA node.
    pub(super) fn new(plan: &CutoffPlan) -> Self {
        Self {
            limits: CutoffLimits::new(plan),
            table: Table::new(plan.capacity),
            cursor: 0,
            report: CutoffReport::default(),
        }
    }

    /// Returns the table of the flows whose frames the cutoff counts.
    #[inline]
    pub(super) fn table(&self) -> &Table<CutFlow> {
        &self.table
    }

    /// Returns the counts of frames that the cutoff has left out.
    pub(super) fn report(&self) -> CutoffReport {
        self.report
    }

    /// Counts a frame towards its flow's cutoff limit. Returns `true` if the frame is beyond the
    /// limit, so that it is left out.
    ///
    /// The function is not inlined, so that it takes no registers in stages without a cutoff.
    #[inline(never)]
    pub(super) fn cuts(&mut self, frame: &Frame<'_>, place: &FlowPlace, guess: Guess) -> bool {
        if let Some(flow) = self.table.guessed_mut(guess, &place.key)
            && !flow.is_restarted(frame, place, &self.limits)
        {
            return flow.cuts(frame, place, &mut self.report);
        }
        self.cuts_after_search(frame, place)
    }

    /// Counts a frame of a flow that is new or not at the guessed table position. Returns `true` if
    /// the frame is beyond the flow's cutoff limit.
    #[cold]
    fn cuts_after_search(&mut self, frame: &Frame<'_>, place: &FlowPlace) -> bool {
        let found = self.table.search(place.hash, &place.key);
        let Some(at) = found.or_else(|| self.insert(frame, place)) else {
            self.report.untracked_frames += 1;
            return false;
        };
        if (self.table.get(at)).is_restarted(frame, place, &self.limits) {
            *self.table.get_mut(at) = self.new_flow(frame, place);
        }
        (self.table.get_mut(at)).cuts(frame, place, &mut self.report)
    }

    /// Returns the cutoff state of a new flow, before its first frame is counted.
    #[cold]
    fn new_flow(&self, frame: &Frame<'_>, place: &FlowPlace) -> CutFlow {
        let limit = self.limits.for_first_frame(frame.bytes, frame.len);
        CutFlow {
            key: place.key,
            hash: place.hash,
            ended: false,
            cut: false,
            last_ns: frame.ns,
            left: [self.limits.most(limit); 2],
        }
    }

    /// Inserts a flow into the cutoff's table and returns its index, or `None` if the table is
    /// full.
    #[cold]
    fn insert(&mut self, frame: &Frame<'_>, place: &FlowPlace) -> Option<usize> {
        self.sweep(frame.ns);
        if self.table.is_full() {
            return None;
        }
        let flow = self.new_flow(frame, place);
        self.table.insert(flow, ());
        Some(self.table.len() - 1)
    }

    /// Removes silent flows among the next [`SWEPT`] flows of the cutoff's table.
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
                // Another flow has moved to this index and is checked next.
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
        super::ahead::{MOST, ParsedBatch},
        *,
    };
    use crate::analysis::limits::FlowLimit;
    use crate::{
        analysis::flow_table::hash_seed,
        filter::Filter,
        frame::{Headers, Tcp},
    };
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Time without a frame of a flow after which the flow counts as new, in nanoseconds.
    const IDLE_NS: u64 = 1000;

    /// Returns the plan of a cutoff with these flow limits: filter, bytes and packets.
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

    /// Returns a TCP frame of `len` bytes from 10.0.0.1:1000 to 10.0.1.`flow`:80, or in the
    /// opposite direction.
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

    /// Counts a frame that was not parsed in advance. Returns `true` if the cutoff leaves it out.
    fn cuts(cutoff: &mut Cutoff, bytes: &[u8], ns: u64) -> bool {
        cuts_known(cutoff, &mut ParsedBatch::default(), bytes, ns)
    }

    /// Counts a frame that may have been parsed in advance. Returns `true` if the cutoff leaves it
    /// out.
    fn cuts_known(cutoff: &mut Cutoff, ahead: &mut ParsedBatch, bytes: &[u8], ns: u64) -> bool {
        let outer = Headers::parse(bytes);
        let frame = Frame::new(bytes, u32::try_from(bytes.len()).unwrap(), ns);
        let (place, guess) = match ahead.find(bytes) {
            Some(known) => (known.place, known.guess),
            None => {
                let mut place = FlowPlace::default();
                place.set(bytes, &outer, &outer, hash_seed());
                (place, cutoff.table().guess(place.hash, &place.key))
            }
        };
        cutoff.cuts(&frame, &place, guess)
    }

    /// Counts frames of 100 bytes, one nanosecond apart. Returns `true` for each that the cutoff
    /// leaves out.
    fn run(cutoff: &mut Cutoff, frames: &[(u8, bool, u8)]) -> Vec<bool> {
        let each = (0..).zip(frames);
        each.map(|(ns, &(flow, back, flags))| cuts(cutoff, &tcp(flow, back, flags, 100), ns))
            .collect()
    }

    #[test]
    fn the_size_of_a_flow_is_that_of_the_plan() {
        let bytes = Table::<CutFlow>::FLOW_BYTES as u64;
        assert_eq!(bytes, CutoffPlan::FLOW_BYTES);
        assert_eq!(CutoffPlan::capacity_of(0), 1);
    }

    #[test]
    fn each_direction_of_a_flow_has_a_separate_limit() {
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
    fn segments_that_begin_or_end_a_connection_are_kept() {
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
    fn the_first_filter_that_matches_the_first_frame_determines_the_limit() {
        let limits = [
            ("dst host 10.0.1.1", None, None),
            ("dst host 10.0.1.2", None, Some(1)),
            ("ip6", None, Some(0)),
        ];
        let mut cutoff = Cutoff::new(&plan(&limits, 8));
        // Kept whole; one frame in each direction, whatever the filter's direction; no matching
        // limit.
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
    fn a_flow_is_restarted_after_silence_or_its_end() {
        let mut cutoff = Cutoff::new(&plan(&[("", None, Some(1))], 8));
        let mut at = |flags, ns| cuts(&mut cutoff, &tcp(1, false, flags, 100), ns);
        assert_eq!([at(Tcp::ACK, 0), at(Tcp::ACK, 999)], [false, true]);
        assert_eq!([at(Tcp::ACK, 1998), at(Tcp::ACK, 2998)], [true, false]);
        // A second SYN, for example a retransmission, does not restart the flow.
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
        fn a_cutoff_agrees_with_an_unbounded_map(
            frames in prop::collection::vec((0_u8..20, any::<bool>(), 60_usize..200, 0_u64..300, any::<bool>()), 0..400),
            bytes in prop::option::of(0_u64..600),
            packets in prop::option::of(0_u64..6),
            batch in 1..2 * MOST,
        ) {
            let mut cutoff = Cutoff::new(&plan(&[("", bytes, packets)], 20));
            let mut flows: HashMap<u8, (u64, [(u64, u64); 2])> = HashMap::new();
            let (mut now, mut ahead) = (0, ParsedBatch::default());
            let tcp = |&(flow, back, len, ..): &(_, _, _, _, _)| tcp(flow, back, 0, len);
            let bytes_of: Vec<_> = frames.iter().map(tcp).collect();
            for (i, (&(flow, back, len, later, refused), frame)) in frames.iter().zip(&bytes_of).enumerate() {
                if i % batch == 0 {
                    ahead.prepare(bytes_of[i..].iter().take(batch).map(Vec::as_slice), cutoff.table());
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
