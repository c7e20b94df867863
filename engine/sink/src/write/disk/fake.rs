//! A ring for tests: slow, in that it tells the end of one write at a time and only when it is waited for, full when it
//! is told to be, and failing where it is told to. It reads a block when it is entered, as the kernel does: a block that
//! was given away before its end would show.

use super::{DEPTH, Disk, Done, FileSlot, Write, WriteRing};
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

/// What a test holds of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hand {
    /// Writes fail for want of room.
    pub(crate) full: Arc<AtomicBool>,
    /// Writes begun so far, and those of them that were plain.
    pub(crate) begun: Arc<AtomicU64>,
    pub(crate) plain: Arc<AtomicU64>,
    /// What goes wrong, and how many calls of its kind there were.
    pub(crate) fault: Arc<Mutex<(Fault, u64)>>,
}

/// A kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Call {
    #[default]
    Push,
    Enter,
    Write,
    Meet,
}

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Effect {
    #[default]
    Nothing,
    /// It fails with this error, or is refused where it has none.
    Fails(i32),
    /// It writes so many bytes of its own.
    Writes(usize),
    /// It panics.
    Panics,
}

/// From the so-many-th call of a kind on, so many of them go wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fault {
    pub(crate) call: Call,
    pub(crate) from: u64,
    pub(crate) times: u64,
    pub(crate) effect: Effect,
}

/// The ring.
struct Fake {
    hand: Hand,
    pushed: VecDeque<Entry>,
    held: VecDeque<Done>,
    /// An end was told since it was last asked in vain.
    told: bool,
}

/// A write as the kernel sees it: an address and a descriptor.
struct Entry {
    token: usize,
    fd: RawFd,
    offset: u64,
    at: usize,
    len: usize,
}

impl Entry {
    fn of(write: &Write<'_>) -> Self {
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
            told: false,
        };
        Self::on(Box::new(fake), Duration::ZERO)
    }

    /// The same where lone writes are plain.
    pub(crate) fn fake_with_plain_writes(hand: &Hand) -> Self {
        Self {
            lone_are_plain: true,
            ..Self::fake(hand)
        }
    }
}

impl Fake {
    /// What goes wrong with this call.
    fn strikes(&self, call: Call) -> Effect {
        let Ok(mut fault) = self.hand.fault.lock() else {
            return Effect::Nothing;
        };
        let (fault, calls) = &mut *fault;
        if fault.call != call {
            return Effect::Nothing;
        }
        *calls += 1;
        match (fault.from..fault.from.saturating_add(fault.times)).contains(calls) {
            true => fault.effect,
            false => Effect::Nothing,
        }
    }

    /// The same for calls that do not write.
    fn fails(&self, call: Call) -> io::Result<()> {
        match self.strikes(call) {
            Effect::Panics => panic!("as the test wants it"),
            Effect::Fails(errno) => Err(io::Error::from_raw_os_error(errno)),
            Effect::Nothing | Effect::Writes(_) => Ok(()),
        }
    }

    fn write(&self, entry: &Entry) -> io::Result<usize> {
        self.hand.begun.fetch_add(1, Ordering::Relaxed);
        if self.hand.full.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let len = match self.strikes(Call::Write) {
            Effect::Panics => panic!("as the test wants it"),
            Effect::Fails(errno) => return Err(io::Error::from_raw_os_error(errno)),
            Effect::Writes(n) => n.min(entry.len),
            Effect::Nothing => entry.len,
        };
        let offset = i64::try_from(entry.offset).expect("small");
        // SAFETY: whoever submitted the write keeps its bytes and its file until its end is told.
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
        self.write(&Entry::of(write))
    }

    unsafe fn push(&mut self, write: &Write<'_>) -> bool {
        let same = |token: usize| token == write.token;
        let (pushed, held) = (self.pushed.iter(), self.held.iter());
        let mut tokens = pushed.map(|it| it.token).chain(held.map(|it| it.token));
        assert!(
            !tokens.any(same),
            "a write takes the place of one under way"
        );
        let under_way = self.pushed.len() + self.held.len();
        assert!(under_way < DEPTH as usize, "more than the ring takes");
        if self.fails(Call::Push).is_err() {
            return false;
        }
        self.pushed.push_back(Entry::of(write));
        true
    }

    fn enter(&mut self, _ends: usize) -> io::Result<()> {
        self.fails(Call::Enter)?;
        while let Some(entry) = self.pushed.pop_front() {
            let result = self.write(&entry);
            self.held.push_back(Done {
                token: entry.token,
                result,
            });
        }
        Ok(())
    }

    fn untaken(&mut self) -> usize {
        self.pushed.len()
    }

    fn ended(&mut self) -> Option<Done> {
        if std::mem::take(&mut self.told) {
            return None;
        }
        let done = self.held.pop_front()?;
        self.told = true;
        Some(done)
    }

    fn meet(&mut self, _file: &File) -> Option<FileSlot> {
        self.fails(Call::Meet).ok().map(|()| FileSlot(0))
    }

    fn part(&mut self, _place: FileSlot) {}

    fn close(self: Box<Self>) {}
}
