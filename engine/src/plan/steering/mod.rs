//! Steering: the RSS QPs and flow rules that a mode and its rule table come to.
//!
//! May import: [`crate::config`], [`crate::filter`], [`crate::plan::steering::rule_priority`], [`crate::verbs`]' plain rule types, `rss`. Pure:
//! nothing is created here.
//!
//! One RSS QP hashes one L3 and at most one L4 type, so whatever a rule takes is split by profile: for each pair of
//! L3 and L4 the rule may match, a hardware rule to that pair's QP. Within one priority of the user's, the more
//! special profiles stand before the more general ones, which is what [`Profile::priority_offset`] says.

mod expression;
pub mod rule_priority;

pub use expression::Split;

use crate::{
    Error,
    config::{self, Action, Config, Mode, Proto, RuleConfig},
    filter::Filter,
    plan::steering::rule_priority::RUNGS,
    verbs::{FlowKind, FlowSpec, Inner, Masked},
};
use serde::{Serialize, Serializer};
use std::net::IpAddr;
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
/// The UDP port of VXLAN (RFC 7348).
const VXLAN_PORT: u16 = 4789;
/// A VLAN tag's identifier, which are twelve of its bits (IEEE 802.1Q).
const VLAN_ID: u16 = 0x0fff;

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
    #[serde(serialize_with = "name_of_profile")]
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

