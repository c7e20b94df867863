//! The queue's half of a file: frames are copied once, encoded, into large blocks that a writer takes.
//!
//! A file is a run of bytes cut into blocks; a record may begin in one and end in the next. Every block but a file's
//! last is full, unless the queue falls idle: then what there is goes out at once, and the next block begins again
//! at the last [`ALIGN`] boundary, since direct I/O writes whole sectors.
//!
//! Blocks that are not written as they are, but compressed or put in order first, hold whole records ([`Cut::Records`]).

use crate::{
    Encoder, Record, Requests, Rotation, Totals, WriteLimit,
    requests::{Asked, Pending},
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

/// What offsets, lengths and addresses of direct I/O are multiples of: the largest sector in use.
pub(super) const ALIGN: usize = 4096;

/// Where a file may be cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Anywhere: blocks are full, and written as they are.
    Anywhere,
    /// Between records.
    Records {
        /// Idle moments before a block that is not full goes out: each costs a sector at least.
        patience: u32,
    },
}

/// A piece of a file.
pub(super) struct Block {
    pub(super) memory: Region,
    /// Which of the queue's files, from 1.
    pub(super) file: u64,
    /// How many blocks the queue has sent before it, once the writer has it.
    pub(super) number: u64,
    /// Where in the file its first byte belongs: a multiple of [`ALIGN`].
    pub(super) offset: u64,
    /// Bytes in it.
    pub(super) len: usize,
    /// Bytes up to which records go into it without another look: all that it has room for, or fewer where the file is
    /// then as long as it may be.
    until: usize,
    /// Of these, those up to the last record's end.
    pub(super) whole: usize,
    /// Records that end in it.
    pub(super) tally: Tally,
    /// Stamp of the file's first record.
    pub(super) first_ns: u64,
    /// The file's last.
    pub(super) end: bool,
    /// What was in it cannot be written; the file ends before it.
    pub(super) spoilt: bool,
    /// Its memory's number in the pool of what is written.
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
            tally: Tally::default(),
            first_ns: 0,
            end: false,
            spoilt: false,
            extent: None,
        }
    }

    /// Takes another block's place in its file, but for the bytes and where they stand.
    pub(super) fn stands_for(&mut self, other: &Self) {
        self.begin(other.file, 0, other.first_ns);
        self.tally.clone_from(&other.tally);
        self.end = other.end;
    }

    fn room(&self) -> usize {
        self.memory.len() - self.len
    }

    /// Makes an emptied block the piece of a file that begins at `offset`.
    fn begin(&mut self, file: u64, offset: u64, first_ns: u64) {
        (self.file, self.offset, self.first_ns) = (file, offset, first_ns);
        (self.len, self.whole, self.until) = (0, 0, self.memory.len());
        (self.end, self.spoilt) = (false, false);
        self.tally.clear();
    }

    /// Makes an emptied block the piece at `offset` of a file that records may make so long.
    fn begin_within(&mut self, longest: u64, file: u64, offset: u64, first_ns: u64) {
        self.begin(file, offset, first_ns);
        let left = usize::try_from(longest.saturating_sub(offset)).unwrap_or(usize::MAX);
        self.until = self.until.min(left);
    }

    /// Appends as much as there is room for and returns the rest.
    fn append<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (here, rest) = bytes.split_at(bytes.len().min(self.room()));
        let at = self.len;
        self.memory.as_mut_slice()[at..at + here.len()].copy_from_slice(here);
        self.len += here.len();
        rest
    }

    /// Encodes a record, for which there must be room.
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

/// Frames of a piece of a file, and their bytes as on the wire.
#[derive(Clone, Default)]
pub(super) struct Tally {
    pub(super) frames: u64,
    pub(super) bytes: u64,
    /// The same two by queue, in a file of all queues; else empty.
    by_queue: Vec<(u64, u64)>,
}

impl Tally {
    fn clear(&mut self) {
        (self.frames, self.bytes) = (0, 0);
        self.by_queue.fill((0, 0));
    }

    /// Adds what follows it in its file.
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

/// Whose frames are in a file: who bears it when they are lost.
#[derive(Clone)]
pub(super) enum Ledger {
    /// One queue's.
    Queue(Arc<QueueCounters>),
    /// All queues'.
    All(Vec<Arc<QueueCounters>>),
}

impl Ledger {
    /// What was in a block is not on disk.
    pub(super) fn lost(&self, tally: &Tally) {
        self.each(tally, QueueCounters::lost);
    }

