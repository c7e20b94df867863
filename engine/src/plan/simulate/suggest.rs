//! Suggestion of settings that spread a capture file's frames better over queues, measured on the
//! file itself.
//!
//! A table of up to 8192 entries uses only the low 13 bits of a hash. So the load by these bits,
//! for each kind of hash, determines the load of any number of queues with any weights.

use super::{
    nic_view::{HostsReason, NicFrame},
    report::{Directions, SimulatedSpread, SuggestedSetting, Suggestion},
};
use crate::stats::traffic::Volume;
use strum::VariantNames;
use wqcap_rss::{HashDepth, IndirectionTable, RssKey, Toeplitz};

/// Number of hash buckets by which load is counted: one for each value of the low 13 bits of a
/// hash.
const BUCKETS: usize = IndirectionTable::MAX_SIZE as usize;
/// Accepted ratio of the busiest queue's share to the best share, in exchange for fewer queues or
/// for flows that are not split.
const AS_GOOD: f64 = 1.1;
/// Maximum ratio of the new to the old share of the busiest queue at which a change of settings is
/// suggested.
const WORTH_IT: f64 = 0.95;
/// Minimum share of IP fragments among frames at which they are taken into account.
const MANY_FRAGMENTS: f64 = 0.01;
/// Weight of a queue with a full share; weights are integers up to this value before they are
/// reduced.
const WEIGHT: f64 = 16.0;

/// Load of the simulated frames under each kind of RSS hash.
pub(super) struct Candidates {
    /// Kinds of RSS hash (covered headers and key) that are measured.
    ways: Vec<HashChoice>,
    /// Load of the frames that no RSS hash covers, which go to queue 0.
    fixed: Volume,
}

/// Kind of RSS hash, and the load by hash bits under it.
struct HashChoice {
    /// Headers that the RSS hash covers: IP addresses, or addresses and ports.
    depth: HashDepth,
    /// `true` if the key gives both directions of a flow the same hash.
    symmetric: bool,
    /// Toeplitz hash with the measured key.
    toeplitz: Toeplitz,
    /// Load by the low 13 bits of the RSS hash.
    buckets: Vec<Volume>,
}

impl Candidates {
    /// Creates empty load counts for `key` and the symmetric key, with both hash depths.
    pub(super) fn new(key: &RssKey) -> Self {
        let mut keys = vec![*key];
        if !key.is_symmetric() {
            keys.push(RssKey::SYMMETRIC);
        }
        let ways = keys
            .iter()
            .flat_map(|key| [HashDepth::L4, HashDepth::L3].map(|depth| (key, depth)))
            .map(|(key, depth)| HashChoice {
                depth,
                symmetric: key.is_symmetric(),
                toeplitz: Toeplitz::new(key),
                buckets: vec![Volume::default(); BUCKETS],
            })
            .collect();
        Self {
            ways,
            fixed: Volume::default(),
        }
    }

    /// Counts a simulated frame under each kind of RSS hash.
    pub(super) fn count(&mut self, seen: &NicFrame<'_>, len: u32) {
        for (i, way) in self.ways.iter_mut().enumerate() {
            let profile = seen.profile(way.depth);
            match seen.hash(profile.hash_fields(), &way.toeplitz) {
                Some(hash) => way.buckets[hash as usize % BUCKETS].count(len),
                // A frame without a hash has none under any depth and key, so it is counted once.
                None if i == 0 => self.fixed.count(len),
                None => {}
            }
        }
    }

    /// Suggests settings that spread the load better, or returns `None` without any frames.
    pub(super) fn suggest(
        &self,
        now: &SimulatedSpread,
        directions: Directions,
        hosts: [Volume; HostsReason::VARIANTS.len()],
        top: Volume,
        most_queues: u16,
    ) -> Option<Suggestion> {
        let total = self.total();
        if total.frames == 0 {
            return None;
        }
        let depth_now = if now.hash == "l3" {
            HashDepth::L3
        } else {
            HashDepth::L4
        };
        let current = Choice {
            symmetric: now.symmetric,
            depth: depth_now,
            queues: now.queues,
            weights: now.weights.clone(),
        };
        let size = now.table_size;
        let most = most_queues.max(now.queues);
        let busiest_now = self.busiest(&current, size)?;
        let mut choice = Choice {
            weights: Vec::new(),
            ..current.clone()
        };
        let fragments = hosts[HostsReason::Fragments as usize].frames as f64 / total.frames as f64;
        let mut settings = vec![
            self.key(&mut choice, now, directions),
            self.hash(&mut choice, depth_now, size, most, fragments),
            self.queues(&mut choice, now.queues, size, most, part(top, total)),
        ];
        settings.push(self.weights(&mut choice, &now.weights, size));
        Some(Suggestion {
            settings,
            busiest_now,
            busiest_then: self.busiest(&choice, size)?,
        })
    }

