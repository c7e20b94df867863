//! Start of the engine's named threads, and threads whose end is awaited for a limited time.

use crate::error::ResourceError;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

/// Starts a thread of the engine with a name.
///
/// # Errors
/// The system cannot create another thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, ResourceError> {
    let thread = Builder::new().name(name.into()).spawn(run);
    thread.map_err(|source| ResourceError::System {
        what: format!("cannot start the thread {name}"),
        source,
    })
}

/// Thread for whose work the end of a run waits, up to a limit.
pub struct BoundedThread<T> {
    /// Join handle of the thread whose work the end of a run waits for.
    thread: JoinHandle<T>,
    /// Stop flag of the thread: once it is set, the thread skips its remaining work.
    hurry: Arc<AtomicBool>,
}

impl<T: Send + 'static> BoundedThread<T> {
    /// Starts a thread that runs `run`, which should skip its remaining work once the flag passed
    /// to it is set.
    ///
    /// # Errors
    /// The system cannot create another thread.
    pub fn start(
        name: &str,
        run: impl FnOnce(&AtomicBool) -> T + Send + 'static,
    ) -> Result<Self, ResourceError> {
        let hurry = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&hurry);
        let thread = spawn(name, move || run(&flag))?;
        Ok(Self { thread, hurry })
    }

    /// Waits until the thread has ended, and sets its stop flag after `patience`. Returns `None` if
    /// the thread panicked.
    pub fn finish(self, patience: Duration) -> Option<T> {
        let deadline = Instant::now() + patience;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.hurry.store(true, Ordering::Relaxed);
        self.thread.join().ok()
    }
}
