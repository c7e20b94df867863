//! Flow cutoff where there are flow records: the table of the records follows the limits too.
//!
//! A frame is entered at once instead of with its batch, since whether it is kept depends on all frames before it. How far
//! a flow has come is what its entry counts, and what earlier records of it have counted, which is touched for few frames:
//! a record may end while the limit goes on, and the other way round. A flow whose record has ended stays as long as the
//! limit lasts, without frames, and is then written by no one.
//!
//! Unlike the cutoff's own table, a full one makes room by ending the records of old flows, which then begin anew.

use super::{
    FlowsPlan,
    flow::FlowEntry,
    meter::Meter,
    seen::{MOST_SEEN, SeenFrame},
};
use crate::{
    analysis::{
        flow_table::{FlowPlace, Guess, Table},
        limits::{CutoffReport, Limits, Volume, ends, is_control, opens},
    },
    frame::{FiveTuple, Headers},
    pipeline::Frame,
    plan::CutoffPlan,
};

const _: () = assert!(size_of::<[Volume; 2]>() as u64 == FlowsPlan::FOLLOWED_BYTES);

/// What a meter knows of its flows for the sake of their limits.
pub(super) struct Following {
    limits: Limits,
    /// A flow that was silent for so long is over as a record, or begins anew, or both.
    silence_ns: u64,
    /// Of each flow of the table, each way by its direction: what came before the entry's counters began, less what these
    /// had counted when the flow began anew. Sums wrap around, and are right with the counters added.
    earlier: Vec<[Volume; 2]>,
    /// Flows without frames.
    blank: usize,
    report: CutoffReport,
}

