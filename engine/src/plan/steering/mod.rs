//! Steering: the RSS QPs and flow rules of a capture mode and its configured rules (`[[rule]]`).
//!
//! May import: [`crate::config`], [`crate::filter`], [`crate::plan::steering::rule_priority`], [`crate::verbs`]' plain rule types, `rss`. Pure:
//! nothing is created here.
//!
//! One RSS QP hashes one L3 and at most one L4 type, so each of the user's rules is split by
//! profile: every pair of L3 and L4 types that the rule can match gets a hardware rule to that
//! pair's QP. Within one priority of the user, rules of more specific profiles come before those of
//! more general ones, in the order of [`Profile::priority_offset`].

mod describe;
mod expression;
mod filtered;
mod frame_match;
pub mod rule_priority;
#[cfg(test)]
mod tests;

pub use describe::describe;
pub use expression::{Split, SplitError};

use crate::{
    Error,
    config::{self, Config, Mode, RuleConfig},
    filter::{self, FilterCompiler},
    plan::steering::rule_priority::RUNGS,
    verbs::{FlowKind, FlowSpec},
};
use frame_match::{FrameMatch, Ip, inner_specs};
use serde::{Serialize, Serializer};
use wqcap_rss::profile::{HashDepth, HashFields, Profile};

/// First rule priority of mode `steal`, which leaves room in front for rules of other programs.
const STEAL_BASE: u16 = 8;
/// First priority of flow rules on packets inside tunnels, in front of `STEAL_BASE`: one rank for
/// each of the two offsets of profiles that hash.
const TUNNEL_BASE: u16 = STEAL_BASE - 2 * SIDES;
/// Ranks per priority of a configured flow rule: one for each value of
/// [`Profile::priority_offset`].
const STEP: u16 = 3;
/// Number of hardware priorities from one rank of flow rules to the next, if there are enough.
///
/// Rules move to the free priorities in between when rules are swapped or added.
const SIDES: u16 = 2;
/// Largest priority of a configured flow rule: with `STEP` ranks for each priority, all ranks fit
/// the hardware priorities of mlx5.
pub const MAX_PRIORITY: u16 = 4;

/// Destination of an RSS QP's frames: the shared indirection table or one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// Shared indirection table as the QP's destination, indexed by the profile's hash.
    Table,
    /// One queue as the QP's destination, through a table of one entry.
    Queue(u16),
}

/// Plan of one RSS QP: the headers that it hashes, and the destination of its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QpPlan {
    /// RSS profile whose headers the QP hashes; the catch-all hashes nothing.
    #[serde(serialize_with = "super::port::text")]
    pub profile: Profile,
    /// Destination of the QP's frames: the shared indirection table or one queue.
    pub spread: Spread,
    /// `true` if the QP hashes the headers inside a tunnel.
    pub inner: bool,
}

impl QpPlan {
    /// Returns the header fields that the QP's RSS hash covers.
    #[must_use]
    pub fn hash_fields(&self) -> HashFields {
        let fields = self.profile.hash_fields();
        if self.inner {
            fields | HashFields::INNER
        } else {
            fields
        }
    }
}

/// Plan of one flow rule on the port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RulePlan {
    /// Name of the flow rule: its profile, and the number of the user's rule if there is one.
    pub name: String,
    /// Kind of the flow rule: `sniffer`, which copies frames, or a normal match.
    #[serde(skip)]
    pub kind: FlowKind,
    /// Hardware priority of the flow rule; lower values match first.
    pub priority: u16,
    /// Order of the flow rule, in the sense of `priority`, that is comparable between steerings of
    /// the same mode.
    #[serde(skip)]
    pub rank: u16,
    /// Flow specs of the rule that a frame must match.
    #[serde(rename = "match", serialize_with = "text_of_specs")]
    pub specs: Vec<FlowSpec>,
    /// Index of the flow rule's QP in [`Steering::qps`].
    pub qp: usize,
}

