//! Requests of signals to a supervised capture, set by the thread that reads the signals.
//!
//! Invariant: a request is set before the capture's owner is woken.

use super::{
    Supervisor,
    run::{Flushing, LiveCapture, refuse_flush},
};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};
use wqcap_control::audit::Peer;
use wqcap_core::sync::wakeup::Wakeup;

/// Flags with which the thread that reads signals requests actions of a supervised capture.
#[derive(Clone, Debug)]
pub struct Signals {
    /// Wakeup of the capture's owner, used after a signal's request is set.
    pub(super) owner: Wakeup,
    /// Set by SIGINT and SIGTERM, which request an orderly end of the capture.
    pub(super) stop: Arc<AtomicBool>,
    /// Set by a second SIGINT, which ends the capture without waiting for the disk. Frames in write
    /// buffers that are not being written yet are counted as lost.
    pub(super) at_once: Arc<AtomicBool>,
    /// Set by SIGHUP, which requests a reload of the configuration.
    pub(super) reload: Arc<PendingRequest>,
    /// Set by SIGUSR2, which requests that all frames received so far are written to the files.
    flush: Arc<PendingRequest>,
    /// Set by SIGCONT, which means that the process was stopped and continues.
    continued: Arc<AtomicBool>,
}

impl Signals {
    /// Creates the signals' state, in which no signal has requested anything.
    ///
    /// # Errors
    /// The errors of [`Wakeup::new`].
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            owner: Wakeup::new()?,
            stop: Arc::default(),
            at_once: Arc::default(),
            reload: Arc::default(),
            flush: Arc::default(),
            continued: Arc::default(),
        })
    }

    /// Requests an orderly end of the capture, as SIGTERM does.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.owner.wake();
    }

    /// Returns the flag that is set once the end of the capture is requested.
    #[must_use]
    pub fn stop_flag(&self) -> &Arc<AtomicBool> {
        &self.stop
    }

    /// Requests the end of the capture without waiting for the disk, as a second SIGINT does.
    pub fn stop_at_once(&self) {
        self.at_once.store(true, Ordering::Relaxed);
        self.owner.wake();
    }

    /// Requests a reload of the configuration on behalf of the sender `who` of a signal. Further
    /// requests until the reload is done are merged into one.
    pub fn reload(&self, who: Peer) {
        self.reload.ask(who);
        self.owner.wake();
    }

    /// Returns the sender of the signal that requested a reload since the last call. For a process
    /// without a supervised capture.
    #[must_use]
    pub fn take_reload(&self) -> Option<Peer> {
        self.reload.take()
    }

    /// Requests that all frames received so far are written to the capture files. Further requests
    /// until the flush is done are merged into one.
    pub fn flush(&self, who: Peer) {
        self.flush.ask(who);
        self.owner.wake();
    }

    /// Requests a check of how long the process was stopped, after it continues.
    pub fn continued(&self) {
        self.continued.store(true, Ordering::Relaxed);
        self.owner.wake();
    }
}

/// Pending request of a signal: the sender of the signal, or `None` if nothing is requested.
#[derive(Debug, Default)]
pub(super) struct PendingRequest(Mutex<Option<Peer>>);

impl PendingRequest {
    fn ask(&self, who: Peer) {
        *self.lock() = Some(who);
    }

    pub(super) fn take(&self) -> Option<Peer> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Peer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Supervisor {
    /// Handles requests of signals after which the capture continues to run: SIGCONT and SIGUSR2.
    pub(super) fn attend_to_signals(&self, live: &mut LiveCapture) {
        let LiveCapture {
            capture, flushing, ..
        } = live;
        if self.signals.continued.swap(false, Ordering::Relaxed)
            && let Some(stopped) = capture.take_stopped_time()
        {
            let note = format!(
                "the process was stopped (SIGSTOP, SIGTSTP) for at least {:.1} s; frames that did not fit into the rings are in the NIC's counters",
                stopped.as_secs_f64()
            );
            tracing::warn!("{note}");
            capture.note(note);
        }
        flushing.take_if(|it| it.report_if_over(capture));
        if flushing.is_none()
            && let Some(who) = self.signals.flush.take()
        {
            match capture.flush() {
                Some(number) => {
                    let since = Instant::now();
                    *flushing = Some(Flushing { who, number, since });
                }
                None => refuse_flush(&who, "this run writes no frames"),
            }
        }
    }

    /// Refuses requests of signals that need a capture, while no capture exists.
    pub(super) fn refuse_without_capture(&self) {
        self.signals.continued.store(false, Ordering::Relaxed);
        if let Some(who) = self.signals.flush.take() {
            refuse_flush(&who, "nothing is captured now, and all files are complete");
        }
    }
}
