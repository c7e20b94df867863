//! Steering: the RSS QPs and flow rules that a mode and its rule table come to.
//!
//! May import: [`crate::config`], [`crate::filter`], [`crate::plan::steering::rule_priority`], [`crate::verbs`]' plain rule types, `rss`. Pure:
//! nothing is created here.
//!
//! One RSS QP hashes one L3 and at most one L4 type, so whatever a rule takes is split by profile: for each pair of
//! L3 and L4 the rule may match, a hardware rule to that pair's QP. Within one priority of the user's, the more
//! special profiles stand before the more general ones, which is what [`Profile::priority_offset`] says.

mod describe;
mod expression;
mod filtered;
mod frame_match;
pub mod rule_priority;
#[cfg(test)]
mod tests;

pub use describe::describe;
pub use expression::Split;

use crate::{
    Error,
    config::{self, Config, Mode, RuleConfig},
    filter::{self, Filter},
    plan::steering::rule_priority::RUNGS,
    verbs::{FlowKind, FlowSpec},
};
use frame_match::{Ip, Match, inner_specs};
use serde::{Serialize, Serializer};
use wqcap_rss::profile::{HashDepth, HashFields, Profile};

/// The first priority of `steal`: rules of others, put in front on purpose, still have room.
const STEAL_BASE: u16 = 8;
/// What is in tunnels comes right before: two ranks, one for each of the profiles' offsets that hash.
const TUNNEL_BASE: u16 = STEAL_BASE - 2 * SIDES;
/// Ranks that one of the user's priorities takes: one for each of [`Profile::priority_offset`]'s.
const STEP: u16 = 3;
/// Hardware priorities from one rank to the next, where there are enough: rules move to the free ones between them
/// when they are swapped or others come in.
const SIDES: u16 = 2;
/// The largest of the user's priorities: with `STEP` ranks each, all of them fit mlx5's.
pub const MAX_PRIORITY: u16 = 4;

/// Where a QP sends frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// By the profile's hash over the shared table.
    Table,
    /// All to one queue, over a table of one entry.
    Queue(u16),
}

/// One RSS QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QpPlan {
    /// What it hashes; the catch-all hashes nothing.
    #[serde(serialize_with = "super::text")]
    pub profile: Profile,
    /// Over which table.
    pub spread: Spread,
    /// It hashes the headers inside a tunnel.
    pub inner: bool,
}

impl QpPlan {
    /// What its hash covers.
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

/// One flow rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RulePlan {
    /// What it is for: a profile's name, with the number of the user's rule where there is one.
    pub name: String,
    /// `sniffer`, or a match.
    #[serde(skip)]
    pub kind: FlowKind,
    /// Lower is matched first.
    pub priority: u16,
    /// Orders rules as `priority` does, also beside the rules of another steering of the same mode.
    #[serde(skip)]
    pub rank: u16,
    /// What it matches.
    #[serde(rename = "match", serialize_with = "text_of_specs")]
    pub specs: Vec<FlowSpec>,
    /// Number of its QP in [`Steering::qps`].
    pub qp: usize,
}

/// The QPs and rules of a run, in the order in which they are made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Steering {
    /// RSS QPs.
    pub qps: Vec<QpPlan>,
    /// Flow rules, the more special before the more general.
    pub rules: Vec<RulePlan>,
    /// The rule table that this comes from; `None` in other modes than `filtered`, and where there is none.
    #[serde(skip)]
    pub asked: Option<Vec<RuleConfig>>,
    /// The rules were made of the filter's expression.
    #[serde(rename = "filter", skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
}

fn text_of_specs<S: Serializer>(specs: &[FlowSpec], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&describe(specs))
}

impl Steering {
    /// What a configuration comes to over so many queues.
    ///
    /// # Errors
    /// A rule that cannot be, rules that would duplicate frames, or more queues than the mode can have.
    pub fn of(config: &Config, queues: u16) -> Result<Self, Error> {
        let depth = depth(config);
        match config.capture.mode {
            mode if config.rss.inner && mode != Mode::Steal => Err(Error::config(
                "rss.inner",
                true,
                format!("mode \"{mode}\" has no rules for packets inside tunnels; use \"steal\""),
            )),
            Mode::Steal => Ok(Self::steal(depth, config.rss.inner)),
            Mode::Sniffer if queues > 1 => Err(Error::config(
                "capture.queues",
                queues,
                "mode \"sniffer\" has one queue, since its rules cannot distinguish protocols; spread its frames over \
                 threads with pipeline.mode = \"fanout\"",
            )),
            Mode::Sniffer => Ok(Self::sniffer()),
            Mode::Filtered if config.rule.is_empty() => {
                Self::by_filter(&config.capture.filter, depth)
            }
            Mode::Filtered => Self::filtered(&config.rule, depth, queues),
        }
    }

