//! How blocks reach the disk: by io_uring, several at once, or one after the other where there is no io_uring. Blocks that
//! nothing can be written beside are written without it, too.
//!
//! Blocks and files are made known to the ring beforehand where the kernel allows that, so that a write does not have
//! to look up its file and pin its pages anew.
//!
//! Invariant: a write that the ring has stays the ring's until its end is told. Where the kernel refuses to be entered,
//! for a moment or for good, what it has not taken is told as not written, and never handed to it again.
#![allow(unsafe_code)]

mod uring;

pub use uring::KeptRing;

use crate::block::Block;
use std::{
    collections::VecDeque, fs::File, io, os::unix::fs::FileExt, sync::Arc, thread, time::Duration,
};

#[cfg(test)]
pub(super) mod fake;

/// Writes under way at most.
pub(super) const DEPTH: u32 = 16;
/// How often in a row the kernel may refuse for a passing reason, and the first pause after that, each twice as long as
/// the one before it: a quarter of a second in all.
const MOST_REFUSALS: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// The way to the disk.
pub(super) struct Disk {
    /// `None`: one write at a time.
    ring: Option<Box<dyn WriteRing>>,
    /// Writes that the kernel has not taken from the ring, by their tokens, oldest first.
    queued: VecDeque<usize>,
    /// Those that it has taken and not ended.
    taken: usize,
    /// The kernel has refused too often: the ring is only looked at for what it has taken.
    refused: bool,
    /// How often in a row.
    refusals: u32,
    first_pause: Duration,
    /// One queue's writes are plain ones.
    lone_are_plain: bool,
    /// Plain writes that have ended.
    done: Vec<Done>,
}

/// Where the kernel takes writes from, and tells their ends.
pub(super) trait WriteRing: Send {
    /// Writes past the ring, at once; bytes written.
    ///
    /// # Errors
    /// As pwrite(2).
    fn write_plainly(&mut self, write: &Write<'_>) -> io::Result<usize> {
        write.plainly()
    }
    /// Puts a write where the kernel takes it from when it is entered; `false`: there is no room.
    ///
    /// # Safety
    /// As for [`Disk::submit`].
    unsafe fn push(&mut self, write: &Write<'_>) -> bool;
    /// Hands over what was pushed, and waits for so many ends.
    ///
    /// # Errors
    /// As io_uring_enter(2). What is [`WriteRing::untaken`] then stays so until the next time.
    fn enter(&mut self, ends: usize) -> io::Result<()>;
    /// Writes that were pushed and the kernel has not taken.
    fn untaken(&mut self) -> usize;
    /// The next write that has come to its end.
    fn ended(&mut self) -> Option<Done>;
    /// As [`Disk::meet`].
    fn meet(&mut self, file: &File) -> Option<FileSlot>;
    /// As [`Disk::part`].
    fn part(&mut self, place: FileSlot);
    /// As [`Disk::close`].
    fn close(self: Box<Self>);
}

/// Where a file stands in the ring's table.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSlot(u32);

/// A stretch of memory that blocks are made of: where it begins and how long it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    start: usize,
    len: usize,
}

/// A write to be.
#[derive(Clone, Copy)]
pub(super) struct Write<'a> {
    /// Comes back with the write's end.
    pub(super) token: usize,
    pub(super) file: &'a File,
    pub(super) place: Option<FileSlot>,
    /// Where in the file.
    pub(super) offset: u64,
    pub(super) bytes: &'a [u8],
    /// Which extent of the pool the bytes are in.
    pub(super) extent: Option<u16>,
    /// Nothing is under way or waits that could be written beside it.
    pub(super) alone: bool,
}

impl Write<'_> {
    /// Does it, at once; bytes written.
    fn plainly(&self) -> io::Result<usize> {
        let written = self.file.write_all_at(self.bytes, self.offset);
        written.map(|()| self.bytes.len())
    }
}

/// A write that has come to its end.
pub(super) struct Done {
    /// [`Write::token`].
    pub(super) token: usize,
    /// Bytes written, or the error. 0 of them: the kernel did not take the write.
    pub(super) result: io::Result<usize>,
}

/// Numbers the blocks of a pool, and remembers where their memory is.
#[derive(Debug, Default)]
pub(super) struct Pool(Vec<Extent>);

