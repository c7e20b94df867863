//! Failure of a command: its kind, which `main` maps to the exit status, and its messages.

use rustix::io::Errno;
use std::{
    error::Error,
    fmt::{self, Display},
    io::{self, ErrorKind},
    iter,
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
    /// Error messages of the failure, the most important one last, which is printed directly above
    /// the prompt.
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

    /// Returns `Ok` if `messages` is empty, else a failure of kind [`FailureKind::Failed`] with
    /// these error messages.
    pub fn from_messages(messages: Vec<String>) -> Result<(), Self> {
        let kind = FailureKind::Failed;
        let failure = Self { kind, messages };
        failure.messages.is_empty().then_some(()).ok_or(failure)
    }

    /// Creates a failure for the error `cause`, which occurred before the command began its work.
    /// The kind is [`FailureKind::Failed`] if the command may succeed later, because memory, threads,
    /// file descriptors or disk space were short, a file system was read-only, or the address of a
    /// socket was in use or absent; else [`FailureKind::Refused`].
    pub fn of_setup(message: impl Display, cause: &(dyn Error + 'static)) -> Self {
        let kind = match may_pass(cause) {
            true => FailureKind::Failed,
            false => FailureKind::Refused,
        };
        Self::new(kind, message)
    }

    /// Creates a failure of kind [`FailureKind::Refused`] with one error message for each of the
    /// reasons.
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

/// Returns `true` if an error, or one of its causes, may pass without a change of the configuration:
/// the operating system had no memory, thread, file descriptor or disk space left, a file system was
/// read-only, or the address of a socket was in use or absent.
pub fn may_pass(error: &(dyn Error + 'static)) -> bool {
    let passing = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::AGAIN,
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::ROFS,
        Errno::ADDRNOTAVAIL,
    ];
    let mut causes = iter::successors(Some(error), |it| (**it).source());
    causes.any(|it| {
        it.downcast_ref::<io::Error>().is_some_and(|e| {
            e.kind() == ErrorKind::AddrInUse
                || Errno::from_io_error(e).is_some_and(|it| passing.contains(&it))
        })
    })
}

/// Formats all error messages of the failure on one line.
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

/// Converts a refusal of the operating system to a failure, as [`Failure::of_setup`] does.
impl From<wqcap_engine::ResourceError> for Failure {
    fn from(e: wqcap_engine::ResourceError) -> Self {
        Self::of_setup(&e, &e)
    }
}

/// Converts each engine error to a failure, as [`Failure::of_setup`] does: engine errors come from
/// planning or setup, before a capture runs.
impl From<wqcap_engine::Error> for Failure {
    fn from(e: wqcap_engine::Error) -> Self {
        match e {
            wqcap_engine::Error::Several(all) => {
                Self::all_refused(all.iter().map(ToString::to_string))
            }
            one => Self::of_setup(&one, &one),
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
        Self::of_setup(&e, &e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_of_the_machine_is_a_failure_and_not_a_refusal() {
        let of = |errno: Errno| {
            let source = io::Error::from(errno);
            let error = wqcap_engine::ResourceError::System {
                what: "cannot start the thread x".into(),
                source,
            };
            Failure::from(wqcap_engine::Error::from(error)).kind
        };
        assert_eq!(of(Errno::AGAIN), FailureKind::Failed);
        assert_eq!(of(Errno::MFILE), FailureKind::Failed);
        assert_eq!(of(Errno::NOSPC), FailureKind::Failed);
        assert_eq!(of(Errno::ACCESS), FailureKind::Refused);
    }
}