    /// What was in a file is in a finished one.
    pub(super) fn kept(&self, tally: &Tally) {
        self.each(tally, QueueCounters::kept);
    }

    fn each(&self, tally: &Tally, count: impl Fn(&QueueCounters, u64, u64)) {
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

/// A block on its way to the disk.
pub(super) struct Full {
    pub(super) queue: u16,
    /// How many blocks the queue has sent before.
    pub(super) number: u64,
    pub(super) block: Block,
}

/// Where a queue's blocks come from and go to.
pub(super) struct Exchange {
    /// How many there are.
    pub(super) blocks: usize,
    pub(super) empty: Receiver<Block>,
    pub(super) full: Sender<Full>,
    /// Set by the writer when the queue's file broke: the next block begins a new one.
    pub(super) broken: Arc<AtomicBool>,
}

/// How a queue's files come about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Where among the queues it stands.
    pub(super) queue: u16,
    /// Whether its files hold the frames of all queues.
    pub(super) all: bool,
    /// Longest record; `usize::MAX`: whole frames.
    pub(super) snaplen: usize,
    pub(super) on_full: OnFull,
    pub(super) rotation: Rotation,
    pub(super) cut: Cut,
    /// Stamps, in nanoseconds, that a block may reach over before it goes out though it is not full.
    pub(super) held_ns: u64,
}

/// A sink's part of what the files of a run may come to.
struct Limited {
    all: Arc<WriteLimit>,
    /// Its next file is claimed.
    claimed: bool,
    /// Bytes of the open file that were told.
    told: u64,
}

/// Encodes a queue's frames into blocks.
pub struct BlockSink<E: Encoder> {
    shape: Shape,
    encoder: E,
    /// Bytes that close a file.
    trailer: usize,
    asked: Asked,
    /// A stamp no later than that of the current block's first record.
    since_ns: u64,
    exchange: Exchange,
    /// Blocks sent so far.
    sent: u64,
    /// Idle moments since the last block went out for one.
    quiet: u32,
    /// The block being filled. There is one as long as a file is open.
    current: Option<Block>,
    /// Files begun so far.
    file: u64,
    /// The stamp at which the open file is to be left.
    rotate_at: u64,
    /// [`Totals::received`] at which it is.
    rotate_frames: u64,
    limit: Option<Limited>,
    /// Of the open file.
    totals: Totals,
    /// Frames that were lost between two files: the next one tells of them.
    between: u64,
    /// What the next record is to tell, and the block it goes to: with no current one, it takes the slow way.
    note: Option<(Pending, Option<Block>)>,
    /// Frames refused since the last record.
    lost: u64,
    /// A record that does not fit what is left of a block.
    scratch: Vec<u8>,
}

impl<E: Encoder> BlockSink<E> {
    pub(super) fn new(shape: Shape, encoder: E, asked: Arc<Requests>, exchange: Exchange) -> Self {
        Self::limited(shape, encoder, asked, exchange, None)
    }

    /// The same within what all files may come to.
    pub(super) fn limited(
        shape: Shape,
        encoder: E,
        asked: Arc<Requests>,
        exchange: Exchange,
        limit: Option<Arc<WriteLimit>>,
    ) -> Self {
        Self {
            shape,
            trailer: encoder.trailer(&Totals::default()).len(),
            encoder,
            asked: Asked::new(asked),
            since_ns: 0,
            exchange,
            sent: 0,
            quiet: 0,
            current: None,
            file: 0,
            rotate_at: u64::MAX,
            rotate_frames: u64::MAX,
            limit: limit.map(|all| Limited {
                all,
                claimed: false,
                told: 0,
            }),
            totals: Totals::default(),
            between: 0,
            note: None,
            lost: 0,
            scratch: Vec::new(),
        }
    }

    /// Bytes that records may make a file long, what closes it left out.
    fn longest_file(&self) -> u64 {
        match self.shape.rotation.size {
            0 => u64::MAX,
            size => size.saturating_sub(self.trailer as u64),
        }
    }

    /// Whether a record of `need` bytes at `ns` belongs to the next file: with it, and what closes the file, this one
    /// would be too long.
    fn is_due(&self, ns: u64, need: usize) -> bool {
        let Some(block) = &self.current else {
            return false;
        };
        let size = block.offset + (block.len + need) as u64;
        // A record longer than a whole file still gets one of its own.
        ns >= self.rotate_at
            || self.totals.received >= self.rotate_frames
            || (size > self.longest_file() && self.totals.received > self.totals.dropped)
    }

