//! Block sink: encodes a queue's frames into large blocks and sends the blocks to the writer. The
//! encoding is the only copy of a frame.
//!
//! A file is a sequence of bytes cut into blocks; a record may begin in one block and end in the next.
//! Every block except a file's last is full, unless the queue becomes idle. Then the partial block is
//! sent at once, and the next block repeats its bytes from the last [`ALIGN`] boundary, because direct
//! I/O writes whole sectors.
//!
//! Blocks that are compressed or ordered before they are written hold whole records
//! ([`Cut::Records`]).

mod sent;
mod sink_file;
mod write_block;

pub(super) use write_block::{ALIGN, Block, FileLedger, FrameTally};

use crate::{Encoder, Record, SinkRequests, Totals, WriteLimit, requests::RequestCursor};
use crossbeam_channel::{Receiver, Sender};
pub(crate) use sent::SentBlocks;
use sink_file::{FileLimits, SinkFile};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use wqcap_core::{
    consumer::{Consumer, FCS_LEN, Fcs, Frame, Verdict},
    settings::OnFull,
    stats::QueueCounters,
};

/// Positions at which a capture file may be cut into write blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The file may be cut at any byte: its blocks are full, and written unchanged.
    Anywhere,
    /// The file may be cut between frame records only.
    Records {
        /// Number of idle calls of a sink after which a partial block is sent. Each partial block
        /// costs at least one sector.
        patience: u32,
    },
}

/// Write block sent by a sink, on its way to the writer.
pub(super) struct Full {
    pub(super) queue: u16,
    /// Number of write blocks that the queue sent before this one.
    pub(super) number: u64,
    pub(super) block: Block,
}

/// Channels by which a sink gets empty write blocks and sends filled ones.
pub(super) struct Exchange {
    /// Number of write blocks of the sink's queue.
    pub(super) blocks: usize,
    pub(super) empty: Receiver<Block>,
    pub(super) full: Sender<Full>,
    /// Times at which the queue's write blocks were sent to the writer or the ordering thread.
    pub(super) sent: Arc<SentBlocks>,
    /// Set by the writer when it cannot continue the queue's capture file: the queue's next block
    /// begins a new file.
    pub(super) broken: Arc<AtomicBool>,
}

impl Exchange {
    /// Returns an empty write block, waiting for it with `OnFull::Hold`. Returns `None` if there is
    /// none, or the writer has ended.
    fn take_empty(&self, on_full: OnFull) -> Option<Block> {
        match (self.empty.try_recv(), on_full) {
            (Ok(block), _) => Some(block),
            (Err(_), OnFull::Hold) => self.empty.recv().ok(),
            (Err(_), OnFull::Drop) => None,
        }
    }
}

/// Received frames of a queue that its receive loop passes to no consumer: those that no parser takes,
/// and receives that end in an error.
pub(super) struct LoopLosses {
    counters: Arc<QueueCounters>,
    /// Number of these frames that the sink has counted.
    counted: u64,
}

impl LoopLosses {
    pub(super) fn new(counters: Arc<QueueCounters>) -> Self {
        let counted = 0;
        Self { counters, counted }
    }

    /// Returns the number of these frames since the last call.
    #[inline]
    fn take(&mut self) -> u64 {
        let all = self.counters.lost_in_loop();
        all.saturating_sub(std::mem::replace(&mut self.counted, all))
    }
}

/// Settings for the capture files of a sink.
#[derive(Clone, Copy, Debug)]
pub(super) struct SinkSettings {
    /// Index of the sink among the run's sinks.
    pub(super) queue: u16,
    /// `true` if the sink's files hold the frames of all queues.
    pub(super) all: bool,
    /// Maximum bytes of a frame that its record holds; `usize::MAX`: whole frames.
    pub(super) snaplen: usize,
    pub(super) on_full: OnFull,
    pub(super) cut: Cut,
    /// Span of frame time stamps, in nanoseconds, after which a sink sends a partial write block.
    pub(super) held_ns: u64,
}

