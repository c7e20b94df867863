//! Events of a supervisor with what their senders gave: a change of the capture, and the channel for
//! the answer.

use super::{Supervisor, transitions::Event};
use wqcap_control::{
    protocol::{Changed, Refusal},
    server::ChangeReply,
};
use wqcap_engine::{capture::Capture, plan::Plan};

/// Answer to a control command.
pub(super) type Outcome = Result<Changed, Refusal>;

/// Change that an order carries. The capture's owner executes it, with the capture and its plan if
/// there is one.
pub(super) type Work =
    Box<dyn FnOnce(&mut Supervisor, Option<(&mut Capture, &Plan)>) -> Outcome + Send>;

/// Event that a supervisor handles, with what its sender gave.
pub(super) struct Occurrence {
    pub(super) event: Event,
    /// Change that the order carries, for `Action::Change`.
    pub(super) work: Option<Work>,
    /// Reply to the order; `None`: the event is not an order.
    pub(super) reply: Option<ChangeReply>,
}

impl From<Event> for Occurrence {
    /// Creates an event that is not an order.
    fn from(event: Event) -> Self {
        Self {
            event,
            work: None,
            reply: None,
        }
    }
}
