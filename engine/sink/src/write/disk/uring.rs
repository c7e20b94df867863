//! Ring of io_uring(7) for writes: created by a writer, or kept and passed from one writer to the next.

use super::{CompletedWrite, DEPTH, FileSlot, Pool, Write, WriteRing};
use io_uring::{IoUring, opcode, register::Restriction, squeue, types};
use std::{
    fmt,
    fs::File,
    io,
    os::fd::AsRawFd,
    ptr,
    sync::{Arc, Mutex},
};

/// Maximum number of files registered with io_uring. A queue has one open file, and briefly the one
/// before it. Further files are accessed by their descriptors.
const MOST_FILES: u32 = 256;

/// io_uring instance with its registered write blocks and files.
pub(super) struct Uring {
    ring: IoUring,
    /// `true` if the pool's write blocks are registered with io_uring, with their numbers in the
    /// pool.
    blocks: bool,
    /// Free indexes in io_uring's table of registered files.
    places: Vec<u32>,
    /// Owner of a kept io_uring instance, to which the instance returns when its writer has ended.
    home: Option<Arc<PreparedRing>>,
}

/// io_uring instance for successive writers of a process that cannot create one later. The instance
/// is restricted to writes, whichever thread submits to it.
#[derive(Default)]
pub struct PreparedRing(Mutex<Option<Uring>>);

impl PreparedRing {
    /// Creates the io_uring instance. If io_uring is not available, the value is empty, and writers
    /// use plain writes.
    #[must_use]
    pub fn new() -> Self {
        match Uring::restricted() {
            Ok(ring) => Self(Mutex::new(Some(ring))),
            Err(e) => {
                tracing::info!(
                    "io_uring is not available: {e}; write blocks are written one at a time"
                );
                Self::default()
            }
        }
    }

    /// Takes the io_uring instance, unless another writer has it.
    fn take(self: &Arc<Self>) -> Option<Uring> {
        let mut ring = self.0.lock().ok()?.take()?;
        ring.home = Some(Arc::clone(self));
        Some(ring)
    }
}

impl fmt::Debug for PreparedRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PreparedRing")
    }
}

impl Uring {
    /// Returns the io_uring instance `kept`, or a new one if there is none, with the write blocks
    /// of `pool` registered.
    pub(super) fn open(pool: &Pool, kept: Option<&Arc<PreparedRing>>) -> io::Result<Self> {
        let mut ring = match kept {
            Some(kept) => kept.take().ok_or(io::ErrorKind::ResourceBusy)?,
            None => Self::new(
                IoUring::builder()
                    .setup_single_issuer()
                    .build(DEPTH)
                    .or_else(|_| IoUring::new(DEPTH))?,
            ),
        };
        ring.register_blocks(pool);
        Ok(ring)
    }

    fn new(ring: IoUring) -> Self {
        let places = match ring.submitter().register_files_sparse(MOST_FILES) {
            Ok(()) => (0..MOST_FILES).rev().collect(),
            Err(e) => {
                tracing::info!(
                    "io_uring cannot register files: {e}; each write looks up its file, which takes CPU time"
                );
                Vec::new()
            }
        };
        Self {
            ring,
            blocks: false,
            places,
            home: None,
        }
    }

    /// Creates an io_uring instance restricted to writes and to the registration of blocks and
    /// files (`IORING_REGISTER_RESTRICTIONS`).
    fn restricted() -> io::Result<Self> {
        let it = Self::new(IoUring::builder().setup_r_disabled().build(DEPTH)?);
        // `enum io_uring_register_op` of linux/io_uring.h.
        const BUFFERS: u8 = 0;
        const NO_BUFFERS: u8 = 1;
        const FILES_UPDATE: u8 = 6;
        // `IOSQE_FIXED_FILE`.
        const FIXED_FILE: u8 = 1;
        let mut all = [
            Restriction::register_op(BUFFERS),
            Restriction::register_op(NO_BUFFERS),
            Restriction::register_op(FILES_UPDATE),
            Restriction::sqe_op(opcode::Write::CODE),
            Restriction::sqe_op(opcode::WriteFixed::CODE),
            Restriction::sqe_flags_allowed(FIXED_FILE),
        ];
        let submitter = it.ring.submitter();
        submitter.register_restrictions(&mut all)?;
        submitter.register_enable_rings()?;
        Ok(it)
    }

