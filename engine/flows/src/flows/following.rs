//! Progress of the flows in a meter's table towards their cutoff limits.

use super::{
    FlowsPlan,
    entry::{FlowApart, FlowEntry},
};
use crate::{
    flow_table::FlowPlace,
    limits::{CutoffLimits, CutoffPlan, CutoffReport, FlowVolume, ends, is_control},
};
use wqcap_core::consumer::Frame;

const _: () = assert!(size_of::<[FlowVolume; 2]>() as u64 == FlowsPlan::FOLLOWED_BYTES);

/// Cutoff limits of a flow meter and the progress of its flows towards them.
pub(super) struct LimitProgress {
    pub(super) limits: CutoffLimits,
    /// Shortest time without a frame after which a flow's record ends or its limit starts again.
    pub(super) silence_ns: u64,
    /// Volume that is added to the flow entry's counters, for each flow and direction: the volume
    /// before these counters started, minus what they had counted when the limit started.
    /// Differences may wrap around; the sum with the counters is right.
    earlier: Vec<[FlowVolume; 2]>,
    /// Number of flows in the table whose cutoff limit applies but that have no record, because
    /// they have no frames.
    pub(super) blank: usize,
    pub(super) report: CutoffReport,
}

impl LimitProgress {
    /// Creates the limit progress for a flow table of `capacity` flows, whose records end after
    /// `idle_ns` without a frame.
    pub(super) fn new(plan: &CutoffPlan, capacity: usize, idle_ns: u64) -> Self {
        let limits = CutoffLimits::new(plan);
        Self {
            silence_ns: limits.idle_ns.min(idle_ns),
            limits,
            earlier: Vec::with_capacity(capacity),
            blank: 0,
            report: CutoffReport::default(),
        }
    }

    /// Returns `true` if the cutoff limit of a flow still applies at the time `ns`.
    pub(super) fn lasts(&self, flow: &FlowEntry, ns: u64) -> bool {
        !self.limits.is_silent(flow.last_ns(), ns)
    }

    /// Adds an empty limit progress for a flow that was added at the end of the flow table.
    pub(super) fn push(&mut self) {
        self.earlier.push(Default::default());
    }

    /// Removes the limit progress of a flow; that of the table's last flow moves to its position.
    pub(super) fn remove(&mut self, at: usize, was_blank: bool) {
        self.earlier.swap_remove(at);
        self.blank -= usize::from(was_blank);
    }

    /// Clears a flow's counters when its record ends while its limit still applies.
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

    /// Starts the cutoff limit of a flow with this frame, which is not counted yet.
    pub(super) fn restart_limit(
        &mut self,
        (flow, apart): (&mut FlowEntry, &mut FlowApart),
        at: usize,
        first: &Frame<'_>,
    ) {
        self.earlier[at] =
            [false, true].map(|it| FlowVolume::default().minus(flow.volume(apart, it)));
        flow.restart_limit(self.limits.for_first_frame(first.bytes, first.len));
    }

    /// Counts a frame of a flow towards its cutoff limit, and returns `true` if the frame is beyond
    /// the limit.
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
        flow.count(apart, upward, flags, frame.len, frame.ns, frame.port);
        flow.note(side, is_over, ends(flags));
        if !is_over || is_control(flags) {
            return false;
        }
        self.report.count(frame, flow.is_first_cut());
        true
    }
}

impl FlowVolume {
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
