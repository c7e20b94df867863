//! Which queue each frame of a capture would take under a configuration, without a NIC.
//!
//! ```text
//! frame -> what the NIC would see of it (sight) -> profile, hash, queue (crate rss) -> tallies, flows -> Report
//! ```
//!
//! May import: [`crate::config`], [`crate::Error`] and crate `rss`.
//!
//! Invariants: every frame is on exactly one queue, so that the queues' sums are the totals; the way from frame to
//! queue is the one that the engine installs, by the same functions. Memory grows with the flows seen, by about a
//! hundred bytes each, and with nothing else.

mod flows;
mod report;
mod sight;
mod suggest;

pub use report::{
    ByReason, Directions, Flow, QueueLoad, Report, Setting, Skew, Spread, Suggestion,
};
pub use suggest::Limits;

use crate::{
    Error,
    config::{self, Config},
};
use flows::Flows;
use rss::{HashDepth, IndirectionTable, Profile, RssKey, Toeplitz};
use sight::{CatchAllReason, HostsReason, Sight};
use suggest::Candidates;

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
    toeplitz: Toeplitz,
    table: IndirectionTable,
    sight: Sight,
    queues: Vec<Load>,
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
    /// The configuration has no such key, table or number of queues.
    pub fn new(config: &Config, suggest: bool) -> Result<Self, Error> {
        let refuse = |key: &str, value: String, problem: String| Error::Config {
            key: key.into(),
            value,
            problem,
        };
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
            config::Mode::Filtered => notes.push(
                "mode \"filtered\": the rules are not looked at; every frame is spread as if a rule had taken it".into(),
            ),
        }
        let key: RssKey =
            config.rss.key.parse().map_err(|e: rss::KeyError| {
                refuse("rss.key", config.rss.key.clone(), e.to_string())
            })?;
        let size = config.rss.table_size;
        let table = IndirectionTable::new(size, queues, &config.rss.weights)
            .map_err(|e| refuse("rss.table_size", size.to_string(), e.to_string()))?;
        let depth = match config.rss.hash {
            config::HashDepth::L3 => HashDepth::L3,
            config::HashDepth::L4 => HashDepth::L4,
        };
        Ok(Self {
            spread: Spread {
                mode: config.capture.mode.to_string(),
                queues,
                hash: config.rss.hash.to_string(),
                key: config.rss.key.clone(),
                symmetric: key.is_symmetric(),
                table_size: size,
                weights: config.rss.weights.clone(),
                notes,
            },
            depth,
            toeplitz: Toeplitz::new(&key),
            table,
            sight: Sight::default(),
            queues: vec![Load::default(); usize::from(queues)],
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
        let seen = self.sight.of(bytes, len);
        let profile = seen.profile(self.depth);
        let hash = seen.hash(profile.hash_fields(), &self.toeplitz);
        let queue = hash.map_or(0, |hash| self.table.queue_of(hash));
        if let Some(load) = self.queues.get_mut(usize::from(queue)) {
            load.add(len);
        }
        match profile {
            Profile::CatchAll => self.catch_all[seen.why_catch_all() as usize].add(len),
            Profile::Ipv4 | Profile::Ipv6 => self.hosts[seen.why_hosts() as usize].add(len),
            _ => {}
        }
        self.flows.count(&seen, queue, len);
        if let Some(candidates) = &mut self.candidates {
            candidates.count(&seen, len);
        }
    }

    /// What came of it.
    #[must_use]
    pub fn report(self, limits: Limits) -> Report {
        report::report(self, limits)
    }
}

#[cfg(test)]
mod tests;
