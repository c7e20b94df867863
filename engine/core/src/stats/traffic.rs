//! The traffic of a moment, as live statistics report it.

use derive_more::AddAssign;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The traffic of all queues: frames that passed the filter and the other reductions, whether there was room for them
/// in the files or not.
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
    /// By queue.
    pub queues: Vec<QueueRate>,
    /// Frames since the start by the protocol of the innermost packet, each frame once: `tcp`, `udp`, `icmp` (both
    /// versions), `sctp`, `gre`, `esp`, `other_ip`, `arp`, `other`. All are always present.
    pub protocols: BTreeMap<String, Volume>,
    /// Frames since the start by their other properties: `ipv4` and `ipv6` (the innermost packet), `vlan` (the
    /// outermost), `tunnel`, `fragment`, `malformed`. All are always present.
    pub traits: BTreeMap<String, Volume>,
    /// Frames since the start by size on the wire without FCS.
    pub sizes: Vec<SizeBin>,
    /// The heaviest senders of the last seconds.
    pub talkers: TopTalkers,
    /// Time between consecutive frames of a queue; absent before the second frame.
    pub inter_arrival: Option<Distribution>,
    /// How long the oldest frame of each batch held its buffer, from its timestamp until the buffer was reposted; absent
    /// before the first batch, and with `capture.clock = "nic"`, whose timestamps cannot be compared with system time.
    pub hold: Option<Distribution>,
}

/// Frames and their bytes on the wire without FCS.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, AddAssign,
)]
pub struct Volume {
    /// Frames.
    pub frames: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Volume {
    /// One more frame, of `len` bytes.
    #[inline]
    pub fn count(&mut self, len: u32) {
        self.frames += 1;
        self.bytes += u64::from(len);
    }
}

/// One queue's traffic.
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

/// Frames of a range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SizeBin {
    /// The longest frame of this bin; `None`: unlimited. Each bin begins after the previous one.
    pub up_to: Option<u32>,
    /// Frames.
    pub frames: u64,
}

/// The heaviest senders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopTalkers {
    /// Seconds covered: the last 10 complete ones, or fewer at the beginning.
    pub over_s: f64,
    /// By bytes, the heaviest first.
    pub by_bytes: Vec<Talker>,
    /// By frames, the heaviest first.
    pub by_frames: Vec<Talker>,
}

/// A sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Talker {
    /// The innermost packet's source address, or the MAC address where there is no IP.
    pub address: String,
    /// Bytes or frames; never below the true number.
    pub count: u64,
    /// The part of it that other senders may have caused; 0 while there are few senders.
    pub error: u64,
}

/// Summary of a histogram; times in nanoseconds, within 1 %.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Distribution {
    /// Number of values.
    pub count: u64,
    /// Minimum.
    pub min_ns: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Maximum; longer times count as a minute.
    pub max_ns: u64,
    /// Cumulative counts, for every power of ten from 100 ns to 10 s.
    pub up_to: Vec<Bound>,
}

/// One bound of a cumulative histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bound {
    /// The bound.
    pub ns: u64,
    /// Values up to and including the bound.
    pub count: u64,
}
