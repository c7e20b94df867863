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
    /// Frames since the start.
    pub frames: u64,
    /// Bytes since the start, as on the wire without FCS.
    pub bytes: u64,
    /// Frames per second, over the last second or two.
    pub frames_per_s: f64,
    /// Bits per second, over the last second or two.
    pub bits_per_s: f64,
    /// Traffic of each queue.
    pub queues: Vec<QueueRate>,
    /// Frames since the start by the protocol of the innermost packet, each frame once: `tcp`,
    /// `udp`, `icmp` (both versions), `sctp`, `gre`, `esp`, `other_ip`, `arp`, `other`. All keys
    /// are always present.
    pub protocols: BTreeMap<String, Volume>,
    /// Frames since the start by their other properties: `ipv4` and `ipv6` (the innermost packet),
    /// `vlan` (the outermost), `tunnel`, `fragment`, `malformed`. All keys are always present.
    pub traits: BTreeMap<String, Volume>,
    /// Frames since the start by size on the wire without FCS.
    pub sizes: Vec<SizeBin>,
    /// Heaviest senders of the last seconds.
    pub talkers: TopTalkers,
    /// Time between consecutive frames of a queue; absent before the second frame.
    pub inter_arrival: Option<Distribution>,
    /// Time for which the oldest frame of each batch held its buffer, from its timestamp until the
    /// buffer was reposted. Absent before the first batch, and with `capture.clock = "nic"`, whose
    /// timestamps cannot be compared with system time.
    pub hold: Option<Distribution>,
}

/// Number of frames, and of their bytes on the wire without FCS.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, AddAssign,
)]
pub struct Volume {
    /// Number of frames.
    pub frames: u64,
    /// Number of bytes on the wire without FCS.
    pub bytes: u64,
}

impl Volume {
    /// Counts one more frame of `len` bytes.
    #[inline]
    pub fn count(&mut self, len: u32) {
        self.frames += 1;
        self.bytes += u64::from(len);
    }
}

/// Traffic of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueRate {
    /// Queue number.
    pub queue: u16,
    /// Frames since the start.
    pub frames: u64,
    /// Bytes since the start.
    pub bytes: u64,
    /// Frames per second, over the last second or two.
    pub frames_per_s: f64,
    /// Bits per second, over the last second or two.
    pub bits_per_s: f64,
}

/// Number of frames in a range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SizeBin {
    /// Length of the longest frame in this bin; `None` if unlimited. Each bin begins after the
    /// previous one.
    pub up_to: Option<u32>,
    /// Number of frames.
    pub frames: u64,
}

/// Heaviest senders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopTalkers {
    /// Seconds covered: the last 10 complete seconds, or fewer at the beginning.
    pub over_s: f64,
    /// Senders by bytes, the heaviest first.
    pub by_bytes: Vec<Talker>,
    /// Senders by frames, the heaviest first.
    pub by_frames: Vec<Talker>,
}

/// Sender with its number of bytes or frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Talker {
    /// Source address of the innermost packet, or the MAC address if the frame is not IP.
    pub address: String,
    /// Number of bytes or frames; never below the true number.
    pub count: u64,
    /// Part of `count` that other senders may have caused; 0 while there are few senders.
    pub error: u64,
}

/// Summary of a histogram; times in nanoseconds, within 1 %.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Distribution {
    /// Number of values.
    pub count: u64,
    /// Minimum, in nanoseconds.
    pub min_ns: u64,
    /// Mean, in nanoseconds.
    pub mean_ns: f64,
    /// Median, in nanoseconds.
    pub p50_ns: u64,
    /// 90th percentile, in nanoseconds.
    pub p90_ns: u64,
    /// 99th percentile, in nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile, in nanoseconds.
    pub p999_ns: u64,
    /// Maximum, in nanoseconds; longer times count as a minute.
    pub max_ns: u64,
    /// Cumulative counts for every power of ten from 100 ns to 10 s.
    pub up_to: Vec<Bound>,
}

/// Bound of a cumulative histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bound {
    /// Upper bound, in nanoseconds.
    pub ns: u64,
    /// Number of values up to and including the bound.
    pub count: u64,
}
