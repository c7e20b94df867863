//! Errors of rings, receive loops and the device clock.

use crate::ring::RingError;
use wqcap_verbs::VerbsError;

/// Failure of a receive ring, a receive loop or the device clock.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RxError {
    /// A verbs call failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A WQ in error cannot be recovered.
    #[error("the receive ring failed while its WQ was recovered: {0}")]
    Recovery(RingError),
    /// A receive loop did not answer a request in time.
    #[error(
        "queue {queue}: the receive loop did not answer within {seconds} s: it waits for the disk, has no time on its \
         core, or has ended; see `wqcap ctl status`, and ask again"
    )]
    NoAnswer {
        /// Number of the receive queue whose loop did not answer.
        queue: u16,
        /// Time limit for the loop's answer, in seconds.
        seconds: u64,
    },
}
