//! Traffic at one moment, as live statistics report it.

use derive_more::AddAssign;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Traffic of all queues: frames that passed the filter and the other reductions, including frames
/// for which the files had no room.
///
/// Queues publish at most ten times a second, so the newest frames may be missing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrafficSnapshot {
    /// Frames of all queues since the start of the capture.
    pub frames: u64,
    /// Bytes of all queues since the start of the capture, as on the wire without FCS.
    pub bytes: u64,
    /// Frames per second of all queues, over the last second or two.
    pub frames_per_s: f64,
    /// Bits per second of all queues, over the last second or two.
    pub bits_per_s: f64,
    /// Traffic of each receive queue.
    pub queues: Vec<QueueRate>,
    /// Frames since the start of the capture by the protocol of the innermost packet, each frame
    /// once: `tcp`, `udp`, `icmp` (both versions), `sctp`, `gre`, `esp`, `other_ip`, `arp`,
    /// `other`. All keys are always present.
    pub protocols: BTreeMap<String, Volume>,
    /// Frames since the start of the capture by their other properties: `ipv4` and `ipv6` (the
    /// innermost packet), `vlan` (the outermost), `tunnel`, `fragment`, `malformed`. All keys are
    /// always present.
    pub traits: BTreeMap<String, Volume>,
    /// Frames since the start of the capture by size on the wire without FCS.
    pub sizes: Vec<SizeBin>,
    /// Heaviest senders of traffic in the last seconds.
    pub talkers: TopTalkers,
    /// Time between consecutive frames of a queue; absent before the second frame.
    pub inter_arrival: Option<Distribution>,
    /// Time for which the oldest frame of each batch held its receive buffer, from its timestamp
    /// until the buffer was reposted. Absent before the first batch, and with `capture.clock =
    /// "nic"`, whose timestamps cannot be compared with system time.
    pub hold: Option<Distribution>,
}

/// Number of frames, and of their bytes on the wire without FCS.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, AddAssign,
)]
pub struct Volume {
    /// Number of counted frames.
    pub frames: u64,
    /// Number of bytes of the counted frames, on the wire without FCS.
    pub bytes: u64,
}

impl Volume {
    /// Counts one more frame of `len` bytes on the wire.
    #[inline]
    pub fn count(&mut self, len: u32) {
        self.frames += 1;
        self.bytes += u64::from(len);
    }
}

/// Traffic of one receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueRate {
    /// Number of the receive queue.
    pub queue: u16,
    /// Frames of the queue since the start of the capture.
    pub frames: u64,
    /// Bytes of the queue's frames since the start of the capture.
    pub bytes: u64,
    /// Frames per second of the queue, over the last second or two.
    pub frames_per_s: f64,
    /// Bits per second of the queue, over the last second or two.
    pub bits_per_s: f64,
}

/// Histogram bin: the number of frames in a range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SizeBin {
    /// Length of the longest frame in this bin, in bytes; `None` if unlimited. Each bin begins
    /// after the previous one.
    pub up_to: Option<u32>,
    /// Number of frames in the bin.
    pub frames: u64,
}

/// Heaviest senders of traffic, by bytes and by frames.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopTalkers {
    /// Seconds that the ranking of senders covers: the last 10 complete seconds, or fewer at the
    /// beginning.
    pub over_s: f64,
    /// Senders ranked by bytes, the heaviest first.
    pub by_bytes: Vec<Talker>,
    /// Senders ranked by frames, the heaviest first.
    pub by_frames: Vec<Talker>,
}

/// Sender of traffic with its number of bytes or frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Talker {
    /// Source address of the sender's innermost packets, or the MAC address if the frames are not
    /// IP.
    pub address: String,
    /// Estimated number of bytes or frames of the sender; never below the true number.
    pub count: u64,
    /// Part of the sender's `count` that other senders may have caused; 0 while there are few
    /// senders.
    pub error: u64,
}

/// Summary of a histogram of times in nanoseconds, accurate within 1 %.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Distribution {
    /// Number of times in the histogram.
    pub count: u64,
    /// Minimum of the measured times, in nanoseconds.
    pub min_ns: u64,
    /// Mean of the measured times, in nanoseconds.
    pub mean_ns: f64,
    /// Median of the measured times, in nanoseconds.
    pub p50_ns: u64,
    /// 90th percentile of the measured times, in nanoseconds.
    pub p90_ns: u64,
    /// 99th percentile of the measured times, in nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile of the measured times, in nanoseconds.
    pub p999_ns: u64,
    /// Maximum of the measured times, in nanoseconds; longer times count as a minute.
    pub max_ns: u64,
    /// Cumulative numbers of measured times, for every power of ten from 100 ns to 10 s.
    pub up_to: Vec<Bound>,
}

/// Bound of a cumulative histogram of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bound {
    /// Upper bound of the counted times, in nanoseconds.
    pub ns: u64,
    /// Number of times up to and including the bound.
    pub count: u64,
}