    /// Suggests `rss.key`: the symmetric key if the present key splits flows.
    fn key(
        &self,
        choice: &mut Choice,
        now: &SimulatedSpread,
        directions: Directions,
    ) -> SuggestedSetting {
        let changes = !now.symmetric && directions.split > 0;
        choice.symmetric |= changes;
        let why = match (now.symmetric, changes) {
            (true, _) => "the key keeps both directions of a flow on one queue".into(),
            (_, true) => format!(
                "{} of {} two-way flows have their two directions on different queues",
                directions.split, directions.both
            ),
            _ => "no two-way flow was split in this capture, but the key does not ensure it".into(),
        };
        SuggestedSetting {
            key: "rss.key",
            value: if changes {
                "symmetric".into()
            } else {
                now.key.clone()
            },
            changes,
            why,
        }
    }

    /// Suggests `rss.hash`: addresses only if there are many fragments, else the depth that spreads
    /// better.
    fn hash(
        &self,
        choice: &mut Choice,
        now: HashDepth,
        size: u32,
        most: u16,
        fragments: f64,
    ) -> SuggestedSetting {
        let busiest = |depth| {
            let wide = Choice {
                depth,
                queues: most,
                ..choice.clone()
            };
            self.busiest(&wide, size).unwrap_or(1.0)
        };
        let (l3, l4) = (busiest(HashDepth::L3), busiest(HashDepth::L4));
        let compared = format!(
            "over {most} queues the busiest one would have {} of the load when addresses and ports are hashed, {} when only \
             addresses are",
            percent(l4),
            percent(l3)
        );
        let (depth, why) = if fragments >= MANY_FRAGMENTS && l3 <= l4 * AS_GOOD {
            (
                HashDepth::L3,
                format!(
                    "{} of the frames are fragments, and a hash of addresses alone puts fragments on the queue of their flow; {compared}",
                    percent(fragments)
                ),
            )
        } else if l4 < l3 * WORTH_IT {
            (HashDepth::L4, compared)
        } else {
            (
                now,
                format!("the other value of rss.hash does not spread the load better: {compared}"),
            )
        };
        choice.depth = depth;
        SuggestedSetting {
            key: "rss.hash",
            value: depth.to_string(),
            changes: depth != now,
            why,
        }
    }

    /// Suggests `capture.queues`: the smallest number that spreads the load nearly as well as the
    /// best.
    fn queues(
        &self,
        choice: &mut Choice,
        now: u16,
        size: u32,
        most: u16,
        top: f64,
    ) -> SuggestedSetting {
        let with: Vec<_> = (1..=most)
            .filter_map(|queues| {
                let choice = Choice {
                    queues,
                    ..choice.clone()
                };
                Some((queues, self.busiest(&choice, size)?))
            })
            .collect();
        let best = with.iter().map(|(_, b)| *b).fold(1.0, f64::min);
        let (queues, busiest) = with
            .iter()
            .copied()
            .find(|(_, b)| *b <= best * AS_GOOD)
            .unwrap_or((now, 1.0));
        choice.queues = queues;
        let catch_all = part(self.fixed, self.total());
        let cause = if catch_all >= best * 0.8 {
            format!(
                "the catch-all rule sends {} of the load to queue 0",
                percent(catch_all)
            )
        } else if top >= best * 0.8 {
            format!(
                "a single flow has {} of the load, and one queue receives all of a flow",
                percent(top)
            )
        } else {
            String::new()
        };
        let why = if queues == most {
            format!(
                "the busiest queue has {} of the load; fewer queues than {most} spread the load less evenly",
                percent(busiest)
            )
        } else {
            format!(
                "the busiest queue has {} of the load, and no number of queues up to {most} lowers that below {}",
                percent(busiest),
                percent(best)
            )
        };
        let why = match cause.is_empty() {
            true => why,
            false => format!("{why}; {cause}"),
        };
        SuggestedSetting {
            key: "capture.queues",
            value: queues.to_string(),
            changes: queues != now,
            why,
        }
    }