fn name_of_profile<S: Serializer>(profile: &Profile, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(profile.name())
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
                format!("mode \"{mode}\" has no rules for what is in tunnels; use \"steal\""),
            )),
            Mode::Steal => Ok(Self::steal(depth, config.rss.inner)),
            Mode::Sniffer if queues > 1 => Err(Error::config(
                "capture.queues",
                queues,
                "mode \"sniffer\" has one queue, since its rules cannot tell protocols apart; spread its frames over \
                 threads with pipeline.mode = \"fanout\"",
            )),
            Mode::Sniffer => Ok(Self::sniffer()),
            Mode::Filtered if config.rule.is_empty() => {
                Self::by_filter(&config.capture.filter, depth)
            }
            Mode::Filtered => Self::filtered(&config.rule, depth, queues),
        }
    }

    /// Every frame, by profile.
    fn steal(depth: HashDepth, inner: bool) -> Self {
        let mut steering = Self::default();
        if inner {
            steering.tunnels(depth);
        }
        for profile in Profile::to_install(depth) {
            let qp = steering.qp(*profile, None);
            let priority = STEAL_BASE + SIDES * u16::from(profile.priority_offset());
            steering.rules.push(RulePlan {
                name: profile.name().to_owned(),
                kind: FlowKind::Normal,
                priority,
                rank: priority,
                specs: Match::default().specs(*profile),
                qp,
            });
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
                    let priority = TUNNEL_BASE + SIDES * u16::from(profile.priority_offset());
                    self.rules.push(RulePlan {
                        name: format!("{tunnel} {}", profile.name()),
                        kind: FlowKind::Normal,
                        priority,
                        rank: priority,
                        specs,
                        qp,
                    });
                }
            }
        }
    }

    fn sniffer() -> Self {
        let mut steering = Self::default();
        let qp = steering.qp(Profile::CatchAll, None);
        steering.rules.push(RulePlan {
            name: "sniffer".into(),
            kind: FlowKind::Sniffer,
            priority: 0,
            rank: 0,
            specs: Vec::new(),
            qp,
        });
        steering
    }

    /// What a filter keeps, as far as rules can tell, spread by profile. Rules of one priority lead to one QP each frame.
    fn by_filter(expression: &str, depth: HashDepth) -> Result<Self, Error> {
        if expression.trim().is_empty() {
            return Err(Error::config(
                "capture.mode",
                "filtered",
                "there is no [[rule]], and no capture.filter, that says what to take",
            ));
        }
        let refused = |problem: String| {
            Error::config(
                "capture.filter",
                format!("{expression:?}"),
                format!(
                    "mode \"filtered\" has no [[rule]] and can make none of this: {problem}; say so in the expression, \
                     write [[rule]]s, or use mode \"steal\""
                ),
            )
        };
        let filter = Filter::compile(expression).map_err(|e| refused(e.to_string()))?;
        let split = Split::of(&filter).map_err(refused)?;
        let mut steering = Self::default();
        for wanted in &split.matches {
            for profile in wanted.profiles(depth, false) {
                let qp = steering.qp(profile, None);
                steering.rules.push(RulePlan {
                    name: format!("filter {}", profile.name()),
                    kind: FlowKind::Normal,
                    rank: u16::from(profile.priority_offset()),
                    priority: 0,
                    specs: wanted.specs(profile),
                    qp,
                });
            }
        }
        steering.split = Some(split);
        steering.rules.sort_by_key(|r| r.rank);
        steering.close_ranks();
        Ok(steering)
    }

    /// What a rule table comes to; without rules nothing is taken.
    ///
    /// # Errors
    /// A rule that cannot be, or rules that would duplicate frames.
    pub fn filtered(rules: &[RuleConfig], depth: HashDepth, queues: u16) -> Result<Self, Error> {
        let mut steering = Self {
            asked: Some(rules.to_vec()),
            ..Self::default()
        };
        // (number of the user's rule, its match) of each rule in `steering.rules`.
        let mut matches: Vec<(usize, Profile, Match)> = Vec::new();
        for (number, rule) in (1..).zip(rules) {
            let before = rules.iter().take(number - 1);
            if let Some(id) = rule
                .id
                .as_ref()
                .filter(|id| before.into_iter().any(|it| it.id.as_ref() == Some(*id)))
            {
                return Err(Error::config(
                    format!("rule {number}: id"),
                    format!("{id:?}"),
                    "another rule has this name",
                ));
            }
            let wanted = Match::of(rule)
                .map_err(|problem| Error::config(format!("rule {number}"), "", problem))?;
            if rule.priority > MAX_PRIORITY {
                return Err(Error::config(
                    format!("rule {number}: priority"),
                    rule.priority,
                    format!("at most {MAX_PRIORITY}"),
                ));
            }
            if let Some(queue) = rule.queue.filter(|q| *q >= queues) {
                return Err(Error::config(
                    format!("rule {number}: queue"),
                    queue,
                    format!("there are queues 0 to {}", queues - 1),
                ));
            }
            let whole = rule.action == Action::Drop || rule.queue.is_some();
            for profile in wanted.profiles(depth, whole) {
                let qp = steering.qp(profile, rule.queue);
                let mut specs = wanted.specs(profile);
                if rule.action == Action::Drop {
                    specs.push(FlowSpec::Drop);
                }
                let rank = rule.priority * STEP + u16::from(profile.priority_offset());
                steering.rules.push(RulePlan {
                    name: format!("rule {number} {}", profile.name()),
                    kind: FlowKind::Normal,
                    priority: rank,
                    rank,
                    specs,
                    qp,
                });
                matches.push((number, profile, wanted));
            }
        }
        steering.refuse_duplicates(&matches)?;
        // Whatever order the user wrote them in.
        steering.rules.sort_by_key(|r| r.rank);
        steering.close_ranks();
        Ok(steering)
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
        let wanted = match (queue, profile) {
            (Some(queue), _) => QpPlan {
                profile: Profile::CatchAll,
                spread: Spread::Queue(queue),
                inner: false,
            },
            // What is not hashed needs a table of one entry.
            (None, Profile::CatchAll) => QpPlan {
                profile,
                spread: Spread::Queue(0),
                inner: false,
            },
            (None, _) => QpPlan {
                profile,
                spread: Spread::Table,
                inner: false,
            },
        };
        self.qps
            .iter()
            .position(|qp| *qp == wanted)
            .unwrap_or_else(|| {
                self.qps.push(wanted);
                self.qps.len() - 1
            })
    }

    /// Rules of one priority that can match the same frame and lead to different places: the NIC would deliver it
    /// twice, or choose as it likes.
    fn refuse_duplicates(&self, matches: &[(usize, Profile, Match)]) -> Result<(), Error> {
        let target = |rule: &RulePlan| (rule.qp, rule.specs.contains(&FlowSpec::Drop));
        for (i, first) in self.rules.iter().enumerate() {
            for (j, second) in self.rules.iter().enumerate().skip(i + 1) {
                let ((a, pa, ma), (b, pb, mb)) = (&matches[i], &matches[j]);
                if a != b
                    && first.priority == second.priority
                    && target(first) != target(second)
                    && ma.as_profile(*pa).meets(&mb.as_profile(*pb))
                {
                    return Err(Error::config(
                        format!("rule {b}"),
                        "",
                        format!(
                            "it and rule {a} can match the same frame ({}) at the same priority, but lead to different places; give one of them another priority",
                            describe(&first.specs)
                        ),
                    ));
                }
            }
        }
        Ok(())
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

/// IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ip {
    V4,
    V6,
}

