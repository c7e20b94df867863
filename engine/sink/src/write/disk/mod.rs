//! Writes of blocks to the disk: several concurrently through io_uring, or one after the other without
//! io_uring. Blocks that cannot be written concurrently are also written without it.
//!
//! Blocks and files are registered with the ring if the kernel allows it, so that a write need not look
//! up its file and pin its pages each time.
//!
//! Invariant: a write passed to the ring belongs to the ring until its completion is returned. If
//! io_uring_enter fails for good, writes that the kernel has not taken are returned as not written and
//! never passed to the ring again.
#![allow(unsafe_code)]

mod uring;

pub use uring::PreparedRing;

use crate::{
    block::Block,
    write::disk_policy::{FIRST_RING_PAUSE, RingDecision, RingUse},
};
use std::{
    collections::VecDeque, fs::File, io, os::unix::fs::FileExt, sync::Arc, thread, time::Duration,
};

#[cfg(test)]
pub(super) mod fake;

/// Maximum number of block writes in progress.
pub(super) const DEPTH: u32 = 16;
/// Disk to which write blocks are written, with or without io_uring.
pub(super) struct Disk {
    /// io_uring instance for concurrent writes; `None`: one plain write at a time.
    ring: Option<Box<dyn WriteRing>>,
    /// Tokens of block writes that the kernel has not taken from the io_uring queue, oldest first.
    queued: VecDeque<usize>,
    /// Number of block writes that the kernel has taken and not completed.
    taken: usize,
    /// Use of the io_uring instance, by the results of io_uring_enter.
    ring_use: RingUse,
    /// Pause after the first transient failure of io_uring_enter.
    first_pause: Duration,
    /// `true` if block writes that cannot run concurrently with others are plain writes.
    lone_are_plain: bool,
    /// Completed plain writes that are not reported yet.
    done: Vec<CompletedWrite>,
}

/// io_uring instance from which the kernel takes writes and to which it returns their completions.
pub(super) trait WriteRing: Send {
    /// Writes a block synchronously, without io_uring. Returns the number of bytes written.
    ///
    /// # Errors
    /// The errors of pwrite(2).
    fn write_plainly(&mut self, write: &Write<'_>) -> io::Result<usize> {
        write.plainly()
    }
    /// Adds a block write to the io_uring submission queue. Returns `false` if the queue is full.
    ///
    /// # Safety
    /// The requirements of [`Disk::submit`] apply.
    unsafe fn push(&mut self, write: &Write<'_>) -> bool;
    /// Submits the pushed writes to the kernel with io_uring_enter and waits for `ends`
    /// completions.
    ///
    /// # Errors
    /// The errors of io_uring_enter(2). Writes counted by [`WriteRing::untaken`] then stay in the queue
    /// until the next call.
    fn enter(&mut self, ends: usize) -> io::Result<()>;
    /// Returns the number of pushed writes that the kernel has not taken from the submission queue.
    fn untaken(&mut self) -> usize;
    /// Returns the next completed write from the completion queue.
    fn ended(&mut self) -> Option<CompletedWrite>;
    /// Registers a file with io_uring, as [`Disk::register_file`] does.
    fn register_file(&mut self, file: &File) -> Option<FileSlot>;
    /// Unregisters a file from io_uring, as [`Disk::unregister_file`] does.
    fn unregister_file(&mut self, place: FileSlot);
    /// Closes the io_uring instance, as [`Disk::close`] does.
    fn close(self: Box<Self>);
}

/// Index of a file in io_uring's table of registered files.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSlot(u32);

/// Memory of a write block: start address and length in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    start: usize,
    len: usize,
}

/// Write of a block to a capture file.
#[derive(Clone, Copy)]
pub(super) struct Write<'a> {
    /// Token that identifies the write in its completion.
    pub(super) token: usize,
    pub(super) file: &'a File,
    /// Slot of the write's file, if the file is registered with io_uring.
    pub(super) place: Option<FileSlot>,
    /// Offset of the write in its file in bytes.
    pub(super) offset: u64,
    pub(super) bytes: &'a [u8],
    /// Number of the pool's memory extent that holds the bytes to write.
    pub(super) extent: Option<u16>,
    /// `true` if no other write is in progress or waiting that could run concurrently with this
    /// one.
    pub(super) alone: bool,
}

