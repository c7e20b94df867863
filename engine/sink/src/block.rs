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

use crate::{
    Encoder, Record, Rotation, SinkRequests, Totals, WriteLimit,
    requests::{PendingNotes, RequestCursor},
};
use crossbeam_channel::{Receiver, Sender};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use wqcap_core::{
    consumer::{Consumer, FCS_LEN, Fcs, Frame, Verdict},
    settings::OnFull,
    stats::QueueCounters,
};
use wqcap_memory::Region;

/// Alignment of offsets, lengths and addresses of direct I/O in bytes: the largest sector size in use.
pub(super) const ALIGN: usize = 4096;

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

/// Write block: a piece of a capture file, with the memory that holds it.
pub(super) struct Block {
    pub(super) memory: Region,
    /// Number of the block's file among the queue's files, from 1.
    pub(super) file: u64,
    /// Number of write blocks that the queue sent before this block. Set by the writer.
    pub(super) number: u64,
    /// Offset of the block's first byte in the file, a multiple of [`ALIGN`].
    pub(super) offset: u64,
    /// Number of the file's bytes in the write block.
    pub(super) len: usize,
    /// Length in bytes up to which the block takes frame records on the fast path: the block's
    /// capacity, or less if the file reaches its maximum size before.
    until: usize,
    /// Number of bytes in the block up to the end of its last whole frame record.
    pub(super) whole: usize,
    /// Number of frames whose records end in the block, and of their bytes.
    pub(super) tally: FrameTally,
    /// Time stamp of the first frame record in the block's file.
    pub(super) first_ns: u64,
    /// `true` for the last block of a capture file.
    pub(super) end: bool,
    /// `true` if the block's content cannot be written. The capture file ends before the block.
    pub(super) spoilt: bool,
    /// Number of the block's memory in the pool of write blocks that is registered with io_uring.
    pub(super) extent: Option<u16>,
}

impl Block {
    pub(super) fn new(memory: Region) -> Self {
        Self {
            memory,
            file: 0,
            number: 0,
            offset: 0,
            len: 0,
            until: 0,
            whole: 0,
            tally: FrameTally::default(),
            first_ns: 0,
            end: false,
            spoilt: false,
            extent: None,
        }
    }

    /// Makes this block replace the block `other` in its file: copies the file's number, the tally
    /// and the end mark, but not the bytes and their offset.
    pub(super) fn take_place_of(&mut self, other: &Self) {
        self.begin(other.file, 0, other.first_ns);
        self.tally.clone_from(&other.tally);
        self.end = other.end;
    }

    fn room(&self) -> usize {
        self.memory.len() - self.len
    }

    /// Resets the write block to an empty piece of file number `file`; the piece begins at
    /// `offset`.
    fn begin(&mut self, file: u64, offset: u64, first_ns: u64) {
        (self.file, self.offset, self.first_ns) = (file, offset, first_ns);
        (self.len, self.whole, self.until) = (0, 0, self.memory.len());
        (self.end, self.spoilt) = (false, false);
        self.tally.clear();
    }

    /// Resets the write block to an empty piece at `offset` of a file whose frame records may
    /// extend to at most `longest` bytes.
    fn begin_within(&mut self, longest: u64, file: u64, offset: u64, first_ns: u64) {
        self.begin(file, offset, first_ns);
        let left = usize::try_from(longest.saturating_sub(offset)).unwrap_or(usize::MAX);
        self.until = self.until.min(left);
    }

    /// Appends as many bytes as fit in the write block and returns the others.
    fn append<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (here, rest) = bytes.split_at(bytes.len().min(self.room()));
        let at = self.len;
        self.memory.as_mut_slice()[at..at + here.len()].copy_from_slice(here);
        self.len += here.len();
        rest
    }

    /// Encodes a frame record at the end of the write block, which must have room for the record's
    /// `need` bytes.
    #[inline(always)]
    fn encode(&mut self, encoder: &impl Encoder, queue: u16, record: &Record<'_>, need: usize) {
        let at = self.len;
        self.len += need;
        let out = &mut self.memory.as_mut_slice()[at..self.len];
        encoder.record(out, queue, record);
        self.count(record);
    }

    #[inline]
    fn count(&mut self, record: &Record<'_>) {
        self.whole = self.len;
        self.tally.frames += 1;
        self.tally.bytes += u64::from(record.len);
    }
}

