//! Steering: which queues a frame goes to.
//!
//! May import `frame`, `objects`, `wqcap-rss` and what is below. The order of tables is the driver's: sniffer
//! rules see everything beside the others; NORMAL rules lie by priority, those that ask for group
//! addresses only in a last priority of their own; then comes what the host's own stack takes; then
//! ALL_DEFAULT and MC_DEFAULT. A rule whose action is the default miss ends the NORMAL ones for its frames:
//! they go on with the host's stack.
//!
//! Invariants: a frame's whole list of targets is known before anything is delivered, so that a wire that
//! waits never delivers half; the first table with a matching entry settles where a frame goes, unless
//! the entry says DONT_TRAP; within a table the criteria installed first win.

pub mod match_param;
mod matching;
mod spec;
mod tir;
mod tunnel;

pub use matching::Match;
pub use spec::{MAX_SPECS, Sight, parse};
pub use tir::{Spread, Tir};

use crate::frame::{Arrival, kind};
use crate::objects::{Index, Slab};
use crate::process::Errno;

/// Frames go to so many queues at most; more duplicates are not made.
pub const MAX_TARGETS: usize = 32;
/// The lowest of the user's priorities (`MLX5_IB_FLOW_LAST_PRIO`).
pub const LAST_PRIORITY: u16 = 15;

/// Where a rule sends frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Through an RSS QP's hash and table.
    Tir(Index),
    /// To a RAW_PACKET QP's own receive queue.
    Rq(Index),
}

/// Which table a rule lies in, in the order they are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// NORMAL rules. Within a priority, DONT_TRAP rules come first.
    Normal {
        /// The user's.
        priority: u16,
        /// Whether matching frames are passed on.
        traps: bool,
    },
    /// NORMAL rules for group addresses only.
    Multicast,
    /// ALL_DEFAULT and MC_DEFAULT.
    Leftovers,
}

impl Place {
    /// Whether a matching entry settles where a frame goes, for every frame.
    fn is_last_word(self) -> bool {
        match self {
            Self::Normal { traps, .. } => traps,
            Self::Multicast => true,
            Self::Leftovers => false,
        }
    }
}

/// What becomes of a rule's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// They go to queues.
    Forward(Destination),
    /// They are dropped.
    Drop,
    /// They are the host's stack's, and what lies behind it.
    Host,
}

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// With its frames.
    pub fate: Fate,
    /// The explicit flow tag.
    pub tag: Option<u32>,
    /// The counters they are counted in.
    pub counters: Option<Index>,
}

/// A flow table entry: equal matches of one table share it.
#[derive(Debug)]
struct Entry {
    rule: Match,
    drop: bool,
    tag: Option<u32>,
    /// Destinations, and how often each was asked for.
    to: Vec<(Destination, u32)>,
    /// Rules that drop.
    drops: u32,
    /// Rules that hand over to the host's stack.
    host: u32,
    /// Counters, and how often each was asked for.
    counters: Vec<(Index, u32)>,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.to.is_empty() && self.drops == 0 && self.host == 0
    }
}

#[derive(Debug)]
struct Table {
    place: Place,
    entries: Vec<Entry>,
}

/// A queue a frame goes to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Target {
    /// The queue, and the hash that led there.
    pub spread: Spread,
    /// Flow tag.
    pub tag: u32,
}

/// The queues a frame goes to, and the counters it is counted in once it does.
pub struct Targets {
    list: [Target; MAX_TARGETS],
    len: usize,
    counters: [Index; MAX_TARGETS],
    counters_len: usize,
}

impl Default for Targets {
    fn default() -> Self {
        Self {
            list: [Target::default(); MAX_TARGETS],
            len: 0,
            counters: [0; MAX_TARGETS],
            counters_len: 0,
        }
    }
}

impl Targets {
    /// The list.
    #[inline]
    pub fn as_slice(&self) -> &[Target] {
        &self.list[..self.len]
    }

    /// The counters of the entries that matched.
    #[inline]
    pub fn counters(&self) -> &[Index] {
        &self.counters[..self.counters_len]
    }

    /// The list of one target.
    pub fn set(&mut self, target: Target) {
        self.clear();
        self.push(target);
    }

    fn clear(&mut self) {
        self.len = 0;
        self.counters_len = 0;
    }

