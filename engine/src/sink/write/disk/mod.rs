//! How blocks reach the disk: by io_uring, several at once, or one after the other where there is no io_uring.
//!
//! Blocks and files are made known to the ring beforehand where the kernel allows that, so that a write does not have
//! to look up its file and pin its pages anew.
#![allow(unsafe_code)]

use crate::sink::block::Block;
use io_uring::{IoUring, opcode, types};
use std::{
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::FileExt},
    ptr,
};

#[cfg(test)]
pub(super) mod fake;

/// Writes under way at most.
pub(super) const DEPTH: u32 = 16;
/// Files that the ring can know at once. A queue has one open, and for a moment the one before it; any more are written
/// to by their descriptors.
const MOST_FILES: u32 = 256;

/// The way to the disk.
pub(super) enum Disk {
    /// Several writes at once.
    Uring(Box<WriteRing>),
    /// One write at a time.
    Plain(Vec<Done>),
    /// One that does what a test wants.
    #[cfg(test)]
    Fake(fake::Fake),
}

/// A ring and what it knows.
pub(super) struct WriteRing {
    ring: IoUring,
    /// Blocks are known by their places in the pool.
    blocks: bool,
    /// Free places for files.
    places: Vec<u32>,
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
}

/// A write that has come to its end.
pub(super) struct Done {
    /// [`Write::token`].
    pub(super) token: usize,
    /// Bytes written, or the error.
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
    /// io_uring where the kernel allows it, else plain writes. `pool` is what will be written.
    pub(super) fn open(pool: &Pool) -> Self {
        match IoUring::builder()
            .setup_single_issuer()
            .build(DEPTH)
            .or_else(|_| IoUring::new(DEPTH))
        {
            Ok(ring) => Self::Uring(Box::new(WriteRing::knowing(ring, pool))),
            Err(e) => {
                tracing::info!("no io_uring ({e}): blocks are written one after the other");
                Self::Plain(Vec::new())
            }
        }
    }

    /// Makes a file known; `None`: it is written to by its descriptor.
    pub(super) fn meet(&mut self, file: &File) -> Option<FileSlot> {
        let Self::Uring(it) = self else { return None };
        let place = it.places.pop()?;
        match it
            .ring
            .submitter()
            .register_files_update(place, &[file.as_raw_fd()])
        {
            Ok(_) => Some(FileSlot(place)),
            Err(e) => {
                tracing::debug!("io_uring does not take a file: {e}");
                it.places.push(place);
                None
            }
        }
    }

    /// Forgets a file, to which no write may be under way: the ring keeps it open otherwise.
    pub(super) fn part(&mut self, place: Option<FileSlot>) {
        const NONE: i32 = -1;
        let (Self::Uring(it), Some(FileSlot(place))) = (self, place) else {
            return;
        };
        match it.ring.submitter().register_files_update(place, &[NONE]) {
            Ok(_) => it.places.push(place),
            // The place is lost; the file is held until the ring goes.
            Err(e) => tracing::debug!("io_uring keeps a file: {e}"),
        }
    }

    /// Starts a write.
    ///
    /// # Safety
    /// The bytes stay where they are and are not written to until the write's end has been told, and the file stays open
    /// until then. With an extent, they are within that extent of the pool that the disk was opened with.
    ///
    /// # Errors
    /// The ring cannot take it.
    pub(super) unsafe fn submit(&mut self, write: Write<'_>) -> io::Result<()> {
        match self {
            Self::Plain(done) => {
                let result = write.file.write_all_at(write.bytes, write.offset);
                done.push(Done {
                    token: write.token,
                    result: result.map(|()| write.bytes.len()),
                });
                Ok(())
            }
            Self::Uring(it) => {
                let entry = it.entry(&write)?.user_data(write.token as u64);
                // SAFETY: the caller keeps bytes and file until the end is told.
                if unsafe { it.ring.submission().push(&entry) }.is_err() {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                it.ring.submit().map(drop)
            }
            #[cfg(test)]
            Self::Fake(fake) => fake.submit(&write),
        }
    }

    /// Takes writes that have ended, waiting for one if `wait`.
    pub(super) fn reap(&mut self, wait: bool, mut each: impl FnMut(Done)) -> io::Result<()> {
        match self {
            Self::Plain(done) => done.drain(..).for_each(each),
            Self::Uring(it) => {
                if wait {
                    match it.ring.submit_and_wait(1) {
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
                        other => other.map(drop)?,
                    }
                }
                for entry in it.ring.completion() {
                    let result = usize::try_from(entry.result())
                        .map_err(|_| io::Error::from_raw_os_error(-entry.result()));
                    each(Done {
                        token: usize::try_from(entry.user_data()).unwrap_or(usize::MAX),
                        result,
                    });
                }
            }
            #[cfg(test)]
            Self::Fake(fake) => fake.reap(each),
        }
        Ok(())
    }
}

impl WriteRing {
    fn knowing(ring: IoUring, pool: &Pool) -> Self {
        let buffers: Vec<_> = pool
            .0
            .iter()
            .map(|it| libc::iovec {
                iov_base: ptr::with_exposed_provenance_mut(it.start),
                iov_len: it.len,
            })
            .collect();
        // SAFETY: the kernel pins the pages that are there now, and lets go of them with the ring. It reads only what
        // `submit`'s caller has promised to keep.
        let blocks = match unsafe { ring.submitter().register_buffers(&buffers) } {
            Ok(()) => true,
            Err(e) => {
                tracing::info!("io_uring takes no buffers beforehand ({e}): it pins each block's");
                false
            }
        };
        let places = match ring.submitter().register_files_sparse(MOST_FILES) {
            Ok(()) => (0..MOST_FILES).rev().collect(),
            Err(e) => {
                tracing::info!("io_uring takes no files beforehand ({e}): it looks each one up");
                Vec::new()
            }
        };
        Self {
            ring,
            blocks,
            places,
        }
    }

    fn entry(&self, write: &Write<'_>) -> io::Result<io_uring::squeue::Entry> {
        let (at, offset) = (write.bytes.as_ptr(), write.offset);
        let len = u32::try_from(write.bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let fd = types::Fd(write.file.as_raw_fd());
        let known = write.place.map(|FileSlot(place)| types::Fixed(place));
        Ok(match (known, write.extent.filter(|_| self.blocks)) {
            (Some(file), Some(n)) => opcode::WriteFixed::new(file, at, len, n)
                .offset(offset)
                .build(),
            (None, Some(n)) => opcode::WriteFixed::new(fd, at, len, n)
                .offset(offset)
                .build(),
            (Some(file), None) => opcode::Write::new(file, at, len).offset(offset).build(),
            (None, None) => opcode::Write::new(fd, at, len).offset(offset).build(),
        })
    }
}