    /// A free block; `None`: there is none, or the writer is gone.
    fn take_empty(&self, on_full: OnFull) -> Option<Block> {
        match (self.exchange.empty.try_recv(), on_full) {
            (Ok(block), _) => Some(block),
            (Err(_), OnFull::Hold) => self.exchange.empty.recv().ok(),
            (Err(_), OnFull::Drop) => None,
        }
    }

    fn submit(&mut self, block: Block) {
        // The channel has room for every block there is, and the writer outlives the sinks.
        let _ = self.exchange.full.send(Full {
            queue: self.shape.queue,
            number: self.sent,
            block,
        });
        self.sent += 1;
        self.since_ns = self.totals.last_ns;
    }

    /// Begins a file with the stamp of its first record; false: no block is free.
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
        let lost = std::mem::take(&mut self.between);
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
        .min(self.encoder.until());
        self.rotate_frames = match self.shape.rotation.frames {
            0 => u64::MAX,
            frames => lost.saturating_add(frames),
        };
        if let Some(limit) = &mut self.limit {
            limit.told = 0;
            if !std::mem::take(&mut limit.claimed) {
                limit.all.begins();
            }
        }
        self.current = Some(block);
        true
    }

    /// The open file is full: the next record is for another one, unless this is the last that there may be.
    #[cold]
    fn turn(&mut self) {
        if let Some(limit) = &mut self.limit
            && !limit.claimed
        {
            if !limit.all.claim_next() {
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

    /// Tells how much there is for the open file.
    fn tell(&mut self) {
        if let Some(limit) = &mut self.limit
            && let Some(block) = &self.current
        {
            let now = block.offset + block.len as u64;
            limit.all.wrote(now.saturating_sub(limit.told));
            limit.told = now;
        }
    }

    /// Ends the open file, if there is one.
    fn end_file(&mut self) {
        self.tell();
        // What is to be told is told by the next file's first record.
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
                self.go_on_in(next, rest);
            }
        }
        if let Some(mut block) = self.current.take() {
            block.end = true;
            self.submit(block);
        }
    }

    /// Sends the full current block away and begins `next` with the rest of what did not fit.
    fn go_on_in(&mut self, mut next: Block, rest: &[u8]) {
        if let Some(block) = self.current.take() {
            let offset = block.offset + block.len as u64;
            next.begin_within(self.longest_file(), block.file, offset, block.first_ns);
            self.submit(block);
        }
        next.append(rest);
        next.whole = next.len;
        self.current = Some(next);
    }

    /// The way of a frame that finds no open file, one that it is not for, or too little room in its block. It takes the record
    /// by value: lent to it, every frame's would have to lie in memory.
    #[cold]
    fn slow(&mut self, queue: u16, record: Record<'_>, need: usize) -> bool {
        let record = &record;
        let mut note = None;
        if let Some((it, block)) = self.note.take() {
            self.current = block;
            note = Some(it);
        }
        if self.is_due(record.ns, need) {
            self.turn();
        }
        let Some(mut note) = note else {
            return self.go_on(queue, record, need);
        };
        let bytes = self.encoder.annotated(queue, record, &note.next());
        let taken = self.ready(record.ns) && self.put(record, &bytes);
        if !taken || note.told() {
            self.note = Some((note, self.current.take()));
        }
        taken
    }

    /// Sees to it that there is a current block; false: there is none to be had.
    fn ready(&mut self, ns: u64) -> bool {
        if self.exchange.broken.load(Ordering::Relaxed) {
            // What is in the current block is lost with its file; the writer counts it.
            if let Some(block) = self.current.take() {
                self.submit(block);
            }
        }
        self.current.is_some() || self.begin_file(ns)
    }

    fn go_on(&mut self, queue: u16, record: &Record<'_>, need: usize) -> bool {
        if !self.ready(record.ns) {
            return false;
        }
        if let Some(block) = &mut self.current
            && block.room() >= need
        {
            block.encode(&self.encoder, queue, record, need);
            return true;
        }
        // The next block first: without one, nothing of the record may be written.
        let Some(next) = self.take_empty(self.shape.on_full) else {
            return false;
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(need, 0);
        self.encoder.record(&mut scratch, queue, record);
        self.put_over(next, record, &scratch);
        self.scratch = scratch;
        true
    }

    /// Puts an encoded record into the current block, and into the next what does not fit; false: there is none.
    fn put(&mut self, record: &Record<'_>, bytes: &[u8]) -> bool {
        match &mut self.current {
            Some(block) if block.room() >= bytes.len() => {
                block.append(bytes);
                block.count(record);
                true
            }
            _ => self
                .take_empty(self.shape.on_full)
                .map(|next| self.put_over(next, record, bytes))
                .is_some(),
        }
    }

    /// Goes on to the next block with what the current one has no room for.
    fn put_over(&mut self, next: Block, record: &Record<'_>, bytes: &[u8]) {
        let rest = match (self.shape.cut, &mut self.current) {
            (Cut::Anywhere, Some(block)) => block.append(bytes),
            _ => bytes,
        };
        self.go_on_in(next, rest);
        if let Some(block) = &mut self.current {
            block.count(record);
        }
    }

    /// Takes a record of a queue. Inlined by force: a function of its own would have every record made in memory.
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
                if !self.slow(queue, *record, need) {
                    self.lost += 1;
                    self.missed(1);
                    return Verdict::DroppedStorage;
                }
            }
        }
        self.lost = 0;
        self.totals.received += 1;
        self.totals.last_ns = record.ns;
        Verdict::Captured
    }

