//! Requests to a running receive loop. A ring has one owner, so a change of a WQ that is receiving
//! is made by its loop.

use crate::error::RxError;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

/// Time limit for a receive loop to carry out a request. A sleeping loop wakes every 50 ms; a loop
/// that waits for the disk may wake later.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Request to a receive loop to modify its WQ, which stays.
struct LoopRequest {
    /// `true` turns the WQ's CVLAN stripping on, `false` off.
    cvlan_stripping: bool,
    /// Channel for the result of a request to a receive loop.
    done: Sender<Result<(), RxError>>,
}

/// Mailbox for requests to one receive loop, with room for one request.
pub struct LoopRequests {
    queue: u16,
    /// Set when the mailbox holds a request to the loop. The loop reads this flag at each turn and
    /// locks `next` only when the flag is set.
    pending: AtomicBool,
    next: Mutex<Option<LoopRequest>>,
    /// Set when the queue's port is lost and the loop leaves its ring.
    leaves: AtomicBool,
}

impl LoopRequests {
    /// Creates an empty mailbox for the receive loop of queue `queue`.
    #[must_use]
    pub fn new(queue: u16) -> Self {
        Self {
            queue,
            pending: AtomicBool::default(),
            next: Mutex::default(),
            leaves: AtomicBool::default(),
        }
    }

    /// Requests that the receive loop turns its WQ's CVLAN stripping on or off, and waits for the
    /// result.
    ///
    /// # Errors
    /// The verb failed, or the loop did not carry out the request in time: it has ended, or waits for
    /// the disk.
    pub fn cvlan_stripping(&self, on: bool) -> Result<(), RxError> {
        let (done, answer) = bounded(1);
        if let Ok(mut next) = self.next.lock() {
            *next = Some(LoopRequest {
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
        // The loop has taken the request and is carrying it out.
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

    /// Requests that the receive loop leaves its ring, whose port is lost, once it has drained the
    /// ring.
    pub fn leave_ring(&self) {
        self.leaves.store(true, Ordering::Release);
    }

    /// Returns `true` if the receive loop is to leave its drained ring, once for each request.
    #[inline]
    pub(super) fn take_leave(&self) -> bool {
        self.leaves.load(Ordering::Relaxed) && self.leaves.swap(false, Ordering::AcqRel)
    }

    /// Returns `true` if the mailbox holds a request to the receive loop.
    #[inline]
    pub(super) fn are_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Takes the request out of the loop's mailbox and carries it out with `strip`, which turns the
    /// WQ's CVLAN stripping on or off.
    #[cold]
    pub(super) fn carry_out(&self, strip: impl FnOnce(bool) -> Result<(), RxError>) {
        self.pending.store(false, Ordering::Relaxed);
        let order = self.next.lock().ok().and_then(|mut next| next.take());
        if let Some(order) = order {
            // The caller may have stopped waiting.
            let _ = order.done.send(strip(order.cvlan_stripping));
        }
    }
}