impl Write<'_> {
    /// Performs the write synchronously. Returns the number of bytes written.
    fn plainly(&self) -> io::Result<usize> {
        let written = self.file.write_all_at(self.bytes, self.offset);
        written.map(|()| self.bytes.len())
    }
}

/// Completed write of a block.
pub(super) struct CompletedWrite {
    /// Token of the completed write, as in [`Write::token`].
    pub(super) token: usize,
    /// Number of bytes written, or the write's error; 0: the kernel did not take the write.
    pub(super) result: io::Result<usize>,
}

/// Memory of the blocks that are written to disk, for registration with io_uring.
#[derive(Debug, Default)]
pub(super) struct Pool(Vec<Extent>);

impl Pool {
    /// Adds a write block's memory to the pool and numbers the block. Blocks beyond the maximum
    /// number of io_uring stay without a number.
    pub(super) fn join(&mut self, block: &mut Block) {
        if let Ok(number) = u16::try_from(self.0.len()) {
            let memory = block.memory.as_slice(block.memory.len());
            self.0.push(Extent {
                start: memory.as_ptr().expose_provenance(),
                len: memory.len(),
            });
            block.extent = Some(number);
        }
    }
}

impl Disk {
    /// Opens a disk with the io_uring instance `kept`, or a new instance if there is none. Without
    /// io_uring the disk uses plain writes. `pool` is the memory of the blocks to write.
    pub(super) fn open(pool: &Pool, kept: Option<&Arc<PreparedRing>>) -> Self {
        match uring::Uring::open(pool, kept) {
            Ok(ring) => Self {
                lone_are_plain: true,
                ..Self::with_ring(Box::new(ring), FIRST_RING_PAUSE)
            },
            Err(e) => {
                tracing::info!(
                    "io_uring is not available: {e}; write blocks are written one at a time"
                );
                Self::plain()
            }
        }
    }

    /// Creates a disk without io_uring, for one write at a time.
    pub(super) fn plain() -> Self {
        Self {
            ring: None,
            queued: VecDeque::new(),
            taken: 0,
            ring_use: RingUse::Used { refusals: 0 },
            first_pause: FIRST_RING_PAUSE,
            lone_are_plain: false,
            done: Vec::new(),
        }
    }

    fn with_ring(ring: Box<dyn WriteRing>, first_pause: Duration) -> Self {
        Self {
            ring: Some(ring),
            first_pause,
            ..Self::plain()
        }
    }

    /// Returns the maximum number of concurrent block writes. If all writes are `of_one_queue`,
    /// they are plain and the maximum is 1: through io_uring, each such write would wake a kernel
    /// worker, and its completion would wake this thread.
    pub(super) fn at_once(&self, of_one_queue: bool) -> usize {
        let by_ring = self.ring.is_some() && self.ring_use != RingUse::Left;
        match by_ring && !(of_one_queue && self.lone_are_plain) {
            true => DEPTH as usize,
            false => 1,
        }
    }

    /// Registers a file with io_uring; `None`: the file is accessed by its descriptor.
    pub(super) fn register_file(&mut self, file: &File) -> Option<FileSlot> {
        self.ring.as_mut()?.register_file(file)
    }

    /// Unregisters a file, which has no write in progress, from io_uring. A registered file stays
    /// open in the io_uring instance.
    pub(super) fn unregister_file(&mut self, place: Option<FileSlot>) {
        if let (Some(ring), Some(place)) = (&mut self.ring, place) {
            ring.unregister_file(place);
        }
    }

