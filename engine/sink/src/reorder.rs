//! `output.order = "time"`: the records of all queues in one row, by their stamps, while they come.
//!
//! ```text
//! queue's sink -> relay blocks -> orderer, a thread -> one more sink, or stdout
//!       ^                            |
//!       +------- empty blocks -------+
//! ```
//!
//! The next record is certain when every queue has shown one. A queue that is silent cannot be waited for for ever: a
//! block's records go on when it has been here for [`WINDOW`], silent queues have had blocks to fill for as long, and have
//! been seen idle since, or for [`LONGEST`]. With `on_full = "drop"`, they also go on when a queue has no block left to
//! fill, or it would drop frames. What comes with an earlier stamp after that is counted as `late`, and not written: the
//! order holds without exception.
//!
//! With `capture.dedup` a frame that repeats one of another queue is left out here, and counted as `deduplicated`; repetitions
//! within a queue were left out before. The steps behind deduplication follow here, too ([`InOrder`]): queues relay whole
//! frames, and only frames that repeat none are sampled, cut off, observed and sliced.
//!
//! Invariant: a queue sends what it has within [`HELD_NS`] of stamps, or when it falls idle, both well below
//! [`WINDOW`]. So nothing is late unless a loop gets no turn for [`LONGEST`].

use crate::{
    BlockSink, Encoder, Note, Record, Requests, Totals,
    block::{Block, Full},
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use wqcap_core::{
    consumer::{Consumer, Fcs, Frame, Judge, Verdict},
    settings::OnFull,
    stats::QueueCounters,
};
use wqcap_frame::dedup::DedupWindow;

/// How long a record waits for earlier ones of silent queues.
const WINDOW: Duration = Duration::from_secs(1);
/// The same for queues whose loops are not heard of.
const LONGEST: Duration = Duration::from_secs(5);
/// How long a queue fills a relay block, in nanoseconds of stamps.
pub(super) const HELD_NS: u64 = 100_000_000;
/// How long nothing must come before the output is told to let go of what it has.
const PAUSE: Duration = Duration::from_millis(100);

/// Stamp, frames lost before, captured length, length, three facts of the FCS, and whether a filter is told of.
const HEAD: usize = 28;
/// The longest filter that is relayed, in bytes. It must not make a record outgrow a block; files have room for less.
const MOST_FILTER: usize = 1500;
/// The captured length that marks a relay's end; its stamp is the count of frames lost on the whole.
const LAST: u32 = u32::MAX;

/// Writes records for the orderer's eyes.
#[derive(Clone, Copy, Debug)]
pub struct Relay;

impl Encoder for Relay {
    fn extension(&self) -> &'static str {
        ""
    }

    fn header(&mut self, _queue: Option<u16>, _ns: u64) -> Vec<u8> {
        Vec::new()
    }

    #[inline]
    fn record_len(&self, record: &Record<'_>) -> usize {
        HEAD + record.caplen()
    }

    #[inline]
    fn record(&self, out: &mut [u8], _queue: u16, record: &Record<'_>) {
        let (head, data) = out.split_at_mut(HEAD);
        head[..8].copy_from_slice(&record.ns.to_ne_bytes());
        head[8..16].copy_from_slice(&record.lost_before.to_ne_bytes());
        // A frame is far below 4 GiB.
        head[16..20].copy_from_slice(&(record.bytes.len() as u32).to_ne_bytes());
        head[20..24].copy_from_slice(&record.len.to_ne_bytes());
        // An FCS has four bytes.
        let fcs = [
            record.fcs.len() as u8,
            record.fcs_len as u8,
            u8::from(record.bad_fcs),
            0,
        ];
        head[24..].copy_from_slice(&fcs);
        record.copy_to(data);
    }

    fn filtered(&mut self, _filter: &str) -> bool {
        true
    }

    /// Behind the frame: the filter, and before it its length. Marks are for files, and no queue's.
    fn annotated(&self, queue: u16, record: &Record<'_>, notes: &[Note]) -> Vec<u8> {
        let mut out = vec![0; self.record_len(record)];
        self.record(&mut out, queue, record);
        let filter = notes.iter().find_map(|it| match it {
            Note::Filter(filter) => Some(filter),
            Note::Mark(_) => None,
        });
        let Some(filter) = filter else {
            return out;
        };
        out[HEAD - 1] = 1;
        let filter = &filter[..filter.floor_char_boundary(MOST_FILTER)];
        // It is bounded.
        out.extend((filter.len() as u16).to_ne_bytes());
        out.extend(filter.as_bytes());
        out
    }

    fn trailer(&self, totals: &Totals) -> Vec<u8> {
        let mut out = totals.dropped.to_ne_bytes().to_vec();
        out.extend([0; 8]);
        out.extend(LAST.to_ne_bytes());
        out.resize(HEAD, 0);
        out
    }
}

