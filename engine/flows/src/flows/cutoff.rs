//! Flow cutoff where there are flow records: the table of the records follows the limits too.
//!
//! A frame is entered at once instead of with its batch, since whether it is kept depends on all frames before it. How far
//! a flow has come is what its entry counts, and what earlier records of it have counted, which is touched for few frames:
//! a record may end while the limit goes on, and the other way round. A flow whose record has ended stays as long as the
//! limit lasts, without frames, and is then written by no one.
//!
//! Unlike the cutoff's own table, a full one makes room by ending the records of old flows, which then begin anew.

use super::{
    entry::FlowEntry,
    following::Following,
    meter::Meter,
    seen::{MOST_SEEN, SeenFrame},
};
use crate::{
    flow_table::{FlowPlace, Guess, Table},
    limits::{CutoffPlan, CutoffReport, opens},
};
use wqcap_core::consumer::Frame;
use wqcap_frame::Headers;

impl Meter {
    /// Has the limits of a cutoff followed from now on. There must be no flows yet.
    pub fn follow(&mut self, plan: &CutoffPlan) {
        let following = Following::new(plan, self.table.capacity(), self.idle_ns);
        self.following = Some(Box::new(following));
    }

    /// What was cut off so far.
    pub fn cutoff(&self) -> CutoffReport {
        let following = self.following.as_ref();
        following.map_or_else(CutoffReport::default, |it| it.report)
    }

    /// Where its flows are found.
    #[inline]
    pub fn table(&self) -> &Table<FlowEntry> {
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
        self.look_for_names(frame, headers, place);
        let found = self.table.find(guess, place.hash, &place.key);
        if let (Some(at), Some(following)) = (found, &mut self.following) {
            let (flow, apart) = self.table.both_mut(at);
            let may_begin_anew = frame.ns.saturating_sub(flow.last_ns()) >= following.silence_ns
                || flow.has_lasted(self.active, frame.ns, || apart)
                || flow.is_blank()
                || flow.has_ended() && opens(place.tcp_flags);
            if !may_begin_anew {
                return following.cuts((flow, apart), at, frame, place);
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
        let (flow, apart) = self.table.both_mut(at);
        if found.is_none() {
            following.begin_anew((flow, apart), at, frame);
        }
        following.cuts((flow, apart), at, frame, place)
    }

    /// Copies what may tell a name. It is handed over with the batch, when this frame is in its flow.
    #[inline]
    fn look_for_names(&mut self, frame: &Frame<'_>, headers: [&Headers; 2], place: &FlowPlace) {
        if self.seen.len() >= MOST_SEEN {
            self.handled();
        }
        if let Some(sampler) = &mut self.sampler
            && sampler.look(frame.bytes, headers[1], self.seen.len())
        {
            let seen = self.seen_frame(frame, headers, place);
            self.seen.push(seen);
        }
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
            following.begin_anew((flow, apart), at, frame);
        }
        if flow.is_blank() {
            flow.begin_again(apart, seen, outer);
            following.blank -= 1;
        }
    }
}
