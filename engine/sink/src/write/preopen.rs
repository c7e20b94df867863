//! Opening of each queue's next file in advance, by a thread for which no other thread waits.
//!
//! Invariant: a file opened in advance has no name until it is begun, so that it disappears however the
//! run ends.

use crate::write::{finished::WriterReport, named::OutputFile};
use crossbeam_channel::{Receiver, Sender};
use std::{path::Path, thread::JoinHandle};
use wqcap_core::{error::ResourceError, sync::thread::spawn};

/// Writer's handle of the thread that opens capture files in advance.
pub(super) struct Preopen {
    /// Requests for the next capture file of a queue.
    requests: Sender<usize>,
    /// Channel of the next capture file, by queue; `None`: the file could not be opened in advance.
    next: Vec<Receiver<Option<OutputFile>>>,
}

impl Preopen {
    /// Starts the thread that opens capture files in `dir` in advance. The thread ends when the
    /// handle is dropped.
    pub(super) fn start(
        dir: &Path,
        queues: usize,
    ) -> Result<(Self, JoinHandle<WriterReport>), ResourceError> {
        let (requests, requested) = crossbeam_channel::unbounded();
        let (files, next): (Vec<_>, Vec<_>) =
            (0..queues).map(|_| crossbeam_channel::bounded(1)).unzip();
        let dir = dir.to_owned();
        let thread = spawn("wqcap-ahead", move || {
            run(&dir, &requested, &files);
            WriterReport::default()
        })?;
        let it = Self { requests, next };
        (0..queues).for_each(|queue| it.request(queue));
        Ok((it, thread))
    }

    fn request(&self, queue: usize) {
        // If the thread has ended, each file is created when it is begun.
        let _ = self.requests.send(queue);
    }

    /// Returns the queue's next capture file if it is open already, and requests another one.
    pub(super) fn take(&self, queue: usize) -> Option<OutputFile> {
        let file = self.next[queue].try_recv().ok()?;
        self.request(queue);
        file
    }
}

/// Runs the thread that opens capture files in advance until the handle is dropped.
fn run(dir: &Path, requests: &Receiver<usize>, files: &[Sender<Option<OutputFile>>]) {
    let mut is_logged = false;
    for queue in requests {
        let opened = OutputFile::nameless(dir);
        if let Err(e) = &opened
            && !std::mem::replace(&mut is_logged, true)
        {
            tracing::info!(
                "{}: cannot create capture files in advance: {e}; each file is created when its first frame is written",
                dir.display()
            );
        }
        // Each queue has one request at a time: the channel has room, or the writer has ended.
        let _ = files[queue].try_send(opened.ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_opened_in_advance_has_no_name() {
        let dir = tempfile::tempdir().expect("dir");
        let (ahead, thread) = Preopen::start(dir.path(), 2).expect("starts");
        let mut taken = Vec::new();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while taken.len() < 3 {
            assert!(std::time::Instant::now() < deadline, "no file was opened");
            taken.extend(ahead.take(1));
            std::thread::yield_now();
        }
        let listed = std::fs::read_dir(dir.path()).expect("lists").count();
        assert_eq!(listed, 0, "a file has a name");
        drop(ahead);
        thread.join().expect("ends");

        let (ahead, thread) = Preopen::start(&dir.path().join("absent"), 1).expect("starts");
        while ahead.next[0].is_empty() {
            assert!(std::time::Instant::now() < deadline, "no file was opened");
            std::thread::yield_now();
        }
        assert!(ahead.take(0).is_none());
        drop(ahead);
        thread.join().expect("ends");
    }
}
