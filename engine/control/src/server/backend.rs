//! Interface of what the control service controls: a capture, or a stand-in for one.
//!
//! Invariant: no function here blocks. A backend returns snapshots and passes changes on to the
//! thread that owns the capture, which sends the outcome through [`ChangeReply`] when it is known.

use crate::protocol::{CaptureStatus, Changed, Command, Refusal, RefusalCode, Stats};
use serde_json::Value;

/// Capture that the control service controls, or a stand-in for one.
pub trait Backend: Send + Sync {
    /// Returns the state of the capture.
    fn status(&self) -> CaptureStatus;
    /// Returns the current counters of the capture and of the NIC.
    fn stats(&self) -> Stats;
    /// Returns the RDMA devices of the machine.
    ///
    /// # Errors
    /// The devices cannot be listed.
    fn devices(&self) -> Result<Value, Refusal>;
    /// Returns the plan of the capture as it is in force now.
    ///
    /// # Errors
    /// No plan exists.
    fn plan(&self) -> Result<Value, Refusal>;
    /// Carries out a change of the capture, now or later. Returns at once.
    fn change(&self, command: &Command, reply: ChangeReply);
}

/// Who requests a change: work that takes long for one kind does not delay the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// The owner of the capture process, root, or a signal.
    Owner,
    /// A member of a group, or a client with a key.
    Other,
}

/// Reply to a change: sends its outcome to the client that requested it, from any thread. If it is
/// dropped unsent, it reports that the capture has ended.
pub struct ChangeReply {
    requester: Requester,
    receiver: Option<Receiver>,
}

type Receiver = Box<dyn FnOnce(Result<Changed, Refusal>) + Send>;

impl ChangeReply {
    /// Creates a reply to a change of `requester` that calls `receiver` with the outcome.
    pub fn new(
        requester: Requester,
        receiver: impl FnOnce(Result<Changed, Refusal>) + Send + 'static,
    ) -> Self {
        Self {
            requester,
            receiver: Some(Box::new(receiver)),
        }
    }

    /// Returns who requested the change.
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