/// Block sink: encodes frames into write blocks for the writer.
pub struct BlockSink<E: Encoder> {
    shape: SinkSettings,
    encoder: E,
    /// Length in bytes of the trailer that closes a capture file.
    trailer: usize,
    asked: RequestCursor,
    exchange: Exchange,
    /// Number of write blocks that the sink has sent.
    sent: u64,
    /// Number of idle calls since the sink last sent a partial block.
    quiet: u32,
    file: SinkFile,
    /// Number of capture files that the sink has begun.
    begun: u64,
    /// Limit on the run's bytes and files; `None`: no limit.
    limit: Option<Arc<WriteLimit>>,
    /// Frames that the receive loop of the sink's queue loses; `None`: the sink takes the frames of
    /// several queues.
    loop_losses: Option<LoopLosses>,
    /// Number of frames that the sink or the receive loop lost since the last frame record. A loss
    /// leaves the fast path, so only the slow path resets it.
    lost: u64,
    /// Buffer for a frame record that does not fit in the sink's current block.
    scratch: Vec<u8>,
}

impl<E: Encoder> BlockSink<E> {
    /// Creates a block sink whose files count towards the write limit `limit`, if there is one.
    pub(super) fn new(
        shape: SinkSettings,
        encoder: E,
        asked: Arc<SinkRequests>,
        exchange: Exchange,
        limit: Option<Arc<WriteLimit>>,
        loop_losses: Option<LoopLosses>,
    ) -> Self {
        Self {
            shape,
            trailer: encoder.trailer(&Totals::default()).len(),
            encoder,
            asked: RequestCursor::new(asked),
            exchange,
            sent: 0,
            quiet: 0,
            file: SinkFile::default(),
            begun: 0,
            limit,
            loop_losses,
            lost: 0,
            scratch: Vec::new(),
        }
    }

    fn submit(&mut self, block: Block) {
        self.exchange.sent.add();
        // The channel has room for all blocks, and the writer outlives the sinks.
        let _ = self.exchange.full.send(Full {
            queue: self.shape.queue,
            number: self.sent,
            block,
        });
        self.sent += 1;
    }

    /// Begins a capture file whose first frame record is stamped `ns`. Returns `false` if no write
    /// block is free.
    fn begin_file(&mut self, ns: u64) -> bool {
        let Some(mut block) = self.exchange.take_empty(self.shape.on_full) else {
            return false;
        };
        self.begun += 1;
        self.exchange.broken.store(false, Ordering::Relaxed);
        let whose = (!self.shape.all).then_some(self.shape.queue);
        let header = self.encoder.header(whose, ns);
        let next_header_ns = self.encoder.next_header_ns();
        let trailer = self.trailer as u64;
        let limits = FileLimits::new(self.asked.rotation(), ns, trailer, next_header_ns);
        block.begin_within(limits.len, self.begun, 0, ns);
        block.append(&header);
        block.whole = block.len;
        if let Some(limit) = &self.limit
            && !self.file.is_counted()
        {
            limit.count_file();
        }
        self.file.begin(block, ns, limits);
        true
    }

    /// Ends the sink's open file because it is full, so that the next frame record begins another
    /// one. If the write limit allows no further file, the open file takes all further records.
    /// Returns `false` without an effect if no write block is free to begin the next file: frames
    /// that are dropped up to the end of the run then have an open file with statistics.
    #[cold]
    fn rotate_file(&mut self) -> bool {
        let limit = self.limit.as_ref();
        if limit.is_none_or(|it| it.allows_file()) && !self.can_begin_next() {
            return false;
        }
        if limit.is_none_or(|it| it.claim_file()) {
            self.end_file(limit.is_some());
        } else if let Some(file) = self.file.open_mut() {
            file.lift_limits();
        }
        true
    }

    /// Returns `true` if a write block is free, or may be waited for, to begin the file behind the
    /// open one. The end of the open file may need another block.
    fn can_begin_next(&self) -> bool {
        let is_tight = (self.file.open()).is_some_and(|it| it.block.room() < self.trailer);
        let need = 1 + usize::from(is_tight);
        // One block is in the sink.
        let need = need.min(self.exchange.blocks - 1);
        self.shape.on_full == OnFull::Hold || self.exchange.empty.len() >= need
    }

    /// Adds the bytes of the open capture file that are new to the write limit's count.
    fn publish_written_bytes(&mut self) {
        if let Some(limit) = &self.limit
            && let Some(file) = self.file.open_mut()
        {
            let now = file.len();
            limit.add_bytes(now.saturating_sub(file.published));
            file.published = now;
        }
    }