/// Number of frames in a piece of a capture file, and of their bytes on the wire.
#[derive(Clone, Default)]
pub(super) struct FrameTally {
    pub(super) frames: u64,
    pub(super) bytes: u64,
    /// Frames and bytes by queue, in a capture file of all queues; else empty.
    by_queue: Vec<(u64, u64)>,
}

impl FrameTally {
    fn clear(&mut self) {
        (self.frames, self.bytes) = (0, 0);
        self.by_queue.fill((0, 0));
    }

    /// Adds the frame counts of another piece of the same capture file.
    pub(super) fn add(&mut self, more: &Self) {
        self.frames += more.frames;
        self.bytes += more.bytes;
        for (queue, (frames, bytes)) in more.by_queue.iter().enumerate() {
            self.credit(queue, *frames, *bytes);
        }
    }

    fn credit(&mut self, queue: usize, frames: u64, bytes: u64) {
        if self.by_queue.len() <= queue {
            self.by_queue.resize(queue + 1, (0, 0));
        }
        self.by_queue[queue].0 += frames;
        self.by_queue[queue].1 += bytes;
    }
}

/// Counters of the queues whose frames are in a capture file.
#[derive(Clone)]
pub(super) enum FileLedger {
    /// Counters of one queue, for a capture file of its frames.
    Queue(Arc<QueueCounters>),
    /// Counters of all queues, for a capture file of all frames.
    All(Vec<Arc<QueueCounters>>),
}

impl FileLedger {
    /// Counts the frames of a write block or capture file that did not reach the disk as lost.
    pub(super) fn count_lost(&self, tally: &FrameTally) {
        self.each(tally, QueueCounters::add_lost);
    }

    /// Counts the frames of a finished capture file as kept.
    pub(super) fn count_kept(&self, tally: &FrameTally) {
        self.each(tally, QueueCounters::add_kept);
    }

    fn each(&self, tally: &FrameTally, count: impl Fn(&QueueCounters, u64, u64)) {
        match self {
            Self::Queue(counters) => count(counters, tally.frames, tally.bytes),
            Self::All(all) => {
                for (counters, (frames, bytes)) in all.iter().zip(&tally.by_queue) {
                    count(counters, *frames, *bytes);
                }
            }
        }
    }
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
    /// Number of write blocks that the queue has.
    pub(super) blocks: usize,
    pub(super) empty: Receiver<Block>,
    pub(super) full: Sender<Full>,
    /// Set by the writer when it cannot continue the queue's capture file: the queue's next block
    /// begins a new file.
    pub(super) broken: Arc<AtomicBool>,
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
    pub(super) rotation: Rotation,
    pub(super) cut: Cut,
    /// Span of frame time stamps, in nanoseconds, after which a sink sends a partial write block.
    pub(super) held_ns: u64,
}

/// Use of the run's write limit by one sink.
struct LimitShare {
    all: Arc<WriteLimit>,
    /// `true` if the sink's next capture file is already counted towards the write limit.
    claimed: bool,
    /// Bytes of the sink's open file that were added to the write limit's count.
    reported: u64,
}