    fn count_in(&mut self, counters: Index) {
        if let Some(slot) = self.counters.get_mut(self.counters_len) {
            *slot = counters;
            self.counters_len += 1;
        }
    }

    fn push(&mut self, target: Target) {
        if let Some(slot) = self.list.get_mut(self.len) {
            *slot = target;
            self.len += 1;
        }
    }
}

/// What becomes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to the targets.
    Deliver,
    /// A rule says to drop it.
    Drop,
    /// A rule says that it is the host's.
    Host,
    /// No rule takes it: the host's stack would, or nobody.
    Miss,
}

/// What a first look says.
#[derive(Debug, Clone, Copy, Default)]
pub enum Glance {
    /// The frame goes to one queue.
    One(Target),
    /// No rule takes it.
    Miss,
    /// It takes [`Steering::resolve`] to say.
    #[default]
    Unclear,
}

/// An entry that asks for kinds alone and leads to one place.
#[derive(Debug, Clone, Copy)]
struct Plain {
    kinds: u32,
    tag: u32,
    to: Destination,
}

/// The rules of a port.
#[derive(Debug)]
pub struct Steering {
    sniffers: Vec<(Destination, u32)>,
    tables: Vec<Table>,
    /// The entries that are looked at first, in order, as long as they are plain. The rules of a capture
    /// that spreads all traffic are all so.
    plain: Vec<Plain>,
    /// Whether that is all of them.
    all_plain: bool,
    /// The port's own address: the host's stack takes what comes to it.
    mac: [u8; 6],
}

impl Steering {
    /// A port without rules.
    pub fn new(mac: [u8; 6]) -> Self {
        Self {
            sniffers: Vec::new(),
            tables: Vec::new(),
            plain: Vec::new(),
            all_plain: true,
            mac,
        }
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.sniffers.is_empty() && self.tables.is_empty()
    }

    /// Whether sent frames are to be seen.
    #[inline]
    pub fn has_sniffers(&self) -> bool {
        !self.sniffers.is_empty()
    }

    /// Adds a sniffer rule.
    pub fn sniff(&mut self, to: Destination) {
        count(&mut self.sniffers, to);
        self.settle();
    }

    /// Takes a sniffer rule out.
    pub fn unsniff(&mut self, to: Destination) {
        uncount(&mut self.sniffers, to);
        self.settle();
    }

    /// Adds a rule.
    ///
    /// # Errors
    /// `EEXIST` if an entry with the same match drops where this forwards, or the other way round, or
    /// carries another explicit tag.
    pub fn add(&mut self, place: Place, rule: &Match, action: Action) -> Result<(), Errno> {
        let at = self.tables.partition_point(|table| table.place < place);
        if self.tables.get(at).is_none_or(|table| table.place != place) {
            self.tables.insert(
                at,
                Table {
                    place,
                    entries: Vec::new(),
                },
            );
        }
        let Some(table) = self.tables.get_mut(at) else {
            return Err(libc::ENOMEM);
        };
        let added = table.add(rule, action);
        self.settle();
        added
    }

    /// Takes a rule out again.
    pub fn remove(&mut self, place: Place, rule: &Match, action: Action) {
        for table in self.tables.iter_mut().filter(|table| table.place == place) {
            for entry in table.entries.iter_mut().filter(|entry| entry.rule == *rule) {
                match action.fate {
                    Fate::Forward(to) => uncount(&mut entry.to, to),
                    Fate::Drop => entry.drops = entry.drops.saturating_sub(1),
                    Fate::Host => entry.host = entry.host.saturating_sub(1),
                }
                if let Some(counters) = action.counters {
                    uncount(&mut entry.counters, counters);
                }
            }
            table.entries.retain(|entry| !entry.is_empty());
        }
        self.tables.retain(|table| !table.entries.is_empty());
        self.settle();
    }

    /// Sees anew which entries are plain.
    fn settle(&mut self) {
        self.plain.clear();
        self.all_plain = false;
        if self.has_sniffers() {
            return;
        }
        for table in &self.tables {
            if !table.place.is_last_word() {
                return;
            }
            for entry in &table.entries {
                let ([(to, _)], 0, []) = (&entry.to[..], entry.host, &entry.counters[..]) else {
                    return;
                };
                let Some(kinds) = entry.rule.plain_kinds() else {
                    return;
                };
                let tag = entry.tag.unwrap_or(0);
                self.plain.push(Plain {
                    kinds,
                    tag,
                    to: *to,
                });
            }
        }
        self.all_plain = true;
    }

