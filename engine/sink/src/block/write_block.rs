//! Write block: the memory of a piece of a capture file, and the frames in it.

use crate::{Encoder, Record};
use std::sync::Arc;
use wqcap_core::stats::QueueCounters;
use wqcap_memory::Region;

/// Alignment of offsets, lengths and addresses of direct I/O in bytes: the largest sector size in use.
pub(crate) const ALIGN: usize = 4096;

/// Write block: a piece of a capture file, with the memory that holds it.
pub(crate) struct Block {
    pub(crate) memory: Region,
    /// Number of the block's capture file among the queue's files, from 1.
    pub(crate) file: u64,
    /// Number of write blocks that the queue sent before this block. Set by the writer.
    pub(crate) number: u64,
    /// Offset of the block's first byte in the file, a multiple of [`ALIGN`].
    pub(crate) offset: u64,
    /// Number of the file's bytes in the write block.
    pub(crate) len: usize,
    /// Length in bytes up to which the block takes frame records on the fast path: the block's
    /// capacity, or less if the file reaches its maximum size before.
    pub(super) until: usize,
    /// Number of bytes in the block up to the end of its last whole frame record.
    pub(crate) whole: usize,
    /// Number of frames whose records end in the block, and the number of their bytes on the wire.
    pub(crate) tally: FrameTally,
    /// Time stamp of the first frame record in the block's file.
    pub(crate) first_ns: u64,
    /// `true` for the last block of a capture file.
    pub(crate) end: bool,
    /// Latest time stamp of the file's frame records in nanoseconds since 1970, in the last block of
    /// the file; else 0.
    pub(crate) last_ns: u64,
    /// `true` if the block's content cannot be written. The capture file ends before the block.
    pub(crate) spoilt: bool,
    /// Number of the block's memory in the pool of write blocks that is registered with io_uring.
    pub(crate) extent: Option<u16>,
}

impl Block {
    pub(crate) fn new(memory: Region) -> Self {
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
            last_ns: 0,
            spoilt: false,
            extent: None,
        }
    }

    /// Makes this block replace the block `other` in its file: copies the file's number, the tally
    /// and the end mark, but not the bytes and their offset.
    pub(crate) fn take_place_of(&mut self, other: &Self) {
        self.begin(other.file, 0, other.first_ns);
        self.tally.clone_from(&other.tally);
        (self.end, self.last_ns) = (other.end, other.last_ns);
    }

    pub(super) fn room(&self) -> usize {
        self.memory.len() - self.len
    }

    /// Resets the write block to an empty piece of file number `file`; the piece begins at
    /// `offset`.
    pub(super) fn begin(&mut self, file: u64, offset: u64, first_ns: u64) {
        (self.file, self.offset, self.first_ns) = (file, offset, first_ns);
        (self.len, self.whole, self.until) = (0, 0, self.memory.len());
        (self.end, self.last_ns, self.spoilt) = (false, 0, false);
        self.tally.clear();
    }

    /// Resets the write block to an empty piece at `offset` of a file whose frame records may
    /// extend to at most `longest` bytes.
    pub(crate) fn begin_within(&mut self, longest: u64, file: u64, offset: u64, first_ns: u64) {
        self.begin(file, offset, first_ns);
        let left = usize::try_from(longest.saturating_sub(offset)).unwrap_or(usize::MAX);
        self.until = self.until.min(left);
    }

    /// Lets the write block take frame records up to its capacity, whatever the file's maximum size.
    pub(crate) fn lift_limit(&mut self) {
        self.until = self.memory.len();
    }

    /// Appends as many bytes as fit in the write block and returns the others.
    pub(crate) fn append<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (here, rest) = bytes.split_at(bytes.len().min(self.room()));
        let at = self.len;
        self.memory.as_mut_slice()[at..at + here.len()].copy_from_slice(here);
        self.len += here.len();
        rest
    }

    /// Encodes a frame record at the end of the write block, which must have room for the record's
    /// `need` bytes.
    #[inline(always)]
    pub(super) fn encode(
        &mut self,
        encoder: &impl Encoder,
        queue: u16,
        record: &Record<'_>,
        need: usize,
    ) {
        let at = self.len;
        self.len += need;
        let out = &mut self.memory.as_mut_slice()[at..self.len];
        encoder.record(out, queue, record);
        self.count(record);
    }

    #[inline]
    pub(super) fn count(&mut self, record: &Record<'_>) {
        self.whole = self.len;
        self.tally.frames += 1;
        self.tally.bytes += u64::from(record.len);
    }
}

/// Number of frames in a piece of a capture file, and the number of their bytes on the wire.
#[derive(Clone, Default)]
pub(crate) struct FrameTally {
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    /// Frames and bytes by queue, in a capture file of all queues; else empty.
    by_queue: Vec<(u64, u64)>,
}

impl FrameTally {
    fn clear(&mut self) {
        (self.frames, self.bytes) = (0, 0);
        self.by_queue.fill((0, 0));
    }

    /// Adds the frame counts of another piece of the same capture file.
    pub(crate) fn add(&mut self, more: &Self) {
        self.frames += more.frames;
        self.bytes += more.bytes;
        for (queue, (frames, bytes)) in more.by_queue.iter().enumerate() {
            self.credit(queue, *frames, *bytes);
        }
    }

    #[inline]
    pub(super) fn credit(&mut self, queue: usize, frames: u64, bytes: u64) {
        if self.by_queue.len() <= queue {
            self.make_room_for(queue);
        }
        let of_queue = &mut self.by_queue[queue];
        of_queue.0 += frames;
        of_queue.1 += bytes;
    }

    #[cold]
    fn make_room_for(&mut self, queue: usize) {
        self.by_queue.resize(queue + 1, (0, 0));
    }
}

/// Counters of the queues whose frames are in a capture file.
#[derive(Clone)]
pub(crate) enum FileLedger {
    /// Counters of one queue, for a capture file of its frames.
    Queue(Arc<QueueCounters>),
    /// Counters of all queues, for a capture file of all frames.
    All(Vec<Arc<QueueCounters>>),
}

impl FileLedger {
    /// Counts the frames of a write block or capture file that did not reach the disk as lost.
    pub(crate) fn count_lost(&self, tally: &FrameTally) {
        self.each(tally, QueueCounters::add_lost);
    }

    /// Counts the frames of a finished capture file as kept.
    pub(crate) fn count_kept(&self, tally: &FrameTally) {
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
