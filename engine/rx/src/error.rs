//! Errors of rings, receive loops and the device clock.

use wqcap_verbs::VerbsError;

/// Failure of a receive ring, a receive loop or the device clock.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RxError {
    /// A verbs call of the receive path failed.
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

/// Failure that ends the receive loop of a queue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoopError {
    /// The receive ring of a queue failed.
    #[error("queue {queue}: {source}")]
    Ring {
        /// Number of the receive queue whose ring failed.
        queue: u16,
        /// Failure of the queue's receive ring.
        source: RingError,
    },
    /// The WQ is in error and cannot be recovered.
    #[error("queue {queue}: the WQ is in error ({cause}) and cannot be recovered: {source}")]
    Recovery {
        /// Number of the receive queue whose WQ is in error.
        queue: u16,
        /// Way in which the WQ's error was noticed.
        cause: WqErrorCause,
        /// Failure of the WQ's recovery.
        source: RxError,
    },
    /// A striding WQ cannot be replaced by one with a WQE per frame.
    #[error(
        "queue {queue}: {mismatch}, and the queue cannot fall back to a WQE per frame: {source}; set capture.receive = \
         \"frame\""
    )]
    FallBack {
        /// Number of the receive queue with the striding WQ.
        queue: u16,
        /// Difference of a completion from the layout that a striding WQ's completions should have.
        mismatch: StrideMismatch,
        /// Failure of the change to a WQE per frame.
        source: RxError,
    },
    /// The loop's outlet, which passes its frames on, accepts no more of them or lost slots; the
    /// text is its reason.
    #[error("{0}")]
    Outlet(String),
    /// Receive slots are missing at the end of the loop: the pipeline did not return them.
    #[error(
        "queue {queue}: only {returned} of the {away} slots that are not on the ring were returned at the end; this is a \
         fault in wqcap: please report it"
    )]
    SlotsMissing {
        /// Number of the receive queue whose slots are missing.
        queue: u16,
        /// Number of receive slots that were outside the ring when the loop ended.
        away: usize,
        /// Number of slots outside the ring that the pipeline returned.
        returned: usize,
    },
}

/// Way in which a receive loop noticed that its WQ is in error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WqErrorCause {
    /// Asynchronous event by which the device reports the WQ in error.
    #[error("the device reported an error event for the WQ")]
    Event,
    /// Receive WRs that the device flushed.
    #[error("the device flushed the WRs of the WQ")]
    Flushed,
    /// Receive WR that completed with this error status (`ibv_wc_status`).
    #[error("a receive WR completed with the error status {0}")]
    Completion(u32),
}

/// Fatal error of a receive ring: an invalid completion, a CQ that cannot be polled, or a WQ that
/// refuses WRs. The type is small, for the hot path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The CQ cannot be polled (errno).
    #[error("the CQ cannot be polled: errno {0} (the CQ was overrun, or the device is gone)")]
    Poll(i32),
    /// The device completed a slot that is not posted (slot index).
    #[error("a completion from the device names WR {0}, which is not posted")]
    Unposted(u64),
    /// A completion names strides that are not free in their buffer, or too few for its frame
    /// (first stride, number of strides).
    #[error(
        "a completion names {1} strides from stride {0}: these strides are not free in the WR's buffer, or too few for \
         the frame"
    )]
    Strides(u32, u32),
    /// The completion of a striding WQ does not have the expected layout.
    #[error("the receive loop cannot use the completions of a striding WQ: {0}")]
    Unfit(StrideMismatch),
    /// The FCS was requested, but none of the first frames (their number) has its FCS behind it.
    #[error(
        "wq.scatter_fcs = true: the last 4 bytes of the first {0} frames are not their FCS; the NIC delivers frames without \
         it; set wq.scatter_fcs = false"
    )]
    Fcs(u32),
    /// A header in a block of a packet socket's ring points outside of the block (block index).
    #[error(
        "block {0} of the kernel's packet ring is damaged: a header in it points outside of the block"
    )]
    Block(u32),
    /// A descriptor of an AF_XDP socket names bytes outside of the receive memory (address).
    #[error(
        "an AF_XDP descriptor of the kernel names address {0}, which is outside of the receive memory (UMEM)"
    )]
    Descriptor(u64),
    /// WRs cannot be posted to the WQ (errno).
    #[error("WRs cannot be posted to the WQ: errno {0}")]
    Post(i32),
}

/// Difference between a striding WQ's completion and the expected layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StrideMismatch {
    /// The frame of a completion does not begin at the next free stride.
    #[error(
        "the NIC reports a frame at stride {found} of a striding WQ, but the next free stride is {expected}"
    )]
    First {
        /// Index of the buffer's next free stride, where the frame should begin.
        expected: u32,
        /// Index of the first stride that the completion reports.
        found: u32,
    },
    /// The completion reports 0 strides, or more strides than are free in the buffer.
    #[error("a completion of a striding WQ reports {found} strides, which are more than are free")]
    NotFree {
        /// Number of strides that the completion reports.
        found: u32,
    },
    /// The completion reports another number of strides than its frame needs.
    #[error(
        "the NIC reports {found} strides of a striding WQ for a frame of {len} bytes, which needs another number"
    )]
    Count {
        /// Number of strides that the completion reports.
        found: u32,
        /// Length of the frame in bytes, as the completion reports it.
        len: u32,
    },
    /// The completion names another WQE than the first unfinished one of the ring.
    #[error(
        "a completion names the receive WQE {found}, but the next WQE of the ring is {expected}"
    )]
    Wqe {
        /// Ring index of the first unfinished WQE.
        expected: u32,
        /// Ring index of the WQE that the completion names.
        found: u32,
    },
    /// The device did not write the frame's bytes that the completion reports.
    #[error(
        "the NIC reports a frame of {len} bytes from stride {first} on, but has not written all of these bytes"
    )]
    Unwritten {
        /// Length of the frame in bytes, as the completion reports it.
        len: u32,
        /// Index of the first stride that the completion reports.
        first: u32,
    },
    /// The completion is of a buffer that is not posted to the device.
    #[error("the WQE is not posted")]
    Unposted,
}
