//! How blocks reach the disk: by io_uring, several at once, or one after the other where there is no io_uring.
#![allow(unsafe_code)]

use io_uring::{IoUring, opcode, types};
use std::{
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::FileExt},
};

/// Writes under way at most.
pub(super) const DEPTH: u32 = 16;

/// The way to the disk.
pub(super) enum Disk {
    /// Several writes at once.
    Uring(Box<IoUring>),
    /// One write at a time.
    Plain(Vec<Done>),
}

/// A write that has come to its end.
pub(super) struct Done {
    /// What [`Disk::submit`] was told.
    pub(super) token: usize,
    /// Bytes written, or the error.
    pub(super) result: io::Result<usize>,
}

impl Disk {
    /// io_uring where the kernel allows it, else plain writes.
    pub(super) fn open() -> Self {
        match IoUring::builder()
            .setup_single_issuer()
            .build(DEPTH)
            .or_else(|_| IoUring::new(DEPTH))
        {
            Ok(ring) => Self::Uring(Box::new(ring)),
            Err(e) => {
                tracing::info!("no io_uring ({e}): blocks are written one after the other");
                Self::Plain(Vec::new())
            }
        }
    }

    /// Starts a write.
    ///
    /// # Safety
    /// `bytes` stay where they are and are not written to until the write's end has been told, and `file` stays open
    /// until then.
    ///
    /// # Errors
    /// The ring cannot take it.
    pub(super) unsafe fn submit(
        &mut self,
        token: usize,
        file: &File,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<()> {
        match self {
            Self::Plain(done) => {
                let result = file.write_all_at(bytes, offset).map(|()| bytes.len());
                done.push(Done { token, result });
                Ok(())
            }
            Self::Uring(ring) => {
                let len = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
                let entry = opcode::Write::new(types::Fd(file.as_raw_fd()), bytes.as_ptr(), len)
                    .offset(offset)
                    .build()
                    .user_data(token as u64);
                // SAFETY: the caller keeps bytes and file until the end is told.
                if unsafe { ring.submission().push(&entry) }.is_err() {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                ring.submit().map(drop)
            }
        }
    }

    /// Takes writes that have ended, waiting for one if `wait`.
    pub(super) fn reap(&mut self, wait: bool, mut each: impl FnMut(Done)) -> io::Result<()> {
        match self {
            Self::Plain(done) => done.drain(..).for_each(each),
            Self::Uring(ring) => {
                if wait {
                    match ring.submit_and_wait(1) {
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
                        other => other.map(drop)?,
                    }
                }
                for entry in ring.completion() {
                    let result = usize::try_from(entry.result())
                        .map_err(|_| io::Error::from_raw_os_error(-entry.result()));
                    each(Done {
                        token: usize::try_from(entry.user_data()).unwrap_or(usize::MAX),
                        result,
                    });
                }
            }
        }
        Ok(())
    }
}