    /// Queues a block write, which starts at the next [`Disk::reap`] at the latest, or performs it
    /// at once.
    ///
    /// # Safety
    /// The bytes stay at their address and unmodified, and the file stays open, until the write's completion was
    /// returned. With an extent, the bytes are within that extent of the pool that the disk was opened with.
    pub(super) unsafe fn submit(&mut self, write: Write<'_>) {
        let by_ring = self.at_once(write.alone) > 1;
        if let Some(ring) = self.ring.as_mut().filter(|_| by_ring)
            // SAFETY: guaranteed by the caller.
            && unsafe { ring.push(&write) }
        {
            return self.queued.push_back(write.token);
        }
        let result = match &mut self.ring {
            Some(ring) => ring.write_plainly(&write),
            None => write.plainly(),
        };
        self.done.push(CompletedWrite {
            token: write.token,
            result,
        });
    }

    /// Passes completed block writes to `each`. If there is none yet, waits for one, but may return
    /// without one after a failure of io_uring.
    pub(super) fn reap(&mut self, mut each: impl FnMut(CompletedWrite)) {
        let waits = self.done.is_empty();
        self.done.drain(..).for_each(&mut each);
        let Some(ring) = &mut self.ring else { return };
        if !waits && self.queued.is_empty() && self.taken == 0 {
            return;
        }
        let mut pause = None;
        if self.ring_use == RingUse::Left {
            pause = Some(FIRST_RING_PAUSE);
        } else {
            let entered = ring.enter(usize::from(waits));
            let taken = self.queued.len().saturating_sub(ring.untaken());
            self.queued.drain(..taken);
            self.taken += taken;
            match self.ring_use.after_enter(entered, self.first_pause) {
                RingDecision::Continue => {}
                RingDecision::Repeat(e, after) => {
                    tracing::debug!("io_uring_enter failed: {e}; the call is repeated");
                    pause = Some(after);
                }
                RingDecision::Leave(e) => {
                    tracing::warn!(
                        "io_uring_enter failed: {e}; from now on, write blocks are written one at a time"
                    );
                    for token in self.queued.drain(..) {
                        each(CompletedWrite {
                            token,
                            result: Ok(0),
                        });
                    }
                }
            }
        }
        let mut found = false;
        while let Some(done) = ring.ended() {
            (self.taken, found) = (self.taken.saturating_sub(1), true);
            each(done);
        }
        if let Some(pause) = pause.filter(|_| waits && !found) {
            thread::sleep(pause);
        }
    }

    /// Returns a kept io_uring instance for the next writer. No write may be in progress.
    pub(super) fn close(&mut self) {
        if let Some(ring) = self.ring.take() {
            ring.close();
        }
    }

    /// Waits until the kernel has completed every write that it has taken, and discards the writes
    /// still queued.
    pub(super) fn drain(&mut self) {
        self.ring_use = RingUse::Left;
        self.queued.clear();
        while self.taken > 0 {
            self.reap(drop);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_write_that_cannot_run_concurrently_bypasses_the_ring() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("file");
        let file = File::create(&path).expect("a file");
        let hand = fake::Hand::default();
        let mut disk = Disk::fake_with_plain_writes(&hand);
        let write = |token, offset, alone| Write {
            token,
            file: &file,
            place: None,
            offset,
            bytes: b"block",
            extent: None,
            alone,
        };
        let ended = |disk: &mut Disk| {
            let mut ended = Vec::new();
            while ended.is_empty() {
                disk.reap(|it| ended.push((it.token, it.result.expect("written"))));
            }
            ended
        };
        // SAFETY: the bytes are constant, and the file stays open.
        unsafe { disk.submit(write(3, 0, true)) };
        assert_eq!(ended(&mut disk), [(3, 5)]);
        assert_eq!(hand.plain.load(Ordering::Relaxed), 1);
        // SAFETY: as above.
        unsafe { disk.submit(write(4, 5, false)) };
        assert_eq!(ended(&mut disk), [(4, 5)]);
        let begun = [&hand.begun, &hand.plain].map(|it| it.load(Ordering::Relaxed));
        assert_eq!(begun, [2, 1]);
        assert_eq!(std::fs::read(path).expect("it is there"), b"blockblock");
    }
}
