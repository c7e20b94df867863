//! Merging of the records of all queues by time stamp, while they arrive (`output.order = "time"`).
//!
//! ```text
//! queue's sink -> relay blocks -> ordering thread -> output sink, or stdout
//!       ^                            |
//!       +------- empty blocks -------+
//! ```
//!
//! The earliest record can be written when every queue has a record waiting. The wait for a queue
//! without a record (a silent queue) is limited. A block's records are released [`WINDOW`] after the
//! block arrived and the silent queues had blocks to fill, if those queues were seen idle since then,
//! else after [`LONGEST`]. With `on_full = "drop"`, records are also released when a queue has few
//! blocks left to fill, because it would drop frames otherwise: one block lasts for a millisecond, less
//! than this thread may wait for a CPU. With `on_full = "hold"`, such a queue waits, and its records are
//! released as soon as queues that have been silent for [`WINDOW`] are seen idle [`SETTLED`] after the
//! block arrived; otherwise, one idle queue would limit the others to their blocks per second. A record
//! that arrives later with an earlier stamp is written where it arrives, and counted: no frame is left
//! out for the sake of the order. The kernel stamps frames
//! of one queue on several cores, so that single frames are microseconds late. If a stamp is earlier by
//! more than [`SET_BACK_NS`], a clock was set back, and the order begins again with it.
//!
//! With `capture.dedup`, a frame that repeats one of another queue is left out here and counted as
//! `deduplicated`; repetitions within a queue were left out before. The steps behind deduplication run
//! here too ([`InOrder`]): queues relay whole frames, and only frames that are not repetitions are
//! sampled, cut off, observed and sliced.
//!
//! Invariant: a queue sends its records within [`HELD_NS`] of time stamps or when it becomes idle, both
//! well below [`WINDOW`]. No record of a queue in order is late unless a loop does not run for
//! [`LONGEST`].

