//! Meter of one queue: adds each frame to its flow, and sends finished flows to the writer.
//!
//! Frames are added in batches, in the order of their arrival, and each at the time of its stamp.
//! The records are the same as if each frame were added at once. After a batch no frame waits.
//!
//! The frames' time stamps are the clock. A flow that was silent for too long, or has lasted too
//! long, is ended by its own next frame, or by a sweep, which covers a part of the table with every
//! batch. Records travel in batches whose memory is returned. While no batch is free, flows stay in
//! the table beyond their time. Only a full table needs a free batch at once; without one, a frame
//! of a new flow is counted as missed.

use super::{
    FlowTotals, FlowsPlan, PortLabels,
    entry::{FlowApart, FlowEntry, Lifetime},
    following::LimitProgress,
    record::{FlowEndReason, FlowRecord},
    sample::{PayloadSampler, SampleChannels},
    seen::{MOST_SEEN, SeenDetails, SeenFrame, SeenSyn},
};
use crate::flow_table::{HashSeed, Table, hash_seed};
use crossbeam_channel::{Receiver, Sender};
use std::{
    sync::{Arc, Mutex},
    time::Instant,
};
use wqcap_core::{consumer::Frame, time::nanos};
use wqcap_frame::{FiveTuple, Headers, Tcp};

/// Number of flow records in a batch that a flow meter sends to the writer.
pub(super) const RECORDS: usize = 256;
/// Interval of a meter's sweeps, each over a part of the flow table.
const STEP_NS: u64 = 1_000_000;
/// Maximum time that a flow record waits in an incomplete batch.
const LINGER_NS: u64 = 200_000_000;
/// Maximum number of flows that a sweep of the flow table checks, since it adds to the cost of a
/// frame batch.
const STEP_FLOWS: u64 = 512;
/// Maximum number of flows that a sweep of the flow table checks while no frames arrive, five times
/// per second. Frames may arrive again at any moment.
const IDLE_FLOWS: u64 = 8192;
/// Number of flows among which the oldest one is evicted from a full flow table.
const CANDIDATES: usize = 8;

/// Channels of a flow meter for batches of flow records, and for payloads with possible names if
/// names are read.
#[derive(Clone)]
pub(super) struct MeterChannels {
    pub(super) empty: Receiver<Vec<FlowRecord>>,
    pub(super) full: Sender<Vec<FlowRecord>>,
    pub(super) samples: Option<SampleChannels>,
    /// `true` if the meter waits for free batches and memory instead of missing frames: its frames
    /// can be delayed.
    pub(super) waits: bool,
}

/// Flow meter of one queue: adds the queue's frames to flows.
pub struct Meter {
    pub(super) queue: u16,
    /// Labels of the ports that the meter's frames come from, by [`Frame::port`].
    ports: PortLabels,
    pub(super) table: Table<FlowEntry>,
    /// Progress of the meter's flows towards their cutoff limits; `None`: no limits apply.
    pub(super) following: Option<Box<LimitProgress>>,
    /// Frames that the meter has received but not added to their flows yet. With a cutoff
    /// (`[[cutoff]]`), only frames whose payload may have a name, such as a DNS or TLS server name.
    pub(super) seen: Vec<SeenFrame>,
    /// Data that few of the waiting frames have, such as tunnel packets and SYN numbers.
    pub(super) details: SeenDetails,
    seed: HashSeed,
    pub(super) active: Lifetime,
    pub(super) idle_ns: u64,
    exchange: MeterChannels,
    /// Sampler of payloads with possible names; `None`: names are not read.
    pub(super) sampler: Option<PayloadSampler>,
    /// Batch of flow records that is being filled; `None`: no batch has been taken.
    batch: Option<Vec<FlowRecord>>,
    totals: FlowTotals,
    published: Arc<Mutex<FlowTotals>>,
    /// Time stamp of the last frame, in nanoseconds since 1970.
    pub(super) now_ns: u64,
    /// Position in the flow table where the next sweep starts.
    cursor: usize,
    /// Time stamp at the last sweep over the flow table, in nanoseconds since 1970.
    stepped_ns: u64,
    /// Time stamp when the meter last sent flow records, in nanoseconds since 1970.
    sent_ns: u64,
    idle_since: Option<Instant>,
}

impl Meter {
    pub(super) fn new(
        queue: u16,
        ports: PortLabels,
        plan: &FlowsPlan,
        mut exchange: MeterChannels,
        published: Arc<Mutex<FlowTotals>>,
    ) -> Self {
        Self {
            queue,
            ports,
            table: Table::new(plan.capacity),
            following: None,
            seen: Vec::with_capacity(MOST_SEEN),
            details: SeenDetails::new(),
            seed: hash_seed(),
            active: Lifetime::from_ns(plan.active_ns),
            idle_ns: plan.idle_ns,
            sampler: exchange.samples.take().map(PayloadSampler::new),
            exchange,
            batch: None,
            totals: FlowTotals::default(),
            published,
            now_ns: 0,
            cursor: 0,
            stepped_ns: 0,
            sent_ns: 0,
            idle_since: None,
        }
    }