impl Pool {
    /// A block joins; beyond what a ring can know, it stays without a number.
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
    /// The ring that is `kept`, or a new one where the kernel allows that, else plain writes. `pool` is what will be
    /// written.
    pub(super) fn open(pool: &Pool, kept: Option<&Arc<KeptRing>>) -> Self {
        match uring::Uring::open(pool, kept) {
            Ok(ring) => Self {
                lone_are_plain: true,
                ..Self::on(Box::new(ring), FIRST_PAUSE)
            },
            Err(e) => {
                tracing::info!("no io_uring ({e}): blocks are written one after the other");
                Self::plain()
            }
        }
    }

    /// One write at a time.
    pub(super) fn plain() -> Self {
        Self {
            ring: None,
            queued: VecDeque::new(),
            taken: 0,
            refused: false,
            refusals: 0,
            first_pause: FIRST_PAUSE,
            lone_are_plain: false,
            done: Vec::new(),
        }
    }

    fn on(ring: Box<dyn WriteRing>, first_pause: Duration) -> Self {
        Self {
            ring: Some(ring),
            first_pause,
            ..Self::plain()
        }
    }

    /// Writes that may be under way at once, where all are `of_one_queue` or not. One is plain: for a write beside which
    /// nothing can be written the kernel would wake a worker, and this thread to be told of its end.
    pub(super) fn at_once(&self, of_one_queue: bool) -> usize {
        let by_ring = self.ring.is_some() && !self.refused;
        match by_ring && !(of_one_queue && self.lone_are_plain) {
            true => DEPTH as usize,
            false => 1,
        }
    }

    /// Makes a file known; `None`: it is written to by its descriptor.
    pub(super) fn meet(&mut self, file: &File) -> Option<FileSlot> {
        self.ring.as_mut()?.meet(file)
    }

    /// Forgets a file, to which no write may be under way: the ring keeps it open otherwise.
    pub(super) fn part(&mut self, place: Option<FileSlot>) {
        if let (Some(ring), Some(place)) = (&mut self.ring, place) {
            ring.part(place);
        }
    }

    /// Starts a write, with the next [`Disk::reap`] at the latest, or does it at once.
    ///
    /// # Safety
    /// The bytes stay where they are and are not written to until the write's end has been told, and the file stays open
    /// until then. With an extent, they are within that extent of the pool that the disk was opened with.
    pub(super) unsafe fn submit(&mut self, write: Write<'_>) {
        let by_ring = self.at_once(write.alone) > 1;
        if let Some(ring) = self.ring.as_mut().filter(|_| by_ring)
            // SAFETY: the caller's promise.
            && unsafe { ring.push(&write) }
        {
            return self.queued.push_back(write.token);
        }
        let result = match &mut self.ring {
            Some(ring) => ring.write_plainly(&write),
            None => write.plainly(),
        };
        self.done.push(Done {
            token: write.token,
            result,
        });
    }

    /// Takes writes that have ended, waiting for one, though not for ever: a call may find none.
    pub(super) fn reap(&mut self, mut each: impl FnMut(Done)) {
        let waits = self.done.is_empty();
        self.done.drain(..).for_each(&mut each);
        let Some(ring) = &mut self.ring else { return };
        if !waits && self.queued.is_empty() && self.taken == 0 {
            return;
        }
        let mut pause = self.refused.then_some(FIRST_PAUSE);
        if !self.refused {
            let entered = ring.enter(usize::from(waits));
            let taken = self.queued.len().saturating_sub(ring.untaken());
            self.queued.drain(..taken);
            self.taken += taken;
            match entered {
                Ok(()) => self.refusals = 0,
                Err(e) if is_transient(&e) && self.refusals < MOST_REFUSALS => {
                    tracing::debug!("io_uring_enter: {e}: once more");
                    pause = Some(self.first_pause * (1 << self.refusals));
                    self.refusals += 1;
                }
                Err(e) => {
                    tracing::warn!(
                        "io_uring_enter: {e}: from now on, blocks are written one after the other"
                    );
                    self.refused = true;
                    for token in self.queued.drain(..) {
                        each(Done {
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

    /// Gives a kept ring back for the next writer; nothing may be under way.
    pub(super) fn close(&mut self) {
        if let Some(ring) = self.ring.take() {
            ring.close();
        }
    }

    /// Waits until the kernel has ended every write that it has taken; the rest is never handed to it.
    pub(super) fn drain(&mut self) {
        self.refused = true;
        self.queued.clear();
        while self.taken > 0 {
            self.reap(drop);
        }
    }
}

/// Whether an error may be over in a moment, with nothing done about it.
pub(super) fn is_transient(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ENOMEM)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_write_with_nothing_beside_it_does_without_the_ring() {
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
