//! Errors of rings, receive loops and the device clock.

use crate::ring::RingError;
use wqcap_verbs::VerbsError;

/// A ring, a receive loop or the device clock does not do what it is asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RxError {
    /// A verb fails.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A WQ in error cannot be recovered.
    #[error("recovering the WQ: {0}")]
    Recovery(RingError),
    /// A receive loop does not answer a request in time.
    #[error(
        "queue {queue}: its loop did not answer within {seconds} s: it waits for the disk, has no time on its core, or has \
         ended; see `wqcap ctl status`, and ask again"
    )]
    NoAnswer {
        /// Queue number.
        queue: u16,
        /// Time allowed for the answer, in seconds.
        seconds: u64,
    },
}