/// Block sink: encodes frames into write blocks for the writer.
pub struct BlockSink<E: Encoder> {
    shape: SinkSettings,
    encoder: E,
    /// Length in bytes of the trailer that closes a capture file.
    trailer: usize,
    asked: RequestCursor,
    /// Lower bound of the frame time stamps in the sink's current block, in nanoseconds since 1970.
    since_ns: u64,
    exchange: Exchange,
    /// Number of write blocks that the sink has sent.
    sent: u64,
    /// Number of idle calls since the sink last sent a partial block.
    quiet: u32,
    /// Write block that the sink fills. Present while a file is open, unless `note` holds the
    /// block.
    current: Option<Block>,
    /// Number of capture files that the sink has begun.
    file: u64,
    /// Time stamp in nanoseconds at which the sink's next file begins.
    rotate_at: u64,
    /// Value of [`Totals::received`] at which the sink's next file begins.
    rotate_frames: u64,
    limit: Option<LimitShare>,
    /// Frame statistics of the sink's open file.
    totals: Totals,
    /// Number of frames lost while the sink had no open file. The next file's statistics include
    /// them.
    lost_between: u64,
    /// Notes for the sink's next frame record, and the open file's block. Because `current` is then
    /// `None`, the next record takes the slow path.
    note: Option<(PendingNotes, Option<Block>)>,
    /// Number of frames that the sink dropped since its last frame record.
    lost: u64,
    /// Buffer for a frame record that does not fit in the sink's current block.
    scratch: Vec<u8>,
}

impl<E: Encoder> BlockSink<E> {
    pub(super) fn new(
        shape: SinkSettings,
        encoder: E,
        asked: Arc<SinkRequests>,
        exchange: Exchange,
    ) -> Self {
        Self::limited(shape, encoder, asked, exchange, None)
    }

    /// Creates a block sink whose files count towards the write limit `limit`, if there is one.
    pub(super) fn limited(
        shape: SinkSettings,
        encoder: E,
        asked: Arc<SinkRequests>,
        exchange: Exchange,
        limit: Option<Arc<WriteLimit>>,
    ) -> Self {
        Self {
            shape,
            trailer: encoder.trailer(&Totals::default()).len(),
            encoder,
            asked: RequestCursor::new(asked),
            since_ns: 0,
            exchange,
            sent: 0,
            quiet: 0,
            current: None,
            file: 0,
            rotate_at: u64::MAX,
            rotate_frames: u64::MAX,
            limit: limit.map(|all| LimitShare {
                all,
                claimed: false,
                reported: 0,
            }),
            totals: Totals::default(),
            lost_between: 0,
            note: None,
            lost: 0,
            scratch: Vec::new(),
        }
    }

    /// Returns the maximum length of a capture file in bytes without its trailer.
    fn longest_file(&self) -> u64 {
        match self.shape.rotation.size {
            0 => u64::MAX,
            size => size.saturating_sub(self.trailer as u64),
        }
    }

    /// Returns `true` if a frame record of `need` bytes stamped `ns` belongs to the sink's next
    /// file: that file's time or number of frames is reached, or the open file would exceed its
    /// maximum size.
    fn is_due(&self, ns: u64, need: usize) -> bool {
        let Some(block) = &self.current else {
            return false;
        };
        let size = block.offset + (block.len + need) as u64;
        // A record longer than the maximum size gets a separate file.
        ns >= self.rotate_at
            || self.totals.received >= self.rotate_frames
            || (size > self.longest_file() && self.totals.received > self.totals.dropped)
    }

    /// Returns an empty write block, waiting for it with `OnFull::Hold`. Returns `None` if there is
    /// none, or the writer has ended.
    fn take_empty(&self, on_full: OnFull) -> Option<Block> {
        match (self.exchange.empty.try_recv(), on_full) {
            (Ok(block), _) => Some(block),
            (Err(_), OnFull::Hold) => self.exchange.empty.recv().ok(),
            (Err(_), OnFull::Drop) => None,
        }
    }

    fn submit(&mut self, block: Block) {
        // The channel has room for all blocks, and the writer outlives the sinks.
        let _ = self.exchange.full.send(Full {
            queue: self.shape.queue,
            number: self.sent,
            block,
        });
        self.sent += 1;
        self.since_ns = self.totals.last_ns;
    }