    /// Where a received frame goes, if that can be said at a glance. What is returned stays in registers:
    /// see `Rq::deliver`.
    #[inline(always)]
    pub fn glance(&self, frame: &Arrival<'_>, tirs: &Slab<Tir>) -> Glance {
        match self
            .plain
            .iter()
            .find(|plain| frame.kinds & plain.kinds == plain.kinds)
        {
            Some(plain) => match spread(plain.to, frame, tirs) {
                Some(spread) => Glance::One(Target {
                    spread,
                    tag: plain.tag,
                }),
                None => Glance::Unclear,
            },
            None if self.all_plain => Glance::Miss,
            None => Glance::Unclear,
        }
    }

    /// Where a received frame goes.
    pub fn resolve(&self, frame: &Arrival<'_>, tirs: &Slab<Tir>, targets: &mut Targets) -> Verdict {
        targets.clear();
        for (to, _) in &self.sniffers {
            forward(*to, 0, frame, tirs, targets);
        }
        let mut handed_over = false;
        let mut verdict = if targets.len > 0 {
            Verdict::Deliver
        } else {
            Verdict::Miss
        };
        for table in &self.tables {
            if table.place == Place::Leftovers && self.host_takes(frame) {
                break;
            }
            if table.place != Place::Leftovers && handed_over {
                continue;
            }
            let Some(entry) = table.entries.iter().find(|entry| entry.rule.takes(frame)) else {
                continue;
            };
            for (to, _) in &entry.to {
                forward(*to, entry.tag.unwrap_or(0), frame, tirs, targets);
            }
            for (counters, _) in &entry.counters {
                targets.count_in(*counters);
            }
            let traps = !matches!(table.place, Place::Normal { traps: false, .. });
            handed_over = entry.host > 0;
            if targets.len > 0 {
                verdict = Verdict::Deliver;
            } else if handed_over {
                verdict = Verdict::Host;
            } else if entry.drop || traps {
                verdict = Verdict::Drop;
            }
            if !handed_over && (traps || entry.drop) {
                break;
            }
        }
        verdict
    }

    /// Where a sent frame goes: sniffers alone see it.
    pub fn resolve_sent(&self, frame: &Arrival<'_>, tirs: &Slab<Tir>, targets: &mut Targets) {
        targets.clear();
        for (to, _) in &self.sniffers {
            forward(*to, 0, frame, tirs, targets);
        }
    }

    /// What the driver's own rules hand to the netdev: its address and broadcast.
    fn host_takes(&self, frame: &Arrival<'_>) -> bool {
        frame
            .bytes
            .get(..6)
            .is_some_and(|to| to == self.mac || to == [0xff; 6])
    }
}

impl Table {
    fn add(&mut self, rule: &Match, action: Action) -> Result<(), Errno> {
        let drop = action.fate == Fate::Drop;
        let at = match self.entries.iter().position(|entry| entry.rule == *rule) {
            Some(at) => at,
            None => {
                // Entries of the same criteria lie together, in the order of their first ones.
                let group = self
                    .entries
                    .iter()
                    .rposition(|entry| entry.rule.same_criteria(rule));
                let at = group.map_or(self.entries.len(), |last| last + 1);
                let entry = Entry {
                    rule: rule.clone(),
                    drop,
                    tag: action.tag,
                    to: Vec::new(),
                    drops: 0,
                    host: 0,
                    counters: Vec::new(),
                };
                self.entries.insert(at, entry);
                at
            }
        };
        let Some(entry) = self.entries.get_mut(at) else {
            return Err(libc::ENOMEM);
        };
        // `check_conflicting_ftes`: a rule that asks for no tag takes the one that is there.
        let other_tag = action.tag.is_some_and(|tag| entry.tag.unwrap_or(0) != tag);
        if entry.drop != drop || other_tag {
            return Err(libc::EEXIST);
        }
        match action.fate {
            Fate::Forward(to) => count(&mut entry.to, to),
            Fate::Drop => entry.drops += 1,
            Fate::Host => entry.host += 1,
        }
        if let Some(counters) = action.counters {
            count(&mut entry.counters, counters);
        }
        Ok(())
    }
}

