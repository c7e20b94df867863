//! From the service to a client: answers.

use super::{Stats, VERSION, status::Status};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The outcome of a request, or one more `stats` of a subscription.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// The protocol version, [`VERSION`].
    pub version: u32,
    /// The request's number; 0 when the message had none that could be read.
    pub id: u64,
    /// What came of the request.
    #[serde(flatten)]
    pub outcome: AnswerOutcome,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerOutcome {
    /// It was carried out.
    Ok(AnswerBody),
    /// It was refused or failed, and nothing has changed.
    Error(Refusal),
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerBody {
    /// Of `status`.
    Status(Box<Status>),
    /// Of `stats`, and of each interval of `subscribe`.
    Stats(Box<Stats>),
    /// Of `devices`.
    Devices(Value),
    /// Of `plan`.
    Plan(Value),
    /// Of `subscribe`.
    Subscribed {
        /// The interval in force.
        interval_ms: u32,
    },
    /// Of every command that changes something.
    Changed(Changed),
}

/// The result of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    /// False: the requested state was in force already.
    pub changed: bool,
    /// What held before, in words, where a value was replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
    /// The state now, in words.
    pub now: String,
    /// Of `mark`: its ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// For people: the value, the limit, what to do.
    pub message: String,
}

impl Refusal {
    /// A refusal of this kind.
    #[must_use]
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// Kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// Not a message of this version, or a value is out of range.
    Malformed,
    /// Longer than the service accepts.
    TooLarge,
    /// More requests or connections than one client may have.
    TooMany,
    /// The client has no right to do this.
    Denied,
    /// Not possible in the capture's present state.
    State,
    /// The capture, its device or this build cannot do it.
    Unsupported,
    /// It was attempted and failed.
    Failed,
}

impl Answer {
    /// A result or a refusal.
    #[must_use]
    pub fn new(id: u64, result: Result<AnswerBody, Refusal>) -> Self {
        Self {
            version: VERSION,
            id,
            outcome: result.map_or_else(AnswerOutcome::Error, AnswerOutcome::Ok),
        }
    }

    /// A refusal.
    #[must_use]
    pub fn error(id: u64, refusal: Refusal) -> Self {
        Self::new(id, Err(refusal))
    }

    /// JSON without a line break.
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
    fn answers_read_back() {
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