/// A record of a relay block, or the queue's last word.
enum Relayed<'a> {
    /// With the filter that holds from it on, if it tells of one.
    Record(Record<'a>, Option<&'a str>),
    Last {
        lost: u64,
    },
}

/// What stands at the beginning of `bytes`, and its length; `None`: nothing.
fn relayed(bytes: &[u8]) -> Option<(Relayed<'_>, usize)> {
    let word = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let long = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let (ns, lost_before, caplen, len) = (long(0)?, long(8)?, word(16)?, word(20)?);
    if caplen == LAST {
        return Some((Relayed::Last { lost: ns }, HEAD));
    }
    let [fcs, fcs_len, bad_fcs, tells] = *bytes.get(24..)?.first_chunk()?;
    let end_of_bytes = HEAD + caplen as usize;
    let end = end_of_bytes + usize::from(fcs);
    let (filter, after) = match tells {
        0 => (None, end),
        _ => {
            let len = u16::from_ne_bytes(*bytes.get(end..)?.first_chunk()?);
            let text = end + 2..end + 2 + usize::from(len);
            let filter = str::from_utf8(bytes.get(text.clone())?).ok()?;
            (Some(filter), text.end)
        }
    };
    let record = Record {
        ns,
        bytes: bytes.get(HEAD..end_of_bytes)?,
        len,
        fcs: bytes.get(end_of_bytes..end)?,
        fcs_len: fcs_len.into(),
        bad_fcs: bad_fcs != 0,
        lost_before,
    };
    Some((Relayed::Record(record, filter), after))
}

/// Where records go in the order of time.
pub(super) trait Ordered: Send {
    /// Takes a record, from which on a filter may hold for its queue; `false`: it is lost.
    fn put(&mut self, queue: u16, record: &Record<'_>, filter: Option<&str>) -> bool;
    /// Frames of a queue did not make it here.
    fn lost(&mut self, n: u64);
    /// Every record whose turn had come is put; `quiet`: nothing has come for a while, either.
    fn rest(&mut self, quiet: bool);
}

impl<E: Encoder> Ordered for BlockSink<E> {
    fn put(&mut self, queue: u16, record: &Record<'_>, filter: Option<&str>) -> bool {
        if let Some(filter) = filter {
            self.changed(filter);
        }
        let taken = self.take(queue, record) == Verdict::Captured;
        if taken {
            self.credit(queue, record.len);
        }
        taken
    }

    fn lost(&mut self, n: u64) {
        self.missed(n);
    }

    fn rest(&mut self, quiet: bool) {
        self.batch();
        if quiet {
            self.idle();
        }
    }
}

/// The steps for frames that are in order, where repetitions are sought among all queues.
pub struct InOrder {
    /// Recent frames of all queues.
    pub window: DedupWindow,
    /// The further steps of each queue, by its number.
    pub stages: Vec<Box<dyn Judge>>,
    /// Bytes of a frame that are written at most.
    pub snaplen: usize,
}

impl InOrder {
    /// Has a frame pass all steps. The record becomes what is to be written of the frame.
    fn judge(&mut self, queue: usize, record: &mut Record<'_>, is_late: bool) -> Verdict {
        // A frame that came late is not compared: the window has moved on.
        if !is_late && self.window.repeats(record.bytes, record.len, record.ns) {
            return Verdict::Deduplicated;
        }
        let fcs = (record.fcs.first_chunk()).map(|&bytes| Fcs {
            bytes,
            bad: record.bad_fcs,
        });
        let mut frame = Frame {
            bytes: record.bytes,
            len: record.len,
            fcs,
            ns: record.ns,
        };
        let verdict = self.stages[queue].judge(&mut frame);
        let kept = frame.bytes.len().min(self.snaplen);
        // An FCS is written behind a whole frame alone, and within the snaplen.
        if kept < record.bytes.len() || kept + record.fcs.len() > self.snaplen {
            record.fcs = &[];
        }
        record.bytes = &record.bytes[..kept];
        verdict
    }

