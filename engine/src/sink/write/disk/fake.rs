//! A disk for tests: slow, in that it tells the end of one write at a time and only when it is waited for, and full when
//! it is told to be.

use super::{DEPTH, Done, Write};
use std::{
    collections::VecDeque,
    io,
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// What a test holds of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hand {
    /// Writes fail for want of room.
    pub(crate) full: Arc<AtomicBool>,
    /// Writes begun so far.
    pub(crate) begun: Arc<AtomicU64>,
}

/// The disk.
#[derive(Default)]
pub(crate) struct Fake {
    hand: Hand,
    held: VecDeque<Done>,
}

impl Fake {
    pub(crate) fn new(hand: &Hand) -> Self {
        Self {
            hand: hand.clone(),
            held: VecDeque::new(),
        }
    }

    pub(super) fn submit(&mut self, write: &Write<'_>) -> io::Result<()> {
        assert!(
            self.held.iter().all(|it| it.token != write.token),
            "a write takes the place of one under way"
        );
        assert!(self.held.len() < DEPTH as usize, "more than the ring takes");
        self.hand.begun.fetch_add(1, Ordering::Relaxed);
        let result = if self.hand.full.load(Ordering::Relaxed) {
            Err(io::Error::from_raw_os_error(libc::ENOSPC))
        } else {
            let written = write.file.write_all_at(write.bytes, write.offset);
            written.map(|()| write.bytes.len())
        };
        self.held.push_back(Done {
            token: write.token,
            result,
        });
        Ok(())
    }

    pub(super) fn reap(&mut self, each: impl FnMut(Done)) {
        self.held.pop_front().into_iter().for_each(each);
    }
}