    /// Begins a capture file whose first frame record is stamped `ns`. Returns `false` if no write
    /// block is free.
    fn begin_file(&mut self, ns: u64) -> bool {
        let Some(mut block) = self.take_empty(self.shape.on_full) else {
            return false;
        };
        self.file += 1;
        self.exchange.broken.store(false, Ordering::Relaxed);
        block.begin_within(self.longest_file(), self.file, 0, ns);
        let whose = (!self.shape.all).then_some(self.shape.queue);
        block.append(&self.encoder.header(whose, ns));
        block.whole = block.len;
        let lost = std::mem::take(&mut self.lost_between);
        self.totals = Totals {
            first_ns: ns,
            received: lost,
            dropped: lost,
            ..Totals::default()
        };
        self.since_ns = ns;
        self.rotate_at = match self.shape.rotation.period_ns {
            0 => u64::MAX,
            period => (ns / period + 1).saturating_mul(period),
        }
        .min(self.encoder.next_header_ns());
        self.rotate_frames = match self.shape.rotation.frames {
            0 => u64::MAX,
            frames => lost.saturating_add(frames),
        };
        if let Some(limit) = &mut self.limit {
            limit.reported = 0;
            if !std::mem::take(&mut limit.claimed) {
                limit.all.count_file();
            }
        }
        self.current = Some(block);
        true
    }

    /// Ends the sink's open file because it is full, so that the next frame record begins another
    /// one. If the write limit allows no further file, the open file takes all further records.
    #[cold]
    fn rotate_file(&mut self) {
        if let Some(limit) = &mut self.limit
            && !limit.claimed
        {
            if !limit.all.claim_file() {
                (self.rotate_at, self.rotate_frames) = (u64::MAX, u64::MAX);
                self.shape.rotation.size = 0;
                if let Some(block) = &mut self.current {
                    block.until = block.memory.len();
                }
                return;
            }
            limit.claimed = true;
        }
        self.end_file();
    }

    /// Adds the open file's new bytes to the write limit's count.
    fn publish_written_bytes(&mut self) {
        if let Some(limit) = &mut self.limit
            && let Some(block) = &self.current
        {
            let now = block.offset + block.len as u64;
            limit.all.add_bytes(now.saturating_sub(limit.reported));
            limit.reported = now;
        }
    }

    /// Ends the sink's open file, if there is one.
    fn end_file(&mut self) {
        self.publish_written_bytes();
        // Pending notes go to the first record of the next file.
        if let Some((note, block)) = self.note.take() {
            self.current = block;
            self.end_file();
            self.note = Some((note, None));
            return;
        }
        let trailer = self.encoder.trailer(&self.totals);
        if let Some(block) = &mut self.current {
            let rest = match self.shape.cut {
                Cut::Records { .. } if block.room() < trailer.len() => &trailer,
                _ => block.append(&trailer),
            };
            if rest.is_empty() {
                block.whole = block.len;
            } else if let Some(next) = self.take_empty(OnFull::Hold) {
                self.continue_in_block(next, rest);
            }
        }
        if let Some(mut block) = self.current.take() {
            block.end = true;
            self.submit(block);
        }
    }

    /// Sends the sink's full current block, and makes `next` the current block, beginning with
    /// `rest`, the bytes that did not fit.
    fn continue_in_block(&mut self, mut next: Block, rest: &[u8]) {
        if let Some(block) = self.current.take() {
            let offset = block.offset + block.len as u64;
            next.begin_within(self.longest_file(), block.file, offset, block.first_ns);
            self.submit(block);
        }
        next.append(rest);
        next.whole = next.len;
        self.current = Some(next);
    }

    /// Slow path for a frame record: no file is open, rotation is due, the block is full, or notes
    /// are pending. Returns `false` if no write block is free. The record is passed by value: a
    /// reference would force the compiler to store every frame's record in memory.
    #[cold]
    fn take_slow(&mut self, queue: u16, record: Record<'_>, need: usize) -> bool {
        let record = &record;
        let mut note = None;
        if let Some((it, block)) = self.note.take() {
            self.current = block;
            note = Some(it);
        }
        if self.is_due(record.ns, need) {
            self.rotate_file();
        }
        let Some(mut note) = note else {
            return self.append_record(queue, record, need);
        };
        let bytes = self.encoder.record_with_notes(queue, record, &note.notes());
        let taken = self.ensure_block(record.ns) && self.append_encoded(record, &bytes);
        if !taken || note.remove_written() {
            self.note = Some((note, self.current.take()));
        }
        taken
    }

