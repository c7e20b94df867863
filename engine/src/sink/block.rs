//! The queue's half of a file: frames are copied once, encoded, into large blocks that a writer takes.
//!
//! A file is a run of bytes cut into blocks; a record may begin in one and end in the next. Every block but a file's
//! last is full, unless the queue falls idle: then what there is goes out at once, and the next block begins again
//! at the last [`ALIGN`] boundary, since direct I/O writes whole sectors.

use super::{Encoder, Record, Totals};
use crate::{
    memory::Region,
    pipeline::{Consumer, Frame, Verdict},
};
use crossbeam_channel::{Receiver, Sender};
use serde::Serialize;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// What offsets, lengths and addresses of direct I/O are multiples of: the largest sector in use.
pub(super) const ALIGN: usize = 4096;

/// What to do with a frame when every block is waiting for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    /// Count it as `dropped_storage` and go on.
    Drop,
    /// Wait; frames pile up on the ring, and the NIC drops or holds them.
    Hold,
}

/// When a queue goes on to its next file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rotation {
    /// Before a file would grow beyond so many bytes; 0: never.
    pub size: u64,
    /// At every multiple of so many nanoseconds of the wall clock; 0: never.
    pub period_ns: u64,
}

/// How often the next file was asked for, and how often it was begun for that.
struct Asked {
    times: Arc<AtomicU64>,
    seen: u64,
}

impl Asked {
    /// Whether it was asked for since the last look.
    fn again(&mut self) -> bool {
        let times = self.times.load(Ordering::Relaxed);
        std::mem::replace(&mut self.seen, times) != times
    }
}

/// A piece of a file.
pub(super) struct Block {
    pub(super) memory: Region,
    /// Which of the queue's files, from 1.
    pub(super) file: u64,
    /// Where in the file its first byte belongs: a multiple of [`ALIGN`].
    pub(super) offset: u64,
    /// Bytes in it.
    pub(super) len: usize,
    /// Of these, those up to the last record's end.
    pub(super) whole: usize,
    /// Records that end in it.
    pub(super) frames: u64,
    /// Bytes of those frames, as on the wire.
    pub(super) frame_bytes: u64,
    /// Stamp of the file's first record.
    pub(super) first_ns: u64,
    /// The file's last.
    pub(super) end: bool,
}

impl Block {
    pub(super) fn new(memory: Region) -> Self {
        Self {
            memory,
            file: 0,
            offset: 0,
            len: 0,
            whole: 0,
            frames: 0,
            frame_bytes: 0,
            first_ns: 0,
            end: false,
        }
    }

    fn room(&self) -> usize {
        self.memory.len() - self.len
    }

    /// Makes an emptied block the piece of a file that begins at `offset`.
    fn begin(&mut self, file: u64, offset: u64, first_ns: u64) {
        (self.file, self.offset, self.first_ns) = (file, offset, first_ns);
        (
            self.len,
            self.whole,
            self.frames,
            self.frame_bytes,
            self.end,
        ) = (0, 0, 0, 0, false);
    }

    /// Appends as much as there is room for and returns the rest.
    fn append<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (here, rest) = bytes.split_at(bytes.len().min(self.room()));
        let at = self.len;
        self.memory.as_mut_slice()[at..at + here.len()].copy_from_slice(here);
        self.len += here.len();
        rest
    }

    fn count(&mut self, record: &Record<'_>) {
        self.whole = self.len;
        self.frames += 1;
        self.frame_bytes += u64::from(record.len);
    }
}

/// A block on its way to the disk.
pub(super) struct Full {
    pub(super) queue: u16,
    pub(super) block: Block,
}

/// Where a queue's blocks come from and go to.
pub(super) struct Exchange {
    pub(super) empty: Receiver<Block>,
    pub(super) full: Sender<Full>,
    /// Set by the writer when the queue's file broke: the next block begins a new one.
    pub(super) broken: Arc<AtomicBool>,
}

/// Encodes a queue's frames into blocks.
pub struct BlockSink<E: Encoder> {
    queue: u16,
    encoder: E,
    /// 0: whole frames.
    snaplen: usize,
    on_full: OnFull,
    rotation: Rotation,
    asked: Asked,
    exchange: Exchange,
    /// The block being filled. There is one as long as a file is open.
    current: Option<Block>,
    /// Files begun so far.
    file: u64,
    /// The stamp at which the open file is to be left.
    rotate_at: u64,
    totals: Totals,
    /// Frames refused since the last record.
    lost: u64,
    /// A record that does not fit what is left of a block.
    scratch: Vec<u8>,
}

impl<E: Encoder> BlockSink<E> {
    pub(super) fn new(
        queue: u16,
        encoder: E,
        snaplen: usize,
        on_full: OnFull,
        rotation: Rotation,
        asked: Arc<AtomicU64>,
        exchange: Exchange,
    ) -> Self {
        Self {
            queue,
            encoder,
            snaplen,
            on_full,
            rotation,
            asked: Asked {
                seen: asked.load(Ordering::Relaxed),
                times: asked,
            },
            exchange,
            current: None,
            file: 0,
            rotate_at: u64::MAX,
            totals: Totals::default(),
            lost: 0,
            scratch: Vec::new(),
        }
    }

    /// Whether a record of `need` bytes at `ns` belongs to the next file.
    #[inline]
    fn is_due(&self, ns: u64, need: usize) -> bool {
        let Some(block) = &self.current else {
            return false;
        };
        let size = block.offset + (block.len + need) as u64;
        // A record longer than a whole file still gets one of its own.
        ns >= self.rotate_at
            || (self.rotation.size != 0
                && size > self.rotation.size
                && self.totals.received > self.totals.dropped)
    }

