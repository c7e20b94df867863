//! Why a command ends without success: the kind, from which `main` makes the exit status, and what to tell.

use wqcap_engine::config::ConfigError;

/// What sort of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It was running, and failed.
    Failed,
    /// The command line, the config or the device cannot do it.
    Refused,
    /// The program to start is there and cannot be executed.
    NotExecutable,
    /// The program to start is not there.
    NotFound,
}

/// A failure and its messages, each of which is printed behind `error: `.
#[derive(Debug)]
pub struct Failure {
    /// What sort.
    pub kind: Kind,
    /// What to tell, most important last: that is what stands above the prompt.
    pub messages: Vec<String>,
}

impl Failure {
    fn new(kind: Kind, message: impl Into<String>) -> Self {
        let messages = vec![message.into()];
        Self { kind, messages }
    }

    /// It was running, and failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Kind::Failed, message)
    }

    /// It was done, except for what these messages tell; success if there are none.
    pub fn unless_whole(messages: Vec<String>) -> Result<(), Self> {
        let kind = Kind::Failed;
        let failure = Self { kind, messages };
        failure.messages.is_empty().then_some(()).ok_or(failure)
    }

    /// It cannot be done as asked, for all these reasons.
    pub fn all_refused(messages: impl IntoIterator<Item = String>) -> Self {
        Self {
            kind: Kind::Refused,
            messages: messages.into_iter().collect(),
        }
    }

    /// It cannot be done as asked.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(Kind::Refused, message)
    }
}

/// A message for each problem.
impl From<ConfigError> for Failure {
    fn from(e: ConfigError) -> Self {
        Self::all_refused(e.problems.iter().map(ToString::to_string))
    }
}

/// A refusal of the operating system while a command sets up: nothing runs yet.
impl From<wqcap_engine::ResourceError> for Failure {
    fn from(e: wqcap_engine::ResourceError) -> Self {
        Self::refused(e.to_string())
    }
}

/// Every error of the engine comes from planning or setting up: nothing was running yet.
impl From<wqcap_engine::Error> for Failure {
    fn from(e: wqcap_engine::Error) -> Self {
        match e {
            wqcap_engine::Error::Several(all) => {
                Self::all_refused(all.iter().map(ToString::to_string))
            }
            one => Self::refused(one.to_string()),
        }
    }
}

impl From<wqcap_engine::verbs::VerbsError> for Failure {
    fn from(e: wqcap_engine::verbs::VerbsError) -> Self {
        wqcap_engine::Error::from(e).into()
    }
}

impl From<wqcap_engine::control::server::StartError> for Failure {
    fn from(e: wqcap_engine::control::server::StartError) -> Self {
        Self::refused(e.to_string())
    }
}
