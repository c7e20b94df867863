//! What would spread a capture better: every candidate is measured on the capture itself, not guessed.
//!
//! A table of any size up to 8192 entries uses no more than the low 13 bits of a hash. Loads by those bits, for
//! each way of hashing, are thus all it takes to tell what any number of queues and any weights would have done.

use super::{
    nic_view::{HostsReason, SeenFrame},
    report::{Directions, SimulatedSpread, SuggestedSetting, Suggestion},
};
use crate::stats::traffic::Volume;
use strum::VariantNames;
use wqcap_rss::{HashDepth, IndirectionTable, RssKey, Toeplitz};

const BUCKETS: usize = IndirectionTable::MAX_SIZE as usize;
/// The busiest queue's part may be this much above the best there is, for fewer queues or for whole flows.
const AS_GOOD: f64 = 1.1;
/// A change that lowers the busiest queue's part by less than this is none.
const WORTH_IT: f64 = 0.95;
/// Fragments in at least this part of the frames count.
const MANY_FRAGMENTS: f64 = 0.01;
/// Weights are multiples of one over this.
const WEIGHT: f64 = 16.0;

/// Loads under each way of hashing.
pub(super) struct Candidates {
    ways: Vec<Way>,
    /// What goes to queue 0 whatever the hash.
    fixed: Volume,
}

struct Way {
    depth: HashDepth,
    symmetric: bool,
    toeplitz: Toeplitz,
    buckets: Vec<Volume>,
}

impl Candidates {
    pub(super) fn new(key: &RssKey) -> Self {
        let mut keys = vec![*key];
        if !key.is_symmetric() {
            keys.push(RssKey::SYMMETRIC);
        }
        let ways = keys
            .iter()
            .flat_map(|key| [HashDepth::L4, HashDepth::L3].map(|depth| (key, depth)))
            .map(|(key, depth)| Way {
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

    pub(super) fn count(&mut self, seen: &SeenFrame<'_>, len: u32) {
        for (i, way) in self.ways.iter_mut().enumerate() {
            let profile = seen.profile(way.depth);
            match seen.hash(profile.hash_fields(), &way.toeplitz) {
                Some(hash) => way.buckets[hash as usize % BUCKETS].count(len),
                // No depth and no key hashes it: it is the same frame in every way.
                None if i == 0 => self.fixed.count(len),
                None => {}
            }
        }
    }

    /// `None`: there were no frames.
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

    fn key(
        &self,
        choice: &mut Choice,
        now: &SimulatedSpread,
        directions: Directions,
    ) -> SuggestedSetting {
        let changes = !now.symmetric && directions.split > 0;
        choice.symmetric |= changes;
        let why = match (now.symmetric, changes) {
            (true, _) => "both directions of a flow share a queue, as they should".into(),
            (_, true) => format!(
                "{} of {} two-way flows have their directions on two queues",
                directions.split, directions.both
            ),
            _ => "no two-way flow was split here, though the key does not ensure that".into(),
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
            "over {most} queues the busiest would have {} by addresses and ports, {} by addresses alone",
            percent(l4),
            percent(l3)
        );
        let (depth, why) = if fragments >= MANY_FRAGMENTS && l3 <= l4 * AS_GOOD {
            (
                HashDepth::L3,
                format!(
                    "{} of the frames are fragments, which stay with their flow when only addresses are hashed; {compared}",
                    percent(fragments)
                ),
            )
        } else if l4 < l3 * WORTH_IT {
            (HashDepth::L4, compared)
        } else {
            (now, format!("as good as the other way: {compared}"))
        };
        choice.depth = depth;
        SuggestedSetting {
            key: "rss.hash",
            value: depth.to_string(),
            changes: depth != now,
            why,
        }
    }

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
                ", since the catch-all's {} stay on queue 0",
                percent(catch_all)
            )
        } else if top >= best * 0.8 {
            format!(", since one flow alone is {}", percent(top))
        } else {
            String::new()
        };
        let why = if queues == most {
            format!(
                "the busiest queue has {}; none of the smaller numbers up to {most} does as well{cause}",
                percent(busiest)
            )
        } else {
            format!(
                "the busiest queue has {}, and no number up to {most} brings it below {}{cause}",
                percent(busiest),
                percent(best)
            )
        };
        SuggestedSetting {
            key: "capture.queues",
            value: queues.to_string(),
            changes: queues != now,
            why,
        }
    }

    /// Weights make up for what the catch-all puts on queue 0, since that lasts. They do not chase single flows, whose
    /// places in the table are chance and change with the next connection.
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
                "the catch-all puts {} on queue 0 beside its share; with less of the table there, the busiest queue \
                 has {} in place of {}",
                percent(catch_all),
                percent(weighted),
                percent(equal)
            )
        } else if catch_all > 0.0 {
            format!(
                "equal: the catch-all's {} on queue 0 do not call for other weights",
                percent(catch_all)
            )
        } else {
            "equal: nothing goes to the catch-all".into()
        };
        let same = choice.weights == now || (choice.weights.is_empty() && all_equal(now));
        SuggestedSetting {
            key: "rss.weights",
            value: format!("{:?}", choice.weights),
            changes: !same,
            why,
        }
    }

    fn total(&self) -> Volume {
        let mut total = self.fixed;
        for bucket in self.ways.first().iter().flat_map(|way| &way.buckets) {
            total += *bucket;
        }
        total
    }

    /// The busiest queue's part of all load, by frames or by bytes, whichever is more; `None`: there is no such table.
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

/// A way to spread.
#[derive(Clone)]
struct Choice {
    symmetric: bool,
    depth: HashDepth,
    queues: u16,
    weights: Vec<u32>,
}

/// The part of frames or of bytes, whichever is more.
fn part(load: Volume, total: Volume) -> f64 {
    let of = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
    of(load.frames, total.frames).max(of(load.bytes, total.bytes))
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn all_equal(weights: &[u32]) -> bool {
    weights.windows(2).all(|pair| pair[0] == pair[1])
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