/// QPs and flow rules of a run, in the order of their creation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Steering {
    /// RSS QPs of the run, in the order of their creation.
    pub qps: Vec<QpPlan>,
    /// Flow rules of the run, more specific rules before more general ones.
    pub rules: Vec<RulePlan>,
    /// Configured flow rules (`[[rule]]`) that the steering was made from; `None` without such
    /// rules and in modes other than `filtered`.
    #[serde(skip)]
    pub asked: Option<Vec<RuleConfig>>,
    /// Split of the filter expression that the flow rules were derived from; `None` if they come
    /// from configured rules or from a mode.
    #[serde(rename = "filter", skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
}

/// Serializes the flow specs of a rule as their readable text.
fn text_of_specs<S: Serializer>(specs: &[FlowSpec], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&describe(specs))
}

impl Steering {
    /// Creates the steering of a configuration over `queues` queues.
    ///
    /// # Errors
    /// A rule is invalid, rules would duplicate frames, or the mode supports fewer queues.
    pub fn from_config(config: &Config, queues: u16) -> Result<Self, Error> {
        Self::with_filters(config, queues, &FilterCompiler::default())
    }

    /// Plans the steering like [`Steering::from_config`]; `filters` compiles the capture filter.
    pub(super) fn with_filters(
        config: &Config,
        queues: u16,
        filters: &FilterCompiler,
    ) -> Result<Self, Error> {
        let depth = depth(config);
        match config.capture.mode {
            mode if config.rss.inner && mode != Mode::Steal => Err(Error::config(
                "rss.inner",
                true,
                format!(
                    "mode \"{mode}\" has no flow rules for packets inside tunnels; set capture.mode = \"steal\""
                ),
            )
            .involving(&["capture.mode"])),
            Mode::Steal => Ok(Self::steal(depth, config.rss.inner)),
            Mode::Sniffer if queues > 1 => Err(Error::config(
                "capture.queues",
                queues,
                "mode \"sniffer\" has one queue, since its rules cannot distinguish protocols; spread its frames over \
                 threads with pipeline.mode = \"fanout\"",
            )
            .involving(&["pipeline.mode"])),
            Mode::Sniffer => Ok(Self::sniffer()),
            Mode::Filtered if config.rule.is_empty() => {
                Self::by_filter(&config.capture.filter, depth, filters)
            }
            Mode::Filtered => Self::filtered(&config.rule, depth, queues),
        }
    }

    /// Returns the flow rules that name a protocol but no port, and whose IPv4 fragments no other
    /// rule takes.
    pub(super) fn rules_without_fragments(&self) -> Vec<String> {
        let whole = |it: &FrameMatch| describe(&it.specs(Profile::CatchAll));
        let of_filter = self.split.iter().flat_map(|it| &it.fragments).map(whole);
        // Invalid rules have been refused before.
        let asked = self.asked.iter().flatten();
        let asked: Vec<_> = asked
            .filter_map(|it| FrameMatch::from_rule(it).ok())
            .collect();
        let unsure = (1..).zip(&asked);
        let unsure = unsure.filter(|(_, it)| !it.has_its_fragments_taken_by(&asked));
        let of_rules = unsure.map(|(number, _)| format!("rule {number}"));
        of_filter.chain(of_rules).collect()
    }

    /// Creates the steering of mode `steal`: flow rules for every frame, by RSS profile.
    fn steal(depth: HashDepth, inner: bool) -> Self {
        let mut steering = Self::default();
        if inner {
            steering.tunnels(depth);
        }
        for profile in Profile::to_install(depth) {
            let qp = steering.qp(*profile, None);
            let rank = STEAL_BASE + SIDES * u16::from(profile.priority_offset());
            let specs = FrameMatch::default().specs(*profile);
            steering.push(profile.to_string(), rank, specs, qp);
        }
        steering
    }

    /// Adds flow rules for IP inside VXLAN and GRE tunnels over both IP versions, hashed by the
    /// inner headers, in front of the other rules. Tunnels with other contents fall through to the
    /// rules for their outer headers.
    fn tunnels(&mut self, depth: HashDepth) {
        let profiles = Profile::to_install(depth).iter();
        for profile in profiles.filter(|it| **it != Profile::CatchAll) {
            let qp = self.qps.len();
            self.qps.push(QpPlan {
                profile: *profile,
                spread: Spread::Table,
                inner: true,
            });
            for tunnel in ["vxlan", "gre"] {
                for ip in [Ip::V4, Ip::V6] {
                    let mut specs = FrameMatch::tunnel(tunnel == "vxlan", ip);
                    specs.extend(inner_specs(*profile));
                    let rank = TUNNEL_BASE + SIDES * u16::from(profile.priority_offset());
                    self.push(format!("{tunnel} {profile}"), rank, specs, qp);
                }
            }
        }
    }