use crate::{
    BlockSink, Encoder, Note, Record, SinkRequests, Totals,
    block::{Block, Full, SentBlocks},
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

/// Time that a frame record waits for earlier records of silent queues that were seen idle.
pub(super) const WINDOW: Duration = Duration::from_secs(1);
/// Time that a frame record waits for earlier records of silent queues that were not seen idle.
const LONGEST: Duration = Duration::from_secs(5);
/// Time for which a frame may be on its way from its time stamp to its receive loop.
const SETTLED: Duration = Duration::from_millis(100);
/// Time in nanoseconds by which a record is behind the one before if a clock was set back: longer
/// than any record waits.
const SET_BACK_NS: u64 = LONGEST.as_nanos() as u64;
/// Span of frame time stamps, in nanoseconds, after which a queue sends a partial relay block.
pub(super) const HELD_NS: u64 = 100_000_000;
/// Time without a new relay block after which the ordered output is flushed.
const PAUSE: Duration = Duration::from_millis(100);

/// Time for which relay blocks gather after a round of few of them: a wake-up for each block costs
/// more CPU time than the copy of its records.
const GATHER: Duration = Duration::from_millis(2);
/// Number of relay blocks of a round after which the next one begins at once, and number of empty
/// blocks that each queue must have for the time in which blocks gather.
const FEW: usize = 16;

/// Length in bytes of a relayed record's header: stamp, frames lost before, captured length,
/// length, three properties of the FCS, and the filter flag.
const HEAD: usize = 28;
/// Maximum length of a relayed filter in bytes, so that the frame record fits in a relay block.
/// Capture files have room for less.
const MOST_FILTER: usize = 1500;
/// Captured length that marks the end of a queue's relay. The stamp field then holds the total
/// number of lost frames.
const LAST: u32 = u32::MAX;

/// Encoder of frame records for blocks that queues send to the ordering thread.
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
        // A frame is much smaller than 4 GiB.
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

    fn set_filter(&mut self, _filter: &str) -> bool {
        true
    }

    /// The ordering thread must not wait for a queue that has ended without a record.
    fn ends_without_records(&self) -> bool {
        true
    }

    /// Appends the relayed filter's length and the filter behind the frame. Marks are not relayed:
    /// they are requested of the output sink.
    fn record_with_notes(&self, queue: u16, record: &Record<'_>, notes: &[Note]) -> Vec<u8> {
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
        // At most MOST_FILTER bytes.
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

/// Entry of a relay block: a frame record or the relay's end.
enum Relayed<'a> {
    /// Frame record of a queue. With text: the capture filter was changed, and this is the filter for
    /// this record and those after it.
    Record(Record<'a>, Option<&'a str>),
    /// End of a queue's relay to the ordering thread.
    Last {
        /// Total number of frames that the queue lost.
        lost: u64,
    },
}

/// Decodes the relay block entry at the beginning of `bytes` and returns it with its length, or
/// `None` at the end.
fn parse_relayed(bytes: &[u8]) -> Option<(Relayed<'_>, usize)> {
    let word = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let long = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let (ns, lost_before, caplen, len) = (long(0)?, long(8)?, word(16)?, word(20)?);
    if caplen == LAST {
        return Some((Relayed::Last { lost: ns }, HEAD));
    }
    let [fcs, fcs_len, bad_fcs, has_filter] = *bytes.get(24..)?.first_chunk()?;
    let end_of_bytes = HEAD + caplen as usize;
    let end = end_of_bytes + usize::from(fcs);
    let (filter, after) = match has_filter {
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
        // The output knows the interface of each queue.
        interface: 0,
        bad_fcs: bad_fcs != 0,
        lost_before,
    };
    Some((Relayed::Record(record, filter), after))
}

/// Output that takes frame records in the order of time.
pub(super) trait OrderedOutput: Send {
    /// Writes a frame record to the output. `filter` is the filter that applies to the record's
    /// queue from this record, if it changed. Returns `false` if the record is lost.
    fn write(&mut self, queue: u16, record: &Record<'_>, filter: Option<&str>) -> bool;
    /// Counts `n` frames of a queue that were lost before they reached the ordered output.
    fn count_lost(&mut self, queue: u16, n: u64);
    /// Ends a round of the ordering thread, after all released records are written. `quiet` is set
    /// if no relay block has arrived for [`PAUSE`].
    fn end_round(&mut self, quiet: bool);
}

impl<E: Encoder> OrderedOutput for BlockSink<E> {
    fn write(&mut self, queue: u16, record: &Record<'_>, filter: Option<&str>) -> bool {
        if let Some(filter) = filter {
            self.filter_changed(filter);
        }
        self.take_of(queue, record) == Verdict::Captured
    }

    fn count_lost(&mut self, queue: u16, n: u64) {
        self.count_missed(queue, n);
    }

    fn end_round(&mut self, quiet: bool) {
        self.begin_batch();
        if quiet {
            self.idle();
        }
    }
}

/// Reduction steps for frames in the order of time, with deduplication across all queues.
pub struct InOrder {
    /// Recent frames of all queues, for deduplication; `None`: repetitions are kept.
    window: Option<DedupWindow>,
    /// Reduction steps that frames pass after deduplication: one stage for all queues, or one for
    /// each.
    stages: Vec<Box<dyn Judge>>,
    /// Index of each queue's port; a queue that is not in the list is of the first port.
    ports: Vec<u8>,
    /// Maximum bytes of a frame that its record holds.
    snaplen: usize,
}

impl InOrder {
    /// Creates the steps for frames that are not in `window`: they pass the only stage or that of
    /// their queue, and their records hold at most `snaplen` bytes. `ports` is the index of
    /// each queue's port.
    #[must_use]
    pub fn new(
        window: Option<DedupWindow>,
        stages: Vec<Box<dyn Judge>>,
        ports: Vec<u8>,
        snaplen: usize,
    ) -> Self {
        Self {
            window,
            stages,
            ports,
            snaplen,
        }
    }

    /// Passes a frame through all reduction steps and cuts its record to the bytes that are
    /// written.
    fn judge(&mut self, queue: usize, record: &mut Record<'_>, is_late: bool) -> Verdict {
        // A late frame is not compared: the window has already passed its time stamp.
        if let Some(window) = self.window.as_mut().filter(|_| !is_late)
            && window.check_and_record(record.bytes, record.len, record.ns)
        {
            return Verdict::Deduplicated;
        }
        let fcs = (record.fcs.first_chunk()).map(|&bytes| Fcs {
            bytes,
            bad: record.bad_fcs,
        });
        let mut frame = Frame::new(record.bytes, record.len, record.ns);
        frame.fcs = fcs;
        frame.port = self.ports.get(queue).copied().unwrap_or_default();
        let verdict = self.stage_of(queue).judge(&mut frame);
        let kept = frame.bytes.len().min(self.snaplen);
        // An FCS is written only behind a whole frame and within the snaplen.
        if kept < record.bytes.len() || kept + record.fcs.len() > self.snaplen {
            record.fcs = &[];
        }
        record.bytes = &record.bytes[..kept];
        verdict
    }

    /// Returns the stage that frames of a queue pass.
    fn stage_of(&mut self, queue: usize) -> &mut dyn Judge {
        let index = queue.min(self.stages.len() - 1);
        &mut *self.stages[index]
    }

    fn each(&mut self, step: impl Fn(&mut dyn Judge)) {
        for stage in &mut self.stages {
            step(&mut **stage);
        }
    }
}

/// State of one queue in the ordering thread.
pub(super) struct QueueLine {
    pub(super) queue: u16,
    pub(super) counters: Arc<QueueCounters>,
    /// Channel that returns emptied relay blocks to the queue's sink.
    pub(super) empty: Sender<Block>,
    /// Times at which the queue's relay blocks that are not returned yet were sent.
    pub(super) sent: Arc<SentBlocks>,
    /// Time since which the queue has had relay blocks to fill.
    free_since: Instant,
    /// Time since which no relay block of the queue has been waiting, at the earliest the time of the
    /// first block of any queue.
    silent_since: Instant,
    /// Latest time at which the receive queue was known to be empty.
    empty_at: Option<Instant>,
    /// Relay blocks that arrived from the queue with their times of arrival, oldest first.
    pub(super) blocks: VecDeque<(Instant, Block)>,
    /// Offset of the queue's next record in its oldest relay block.
    pub(super) at: usize,
    /// Set when the queue's relay to the ordering thread has ended.
    pub(super) ended: bool,
    /// Number of frames that the queue has reported as lost.
    pub(super) lost: u64,
    /// Number of lost frames that are not yet reported to the filter, deduplication and sampling of
    /// the queue in [`InOrder`].
    unseen: u64,
    /// Changed filter to write with the queue's next record, because the record that carried the
    /// change was left out.
    filter: Option<String>,
    /// Number of frames lost directly before records of the queue that were left out. The next
    /// record that is written includes them.
    owed_lost: u64,
}

impl QueueLine {
    pub(super) fn new(
        queue: u16,
        counters: Arc<QueueCounters>,
        empty: Sender<Block>,
        sent: Arc<SentBlocks>,
    ) -> Self {
        Self {
            queue,
            counters,
            empty,
            sent,
            free_since: Instant::now(),
            silent_since: Instant::now(),
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

    /// Returns the time stamp of the queue's next frame record. Returns fully read relay blocks to
    /// the sink.
    fn next_ns(&mut self, out: &mut dyn OrderedOutput, now: Instant) -> Option<u64> {
        loop {
            let (_, block) = self.blocks.front()?;
            match parse_relayed(&block.memory.as_slice(block.len)[self.at..]) {
                Some((Relayed::Record(record, _), _)) => return Some(record.ns),
                Some((Relayed::Last { lost }, len)) => {
                    let more = lost.saturating_sub(self.lost);
                    out.count_lost(self.queue, more);
                    self.unseen += more;
                    (self.lost, self.ended) = (lost, true);
                    self.at += len;
                }
                None => {
                    let (_, block) = self.blocks.pop_front()?;
                    self.at = 0;
                    if self.empty.is_empty() {
                        // The output may have blocked since `now`.
                        self.free_since = now.max(Instant::now());
                    }
                    if self.blocks.is_empty() {
                        self.silent_since = now.max(Instant::now());
                    }
                    self.sent.remove_oldest();
                    // The sink may have ended already, and then needs no blocks.
                    let _ = self.empty.send(block);
                }
            }
        }
    }
}

/// Forwarding of flushes from the queues' sinks to the ordered output, once all records sent for a
/// flush are written to the output.
pub(super) struct Flushes {
    queues: Arc<SinkRequests>,
    output: Arc<SinkRequests>,
    /// Number of the flush in progress, and the time by which all relay blocks sent for it had
    /// arrived.
    arrived: Option<(u64, Instant)>,
    /// Number of the latest flush that was forwarded to the output.
    passed: u64,
}

impl Flushes {
    pub(super) fn new(queues: &Arc<SinkRequests>, output: &Arc<SinkRequests>) -> Self {
        Self {
            queues: Arc::clone(queues),
            output: Arc::clone(output),
            arrived: None,
            passed: 0,
        }
    }

    /// Returns the number of a new flush for which all queues have sent their relay blocks. The
    /// blocks are in the channel or have arrived.
    fn sent(&self) -> Option<u64> {
        let latest = self.queues.latest_flush();
        (latest != self.passed && self.arrived.is_none() && self.queues.is_sent(latest))
            .then_some(latest)
    }

    /// Forwards the flush to the ordered output once `lines` hold no more relay blocks that arrived
    /// for the flush.
    fn pass(&mut self, lines: &[QueueLine]) {
        let Some((flush, at)) = self.arrived else {
            return;
        };
        let is_put = |it: &QueueLine| it.blocks.front().is_none_or(|(came, _)| *came > at);
        if lines.iter().all(is_put) {
            self.output.flush_up_to(flush);
            (self.arrived, self.passed) = (None, flush);
        }
    }
}

/// State of the ordering thread.
pub(super) struct Reorderer<O> {
    pub(super) full: Receiver<Full>,
    pub(super) lines: Vec<QueueLine>,
    pub(super) out: O,
    /// Reaction of a queue's sink that has no empty relay block.
    on_full: OnFull,
    /// Reduction steps for frames in order; `None`: frames are written as relayed.
    in_order: Option<InOrder>,
    flushes: Option<Flushes>,
    /// Time stamp and queue of the next frame record of each queue that has one, earliest first.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    /// Number of queues that have not ended and have no frame record waiting for the output.
    silent: usize,
    /// Latest time stamp of the frame records processed since a clock was set back.
    last_ns: u64,
    /// Set from the time when a queue has few blocks left until all queues have enough again.
    is_short: bool,
    /// Set when the first relay block has arrived.
    has_begun: bool,
}

impl<O: OrderedOutput> Reorderer<O> {
    pub(super) fn new(
        full: Receiver<Full>,
        lines: Vec<QueueLine>,
        on_full: OnFull,
        out: O,
    ) -> Self {
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
            is_short: false,
            has_begun: false,
        }
    }

    /// Sets the reduction steps that frames pass before they are written.
    pub(super) fn with_steps(self, in_order: Option<InOrder>) -> Self {
        Self { in_order, ..self }
    }

    /// Sets the flush requests that are passed on to the merged output.
    pub(super) fn with_flushes(self, flushes: Flushes) -> Self {
        Self {
            flushes: Some(flushes),
            ..self
        }
    }

    /// Runs the ordering thread until every sink has ended and all records are written. Returns the
    /// output.
    pub(super) fn run(mut self) -> O {
        loop {
            let wait = self.wait();
            let mut arrived = 0;
            let quiet = match self.full.recv_timeout(wait) {
                Ok(full) => {
                    self.arrive(full, Instant::now());
                    arrived += 1;
                    false
                }
                Err(RecvTimeoutError::Timeout) => wait == PAUSE,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            // The time is read before the channel is emptied, so that all blocks sent before `now` are received even
            // if this thread does not run for a while.
            let now = Instant::now();
            self.read_idle_times();
            let sent = self.flushes.as_ref().and_then(Flushes::sent);
            while let Ok(full) = self.full.try_recv() {
                self.arrive(full, now);
                arrived += 1;
            }
            if let (Some(flush), Some(it)) = (sent, &mut self.flushes) {
                it.arrived = Some((flush, now));
            }
            self.write_released(now);
            self.end_batch(quiet);
            self.out.end_round(quiet);
            if let Some(it) = &mut self.flushes {
                it.pass(&self.lines);
            }
            if (1..FEW).contains(&arrived) && self.lines.iter().all(|it| it.empty.len() >= FEW) {
                std::thread::sleep(GATHER);
            }
        }
        // A queue whose loop ended in a panic may send no end of its relay.
        self.silent = 0;
        self.write_released(Instant::now());
        self.end_batch(false);
        self.out
    }

    /// Ends a batch of frames for the reduction steps in [`InOrder`].
    fn end_batch(&mut self, quiet: bool) {
        let Some(in_order) = &mut self.in_order else {
            return;
        };
        for (index, line) in self.lines.iter_mut().enumerate() {
            let unseen = std::mem::take(&mut line.unseen);
            in_order.stage_of(index).missed(unseen);
        }
        in_order.each(|it| it.end_batch());
        if quiet {
            in_order.each(|it| it.idle());
        }
        in_order.each(|it| it.begin_batch());
    }

    /// Reads the time at which each receive queue was last empty. Relay blocks with frames received
    /// before that time have arrived or are in the channel.
    fn read_idle_times(&mut self) {
        for line in &mut self.lines {
            line.empty_at = line.counters.settled_at().max(line.empty_at);
        }
    }

    /// Returns the time to wait for a relay block: until the next record is released, at most
    /// [`PAUSE`].
    fn wait(&self) -> Duration {
        let head = self.heads.peek();
        let release = head.and_then(|Reverse((_, line))| self.release_time(*line));
        release.map_or(PAUSE, |at| {
            at.saturating_duration_since(Instant::now()).min(PAUSE)
        })
    }

    fn arrive(&mut self, full: Full, now: Instant) {
        if !self.has_begun {
            self.has_begun = true;
            self.lines.iter_mut().for_each(|it| it.silent_since = now);
        }
        let index = usize::from(full.queue);
        let line = &mut self.lines[index];
        let was_silent = line.blocks.is_empty();
        line.blocks.push_back((now, full.block));
        if was_silent {
            self.add_head(index, now);
        }
    }

    /// Adds the next frame record of a queue that was silent and has sent a relay block.
    fn add_head(&mut self, index: usize, now: Instant) {
        let line = &mut self.lines[index];
        let ns = line.next_ns(&mut self.out, now);
        if let Some(ns) = ns {
            self.heads.push(Reverse((ns, index)));
        }
        self.silent -= usize::from(ns.is_some() || line.ended);
    }

    /// Writes the released frame records to the output, in the order of time.
    fn write_released(&mut self, now: Instant) {
        while let Some(Reverse((_, index))) = self.heads.peek() {
            let index = *index;
            if self.silent > 0 && !self.is_released(index, now) {
                return;
            }
            self.write_earliest(now);
        }
    }

    /// Returns `true` if a queue's next frame record is written although other queues are silent.
    fn is_released(&mut self, index: usize, now: Instant) -> bool {
        self.release_time(index).is_some_and(|at| at <= now)
            || match self.on_full {
                OnFull::Drop => self.check_blocks(),
                OnFull::Hold => self.is_settled(index, now) && self.check_blocks(),
            }
    }

    /// Returns `true` if all silent queues have been silent for [`WINDOW`], with blocks to fill, and
    /// were seen idle [`SETTLED`] after a queue's oldest block arrived.
    fn is_settled(&self, index: usize, now: Instant) -> bool {
        let Some((came, _)) = self.lines[index].blocks.front() else {
            return false;
        };
        let is_settled = |it: &QueueLine| {
            let since = it.free_since.max(it.silent_since);
            it.empty_at >= Some(*came + SETTLED) && since + WINDOW <= now
        };
        self.silent_lines().all(is_settled)
    }

    /// Returns the queues that have not ended and have no relay block waiting.
    fn silent_lines(&self) -> impl Iterator<Item = &QueueLine> {
        self.lines
            .iter()
            .filter(|it| it.blocks.is_empty() && !it.ended)
    }

    /// Returns `true` if a queue has few blocks left to fill, or had and does not have enough yet.
    fn check_blocks(&mut self) -> bool {
        let was_short = self.is_short;
        let is_short = |it: &QueueLine| it.is_short_of_blocks(was_short);
        self.is_short = self.lines.iter().any(is_short);
        self.is_short
    }

    /// Returns the time at which a queue's next frame record is written although other queues are
    /// silent.
    fn release_time(&self, index: usize) -> Option<Instant> {
        let (came, _) = self.lines[index].blocks.front()?;
        let free = self.silent_lines().map(|it| it.free_since);
        let since = free.fold(*came, Instant::max);
        let seen_idle = self.silent_lines().all(|it| it.empty_at >= Some(*came));
        Some(since + if seen_idle { WINDOW } else { LONGEST })
    }

    /// Writes the earliest frame record of all queues, or counts its frame in the ledger if it is
    /// left out.
    fn write_earliest(&mut self, now: Instant) {
        let Some(Reverse((_, index))) = self.heads.pop() else {
            return;
        };
        let line = &mut self.lines[index];
        let Some((_, block)) = line.blocks.front() else {
            return;
        };
        let bytes = &block.memory.as_slice(block.len)[line.at..];
        let Some((Relayed::Record(mut record, filter), len)) = parse_relayed(bytes) else {
            return;
        };
        line.lost += record.lost_before;
        if record.lost_before > 0 {
            self.out.count_lost(line.queue, record.lost_before);
            line.unseen += record.lost_before;
        }
        let queue = line.queue;
        let behind_ns = self.last_ns.saturating_sub(record.ns);
        let is_late = (1..=SET_BACK_NS).contains(&behind_ns);
        if !is_late {
            self.last_ns = record.ns;
        }
        let verdict = (self.in_order.as_mut()).map_or(Verdict::Captured, |it| {
            it.judge(index, &mut record, is_late)
        });
        if verdict == Verdict::Captured {
            if behind_ns > 0 {
                line.counters.add_out_of_order();
            }
            let owed = line.filter.take();
            record.lost_before += std::mem::take(&mut line.owed_lost);
            if !self.out.write(queue, &record, filter.or(owed.as_deref())) {
                line.counters.add_lost(1, u64::from(record.len));
            }
        } else {
            if let Some(filter) = filter {
                line.filter = Some(filter.to_owned());
            }
            line.owed_lost += record.lost_before;
            let (counters, bytes) = (&line.counters, u64::from(record.len));
            match verdict {
                Verdict::Deduplicated => counters.add_repeated(1, bytes),
                Verdict::SampledOut => counters.sampled_out_in_order(bytes),
                Verdict::CutOff => counters.cut_off_in_order(bytes),
                // The stages in `InOrder` return no other verdict.
                _ => counters.add_lost(1, bytes),
            }
        }
        line.at += len;
        match line.next_ns(&mut self.out, now) {
            Some(ns) => self.heads.push(Reverse((ns, index))),
            None => self.silent += usize::from(!line.ended),
        }
    }
}

impl QueueLine {
    /// Returns `true` if at most a quarter of the queue's blocks are left to fill while the ordering
    /// thread holds blocks of it, so that its sink may have to drop frames; three eighths if the queue
    /// was short of blocks before.
    fn is_short_of_blocks(&self, was_short: bool) -> bool {
        let all = self.empty.capacity().unwrap_or(0);
        let few = if was_short { all * 3 / 8 } else { all / 4 };
        self.empty.len() <= few && !self.blocks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use wqcap_core::stats::{ReceivedCounts, VerdictCounts};
    use wqcap_memory::Region;

    /// Output that keeps all records for the test.
    #[derive(Default)]
    struct Kept {
        records: Vec<(u16, u64, Vec<u8>)>,
        filters: Vec<(u64, String)>,
        lost: u64,
    }

    impl OrderedOutput for Kept {
        fn write(&mut self, queue: u16, record: &Record<'_>, filter: Option<&str>) -> bool {
            self.filters
                .extend(filter.map(|it| (record.ns, it.to_owned())));
            self.records.push((queue, record.ns, record.bytes.to_vec()));
            true
        }

        fn count_lost(&mut self, _queue: u16, n: u64) {
            self.lost += n;
        }

        fn end_round(&mut self, _quiet: bool) {}
    }

    /// Record of the frames that passed through the stages in [`InOrder`].
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
        /// Cuts frames to 14 bytes. Frames stamped at a multiple of 1000 are sampled out, at a multiple
        /// of 700 cut off.
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
            window: Some(DedupWindow::new(50, [].into_iter().collect())),
            stages: vec![stage(), stage()],
            ports: Vec::new(),
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
        assert_eq!(bench.reorderer.out.lost, 0, "a repetition is not lost");
        let seen = judged.0.lock().expect("unpoisoned").frames.clone();
        assert_eq!(seen, [10, 100], "observers see no repetition");
    }

    #[test]
    fn a_frame_left_out_is_counted_for_the_step_that_left_it_out() {
        let mut bench = Bench::new(2, 9);
        let judged = SharedJudged::default();
        let stage = || Box::new(judged.clone()) as Box<dyn Judge>;
        bench.reorderer = bench.reorderer.with_steps(Some(InOrder {
            window: Some(DedupWindow::new(1, [].into_iter().collect())),
            stages: vec![stage(), stage()],
            ports: Vec::new(),
            snaplen: 10,
        }));
        let now = Instant::now();
        for full in [
            bench.block(0, &[600, 700, 1000, 1001], None),
            bench.block(1, &[900], Some(7)),
        ] {
            bench.reorderer.arrive(full, now);
        }
        bench.reorderer.write_released(now);
        let cut = |queue, ns| (queue, ns, vec![7; 10]);
        let written = std::mem::take(&mut bench.reorderer.out.records);
        assert_eq!(written, [cut(0, 600), cut(1, 900), cut(0, 1001)]);
        let late = bench.block(0, &[5], None);
        bench.reorderer.arrive(late, now);
        bench.reorderer.write_released(now);
        bench.reorderer.end_batch(true);
        let ledger = bench.reorderer.lines[0].counters.ledger(0);
        ledger.check().expect("balanced");
        let lines = [ledger.captured, ledger.sampled_out, ledger.cut_off];
        assert_eq!((lines, bench.late(0)), ([998, 1, 1], 1));
        let judged = judged.0.lock().expect("unpoisoned");
        assert_eq!(judged.frames, [600, 700, 900, 1000, 1001, 5]);
        assert_eq!(judged.missed, 7, "lost frames of queue 1, counted once");
        assert_eq!(bench.reorderer.out.lost, 7, "the late frame is not lost");
    }

    /// Ordering thread's state, to which a test passes blocks that it writes.
    struct Bench {
        /// Length of the frames on the wire in bytes; 60 bytes of each are captured.
        len: u32,
        reorderer: Reorderer<Kept>,
        empties: Vec<Receiver<Block>>,
    }

    impl Bench {
        /// Creates `queues` queues with `blocks` blocks each.
        fn new(queues: usize, blocks: usize) -> Self {
            let (mut lines, mut empties) = (Vec::new(), Vec::new());
            for queue in 0..queues as u16 {
                let (empty_in, empty) = crossbeam_channel::bounded(blocks);
                for _ in 0..blocks {
                    let block = Block::new(Region::allocate(4096, None).expect("memory"));
                    empty_in.send(block).expect("room");
                }
                let counters = Arc::new(QueueCounters::default());
                counters.publish_received(&ReceivedCounts {
                    frames: 1000,
                    ..ReceivedCounts::default()
                });
                counters.publish_ends(&VerdictCounts {
                    captured: 1000,
                    bytes: 100_000,
                    ..VerdictCounts::default()
                });
                lines.push(QueueLine::new(queue, counters, empty_in, Arc::default()));
                empties.push(empty);
            }
            let (_, full) = crossbeam_channel::bounded(0);
            Self {
                len: 100,
                reorderer: Reorderer::new(full, lines, OnFull::Drop, Kept::default()),
                empties,
            }
        }

        /// Returns a relay block with one record that carries a changed filter.
        fn block_with_filter(&self, queue: u16, ns: u64, filter: &str) -> Full {
            let mut full = self.block(queue, &[ns], None);
            let Some((Relayed::Record(record, _), _)) =
                parse_relayed(full.block.memory.as_slice(full.block.len))
            else {
                panic!("no record");
            };
            let bytes = Relay.record_with_notes(queue, &record, &[Note::Filter(filter.into())]);
            full.block.memory.as_mut_slice()[..bytes.len()].copy_from_slice(&bytes);
            full.block.len = bytes.len();
            full
        }

        /// Returns a relay block with records of these stamps, and the relay's end with `last` lost
        /// frames.
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
                    interface: 0,
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

        /// Passes a relay block to the reorderer and returns the queues and stamps of the records
        /// written.
        fn give(
            &mut self,
            queue: u16,
            stamps: &[u64],
            last: Option<u64>,
            now: Instant,
        ) -> Vec<(u16, u64)> {
            let full = self.block(queue, stamps, last);
            self.reorderer.arrive(full, now);
            self.written(now)
        }

        /// Returns the records written at `now` if all loops are idle at that time.
        fn written(&mut self, now: Instant) -> Vec<(u16, u64)> {
            for line in &self.reorderer.lines {
                line.counters.idle(now);
            }
            self.reorderer.read_idle_times();
            self.written_without_idle_update(now)
        }

        /// Returns the records written at `now` without an update of the loops' idle times.
        fn written_without_idle_update(&mut self, now: Instant) -> Vec<(u16, u64)> {
            self.reorderer.write_released(now);
            let records = std::mem::take(&mut self.reorderer.out.records);
            records.iter().map(|(queue, ns, _)| (*queue, *ns)).collect()
        }

        fn late(&self, queue: usize) -> u64 {
            self.reorderer.lines[queue].counters.out_of_order()
        }
    }

    #[test]
    fn a_record_is_written_at_once_if_every_queue_has_one_and_waits_otherwise() {
        let mut bench = Bench::new(2, 3);
        let now = Instant::now();
        assert_eq!(bench.give(0, &[10, 30, 50], None, now), []);
        assert_eq!(
            bench.give(1, &[20, 30, 40], None, now),
            [(0, 10), (1, 20), (0, 30), (1, 30), (1, 40)]
        );
        assert_eq!(bench.written(now), []);
        assert_eq!(bench.give(1, &[], Some(5), now), [(0, 50)]);
        assert_eq!(bench.reorderer.out.lost, 5);
        assert_eq!(bench.give(0, &[60], Some(0), now), [(0, 60)]);
        assert_eq!(bench.reorderer.silent, 0);
        assert_eq!(bench.empties[0].len(), 3, "every block was returned");
    }

    #[test]
    fn records_of_a_silent_queue_are_late_after_the_window() {
        let mut bench = Bench::new(2, 3);
        let now = Instant::now();
        assert_eq!(bench.give(0, &[10, 20], None, now), []);
        let almost = WINDOW - Duration::from_nanos(1);
        assert_eq!(bench.written(now + almost), []);
        let now = now + WINDOW;
        assert_eq!(bench.written(now), [(0, 10), (0, 20)]);
        assert_eq!(bench.give(1, &[15, 20, 25], None, now), []);
        assert_eq!(bench.written(now + almost), []);
        assert_eq!(
            bench.written(now + WINDOW),
            [(1, 15), (1, 20), (1, 25)],
            "a late record is written"
        );
        assert_eq!(
            (bench.late(0), bench.late(1)),
            (0, 1),
            "an equal stamp is in order"
        );
        assert_eq!(bench.reorderer.out.lost, 0);
        let ledger = bench.reorderer.lines[1].counters.ledger(1);
        assert_eq!((ledger.captured, ledger.bytes), (1000, 100_000));
    }

    #[test]
    fn after_a_clock_was_set_back_the_order_begins_again() {
        let mut bench = Bench::new(1, 3);
        let (now, hour) = (Instant::now(), 3_600_000_000_000);
        let stamps = [hour, hour + 2, hour + 1, 10, 20, 15, 30];
        let written = bench.give(0, &stamps, None, now);
        assert_eq!(written, stamps.map(|ns| (0, ns)));
        assert_eq!(bench.late(0), 3, "the steps back");
        // A frame with a stamp of the future does not make those behind it late.
        assert_eq!(bench.give(0, &[hour, 40, 50], None, now).len(), 3);
        assert_eq!((bench.late(0), bench.reorderer.last_ns), (4, 50));
    }

    #[test]
    fn the_wait_for_a_queue_whose_loop_does_not_run_is_longer() {
        let mut bench = Bench::new(2, 3);
        let now = Instant::now();
        let first = bench.block(0, &[10], None);
        bench.reorderer.arrive(first, now);
        let later = now + LONGEST - Duration::from_nanos(1);
        let before = now.checked_sub(Duration::from_nanos(1)).expect("a time");
        bench.reorderer.lines[1].counters.idle(before);
        bench.reorderer.read_idle_times();
        assert_eq!(bench.written_without_idle_update(later), []);
        let full = bench.block(1, &[5], None);
        bench.reorderer.arrive(full, later);
        assert_eq!(bench.written_without_idle_update(later), [(1, 5)]);
        assert_eq!(
            bench.written_without_idle_update(later + LONGEST),
            [(0, 10)]
        );
        assert_eq!(bench.late(1), 0);
    }

    #[test]
    fn the_first_record_that_is_written_carries_a_changed_filter() {
        let mut bench = Bench::new(2, 9);
        let judged = SharedJudged::default();
        let stage = || Box::new(judged.clone()) as Box<dyn Judge>;
        bench.reorderer = bench.reorderer.with_steps(Some(InOrder {
            window: None,
            stages: vec![stage(), stage()],
            ports: Vec::new(),
            snaplen: usize::MAX,
        }));
        let now = Instant::now();
        for (queue, ns) in [(1, 1000), (0, 1020)] {
            let full = bench.block_with_filter(queue, ns, "udp");
            bench.reorderer.arrive(full, now);
        }
        let written = bench.give(1, &[1015, 1025], None, now);
        assert_eq!(written, [(1, 1015), (0, 1020)], "1000 is sampled out");
        let filters = [(1015, "udp".to_owned()), (1020, "udp".to_owned())];
        assert_eq!(bench.reorderer.out.filters, filters);
    }

    #[test]
    fn with_drop_a_queue_without_blocks_releases_records() {
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
    fn with_drop_records_are_released_before_the_last_block_is_in_use() {
        let mut bench = Bench::new(2, 16);
        let now = Instant::now();
        for ns in 1..12 {
            assert_eq!(bench.give(0, &[ns], None, now), []);
        }
        // A quarter of the blocks is left; seven are free afterwards.
        assert_eq!(bench.give(0, &[12], None, now), [(0, 1), (0, 2), (0, 3)]);
        for ns in 13..15 {
            assert_eq!(bench.give(0, &[ns], None, now), []);
        }
        assert_eq!(bench.give(0, &[15], None, now).len(), 3);
    }

    #[test]
    fn with_hold_a_queue_without_blocks_releases_no_records() {
        let mut bench = Bench::new(2, 2);
        bench.reorderer.on_full = OnFull::Hold;
        let now = Instant::now();
        assert_eq!(bench.give(0, &[10], None, now), []);
        assert_eq!(
            bench.give(0, &[20], None, now),
            [],
            "the records wait although the queue has no block"
        );
        assert_eq!(
            bench.give(1, &[5, 15], None, now),
            [(1, 5), (0, 10), (1, 15)]
        );
        assert_eq!((bench.late(0), bench.late(1)), (0, 0));
        assert_eq!(bench.written(now + WINDOW), [(0, 20)]);
    }

    #[test]
    fn with_hold_a_long_idle_queue_does_not_limit_the_others() {
        let mut bench = Bench::new(2, 2);
        bench.reorderer.on_full = OnFull::Hold;
        let now = Instant::now();
        assert_eq!(bench.give(0, &[10], None, now), []);
        assert_eq!(bench.give(0, &[20], None, now), []);
        assert_eq!(bench.written(now + SETTLED), [], "queue 1 may begin later");
        assert_eq!(bench.written(now + WINDOW), [(0, 10), (0, 20)]);
        let now = now + WINDOW;
        assert_eq!(bench.give(0, &[30], None, now), []);
        assert_eq!(bench.give(0, &[40], None, now), []);
        let almost = SETTLED - Duration::from_nanos(1);
        assert_eq!(bench.written(now + almost), []);
        let now = now + SETTLED;
        assert_eq!(bench.written(now), [(0, 30)], "a block is free again");
        // Queue 1 has sent a record, and has the whole window for the next one.
        assert_eq!(bench.give(1, &[35], None, now), [(1, 35)]);
        assert_eq!(bench.give(0, &[50], None, now), []);
        assert_eq!(bench.written(now + WINDOW / 2), []);
        assert_eq!(bench.give(1, &[38], None, now + WINDOW / 2), [(1, 38)]);
        assert_eq!(bench.late(1), 0);
    }

    #[test]
    fn a_queue_that_was_out_of_blocks_has_the_whole_window_to_fill_one() {
        let mut bench = Bench::new(2, 1);
        bench.reorderer.on_full = OnFull::Hold;
        let now = Instant::now();
        assert_eq!(bench.give(0, &[10], None, now), []);
        // The output blocked meanwhile: queue 1 has no block to fill before its block is returned.
        let later = now + 5 * WINDOW;
        assert_eq!(bench.give(1, &[4], None, later), [(1, 4)]);
        assert_eq!(bench.written(later + WINDOW / 2), []);
        assert_eq!(bench.give(1, &[6], None, later + WINDOW / 2), [(1, 6)]);
        assert_eq!(bench.late(1), 0);
        assert_eq!(bench.written(later + 2 * WINDOW), [(0, 10)]);
    }

    #[test]
    fn the_window_begins_when_the_block_is_returned_and_not_before_the_output_blocked() {
        let mut bench = Bench::new(2, 1);
        bench.reorderer.on_full = OnFull::Hold;
        let now = Instant::now();
        let before = now.checked_sub(2 * LONGEST).expect("a time");
        assert_eq!(bench.give(0, &[10], None, before), []);
        assert_eq!(bench.give(1, &[4], None, before), [(1, 4)]);
        assert_eq!(bench.written(now), []);
        assert_eq!(bench.give(1, &[6], None, now), [(1, 6)]);
        assert_eq!(bench.late(1), 0);
    }

    #[test]
    fn relayed_records_decode_to_what_was_encoded() {
        for len in [0usize, 1, 60, 1500] {
            let bytes = vec![3; len];
            let record = Record {
                ns: u64::MAX - 5,
                bytes: &bytes,
                len: 9000,
                fcs: &[1, 2, 3, 4],
                fcs_len: 4,
                interface: 0,
                bad_fcs: len == 60,
                lost_before: 1 << 40,
            };
            let mut out = vec![0; Relay.record_len(&record)];
            Relay.record(&mut out, 0, &record);
            let Some((Relayed::Record(back, None), end)) = parse_relayed(&out) else {
                panic!("no record");
            };
            assert_eq!(
                (back.ns, back.bytes, back.len),
                (record.ns, record.bytes, 9000)
            );
            assert_eq!((back.lost_before, end), (1 << 40, out.len()));
            assert_eq!((back.fcs, back.fcs_len), (record.fcs, 4));
            assert_eq!(back.bad_fcs, record.bad_fcs);
            assert!(parse_relayed(&out[..out.len() - 1]).is_none());
            for filter in ["", "tcp port 80"] {
                let out = Relay.record_with_notes(0, &record, &[Note::Filter(filter.into())]);
                let Some((Relayed::Record(again, relayed), end)) = parse_relayed(&out) else {
                    panic!("no record");
                };
                assert_eq!((again.bytes, relayed), (record.bytes, Some(filter)));
                assert_eq!(end, out.len());
                assert!(parse_relayed(&out[..end - 1]).is_none());
            }
        }
    }
}
