//! Snapshot of the live statistics: combines what the recorders published into plain serializable
//! values.

use super::{
    Bound, Distribution, QueueRate, SizeBin, Talker, TopTalkers, TrafficSnapshot, Volume,
    mix::{PROTOCOLS, SIZES, TRAITS, TrafficMix},
    recorder::Published,
    sketch::HeavyHitter,
    talkers::{Address, Talkers, WINDOW_NS},
};
use hdrhistogram::Histogram;
use std::collections::HashMap;

/// Number of heaviest senders listed in a snapshot of the live statistics.
const TOP: usize = 20;
/// Upper bounds of the bins of a summarized time histogram, in nanoseconds.
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

/// Summarizes a histogram of times; `None`: the histogram is empty.
fn distribution(values: &Histogram<u64>) -> Option<Distribution> {
    (!values.is_empty()).then(|| Distribution {
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

/// Merger of the recorders' published live statistics into one snapshot.
#[derive(Default)]
pub(super) struct Merger {
    mix: TrafficMix,
    queues: Vec<QueueRate>,
    inter_arrival: Option<Histogram<u64>>,
    hold: Option<Histogram<u64>>,
    /// Number of the newest window in which senders were counted; `None`: none yet.
    window: Option<u64>,
    over_ns: u64,
    by_bytes: HashMap<Address, HeavyHitter<Address>>,
    by_frames: HashMap<Address, HeavyHitter<Address>>,
}

impl Merger {
    /// Adds the published live statistics of a recorder of queue number `queue`. Queues must be
    /// added in order.
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

    /// Adds the heaviest senders that a recorder counted. Only senders of the newest window are
    /// combined: the window of a queue that became silent is outdated.
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

    /// Returns the combined live statistics of all recorders.
    pub(super) fn done(self) -> TrafficSnapshot {
        let named = |names: &[&str], volumes: &[Volume]| {
            let pairs = names.iter().zip(volumes);
            pairs.map(|(name, it)| ((*name).to_owned(), *it)).collect()
        };
        let bounds = SIZES.iter().copied().map(Some).chain([None]);
        TrafficSnapshot {
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
            inter_arrival: self.inter_arrival.as_ref().and_then(distribution),
            hold: self.hold.as_ref().and_then(distribution),
            queues: self.queues,
        }
    }
}

/// Adds a time histogram to a sum of histograms; all have the same bounds.
fn add(sum: &mut Option<Histogram<u64>>, values: &Histogram<u64>) {
    match sum {
        Some(sum) => sum.add(values).unwrap_or_default(),
        None => *sum = Some(values.clone()),
    }
}

fn gather<'a>(
    sums: &mut HashMap<Address, HeavyHitter<Address>>,
    counters: impl Iterator<Item = &'a HeavyHitter<Address>>,
) {
    for counter in counters {
        let sum = sums.entry(counter.key).or_default();
        sum.key = counter.key;
        sum.count += counter.count;
        sum.error += counter.error;
    }
}

/// Returns the heaviest senders in descending order; equal counts are in the order of their
/// addresses.
fn top(counters: HashMap<Address, HeavyHitter<Address>>) -> Vec<Talker> {
    let mut all: Vec<_> = counters.into_values().collect();
    all.sort_unstable_by_key(|it| std::cmp::Reverse(it.count));
    // Only the kept entries are formatted. At the limit, any of equal entries may be kept.
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