/// The match of MC_DEFAULT, and the other half of ALL_DEFAULT.
pub fn leftovers(multicast: bool) -> Match {
    Match::kinds(if multicast {
        kind::MULTICAST
    } else {
        kind::UNICAST
    })
}

#[inline(always)]
fn spread(to: Destination, frame: &Arrival<'_>, tirs: &Slab<Tir>) -> Option<Spread> {
    match to {
        Destination::Rq(rq) => Some(Spread {
            rq,
            hash: 0,
            hash_type: 0,
        }),
        Destination::Tir(tir) => tirs.at(tir).map(|tir| tir.spread(frame)),
    }
}

fn forward(
    to: Destination,
    tag: u32,
    frame: &Arrival<'_>,
    tirs: &Slab<Tir>,
    targets: &mut Targets,
) {
    if let Some(spread) = spread(to, frame, tirs) {
        targets.push(Target { spread, tag });
    }
}

fn count<T: Copy + PartialEq>(list: &mut Vec<(T, u32)>, one: T) {
    match list.iter_mut().find(|(known, _)| *known == one) {
        Some((_, times)) => *times += 1,
        None => list.push((one, 1)),
    }
}

fn uncount<T: Copy + PartialEq>(list: &mut Vec<(T, u32)>, one: T) {
    for (_, times) in list.iter_mut().filter(|(known, _)| *known == one) {
        *times = times.saturating_sub(1);
    }
    list.retain(|(_, times)| *times > 0);
}