/// What a rule matches, apart from its profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Match {
    dst_mac: Masked<[u8; 6]>,
    vlan: Masked<u16>,
    /// Of frames that are no IP; IP is in `ip`.
    ethertype: Option<u16>,
    ip: Option<Ip>,
    src: Masked<u128>,
    dst: Masked<u128>,
    proto: Option<u8>,
    src_port: Masked<u16>,
    dst_port: Masked<u16>,
    vni: Option<u32>,
}

impl Match {
    fn of(rule: &RuleConfig) -> Result<Self, String> {
        let exact = |v: Option<u16>| {
            v.map_or(Masked::default(), |value| Masked {
                value,
                mask: 0xffff,
            })
        };
        let mut it = Self {
            dst_mac: rule.dst_mac.map_or(Masked::default(), |mac| Masked {
                value: mac.0,
                mask: [0xff; 6],
            }),
            // The identifier's twelve bits; priority and DEI are anybody's.
            vlan: rule.vlan.map_or(Masked::default(), |value| Masked {
                value,
                mask: VLAN_ID,
            }),
            src_port: exact(rule.src_port),
            dst_port: exact(rule.dst_port),
            proto: rule.proto.map(|p| p.0),
            vni: rule.vni,
            ..Self::default()
        };
        if rule.vlan.is_some_and(|v| v > VLAN_ID) {
            return Err("vlan is at most 4095".into());
        }
        if rule.vni.is_some_and(|v| v >= 1 << 24) {
            return Err("vni is at most 16777215".into());
        }
        match rule.ethertype {
            Some(0x0800) => it.set_ip(Ip::V4)?,
            Some(0x86dd) => it.set_ip(Ip::V6)?,
            other => it.ethertype = other,
        }
        for (net, side) in [(rule.src, 0), (rule.dst, 1)] {
            let Some(net) = net else { continue };
            let masked = match net.address {
                IpAddr::V4(a) => {
                    it.set_ip(Ip::V4)?;
                    Masked {
                        value: a.to_bits().into(),
                        mask: net.mask_v4().into(),
                    }
                }
                IpAddr::V6(a) => {
                    it.set_ip(Ip::V6)?;
                    Masked {
                        value: a.to_bits(),
                        mask: net.mask_v6(),
                    }
                }
            };
            *(if side == 0 { &mut it.src } else { &mut it.dst }) = masked;
        }
        if rule.vni.is_some() {
            if rule.proto.is_some_and(|p| p != Proto::UDP)
                || rule.dst_port.is_some_and(|p| p != VXLAN_PORT)
            {
                return Err(format!("vni is VXLAN's: UDP to port {VXLAN_PORT}"));
            }
            it.proto = Some(Proto::UDP.0);
            it.dst_port = exact(Some(VXLAN_PORT));
        }
        let ports = rule.src_port.is_some() || rule.dst_port.is_some();
        if ports
            && !it
                .proto
                .is_some_and(|p| [Proto::TCP.0, Proto::UDP.0].contains(&p))
        {
            return Err("ports need proto = \"tcp\" or \"udp\"".into());
        }
        if it.ethertype.is_some() && (it.proto.is_some() || it.ip.is_some()) {
            return Err(
                "an ethertype that is not IP's cannot stand with addresses, proto or ports".into(),
            );
        }
        if rule.action == Action::Drop && rule.queue.is_some() {
            return Err("a frame that is dropped goes to no queue".into());
        }
        Ok(it)
    }

    /// The outer part of a tunnel's rule.
    fn tunnel(vxlan: bool, ip: Ip) -> Vec<FlowSpec> {
        let mut outer = Self {
            ip: Some(ip),
            ..Self::default()
        };
        if vxlan {
            outer.proto = Some(Proto::UDP.0);
            outer.dst_port = Masked {
                value: VXLAN_PORT,
                mask: 0xffff,
            };
        }
        // The catch-all's specs are the match's own, none added.
        let mut specs = outer.specs(Profile::CatchAll);
        specs.push(if vxlan {
            FlowSpec::Vxlan {
                vni: Masked::default(),
            }
        } else {
            FlowSpec::Gre
        });
        specs
    }

