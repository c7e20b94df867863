//! Answers to control commands.

use wqcap_control::protocol::{Changed, Refusal, RefusalCode};

/// Returns the answer to a control command that changed something; `now` describes the new state.
pub(super) fn changed(now: &str) -> Changed {
    Changed {
        changed: true,
        was: None,
        now: now.into(),
        id: None,
    }
}

/// Returns the answer to a control command that changed something; `was` and `now` describe the old
/// and the new state.
pub(super) fn replaced(was: impl ToString, now: &str) -> Changed {
    Changed {
        was: Some(was.to_string()),
        ..changed(now)
    }
}

/// Returns the answer to a control command that changes nothing; `now` describes the present state.
pub(super) fn same(now: &str) -> Changed {
    Changed {
        changed: false,
        ..changed(now)
    }
}

/// Returns the refusal of a control command whose execution failed, with the reason `message`.
pub(super) fn failed(message: String) -> Refusal {
    Refusal::new(RefusalCode::Failed, message)
}