#[cfg(test)]
mod tests {
    use super::spec::tests::*;
    use super::*;
    use crate::objects::Kind;
    use wqcap_rss::FrameClass;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn frame(to: [u8; 6], protocol: u8) -> Vec<u8> {
        let mut frame = to.to_vec();
        frame.extend([2, 0, 0, 0, 0, 2, 8, 0]);
        frame.extend([
            0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        frame.extend([
            0x30, 0, 0, 53, 0, 20, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0,
        ]);
        frame
    }

    struct Rules(Steering);

    impl Rules {
        fn new() -> Self {
            Self(Steering::new(MAC))
        }
        fn add(&mut self, priority: u16, specs: &[Vec<u8>], rq: Index) -> Result<(), Errno> {
            self.put(
                Place::Normal {
                    priority,
                    traps: true,
                },
                specs,
                Some(rq),
            )
        }
        fn put(&mut self, place: Place, specs: &[Vec<u8>], rq: Option<Index>) -> Result<(), Errno> {
            let parsed = parse(&specs.concat(), specs.len() as u8, ALL)?;
            let action = Action {
                fate: rq.map_or(Fate::Drop, |rq| Fate::Forward(Destination::Rq(rq))),
                tag: parsed.tag,
                counters: None,
            };
            self.0.add(place, &parsed.rule, action)
        }
        fn targets(&self, bytes: &[u8]) -> (Verdict, Vec<(Index, u32)>) {
            let tirs = Slab::new(Kind::Tir, 1);
            let mut targets = Targets::default();
            let class = FrameClass::of(bytes);
            let arrival = Arrival::new(bytes, &class, 0);
            let verdict = self.0.resolve(&arrival, &tirs, &mut targets);
            match self.0.glance(&arrival, &tirs) {
                Glance::One(target) => {
                    assert_eq!(verdict, Verdict::Deliver);
                    assert_eq!(targets.as_slice(), [target]);
                }
                Glance::Miss => assert_eq!(verdict, Verdict::Miss),
                Glance::Unclear => {}
            }
            let list = targets
                .as_slice()
                .iter()
                .map(|target| (target.spread.rq, target.tag));
            (verdict, list.collect())
        }
    }

    const UDP: [u8; 6] = [2, 0, 0, 0, 0, 1];

    #[test]
    fn the_seven_profiles_separate() {
        let mut rules = Rules::new();
        rules.add(2, &[eth_any()], 2).unwrap();
        rules
            .add(0, &[eth_any(), ipv4_any(), udp_any()], 0)
            .unwrap();
        rules.add(1, &[eth_any(), ipv4_any()], 1).unwrap();
        assert_eq!(rules.targets(&frame(UDP, 17)).1, [(0, 0)]);
        assert_eq!(rules.targets(&frame(UDP, 6)).1, [(1, 0)]);
        let mut arp = frame(UDP, 6);
        arp[13] = 6;
        assert_eq!(rules.targets(&arp).1, [(2, 0)]);
        assert_eq!(rules.targets(&[0; 14]).1, [(2, 0)]);
    }

    #[test]
    fn equal_rules_to_two_queues_duplicate_and_to_one_are_counted() {
        let mut rules = Rules::new();
        let place = Place::Normal {
            priority: 3,
            traps: true,
        };
        for rq in [1, 1, 2] {
            rules.add(3, &[ipv4_any(), tag(7)], rq).unwrap();
        }
        assert_eq!(rules.targets(&frame(UDP, 6)).1, [(1, 7), (2, 7)]);
        let rule = parse(&ipv4_any(), 1, ALL).unwrap().rule;
        let action = |rq| Action {
            fate: Fate::Forward(Destination::Rq(rq)),
            tag: Some(7),
            counters: None,
        };
        rules.0.remove(place, &rule, action(1));
        assert_eq!(rules.targets(&frame(UDP, 6)).1, [(1, 7), (2, 7)]);
        rules.0.remove(place, &rule, action(1));
        assert_eq!(rules.targets(&frame(UDP, 6)).1, [(2, 7)]);
        rules.0.remove(place, &rule, action(2));
        assert!(rules.0.is_empty());
        assert_eq!(rules.targets(&frame(UDP, 6)), (Verdict::Miss, vec![]));
    }

    #[test]
    fn contradicting_entries_are_refused() {
        let mut rules = Rules::new();
        rules.add(0, &[ipv4_any(), tag(7)], 1).unwrap();
        assert_eq!(rules.add(0, &[ipv4_any(), tag(8)], 1), Err(libc::EEXIST));
        assert_eq!(rules.add(0, &[ipv4_any()], 2), Ok(()), "takes that tag");
        rules.add(2, &[ipv4_any()], 1).unwrap();
        assert_eq!(rules.add(2, &[ipv4_any(), tag(7)], 1), Err(libc::EEXIST));
        let place = Place::Normal {
            priority: 0,
            traps: true,
        };
        assert_eq!(
            rules.put(place, &[ipv4_any(), tag(7)], None),
            Err(libc::EEXIST)
        );
        assert_eq!(rules.add(1, &[ipv4_any(), tag(8)], 1), Ok(()));
    }

    #[test]
    fn dropped_frames_go_nowhere_else() {
        let mut rules = Rules::new();
        rules
            .put(
                Place::Normal {
                    priority: 0,
                    traps: true,
                },
                &[ipv4_any(), udp_any()],
                None,
            )
            .unwrap();
        rules.add(1, &[eth_any()], 5).unwrap();
        assert_eq!(rules.targets(&frame(UDP, 17)), (Verdict::Drop, vec![]));
        assert_eq!(rules.targets(&frame(UDP, 6)).1, [(5, 0)]);
    }

    #[test]
    fn frames_handed_over_are_the_hosts_and_the_leftovers() {
        let mut rules = Rules::new();
        let place = |priority| Place::Normal {
            priority,
            traps: true,
        };
        let host = Action {
            fate: Fate::Host,
            tag: None,
            counters: Some(3),
        };
        let udp = parse(&[ipv4_any(), udp_any()].concat(), 2, ALL).unwrap();
        rules.0.add(place(1), &udp.rule, host).unwrap();
        rules.add(2, &[eth_any()], 5).unwrap();
        assert_eq!(rules.targets(&frame(UDP, 17)), (Verdict::Host, vec![]));
        assert_eq!(rules.targets(&frame(UDP, 6)).1, [(5, 0)]);
        rules.add(0, &[eth_any()], 6).unwrap();
        assert_eq!(rules.targets(&frame(UDP, 17)).1, [(6, 0)], "matched before");
        rules.0.remove(
            place(0),
            &parse(&eth_any(), 1, ALL).unwrap().rule,
            Action {
                fate: Fate::Forward(Destination::Rq(6)),
                tag: None,
                counters: None,
            },
        );
        let left = Action {
            fate: Fate::Forward(Destination::Rq(7)),
            tag: None,
            counters: None,
        };
        rules
            .0
            .add(Place::Leftovers, &leftovers(false), left)
            .unwrap();
        assert_eq!(rules.targets(&frame(UDP, 17)).1, [(7, 0)]);
        assert_eq!(rules.targets(&frame(MAC, 17)), (Verdict::Host, vec![]));
        rules.0.remove(place(1), &udp.rule, host);
        assert_eq!(rules.targets(&frame(UDP, 17)).1, [(5, 0)]);
    }

    #[test]
    fn what_is_not_trapped_is_passed_on() {
        let mut rules = Rules::new();
        rules
            .put(
                Place::Normal {
                    priority: 4,
                    traps: false,
                },
                &[eth_any()],
                Some(1),
            )
            .unwrap();
        assert_eq!(
            rules.targets(&frame(UDP, 17)),
            (Verdict::Deliver, vec![(1, 0)])
        );
        rules.add(4, &[eth_any()], 2).unwrap();
        assert_eq!(rules.targets(&frame(UDP, 17)).1, [(1, 0), (2, 0)]);
    }

    #[test]
    fn sniffers_copy_and_leftovers_take_what_the_host_does_not() {
        let mut rules = Rules::new();
        rules.0.sniff(Destination::Rq(9));
        let to = |rq| Action {
            fate: Fate::Forward(Destination::Rq(rq)),
            tag: None,
            counters: None,
        };
        for multicast in [true, false] {
            rules
                .0
                .add(Place::Leftovers, &leftovers(multicast), to(1))
                .unwrap();
        }
        rules
            .0
            .add(Place::Leftovers, &leftovers(true), to(2))
            .unwrap();
        assert_eq!(rules.targets(&frame(UDP, 17)).1, [(9, 0), (1, 0)]);
        assert_eq!(
            rules.targets(&frame([1, 0, 0x5e, 0, 0, 1], 17)).1,
            [(9, 0), (1, 0), (2, 0)]
        );
        assert_eq!(rules.targets(&frame(MAC, 17)).1, [(9, 0)]);
        assert_eq!(rules.targets(&frame([0xff; 6], 17)).1, [(9, 0)]);
        rules.0.unsniff(Destination::Rq(9));
        assert_eq!(rules.targets(&frame(MAC, 17)), (Verdict::Miss, vec![]));
    }

    #[test]
    fn multicast_rules_come_after_all_priorities() {
        let mut rules = Rules::new();
        let group = [1, 0, 0x5e, 0, 0, 1];
        rules
            .put(Place::Multicast, &[eth_to(group)], Some(1))
            .unwrap();
        assert_eq!(rules.targets(&frame(group, 17)).1, [(1, 0)]);
        rules.add(15, &[eth_any()], 2).unwrap();
        assert_eq!(rules.targets(&frame(group, 17)).1, [(2, 0)]);
    }

    #[test]
    fn fields_are_compared_under_their_masks() {
        let mut rules = Rules::new();
        let address = |last: u8, mask: u8| {
            let (mut value, mut masks) = ([0; 12], [0; 12]);
            value[4..8].copy_from_slice(&[10, 0, 0, last]);
            masks[4..8].copy_from_slice(&[255, 255, 255, mask]);
            spec(0x30, &value, &masks)
        };
        rules.add(0, &[address(3, 255)], 1).unwrap();
        rules.add(1, &[address(2, 0xfe)], 2).unwrap();
        assert_eq!(
            rules.targets(&frame(UDP, 17)).1,
            [(2, 0)],
            "10.0.0.2 is 10.0.0.3 but for a bit"
        );
        rules
            .add(
                0,
                &[address(2, 255), spec(0x41, &[0, 53, 0, 0], &[0xff; 4])],
                3,
            )
            .unwrap();
        rules
            .add(
                0,
                &[
                    address(2, 255),
                    spec(0x41, &[0, 53, 0, 0], &[0xff, 0xff, 0, 0]),
                ],
                4,
            )
            .unwrap();
        assert_eq!(rules.targets(&frame(UDP, 17)).1, [(4, 0)]);
    }
}