    fn set_ip(&mut self, ip: Ip) -> Result<(), String> {
        if self.ip.is_some_and(|old| old != ip) {
            return Err("its fields are of IPv4 and of IPv6; no frame is both".into());
        }
        self.ip = Some(ip);
        Ok(())
    }

    /// The profiles whose frames it can match. With `whole`, all go to one place, so as few as can tell them apart.
    fn profiles(&self, depth: HashDepth, whole: bool) -> Vec<Profile> {
        let fits = |profile: Profile| {
            let (ip, l4) = kinds(profile);
            let same_ip = match (self.ip, ip) {
                (Some(mine), Some(its)) => mine == its,
                (Some(_), None) => false,
                (None, _) => true,
            };
            let same_l4 = match (self.proto, l4) {
                (Some(mine), Some(its)) => mine == its,
                // A protocol is an IP packet's, hashed by addresses unless the profile is the protocol's own. Its
                // fragments have no ports, so they are never that profile's.
                (Some(mine), None) => {
                    let all_have_ports = [6, 17].contains(&mine) && self.has_ports();
                    ip.is_some() && (depth == HashDepth::L3 || whole || !all_have_ports)
                }
                (None, _) => true,
            };
            same_ip && same_l4 && (self.ethertype.is_none() || profile == Profile::CatchAll)
        };
        let fitting = Profile::to_install(if whole { HashDepth::L4 } else { depth })
            .iter()
            .copied()
            .filter(|p| fits(*p));
        if whole {
            // The most general that still carries the whole match: a protocol needs an IP spec, ports an L4 spec.
            let fitting: Vec<_> = fitting.collect();
            let offset = if self.has_ports() {
                0
            } else if self.ip.is_some() || self.proto.is_some() {
                1
            } else {
                2
            };
            return fitting
                .into_iter()
                .filter(|p| p.priority_offset() == offset)
                .collect();
        }
        // With hash = "l3", ports still have to be matched: the L3 profile's rule carries an L4 spec.
        fitting.collect()
    }

    /// Whether it asks for what fragments do not have.
    fn has_ports(&self) -> bool {
        self.src_port.mask | self.dst_port.mask != 0 || self.vni.is_some()
    }

    /// This match narrowed to the frames of a profile.
    fn as_profile(&self, profile: Profile) -> Self {
        let (ip, l4) = kinds(profile);
        Self {
            ip: self.ip.or(ip),
            proto: self.proto.or(l4),
            ..*self
        }
    }

    /// The specs of a rule that matches this among the frames of a profile.
    fn specs(&self, profile: Profile) -> Vec<FlowSpec> {
        let it = self.as_profile(profile);
        let (_, own_l4) = kinds(profile);
        let ethertype = it.ethertype.map_or(Masked::default(), |value| Masked {
            value,
            mask: 0xffff,
        });
        let mut specs = vec![FlowSpec::Ethernet {
            dst: it.dst_mac,
            ethertype,
            vlan: it.vlan,
        }];
        let l4 = own_l4.or(it.proto.filter(|_| it.has_ports()));
        let proto = match (it.proto, l4) {
            (Some(value), None) => Masked { value, mask: 0xff },
            _ => Masked::default(),
        };
        // An IPv4 address, held in 128 bits.
        let v4 = |m: Masked<u128>| Masked {
            value: m.value as u32,
            mask: m.mask as u32,
        };
        match it.ip {
            Some(Ip::V4) => specs.push(FlowSpec::Ipv4 {
                src: v4(it.src),
                dst: v4(it.dst),
                proto,
            }),
            Some(Ip::V6) => specs.push(FlowSpec::Ipv6 {
                src: it.src,
                dst: it.dst,
                proto,
            }),
            None => {}
        }
        match l4 {
            Some(6) => specs.push(FlowSpec::Tcp {
                src: it.src_port,
                dst: it.dst_port,
            }),
            Some(17) => specs.push(FlowSpec::Udp {
                src: it.src_port,
                dst: it.dst_port,
            }),
            _ => {}
        }
        if let Some(value) = it.vni {
            specs.push(FlowSpec::Vxlan {
                vni: Masked {
                    value,
                    mask: 0x00ff_ffff,
                },
            });
        }
        specs
    }

