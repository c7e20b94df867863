//! Starts the engine's named threads, and waits for those that follow the others' work.

use crate::error::ResourceError;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

/// Starts a thread.
///
/// # Errors
/// The system has no thread left.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, ResourceError> {
    let thread = Builder::new().name(name.into()).spawn(run);
    thread.map_err(|source| ResourceError::System {
        what: format!("the thread {name}"),
        source,
    })
}

/// A thread with work that a run's end waits for, but not for ever.
pub struct Follower<T> {
    thread: JoinHandle<T>,
    hurry: Arc<AtomicBool>,
}

impl<T: Send + 'static> Follower<T> {
    /// Starts it. The flag tells it when its time is over, and what is left is to be left.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(
        name: &str,
        run: impl FnOnce(&AtomicBool) -> T + Send + 'static,
    ) -> Result<Self, ResourceError> {
        let hurry = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&hurry);
        let thread = spawn(name, move || run(&flag))?;
        Ok(Self { thread, hurry })
    }

    /// Waits until it has ended; once so much time has passed, it is told to leave the rest. `None`: it panicked.
    pub fn finish(self, patience: Duration) -> Option<T> {
        let deadline = Instant::now() + patience;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.hurry.store(true, Ordering::Relaxed);
        self.thread.join().ok()
    }
}
