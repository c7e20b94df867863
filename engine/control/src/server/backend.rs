//! Interface of what the control service controls: a capture, or a stand-in for one.
//!
//! Invariant: no function here blocks. A backend returns snapshots and passes changes on to the
//! thread that owns the capture, which sends the outcome through [`ChangeReply`] when it is known.

use crate::protocol::{CaptureStatus, Changed, Command, Refusal, RefusalCode, Stats};
use serde_json::Value;

/// Capture that the control service controls, or a stand-in for one.
pub trait Backend: Send + Sync {
    /// Returns the present state of the capture.
    fn status(&self) -> CaptureStatus;
    /// Returns the current counters of the capture and of the NIC.
    fn stats(&self) -> Stats;
    /// Returns the RDMA devices of the machine as JSON.
    ///
    /// # Errors
    /// The devices cannot be listed.
    fn devices(&self) -> Result<Value, Refusal>;
    /// Returns the plan of the capture that is in force now, as JSON.
    ///
    /// # Errors
    /// The capture has no plan.
    fn plan(&self) -> Result<Value, Refusal>;
    /// Carries out a change of the capture, or passes it to the capture's owner. Returns at once;
    /// the outcome is sent to `reply`.
    fn change(&self, command: &Command, reply: ChangeReply);
}

/// Kind of the sender that requests a change: changes of one kind that take long do not delay those
/// of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// The change is requested by the owner of the capture process, by root, or by a signal.
    Owner,
    /// The change is requested by a member of a configured group, or by an RDMA client with a key.
    Other,
}

/// Reply to a requested change, through which any thread sends the outcome to the client. If it is
/// dropped unsent, it reports that the capture has ended.
pub struct ChangeReply {
    requester: Requester,
    receiver: Option<Receiver>,
}

type Receiver = Box<dyn FnOnce(Result<Changed, Refusal>) + Send>;

impl ChangeReply {
    /// Creates a reply to a change that `requester` requests. The reply calls `receiver` with the
    /// outcome.
    pub fn new(
        requester: Requester,
        receiver: impl FnOnce(Result<Changed, Refusal>) + Send + 'static,
    ) -> Self {
        Self {
            requester,
            receiver: Some(Box::new(receiver)),
        }
    }

    /// Returns the kind of the sender that requested the change.
    #[must_use]
    pub fn requester(&self) -> Requester {
        self.requester
    }

    /// Sends the outcome of the change to the client that requested it.
    pub fn send(mut self, outcome: Result<Changed, Refusal>) {
        if let Some(receiver) = self.receiver.take() {
            receiver(outcome);
        }
    }
}

impl Drop for ChangeReply {
    fn drop(&mut self) {
        if let Some(receiver) = self.receiver.take() {
            receiver(Err(Refusal::new(
                RefusalCode::State,
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
    fn an_outcome_is_sent_exactly_once() {
        let (sender, outcomes) = mpsc::channel();
        let reply = || {
            let sender = sender.clone();
            ChangeReply::new(Requester::Owner, move |outcome| {
                sender.send(outcome).unwrap()
            })
        };
        reply().send(Ok(Changed::default()));
        assert_eq!(outcomes.try_recv().unwrap(), Ok(Changed::default()));
        drop(reply());
        let refusal = outcomes.try_recv().unwrap().unwrap_err();
        assert_eq!(refusal.code, RefusalCode::State);
        assert!(outcomes.try_recv().is_err());
    }
}
