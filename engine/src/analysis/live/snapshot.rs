//! What readers get: plain values that serialise.

use super::{
    mix::{Mix, PROTOCOLS, SIZES, TRAITS},
    recorder::Published,
    sketch::Counter,
    talkers::{Address, Talkers, WINDOW_NS},
};
use hdrhistogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Talkers that a snapshot lists.
const TOP: usize = 20;
/// Upper bounds of the histograms' coarse form, in nanoseconds.
const BOUNDS: [u64; 9] = [
    100,
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// The traffic of a moment: all queues together, of frames that the filter and the other reductions have let pass,
/// whether there was room for them in the files or not.
///
/// Queues publish at most ten times a second, so the newest frames may be missing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// Since the start.
    pub frames: u64,
    /// The same in bytes on the wire, without FCS.
    pub bytes: u64,
    /// Over the last second or two.
    pub frames_per_s: f64,
    /// The same in bits.
    pub bits_per_s: f64,
    /// By queue.
    pub queues: Vec<QueueRate>,
    /// Since the start, by what the innermost packet carries; each frame once: `tcp`, `udp`, `icmp` (both versions),
    /// `sctp`, `gre`, `esp`, `other_ip`, `arp`, `other`. All are always there.
    pub protocols: BTreeMap<String, Volume>,
    /// Since the start, what frames have besides: `ipv4` and `ipv6` (the innermost packet), `vlan` (the outermost),
    /// `tunnel`, `fragment`, `malformed`. All are always there.
    pub traits: BTreeMap<String, Volume>,
    /// Frames since the start by size on the wire, without FCS.
    pub sizes: Vec<SizeBin>,
    /// Who sends most of late.
    pub talkers: TopTalkers,
    /// Time between neighbours of the same queue; absent before there are any.
    pub inter_arrival: Option<Distribution>,
    /// How long the oldest frame of each batch had held its buffer, from its stamp until the buffer went back to the
    /// NIC; absent before the first, and with `capture.clock = "nic"`, which is no time to compare with.
    pub hold: Option<Distribution>,
}

/// Frames and their bytes on the wire, without FCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Volume {
    /// Frames.
    pub frames: u64,
    /// Bytes.
    pub bytes: u64,
}

/// One queue's traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueRate {
    /// Its number.
    pub queue: u16,
    /// Since the start.
    pub frames: u64,
    /// Since the start.
    pub bytes: u64,
    /// Over the last second or two.
    pub frames_per_s: f64,
    /// Over the last second or two.
    pub bits_per_s: f64,
}

/// Frames of a range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SizeBin {
    /// The longest of them; `None`: without end. Each bin begins behind the one before.
    pub up_to: Option<u32>,
    /// How many.
    pub frames: u64,
}

/// The heaviest senders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopTalkers {
    /// Seconds that are counted: the last 10 that are over, or less in the beginning.
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
    /// Bytes or frames: at least the true number.
    pub count: u64,
    /// How much of it may be others'; 0 as long as there are few senders.
    pub error: u64,
}

/// A histogram's sums; times in nanoseconds, within 1 %.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Distribution {
    /// How many values.
    pub count: u64,
    /// The least.
    pub min_ns: u64,
    /// The mean.
    pub mean_ns: f64,
    /// Half of the values are at most this.
    pub p50_ns: u64,
    /// 90 in 100.
    pub p90_ns: u64,
    /// 99 in 100.
    pub p99_ns: u64,
    /// 999 in 1000.
    pub p999_ns: u64,
    /// The most; longer times count as a minute.
    pub max_ns: u64,
    /// How many values are at most a bound, for every power of ten from 100 ns to 10 s.
    pub up_to: Vec<Bound>,
}

/// One bound of a cumulative histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bound {
    /// The bound.
    pub ns: u64,
    /// Values at most as great.
    pub count: u64,
}

impl Distribution {
    fn of(values: &Histogram<u64>) -> Option<Self> {
        (!values.is_empty()).then(|| Self {
            count: values.len(),
            min_ns: values.min(),
            mean_ns: values.mean(),
            p50_ns: values.value_at_quantile(0.5),
            p90_ns: values.value_at_quantile(0.9),
            p99_ns: values.value_at_quantile(0.99),
            p999_ns: values.value_at_quantile(0.999),
            max_ns: values.max(),
            up_to: BOUNDS
                .iter()
                .map(|&ns| Bound {
                    ns,
                    count: values.count_between(0, ns),
                })
                .collect(),
        })
    }
}

