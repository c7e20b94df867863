//! Changes that wait for libpcap: a thread compiles and applies those of the owner in the order of
//! their requests, another one those of all others.
//!
//! Invariant: neither the threads of the control service nor the capture's owner wait for a
//! compilation. Its result is applied to the capture that exists afterwards. Filters of others,
//! which may take minutes, delay no change of the owner.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
    mpsc::{SyncSender, TrySendError, sync_channel},
};
use wqcap_control::{
    protocol::{Changed, Refusal, RefusalCode},
    server::Requester,
};
use wqcap_core::sync::thread::spawn;
use wqcap_engine::filter::FilterCompiler;

/// Maximum number of changes by the owner that wait for the compilation of their capture filter.
const MOST_OF_OWNER: usize = 64;
/// Maximum number of changes by other clients that wait for the compilation of their capture
/// filter.
const MOST_OF_OTHERS: usize = 8;

type Change = Box<dyn FnOnce(&FilterCompiler) + Send>;

/// Senders to the threads that execute changes with a capture filter to compile. A thread starts
/// with its first change, and ends when its sender is dropped.
#[derive(Default)]
pub(super) struct Compilations {
    of_owner: Mutex<Option<SyncSender<Change>>>,
    of_others: Mutex<Option<SyncSender<Change>>>,
}

impl Compilations {
    /// Queues a change of the capture for the thread that compiles filters, and passes the compiler
    /// to it.
    ///
    /// # Errors
    /// Too many changes wait for a compilation, or the thread cannot be started.
    pub(super) fn carry_out(
        &self,
        requester: Requester,
        change: impl FnOnce(&FilterCompiler) + Send + 'static,
    ) -> Result<(), Refusal> {
        let (changes, most) = match requester {
            Requester::Owner => (&self.of_owner, MOST_OF_OWNER),
            Requester::Other => (&self.of_others, MOST_OF_OTHERS),
        };
        let mut changes = changes.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &*changes {
            Some(sender) => sender,
            None => changes.insert(start(most)?),
        };
        match sender.try_send(Box::new(change)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => Err(Refusal::new(
                RefusalCode::TooMany,
                format!("{most} filter expressions already wait to be compiled; try again later"),
            )),
            Err(TrySendError::Disconnected(_)) => {
                *changes = None;
                Err(Refusal::new(
                    RefusalCode::Failed,
                    "the thread that compiles filters panicked; try again",
                ))
            }
        }
    }
}

/// Order of the requests for another capture filter. Their compilations may end in another order,
/// and a request must not replace the filter of a later one.
#[derive(Default)]
pub(super) struct FilterOrder {
    /// Number of requests for another capture filter.
    requested: AtomicU64,
    /// Number of the request whose filter was applied last; 0: none.
    applied: Mutex<u64>,
}

impl FilterOrder {
    /// Returns the number of a new request for another capture filter.
    pub(super) fn request(&self) -> u64 {
        self.requested.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Applies the filter of request `number` with `apply`.
    ///
    /// # Errors
    /// The filter of a later request was applied, or `apply` fails.
    pub(super) fn apply(
        &self,
        number: u64,
        apply: impl FnOnce() -> Result<Changed, Refusal>,
    ) -> Result<Changed, Refusal> {
        let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        if *applied > number {
            return Err(Refusal::new(
                RefusalCode::State,
                "a later request has changed the filter while this one was compiled",
            ));
        }
        let changed = apply()?;
        *applied = number;
        Ok(changed)
    }
}

fn start(most: usize) -> Result<SyncSender<Change>, Refusal> {
    let (sender, changes) = sync_channel::<Change>(most);
    let work = move || {
        let filters = FilterCompiler::default();
        changes.into_iter().for_each(|change| change(&filters));
    };
    spawn("wqcap-changes", work)
        .map(|_| sender)
        .map_err(|e| Refusal::new(RefusalCode::Failed, e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc::channel, time::Duration};

    #[test]
    fn changes_of_others_delay_no_change_of_the_owner() {
        let compilations = Compilations::default();
        let (release, held) = channel::<()>();
        let of_others = |change: Change| compilations.carry_out(Requester::Other, change);
        of_others(Box::new(move |_| _ = held.recv())).expect("taken");
        // The thread has at most one change in its hands.
        let waiting = (0..=MOST_OF_OTHERS).find_map(|_| of_others(Box::new(|_| ())).err());
        let refusal = waiting.expect("too many wait");
        assert_eq!(refusal.code, RefusalCode::TooMany);
        let (done, finished) = channel();
        compilations
            .carry_out(Requester::Owner, move |_| _ = done.send(()))
            .expect("taken");
        finished
            .recv_timeout(Duration::from_secs(60))
            .expect("done");
        drop(release);
    }

    #[test]
    fn a_filter_does_not_replace_that_of_a_later_request() {
        let order = FilterOrder::default();
        let [first, second, third] = [(); 3].map(|()| order.request());
        let failed = || Err(Refusal::new(RefusalCode::Failed, "no"));
        assert!(order.apply(third, failed).is_err());
        order
            .apply(second, || Ok(Changed::default()))
            .expect("the latest");
        let refused = order.apply(first, || panic!("must not be applied"));
        assert_eq!(refused.expect_err("later").code, RefusalCode::State);
        order
            .apply(third, || Ok(Changed::default()))
            .expect("the latest");
    }

    #[test]
    fn a_change_that_panics_is_reported_and_the_next_one_works() {
        let compilations = Compilations::default();
        compilations
            .carry_out(Requester::Owner, |_| panic!("a test's panic"))
            .expect("taken");
        let (done, finished) = channel();
        let after = || {
            let done = done.clone();
            compilations.carry_out(Requester::Owner, move |_| _ = done.send(()))
        };
        // Until the thread has ended, its queue takes changes.
        while !after().is_err_and(|it| it.code == RefusalCode::Failed) {
            std::thread::yield_now();
        }
        after().expect("a new thread takes it");
        finished
            .recv_timeout(Duration::from_secs(60))
            .expect("done");
    }
}
