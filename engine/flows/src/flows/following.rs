//! How far the flows of a meter's table have come with their limits.

use super::{
    FlowsPlan,
    entry::{FlowApart, FlowEntry},
};
use crate::{
    flow_table::FlowPlace,
    limits::{CutoffPlan, CutoffReport, Limits, Volume, ends, is_control},
};
use wqcap_core::consumer::Frame;

const _: () = assert!(size_of::<[Volume; 2]>() as u64 == FlowsPlan::FOLLOWED_BYTES);

/// What a meter knows of its flows for the sake of their limits.
pub(super) struct Following {
    pub(super) limits: Limits,
    /// A flow that was silent for so long is over as a record, or begins anew, or both.
    pub(super) silence_ns: u64,
    /// Of each flow of the table, each way by its direction: what came before the entry's counters began, less what these
    /// had counted when the flow began anew. Sums wrap around, and are right with the counters added.
    earlier: Vec<[Volume; 2]>,
    /// Flows that are followed, but of no record: they have no frames.
    pub(super) blank: usize,
    pub(super) report: CutoffReport,
}

impl Following {
    /// For the flows of a table with room for `capacity`, whose records end after `idle_ns` without a frame.
    pub(super) fn new(plan: &CutoffPlan, capacity: usize, idle_ns: u64) -> Self {
        let limits = Limits::new(plan);
        Self {
            silence_ns: limits.idle_ns.min(idle_ns),
            limits,
            earlier: Vec::with_capacity(capacity),
            blank: 0,
            report: CutoffReport::default(),
        }
    }

    /// Whether a flow's limit goes on.
    pub(super) fn lasts(&self, flow: &FlowEntry, ns: u64) -> bool {
        !self.limits.is_silent(flow.last_ns(), ns)
    }

    /// A flow was entered behind all others.
    pub(super) fn push(&mut self) {
        self.earlier.push(Default::default());
    }

    /// A flow was taken out; the last one stands in its place.
    pub(super) fn remove(&mut self, at: usize, was_blank: bool) {
        self.earlier.swap_remove(at);
        self.blank -= usize::from(was_blank);
    }

    /// A flow's record has ended, and its limit goes on.
    pub(super) fn make_blank(
        &mut self,
        (flow, apart): (&mut FlowEntry, &mut FlowApart),
        at: usize,
    ) {
        for (earlier, upward) in self.earlier[at].iter_mut().zip([false, true]) {
            *earlier = earlier.plus(flow.volume(apart, upward));
        }
        flow.make_blank(apart);
        self.blank += 1;
    }

    /// A flow begins anew with this frame, which is not counted yet.
    pub(super) fn begin_anew(
        &mut self,
        (flow, apart): (&mut FlowEntry, &mut FlowApart),
        at: usize,
        first: &Frame<'_>,
    ) {
        self.earlier[at] = [false, true].map(|it| Volume::default().minus(flow.volume(apart, it)));
        flow.begin_anew(self.limits.of_first(first.bytes, first.len));
    }

    /// Counts a frame of a flow; whether it is cut off.
    #[inline]
    pub(super) fn cuts(
        &mut self,
        (flow, apart): (&mut FlowEntry, &mut FlowApart),
        at: usize,
        frame: &Frame<'_>,
        place: &FlowPlace,
    ) -> bool {
        let (upward, flags) = (place.upward, place.tcp_flags);
        let side = usize::from(upward);
        let is_over = flow.is_over(side) || {
            let mut come = flow.volume(apart, upward);
            if flow.is_shifted() {
                come = come.plus(self.earlier[at][side]);
            }
            come.reaches(self.limits.most(flow.limit()))
        };
        flow.count(apart, upward, flags, frame.len, frame.ns);
        flow.note(side, is_over, ends(flags));
        if !is_over || is_control(flags) {
            return false;
        }
        self.report.count(frame, flow.is_first_cut());
        true
    }
}

impl Volume {
    #[inline]
    fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.wrapping_add(other.bytes),
            packets: self.packets.wrapping_add(other.packets),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.wrapping_sub(other.bytes),
            packets: self.packets.wrapping_sub(other.packets),
        }
    }
}
