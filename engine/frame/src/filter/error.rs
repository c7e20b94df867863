//! Reasons for which a filter expression is rejected, and the limits of filter expressions.

use super::program::ProgramError;
use std::time::Duration;

/// Maximum length of a filter expression in bytes, enough for about 3000 hosts.
pub const LONGEST_EXPRESSION: usize = 64 << 10;
/// Maximum nesting depth of parentheses and brackets in a filter expression.
pub const DEEPEST_NESTING: usize = 1000;
/// Maximum time to wait for the compilation of a filter expression.
pub const LONGEST_COMPILATION: Duration = Duration::from_secs(60);

/// Reason why an expression cannot be used as a packet filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// libpcap rejects the filter expression, with this message.
    #[error("libpcap: {0}")]
    Libpcap(String),
    /// The filter expression compiles, but its program is not accepted, for the reason in this
    /// error.
    #[error("{0}")]
    Refused(#[from] ProgramError),
    /// The filter expression is refused for Ethernet frames for the reason in this error, but is
    /// defined for frames of other link types.
    #[error("{0}")]
    OtherLinkType(Box<Self>),
    /// The filter expression names a protocol, and the system's list of protocols cannot be read.
    /// libpcap would take each name for protocol 0.
    #[error(
        "libpcap cannot look up names of protocols, because /etc/protocols is missing or cannot be read; install the package netbase (RPM: setup), or use the protocol's number"
    )]
    NoProtocolNames,
    /// The filter expression has more than [`LONGEST_EXPRESSION`] bytes.
    #[error(
        "the filter expression has {0} bytes; at most {LONGEST_EXPRESSION} are allowed; name networks instead of hosts, or filter the capture files with `wqcap extract`"
    )]
    TooLong(usize),
    /// Parentheses and brackets of the filter expression are nested deeper than
    /// [`DEEPEST_NESTING`].
    #[error(
        "the filter expression has {0} levels of parentheses; at most {DEEPEST_NESTING} are allowed; remove redundant parentheses"
    )]
    TooDeep(usize),
    /// libpcap needs more time than [`LONGEST_COMPILATION`] for the filter expression.
    #[error(
        "libpcap did not compile the filter expression within {} s; the time grows with the square of the number of hosts; shorten the filter expression, or name networks",
        LONGEST_COMPILATION.as_secs()
    )]
    TooSlow,
    /// An earlier compilation of a filter expression that exceeded its time is still running.
    #[error(
        "libpcap is still compiling another filter expression after {} s and can only compile one at a time; try again later",
        LONGEST_COMPILATION.as_secs()
    )]
    Busy,
    /// The thread that compiles the filter expression cannot be started.
    #[error(
        "cannot start the thread that compiles the filter expression: {0}; raise the limit on threads or memory"
    )]
    NoThread(String),
}