    /// Counts a frame for flow records, given its outermost and innermost headers. The frame is
    /// added to its flow with its batch. The meter must not follow cutoff limits.
    #[inline]
    pub fn count(&mut self, frame: &Frame<'_>, outer: &Headers, inner: &Headers) {
        self.now_ns = frame.ns;
        let flags = inner.tcp_flags(frame.bytes);
        let details = &mut self.details;
        self.seen
            .push(SeenFrame::new(frame, outer, inner, None, flags, details));
        let at = self.seen.len() - 1;
        if flags & Tcp::SYN != 0 {
            self.details.push_syn(at, frame.bytes, inner);
        }
        if let Some(sampler) = &mut self.sampler {
            sampler.sample_frame(frame.bytes, inner, at);
        }
        if self.seen.len() >= MOST_SEEN {
            self.handled();
        }
    }

    /// Counts frames that were lost before the flow meter, so that their flows are unknown.
    pub(crate) fn missed(&mut self, frames: u64) {
        self.totals.missed_frames += frames;
    }

    /// Ends a batch of frames: adds those that wait to their flows.
    pub fn handled(&mut self) {
        let mut seen = std::mem::take(&mut self.seen);
        if self.following.is_none() {
            self.enter_all(&mut seen);
        }
        if let Some(sampler) = &mut self.sampler {
            sampler.hand_over(&seen, &mut self.table, self.queue);
        }
        seen.clear();
        self.seen = seen;
        self.details.clear();
    }

    #[inline]
    fn enter_all(&mut self, seen: &mut [SeenFrame]) {
        // Short loops, so that the cache misses of many frames overlap. Misses of the index overlap
        // with the hashing of keys.
        let is_large = self.table.is_large();
        for frame in seen.iter_mut() {
            frame.place(self.seed);
            if is_large {
                self.table.prefetch(frame.hash);
            }
        }
        for frame in seen.iter_mut() {
            frame.guess = self.table.guess(frame.hash, &frame.key);
        }
        if is_large {
            for frame in seen.iter() {
                self.table.touch(frame.guess, &frame.key);
            }
        }
        // Frames between segments with SYN, which few frames are.
        let (mut start, mut syns) = (0, 0);
        loop {
            let syn = self.details.syns.get(syns).copied();
            let end = syn.map_or(seen.len(), |it| it.at);
            for frame in &seen[start..end] {
                self.enter(frame, seen);
            }
            let Some(syn) = syn else { break };
            self.enter_syn(seen, syn);
            (start, syns) = (end + 1, syns + 1);
        }
    }

    /// Adds a frame that is no TCP segment with SYN, one of `seen`, to its flow.
    #[inline]
    fn enter(&mut self, frame: &SeenFrame, seen: &[SeenFrame]) {
        let found = self.table.find(frame.guess, frame.hash, &frame.key);
        let lasts =
            |&at: &usize| self.ended(at, frame.ns).is_none() || self.lasts(at, frame, seen, None);
        let at = found.filter(lasts).or_else(|| self.begin(frame, None));
        self.add(at, frame);
    }

    /// Adds a TCP segment with SYN to its flow. It may open another connection.
    #[cold]
    #[inline(never)]
    fn enter_syn(&mut self, seen: &[SeenFrame], SeenSyn { at, numbers }: SeenSyn) {
        let (frame, numbers) = (&seen[at], Some(numbers));
        let found = self.table.search(frame.hash, &frame.key);
        let lasts = |&at: &usize| self.lasts(at, frame, seen, numbers);
        let at = found.filter(lasts).or_else(|| self.begin(frame, numbers));
        self.add(at, frame);
    }

    /// Counts a frame in the flow at position `at` of the flow table; with `None`, counts it as
    /// missed.
    #[inline]
    fn add(&mut self, at: Option<usize>, frame: &SeenFrame) {
        if let Some(at) = at {
            let (flow, apart) = self.table.both_mut(at);
            let SeenFrame {
                upward,
                flags,
                len,
                ns,
                port,
                ..
            } = *frame;
            flow.count(apart, upward, flags, len, ns, port);
        }
    }

