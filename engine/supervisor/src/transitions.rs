//! State machine of the supervisor as a table: the action of each event in each state, and the next
//! state.
//!
//! This module is pure: it only returns actions. The test at the end checks every event in every
//! state.

use wqcap_control::protocol::CaptureState;

/// Event that a supervisor handles: a command, a signal, or a change of the capture or its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The control command `start`.
    Start,
    /// The control command `drain`.
    Drain,
    /// The control command `stop`.
    Stop,
    /// The control command `shutdown`.
    Shutdown,
    /// The control command `reload`, or SIGHUP.
    Reload,
    /// A control command that changes the running capture: `rotate`, `rule`, `wq-flags`,
    /// `respread`.
    Change,
    /// Signal SIGINT or SIGTERM to the process.
    Signal,
    /// The capture ended by itself: a limit, the end of the wire, or a failure.
    CaptureEnded,
    /// The RDMA device is lost, and `device.on_loss = "retry"`.
    DeviceLost,
    /// The RDMA device is back, and a new capture continues from the report of the last one.
    DeviceBack,
    /// A limit of the run was reached while the device was lost.
    LimitReached,
}

/// Action of the supervisor on an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Answers a command that the requested state is already present.
    Same(&'static str),
    /// Refuses the control command with this reason.
    Refuse(&'static str),
    /// Executes the command's change of the running capture.
    Change,
    /// Reads the configuration again and applies the keys that a running capture can change.
    Reload,
    /// Removes the capture's flow rules and completes its files.
    Pause,
    /// Installs the capture's flow rules again.
    Resume,
    /// Starts a capture of the same plan.
    StartCapture,
    /// Ends the capture in order: removes flow rules, drains queues, completes files.
    Finish,
    /// Ends the search for the lost device; the report is that of the capture that lost it.
    GiveUp,
    /// Continues with the capture on the recovered device.
    GoOn,
    /// Does nothing: the event cannot happen in the supervisor's state, or has no effect.
    Ignore,
}

const RUNNING: &str = "the capture is running";
const DRAINED: &str = "the capture is drained";
const STOPPED: &str = "the capture is stopped";
const LOST: &str = "the device is lost; the capture continues automatically once it is back";
const NOTHING_RUNS: &str = "nothing is captured; `start` starts a capture";

/// Returns the supervisor's action on `event` in `state` and the next state; `None`: the supervisor
/// ends.
#[must_use]
pub const fn transition(state: CaptureState, event: Event) -> (Action, Option<CaptureState>) {
    use Action as A;
    use CaptureState::{Drained, Lost, Running, Stopped};
    use Event as E;
    match (state, event) {
        (Running, E::Start) => (A::Same(RUNNING), Some(Running)),
        (Running, E::Drain) => (A::Pause, Some(Drained)),
        (Running, E::DeviceLost) => (A::Finish, Some(Lost)),

        (Drained, E::Start) => (A::Resume, Some(Running)),
        (Drained, E::Drain) => (A::Same(DRAINED), Some(Drained)),
        // A drained capture receives no frames, so it is not continued: `start` captures again.
        (Drained, E::DeviceLost) => (A::Finish, Some(Stopped)),

        (Running | Drained, E::Change) => (A::Change, Some(state)),
        (Running | Drained, E::Stop) => (A::Finish, Some(Stopped)),
        (Running | Drained, E::Shutdown | E::Signal | E::CaptureEnded) => (A::Finish, None),

        (Stopped, E::Start) => (A::StartCapture, Some(Running)),
        (Stopped, E::Stop) => (A::Same(STOPPED), Some(Stopped)),
        (Stopped, E::Drain | E::Change) => (A::Refuse(NOTHING_RUNS), Some(Stopped)),
        (Stopped, E::Shutdown | E::Signal) => (A::Ignore, None),

        (Lost, E::Start) => (A::Same(LOST), Some(Lost)),
        (Lost, E::Drain | E::Change) => (A::Refuse(LOST), Some(Lost)),
        (Lost, E::Stop) => (A::GiveUp, Some(Stopped)),
        (Lost, E::Shutdown | E::Signal | E::LimitReached) => (A::GiveUp, None),
        (Lost, E::DeviceBack) => (A::GoOn, Some(Running)),

        (_, E::Reload) => (A::Reload, Some(state)),

        (Running | Drained, E::DeviceBack | E::LimitReached)
        | (Stopped, E::CaptureEnded | E::DeviceLost | E::DeviceBack | E::LimitReached)
        | (Lost, E::CaptureEnded | E::DeviceLost) => (A::Ignore, Some(state)),
    }
}

/// Returns why a command that needs a capture is refused in `state`; `None`: there is a capture.
#[must_use]
pub const fn refusal(state: CaptureState) -> Option<&'static str> {
    match transition(state, Event::Change) {
        (Action::Refuse(why), _) => Some(why),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CaptureState::{Drained, Lost, Running, Stopped};

    const EVENTS: [Event; 11] = [
        Event::Start,
        Event::Drain,
        Event::Stop,
        Event::Shutdown,
        Event::Reload,
        Event::Change,
        Event::Signal,
        Event::CaptureEnded,
        Event::DeviceLost,
        Event::DeviceBack,
        Event::LimitReached,
    ];

    /// Action and next state for each of [`EVENTS`], by the supervisor's state; `end`: the
    /// supervisor ends.
    const EXPECTED: [(CaptureState, [&str; 11]); 4] = [
        (
            Running,
            [
                "same running",
                "pause drained",
                "finish stopped",
                "finish end",
                "reload running",
                "change running",
                "finish end",
                "finish end",
                "finish lost",
                "ignore running",
                "ignore running",
            ],
        ),
        (
            Drained,
            [
                "resume running",
                "same drained",
                "finish stopped",
                "finish end",
                "reload drained",
                "change drained",
                "finish end",
                "finish end",
                "finish stopped",
                "ignore drained",
                "ignore drained",
            ],
        ),
        (
            Stopped,
            [
                "startcapture running",
                "refuse stopped",
                "same stopped",
                "ignore end",
                "reload stopped",
                "refuse stopped",
                "ignore end",
                "ignore stopped",
                "ignore stopped",
                "ignore stopped",
                "ignore stopped",
            ],
        ),
        (
            Lost,
            [
                "same lost",
                "refuse lost",
                "giveup stopped",
                "giveup end",
                "reload lost",
                "refuse lost",
                "giveup end",
                "ignore lost",
                "ignore lost",
                "goon running",
                "giveup end",
            ],
        ),
    ];

    #[test]
    fn every_event_in_every_state_has_the_expected_transition() {
        for (state, row) in EXPECTED {
            for (event, expected) in EVENTS.into_iter().zip(row) {
                let (action, next) = transition(state, event);
                let action = format!("{action:?}").to_lowercase();
                let action = action.split('(').next().unwrap_or_default();
                let next = next.map_or("end".into(), |it| format!("{it:?}").to_lowercase());
                assert_eq!(format!("{action} {next}"), expected, "{state:?} {event:?}");
            }
        }
    }

    #[test]
    fn every_state_can_be_left_for_running_and_for_the_end() {
        for (state, _) in EXPECTED {
            let mut reached = vec![state];
            let mut ends = false;
            let mut at = 0;
            while at < reached.len() {
                for event in EVENTS {
                    match transition(reached[at], event).1 {
                        None => ends = true,
                        Some(next) if !reached.contains(&next) => reached.push(next),
                        Some(_) => {}
                    }
                }
                at += 1;
            }
            assert!(ends && reached.contains(&Running), "{state:?}: {reached:?}");
        }
    }

    #[test]
    fn a_command_that_needs_a_capture_is_refused_without_one() {
        assert_eq!(refusal(Running), None);
        assert_eq!(refusal(Drained), None);
        assert!(refusal(Stopped).is_some_and(|why| why.contains("`start`")));
        assert!(refusal(Lost).is_some_and(|why| why.contains("once it is back")));
    }
}
