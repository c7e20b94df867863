//! What signals ask of a supervised capture, from whatever thread reads them.
//!
//! Invariant: a request is set before the capture's owner is woken.

use super::{Supervisor, changed};
use crate::{
    capture::Capture,
    control::{
        audit::{self, Peer},
        protocol::{Changed, Refusal, RefusalCode},
    },
    sync::wakeup::Wakeup,
};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Time between two checks whether a flush is over.
const FLUSH_CHECK: Duration = Duration::from_millis(20);
/// Name of a flush in the audit trail.
const FLUSH: &str = "SIGUSR2: flush";

/// What signals ask for.
#[derive(Clone, Debug)]
pub struct Signals {
    /// Woken once one of the others is set.
    pub(super) owner: Wakeup,
    /// End in order: SIGINT, SIGTERM.
    pub(super) stop: Arc<AtomicBool>,
    /// End without waiting for the disk: SIGINT again. Blocks that are not being written yet are lost, and counted so.
    pub(super) at_once: Arc<AtomicBool>,
    /// Read the configuration again: SIGHUP.
    pub(super) reload: Arc<Request>,
    /// Write everything received so far into the files: SIGUSR2.
    flush: Arc<Request>,
    /// The process was continued: SIGCONT.
    continued: Arc<AtomicBool>,
}

impl Signals {
    /// Nothing is asked for.
    ///
    /// # Errors
    /// As [`Wakeup::new`].
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

    /// Asks for the end in order.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.owner.wake();
    }

    /// Set once the end is asked for.
    #[must_use]
    pub fn stop_flag(&self) -> &Arc<AtomicBool> {
        &self.stop
    }

    /// Asks for the end without waiting for the disk.
    pub fn stop_at_once(&self) {
        self.at_once.store(true, Ordering::Relaxed);
        self.owner.wake();
    }

    /// Asks for the configuration to be read again. Requests that come before it is done are one.
    pub fn reload(&self, who: Peer) {
        self.reload.ask(who);
        self.owner.wake();
    }

    /// Asks for everything received so far to be written into the files. Requests that come before it is done are one.
    pub fn flush(&self, who: Peer) {
        self.flush.ask(who);
        self.owner.wake();
    }

    /// Reports that the process continues, after it may have been stopped.
    pub fn continued(&self) {
        self.continued.store(true, Ordering::Relaxed);
        self.owner.wake();
    }
}

/// A request, with the sender of its signal.
#[derive(Debug, Default)]
pub(super) struct Request(Mutex<Option<Peer>>);

impl Request {
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

/// A flush under way.
pub(super) struct Flushing {
    who: Peer,
    number: u64,
    since: Instant,
}

impl Flushing {
    /// When its end is to be checked for.
    pub(super) fn due(flushing: Option<&Self>, other: Instant) -> Instant {
        flushing.map_or(other, |_| other.min(Instant::now() + FLUSH_CHECK))
    }

    /// Writes to the audit trail that the run ended first.
    pub(super) fn ends_with_the_run(self) {
        let why = "the run ends, which completes the files";
        let refusal = Refusal::new(RefusalCode::State, why);
        audit::outcome(&self.who, FLUSH, &Err(refusal));
    }

    fn is_over(&self, capture: &Capture) -> bool {
        let is_over = capture.has_flushed(self.number);
        if is_over {
            audit::outcome(&self.who, FLUSH, &Ok(self.outcome()));
        }
        is_over
    }

    fn outcome(&self) -> Changed {
        changed(&format!(
            "all frames received before it are in the files, {} ms after it",
            self.since.elapsed().as_millis()
        ))
    }
}

impl Supervisor {
    /// Carries out requests of signals that leave the capture running.
    pub(super) fn attend_to_signals(
        &mut self,
        capture: &mut Capture,
        flushing: &mut Option<Flushing>,
    ) {
        if self.signals.continued.swap(false, Ordering::Relaxed)
            && let Some(stopped) = capture.take_stop()
        {
            let note = format!(
                "the process was stopped (SIGSTOP, SIGTSTP) for {:.1} s at least; frames that found no room in the rings meanwhile are in the NIC's counters",
                stopped.as_secs_f64()
            );
            tracing::warn!("{note}");
            capture.note(note);
        }
        if flushing.as_ref().is_some_and(|it| it.is_over(capture)) {
            *flushing = None;
        }
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

    /// Answers requests that take a capture, while there is none.
    pub(super) fn refuse_what_takes_a_capture(&self) {
        self.signals.continued.store(false, Ordering::Relaxed);
        if let Some(who) = self.signals.flush.take() {
            refuse_flush(&who, "nothing is captured now, and all files are complete");
        }
    }
}

fn refuse_flush(who: &Peer, why: &str) {
    audit::outcome(who, FLUSH, &Err(Refusal::new(RefusalCode::State, why)));
}