    /// Creates the steering of mode `sniffer`: one flow rule to one queue.
    fn sniffer() -> Self {
        let mut steering = Self::default();
        let qp = steering.qp(Profile::CatchAll, None);
        steering.push("sniffer".into(), 0, Vec::new(), qp);
        steering.rules[0].kind = FlowKind::Sniffer;
        steering
    }

    /// Creates flow rules, by RSS profile, for the frames that a filter keeps. Rules of one
    /// priority that match the same frame lead to the same QP.
    fn by_filter(
        expression: &str,
        depth: HashDepth,
        filters: &FilterCompiler,
    ) -> Result<Self, Error> {
        if expression.trim().is_empty() {
            return Err(Error::config(
                "capture.mode",
                "\"filtered\"",
                "no [[rule]] and no capture.filter selects frames; set one of them",
            )
            .involving(&["rule", "capture.filter"]));
        }
        let refused = |problem: &dyn std::error::Error| {
            Error::config(
                "capture.filter",
                filter::quoted_expression(expression),
                format!(
                    "mode \"filtered\" has no [[rule]] and cannot derive rules from this filter: {problem}; change the expression, \
                     write [[rule]]s, or use mode \"steal\""
                ),
            )
            .involving(&["rule"])
        };
        let filter = filters.compile(expression).map_err(|e| refused(&e))?;
        let split = Split::from_filter(&filter).map_err(|e| refused(&e))?;
        let mut steering = Self::default();
        for wanted in &split.matches {
            for profile in wanted.profiles(depth, false) {
                let (qp, rank) = (steering.qp(profile, None), profile.priority_offset());
                let name = format!("filter {profile}");
                steering.push(name, rank.into(), wanted.specs(profile), qp);
            }
        }
        steering.split = Some(split);
        steering.rules.sort_by_key(|r| r.rank);
        steering.close_ranks();
        Ok(steering)
    }

    /// Adds a flow rule whose priority is its rank.
    fn push(&mut self, name: String, rank: u16, specs: Vec<FlowSpec>, qp: usize) {
        self.rules.push(RulePlan {
            name,
            kind: FlowKind::Normal,
            priority: rank,
            rank,
            specs,
            qp,
        });
    }

    /// Assigns hardware priorities to the flow rules in the order of their ranks: without gaps for
    /// unused ranks, and with free priorities between ranks if there are enough.
    fn close_ranks(&mut self) {
        let mut ranks: Vec<_> = self.rules.iter().map(|rule| rule.rank).collect();
        ranks.dedup();
        let has_room = ranks.len() <= usize::from(RUNGS / SIDES);
        let step = if has_room { SIDES } else { 1 };
        for rule in &mut self.rules {
            let rank = ranks.iter().position(|it| *it == rule.rank);
            rule.priority = u16::try_from(rank.unwrap_or(0)).unwrap_or(0) * step;
        }
    }

    /// Returns the index of the QP for an RSS profile or for a single queue, and adds the QP if it
    /// is missing.
    fn qp(&mut self, profile: Profile, queue: Option<u16>) -> usize {
        let (profile, spread) = match (queue, profile) {
            (Some(queue), _) => (Profile::CatchAll, Spread::Queue(queue)),
            // Frames without a hash need a table of one entry.
            (None, Profile::CatchAll) => (profile, Spread::Queue(0)),
            (None, _) => (profile, Spread::Table),
        };
        let wanted = QpPlan {
            profile,
            spread,
            inner: false,
        };
        self.qps
            .iter()
            .position(|qp| *qp == wanted)
            .unwrap_or_else(|| {
                self.qps.push(wanted);
                self.qps.len() - 1
            })
    }
}

/// Returns the configured depth of the RSS hash: addresses only, or addresses and ports.
#[must_use]
pub fn depth(config: &Config) -> HashDepth {
    match config.rss.hash {
        config::HashDepth::L3 => HashDepth::L3,
        config::HashDepth::L4 => HashDepth::L4,
    }
}
