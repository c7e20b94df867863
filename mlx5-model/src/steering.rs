//! Steering: which queues a frame goes to.
//!
//! May import `frame`, `objects`, `rss` and what is below. The order of tables is the driver's: sniffer
//! rules see everything beside the others; NORMAL rules lie by priority, those that ask for group
//! addresses only in a last priority of their own; then comes what the host's own stack takes; then
//! ALL_DEFAULT and MC_DEFAULT.
//!
//! Invariants: a frame's whole list of targets is known before anything is delivered, so that a wire that
//! waits never delivers half; the first table with a matching entry settles where a frame goes, unless
//! the entry says DONT_TRAP; within a table the criteria installed first win.

mod matching;
mod spec;
mod tir;
mod tunnel;

pub use matching::Match;
pub use spec::{MAX_SPECS, parse};
pub use tir::{Spread, Tir};

use crate::fds::Errno;
use crate::frame::{Arrival, kind};
use crate::objects::{Index, Slab};

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

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// Where frames go; none: they are dropped.
    pub to: Option<Destination>,
    /// The explicit flow tag.
    pub tag: Option<u32>,
}

/// A flow table entry: equal matches of one table share it.
#[derive(Debug)]
struct Entry {
    rule: Match,
    drop: bool,
    tag: Option<u32>,
    /// Destinations, and how often each was asked for.
    to: Vec<(Destination, u32)>,
    /// Rules without destination.
    drops: u32,
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

/// The queues a frame goes to.
pub struct Targets {
    list: [Target; MAX_TARGETS],
    len: usize,
}

impl Default for Targets {
    fn default() -> Self {
        Self {
            list: [Target::default(); MAX_TARGETS],
            len: 0,
        }
    }
}

impl Targets {
    /// The list.
    #[inline]
    pub fn as_slice(&self) -> &[Target] {
        &self.list[..self.len]
    }

    /// The list of one target.
    pub fn set(&mut self, target: Target) {
        self.len = 0;
        self.push(target);
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
    /// No rule takes it: the host's stack would, or nobody.
    Miss,
}

/// What a first look says.
#[derive(Debug, Clone, Copy)]
pub enum Glance {
    /// The frame goes to one queue.
    One(Target),
    /// No rule takes it.
    Miss,
    /// It takes [`Steering::resolve`] to say.
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
                match action.to {
                    Some(to) => uncount(&mut entry.to, to),
                    None => entry.drops = entry.drops.saturating_sub(1),
                }
            }
            table
                .entries
                .retain(|entry| !entry.to.is_empty() || entry.drops > 0);
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
                let [(to, _)] = entry.to[..] else { return };
                let Some(kinds) = entry.rule.plain_kinds() else {
                    return;
                };
                let tag = entry.tag.unwrap_or(0);
                self.plain.push(Plain { kinds, tag, to });
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
        targets.len = 0;
        for (to, _) in &self.sniffers {
            forward(*to, 0, frame, tirs, targets);
        }
        let mut verdict = if targets.len > 0 {
            Verdict::Deliver
        } else {
            Verdict::Miss
        };
        for table in &self.tables {
            if table.place == Place::Leftovers && self.host_takes(frame) {
                break;
            }
            let Some(entry) = table.entries.iter().find(|entry| entry.rule.takes(frame)) else {
                continue;
            };
            for (to, _) in &entry.to {
                forward(*to, entry.tag.unwrap_or(0), frame, tirs, targets);
            }
            let traps = !matches!(table.place, Place::Normal { traps: false, .. });
            if targets.len > 0 {
                verdict = Verdict::Deliver;
            } else if entry.drop || traps {
                verdict = Verdict::Drop;
            }
            if traps || entry.drop {
                break;
            }
        }
        verdict
    }

    /// Where a sent frame goes: sniffers alone see it.
    pub fn resolve_sent(&self, frame: &Arrival<'_>, tirs: &Slab<Tir>, targets: &mut Targets) {
        targets.len = 0;
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
        let drop = action.to.is_none();
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
                };
                self.entries.insert(at, entry);
                at
            }
        };
        let Some(entry) = self.entries.get_mut(at) else {
            return Err(libc::ENOMEM);
        };
        let other_tag = entry.tag.is_some_and(|tag| action.tag.unwrap_or(0) != tag);
        if entry.drop != drop || other_tag {
            return Err(libc::EEXIST);
        }
        match action.to {
            Some(to) => count(&mut entry.to, to),
            None => entry.drops += 1,
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

fn count(list: &mut Vec<(Destination, u32)>, to: Destination) {
    match list.iter_mut().find(|(known, _)| *known == to) {
        Some((_, times)) => *times += 1,
        None => list.push((to, 1)),
    }
}

fn uncount(list: &mut Vec<(Destination, u32)>, to: Destination) {
    for (_, times) in list.iter_mut().filter(|(known, _)| *known == to) {
        *times = times.saturating_sub(1);
    }
    list.retain(|(_, times)| *times > 0);
}

#[cfg(test)]
mod tests {
    use super::spec::tests::*;
    use super::*;
    use crate::objects::Kind;
    use rss::FrameClass;

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
            let parsed = parse(&specs.concat(), specs.len() as u8, true)?;
            let action = Action {
                to: rq.map(Destination::Rq),
                tag: parsed.tag,
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
        let rule = parse(&ipv4_any(), 1, true).unwrap().rule;
        let action = |rq| Action {
            to: Some(Destination::Rq(rq)),
            tag: Some(7),
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
        assert_eq!(rules.add(0, &[ipv4_any()], 2), Err(libc::EEXIST));
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
            to: Some(Destination::Rq(rq)),
            tag: None,
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
        rules.add(1, &[address(3, 0xfe)], 2).unwrap();
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
