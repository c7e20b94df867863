//! Changes that wait for libpcap: one thread compiles and applies them in the order of their
//! requests.
//!
//! Invariant: neither the threads of the control service nor the capture's owner wait for a
//! compilation. Its result is applied to the capture that exists afterwards.

use std::sync::{
    Mutex, PoisonError,
    mpsc::{SyncSender, TrySendError, sync_channel},
};
use wqcap_control::protocol::{Refusal, RefusalCode};
use wqcap_core::sync::thread::spawn;
use wqcap_engine::filter::FilterCompiler;

/// Maximum number of changes that wait for the compilation of their capture filter.
const MOST_WAITING: usize = 64;

type Change = Box<dyn FnOnce(&FilterCompiler) + Send>;

/// Sender to the thread that executes changes with a filter to compile. The thread starts with the
/// first change and ends when the sender is dropped.
#[derive(Default)]
pub(super) struct Compilations(Mutex<Option<SyncSender<Change>>>);

impl Compilations {
    /// Executes a change of the capture on the thread that compiles filters, with its compiler.
    ///
    /// # Errors
    /// Too many changes wait, or the thread cannot be started.
    pub(super) fn carry_out(
        &self,
        change: impl FnOnce(&FilterCompiler) + Send + 'static,
    ) -> Result<(), Refusal> {
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &*changes {
            Some(sender) => sender,
            None => changes.insert(start()?),
        };
        match sender.try_send(Box::new(change)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => Err(Refusal::new(
                RefusalCode::TooMany,
                format!(
                    "{MOST_WAITING} filter expressions already wait to be compiled; try again later"
                ),
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

fn start() -> Result<SyncSender<Change>, Refusal> {
    let (sender, changes) = sync_channel::<Change>(MOST_WAITING);
    let work = move || {
        let filters = FilterCompiler::default();
        changes.into_iter().for_each(|change| change(&filters));
    };
    spawn("wqcap-changes", work)
        .map(|_| sender)
        .map_err(|e| Refusal::new(RefusalCode::Failed, e.to_string()))
}