    /// Ends the sink's open file, if there is one. `is_counted` is set if the next file is already
    /// counted towards the write limit.
    fn end_file(&mut self, is_counted: bool) {
        self.publish_written_bytes();
        let Some(mut file) = self.file.end(is_counted) else {
            return;
        };
        let trailer = self.encoder.trailer(&file.totals);
        let rest = match self.shape.cut {
            Cut::Records { .. } if file.block.room() < trailer.len() => &trailer,
            _ => file.block.append(&trailer),
        };
        if rest.is_empty() {
            file.block.whole = file.block.len;
        } else if let Some(next) = self.exchange.take_empty(OnFull::Hold) {
            self.submit(file.continue_in(next, 0, rest));
        }
        (file.block.end, file.block.last_ns) = (true, file.latest_ns());
        self.submit(file.block);
    }

    /// Slow path for a frame record: no file is open, rotation is due, the block is full, the clock
    /// was set back, or notes are pending. The record is passed by value: a reference would force the compiler to store
    /// every frame's record in memory.
    #[cold]
    fn take_slow(&mut self, queue: u16, record: Record<'_>, need: usize) -> Verdict {
        let is_due = (self.file.open()).is_some_and(|it| it.is_due(record.ns, need));
        let is_taken = (!is_due || self.rotate_file()) && {
            if let Some(file) = self.file.open_mut() {
                file.keep_peak();
            }
            self.ensure_open(record.ns) && self.append_record(queue, &record, need)
        };
        if !is_taken {
            self.lost += 1;
            self.file.count_missed(record.interface, 1);
            return Verdict::DroppedStorage;
        }
        self.lost = 0;
        self.file.settle();
        if let Some(file) = self.file.open_mut() {
            file.count_record(record.ns);
        }
        Verdict::Captured
    }

    /// Begins a capture file if none is open, or if the writer cannot continue the open one.
    /// Returns `false` if no write block is free.
    fn ensure_open(&mut self, ns: u64) -> bool {
        if self.exchange.broken.load(Ordering::Relaxed)
            && let Some(file) = self.file.end(false)
        {
            // The records in the current block are lost with its file; the writer counts them.
            self.submit(file.block);
        }
        self.file.open().is_some() || self.begin_file(ns)
    }

    /// Appends a frame record to the sink's open file with the pending notes, across two blocks if
    /// needed. Returns `false` if no write block is free.
    fn append_record(&mut self, queue: u16, record: &Record<'_>, need: usize) -> bool {
        let notes = self.file.notes();
        if !notes.is_empty() {
            let bytes = self.encoder.record_with_notes(queue, record, &notes);
            return self.append_encoded(record, &bytes);
        }
        match self.file.open_mut() {
            None => false,
            Some(file) if file.block.room() >= need => {
                file.block.encode(&self.encoder, queue, record, need);
                true
            }
            Some(_) => {
                let mut scratch = std::mem::take(&mut self.scratch);
                scratch.resize(need, 0);
                self.encoder.record(&mut scratch, queue, record);
                let taken = self.append_encoded(record, &scratch);
                self.scratch = scratch;
                taken
            }
        }
    }

    /// Appends an encoded frame record to the sink's current block, and the bytes that do not fit
    /// to the next block. Returns `false` if no next block is free.
    fn append_encoded(&mut self, record: &Record<'_>, bytes: &[u8]) -> bool {
        let Some(file) = self.file.open_mut() else {
            return false;
        };
        let mut full = None;
        if file.block.room() >= bytes.len() {
            file.block.append(bytes);
        } else {
            // The next block is taken first: without it, no part of the record may be written.
            let Some(next) = self.exchange.take_empty(self.shape.on_full) else {
                return false;
            };
            let rest = match self.shape.cut {
                Cut::Anywhere => file.block.append(bytes),
                Cut::Records { .. } => bytes,
            };
            full = Some(file.continue_in(next, 0, rest));
        }
        file.block.count(record);
        full.into_iter().for_each(|it| self.submit(it));
        true
    }

