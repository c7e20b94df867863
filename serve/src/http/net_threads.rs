//! Threads that handle connections, all started before the first connection is accepted.
//!
//! tokio's scheduler of several threads starts its threads by a call that panics if the system
//! refuses one. Here each thread runs a separate scheduler, and a refusal is an error at the start.

use std::{future::Future, io, thread};
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

/// Number of threads that handle connections to the service.
const THREADS: usize = 2;

/// Threads that handle connections to the service. They end when this value is dropped; unfinished
/// tasks end with them.
pub struct NetThreads {
    threads: Vec<NetThread>,
    /// Number of tasks that were started on the threads, which selects the next thread.
    started: usize,
}

struct NetThread {
    handle: Handle,
    /// Sender whose drop ends the thread.
    _running: oneshot::Sender<()>,
}

impl NetThreads {
    /// Starts the threads that handle connections.
    ///
    /// # Errors
    /// The system refuses a thread or a descriptor.
    pub fn start() -> io::Result<Self> {
        let threads = (0..THREADS).map(|_| NetThread::start());
        Ok(Self {
            threads: threads.collect::<io::Result<_>>()?,
            started: 0,
        })
    }

    /// Starts a task on the next of the threads, in turn.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let thread = &self.threads[self.started % self.threads.len()];
        self.started = self.started.wrapping_add(1);
        thread.handle.spawn(task);
    }
}

impl NetThread {
    fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel();
        let run = move || {
            // The sender is only dropped.
            let _ = runtime.block_on(ended);
        };
        thread::Builder::new().name("serve-net".into()).spawn(run)?;
        Ok(Self {
            handle,
            _running: running,
        })
    }
}