    /// Whether some frame matches both.
    fn meets(&self, other: &Self) -> bool {
        fn free<T: PartialEq>(a: Option<T>, b: Option<T>) -> bool {
            a.is_none() || b.is_none() || a == b
        }
        let number = |a: Masked<u128>, b: Masked<u128>| (a.value ^ b.value) & a.mask & b.mask == 0;
        number(mac(self.dst_mac), mac(other.dst_mac))
            && number(wide(self.vlan), wide(other.vlan))
            && free(self.ethertype, other.ethertype)
            && free(self.ip, other.ip)
            // An ethertype that is not IP's and an IP version exclude each other.
            && !(self.ethertype.is_some() && other.ip.is_some() || self.ip.is_some() && other.ethertype.is_some())
            && number(self.src, other.src)
            && number(self.dst, other.dst)
            && free(self.proto, other.proto)
            && number(wide(self.src_port), wide(other.src_port))
            && number(wide(self.dst_port), wide(other.dst_port))
            && free(self.vni, other.vni)
    }
}

/// As a number.
fn wide(it: Masked<u16>) -> Masked<u128> {
    Masked {
        value: it.value.into(),
        mask: it.mask.into(),
    }
}

/// A MAC address as a number.
fn mac(it: Masked<[u8; 6]>) -> Masked<u128> {
    let number = |bytes: [u8; 6]| bytes.iter().fold(0, |n, it| n << 8 | u128::from(*it));
    Masked {
        value: number(it.value),
        mask: number(it.mask),
    }
}

/// What a profile matches, inside a tunnel.
fn inner_specs(profile: Profile) -> Vec<FlowSpec> {
    let (ip, l4) = kinds(profile);
    let ip = ip.map(|ip| match ip {
        Ip::V4 => Inner::Ipv4,
        Ip::V6 => Inner::Ipv6,
    });
    let l4 = l4.map(|l4| if l4 == 6 { Inner::Tcp } else { Inner::Udp });
    ip.into_iter().chain(l4).map(FlowSpec::Inner).collect()
}

/// The IP version and the L4 protocol of a profile.
fn kinds(profile: Profile) -> (Option<Ip>, Option<u8>) {
    match profile {
        Profile::Ipv4Tcp => (Some(Ip::V4), Some(6)),
        Profile::Ipv4Udp => (Some(Ip::V4), Some(17)),
        Profile::Ipv6Tcp => (Some(Ip::V6), Some(6)),
        Profile::Ipv6Udp => (Some(Ip::V6), Some(17)),
        Profile::Ipv4 => (Some(Ip::V4), None),
        Profile::Ipv6 => (Some(Ip::V6), None),
        Profile::CatchAll => (None, None),
    }
}

