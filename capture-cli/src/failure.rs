//! Failure of a command: its kind, which `main` maps to the exit status, and its messages.

use std::{
    error::Error,
    fmt::{self, Display},
};
use wqcap_engine::config::ConfigError;

/// Kind of a command's failure. `main` maps it to the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The command started its work and then failed.
    Failed,
    /// The command line, the config or the device does not allow the command.
    Refused,
    /// The program that `wqcap model` starts exists but cannot be executed.
    NotExecutable,
    /// The program that `wqcap model` starts does not exist.
    NotFound,
}

/// Failure of a command, with its messages. Each message is printed after `error: `.
#[derive(Debug)]
pub struct Failure {
    /// Kind of the command's failure, which decides the exit status.
    pub kind: FailureKind,
    /// Error messages of the failure, the most important one last: that one is printed directly
    /// above the prompt.
    pub messages: Vec<String>,
}

impl Failure {
    fn new(kind: FailureKind, message: impl Display) -> Self {
        let messages = vec![message.to_string()];
        Self { kind, messages }
    }

    /// Creates a failure of kind [`FailureKind::Failed`]: the command started its work and then
    /// failed.
    pub fn failed(message: impl Display) -> Self {
        Self::new(FailureKind::Failed, message)
    }

    /// Returns `Ok` if there are no error messages, else a failure of kind [`FailureKind::Failed`]
    /// with them.
    pub fn from_messages(messages: Vec<String>) -> Result<(), Self> {
        let kind = FailureKind::Failed;
        let failure = Self { kind, messages };
        failure.messages.is_empty().then_some(()).ok_or(failure)
    }

    /// Creates a failure of kind [`FailureKind::Refused`] with one error message for each reason.
    pub fn all_refused(messages: impl IntoIterator<Item = String>) -> Self {
        Self {
            kind: FailureKind::Refused,
            messages: messages.into_iter().collect(),
        }
    }

    /// Creates a failure of kind [`FailureKind::Refused`]: the command cannot be carried out as
    /// given.
    pub fn refused(message: impl Display) -> Self {
        Self::new(FailureKind::Refused, message)
    }
}

/// Formats the error messages on one line.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.messages.join("; "))
    }
}

impl Error for Failure {}

/// Creates one error message for each problem of a configuration.
impl From<ConfigError> for Failure {
    fn from(e: ConfigError) -> Self {
        Self::all_refused(e.problems().iter().map(ToString::to_string))
    }
}

/// Maps a refusal of the operating system to [`FailureKind::Refused`]: it comes from setup, before
/// anything runs.
impl From<wqcap_engine::ResourceError> for Failure {
    fn from(e: wqcap_engine::ResourceError) -> Self {
        Self::refused(e)
    }
}

/// Maps each engine error to [`FailureKind::Refused`]: engine errors come from planning or setup,
/// before anything runs.
impl From<wqcap_engine::Error> for Failure {
    fn from(e: wqcap_engine::Error) -> Self {
        match e {
            wqcap_engine::Error::Several(all) => {
                Self::all_refused(all.iter().map(ToString::to_string))
            }
            one => Self::refused(one),
        }
    }
}

impl From<wqcap_engine::verbs::VerbsError> for Failure {
    fn from(e: wqcap_engine::verbs::VerbsError) -> Self {
        wqcap_engine::Error::from(e).into()
    }
}

impl From<wqcap_control::server::StartError> for Failure {
    fn from(e: wqcap_control::server::StartError) -> Self {
        Self::refused(e)
    }
}