    /// Inserts a new flow into the flow table for its first frame, which is not counted yet.
    /// `numbers` are the TCP numbers of a segment with SYN. Returns `None` if the table stays full:
    /// the frame is missed.
    pub(super) fn begin(&mut self, first: &SeenFrame, numbers: Option<[u32; 2]>) -> Option<usize> {
        if self.table.is_full() && !self.evict() {
            self.totals.missed_frames += 1;
            self.totals.missed_bytes += u64::from(first.len);
            return None;
        }
        let (flow, apart) = FlowEntry::begin(first, self.outer_of(first), numbers);
        self.table.insert(flow, apart);
        if let Some(following) = &mut self.following {
            following.push();
        }
        Some(self.table.len() - 1)
    }

    /// Returns the outermost packet of a frame that came in a tunnel.
    pub(super) fn outer_of(&self, frame: &SeenFrame) -> Option<FiveTuple> {
        let outer = (self.details.outers.get(usize::from(frame.outer))).filter(|_| frame.tunnel);
        outer.copied()
    }

    /// Returns the reason for ending a flow's record at the time `ns`; `None`: the record
    /// continues.
    #[inline]
    fn ended(&self, at: usize, ns: u64) -> Option<FlowEndReason> {
        let flow = self.table.get(at);
        if ns.saturating_sub(flow.last_ns()) >= self.idle_ns {
            Some(FlowEndReason::Idle)
        } else if flow.has_lasted(self.active, ns, || self.table.apart(at)) {
            Some(FlowEndReason::Active)
        } else {
            None
        }
    }

    /// Returns the reason for which a frame ends the record of its flow; `None`: it belongs to the
    /// record. `numbers` are the TCP numbers of a segment with SYN.
    pub(super) fn ended_by(
        &self,
        at: usize,
        frame: &SeenFrame,
        numbers: Option<[u32; 2]>,
    ) -> Option<FlowEndReason> {
        self.ended(at, frame.ns).or_else(|| {
            let (flow, apart) = (self.table.get(at), self.table.apart(at));
            let is_reused = flow.is_reused_by(apart, frame, numbers?);
            is_reused.then_some(FlowEndReason::Reused)
        })
    }

    /// Returns `true` if the record of a frame's flow continues; otherwise the record has ended and
    /// the flow is removed. The frame is one of `seen`, those that wait. `numbers` are the TCP
    /// numbers of a segment with SYN. Without a free batch the record continues: a record that is
    /// too long is better than none.
    #[cold]
    #[inline(never)]
    fn lasts(
        &mut self,
        at: usize,
        frame: &SeenFrame,
        seen: &[SeenFrame],
        numbers: Option<[u32; 2]>,
    ) -> bool {
        let end = self.ended_by(at, frame, numbers);
        if let Some(end) = end.filter(|_| self.has_room()) {
            // Payloads of the frames before this one belong to the ended record.
            let before = seen.split(|it| std::ptr::eq(it, frame)).next();
            if let (Some(sampler), Some(before)) = (&mut self.sampler, before) {
                sampler.hand_over(before, &mut self.table, self.queue);
            }
            self.take_out(at, end);
            return false;
        }
        if let Some(numbers) = numbers {
            let (flow, apart) = self.table.both_mut(at);
            flow.note_syn(apart, frame, numbers);
        }
        true
    }

    /// Removes a flow whose record is due to end. Returns `false` if no batch is free for the
    /// record, or if the flow's cutoff limit still applies.
    #[cold]
    fn end(&mut self, at: usize, ns: u64) -> bool {
        let flow = self.table.get(at);
        let is_followed = (self.following.as_ref()).is_some_and(|it| it.lasts(flow, ns));
        if is_followed {
            self.end_record(at, self.ended(at, ns));
            return false;
        }
        if flow.is_blank() {
            self.remove(at);
            return true;
        }
        match self.ended(at, ns) {
            Some(end) if self.has_room() => {
                self.take_out(at, end);
                true
            }
            _ => false,
        }
    }

    /// Ends a flow's record for the reason `end`, if there is one and a batch for the record is
    /// free. The flow stays in the table.
    pub(super) fn end_record(&mut self, at: usize, end: Option<FlowEndReason>) {
        if self.table.get(at).is_blank() {
            return;
        }
        let Some(end) = end.filter(|_| self.has_room()) else {
            return;
        };
        let (flow, apart) = self.table.both_mut(at);
        let record = flow.record(apart, self.queue, &self.ports, end);
        if let Some(following) = &mut self.following {
            following.make_blank((flow, apart), at);
        }
        self.push(record);
    }

    /// Evicts an old flow from the full flow table; returns `false` if no batch is free for its
    /// record.
    #[cold]
    fn evict(&mut self) -> bool {
        // The next positions of the sweep are as good as any: the order in the table is arbitrary.
        let len = self.table.len();
        let oldest = (0..CANDIDATES.min(len))
            .map(|i| (self.cursor + i) % len)
            .min_by_key(|&at| self.table.get(at).last_ns());
        let Some(at) = oldest else { return false };
        if self.table.get(at).is_blank() {
            self.remove(at);
        } else if self.has_room() {
            self.totals.evicted += 1;
            self.take_out(at, FlowEndReason::Evicted);
        } else {
            return false;
        }
        self.cursor = (self.cursor + CANDIDATES) % len;
        true
    }

