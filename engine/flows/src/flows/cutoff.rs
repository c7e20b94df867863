//! Flow cutoff (limits on how much of a flow is kept) with flow records: the table of open flow
//! records also counts towards the limits.
//!
//! A frame is added at once instead of with its batch, since the decision to keep it depends on all
//! frames before. The volume of a flow is the sum of its entry's counters and of the counters of
//! its earlier records; the latter are accessed for few frames. A record may end while the limit
//! still applies, and vice versa. A flow whose record has ended stays while its limit applies;
//! without frames it is not written.
//!
//! Unlike the cutoff's own table, a full table frees places by ending the records of old flows,
//! whose limits then start again.

use super::{
    entry::FlowEntry,
    following::LimitProgress,
    meter::Meter,
    seen::{MOST_SEEN, SeenFrame},
};
use crate::{
    flow_table::{FlowPlace, Guess, Table},
    limits::{CutoffPlan, CutoffReport},
};
use wqcap_core::consumer::Frame;
use wqcap_frame::{Headers, Tcp};

impl Meter {
    /// Makes the flow meter apply the limits of a cutoff (how much of each flow is kept) from now
    /// on. The flow table must be empty.
    pub fn follow(&mut self, plan: &CutoffPlan) {
        let following = LimitProgress::new(plan, self.table.capacity(), self.idle_ns);
        self.following = Some(Box::new(following));
    }

    /// Returns the counters of frames that the cutoff left out so far.
    pub fn cutoff(&self) -> CutoffReport {
        let following = self.following.as_ref();
        following.map_or_else(CutoffReport::default, |it| it.report)
    }

    /// Returns the table of open flows of the flow meter.
    #[inline]
    pub fn table(&self) -> &Table<FlowEntry> {
        &self.table
    }

    /// Counts a frame in its flow at once instead of with its batch, and returns `true` if the
    /// frame is beyond the flow's cutoff limit, so that it is left out.
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
        let before = self.sample_names(frame, headers, place);
        let found = self.table.find(guess, place.hash, &place.key);
        if let (Some(at), Some(following)) = (found, &mut self.following) {
            let (flow, apart) = self.table.both_mut(at);
            let may_restart = frame.ns.saturating_sub(flow.last_ns()) >= following.silence_ns
                || flow.has_lasted(self.active, frame.ns, || apart)
                || flow.is_blank()
                || place.tcp_flags & Tcp::SYN != 0;
            if !may_restart {
                return following.cuts((flow, apart), at, frame, place);
            }
        }
        self.enter_first(found, frame, headers, place, before)
    }

    /// Slow path of [`Meter::cuts`]: the frame's flow is new, or the flow's record or limit may
    /// start again. `before`: the number of waiting frames that came before this one.
    #[cold]
    fn enter_first(
        &mut self,
        found: Option<usize>,
        frame: &Frame<'_>,
        headers: [&Headers; 2],
        place: &FlowPlace,
        before: usize,
    ) -> bool {
        let seen = self.seen_frame(frame, headers, place);
        let numbers = self.details.syns.first().map(|it| it.numbers);
        let at = match found {
            Some(at) => {
                self.renew(at, frame, &seen, numbers, before);
                Some(at)
            }
            None => self.begin(&seen, numbers),
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
            following.restart_limit((flow, apart), at, frame);
        }
        following.cuts((flow, apart), at, frame, place)
    }

    /// Copies the payload of a frame if it may contain a name. The copy is sent with the frame
    /// batch, after this frame is added to its flow. Returns the number of waiting frames before
    /// this one.
    #[inline]
    fn sample_names(
        &mut self,
        frame: &Frame<'_>,
        headers: [&Headers; 2],
        place: &FlowPlace,
    ) -> usize {
        if self.seen.len() >= MOST_SEEN {
            self.handled();
        }
        let before = self.seen.len();
        if let Some(sampler) = &mut self.sampler
            && sampler.sample_frame(frame.bytes, headers[1], before)
        {
            let seen = self.seen_frame(frame, headers, place);
            self.seen.push(seen);
        }
        before
    }

    /// Returns the data of a frame that is needed to add it to its flow. It is the only frame of
    /// the batch that may have details.
    #[cold]
    #[inline(never)]
    fn seen_frame(
        &mut self,
        frame: &Frame<'_>,
        [outer, inner]: [&Headers; 2],
        place: &FlowPlace,
    ) -> SeenFrame {
        let (flags, details) = (place.tcp_flags, &mut self.details);
        details.clear();
        if flags & Tcp::SYN != 0 {
            details.push_syn(0, frame.bytes, inner);
        }
        SeenFrame::new(frame, outer, inner, Some(place), flags, details)
    }

    /// Ends a flow's record, and restarts the flow's cutoff limit, each if its time is over when
    /// this frame arrives.
    fn renew(
        &mut self,
        at: usize,
        frame: &Frame<'_>,
        seen: &SeenFrame,
        numbers: Option<[u32; 2]>,
        before: usize,
    ) {
        let flow = self.table.get(at);
        let (last_ns, has_ended) = (flow.last_ns(), flow.has_ended());
        let end = self.ended_by(at, seen, numbers);
        if end.is_some()
            && let Some(sampler) = &mut self.sampler
        {
            sampler.hand_over(&self.seen[..before], &mut self.table, self.queue);
        }
        self.end_record(at, end);
        let outer = self.outer_of(seen);
        let Some(following) = &mut self.following else {
            return;
        };
        let (flow, apart) = self.table.both_mut(at);
        if (following.limits).restarts(last_ns, has_ended, frame.ns, seen.flags) {
            following.restart_limit((flow, apart), at, frame);
        }
        if flow.is_blank() {
            flow.restart_record(apart, seen, outer, numbers);
            following.blank -= 1;
        } else if let Some(numbers) = numbers {
            flow.note_syn(apart, seen, numbers);
        }
    }
}