    /// The rules that name a protocol and no port, where their fragments of IPv4 find no other rule.
    pub(super) fn unsure_of_fragments(&self) -> Vec<String> {
        let whole = |it: &Match| describe(&it.specs(Profile::CatchAll));
        let of_filter = self.split.iter().flat_map(|it| &it.fragments).map(whole);
        // Those that cannot be have been refused.
        let asked = self.asked.iter().flatten();
        let asked: Vec<_> = asked.filter_map(|it| Match::of(it).ok()).collect();
        let unsure = (1..).zip(&asked);
        let unsure = unsure.filter(|(_, it)| !it.has_its_fragments_taken_by(&asked));
        let of_rules = unsure.map(|(number, _)| format!("rule {number}"));
        of_filter.chain(of_rules).collect()
    }

    /// Every frame, by profile.
    fn steal(depth: HashDepth, inner: bool) -> Self {
        let mut steering = Self::default();
        if inner {
            steering.tunnels(depth);
        }
        for profile in Profile::to_install(depth) {
            let qp = steering.qp(*profile, None);
            let rank = STEAL_BASE + SIDES * u16::from(profile.priority_offset());
            let specs = Match::default().specs(*profile);
            steering.push(profile.to_string(), rank, specs, qp);
        }
        steering
    }

    /// In front of all others: tunnelled IP by what is inside, VXLAN and GRE over either IP version. Tunnels with
    /// anything else in them fall through to the rules for what they are themselves.
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
                    let mut specs = Match::tunnel(tunnel == "vxlan", ip);
                    specs.extend(inner_specs(*profile));
                    let rank = TUNNEL_BASE + SIDES * u16::from(profile.priority_offset());
                    self.push(format!("{tunnel} {profile}"), rank, specs, qp);
                }
            }
        }
    }

    fn sniffer() -> Self {
        let mut steering = Self::default();
        let qp = steering.qp(Profile::CatchAll, None);
        steering.push("sniffer".into(), 0, Vec::new(), qp);
        steering.rules[0].kind = FlowKind::Sniffer;
        steering
    }

    /// What a filter keeps, as far as rules can tell, spread by profile. Rules of one priority lead to one QP each frame.
    fn by_filter(expression: &str, depth: HashDepth) -> Result<Self, Error> {
        if expression.trim().is_empty() {
            return Err(Error::config(
                "capture.mode",
                "\"filtered\"",
                "no [[rule]] and no capture.filter selects frames; set one of them",
            ));
        }
        let refused = |problem: String| {
            Error::config(
                "capture.filter",
                filter::shown(expression),
                format!(
                    "mode \"filtered\" has no [[rule]] and cannot derive rules from this: {problem}; change the expression, \
                     write [[rule]]s, or use mode \"steal\""
                ),
            )
        };
        let filter = Filter::compile(expression).map_err(|e| refused(e.to_string()))?;
        let split = Split::of(&filter).map_err(refused)?;
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

    /// Adds a rule whose priority is its rank.
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

    /// Ranks that no rule has are taken out; then there is room between those that are left, if they are not too many.
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

    /// The number of the QP for a profile, made if it is not there yet.
    fn qp(&mut self, profile: Profile, queue: Option<u16>) -> usize {
        let (profile, spread) = match (queue, profile) {
            (Some(queue), _) => (Profile::CatchAll, Spread::Queue(queue)),
            // What is not hashed needs a table of one entry.
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

/// How deep a configuration hashes.
#[must_use]
pub fn depth(config: &Config) -> HashDepth {
    match config.rss.hash {
        config::HashDepth::L3 => HashDepth::L3,
        config::HashDepth::L4 => HashDepth::L4,
    }
}
