//! State machine of the supervisor as a table: the action of each event in each state, and the next
//! state.
//!
//! This module is pure: it only returns actions, which [`machine`](super::machine) executes. The
//! test at the end checks every event in every state.

use wqcap_control::protocol::CaptureState;

/// Event that a supervisor handles: a command, a signal, or a change of the capture or its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A client sent the control command `start`.
    Start,
    /// A client sent the control command `drain`.
    Drain,
    /// A client sent the control command `stop`.
    Stop,
    /// A client sent the control command `shutdown`.
    Shutdown,
    /// A client sent the control command `reload`, or the process got SIGHUP.
    Reload,
    /// The configuration was read again, and its capture filter is compiled.
    Reloaded,
    /// A control command that changes the running capture: `rotate`, `rule-add`, `rule-remove`,
    /// `wq-flags`, `respread`.
    Change,
    /// The process got signal SIGINT or SIGTERM.
    Signal,
    /// The capture ended by itself: a limit was reached, its traffic source ended, or it failed.
    CaptureEnded,
    /// The RDMA device is lost, and `device.on_loss = "retry"`.
    DeviceLost,
    /// The next attempt to find the lost RDMA device is due.
    AttemptDue,
    /// A limit of the capture run was reached while the device was lost.
    LimitReached,
    /// The capture failed while it was stopped by the control command `stop`.
    StopFailed,
}

/// Action of the supervisor on an event, such as a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Answers the command that the capture already has the requested state.
    Same(&'static str),
    /// Refuses the control command with this text as the reason.
    Refuse(&'static str),
    /// Executes the change of the capture that comes with the event.
    Change,
    /// Reads the configuration again. Once its capture filter is compiled, [`Event::Reloaded`]
    /// follows.
    Reload,
    /// Removes the flow rules of the running capture, and completes its files.
    Pause,
    /// Installs the flow rules of the drained capture again.
    Resume,
    /// Starts a new capture with the plan of the stopped one.
    StartCapture,
    /// Ends the capture in order: removes flow rules, drains queues, completes files.
    Finish,
    /// Ends the search for the lost device; the run's report is that of the capture that lost the
    /// device.
    GiveUp,
    /// Starts a capture on the device that was lost, which continues from the report of the last
    /// capture.
    Recover,
    /// Ends the supervisor while no capture exists.
    End,
    /// Does nothing, because the event cannot happen in the supervisor's state, or has no effect in
    /// it.
    Ignore,
}

impl Action {
    /// Returns `true` if executing the action can fail. After a failure the supervisor keeps its
    /// state.
    pub(super) const fn can_fail(self) -> bool {
        matches!(self, Self::Resume | Self::StartCapture | Self::Recover)
    }
}

const RUNNING: &str = "the capture is running";
const DRAINED: &str = "the capture is drained";
const STOPPED: &str = "the capture is stopped";
const LOST: &str = "the device is lost; the capture continues automatically once it is back";
const NOTHING_RUNS: &str = "nothing is captured; `start` starts a capture";

/// Returns the supervisor's action on `event` in `state` and the state after it; `None`: the
/// supervisor ends.
#[must_use]
pub(super) const fn transition(
    state: CaptureState,
    event: Event,
) -> (Action, Option<CaptureState>) {
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
        (Stopped, E::Shutdown | E::Signal | E::StopFailed) => (A::End, None),

        (Lost, E::Start) => (A::Same(LOST), Some(Lost)),
        (Lost, E::Drain | E::Change) => (A::Refuse(LOST), Some(Lost)),
        (Lost, E::Stop) => (A::GiveUp, Some(Stopped)),
        (Lost, E::Shutdown | E::Signal | E::LimitReached) => (A::GiveUp, None),
        (Lost, E::AttemptDue) => (A::Recover, Some(Running)),

        (_, E::Reload) => (A::Reload, Some(state)),
        // Without a capture only a configuration that changes nothing is accepted.
        (_, E::Reloaded) => (A::Change, Some(state)),

        (Running | Drained, E::AttemptDue | E::LimitReached | E::StopFailed)
        | (Stopped, E::CaptureEnded | E::DeviceLost | E::AttemptDue | E::LimitReached)
        | (Lost, E::CaptureEnded | E::DeviceLost | E::StopFailed) => (A::Ignore, Some(state)),
    }
}

/// Returns the reason why a command that needs a capture is refused in `state`; `None`: a capture
/// exists.
#[must_use]
pub(super) const fn refusal(state: CaptureState) -> Option<&'static str> {
    match transition(state, Event::Change) {
        (Action::Refuse(why), _) => Some(why),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CaptureState::{Drained, Lost, Running, Stopped};

    const EVENTS: [Event; 13] = [
        Event::Start,
        Event::Drain,
        Event::Stop,
        Event::Shutdown,
        Event::Reload,
        Event::Reloaded,
        Event::Change,
        Event::Signal,
        Event::CaptureEnded,
        Event::DeviceLost,
        Event::AttemptDue,
        Event::LimitReached,
        Event::StopFailed,
    ];

    /// Action and next state for each of [`EVENTS`], by the supervisor's state; `end`: the
    /// supervisor ends.
    const EXPECTED: [(CaptureState, [&str; 13]); 4] = [
        (
            Running,
            [
                "same running",
                "pause drained",
                "finish stopped",
                "finish end",
                "reload running",
                "change running",
                "change running",
                "finish end",
                "finish end",
                "finish lost",
                "ignore running",
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
                "change drained",
                "finish end",
                "finish end",
                "finish stopped",
                "ignore drained",
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
                "end end",
                "reload stopped",
                "change stopped",
                "refuse stopped",
                "end end",
                "ignore stopped",
                "ignore stopped",
                "ignore stopped",
                "ignore stopped",
                "end end",
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
                "change lost",
                "refuse lost",
                "giveup end",
                "ignore lost",
                "ignore lost",
                "recover running",
                "giveup end",
                "ignore lost",
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

    /// A phase of the machine has the objects that its actions need, and no others.
    #[test]
    fn an_action_is_requested_only_in_states_that_have_its_objects() {
        for (state, _) in EXPECTED {
            for event in EVENTS {
                let (action, next) = transition(state, event);
                let (from, to): (&[_], &[_]) = match action {
                    Action::Same(_) | Action::Refuse(_) | Action::Ignore => {
                        (&[state], &[Some(state)])
                    }
                    Action::Change | Action::Reload => (&[state], &[Some(state)]),
                    Action::Pause => (&[Running], &[Some(Drained)]),
                    Action::Resume => (&[Drained], &[Some(Running)]),
                    Action::StartCapture => (&[Stopped], &[Some(Running)]),
                    Action::Finish => (&[Running, Drained], &[Some(Lost), Some(Stopped), None]),
                    Action::GiveUp => (&[Lost], &[Some(Stopped), None]),
                    Action::Recover => (&[Lost], &[Some(Running)]),
                    Action::End => (&[Stopped], &[None]),
                };
                assert!(
                    from.contains(&state) && to.contains(&next),
                    "{state:?} {event:?}"
                );
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