    /// Takes a frame whose FCS the device delivers. Out of line, so that frames without one pay nothing for it.
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

    /// What a frame without an FCS is in the file.
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

    /// The record just taken was this queue's, in a file of all queues.
    pub(super) fn credit(&mut self, queue: u16, len: u32) {
        if let Some(block) = self.open_block() {
            block.tally.credit(queue.into(), 1, len.into());
        }
    }

    /// Frames that would have come here were lost on the way.
    pub(super) fn missed(&mut self, n: u64) {
        if self.open_block().is_some() {
            self.totals.received += n;
            self.totals.dropped += n;
            self.rotate_frames = self.rotate_frames.saturating_add(n);
        } else {
            self.between += n;
        }
    }

    /// What the next record is to tell: it takes the slow way.
    fn pending(&mut self) -> &mut Pending {
        let current = &mut self.current;
        let note = self
            .note
            .get_or_insert_with(|| (Pending::default(), current.take()));
        &mut note.0
    }

    /// Has the next record of the open file tell of marks that were set.
    #[cold]
    fn mark(&mut self) {
        let marks = self.asked.marks();
        if self.encoder.tells_marks() && self.open_block().is_some() {
            self.pending().marked(marks);
        }
    }

    /// Looks at what others have asked for.
    #[inline]
    fn look(&mut self) {
        if self.asked.is_new() {
            self.carry_out();
        }
    }

    /// Carries out what others have asked for since the last look.
    #[cold]
    fn carry_out(&mut self) {
        self.asked.acknowledge();
        if self.asked.again() {
            self.end_file();
        }
        if self.asked.is_marked() {
            self.mark();
        }
        if let Some(flush) = self.asked.flush() {
            if self.has_unsent() && !self.send_partial() {
                // No block is free: at the next look.
                return self.asked.postpone();
            }
            let sink = usize::from(self.shape.queue);
            self.asked.flushed(sink, flush, self.sent);
        }
    }

    /// The open file's block, whether the next record goes to it or takes the slow way.
    fn open_block(&mut self) -> &mut Option<Block> {
        match &mut self.note {
            Some((_, block @ Some(_))) => block,
            _ => &mut self.current,
        }
    }

    /// Whether the open block has a record.
    fn has_unsent(&mut self) -> bool {
        self.open_block()
            .as_ref()
            .is_some_and(|b| b.tally.frames > 0)
    }

    /// Sends what there is on its way, if there is a record, and a block is free to go on in.
    fn show(&mut self) {
        if !self.has_unsent() {
            return;
        }
        // On a disk that is behind it would wait, and one that is not full holds less meanwhile.
        let is_behind = self.exchange.empty.len() * 2 < self.exchange.blocks;
        if is_behind && self.shape.cut == Cut::Anywhere {
            return;
        }
        self.send_partial();
    }

    /// Sends the open block though it is not full, and continues in another one; false: none is free.
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

    fn changed(&mut self, filter: &str) {
        if !self.encoder.filtered(filter) {
            return;
        }
        self.pending().filtered(filter);
    }

    #[inline]
    fn batch(&mut self) {
        self.look();
        if self.limit.is_some() {
            self.tell();
        }
        if self.totals.last_ns.saturating_sub(self.since_ns) >= self.shape.held_ns {
            self.show();
        }
    }

    /// Sends what there is on its way, so that a slow stream reaches the disk too.
    fn idle(&mut self) {
        self.look();
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
        self.show();
    }
}

impl<E: Encoder> Drop for BlockSink<E> {
    fn drop(&mut self) {
        self.end_file();
    }
}
