//! Requests to a running loop. A ring has one owner, so whatever changes a WQ while it receives is done by its loop.

use crate::error::RxError;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

/// How long a loop may take: a sleeping one wakes every 50 ms, one that waits for the disk later.
const TIMEOUT: Duration = Duration::from_secs(5);

/// One request.
struct Order {
    cvlan_stripping: bool,
    done: Sender<Result<(), RxError>>,
}

/// The requests to one loop: at most one at a time.
pub struct Orders {
    queue: u16,
    /// Read by the loop at each turn; the rest only when it is set.
    pending: AtomicBool,
    next: Mutex<Option<Order>>,
}

impl Orders {
    /// To the loop of this queue.
    #[must_use]
    pub fn new(queue: u16) -> Self {
        Self {
            queue,
            pending: AtomicBool::default(),
            next: Mutex::default(),
        }
    }

    /// Has the loop turn the WQ's CVLAN stripping on or off, and waits until it is done.
    ///
    /// # Errors
    /// The verb's, or the loop does not answer: it has ended, or waits for the disk.
    pub fn cvlan_stripping(&self, on: bool) -> Result<(), RxError> {
        let (done, answer) = bounded(1);
        if let Ok(mut next) = self.next.lock() {
            *next = Some(Order {
                cvlan_stripping: on,
                done,
            });
        }
        self.pending.store(true, Ordering::Release);
        let late = match answer.recv_timeout(TIMEOUT) {
            Ok(done) => return done,
            Err(late) => late,
        };
        let withdrawn = self.next.lock().ok().and_then(|mut next| next.take());
        // Not there any more: the loop is at it.
        if withdrawn.is_none()
            && late == RecvTimeoutError::Timeout
            && let Ok(done) = answer.recv()
        {
            return done;
        }
        Err(RxError::NoAnswer {
            queue: self.queue,
            seconds: TIMEOUT.as_secs(),
        })
    }

    /// Whether there is anything to do.
    #[inline]
    pub(super) fn are_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Carries the request out.
    #[cold]
    pub(super) fn carry_out(&self, strip: impl FnOnce(bool) -> Result<(), RxError>) {
        self.pending.store(false, Ordering::Relaxed);
        let order = self.next.lock().ok().and_then(|mut next| next.take());
        if let Some(order) = order {
            // The caller may have given up.
            let _ = order.done.send(strip(order.cvlan_stripping));
        }
    }
}