    /// Takes a frame record of a queue and returns the frame's verdict. Always inlined: a call
    /// would force the compiler to store every record in memory.
    #[inline(always)]
    pub(super) fn take(&mut self, queue: u16, record: &Record<'_>) -> Verdict {
        let need = self.encoder.record_len(record);
        match &mut self.file {
            SinkFile::Open(file)
                if file.block.len + need <= file.block.until
                    && file.limits.takes_time(record.ns)
                    && file.follows(record.ns)
                    && file.totals.received < file.limits.frames =>
            {
                file.block.encode(&self.encoder, queue, record, need);
                file.count_record(record.ns);
                Verdict::Captured
            }
            _ => self.take_slow(queue, *record, need),
        }
    }

    /// Takes a frame whose FCS the device delivers. Not inlined, so that frames without an FCS have no
    /// cost from it.
    #[inline(never)]
    fn frame_with_fcs(&mut self, frame: &Frame<'_>, fcs: &Fcs) -> Verdict {
        self.take(self.shape.queue, &self.record_with_fcs(frame, fcs))
    }

    /// Returns the record to write for a frame whose FCS the device delivers.
    #[inline]
    fn record_with_fcs<'a>(&self, frame: &Frame<'a>, fcs: &'a Fcs) -> Record<'a> {
        let record = self.record(frame);
        let caplen = record.bytes.len();
        let whole = caplen == frame.len as usize && caplen + FCS_LEN <= self.shape.snaplen;
        Record {
            fcs: if whole { &fcs.bytes } else { &[] },
            fcs_len: FCS_LEN as u32,
            bad_fcs: fcs.bad,
            ..record
        }
    }

    /// Returns the record to write for a frame whose FCS the device does not deliver.
    #[inline]
    fn record<'a>(&self, frame: &Frame<'a>) -> Record<'a> {
        let caplen = frame.bytes.len().min(self.shape.snaplen);
        Record {
            ns: frame.ns,
            bytes: &frame.bytes[..caplen],
            len: frame.len,
            fcs: &[],
            fcs_len: 0,
            interface: 0,
            bad_fcs: false,
            lost_before: self.lost,
        }
    }

    /// Takes a frame record of a queue into a capture file of all queues, and counts it there.
    #[inline]
    pub(super) fn take_of(&mut self, queue: u16, record: &Record<'_>) -> Verdict {
        let interface = self.encoder.interface(queue);
        let record = Record {
            interface,
            ..*record
        };
        let verdict = self.take(queue, &record);
        if verdict == Verdict::Captured
            && let Some(file) = self.file.open_mut()
        {
            file.block.tally.credit(queue.into(), 1, record.len.into());
            file.totals.count_of(interface, 1, 0);
        }
        verdict
    }

    /// Counts `n` frames of a queue that were lost before they reached this sink as received and
    /// dropped.
    pub(super) fn count_missed(&mut self, queue: u16, n: u64) {
        self.file.count_missed(self.encoder.interface(queue), n);
    }

    /// Counts frames that the receive loop has lost since the last call as received and dropped.
    #[inline]
    fn count_loop_losses(&mut self) {
        let lost = self.loop_losses.as_mut().map_or(0, LoopLosses::take);
        if lost > 0 {
            self.lost += lost;
            self.file.count_missed(0, lost);
        }
    }

    /// Adds the operator's new marks to the notes for the next frame record of the sink's open
    /// file.
    #[cold]
    fn add_marks(&mut self) {
        let marks = self.asked.take_marks();
        if self.encoder.supports_marks() && self.file.open().is_some() {
            self.file.add_notes(|it| it.add_marks(marks));
        }
    }

    /// Checks for new requests to the sink and carries them out.
    #[inline]
    fn poll_requests(&mut self) {
        if self.asked.is_new() {
            self.carry_out_requests();
        }
    }

    /// Carries out what other threads have requested of the sink since its last check: a new file, a
    /// mark, a flush.
    #[cold]
    fn carry_out_requests(&mut self) {
        self.asked.acknowledge();
        if self.asked.take_rotation() {
            self.end_file(false);
        }
        if self.asked.has_marks() {
            self.add_marks();
        }
        if let Some(flush) = self.asked.pending_flush() {
            if self.has_unsent() && !self.send_partial() {
                // No block is free: repeat at the next check.
                return self.asked.postpone();
            }
            let sink = usize::from(self.shape.queue);
            self.asked.confirm_flush(sink, flush, self.sent);
        }
    }

    /// Returns `true` if the sink's open block has a frame record.
    fn has_unsent(&self) -> bool {
        (self.file.open()).is_some_and(|it| it.block.tally.frames > 0)
    }

    /// Sends the sink's open block before it is full, if it has a frame record and another block is
    /// free.
    fn send_early(&mut self) {
        if !self.has_unsent() {
            return;
        }
        // If the disk is behind, a partial block would wait for it and hold fewer records than a full one.
        let is_behind = self.exchange.empty.len() * 2 < self.exchange.blocks;
        if is_behind && self.shape.cut == Cut::Anywhere {
            return;
        }
        self.send_partial();
    }

    /// Sends the sink's open block before it is full, and continues in another block. Returns
    /// `false` if no block is free.
    fn send_partial(&mut self) -> bool {
        let Some(file) = self.file.open_mut() else {
            return false;
        };
        let Some(next) = self.exchange.take_empty(OnFull::Drop) else {
            return false;
        };
        let repeated = match self.shape.cut {
            Cut::Anywhere => file.block.len % ALIGN,
            Cut::Records { .. } => 0,
        };
        let partial = file.continue_in(next, repeated, &[]);
        self.submit(partial);
        true
    }
}

