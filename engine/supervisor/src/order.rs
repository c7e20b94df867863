//! Events of a supervisor with what their senders gave: a change of the capture, and the channel for
//! the answer.

use super::{Supervisor, transitions::Event};
use wqcap_control::{
    protocol::{Changed, Refusal},
    server::ChangeReply,
};
use wqcap_engine::{capture::Capture, plan::Plan};

/// Outcome of a control command: its answer, or the refusal.
pub(super) type Outcome = Result<Changed, Refusal>;

/// Function with a change that a control command requests. The capture's owner calls it, with the
/// capture and its plan if a capture exists.
pub(super) type Work =
    Box<dyn FnOnce(&mut Supervisor, Option<(&mut Capture, &Plan)>) -> Outcome + Send>;

/// Event that a supervisor handles, with the change and the channel for the answer from its sender.
pub(super) struct Occurrence {
    pub(super) event: Event,
    /// Change of the running capture that a control command requests; only for `Action::Change`.
    pub(super) work: Option<Work>,
    /// Channel for the answer to the command; `None`: the event is not a command.
    pub(super) reply: Option<ChangeReply>,
}

impl From<Event> for Occurrence {
    /// Creates an event that is not a command and gets no answer.
    fn from(event: Event) -> Self {
        Self {
            event,
            work: None,
            reply: None,
        }
    }
}