    /// Registers the write blocks of `pool` with io_uring.
    fn register_blocks(&mut self, pool: &Pool) {
        let buffers: Vec<_> = pool
            .0
            .iter()
            .map(|it| libc::iovec {
                iov_base: ptr::with_exposed_provenance_mut(it.start),
                iov_len: it.len,
            })
            .collect();
        // SAFETY: the kernel pins the current pages and releases them in `close` or with the ring. It reads only bytes
        // that the caller of `submit` keeps valid.
        self.blocks = match unsafe { self.ring.submitter().register_buffers(&buffers) } {
            Ok(()) => true,
            Err(e) => {
                tracing::info!(
                    "io_uring cannot register buffers: {e}; each write pins the pages of its write block, which takes CPU time"
                );
                false
            }
        };
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
        // SAFETY: the caller keeps the bytes and the file until the completion is returned.
        unsafe { self.ring.submission().push(&entry) }.is_ok()
    }

    fn enter(&mut self, ends: usize) -> io::Result<()> {
        self.ring.submit_and_wait(ends).map(drop)
    }

    fn untaken(&mut self) -> usize {
        self.ring.submission().len()
    }

    fn ended(&mut self) -> Option<CompletedWrite> {
        let entry = self.ring.completion().next()?;
        let result = usize::try_from(entry.result())
            .map_err(|_| io::Error::from_raw_os_error(-entry.result()));
        Some(CompletedWrite {
            token: usize::try_from(entry.user_data()).unwrap_or(usize::MAX),
            result,
        })
    }

    fn register_file(&mut self, file: &File) -> Option<FileSlot> {
        let place = self.places.pop()?;
        let files = [file.as_raw_fd()];
        match self.ring.submitter().register_files_update(place, &files) {
            Ok(_) => Some(FileSlot(place)),
            Err(e) => {
                tracing::debug!("io_uring cannot register a file: {e}");
                self.places.push(place);
                None
            }
        }
    }

    fn unregister_file(&mut self, FileSlot(place): FileSlot) {
        const NONE: i32 = -1;
        match self.ring.submitter().register_files_update(place, &[NONE]) {
            Ok(_) => self.places.push(place),
            // The slot is lost, and the file stays open until the ring is closed.
            Err(e) => tracing::debug!("io_uring cannot unregister a file: {e}"),
        }
    }

    fn close(mut self: Box<Self>) {
        let Some(home) = self.home.take() else { return };
        let idle = self.ring.submission().is_empty() && self.ring.completion().is_empty();
        // A ring with registered blocks would keep their memory.
        let is_clear = !self.blocks || self.ring.submitter().unregister_buffers().is_ok();
        if let (true, true, Ok(mut place)) = (idle, is_clear, home.0.lock()) {
            *place = Some(*self);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Submits an entry to a ring and returns the result of its completion.
    fn outcome(ring: &mut Uring, entry: &squeue::Entry) -> i32 {
        // SAFETY: the entries of these tests refer to memory that is static or lives until the completion.
        unsafe { ring.ring.submission().push(entry) }.expect("room");
        let _ = ring.ring.submit_and_wait(1).expect("submitted");
        ring.ring
            .completion()
            .next()
            .expect("a completion")
            .result()
    }

    #[test]
    fn a_kept_ring_serves_successive_threads_and_is_restricted_to_writes() {
        let kept = Arc::new(PreparedRing::new());
        let Some(mut ring) = kept.take() else {
            eprintln!("skipped: the kernel does not support io_uring with restrictions");
            return;
        };
        let path = c"/dev/null";
        let cwd = types::Fd(libc::AT_FDCWD);
        let socket = opcode::Socket::new(libc::AF_INET, libc::SOCK_RAW, 255).build();
        let open = opcode::OpenAt::new(cwd, path.as_ptr()).build();
        let attribute =
            opcode::SetXattr::new(c"user.x".as_ptr(), path.as_ptr().cast(), path.as_ptr(), 1)
                .build();
        for refused in [socket, open, attribute] {
            assert_eq!(outcome(&mut ring, &refused), -libc::EACCES);
        }
        assert!(ring.ring.submitter().register_files(&[0]).is_err());
        assert!(kept.take().is_none(), "another writer has it");
        Box::new(ring).close();
        let file = tempfile::tempfile().expect("a file");
        for round in 0..2u64 {
            let (kept, file) = (Arc::clone(&kept), file.try_clone().expect("open"));
            let write = move || {
                let mut ring =
                    Uring::open(&Pool::default(), Some(&kept)).expect("the ring is free");
                let fd = types::Fd(file.as_raw_fd());
                let entry = opcode::Write::new(fd, path.as_ptr().cast(), 4).offset(4 * round);
                let written = outcome(&mut ring, &entry.build());
                Box::new(ring).close();
                written
            };
            assert_eq!(thread::spawn(write).join().expect("ends"), 4);
        }
        assert_eq!(file.metadata().expect("open").len(), 8);
    }
}