    /// Suggests `rss.weights` that compensate for the load of the catch-all rule on queue 0, which
    /// is permanent.
    ///
    /// Single flows are not compensated: their table entries are random and change with the next
    /// connection.
    fn weights(&self, choice: &mut Choice, now: &[u32], size: u32) -> SuggestedSetting {
        let equal = self.busiest(choice, size).unwrap_or(1.0);
        let catch_all = part(self.fixed, self.total());
        let queues = f64::from(choice.queues);
        let own = ((1.0 - queues * catch_all).max(0.0) * WEIGHT).round();
        let mut weights = vec![WEIGHT as u32; usize::from(choice.queues)];
        if let Some(first) = weights.first_mut() {
            *first = own as u32;
        }
        let common = weights.iter().fold(0, |a, b| gcd(a, *b)).max(1);
        weights.iter_mut().for_each(|w| *w /= common);
        let weighted = Choice {
            weights: weights.clone(),
            ..choice.clone()
        };
        let weighted = self.busiest(&weighted, size).unwrap_or(1.0);
        let uneven = choice.queues > 1 && own < WEIGHT && weighted < equal * WORTH_IT;
        let why = if uneven {
            choice.weights = weights;
            format!(
                "the catch-all rule adds {} of the load to queue 0; with fewer table entries for queue 0, the busiest \
                 queue has {} instead of {}",
                percent(catch_all),
                percent(weighted),
                percent(equal)
            )
        } else if catch_all > 0.0 {
            format!(
                "equal weights are best: the catch-all rule sends {} of the load to queue 0, and other weights do not change that",
                percent(catch_all)
            )
        } else {
            "the weights stay equal: no frames go to the catch-all rule".into()
        };
        let same = choice.weights == now || (choice.weights.is_empty() && all_equal(now));
        SuggestedSetting {
            key: "rss.weights",
            value: format!("{:?}", choice.weights),
            changes: !same,
            why,
        }
    }

    /// Returns the load of all simulated frames.
    fn total(&self) -> Volume {
        let mut total = self.fixed;
        for bucket in self.ways.first().iter().flat_map(|way| &way.buckets) {
            total += *bucket;
        }
        total
    }

    /// Returns the busiest queue's share of the load under the settings `choice`, by frames or by
    /// bytes, whichever is larger.
    ///
    /// Returns `None` if the RSS indirection table cannot be made or the hash was not measured.
    fn busiest(&self, choice: &Choice, size: u32) -> Option<f64> {
        let table = IndirectionTable::new(size, choice.queues, &choice.weights).ok()?;
        let way = self
            .ways
            .iter()
            .find(|way| way.depth == choice.depth && way.symmetric == choice.symmetric)?;
        let mut queues = vec![Volume::default(); usize::from(choice.queues)];
        *queues.first_mut()? += self.fixed;
        for (hash, bucket) in (0u32..).zip(&way.buckets) {
            *queues.get_mut(usize::from(table.queue_of(hash)))? += *bucket;
        }
        let total = self.total();
        Some(queues.iter().map(|q| part(*q, total)).fold(0.0, f64::max))
    }
}

/// Settings under which the load of the queues is evaluated.
#[derive(Clone)]
struct Choice {
    /// `true` if the RSS key gives both directions of a flow the same hash.
    symmetric: bool,
    /// Headers that the RSS hash covers: IP addresses, or addresses and ports.
    depth: HashDepth,
    /// Number of receive queues under these settings.
    queues: u16,
    /// Share weights of the queues; empty for equal weights.
    weights: Vec<u32>,
}

/// Returns the fraction of `total` that `load` is, by frames or by bytes, whichever is larger.
fn part(load: Volume, total: Volume) -> f64 {
    let of = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
    of(load.frames, total.frames).max(of(load.bytes, total.bytes))
}

/// Formats a share of the load as a percentage with one decimal.
fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn all_equal(weights: &[u32]) -> bool {
    weights.windows(2).all(|pair| pair[0] == pair[1])
}

/// Returns the greatest common divisor of two weights.
fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
