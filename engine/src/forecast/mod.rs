//! Which queue each frame of a capture would take under a configuration, without a NIC.
//!
//! ```text
//! frame -> what the NIC would see of it (sight, tunnel) -> its rule (rules) -> hash, queue (crate `wqcap-rss`) -> tallies,
//! flows -> Report
//! ```
//!
//! May import: [`crate::config`], [`crate::plan::steering`], the plain rule types of [`crate::verbs`], [`crate::Error`] and
//! crate `wqcap-rss`.
//!
//! Invariants: a frame is on exactly one queue, dropped by a rule, or left to the kernel, so that the queues' sums are
//! the totals; the rules are those that a run would install. Memory grows with the flows seen, by about a
//! hundred bytes each, and with nothing else.

mod flows;
mod report;
mod rules;
mod sight;
mod suggest;
mod tunnel;

pub use report::{
    ByReason, Directions, Flow, QueueLoad, Report, Setting, Skew, Spread, Suggestion,
};
pub use suggest::Limits;

use crate::{
    Error,
    config::{self, Config},
    plan::steering::{self, Spread as Target, Steering},
};
use flows::Flows;
use rules::{Fate, Rules};
use sight::{CatchAllReason, HostsReason, Seen, Sight};
use suggest::Candidates;
use tunnel::Inside;
use wqcap_rss::{HashDepth, IndirectionTable, Profile, RssKey, Toeplitz};

/// Most queues a plan has by default, as in [`crate::plan`].
const DEFAULT_QUEUES: usize = 8;

/// Frames and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Load {
    /// How many frames.
    pub frames: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
}

impl Load {
    fn add(&mut self, len: u32) {
        self.frames += 1;
        self.bytes += u64::from(len);
    }
}

impl std::ops::AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
    }
}

/// The frames counted so far, by where they would go.
pub struct Forecast {
    spread: Spread,
    depth: HashDepth,
    rules: Rules,
    toeplitz: Toeplitz,
    table: IndirectionTable,
    sight: Sight,
    inner_sight: Sight,
    queues: Vec<Load>,
    dropped: Load,
    left: Load,
    catch_all: [Load; CatchAllReason::ALL.len()],
    hosts: [Load; HostsReason::ALL.len()],
    flows: Flows,
    candidates: Option<Candidates>,
    first_ns: u64,
    last_ns: u64,
}

impl Forecast {
    /// Settles how frames would spread. With `suggest`, what other ways would do is counted too.
    ///
    /// # Errors
    /// The configuration has no such key, table or number of queues, or rules that no run would install.
    pub fn new(config: &Config, suggest: bool) -> Result<Self, Error> {
        let mut notes = Vec::new();
        let cores = config.capture.cores.as_ref().map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            Vec::len,
        );
        let by_default = u16::try_from(cores.clamp(1, DEFAULT_QUEUES)).unwrap_or(1);
        let mut queues = config.capture.queues.unwrap_or(by_default);
        match config.capture.mode {
            config::Mode::Steal => {}
            config::Mode::Sniffer => {
                queues = 1;
                notes.push("mode \"sniffer\" has one queue, which takes every frame".into());
            }
            config::Mode::Filtered => {}
        }
        let key: RssKey = config
            .rss
            .key
            .parse()
            .map_err(|e: wqcap_rss::KeyError| Error::config("rss.key", &config.rss.key, e))?;
        let size = config.rss.table_size;
        let table = IndirectionTable::new(size, queues, &config.rss.weights)
            .map_err(|e| Error::config("rss.table_size", size, e))?;
        Ok(Self {
            spread: Spread {
                mode: config.capture.mode.to_string(),
                queues,
                hash: config.rss.hash.to_string(),
                inner: config.rss.inner,
                key: config.rss.key.clone(),
                symmetric: key.is_symmetric(),
                table_size: size,
                weights: config.rss.weights.clone(),
                notes,
            },
            depth: steering::depth(config),
            rules: Rules::new(Steering::of(config, queues)?),
            toeplitz: Toeplitz::new(&key),
            table,
            sight: Sight::default(),
            inner_sight: Sight::default(),
            queues: vec![Load::default(); usize::from(queues)],
            dropped: Load::default(),
            left: Load::default(),
            catch_all: Default::default(),
            hosts: Default::default(),
            flows: Flows::default(),
            candidates: suggest.then(|| Candidates::new(&key)),
            first_ns: u64::MAX,
            last_ns: 0,
        })
    }

    /// Counts an Ethernet frame of `len` bytes on the wire, of which `bytes` were kept.
    pub fn frame(&mut self, bytes: &[u8], len: u32, ns: u64) {
        self.first_ns = self.first_ns.min(ns);
        self.last_ns = self.last_ns.max(ns);
        let outer = self.sight.of(bytes, len);
        let inside = if self.rules.look_inside() {
            Inside::of(&outer)
        } else {
            None
        };
        let inner = inside.as_ref().map(|it| it.look(&mut self.inner_sight));
        let qp = match self.rules.fate(&outer, inner.as_ref()) {
            Fate::Qp(qp) => self.rules.steering().qps[qp],
            Fate::Dropped => return self.dropped.add(len),
            Fate::Left => return self.left.add(len),
        };
        let inner = inner.as_ref().filter(|_| qp.inner);
        let seen = inner.map_or(&outer, |it| &it.seen);
        let queue = match qp.spread {
            Target::Queue(queue) => queue,
            Target::Table => {
                let hash = seen.hash(qp.profile.hash_fields(), &self.toeplitz);
                hash.map_or(0, |hash| self.table.queue_of(hash))
            }
        };
        if let Some(load) = self.queues.get_mut(usize::from(queue)) {
            load.add(len);
        }
        match (qp.profile, qp.spread) {
            (Profile::CatchAll, Target::Queue(0)) if is_catch_all(seen, self.depth) => {
                self.catch_all[seen.why_catch_all() as usize].add(len);
            }
            (Profile::Ipv4 | Profile::Ipv6, _) => self.hosts[seen.why_hosts() as usize].add(len),
            _ => {}
        }
        self.flows.count(seen, queue, len);
        if let Some(candidates) = &mut self.candidates {
            candidates.count(seen, len);
        }
    }

    /// What came of it.
    #[must_use]
    pub fn report(self, limits: Limits) -> Report {
        report::report(self, limits)
    }
}

/// Whether a frame is hashed by nothing, rather than put on queue 0 by a rule of the user's.
fn is_catch_all(seen: &Seen<'_>, depth: HashDepth) -> bool {
    seen.profile(depth) == Profile::CatchAll
}

#[cfg(test)]
mod tests;
