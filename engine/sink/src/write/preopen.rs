//! A queue's next file is opened before its turn, by a thread that nothing waits for.
//!
//! Invariant: a next file has no name until it is begun, so that nothing is left of it however the run ends.

use crate::write::{finished::Finished, named::Opened};
use crossbeam_channel::{Receiver, Sender};
use std::{path::Path, thread::JoinHandle};
use wqcap_core::{error::ResourceError, sync::thread::spawn};

/// The writer's hold of the thread.
pub(super) struct Preopen {
    /// Queues that want their next file.
    asks: Sender<usize>,
    /// By queue, the next file; `None`: it could not be opened ahead.
    next: Vec<Receiver<Option<Opened>>>,
}

impl Preopen {
    /// Starts the thread, for files in `dir`. It ends when this is dropped.
    pub(super) fn start(
        dir: &Path,
        queues: usize,
    ) -> Result<(Self, JoinHandle<Finished>), ResourceError> {
        let (asks, asked) = crossbeam_channel::unbounded();
        let (files, next): (Vec<_>, Vec<_>) =
            (0..queues).map(|_| crossbeam_channel::bounded(1)).unzip();
        let dir = dir.to_owned();
        let thread = spawn("wqcap-ahead", move || {
            run(&dir, &asked, &files);
            Finished::default()
        })?;
        let it = Self { asks, next };
        (0..queues).for_each(|queue| it.ask(queue));
        Ok((it, thread))
    }

    fn ask(&self, queue: usize) {
        // A thread that is gone opens nothing, and files are created when they are begun.
        let _ = self.asks.send(queue);
    }

    /// The queue's next file, if it is open already. Another one is on its way then.
    pub(super) fn take(&self, queue: usize) -> Option<Opened> {
        let file = self.next[queue].try_recv().ok()?;
        self.ask(queue);
        file
    }
}

/// The thread: runs until nobody can ask it for anything.
fn run(dir: &Path, asks: &Receiver<usize>, files: &[Sender<Option<Opened>>]) {
    let mut told = false;
    for queue in asks {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_its_next_file_open_and_nothing_to_show_for_it() {
        let dir = tempfile::tempdir().expect("dir");
        let (ahead, thread) = Preopen::start(dir.path(), 2).expect("starts");
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

        let (ahead, thread) = Preopen::start(&dir.path().join("absent"), 1).expect("starts");
        while ahead.next[0].is_empty() {
            assert!(std::time::Instant::now() < deadline, "never");
            std::thread::yield_now();
        }
        assert!(ahead.take(0).is_none());
        drop(ahead);
        thread.join().expect("ends");
    }
}
