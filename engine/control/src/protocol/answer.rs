//! Answers from the service to a client.

use super::{Stats, VERSION, status::Status};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Answer to a control request: its outcome, or one more `stats` of a subscription.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// Protocol version of the answer, [`VERSION`].
    pub version: u32,
    /// Number of the answered request; 0 if the message had no readable number.
    pub id: u64,
    /// Outcome of the answered request.
    #[serde(flatten)]
    pub outcome: AnswerOutcome,
}

/// Outcome of a control request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerOutcome {
    /// The request was carried out, with this result.
    Ok(AnswerBody),
    /// The request was refused or failed, and nothing has changed.
    Error(Refusal),
}

/// Result of a control command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerBody {
    /// Result of the command `status`.
    Status(Box<Status>),
    /// Result of the command `stats`, and of each interval of `subscribe`.
    Stats(Box<Stats>),
    /// Result of the command `devices`.
    Devices(Value),
    /// Result of the command `plan`.
    Plan(Value),
    /// Result of the command `subscribe`.
    Subscribed {
        /// Interval of the subscription in force, in milliseconds.
        interval_ms: u32,
    },
    /// Result of every command that changes something.
    Changed(Changed),
}

/// Result of a command that changes something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    /// `false` if the state that the command requests was already in force.
    pub changed: bool,
    /// Previous value as text, if the command replaced a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
    /// State after the command, as text.
    pub now: String,
    /// ID of the new mark; for the command `mark` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// Refusal: the reason for which a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// Kind of refusal, for programs.
    pub code: RefusalCode,
    /// Message of the refusal for people: the value, the limit, and the remedy.
    pub message: String,
}

impl Refusal {
    /// Creates a refusal of the kind `code`.
    #[must_use]
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// Kinds of refusals of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RefusalCode {
    /// The message is not a valid request in this protocol version, or a value is out of range.
    Malformed,
    /// The message is longer than the control service accepts.
    TooLarge,
    /// The client has more requests or connections than one client may have.
    TooMany,
    /// The client has no right to send this request.
    Denied,
    /// The command is not possible in the capture's current state.
    State,
    /// The capture, its device or this build of wqcap does not support the command.
    Unsupported,
    /// The command was attempted and failed.
    Failed,
}

impl Answer {
    /// Creates the answer to request `id` with its result or refusal.
    #[must_use]
    pub fn new(id: u64, result: Result<AnswerBody, Refusal>) -> Self {
        Self {
            version: VERSION,
            id,
            outcome: result.map_or_else(AnswerOutcome::Error, AnswerOutcome::Ok),
        }
    }

    /// Creates the answer to request `id` with a refusal.
    #[must_use]
    pub fn error(id: u64, refusal: Refusal) -> Self {
        Self::new(id, Err(refusal))
    }

    /// Returns the answer as JSON without a line break.
    #[must_use]
    pub fn text(&self) -> String {
        // Maps with string keys always serialise; a float that is not a number becomes null.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_round_trip() {
        for answer in [
            Answer::new(
                1,
                Ok(AnswerBody::Changed(Changed {
                    changed: true,
                    was: Some("running".into()),
                    now: "stopped".into(),
                    id: None,
                })),
            ),
            Answer::new(2, Ok(AnswerBody::Stats(Box::default()))),
            Answer::error(3, Refusal::new(RefusalCode::Denied, "no\nline breaks")),
        ] {
            let text = answer.text();
            assert!(!text.contains('\n'));
            assert_eq!(serde_json::from_str::<Answer>(&text).unwrap(), answer);
        }
        let text = Answer::error(3, Refusal::new(RefusalCode::TooMany, "x")).text();
        assert_eq!(
            text,
            r#"{"version":1,"id":3,"error":{"code":"too_many","message":"x"}}"#
        );
    }
}