    fn each(&mut self, step: impl Fn(&mut dyn Judge)) {
        for stage in &mut self.stages {
            step(&mut **stage);
        }
    }
}

/// A queue as the orderer sees it.
pub(super) struct Line {
    pub(super) counters: Arc<QueueCounters>,
    /// Emptied blocks go back here.
    pub(super) empty: Sender<Block>,
    /// Since when it has had blocks to fill, or been about to.
    free_since: Instant,
    /// When its queue was last known to be empty.
    empty_at: Option<Instant>,
    /// Blocks here, oldest first, and when they came.
    pub(super) blocks: VecDeque<(Instant, Block)>,
    /// Where in the oldest the next record begins.
    pub(super) at: usize,
    /// No more will come.
    pub(super) ended: bool,
    /// Frames it has reported as lost so far.
    pub(super) lost: u64,
    /// Lost frames that the line's stage behind the order has not counted as missed yet.
    unseen: u64,
    /// Filter that the line's next record announces, because the record that announced it was left out.
    filter: Option<String>,
    /// Frames lost right before records that were left out: the next record that is written names them.
    owed_lost: u64,
}

impl Line {
    pub(super) fn new(counters: Arc<QueueCounters>, empty: Sender<Block>) -> Self {
        Self {
            counters,
            empty,
            free_since: Instant::now(),
            empty_at: None,
            blocks: VecDeque::new(),
            at: 0,
            ended: false,
            lost: 0,
            unseen: 0,
            filter: None,
            owed_lost: 0,
        }
    }

    /// Its next record's stamp, after letting go of blocks that are read.
    fn next_ns(&mut self, out: &mut dyn Ordered, now: Instant) -> Option<u64> {
        loop {
            let (_, block) = self.blocks.front()?;
            match relayed(&block.memory.as_slice(block.len)[self.at..]) {
                Some((Relayed::Record(record, _), _)) => return Some(record.ns),
                Some((Relayed::Last { lost }, len)) => {
                    let more = lost.saturating_sub(self.lost);
                    out.lost(more);
                    self.unseen += more;
                    (self.lost, self.ended) = (lost, true);
                    self.at += len;
                }
                None => {
                    let (_, block) = self.blocks.pop_front()?;
                    self.at = 0;
                    if self.empty.is_empty() {
                        // The output may have stood still since `now`.
                        self.free_since = now.max(Instant::now());
                    }
                    // The sink may be gone already, and with it the need for blocks.
                    let _ = self.empty.send(block);
                }
            }
        }
    }
}

/// Passes flushes on: requested of the queues' sinks, and of the output once all that they sent is put.
pub(super) struct Flushes {
    queues: Arc<Requests>,
    output: Arc<Requests>,
    /// The flush under way, and when everything that queues sent for it was here.
    arrived: Option<(u64, Instant)>,
    /// Number of the latest flush that was passed on.
    passed: u64,
}

impl Flushes {
    pub(super) fn new(queues: &Arc<Requests>, output: &Arc<Requests>) -> Self {
        Self {
            queues: Arc::clone(queues),
            output: Arc::clone(output),
            arrived: None,
            passed: 0,
        }
    }

    /// Returns the number of the flush for which all queues have sent their blocks, which are in the channel or have arrived.
    fn sent(&self) -> Option<u64> {
        let latest = self.queues.latest_flush();
        (latest != self.passed && self.arrived.is_none() && self.queues.is_sent(latest))
            .then_some(latest)
    }

    /// Passes the flush on if `lines` have no block left that had arrived for it.
    fn pass(&mut self, lines: &[Line]) {
        let Some((flush, at)) = self.arrived else {
            return;
        };
        let is_put = |it: &Line| it.blocks.front().is_none_or(|(came, _)| *came > at);
        if lines.iter().all(is_put) {
            self.output.flush_up_to(flush);
            (self.arrived, self.passed) = (None, flush);
        }
    }
}

/// The thread's work.
pub(super) struct Reorderer<O> {
    pub(super) full: Receiver<Full>,
    pub(super) lines: Vec<Line>,
    pub(super) out: O,
    /// What queues do that have no block to fill.
    on_full: OnFull,
    /// The steps for frames that are in order; `None`: frames are written as they were relayed.
    in_order: Option<InOrder>,
    flushes: Option<Flushes>,
    /// The next record of each queue that has one.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    /// Queues that may still send something and have shown nothing.
    silent: usize,
    last_ns: u64,
}

impl<O: Ordered> Reorderer<O> {
    pub(super) fn new(full: Receiver<Full>, lines: Vec<Line>, on_full: OnFull, out: O) -> Self {
        Self {
            full,
            on_full,
            in_order: None,
            flushes: None,
            heads: BinaryHeap::with_capacity(lines.len()),
            silent: lines.len(),
            lines,
            out,
            last_ns: 0,
        }
    }

