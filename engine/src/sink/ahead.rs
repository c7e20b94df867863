//! What is done ahead of the writer, by a thread that nothing waits for: a queue's next file is opened before its turn,
//! and a file that is written fast gets room before it is needed.
//!
//! Why room: a direct write that makes its file longer holds the whole file for itself (on ext4 until it has ended), and
//! io_uring has it done by a thread of the kernel. Writes into room that is there go side by side, from where they are.
//!
//! Invariants: a next file has no name until it is begun, so that nothing is left of it however the run ends. Room that
//! is not used goes with the file's end, and as soon as its queue falls idle: only then somebody may look at it.

use super::{
    named::Opened,
    writer::{Finished, spawn},
};
use crate::Error;
use crossbeam_channel::{Receiver, Sender};
use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use std::{
    fs::File,
    io,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

/// Room that is made at once: twice what the file has, within these. Making it waits for all writes to the file.
const LEAST_ROOM: u64 = 128 << 20;
const MOST_ROOM: u64 = 1 << 30;
/// So many times as much must be free on the disk: what is short is left to those who write.
const PLENTY: u64 = 4;

/// The writer's hold of the thread.
pub(super) struct Ahead {
    asks: Sender<Ask>,
    /// By queue.
    next: Vec<Next>,
}

/// A queue's next file.
struct Next {
    /// `None`: it could not be opened ahead.
    file: Receiver<Option<Opened>>,
    /// It is on its way.
    asked: bool,
}

enum Ask {
    /// To open this queue's next file.
    Next(usize),
    /// To make a file so long.
    Room(Arc<Room>, u64),
}

impl Ahead {
    /// Starts the thread, for files in `dir`. It ends when this is dropped.
    pub(super) fn start(dir: &Path, queues: usize) -> Result<(Self, JoinHandle<Finished>), Error> {
        let (asks, asked) = crossbeam_channel::unbounded();
        let (files, next): (Vec<_>, Vec<_>) = (0..queues)
            .map(|_| {
                let (sender, file) = crossbeam_channel::bounded(1);
                let asked = false;
                (sender, Next { file, asked })
            })
            .unzip();
        let dir = dir.to_owned();
        let thread = spawn("wqcap-ahead", move || {
            run(&dir, &asked, &files);
            Finished::default()
        })?;
        let mut it = Self { asks, next };
        (0..queues).for_each(|queue| it.ask(queue));
        Ok((it, thread))
    }

    fn ask(&mut self, queue: usize) {
        // A thread that is gone opens nothing, and files are created when they are begun.
        self.next[queue].asked = self.asks.send(Ask::Next(queue)).is_ok();
    }

    /// The queue's next file, if it is open already. Another one is on its way then.
    pub(super) fn take(&mut self, queue: usize) -> Option<Opened> {
        let file = self.next[queue].file.try_recv().ok()?;
        self.ask(queue);
        file
    }

    /// Has room made in a file that is written up to `end`, if it is short of it. It never grows beyond `most`.
    pub(super) fn make_room(&self, room: &Arc<Room>, end: u64, most: u64) {
        if let Some(to) = room.want(end, most) {
            let _ = self.asks.send(Ask::Room(Arc::clone(room), to));
        }
    }
}

/// The thread: runs until nobody can ask it for anything.
fn run(dir: &Path, asks: &Receiver<Ask>, files: &[Sender<Option<Opened>>]) {
    let mut told = false;
    for ask in asks {
        match ask {
            Ask::Room(room, to) => room.make(to),
            Ask::Next(queue) => {
                let opened = Opened::nameless(dir);
                if let Err(e) = &opened
                    && !std::mem::replace(&mut told, true)
                {
                    tracing::info!(
                        "{}: no file can be opened ahead ({e}): each is created when it is begun",
                        dir.display()
                    );
                }
                // Asked for one at a time: there is room, or the writer is gone.
                let _ = files[queue].try_send(opened.ok());
            }
        }
    }
}

/// An open file's length, which may run ahead of what is written in it.
pub(super) struct Room {
    file: Arc<File>,
    /// How long it is to be; 0: as long as what is written.
    wanted: AtomicU64,
    /// How long it was made, or cut. Held by whoever makes it longer or shorter.
    made: Mutex<u64>,
}

impl Room {
    pub(super) fn new(file: Arc<File>) -> Self {
        Self {
            file,
            wanted: AtomicU64::new(0),
            made: Mutex::new(0),
        }
    }

    /// With so much written, how long the file is to be made; `None`: it is long enough, or may not grow.
    fn want(&self, end: u64, most: u64) -> Option<u64> {
        let step = end.saturating_mul(2).clamp(LEAST_ROOM, MOST_ROOM);
        let wanted = self.wanted.load(Ordering::Relaxed);
        let to = (end + step).min(most);
        let is_short = wanted < end + step / 4 && wanted < to && end < to;
        is_short.then(|| {
            self.wanted.store(to, Ordering::Release);
            to
        })
    }

    /// Makes the file so long, unless that is not wanted any more. Where it cannot be, writes make it longer themselves.
    fn make(&self, to: u64) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if self.wanted.load(Ordering::Acquire) < to || to <= *made {
            return;
        }
        match self.allocate(*made, to - *made) {
            Ok(true) => *made = to,
            Ok(false) => {}
            Err(e) => tracing::debug!("no room is made ahead: {e}"),
        }
    }

    /// Gives the file `more` bytes behind `from`; `false`: the disk has not so much to spare.
    fn allocate(&self, from: u64, more: u64) -> io::Result<bool> {
        let disk = fstatvfs(&self.file)?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free / PLENTY < more {
            return Ok(false);
        }
        fallocate(&self.file, FallocateFlags::empty(), from, more)?;
        Ok(true)
    }

    /// Cuts the file to what is in it.
    pub(super) fn cut(&self, len: u64) -> io::Result<()> {
        self.wanted.store(0, Ordering::Release);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        *made = len;
        self.file.set_len(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    fn room(file: &File) -> Room {
        Room::new(Arc::new(file.try_clone().expect("a descriptor")))
    }

    #[test]
    fn room_doubles_and_is_wanted_before_it_runs_out() {
        let file = tempfile::tempfile().expect("a file");
        let room = room(&file);
        let (mib, any) = (1 << 20, u64::MAX);
        assert_eq!(room.want(mib, any), Some(mib + LEAST_ROOM));
        assert_eq!(room.want(2 * mib, any), None);
        assert_eq!(room.want(80 * mib, any), None);
        assert_eq!(room.want(100 * mib, any), Some(300 * mib));
        assert_eq!(room.want(3 << 30, any), Some((3 << 30) + MOST_ROOM));
        // A file that has its size soon does not grow beyond it.
        let other = super::Room::new(Arc::clone(&room.file));
        assert_eq!(other.want(mib, 4 * mib), Some(4 * mib));
        assert_eq!(other.want(2 * mib, 4 * mib), None);
        assert_eq!(other.want(5 * mib, 4 * mib), None);
    }

    #[test]
    fn what_is_not_used_goes_and_does_not_come_back() {
        let file = tempfile::tempfile().expect("a file");
        let room = room(&file);
        let len = |file: &File| file.metadata().expect("told").len();
        file.write_all_at(&[7; 5000], 0).expect("written");
        let to = room.want(5000, 1 << 20).expect("wanted");
        room.make(to);
        assert_eq!(len(&file), 1 << 20);
        assert!(file.metadata().expect("told").blocks() * 512 >= 1 << 20);
        room.cut(5000).expect("cut");
        assert_eq!(len(&file), 5000);
        // Asked for before the cut, done after it.
        room.make(to);
        assert_eq!(len(&file), 5000);
        assert_eq!(room.want(5000, 1 << 20), Some(to));
        room.make(to);
        assert_eq!(len(&file), 1 << 20);
        let mut first = [0; 5000];
        file.read_exact_at(&mut first, 0).expect("read");
        assert_eq!(first, [7; 5000], "what was written stays");
    }

    #[test]
    fn more_than_the_disk_has_to_spare_is_not_taken() {
        let file = tempfile::tempfile().expect("a file");
        let room = room(&file);
        assert!(!room.allocate(0, 1 << 60).expect("told"));
        assert_eq!(file.metadata().expect("told").len(), 0);
    }

    #[test]
    fn a_queue_has_its_next_file_open_and_nothing_to_show_for_it() {
        let dir = tempfile::tempdir().expect("dir");
        let (mut ahead, thread) = Ahead::start(dir.path(), 2).expect("starts");
        let mut taken = Vec::new();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while taken.len() < 3 {
            assert!(std::time::Instant::now() < deadline, "never");
            taken.extend(ahead.take(1));
            std::thread::yield_now();
        }
        let listed = std::fs::read_dir(dir.path()).expect("lists").count();
        assert_eq!(listed, 0, "none has a name");
        drop(ahead);
        thread.join().expect("ends");

        let (mut ahead, thread) = Ahead::start(&dir.path().join("absent"), 1).expect("starts");
        while ahead.next[0].file.is_empty() {
            assert!(std::time::Instant::now() < deadline, "never");
            std::thread::yield_now();
        }
        assert!(ahead.take(0).is_none());
        drop(ahead);
        thread.join().expect("ends");
    }
}