/// Puts what the queues have published together.
#[derive(Default)]
pub(super) struct Merger {
    mix: Mix,
    queues: Vec<QueueRate>,
    inter_arrival: Option<Histogram<u64>>,
    hold: Option<Histogram<u64>>,
    /// The newest stretch that talkers were seen in.
    window: Option<u64>,
    over_ns: u64,
    by_bytes: HashMap<Address, Counter<Address>>,
    by_frames: HashMap<Address, Counter<Address>>,
}

impl Merger {
    /// Takes what a recorder of this queue has published; queues come in order.
    pub(super) fn add(&mut self, queue: usize, published: &Published) {
        let mix = &published.sums.mix;
        self.mix.merge(mix);
        while self.queues.len() <= queue {
            self.queues.push(QueueRate {
                queue: u16::try_from(self.queues.len()).unwrap_or(u16::MAX),
                ..QueueRate::default()
            });
        }
        let sum = &mut self.queues[queue];
        sum.frames += mix.total.frames;
        sum.bytes += mix.total.bytes;
        sum.frames_per_s += published.rate.frames_per_s;
        sum.bits_per_s += published.rate.bits_per_s;
        add(&mut self.inter_arrival, &published.sums.inter_arrival);
        add(&mut self.hold, &published.sums.hold);
        self.talkers(&published.talkers);
    }

    /// Only stretches that are the same go together: what a queue that has fallen silent saw before is not of now.
    fn talkers(&mut self, talkers: &Talkers) {
        if talkers.over_ns == 0 || self.window > Some(talkers.window) {
            return;
        }
        if self.window < Some(talkers.window) {
            self.by_bytes.clear();
            self.by_frames.clear();
            (self.window, self.over_ns) = (Some(talkers.window), 0);
        }
        self.over_ns = self.over_ns.max(talkers.over_ns);
        gather(&mut self.by_bytes, talkers.by_bytes());
        gather(&mut self.by_frames, talkers.by_frames());
    }

    /// The whole.
    pub(super) fn done(self) -> Snapshot {
        let named = |names: &[&str], volumes: &[super::mix::Volume]| {
            let volume = |it: &super::mix::Volume| Volume {
                frames: it.frames,
                bytes: it.bytes,
            };
            let pairs = names.iter().zip(volumes);
            pairs
                .map(|(name, it)| ((*name).to_owned(), volume(it)))
                .collect()
        };
        let bounds = SIZES.iter().copied().map(Some).chain([None]);
        Snapshot {
            frames: self.mix.total.frames,
            bytes: self.mix.total.bytes,
            frames_per_s: self.queues.iter().map(|it| it.frames_per_s).sum(),
            bits_per_s: self.queues.iter().map(|it| it.bits_per_s).sum(),
            protocols: named(&PROTOCOLS, &self.mix.protocols),
            traits: named(&TRAITS, &self.mix.traits),
            sizes: bounds
                .zip(self.mix.sizes)
                .map(|(up_to, frames)| SizeBin { up_to, frames })
                .collect(),
            talkers: TopTalkers {
                over_s: self.over_ns.min(WINDOW_NS) as f64 / 1e9,
                by_bytes: top(self.by_bytes),
                by_frames: top(self.by_frames),
            },
            inter_arrival: self.inter_arrival.as_ref().and_then(Distribution::of),
            hold: self.hold.as_ref().and_then(Distribution::of),
            queues: self.queues,
        }
    }
}

/// Adds a histogram to the sum of those before it; all have the same bounds.
fn add(sum: &mut Option<Histogram<u64>>, values: &Histogram<u64>) {
    match sum {
        Some(sum) => sum.add(values).unwrap_or_default(),
        None => *sum = Some(values.clone()),
    }
}

fn gather<'a>(
    sums: &mut HashMap<Address, Counter<Address>>,
    counters: impl Iterator<Item = &'a Counter<Address>>,
) {
    for counter in counters {
        let sum = sums.entry(counter.key).or_default();
        sum.key = counter.key;
        sum.count += counter.count;
        sum.error += counter.error;
    }
}

/// The heaviest, equal ones in the order of their names.
fn top(counters: HashMap<Address, Counter<Address>>) -> Vec<Talker> {
    let mut all: Vec<_> = counters.into_values().collect();
    all.sort_unstable_by_key(|it| std::cmp::Reverse(it.count));
    // Names are made of few; of equals at the cut, any may be in.
    all.truncate(TOP);
    let mut talkers: Vec<_> = all
        .into_iter()
        .map(|it| Talker {
            address: it.key.to_string(),
            count: it.count,
            error: it.error,
        })
        .collect();
    talkers.sort_by(|a, b| (b.count, &a.address).cmp(&(a.count, &b.address)));
    talkers
}