    /// Has frames that are in order pass these steps before they are written.
    pub(super) fn with_steps(self, in_order: Option<InOrder>) -> Self {
        Self { in_order, ..self }
    }

    /// Passes flushes on.
    pub(super) fn with_flushes(self, flushes: Flushes) -> Self {
        Self {
            flushes: Some(flushes),
            ..self
        }
    }

    /// Runs until every sink is gone and everything is put.
    pub(super) fn run(mut self) -> O {
        loop {
            let wait = self.wait();
            let quiet = match self.full.recv_timeout(wait) {
                Ok(full) => {
                    self.arrive(full, Instant::now());
                    false
                }
                Err(RecvTimeoutError::Timeout) => wait == PAUSE,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            // Before the look: what has come by now is here, however long this thread gets no turn.
            let now = Instant::now();
            self.ask();
            let sent = self.flushes.as_ref().and_then(Flushes::sent);
            while let Ok(full) = self.full.try_recv() {
                self.arrive(full, now);
            }
            if let (Some(flush), Some(it)) = (sent, &mut self.flushes) {
                it.arrived = Some((flush, now));
            }
            self.go_on(now);
            self.settle(quiet);
            self.out.rest(quiet);
            if let Some(it) = &mut self.flushes {
                it.pass(&self.lines);
            }
        }
        // Queues without a frame have no last word either.
        self.silent = 0;
        self.go_on(Instant::now());
        self.settle(false);
        self.out
    }

    /// Ends a batch of the stages behind the order.
    fn settle(&mut self, quiet: bool) {
        let Some(in_order) = &mut self.in_order else {
            return;
        };
        for (stage, line) in in_order.stages.iter_mut().zip(&mut self.lines) {
            stage.missed(std::mem::take(&mut line.unseen));
        }
        in_order.each(|it| it.handled());
        if quiet {
            in_order.each(|it| it.idle());
        }
        in_order.each(|it| it.batch());
    }

    /// Hears when each queue was last empty: what had come to it by then is here, or among the blocks that still come.
    fn ask(&mut self) {
        for line in &mut self.lines {
            line.empty_at = line.counters.settled_at().max(line.empty_at);
        }
    }

    /// How long there is nothing to do unless a block comes.
    fn wait(&self) -> Duration {
        let head = self.heads.peek();
        let release = head.and_then(|Reverse((_, line))| self.release(*line));
        release.map_or(PAUSE, |at| {
            at.saturating_duration_since(Instant::now()).min(PAUSE)
        })
    }

    fn arrive(&mut self, full: Full, now: Instant) {
        let index = usize::from(full.queue);
        let line = &mut self.lines[index];
        let shown = !line.blocks.is_empty();
        line.blocks.push_back((now, full.block));
        if !shown {
            self.show(index, now);
        }
    }

    /// A silent queue has sent a block.
    fn show(&mut self, index: usize, now: Instant) {
        let line = &mut self.lines[index];
        let ns = line.next_ns(&mut self.out, now);
        if let Some(ns) = ns {
            self.heads.push(Reverse((ns, index)));
        }
        self.silent -= usize::from(ns.is_some() || line.ended);
    }

    /// Puts every record whose turn has come.
    fn go_on(&mut self, now: Instant) {
        while let Some(Reverse((_, index))) = self.heads.peek() {
            if self.silent > 0 && !self.is_released(*index, now) {
                return;
            }
            self.step(now);
        }
    }

    /// Whether a queue's next record goes on though others are silent.
    fn is_released(&self, index: usize, now: Instant) -> bool {
        self.release(index).is_some_and(|at| at <= now)
            || self.on_full == OnFull::Drop && self.lines.iter().any(Line::is_out_of_blocks)
    }

    /// When a queue's next record goes on though others are silent.
    fn release(&self, index: usize) -> Option<Instant> {
        let (came, _) = self.lines[index].blocks.front()?;
        let silent = |it: &&Line| it.blocks.is_empty() && !it.ended;
        let silent = || self.lines.iter().filter(silent);
        let since = silent().map(|it| it.free_since).fold(*came, Instant::max);
        let heard = silent().all(|it| it.empty_at >= Some(*came));
        Some(since + if heard { WINDOW } else { LONGEST })
    }

    /// Puts the earliest record.
    fn step(&mut self, now: Instant) {
        let Some(Reverse((_, index))) = self.heads.pop() else {
            return;
        };
        let line = &mut self.lines[index];
        let Some((_, block)) = line.blocks.front() else {
            return;
        };
        let bytes = &block.memory.as_slice(block.len)[line.at..];
        let Some((Relayed::Record(mut record, filter), len)) = relayed(bytes) else {
            return;
        };
        line.lost += record.lost_before;
        if record.lost_before > 0 {
            self.out.lost(record.lost_before);
            line.unseen += record.lost_before;
        }
        // A line's index is its queue's number.
        let queue = index as u16;
        let is_late = record.ns < self.last_ns;
        self.last_ns = self.last_ns.max(record.ns);
        let verdict = (self.in_order.as_mut()).map_or(Verdict::Captured, |it| {
            it.judge(index, &mut record, is_late)
        });
        let is_written = verdict == Verdict::Captured && !is_late;
        if is_written {
            let owed = line.filter.take();
            record.lost_before += std::mem::take(&mut line.owed_lost);
            if !self.out.put(queue, &record, filter.or(owed.as_deref())) {
                line.counters.lost(1, u64::from(record.len));
            }
        } else {
            if let Some(filter) = filter {
                line.filter = Some(filter.to_owned());
            }
            line.owed_lost += record.lost_before;
            let (counters, bytes) = (&line.counters, u64::from(record.len));
            match verdict {
                Verdict::Deduplicated => counters.repeated(1, bytes),
                Verdict::SampledOut => counters.sampled_out_in_order(bytes),
                Verdict::CutOff => counters.cut_off_in_order(bytes),
                // The stages behind the order neither filter nor write.
                Verdict::Captured | Verdict::Filtered | Verdict::DroppedStorage => {
                    counters.late(1, bytes);
                    self.out.lost(1);
                }
            }
        }
        line.at += len;
        match line.next_ns(&mut self.out, now) {
            Some(ns) => self.heads.push(Reverse((ns, index))),
            None => self.silent += usize::from(!line.ended),
        }
    }
}

impl Line {
    /// Whether its queue would have to drop frames, for want of blocks that are here.
    fn is_out_of_blocks(&self) -> bool {
        self.empty.is_empty() && !self.blocks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use wqcap_core::stats::{Ends, Received};
    use wqcap_memory::Region;

    /// Keeps what it is given.
    #[derive(Default)]
    struct Kept {
        records: Vec<(u16, u64, Vec<u8>)>,
        filters: Vec<(u64, String)>,
        lost: u64,
    }

    impl Ordered for Kept {
        fn put(&mut self, queue: u16, record: &Record<'_>, filter: Option<&str>) -> bool {
            self.filters
                .extend(filter.map(|it| (record.ns, it.to_owned())));
            self.records.push((queue, record.ns, record.bytes.to_vec()));
            true
        }

        fn lost(&mut self, n: u64) {
            self.lost += n;
        }

        fn rest(&mut self, _quiet: bool) {}
    }

    /// Frames that the stages behind the order were given.
    #[derive(Default)]
    struct Judged {
        frames: Vec<u64>,
        missed: u64,
    }

    /// Handle of a test stage that shares its observations with the test.
    #[derive(Clone, Default)]
    struct SharedJudged(Arc<Mutex<Judged>>);

    impl Consumer for SharedJudged {
        fn frame(&mut self, _frame: &Frame<'_>) -> Verdict {
            Verdict::Captured
        }
    }

    impl Judge for SharedJudged {
        /// Cuts frames to 14 bytes; those stamped at a multiple of 1000 are sampled out, of 700 cut off.
        fn judge(&mut self, frame: &mut Frame<'_>) -> Verdict {
            self.0.lock().expect("unpoisoned").frames.push(frame.ns);
            frame.bytes = &frame.bytes[..14];
            match frame.ns {
                ns if ns % 1000 == 0 => Verdict::SampledOut,
                ns if ns % 700 == 0 => Verdict::CutOff,
                _ => Verdict::Captured,
            }
        }

        fn missed(&mut self, frames: u64) {
            self.0.lock().expect("unpoisoned").missed += frames;
        }
    }

    #[test]
    fn repetitions_of_another_queue_are_left_out_and_counted() {
        let mut bench = Bench::new(2, 2);
        let judged = SharedJudged::default();
        let stage = || Box::new(judged.clone()) as Box<dyn Judge>;
        bench.reorderer = bench.reorderer.with_steps(Some(InOrder {
            window: DedupWindow::new(50, [].into_iter().collect()),
            stages: vec![stage(), stage()],
            snaplen: usize::MAX,
        }));
        bench.len = 60;
        let now = Instant::now();
        assert_eq!(bench.give(0, &[10, 100], None, now), []);
        assert_eq!(
            bench.give(1, &[20, 30, 110], None, now),
            [(0, 10), (0, 100)]
        );
        let ledger = |queue: usize| bench.reorderer.lines[queue].counters.ledger(0);
        assert_eq!((ledger(1).deduplicated, ledger(1).captured), (2, 998));
        assert_eq!((ledger(0).deduplicated, ledger(0).captured), (0, 1000));
        assert_eq!(bench.reorderer.out.lost, 0, "a repetition is no loss");
        let seen = judged.0.lock().expect("unpoisoned").frames.clone();
        assert_eq!(seen, [10, 100], "observers see no repetition");
    }

    #[test]
    fn frames_in_order_end_in_the_line_of_the_step_that_leaves_them_out() {
        let mut bench = Bench::new(2, 9);
        let judged = SharedJudged::default();
        let stage = || Box::new(judged.clone()) as Box<dyn Judge>;
        bench.reorderer = bench.reorderer.with_steps(Some(InOrder {
            window: DedupWindow::new(1, [].into_iter().collect()),
            stages: vec![stage(), stage()],
            snaplen: 10,
        }));
        let now = Instant::now();
        for full in [
            bench.block(0, &[600, 700, 1000, 1001], None),
            bench.block(1, &[900], Some(7)),
        ] {
            bench.reorderer.arrive(full, now);
        }
        bench.reorderer.go_on(now);
        let cut = |queue, ns| (queue, ns, vec![7; 10]);
        let written = std::mem::take(&mut bench.reorderer.out.records);
        assert_eq!(written, [cut(0, 600), cut(1, 900), cut(0, 1001)]);
        let late = bench.block(0, &[5], None);
        bench.reorderer.arrive(late, now);
        bench.reorderer.go_on(now);
        bench.reorderer.settle(true);
        let ledger = bench.reorderer.lines[0].counters.ledger(0);
        ledger.check().expect("balanced");
        let lines = [
            ledger.captured,
            ledger.sampled_out,
            ledger.cut_off,
            ledger.late,
        ];
        assert_eq!(lines, [997, 1, 1, 1]);
        let judged = judged.0.lock().expect("unpoisoned");
        assert_eq!(judged.frames, [600, 700, 900, 1000, 1001, 5]);
        assert_eq!(judged.missed, 7, "of queue 1, shown once");
        assert_eq!(bench.reorderer.out.lost, 8, "the late one, too");
    }

    struct Bench {
        /// Of its frames on the wire, which have 60 bytes here.
        len: u32,
        reorderer: Reorderer<Kept>,
        empties: Vec<Receiver<Block>>,
    }

    impl Bench {
        /// So many queues with so many blocks each.
        fn new(queues: usize, blocks: usize) -> Self {
            let (mut lines, mut empties) = (Vec::new(), Vec::new());
            for _ in 0..queues {
                let (empty_in, empty) = crossbeam_channel::bounded(blocks);
                for _ in 0..blocks {
                    let block = Block::new(Region::allocate(4096, None).expect("memory"));
                    empty_in.send(block).expect("room");
                }
                let counters = Arc::new(QueueCounters::default());
                counters.publish_received(&Received {
                    frames: 1000,
                    ..Received::default()
                });
                counters.publish_ends(&Ends {
                    captured: 1000,
                    bytes: 100_000,
                    ..Ends::default()
                });
                lines.push(Line::new(counters, empty_in));
                empties.push(empty);
            }
            let (_, full) = crossbeam_channel::bounded(0);
            Self {
                len: 100,
                reorderer: Reorderer::new(full, lines, OnFull::Drop, Kept::default()),
                empties,
            }
        }

        /// A record that tells of a filter.
        fn tells(&self, queue: u16, ns: u64, filter: &str) -> Full {
            let mut full = self.block(queue, &[ns], None);
            let Some((Relayed::Record(record, _), _)) =
                relayed(full.block.memory.as_slice(full.block.len))
            else {
                panic!("no record");
            };
            let told = Relay.annotated(queue, &record, &[Note::Filter(filter.into())]);
            full.block.memory.as_mut_slice()[..told.len()].copy_from_slice(&told);
            full.block.len = told.len();
            full
        }

        fn block(&self, queue: u16, stamps: &[u64], last: Option<u64>) -> Full {
            let mut block = self.empties[usize::from(queue)]
                .try_recv()
                .expect("a block");
            block.len = 0;
            let mut at = 0;
            for ns in stamps {
                let record = Record {
                    ns: *ns,
                    bytes: &[7; 60],
                    len: self.len,
                    fcs: &[],
                    fcs_len: 0,
                    bad_fcs: false,
                    lost_before: 0,
                };
                let end = at + Relay.record_len(&record);
                Relay.record(&mut block.memory.as_mut_slice()[at..end], queue, &record);
                at = end;
            }
            if let Some(dropped) = last {
                let trailer = Relay.trailer(&Totals {
                    dropped,
                    ..Totals::default()
                });
                block.memory.as_mut_slice()[at..at + HEAD].copy_from_slice(&trailer);
                at += HEAD;
            }
            block.len = at;
            Full {
                queue,
                number: 0,
                block,
            }
        }

        fn give(
            &mut self,
            queue: u16,
            stamps: &[u64],
            last: Option<u64>,
            now: Instant,
        ) -> Vec<(u16, u64)> {
            let full = self.block(queue, stamps, last);
            self.reorderer.arrive(full, now);
            self.go_on(now)
        }

        /// Goes on after loops that have been idle now.
        fn go_on(&mut self, now: Instant) -> Vec<(u16, u64)> {
            for line in &self.reorderer.lines {
                line.counters.idle(now);
            }
            self.reorderer.ask();
            self.unheard(now)
        }

        /// Goes on without a word of the loops.
        fn unheard(&mut self, now: Instant) -> Vec<(u16, u64)> {
            self.reorderer.go_on(now);
            let records = std::mem::take(&mut self.reorderer.out.records);
            records.iter().map(|(queue, ns, _)| (*queue, *ns)).collect()
        }

        fn late(&self, queue: usize) -> u64 {
            self.reorderer.lines[queue].counters.ledger(0).late
        }
    }

    #[test]
    fn what_all_have_shown_goes_at_once_and_the_rest_waits() {
        let mut bench = Bench::new(2, 3);
        let now = Instant::now();
        assert_eq!(bench.give(0, &[10, 30, 50], None, now), []);
        assert_eq!(
            bench.give(1, &[20, 30, 40], None, now),
            [(0, 10), (1, 20), (0, 30), (1, 30), (1, 40)]
        );
        assert_eq!(bench.go_on(now), []);
        assert_eq!(bench.give(1, &[], Some(5), now), [(0, 50)]);
        assert_eq!(bench.reorderer.out.lost, 5);
        assert_eq!(bench.give(0, &[60], Some(0), now), [(0, 60)]);
        assert_eq!(bench.reorderer.silent, 0);
        assert_eq!(bench.empties[0].len(), 3, "every block went back");
    }

    #[test]
    fn a_silent_queue_is_waited_for_within_the_window_and_then_late() {
        let mut bench = Bench::new(2, 3);
        let now = Instant::now();
        assert_eq!(bench.give(0, &[10, 20], None, now), []);
        let almost = WINDOW - Duration::from_nanos(1);
        assert_eq!(bench.go_on(now + almost), []);
        let now = now + WINDOW;
        assert_eq!(bench.go_on(now), [(0, 10), (0, 20)]);
        assert_eq!(bench.give(1, &[15, 20, 25], None, now), []);
        assert_eq!(bench.go_on(now + almost), []);
        assert_eq!(
            bench.go_on(now + WINDOW),
            [(1, 20), (1, 25)],
            "equal is in order"
        );
        assert_eq!((bench.late(0), bench.late(1)), (0, 1));
        assert_eq!(bench.reorderer.out.lost, 1);
        let ledger = bench.reorderer.lines[1].counters.ledger(1);
        assert_eq!((ledger.captured, ledger.bytes), (999, 99_900));
    }

    #[test]
    fn a_queue_whose_loop_gets_no_turn_is_waited_for_longer() {
        let mut bench = Bench::new(2, 3);
        let now = Instant::now();
        let first = bench.block(0, &[10], None);
        bench.reorderer.arrive(first, now);
        let later = now + LONGEST - Duration::from_nanos(1);
        let before = now.checked_sub(Duration::from_nanos(1)).expect("a time");
        bench.reorderer.lines[1].counters.idle(before);
        bench.reorderer.ask();
        assert_eq!(bench.unheard(later), []);
        let full = bench.block(1, &[5], None);
        bench.reorderer.arrive(full, later);
        assert_eq!(bench.unheard(later), [(1, 5)]);
        assert_eq!(bench.unheard(later + LONGEST), [(0, 10)]);
        assert_eq!(bench.late(1), 0);
    }

    #[test]
    fn a_filter_is_told_of_by_the_first_record_that_is_not_late() {
        let mut bench = Bench::new(2, 9);
        let now = Instant::now();
        assert_eq!(bench.give(0, &[10], None, now), []);
        assert_eq!(bench.go_on(now + WINDOW * 2), [(0, 10)]);
        bench.reorderer.arrive(bench.tells(1, 5, "udp"), now);
        bench.reorderer.arrive(bench.tells(0, 20, "udp"), now);
        assert_eq!(bench.give(1, &[15, 25], None, now), [(1, 15), (0, 20)]);
        assert_eq!(bench.late(1), 1);
        let told = [(15, "udp".to_owned()), (20, "udp".to_owned())];
        assert_eq!(bench.reorderer.out.filters, told);
    }

    #[test]
    fn a_queue_without_blocks_does_not_wait() {
        let mut bench = Bench::new(2, 2);
        let now = Instant::now();
        assert_eq!(bench.give(0, &[10], None, now), []);
        assert_eq!(
            bench.give(0, &[20], None, now),
            [(0, 10)],
            "one block is free again"
        );
        assert_eq!(bench.give(1, &[15], None, now), [(1, 15)]);
        assert_eq!(bench.late(1), 0);
    }

    #[test]
    fn where_queues_hold_nothing_goes_early_for_want_of_blocks() {
        let mut bench = Bench::new(2, 2);
        bench.reorderer.on_full = OnFull::Hold;
        let now = Instant::now();
        assert_eq!(bench.give(0, &[10], None, now), []);
        assert_eq!(
            bench.give(0, &[20], None, now),
            [],
            "it waits, without a block"
        );
        assert_eq!(
            bench.give(1, &[5, 15], None, now),
            [(1, 5), (0, 10), (1, 15)]
        );
        assert_eq!((bench.late(0), bench.late(1)), (0, 0));
        assert_eq!(bench.go_on(now + WINDOW), [(0, 20)]);
    }

    #[test]
    fn a_queue_that_was_out_of_blocks_has_the_window_to_fill_one() {
        let mut bench = Bench::new(2, 1);
        bench.reorderer.on_full = OnFull::Hold;
        let now = Instant::now();
        assert_eq!(bench.give(0, &[10], None, now), []);
        // The output stood still meanwhile: queue 1 has nothing to fill before its block is back.
        let later = now + 5 * WINDOW;
        assert_eq!(bench.give(1, &[4], None, later), [(1, 4)]);
        assert_eq!(bench.go_on(later + WINDOW / 2), []);
        assert_eq!(bench.give(1, &[6], None, later + WINDOW / 2), [(1, 6)]);
        assert_eq!(bench.late(1), 0);
        assert_eq!(bench.go_on(later + 2 * WINDOW), [(0, 10)]);
    }

    #[test]
    fn the_window_begins_when_the_block_is_back_and_not_before_the_output_stood_still() {
        let mut bench = Bench::new(2, 1);
        bench.reorderer.on_full = OnFull::Hold;
        let now = Instant::now();
        let before = now.checked_sub(2 * LONGEST).expect("a time");
        assert_eq!(bench.give(0, &[10], None, before), []);
        assert_eq!(bench.give(1, &[4], None, before), [(1, 4)]);
        assert_eq!(bench.go_on(now), []);
        assert_eq!(bench.give(1, &[6], None, now), [(1, 6)]);
        assert_eq!(bench.late(1), 0);
    }

    #[test]
    fn relayed_is_what_was_written() {
        for len in [0usize, 1, 60, 1500] {
            let bytes = vec![3; len];
            let record = Record {
                ns: u64::MAX - 5,
                bytes: &bytes,
                len: 9000,
                fcs: &[1, 2, 3, 4],
                fcs_len: 4,
                bad_fcs: len == 60,
                lost_before: 1 << 40,
            };
            let mut out = vec![0; Relay.record_len(&record)];
            Relay.record(&mut out, 0, &record);
            let Some((Relayed::Record(back, None), end)) = relayed(&out) else {
                panic!("no record");
            };
            assert_eq!(
                (back.ns, back.bytes, back.len),
                (record.ns, record.bytes, 9000)
            );
            assert_eq!((back.lost_before, end), (1 << 40, out.len()));
            assert_eq!((back.fcs, back.fcs_len), (record.fcs, 4));
            assert_eq!(back.bad_fcs, record.bad_fcs);
            assert!(relayed(&out[..out.len() - 1]).is_none());
            for filter in ["", "tcp port 80"] {
                let out = Relay.annotated(0, &record, &[Note::Filter(filter.into())]);
                let Some((Relayed::Record(again, told), end)) = relayed(&out) else {
                    panic!("no record");
                };
                assert_eq!((again.bytes, told), (record.bytes, Some(filter)));
                assert_eq!(end, out.len());
                assert!(relayed(&out[..end - 1]).is_none());
            }
        }
    }
}