    /// A free block; `None`: there is none, or the writer is gone.
    fn take_empty(&self, on_full: OnFull) -> Option<Block> {
        match (self.exchange.empty.try_recv(), on_full) {
            (Ok(block), _) => Some(block),
            (Err(_), OnFull::Hold) => self.exchange.empty.recv().ok(),
            (Err(_), OnFull::Drop) => None,
        }
    }

    fn submit(&self, block: Block) {
        // The channel has room for every block there is, and the writer outlives the sinks.
        let _ = self.exchange.full.send(Full {
            queue: self.queue,
            block,
        });
    }

    /// Begins a file with the stamp of its first record; false: no block is free.
    fn begin_file(&mut self, ns: u64) -> bool {
        let Some(mut block) = self.take_empty(self.on_full) else {
            return false;
        };
        self.file += 1;
        self.exchange.broken.store(false, Ordering::Relaxed);
        block.begin(self.file, 0, ns);
        block.append(&self.encoder.header(self.queue));
        block.whole = block.len;
        self.totals = Totals {
            first_ns: ns,
            ..Totals::default()
        };
        self.rotate_at = match self.rotation.period_ns {
            0 => u64::MAX,
            period => (ns / period + 1).saturating_mul(period),
        };
        self.current = Some(block);
        true
    }

    /// Ends the open file, if there is one.
    fn end_file(&mut self) {
        let trailer = self.encoder.trailer(&self.totals);
        if let Some(block) = &mut self.current {
            let rest = block.append(&trailer);
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
            next.begin(block.file, block.offset + block.len as u64, block.first_ns);
            self.submit(block);
        }
        next.append(rest);
        next.whole = next.len;
        self.current = Some(next);
    }

    /// The way of a frame that finds no open file, or too little room in its block.
    #[cold]
    fn slow(&mut self, record: &Record<'_>, need: usize) -> bool {
        if self.exchange.broken.load(Ordering::Relaxed) {
            // What is in the current block is lost with its file; the writer counts it.
            if let Some(block) = self.current.take() {
                self.submit(block);
            }
        }
        if self.current.is_none() && !self.begin_file(record.ns) {
            return false;
        }
        let fits = self.current.as_ref().is_some_and(|b| b.room() >= need);
        if fits {
            self.encode(record, need);
            return true;
        }
        // The next block first: without one, nothing of the record may be written.
        let Some(next) = self.take_empty(self.on_full) else {
            return false;
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(need, 0);
        self.encoder.record(&mut scratch, self.queue, record);
        if let Some(block) = &mut self.current {
            let rest = block.append(&scratch);
            self.go_on_in(next, rest);
        }
        self.scratch = scratch;
        if let Some(block) = &mut self.current {
            block.count(record);
        }
        true
    }

    /// Encodes a record into the current block, which has room for it.
    #[inline]
    fn encode(&mut self, record: &Record<'_>, need: usize) {
        let Some(block) = &mut self.current else {
            return;
        };
        let at = block.len;
        self.encoder.record(
            &mut block.memory.as_mut_slice()[at..at + need],
            self.queue,
            record,
        );
        block.len += need;
        block.count(record);
    }
}

impl<E: Encoder> Consumer for BlockSink<E> {
    #[inline]
    fn frame(&mut self, frame: Frame<'_>) -> Verdict {
        let caplen = if self.snaplen == 0 {
            frame.bytes.len()
        } else {
            frame.bytes.len().min(self.snaplen)
        };
        let fcs = frame.fcs.as_ref().map_or(&[][..], |fcs| &fcs.bytes);
        let whole = caplen == frame.len as usize
            && (self.snaplen == 0 || caplen + fcs.len() <= self.snaplen);
        let record = Record {
            ns: frame.ns,
            bytes: &frame.bytes[..caplen],
            len: frame.len,
            fcs: if whole { fcs } else { &[] },
            fcs_len: fcs.len() as u32,
            bad_fcs: frame.fcs.is_some_and(|fcs| fcs.bad),
            lost_before: self.lost,
        };
        let need = self.encoder.record_len(&record);
        if self.is_due(frame.ns, need) {
            self.end_file();
        }
        if self.current.as_ref().is_some_and(|b| b.room() >= need) {
            self.encode(&record, need);
        } else if !self.slow(&record, need) {
            self.lost += 1;
            self.totals.received += 1;
            self.totals.dropped += 1;
            return Verdict::DroppedStorage;
        }
        self.lost = 0;
        self.totals.received += 1;
        self.totals.last_ns = frame.ns;
        Verdict::Captured
    }

    fn batch(&mut self) {
        if self.asked.again() {
            self.end_file();
        }
    }

    /// Sends what there is on its way, so that a slow stream reaches the disk too.
    fn idle(&mut self) {
        if self.asked.again() {
            self.end_file();
        }
        if self.current.as_ref().is_none_or(|b| b.frames == 0) {
            return;
        }
        let Some(mut next) = self.take_empty(OnFull::Drop) else {
            return;
        };
        let Some(block) = self.current.take() else {
            return;
        };
        let tail = block.len % ALIGN;
        next.begin(
            block.file,
            block.offset + (block.len - tail) as u64,
            block.first_ns,
        );
        next.append(&block.memory.as_slice(block.len)[block.len - tail..]);
        next.whole = next.len;
        self.submit(block);
        self.current = Some(next);
    }
}

impl<E: Encoder> Drop for BlockSink<E> {
    fn drop(&mut self) {
        self.end_file();
    }
}