impl Following {
    /// Flows that are followed, but of no record.
    pub(super) fn blank(&self) -> usize {
        self.blank
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
    pub(super) fn make_blank(&mut self, flow: &mut FlowEntry, at: usize) {
        for (earlier, upward) in self.earlier[at].iter_mut().zip([false, true]) {
            *earlier = earlier.plus(Volume::of(flow, upward));
        }
        flow.make_blank();
        self.blank += 1;
    }

    /// A flow begins anew with this frame, which is not counted yet.
    fn begin_anew(&mut self, flow: &mut FlowEntry, at: usize, first: &Frame<'_>) {
        self.earlier[at] = [false, true].map(|it| Volume::default().minus(Volume::of(flow, it)));
        flow.begin_anew(self.limits.of_first(first.bytes, first.len));
    }

    /// Counts a frame of a flow; whether it is cut off.
    #[inline]
    fn cuts(
        &mut self,
        flow: &mut FlowEntry,
        at: usize,
        frame: &Frame<'_>,
        place: &FlowPlace,
    ) -> bool {
        let (upward, flags) = (place.upward, place.tcp_flags);
        let side = usize::from(upward);
        let is_over = flow.is_over(side) || {
            let mut come = Volume::of(flow, upward);
            if flow.is_shifted() {
                come = come.plus(self.earlier[at][side]);
            }
            come.reaches(self.limits.most(flow.limit()))
        };
        flow.count(upward, flags, frame.len, frame.ns);
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
    fn of(flow: &FlowEntry, upward: bool) -> Self {
        let way = flow.way(upward);
        Self {
            bytes: way.bytes,
            packets: way.frames,
        }
    }

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

impl Meter {
    /// Has the limits of a cutoff followed from now on. There must be no flows yet.
    pub(crate) fn follow(&mut self, plan: &CutoffPlan) {
        let limits = Limits::new(plan);
        self.following = Some(Box::new(Following {
            silence_ns: limits.idle_ns.min(self.idle_ns),
            limits,
            earlier: Vec::with_capacity(self.table.capacity()),
            blank: 0,
            report: CutoffReport::default(),
        }));
    }

    /// What was cut off so far.
    pub(crate) fn cutoff(&self) -> CutoffReport {
        let following = self.following.as_ref();
        following.map_or_else(CutoffReport::default, |it| it.report)
    }

    /// Where its flows are found.
    #[inline]
    pub(crate) fn table(&self) -> &Table<FlowEntry, FiveTuple> {
        &self.table
    }

    /// Takes a frame as [`Meter::count`] does, and enters it at once; whether it is cut off.
    #[inline]
    pub(crate) fn cuts(
        &mut self,
        frame: &Frame<'_>,
        headers: [&Headers; 2],
        place: &FlowPlace,
        guess: Guess,
    ) -> bool {
        debug_assert!(self.following.is_some(), "limits are followed");
        self.now_ns = frame.ns;
        let is_cut = self.enter_followed(frame, headers, place, guess);
        if let Some(sampler) = &mut self.sampler
            && sampler.look(frame.bytes, headers[1], self.seen.len())
        {
            let seen = self.seen_frame(frame, headers, place);
            self.seen.push(seen);
            if self.seen.len() >= MOST_SEEN {
                self.handled();
            }
        }
        is_cut
    }

    #[inline]
    fn enter_followed(
        &mut self,
        frame: &Frame<'_>,
        headers: [&Headers; 2],
        place: &FlowPlace,
        guess: Guess,
    ) -> bool {
        let found = self.table.find(guess, place.hash, &place.key);
        if let (Some(at), Some(following)) = (found, &mut self.following) {
            let flow = self.table.get_mut(at);
            let goes_on = frame.ns.saturating_sub(flow.last_ns()) < following.silence_ns
                && frame.ns.saturating_sub(flow.first_ns()) < self.active_ns
                && !flow.is_blank()
                && !(flow.has_ended() && opens(place.tcp_flags));
            if goes_on {
                return following.cuts(flow, at, frame, place);
            }
        }
        self.enter_first(found, frame, headers, place)
    }

    /// The same of a flow that is new, or of which the record or the limit may begin anew.
    #[cold]
    fn enter_first(
        &mut self,
        found: Option<usize>,
        frame: &Frame<'_>,
        headers: [&Headers; 2],
        place: &FlowPlace,
    ) -> bool {
        let seen = self.seen_frame(frame, headers, place);
        let at = match found {
            Some(at) => {
                self.renew(at, frame, &seen);
                Some(at)
            }
            None => self.begin(&seen),
        };
        let Some(following) = &mut self.following else {
            return false;
        };
        let Some(at) = at else {
            following.report.untracked_frames += 1;
            return false;
        };
        let flow = self.table.get_mut(at);
        if found.is_none() {
            following.begin_anew(flow, at, frame);
        }
        following.cuts(flow, at, frame, place)
    }

    /// What is kept of a frame, which is the only one of its batch that may have an outermost packet.
    #[cold]
    #[inline(never)]
    fn seen_frame(
        &mut self,
        frame: &Frame<'_>,
        [outer, inner]: [&Headers; 2],
        place: &FlowPlace,
    ) -> SeenFrame {
        let Frame { bytes, len, ns, .. } = *frame;
        self.outers.clear();
        SeenFrame::new(bytes, len, ns, outer, inner, Some(place), &mut self.outers)
    }

    /// Lets a flow's record end and its limit begin anew, each if its time is over when this frame comes.
    fn renew(&mut self, at: usize, frame: &Frame<'_>, seen: &SeenFrame) {
        let flow = self.table.get(at);
        let (last_ns, has_ended) = (flow.last_ns(), flow.has_ended());
        self.end_record(at, frame.ns);
        let outer = self.outer_of(seen);
        let Some(following) = &mut self.following else {
            return;
        };
        let (flow, apart) = self.table.both_mut(at);
        if (following.limits).begins_anew(last_ns, has_ended, frame.ns, seen.flags) {
            following.begin_anew(flow, at, frame);
        }
        if flow.is_blank() {
            flow.begin_again(seen);
            *apart = outer;
            following.blank -= 1;
        }
    }
}
