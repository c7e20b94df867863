//! The ring of io_uring(7).

use super::{DEPTH, Done, FileSlot, Pool, Write, WriteRing};
use io_uring::{IoUring, opcode, squeue, types};
use std::{fs::File, io, os::fd::AsRawFd, ptr};

/// Files that the ring can know at once. A queue has one open, and for a moment the one before it; any more are written
/// to by their descriptors.
const MOST_FILES: u32 = 256;

/// A ring and what it knows.
pub(super) struct Uring {
    ring: IoUring,
    /// Blocks are known by their places in the pool.
    blocks: bool,
    /// Free places for files.
    places: Vec<u32>,
}

impl Uring {
    pub(super) fn open(pool: &Pool) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .build(DEPTH)
            .or_else(|_| IoUring::new(DEPTH))?;
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
        Ok(Self {
            ring,
            blocks,
            places,
        })
    }

    fn entry(&self, write: &Write<'_>) -> Option<squeue::Entry> {
        let (at, offset) = (write.bytes.as_ptr(), write.offset);
        let len = u32::try_from(write.bytes.len()).ok()?;
        let fd = types::Fd(write.file.as_raw_fd());
        let known = write.place.map(|FileSlot(place)| types::Fixed(place));
        let entry = match (known, write.extent.filter(|_| self.blocks)) {
            (Some(file), Some(n)) => opcode::WriteFixed::new(file, at, len, n)
                .offset(offset)
                .build(),
            (None, Some(n)) => opcode::WriteFixed::new(fd, at, len, n)
                .offset(offset)
                .build(),
            (Some(file), None) => opcode::Write::new(file, at, len).offset(offset).build(),
            (None, None) => opcode::Write::new(fd, at, len).offset(offset).build(),
        };
        Some(entry.user_data(write.token as u64))
    }
}

impl WriteRing for Uring {
    unsafe fn push(&mut self, write: &Write<'_>) -> bool {
        let Some(entry) = self.entry(write) else {
            return false;
        };
        // SAFETY: the caller keeps bytes and file until the end is told.
        unsafe { self.ring.submission().push(&entry) }.is_ok()
    }

    fn enter(&mut self, ends: usize) -> io::Result<()> {
        self.ring.submit_and_wait(ends).map(drop)
    }

    fn untaken(&mut self) -> usize {
        self.ring.submission().len()
    }

    fn ended(&mut self) -> Option<Done> {
        let entry = self.ring.completion().next()?;
        let result = usize::try_from(entry.result())
            .map_err(|_| io::Error::from_raw_os_error(-entry.result()));
        Some(Done {
            token: usize::try_from(entry.user_data()).unwrap_or(usize::MAX),
            result,
        })
    }

    fn meet(&mut self, file: &File) -> Option<FileSlot> {
        let place = self.places.pop()?;
        let files = [file.as_raw_fd()];
        match self.ring.submitter().register_files_update(place, &files) {
            Ok(_) => Some(FileSlot(place)),
            Err(e) => {
                tracing::debug!("io_uring does not take a file: {e}");
                self.places.push(place);
                None
            }
        }
    }

    fn part(&mut self, FileSlot(place): FileSlot) {
        const NONE: i32 = -1;
        match self.ring.submitter().register_files_update(place, &[NONE]) {
            Ok(_) => self.places.push(place),
            // The place is lost; the file is held until the ring goes.
            Err(e) => tracing::debug!("io_uring keeps a file: {e}"),
        }
    }
}