    /// Begins a capture file if none is open, or if the writer cannot continue the open one.
    /// Returns `false` if no write block is free.
    fn ensure_block(&mut self, ns: u64) -> bool {
        if self.exchange.broken.load(Ordering::Relaxed) {
            // The records in the current block are lost with its file; the writer counts them.
            if let Some(block) = self.current.take() {
                self.submit(block);
            }
        }
        self.current.is_some() || self.begin_file(ns)
    }

    /// Appends a frame record to the sink's open file, across two blocks if needed. Returns `false`
    /// if no write block is free.
    fn append_record(&mut self, queue: u16, record: &Record<'_>, need: usize) -> bool {
        if !self.ensure_block(record.ns) {
            return false;
        }
        if let Some(block) = &mut self.current
            && block.room() >= need
        {
            block.encode(&self.encoder, queue, record, need);
            return true;
        }
        // The next block is taken first: without it, no part of the record may be written.
        let Some(next) = self.take_empty(self.shape.on_full) else {
            return false;
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(need, 0);
        self.encoder.record(&mut scratch, queue, record);
        self.append_across(next, record, &scratch);
        self.scratch = scratch;
        true
    }

    /// Appends an encoded frame record to the sink's current block, and the bytes that do not fit
    /// to the next block. Returns `false` if no next block is free.
    fn append_encoded(&mut self, record: &Record<'_>, bytes: &[u8]) -> bool {
        match &mut self.current {
            Some(block) if block.room() >= bytes.len() => {
                block.append(bytes);
                block.count(record);
                true
            }
            _ => self
                .take_empty(self.shape.on_full)
                .map(|next| self.append_across(next, record, bytes))
                .is_some(),
        }
    }

    /// Appends an encoded frame record that does not fit in the sink's current block, and continues
    /// in the block `next`.
    fn append_across(&mut self, next: Block, record: &Record<'_>, bytes: &[u8]) {
        let rest = match (self.shape.cut, &mut self.current) {
            (Cut::Anywhere, Some(block)) => block.append(bytes),
            _ => bytes,
        };
        self.continue_in_block(next, rest);
        if let Some(block) = &mut self.current {
            block.count(record);
        }
    }

    /// Takes a frame record of a queue and returns the frame's verdict. Always inlined: a call
    /// would force the compiler to store every record in memory.
    #[inline(always)]
    pub(super) fn take(&mut self, queue: u16, record: &Record<'_>) -> Verdict {
        let need = self.encoder.record_len(record);
        match &mut self.current {
            Some(block)
                if block.len + need <= block.until
                    && record.ns < self.rotate_at
                    && self.totals.received < self.rotate_frames =>
            {
                block.encode(&self.encoder, queue, record, need);
            }
            _ => {
                if !self.take_slow(queue, *record, need) {
                    self.lost += 1;
                    self.count_missed(1);
                    return Verdict::DroppedStorage;
                }
            }
        }
        self.lost = 0;
        self.totals.received += 1;
        self.totals.last_ns = record.ns;
        Verdict::Captured
    }

    /// Takes a frame whose FCS the device delivers. Not inlined, so that frames without an FCS have no
    /// cost from it.
    #[inline(never)]
    fn frame_with_fcs(&mut self, frame: &Frame<'_>, fcs: &Fcs) -> Verdict {
        let record = self.record(frame);
        let caplen = record.bytes.len();
        let whole = caplen == frame.len as usize && caplen + FCS_LEN <= self.shape.snaplen;
        let record = Record {
            fcs: if whole { &fcs.bytes } else { &[] },
            fcs_len: FCS_LEN as u32,
            bad_fcs: fcs.bad,
            ..record
        };
        self.take(self.shape.queue, &record)
    }

    /// Returns the record to write for a frame without an FCS.
    #[inline]
    fn record<'a>(&self, frame: &Frame<'a>) -> Record<'a> {
        let caplen = frame.bytes.len().min(self.shape.snaplen);
        Record {
            ns: frame.ns,
            bytes: &frame.bytes[..caplen],
            len: frame.len,
            fcs: &[],
            fcs_len: 0,
            bad_fcs: false,
            lost_before: self.lost,
        }
    }

    /// Counts the frame record just taken for `queue`, in a capture file of all queues.
    pub(super) fn credit(&mut self, queue: u16, len: u32) {
        if let Some(block) = self.open_block() {
            block.tally.credit(queue.into(), 1, len.into());
        }
    }

    /// Counts `n` frames that were lost before they reached this sink as received and dropped.
    pub(super) fn count_missed(&mut self, n: u64) {
        if self.open_block().is_some() {
            self.totals.received += n;
            self.totals.dropped += n;
            self.rotate_frames = self.rotate_frames.saturating_add(n);
        } else {
            self.lost_between += n;
        }
    }

    /// Returns the notes for the sink's next frame record, which makes that record take the slow
    /// path.
    fn pending_notes(&mut self) -> &mut PendingNotes {
        let current = &mut self.current;
        let note = self
            .note
            .get_or_insert_with(|| (PendingNotes::default(), current.take()));
        &mut note.0
    }

    /// Adds new marks to the notes for the next frame record of the sink's open file.
    #[cold]
    fn add_marks(&mut self) {
        let marks = self.asked.take_marks();
        if self.encoder.supports_marks() && self.open_block().is_some() {
            self.pending_notes().add_marks(marks);
        }
    }

    /// Checks for new requests to the sink and carries them out.
    #[inline]
    fn poll_requests(&mut self) {
        if self.asked.is_new() {
            self.carry_out_requests();
        }
    }

    /// Carries out the requests made to the sink since its last check.
    #[cold]
    fn carry_out_requests(&mut self) {
        self.asked.acknowledge();
        if self.asked.take_rotation() {
            self.end_file();
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

    /// Returns the write block of the sink's open file, which is in `note` while notes are pending.
    fn open_block(&mut self) -> &mut Option<Block> {
        match &mut self.note {
            Some((_, block @ Some(_))) => block,
            _ => &mut self.current,
        }
    }

    /// Returns `true` if the sink's open block has a frame record.
    fn has_unsent(&mut self) -> bool {
        self.open_block()
            .as_ref()
            .is_some_and(|b| b.tally.frames > 0)
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
        let Some(mut next) = self.take_empty(OnFull::Drop) else {
            return false;
        };
        let Some(block) = self.open_block().take() else {
            return false;
        };
        let tail = match self.shape.cut {
            Cut::Anywhere => block.len % ALIGN,
            Cut::Records { .. } => 0,
        };
        let offset = block.offset + (block.len - tail) as u64;
        next.begin_within(self.longest_file(), block.file, offset, block.first_ns);
        next.append(&block.memory.as_slice(block.len)[block.len - tail..]);
        next.whole = next.len;
        self.submit(block);
        match &mut self.note {
            Some((_, waits)) => *waits = Some(next),
            None => self.current = Some(next),
        }
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
        if !self.encoder.set_filter(filter) {
            return;
        }
        self.pending_notes().set_filter(filter);
    }

    #[inline]
    fn begin_batch(&mut self) {
        self.poll_requests();
        if self.limit.is_some() {
            self.publish_written_bytes();
        }
        if self.totals.last_ns.saturating_sub(self.since_ns) >= self.shape.held_ns {
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

impl<E: Encoder> Drop for BlockSink<E> {
    fn drop(&mut self) {
        self.end_file();
    }
}