    /// Starts a batch of frames from the receive loop: adds waiting frames to their flows, and
    /// sweeps a part of the flow table if that is due.
    #[inline]
    pub fn batch(&mut self) {
        self.handled();
        self.idle_since = None;
        if self.now_ns.saturating_sub(self.stepped_ns) >= STEP_NS {
            self.step(self.now_ns);
        }
    }

    /// Advances the flow meter's time by the system clock while no frame arrives.
    pub fn idle(&mut self) {
        self.handled();
        if self.now_ns == 0 {
            return;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        let silent = nanos(since.elapsed());
        self.sweep(self.now_ns.saturating_add(silent), IDLE_FLOWS);
        self.send();
    }

    /// Sweeps a part of the flow table in proportion to the elapsed time: the whole table within
    /// half of the idle time or the active time, whichever is shorter.
    #[cold]
    fn step(&mut self, ns: u64) {
        let passed = ns.saturating_sub(self.stepped_ns);
        let round = (self.idle_ns.min(self.active.ns()) / 2).max(STEP_NS);
        let flows = (self.table.len() as u64)
            .saturating_mul(passed)
            .div_ceil(round);
        self.stepped_ns = ns;
        self.sweep(ns, flows.min(STEP_FLOWS));
        if ns.saturating_sub(self.sent_ns) >= LINGER_NS {
            self.send();
            self.sent_ns = ns;
        }
    }

    /// Checks `flows` flows of the flow table, and ends those whose records are due.
    fn sweep(&mut self, ns: u64, flows: u64) {
        for _ in 0..flows.min(self.table.len() as u64) {
            if self.table.is_empty() {
                break;
            }
            if self.cursor >= self.table.len() {
                self.cursor = 0;
            }
            // After a removal, another flow is at this position and is checked next.
            if !self.end(self.cursor, ns) {
                self.cursor += 1;
            }
        }
    }

    /// Returns `true` if a batch has room for one more flow record; takes a free batch if needed.
    fn has_room(&mut self) -> bool {
        if self.batch.is_none() {
            self.batch = match self.exchange.waits {
                true => self.exchange.empty.recv().ok(),
                false => self.exchange.empty.try_recv().ok(),
            };
        }
        self.batch.is_some()
    }

    /// Removes a flow from the flow table, and adds its record to the batch. There must be a free
    /// batch.
    fn take_out(&mut self, at: usize, end: FlowEndReason) {
        let (flow, apart) = self.remove(at);
        if !flow.is_blank() {
            self.push(flow.record(&apart, self.queue, &self.ports, end));
        }
    }

    fn remove(&mut self, at: usize) -> (FlowEntry, FlowApart) {
        let (flow, apart) = self.table.remove(at);
        if let Some(following) = &mut self.following {
            following.remove(at, flow.is_blank());
        }
        (flow, apart)
    }

    /// Adds a flow record to the meter's batch. There must be a free batch.
    fn push(&mut self, record: FlowRecord) {
        self.totals.add(&record);
        if let Some(batch) = &mut self.batch {
            batch.push(record);
            if batch.len() == RECORDS {
                self.send();
            }
        }
    }

    /// Sends the meter's current batch of flow records to the writer, and publishes the totals.
    fn send(&mut self) {
        if let Some(batch) = self.batch.take_if(|it| !it.is_empty()) {
            // The channel has room for every existing batch, and the writer outlives the meters.
            let _ = self.exchange.full.send(batch);
        }
        let blank = self.following.as_ref().map_or(0, |it| it.blank);
        self.totals.flows = (self.table.len() - blank) as u64;
        self.totals.missed_payloads = self.sampler.as_ref().map_or(0, PayloadSampler::missed);
        if let Ok(mut seen) = self.published.try_lock() {
            *seen = self.totals;
        }
    }
}

impl Drop for Meter {
    /// Ends all open flow records with the capture. Waits for free batches, since no frame is
    /// delayed by it.
    fn drop(&mut self) {
        self.handled();
        if let Some(sampler) = &mut self.sampler {
            sampler.end();
        }
        while !self.table.is_empty() {
            if self.batch.is_none() {
                self.batch = self.exchange.empty.recv().ok();
            }
            if self.batch.is_none() {
                // The writer has ended and has reported the reason.
                break;
            }
            self.take_out(self.table.len() - 1, FlowEndReason::Stopped);
        }
        self.send();
        if let Ok(mut seen) = self.published.lock() {
            *seen = self.totals;
        }
    }
}
