//! Fake ring for tests. It is slow: it returns one completion at a time and only while a caller waits.
//! A test makes it full or makes calls fail. It reads a block when it is entered, as the kernel does,
//! so that a block reused before its completion is detected.

use super::{CompletedWrite, DEPTH, Disk, FileSlot, Write, WriteRing};
use std::{
    collections::VecDeque,
    fs::File,
    io,
    os::fd::{AsRawFd, RawFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// Controls and counters of the fake io_uring, shared with the test.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hand {
    /// Set to make writes of the fake io_uring fail because the disk is full.
    pub(crate) full: Arc<AtomicBool>,
    /// Number of writes begun on the fake disk, including plain ones.
    pub(crate) begun: Arc<AtomicU64>,
    /// Number of writes begun on the fake disk by pwrite, and not by io_uring.
    pub(crate) plain: Arc<AtomicU64>,
    /// Fault to inject into the fake io_uring, and the number of calls of its kind so far.
    pub(crate) fault: Arc<Mutex<(CallFault, u64)>>,
}

/// Kind of the fake io_uring's calls into which a fault is injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Call {
    #[default]
    Push,
    Enter,
    Write,
    RegisterFile,
}

/// Effect of an injected fault on a call of the fake io_uring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum CallEffect {
    #[default]
    Nothing,
    /// The faulty call fails with this errno. A call without an error is refused.
    Fails(i32),
    /// The faulty write ends after at most this number of bytes.
    Writes(usize),
    /// The faulty call of the fake io_uring panics.
    Panics,
}

/// Fault to inject into `times` consecutive calls of a kind, beginning with call number `from`
/// (from 1).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallFault {
    pub(crate) call: Call,
    pub(crate) from: u64,
    pub(crate) times: u64,
    pub(crate) effect: CallEffect,
}

/// Fake io_uring that a [`Hand`] controls.
struct Fake {
    hand: Hand,
    pushed: VecDeque<KernelWrite>,
    /// Completed writes that the fake io_uring has not returned yet.
    held: VecDeque<CompletedWrite>,
    /// Set after the fake io_uring returned a completion: the next call returns none.
    paused: bool,
}

/// Write as the kernel gets it from the fake io_uring: with an address and a descriptor.
struct KernelWrite {
    token: usize,
    fd: RawFd,
    offset: u64,
    at: usize,
    len: usize,
}

impl KernelWrite {
    fn new(write: &Write<'_>) -> Self {
        Self {
            token: write.token,
            fd: write.file.as_raw_fd(),
            offset: write.offset,
            at: write.bytes.as_ptr().expose_provenance(),
            len: write.bytes.len(),
        }
    }
}

impl Disk {
    pub(crate) fn fake(hand: &Hand) -> Self {
        let fake = Fake {
            hand: hand.clone(),
            pushed: VecDeque::new(),
            held: VecDeque::new(),
            paused: false,
        };
        Self::with_ring(Box::new(fake), Duration::ZERO)
    }

    /// Creates a disk with a fake io_uring, on which writes that cannot run concurrently are plain.
    pub(crate) fn fake_with_plain_writes(hand: &Hand) -> Self {
        Self {
            lone_are_plain: true,
            ..Self::fake(hand)
        }
    }
}

impl Fake {
    /// Counts a call of the fake io_uring and returns the effect of the injected fault on it.
    fn effect(&self, call: Call) -> CallEffect {
        let Ok(mut fault) = self.hand.fault.lock() else {
            return CallEffect::Nothing;
        };
        let (fault, calls) = &mut *fault;
        if fault.call != call {
            return CallEffect::Nothing;
        }
        *calls += 1;
        match (fault.from..fault.from.saturating_add(fault.times)).contains(calls) {
            true => fault.effect,
            false => CallEffect::Nothing,
        }
    }

    /// Applies the injected fault to a call that does not write.
    fn apply_fault(&self, call: Call) -> io::Result<()> {
        match self.effect(call) {
            CallEffect::Panics => panic!("the test makes this call of the disk panic"),
            CallEffect::Fails(errno) => Err(io::Error::from_raw_os_error(errno)),
            CallEffect::Nothing | CallEffect::Writes(_) => Ok(()),
        }
    }

    fn write(&self, entry: &KernelWrite) -> io::Result<usize> {
        self.hand.begun.fetch_add(1, Ordering::Relaxed);
        if self.hand.full.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let len = match self.effect(Call::Write) {
            CallEffect::Panics => panic!("the test makes this call of the disk panic"),
            CallEffect::Fails(errno) => return Err(io::Error::from_raw_os_error(errno)),
            CallEffect::Writes(n) => n.min(entry.len),
            CallEffect::Nothing => entry.len,
        };
        let offset = i64::try_from(entry.offset).expect("small");
        // SAFETY: the submitter of the write keeps its bytes and its file until its completion is returned.
        let n = unsafe {
            let at = std::ptr::with_exposed_provenance(entry.at);
            libc::pwrite(entry.fd, at, len, offset)
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

impl WriteRing for Fake {
    fn write_plainly(&mut self, write: &Write<'_>) -> io::Result<usize> {
        self.hand.plain.fetch_add(1, Ordering::Relaxed);
        self.write(&KernelWrite::new(write))
    }

    unsafe fn push(&mut self, write: &Write<'_>) -> bool {
        let same = |token: usize| token == write.token;
        let (pushed, held) = (self.pushed.iter(), self.held.iter());
        let mut tokens = pushed.map(|it| it.token).chain(held.map(|it| it.token));
        assert!(
            !tokens.any(same),
            "the token of a write in progress is used again"
        );
        let in_progress = self.pushed.len() + self.held.len();
        assert!(
            in_progress < DEPTH as usize,
            "more writes than the ring takes"
        );
        if self.apply_fault(Call::Push).is_err() {
            return false;
        }
        self.pushed.push_back(KernelWrite::new(write));
        true
    }

    fn enter(&mut self, _ends: usize) -> io::Result<()> {
        self.apply_fault(Call::Enter)?;
        while let Some(entry) = self.pushed.pop_front() {
            let result = self.write(&entry);
            self.held.push_back(CompletedWrite {
                token: entry.token,
                result,
            });
        }
        Ok(())
    }

    fn untaken(&mut self) -> usize {
        self.pushed.len()
    }

    fn ended(&mut self) -> Option<CompletedWrite> {
        if std::mem::take(&mut self.paused) {
            return None;
        }
        let done = self.held.pop_front()?;
        self.paused = true;
        Some(done)
    }

    fn register_file(&mut self, _file: &File) -> Option<FileSlot> {
        self.apply_fault(Call::RegisterFile)
            .ok()
            .map(|()| FileSlot(0))
    }

    fn unregister_file(&mut self, _place: FileSlot) {}

    fn close(self: Box<Self>) {}
}