impl<E: Encoder> Consumer for BlockSink<E> {
    #[inline(always)]
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        if let Some(fcs) = &frame.fcs {
            return self.frame_with_fcs(frame, fcs);
        }
        self.take(self.shape.queue, &self.record(frame))
    }

    fn filter_changed(&mut self, filter: &str) {
        if self.encoder.set_filter(filter) {
            self.file.add_notes(|it| it.set_filter(filter));
        }
    }

    #[inline]
    fn begin_batch(&mut self) {
        self.poll_requests();
        self.count_loop_losses();
        if self.limit.is_some() {
            self.publish_written_bytes();
        }
        if (self.file.open()).is_some_and(|it| it.held_ns() >= self.shape.held_ns) {
            self.send_early();
        }
    }

    /// Sends the sink's partial block, so that frames at a low rate also reach the disk.
    fn idle(&mut self) {
        self.poll_requests();
        if !self.has_unsent() {
            return;
        }
        if let Cut::Records { patience } = self.shape.cut {
            self.quiet += 1;
            if self.quiet < patience {
                return;
            }
            self.quiet = 0;
        }
        self.send_early();
    }
}

/// Sink for the frames of several ports, with one queue each, in the order of time. Its capture files
/// hold the frames of all ports.
pub struct PortsSink<E: Encoder> {
    sink: BlockSink<E>,
    /// For each port, the number of frames that the sink dropped since the port's last record.
    lost: Box<[u64]>,
}

impl<E: Encoder> PortsSink<E> {
    /// Creates a sink for the frames of `ports` ports in front of `sink`, whose files hold the frames of
    /// all queues.
    pub(super) fn new(sink: BlockSink<E>, ports: usize) -> Self {
        let lost = vec![0; ports].into();
        Self { sink, lost }
    }
}

impl<E: Encoder> Consumer for PortsSink<E> {
    #[inline]
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        let record = match &frame.fcs {
            None => self.sink.record(frame),
            Some(fcs) => self.sink.record_with_fcs(frame, fcs),
        };
        let lost = &mut self.lost[usize::from(frame.port)];
        let record = Record {
            lost_before: *lost,
            ..record
        };
        let verdict = self.sink.take_of(frame.port.into(), &record);
        *lost = match verdict {
            Verdict::Captured => 0,
            _ => *lost + 1,
        };
        verdict
    }

    fn filter_changed(&mut self, filter: &str) {
        self.sink.filter_changed(filter);
    }

    fn begin_batch(&mut self) {
        self.sink.begin_batch();
    }

    fn idle(&mut self) {
        self.sink.idle();
    }
}

impl<E: Encoder> Drop for BlockSink<E> {
    fn drop(&mut self) {
        if self.begun == 0 && self.encoder.ends_without_records() {
            self.begin_file(0);
        }
        self.count_loop_losses();
        // No further record takes them to another file.
        self.file.settle_missed();
        self.end_file(false);
    }
}