/// A match in words.
#[must_use]
pub fn describe(specs: &[FlowSpec]) -> String {
    let mut words = Vec::new();
    for spec in specs {
        match spec {
            FlowSpec::Ethernet {
                dst,
                ethertype,
                vlan,
            } => {
                if dst.mask == [0xff; 6] {
                    words.push(format!("to {}", config::Mac(dst.value)));
                } else if dst.mask != [0; 6] {
                    let (value, mask) = (config::Mac(dst.value), config::Mac(dst.mask));
                    words.push(format!("to {value}/{mask}"));
                }
                if vlan.mask != 0 {
                    words.push(format!("vlan {}", vlan.value & vlan.mask));
                }
                if ethertype.mask != 0 {
                    words.push(format!("ethertype {:#06x}", ethertype.value));
                }
            }
            FlowSpec::Ipv4 { src, dst, proto } => {
                words.push("ipv4".into());
                for (side, net) in [("src", src), ("dst", dst)] {
                    if net.mask != 0 {
                        words.push(format!(
                            "{side} {}/{}",
                            std::net::Ipv4Addr::from_bits(net.value),
                            net.mask.count_ones()
                        ));
                    }
                }
                if proto.mask != 0 {
                    words.push(format!("protocol {}", proto.value));
                }
            }
            FlowSpec::Ipv6 { src, dst, proto } => {
                words.push("ipv6".into());
                for (side, net) in [("src", src), ("dst", dst)] {
                    if net.mask != 0 {
                        words.push(format!(
                            "{side} {}/{}",
                            std::net::Ipv6Addr::from_bits(net.value),
                            net.mask.count_ones()
                        ));
                    }
                }
                if proto.mask != 0 {
                    words.push(format!("protocol {}", proto.value));
                }
            }
            FlowSpec::Tcp { src, dst } | FlowSpec::Udp { src, dst } => {
                words.push(if matches!(spec, FlowSpec::Tcp { .. }) {
                    "tcp".into()
                } else {
                    "udp".into()
                });
                for (side, port) in [("src port", src), ("dst port", dst)] {
                    if port.mask != 0 {
                        words.push(format!("{side} {}", port.value));
                    }
                }
            }
            FlowSpec::Vxlan { vni } if vni.mask == 0 => words.push("vxlan".into()),
            FlowSpec::Vxlan { vni } => words.push(format!("vni {}", vni.value)),
            FlowSpec::Gre => words.push("gre".into()),
            FlowSpec::Inner(inner) => words.push(
                match inner {
                    Inner::Ipv4 => "inner ipv4",
                    Inner::Ipv6 => "inner ipv6",
                    Inner::Tcp => "inner tcp",
                    Inner::Udp => "inner udp",
                }
                .into(),
            ),
            FlowSpec::Drop => words.push("drop".into()),
        }
    }
    if words.is_empty() {
        "any frame".into()
    } else {
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(text: &str, queues: u16) -> Result<Steering, Error> {
        let config =
            Config::parse(&format!("capture.mode = \"filtered\"\n{text}")).expect("parses");
        Steering::of(&config, queues)
    }

    fn lines(steering: &Steering) -> Vec<String> {
        let to = |qp: &QpPlan| match qp.spread {
            Spread::Table => qp.profile.name().to_owned(),
            Spread::Queue(q) => format!("queue {q}"),
        };
        steering
            .rules
            .iter()
            .map(|r| {
                format!(
                    "{} {} -> {}",
                    r.priority,
                    describe(&r.specs),
                    to(&steering.qps[r.qp])
                )
            })
            .collect()
    }

    #[test]
    fn steal_takes_every_frame_by_seven_profiles() {
        let steering = Steering::of(&Config::default(), 4).unwrap();
        assert_eq!(
            lines(&steering),
            [
                "8 ipv4 tcp -> ipv4-tcp",
                "8 ipv4 udp -> ipv4-udp",
                "8 ipv6 tcp -> ipv6-tcp",
                "8 ipv6 udp -> ipv6-udp",
                "10 ipv4 -> ipv4",
                "10 ipv6 -> ipv6",
                "12 any frame -> queue 0",
            ]
        );
    }

    #[test]
    fn what_is_in_tunnels_comes_before_the_tunnels() {
        let config = Config::with_overrides("", &[("rss.inner", "true"), ("rss.hash", "l3")]);
        let steering = Steering::of(&config.unwrap(), 4).unwrap();
        assert_eq!(
            lines(&steering)[..5],
            [
                "6 ipv4 udp dst port 4789 vxlan inner ipv4 -> ipv4",
                "6 ipv6 udp dst port 4789 vxlan inner ipv4 -> ipv4",
                "6 ipv4 gre inner ipv4 -> ipv4",
                "6 ipv6 gre inner ipv4 -> ipv4",
                "6 ipv4 udp dst port 4789 vxlan inner ipv6 -> ipv6",
            ]
        );
        assert!(steering.qps[0].inner && steering.qps[0].hash_fields().bits() == 0x8000_0003);
        let deep = Config::with_overrides("", &[("rss.inner", "true")]).unwrap();
        let deep = Steering::of(&deep, 4).unwrap();
        assert_eq!((deep.qps.len(), deep.rules.len()), (13, 31));
        assert_eq!(
            lines(&deep)[0],
            "4 ipv4 udp dst port 4789 vxlan inner ipv4 inner tcp -> ipv4-tcp"
        );
        let other = [("rss.inner", "true"), ("capture.mode", "sniffer")];
        let error = Steering::of(&Config::with_overrides("", &other).unwrap(), 1).unwrap_err();
        assert!(error.to_string().contains("rss.inner"), "{error}");
    }

    #[test]
    fn a_sniffer_has_one_queue() {
        let config = Config::with_overrides("", &[("capture.mode", "sniffer")]).unwrap();
        assert_eq!(Steering::of(&config, 1).unwrap().rules.len(), 1);
        let error = Steering::of(&config, 2).unwrap_err().to_string();
        assert!(
            error.starts_with("capture.queues = 2: mode \"sniffer\" has one queue"),
            "{error}"
        );
    }

    #[test]
    fn a_rule_is_split_by_profile_and_no_further_than_it_must() {
        let rule = "[[rule]]\ndst = \"10.0.0.0/8\"\npriority = 1";
        assert_eq!(
            lines(&filtered(rule, 2).unwrap()),
            [
                "0 ipv4 dst 10.0.0.0/8 tcp -> ipv4-tcp",
                "0 ipv4 dst 10.0.0.0/8 udp -> ipv4-udp",
                "2 ipv4 dst 10.0.0.0/8 -> ipv4",
            ]
        );
        assert_eq!(
            lines(&filtered("[[rule]]\nproto = \"tcp\"\ndst_port = 443", 2).unwrap()),
            [
                "0 ipv4 tcp dst port 443 -> ipv4-tcp",
                "0 ipv6 tcp dst port 443 -> ipv6-tcp"
            ]
        );
        assert_eq!(
            lines(&filtered("[[rule]]\nproto = \"esp\"", 2).unwrap()),
            ["0 ipv4 protocol 50 -> ipv4", "0 ipv6 protocol 50 -> ipv6"]
        );
        assert_eq!(
            lines(&filtered("[[rule]]\nethertype = 0x0806", 2).unwrap()),
            ["0 ethertype 0x0806 -> queue 0"]
        );
        assert_eq!(
            lines(&filtered("[[rule]]\nvlan = 7\naction = \"drop\"", 2).unwrap()),
            ["0 vlan 7 drop -> queue 0"]
        );
        assert_eq!(
            lines(&filtered("[[rule]]\nsrc = \"::1\"\nqueue = 1", 2).unwrap()),
            ["0 ipv6 src ::1/128 -> queue 1"]
        );
        assert_eq!(
            lines(&filtered("[[rule]]\nvni = 5\nqueue = 1", 2).unwrap()),
            [
                "0 ipv4 udp dst port 4789 vni 5 -> queue 1",
                "0 ipv6 udp dst port 4789 vni 5 -> queue 1"
            ]
        );
        assert_eq!(
            lines(
                &filtered(
                    "[rss]\nhash = \"l3\"\n[[rule]]\nproto = \"tcp\"\ndst_port = 443",
                    2
                )
                .unwrap()
            ),
            [
                "0 ipv4 tcp dst port 443 -> ipv4",
                "0 ipv6 tcp dst port 443 -> ipv6"
            ]
        );
    }

    #[test]
    fn a_filter_becomes_the_rules_that_take_all_it_keeps() {
        let of = |expression: &str| {
            let steering = filtered(&format!("capture.filter = \"{expression}\""), 2).unwrap();
            let mut nic = steering.split.unwrap().nic;
            nic.sort();
            nic
        };
        // First fragments have the port, which no NIC sees in them.
        assert_eq!(
            of("udp dst port 53"),
            ["ipv4 protocol 17", "ipv6 udp dst port 53"]
        );
        assert_eq!(
            of("ip and udp dst port 53 and ip[6:2] & 0x3fff = 0"),
            ["ipv4 udp dst port 53"]
        );
        assert_eq!(
            of("tcp"),
            ["ipv4 protocol 6", "ipv6 protocol 44", "ipv6 protocol 6"]
        );
        assert_eq!(
            of("ip host 10.0.0.1 and greater 100"),
            ["ipv4 dst 10.0.0.1/32", "ipv4 src 10.0.0.1/32"]
        );
        assert_eq!(
            of("ip or arp"),
            ["ethertype 0x0800", "ethertype 0x0806", "ipv4"]
        );
        assert_eq!(
            of("ether[12:2] = 0x8100 and vlan 7 and icmp6"),
            ["vlan 7 ipv6 protocol 44", "vlan 7 ipv6 protocol 58"]
        );
        // Not every NIC sees through this tag.
        assert_eq!(
            of("ether[12:2] = 0x88a8 and vlan and arp"),
            ["ethertype 0x0806", "ethertype 0x88a8"]
        );
        assert_eq!(of("ether dst 01:80:c2:00:00:00"), ["to 01:80:c2:00:00:00"]);
        assert_eq!(
            of("ether multicast"),
            ["to 01:00:00:00:00:00/01:00:00:00:00:00"]
        );
        let steering = filtered("capture.filter = \"ip proto 17\"", 2).unwrap();
        assert_eq!(
            lines(&steering),
            ["0 ipv4 udp -> ipv4-udp", "2 ipv4 protocol 17 -> ipv4"]
        );
    }

    #[test]
    fn another_filter_is_allowed_where_the_rules_take_all_it_keeps() {
        let steering = filtered("capture.filter = \"udp or arp\"", 2).unwrap();
        let split = steering.split.unwrap();
        let allows = |expression| split.allows(&Filter::compile(expression).unwrap());
        for narrower in [
            "udp port 53",
            "arp and greater 60",
            "udp and src net 10.0.0.0/8",
        ] {
            allows(narrower).unwrap_or_else(|e| panic!("{narrower}: {e}"));
        }
        let error = allows("tcp").unwrap_err();
        assert!(
            error.contains("do not take ipv") && error.contains("protocol 6"),
            "{error}"
        );
        assert!(allows("").is_err() && allows("greater 60").is_err());
    }

    #[test]
    fn there_is_room_between_ranks_as_long_as_there_are_few() {
        let rules = |n: u16| {
            let rule = |i| format!("[[rule]]\nsrc = \"10.{i}.0.0/16\"\npriority = {i}\n");
            filtered(&(0..n).map(rule).collect::<String>(), 2).unwrap()
        };
        for (n, last) in [(1, 2), (4, 14), (5, 9)] {
            let steering = rules(n);
            assert_eq!(steering.rules.last().unwrap().priority, last, "{n}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (rule, why) in [
            ("", "no [[rule]]"),
            ("capture.filter = \"greater 100\"", "write [[rule]]s"),
            ("capture.filter = \"ip6 protochain 58\"", "protochain"),
            ("[[rule]]\nsrc = \"10.0.0.1\"\ndst = \"::1\"", "rule 1"),
            ("[[rule]]\ndst_port = 80", "ports need proto"),
            ("[[rule]]\nvlan = 4096", "at most 4095"),
            ("[[rule]]\nqueue = 2", "queues 0 to 1"),
            ("[[rule]]\npriority = 5", "at most 4"),
            (
                "[[rule]]\nid = \"a\"\nvlan = 1\n[[rule]]\nid = \"a\"\nvlan = 2",
                "rule 2: id = \"a\": another rule",
            ),
            ("[[rule]]\nvni = 3\nproto = \"tcp\"", "VXLAN"),
            ("[[rule]]\nethertype = 0x0806\nproto = \"udp\"", "ethertype"),
            ("[[rule]]\naction = \"drop\"\nqueue = 0", "no queue"),
        ] {
            let error = filtered(rule, 2).unwrap_err().to_string();
            assert!(error.contains(why), "{rule}: {error}");
        }
    }

    #[test]
    fn rules_that_would_duplicate_are_refused_and_others_are_not() {
        let both = |a: &str, b: &str| filtered(&format!("[[rule]]\n{a}\n[[rule]]\n{b}"), 4);
        for (a, b) in [
            (
                "dst = \"10.0.0.0/8\"\nqueue = 1",
                "dst = \"10.1.0.0/16\"\nqueue = 2",
            ),
            (
                "dst = \"10.0.0.0/8\"\nqueue = 1",
                "src = \"10.0.0.0/8\"\naction = \"drop\"",
            ),
            (
                "vlan = 5\nqueue = 1",
                "dst_mac = \"01:02:03:04:05:06\"\nqueue = 2",
            ),
        ] {
            let error = both(a, b).unwrap_err().to_string();
            assert!(
                error.contains("rule 1") && error.contains("priority"),
                "{error}"
            );
        }
        for (a, b) in [
            (
                "dst = \"10.0.0.0/8\"\nqueue = 1",
                "dst = \"11.0.0.0/8\"\nqueue = 2",
            ),
            (
                "dst = \"10.0.0.0/8\"\nqueue = 1",
                "dst = \"10.1.0.0/16\"\nqueue = 2\npriority = 1",
            ),
            ("dst = \"10.0.0.0/8\"", "src = \"10.0.0.0/8\""),
            (
                "proto = \"tcp\"\ndst_port = 80\nqueue = 1",
                "proto = \"udp\"\ndst_port = 80\nqueue = 2",
            ),
            (
                "ethertype = 0x0806\nqueue = 1",
                "dst = \"10.1.0.0/16\"\nqueue = 2",
            ),
        ] {
            both(a, b).unwrap_or_else(|e| panic!("{a} | {b}: {e}"));
        }
    }
}
