//! What the control service controls, seen from the service: a capture, or whatever answers in its place.
//!
//! Invariant: nothing here blocks. A backend hands over snapshots and passes changes on to the thread that owns the
//! capture; that one tells the outcome through [`Done`] when it is known.

use super::message::{CaptureStatus, Changed, Code, Command, Refusal, Stats};
use serde_json::Value;

/// What is controlled.
pub trait Backend: Send + Sync {
    /// State of the capture; `log` is the backend's to fill in.
    fn status(&self) -> CaptureStatus;
    /// The ledger as it stands.
    fn stats(&self) -> Stats;
    /// The machine's RDMA devices.
    ///
    /// # Errors
    /// They cannot be listed.
    fn devices(&self) -> Result<Value, Refusal>;
    /// What is captured and how.
    ///
    /// # Errors
    /// There is no plan.
    fn plan(&self) -> Result<Value, Refusal>;
    /// Carries out a command that changes something, now or soon. Returns at once.
    fn change(&self, command: &Command, done: Done);
}

/// Tells the outcome of a change, from any thread. Dropped untold, it tells that nobody is left to carry it out.
pub struct Done(Option<Tell>);

type Tell = Box<dyn FnOnce(Result<Changed, Refusal>) + Send>;

impl Done {
    /// Tells `tell`.
    pub fn new(tell: impl FnOnce(Result<Changed, Refusal>) + Send + 'static) -> Self {
        Self(Some(Box::new(tell)))
    }

    /// This is the outcome.
    pub fn tell(mut self, outcome: Result<Changed, Refusal>) {
        if let Some(tell) = self.0.take() {
            tell(outcome);
        }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            tell(Err(Refusal::new(
                Code::State,
                "the capture has ended; nothing was changed",
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn an_outcome_is_told_once_whatever_happens() {
        let (sender, told) = mpsc::channel();
        let done = || {
            let sender = sender.clone();
            Done::new(move |outcome| sender.send(outcome).unwrap())
        };
        done().tell(Ok(Changed::default()));
        assert_eq!(told.try_recv().unwrap(), Ok(Changed::default()));
        drop(done());
        assert_eq!(told.try_recv().unwrap().unwrap_err().code, Code::State);
        assert!(told.try_recv().is_err());
    }
}
