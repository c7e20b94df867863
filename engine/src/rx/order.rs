//! Requests to a running loop. A ring has one owner, so whatever changes a WQ while it receives is done by its loop.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::{Sender, bounded};

/// How long a loop may take: a sleeping one wakes every 50 ms, one that waits for the disk later.
const TIMEOUT: Duration = Duration::from_secs(5);

/// One request.
struct Order {
    cvlan_stripping: bool,
    done: Sender<Result<(), crate::Error>>,
}

/// The requests to one loop: at most one at a time.
#[derive(Default)]
pub struct Orders {
    /// Read by the loop at each turn; the rest only when it is set.
    pending: AtomicBool,
    next: Mutex<Option<Order>>,
}

impl Orders {
    /// Has the loop turn the WQ's CVLAN stripping on or off, and waits until it is done.
    ///
    /// # Errors
    /// The verb's, or the loop does not answer: it has ended, or waits for the disk.
    pub fn cvlan_stripping(&self, on: bool) -> Result<(), crate::Error> {
        let (done, answer) = bounded(1);
        if let Ok(mut next) = self.next.lock() {
            *next = Some(Order {
                cvlan_stripping: on,
                done,
            });
        }
        self.pending.store(true, Ordering::Release);
        answer.recv_timeout(TIMEOUT).unwrap_or_else(|_| {
            // Nobody waits for the answer any more.
            if let Ok(mut next) = self.next.lock() {
                next.take();
            }
            Err(crate::Error::Device(
                "the queue's loop does not answer".into(),
            ))
        })
    }

    /// Whether there is anything to do.
    #[inline]
    pub(super) fn are_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Carries the request out.
    #[cold]
    pub(super) fn carry_out(&self, strip: impl FnOnce(bool) -> Result<(), crate::Error>) {
        self.pending.store(false, Ordering::Relaxed);
        let order = self.next.lock().ok().and_then(|mut next| next.take());
        if let Some(order) = order {
            // The caller may have given up.
            let _ = order.done.send(strip(order.cvlan_stripping));
        }
    }
}
