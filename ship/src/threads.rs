//! Threads for work that blocks, and the thread that sends store requests.
//!
//! The runtime of `tokio` panics if it cannot start a thread of its own pool. Therefore all threads
//! are started before the first request, and a failure to start one is an error.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

/// Number of threads for work that blocks: reads and writes of files, digests, look-ups of host
/// names.
const BLOCKING: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// Sender of jobs to the threads for work that blocks; `None`: the threads have not been started.
static QUEUE: Mutex<Option<Sender<Job>>> = Mutex::new(None);

/// Starts the threads for work that blocks, if they are not running yet. They run until the process
/// ends.
///
/// # Errors
/// The system refuses to start another thread.
pub(crate) fn start() -> io::Result<()> {
    queue().map(drop)
}

fn queue() -> io::Result<Sender<Job>> {
    let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(queue) = &*queue {
        return Ok(queue.clone());
    }
    let (sender, receiver) = mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..BLOCKING {
        let receiver = Arc::clone(&receiver);
        let builder = thread::Builder::new().name("wqcap-store-io".into());
        builder.spawn(move || serve(&receiver))?;
    }
    Ok(queue.insert(sender).clone())
}

/// Runs the jobs that `receiver` delivers. Returns when all senders of jobs are dropped, which
/// happens if not all threads could be started.
fn serve(receiver: &Mutex<Receiver<Job>>) {
    loop {
        let job = receiver
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        let Ok(job) = job else { return };
        // The caller of a job that panics gets an error, because the job's result is missing.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

/// Runs work that blocks on one of the threads for it. If the returned future is dropped, the work
/// continues and its result is discarded.
///
/// # Errors
/// The threads cannot be started, or the work panicked.
pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = oneshot::channel();
    let job = move || {
        // The caller may have been dropped.
        let _ = sender.send(work());
    };
    let sent = queue()?.send(Box::new(job));
    sent.map_err(|_| io::Error::other("the threads for file access have ended"))?;
    let ended = |_| io::Error::other("a thread for file access ended without a result");
    receiver.await.map_err(ended)
}

/// Runtime that sends store requests on a separate thread. Dropping it ends the requests.
pub(crate) struct RequestRuntime {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl RequestRuntime {
    /// Starts the thread that sends store requests, and the threads for work that blocks.
    ///
    /// # Errors
    /// The system refuses to start another thread, or has no descriptor left.
    pub(crate) fn start() -> io::Result<Self> {
        start()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let builder = thread::Builder::new().name("wqcap-store".into());
        builder.spawn(move || {
            // Ends with an error when the sender is dropped.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        })?;
        Ok(Self {
            handle,
            _stop: stop,
        })
    }

    /// Returns the handle with which tasks are started on the runtime for store requests.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_other_threads_and_a_panic_is_an_error() {
        let runtime = RequestRuntime::start().expect("threads");
        let here = thread::current().id();
        runtime.handle().block_on(async {
            for n in 0..3 * BLOCKING {
                let there = run(move || (n, thread::current().id())).await.expect("run");
                assert!(there.0 == n && there.1 != here);
                let lost = run(|| panic!("a panic on purpose")).await;
                assert!(lost.is_err());
            }
        });
        let task = runtime.handle().spawn(async { thread::current().id() });
        let task = runtime.handle().block_on(task).expect("run");
        assert_ne!(task, here);
    }
}
