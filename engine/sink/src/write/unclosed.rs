//! Complete capture files that wait for the thread that closes them: a bounded number, so that rotation
//! is never faster than the disk closes files.
//!
//! Invariant: a file that waits has a descriptor, so a run has at most [`MOST_UNCLOSED`] descriptors for
//! files that get no more blocks. When the number is reached, the writer waits: write blocks fill, and
//! `output.on_full` applies, as with any slow disk.

use crate::write::closer::CloserTask;
use crossbeam_channel::{Receiver, Sender, TrySendError};
use std::time::{Duration, Instant};

/// Maximum number of tasks that wait for the thread that syncs and closes files: complete files, and
/// syncs of open ones.
pub const MOST_UNCLOSED: usize = 256;

/// Writer's end of the queue of the thread that syncs and closes capture files.
pub(super) struct Unclosed {
    tasks: Sender<CloserTask>,
    /// Number of times that the writer waited for room in the queue.
    waits: u64,
    /// Total time that the writer waited for room in the queue.
    waited: Duration,
}

impl Unclosed {
    /// Creates an empty queue, and its end for the closing thread.
    pub(super) fn new() -> (Self, Receiver<CloserTask>) {
        let (tasks, taken) = crossbeam_channel::bounded(MOST_UNCLOSED);
        let it = Self {
            tasks,
            waits: 0,
            waited: Duration::ZERO,
        };
        (it, taken)
    }

    /// Passes a task to the closing thread. Waits while [`MOST_UNCLOSED`] tasks are before it.
    pub(super) fn push(&mut self, task: CloserTask) {
        // The closing thread outlives the writer: no send fails because it has ended.
        let Err(TrySendError::Full(task)) = self.tasks.try_send(task) else {
            return;
        };
        if self.waits == 0 {
            tracing::warn!(
                "{MOST_UNCLOSED} complete files wait to be closed: the writer waits for them; larger files (output.rotate_size) \
                 need fewer"
            );
        }
        let start = Instant::now();
        let _ = self.tasks.send(task);
        self.waits += 1;
        self.waited += start.elapsed();
    }

    /// Returns a note on the writer's waits; `None`: it never waited.
    pub(super) fn note(&self) -> Option<String> {
        let (waits, seconds) = (self.waits, self.waited.as_secs_f64());
        (waits > 0).then(|| {
            format!(
                "files were complete faster than the disk could close them: the writer waited {waits} times, {seconds:.1} s \
                 in all, with {MOST_UNCLOSED} complete files before it; larger files (output.rotate_size) need less"
            )
        })
    }
}
