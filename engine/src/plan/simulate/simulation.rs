//! Simulation of a configuration: determines the queue of each frame and counts it.

use super::{
    nic_view::NicView,
    report::{SimulatedSpread, SimulationReport},
    rules::{FrameDestination, Rules},
    suggest::Candidates,
    tally::Tally,
    tunnel::TunnelContent,
};
use crate::{
    Error,
    config::{self, Config},
    plan::{
        queues::DEFAULT_QUEUES,
        steering::{self, Spread, Steering},
    },
};
use wqcap_rss::{HashDepth, IndirectionTable, Profile, RssKey, Toeplitz};

/// Simulation of a configuration: it spreads a file's frames over queues without a NIC.
pub struct Simulation {
    /// Settings that determine the spread of frames over queues.
    spread: SimulatedSpread,
    /// Headers that the RSS hash covers: IP addresses, or addresses and ports.
    depth: HashDepth,
    /// Flow rules that a run would install, against which frames are matched.
    rules: Rules,
    /// Toeplitz hash with the configured RSS key.
    toeplitz: Toeplitz,
    /// RSS indirection table from hash to queue.
    table: IndirectionTable,
    /// Completer of the whole simulated frame, as the NIC would see it.
    outer_view: NicView,
    /// Completer of the packet inside a simulated frame's tunnel, as the NIC would see it.
    inner_view: NicView,
    /// Counts of the frames simulated so far, by destination.
    pub(super) tally: Tally,
    /// Load of the queues under other settings; `None` if no suggestion is requested.
    candidates: Option<Candidates>,
}

impl Simulation {
    /// Creates a simulation of `config`. With `suggest`, it also measures the load under other
    /// settings.
    ///
    /// # Errors
    /// The RSS key, the table size, the weights or the number of queues is invalid, or a run would
    /// refuse the rules.
    pub fn new(config: &Config, suggest: bool) -> Result<Self, Error> {
        let mut notes = Vec::new();
        let cores = config.capture.cores.as_ref().map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            Vec::len,
        );
        let by_default = u16::try_from(cores.clamp(1, DEFAULT_QUEUES)).unwrap_or(1);
        let mut queues = config.capture.queues.unwrap_or(by_default);
        if config.capture.mode == config::Mode::Sniffer {
            queues = 1;
            notes.push("mode \"sniffer\" has one queue, which takes every frame".into());
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
            spread: SimulatedSpread {
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
            rules: Rules::new(Steering::from_config(config, queues)?),
            toeplitz: Toeplitz::new(&key),
            table,
            outer_view: NicView::default(),
            inner_view: NicView::default(),
            tally: Tally::new(queues),
            candidates: suggest.then(|| Candidates::new(&key)),
        })
    }

    /// Counts an Ethernet frame of a capture file, with `len` bytes on the wire and the time stamp
    /// `ns`. The file holds the frame's first bytes, `bytes`.
    pub fn frame(&mut self, bytes: &[u8], len: u32, ns: u64) {
        self.tally.stamp(ns);
        let outer = self.outer_view.frame(bytes, len);
        let content = if self.rules.match_tunnels {
            TunnelContent::find(&outer)
        } else {
            None
        };
        let inner = content
            .as_ref()
            .map(|it| it.inner_frame(&mut self.inner_view));
        let qp = match self.rules.fate(&outer, inner.as_ref()) {
            FrameDestination::Qp(qp) => self.rules.steering.qps[qp],
            FrameDestination::Dropped => return self.tally.dropped.count(len),
            FrameDestination::Left => return self.tally.left.count(len),
        };
        let inner = inner.as_ref().filter(|_| qp.inner);
        let seen = inner.map_or(&outer, |it| &it.seen);
        let queue = match qp.spread {
            Spread::Queue(queue) => queue,
            Spread::Table => {
                let hash = seen.hash(qp.profile.hash_fields(), &self.toeplitz);
                hash.map_or(0, |hash| self.table.queue_of(hash))
            }
        };
        self.tally.count(seen, queue, len);
        match (qp.profile, qp.spread) {
            // The frame is not hashed. A user's rule to queue 0 has the same QP, but its frames may
            // have a profile.
            (Profile::CatchAll, Spread::Queue(0))
                if seen.profile(self.depth) == Profile::CatchAll =>
            {
                self.tally.count_catch_all(seen, len);
            }
            (Profile::Ipv4 | Profile::Ipv6, _) => self.tally.count_hosts(seen, len),
            _ => {}
        }
        if let Some(candidates) = &mut self.candidates {
            candidates.count(seen, len);
        }
    }

    /// Returns the report of the simulation. A suggestion uses at most `most_queues` queues, or the
    /// configured number if that is larger.
    #[must_use]
    pub fn report(self, most_queues: u16) -> SimulationReport {
        self.tally.report(self.spread, self.candidates, most_queues)
    }
}
