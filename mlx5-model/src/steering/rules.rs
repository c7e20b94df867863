//! Rules of a port, and the decision where they send a frame.
//!
//! Imports `table`, `targets`, `tir` and `roce`. The order of tables is the driver's. Sniffer rules see
//! every frame in addition to the other rules. NORMAL rules are ordered by priority; those for
//! group addresses only have a separate last priority. Then come the host's own stack, and
//! ALL_DEFAULT and MC_DEFAULT. A rule whose action is the default miss ends the NORMAL rules for
//! its frames, which continue to the host's stack.
//!
//! Invariants: all targets of a frame are determined before anything is delivered, so that a wire
//! that waits never delivers to a part of them. The first table with a matching entry decides where
//! a frame goes, unless the entry is DONT_TRAP.

use crate::frame::{ParsedFrame, kind};
use crate::handles::Slab;
use crate::process::Errno;

use super::matching::Match;
use super::roce::is_roce;
use super::table::{Destination, FlowAction, FlowTable, TableId, add_use, remove_use};
use super::targets::{Target, Targets};
use super::tir::{RssResult, Tir};

/// Decision of a port's flow rules for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowVerdict {
    /// Flow verdict: the frame goes to the target queues.
    Deliver,
    Drop,
    /// Flow verdict: a rule passes the frame to the host's network stack.
    Host,
    /// Flow verdict: no rule matches, so the frame goes to the host's stack or is discarded.
    Miss,
}

/// Decision of the flow steering's fast path for a frame.
#[derive(Debug, Clone, Copy, Default)]
pub enum FastMatch {
    /// Fast path decision: the frame goes to this one receive queue.
    One(Target),
    Miss,
    /// The steering fast path cannot decide; [`NicSteering::resolve`] must.
    #[default]
    Undecided,
}

/// Entry of the flow steering's fast path: a flow rule that matches only frame kinds and has one
/// destination.
#[derive(Debug, Clone, Copy)]
struct FastEntry {
    kinds: u32,
    tag: u32,
    to: Destination,
}

/// Flow rules of a port, with the steering fast path made from them.
#[derive(Debug)]
pub struct NicSteering {
    sniffers: Vec<(Destination, u32)>,
    tables: Vec<FlowTable>,
    /// Fast path's copies of the leading flow table entries in order, as far as they match only
    /// frame kinds. For a capture that spreads all traffic these are all rules.
    fast: Vec<FastEntry>,
    /// Set when `fast` contains all flow rules, so that a frame without an entry there matches no
    /// rule.
    all_fast: bool,
    /// MAC address of the port itself; the host's stack takes the frames to this address.
    mac: [u8; 6],
    /// Set when sniffer rules see RoCE frames only.
    sniffs_roce_only: bool,
}

impl NicSteering {
    pub fn new(mac: [u8; 6], sniffs_roce_only: bool) -> Self {
        Self {
            sniffers: Vec::new(),
            tables: Vec::new(),
            fast: Vec::new(),
            all_fast: true,
            mac,
            sniffs_roce_only,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.sniffers.is_empty() && self.tables.is_empty()
    }

    /// Returns `true` if there are sniffer rules, which also see sent frames.
    #[inline]
    pub fn has_sniffers(&self) -> bool {
        !self.sniffers.is_empty()
    }

    pub fn add_sniffer(&mut self, to: Destination) {
        add_use(&mut self.sniffers, to);
        self.rebuild_fast_path();
    }

    pub fn remove_sniffer(&mut self, to: Destination) {
        remove_use(&mut self.sniffers, to);
        self.rebuild_fast_path();
    }

    /// Adds a flow rule to the port's tables. Fails as [`FlowTable::add`] does.
    pub fn add(&mut self, id: TableId, rule: &Match, action: FlowAction) -> Result<(), Errno> {
        let at = self.tables.partition_point(|table| table.id < id);
        if self.tables.get(at).is_none_or(|table| table.id != id) {
            let entries = Vec::new();
            self.tables.insert(at, FlowTable { id, entries });
        }
        let added = self.tables[at].add(rule, action);
        self.rebuild_fast_path();
        added
    }

    pub fn remove(&mut self, id: TableId, rule: &Match, action: FlowAction) {
        for table in self.tables.iter_mut().filter(|table| table.id == id) {
            table.remove(rule, action);
        }
        self.tables.retain(|table| !table.entries.is_empty());
        self.rebuild_fast_path();
    }

    fn rebuild_fast_path(&mut self) {
        self.fast.clear();
        self.all_fast = false;
        if self.has_sniffers() {
            return;
        }
        for table in &self.tables {
            if !table.id.is_final() {
                return;
            }
            for entry in &table.entries {
                let ([(to, _)], 0, []) = (&entry.to[..], entry.host, &entry.counters[..]) else {
                    return;
                };
                let Some(kinds) = entry.rule.only_kinds() else {
                    return;
                };
                let tag = entry.tag.unwrap_or(0);
                let to = *to;
                self.fast.push(FastEntry { kinds, tag, to });
            }
        }
        self.all_fast = true;
    }

    /// Decides to which queue a received frame goes, if the fast path can. The result stays in
    /// registers: see `Rq::deliver`.
    #[inline(always)]
    pub fn resolve_fast(&self, frame: &ParsedFrame<'_>, tirs: &Slab<Tir>) -> FastMatch {
        match self
            .fast
            .iter()
            .find(|entry| frame.kinds & entry.kinds == entry.kinds)
        {
            Some(entry) => match select(entry.to, frame, tirs) {
                Some(rss) => FastMatch::One(Target {
                    rss,
                    tag: entry.tag,
                }),
                None => FastMatch::Undecided,
            },
            None if self.all_fast => FastMatch::Miss,
            None => FastMatch::Undecided,
        }
    }

    /// Decides to which receive queues a received frame goes, and fills `targets` with them.
    /// Returns the decision.
    pub fn resolve(
        &self,
        frame: &ParsedFrame<'_>,
        tirs: &Slab<Tir>,
        targets: &mut Targets,
    ) -> FlowVerdict {
        self.resolve_sent(frame, tirs, targets);
        let mut to_host = false;
        let mut verdict = if !targets.is_empty() {
            FlowVerdict::Deliver
        } else {
            FlowVerdict::Miss
        };
        for table in &self.tables {
            if table.id == TableId::Leftovers && self.host_takes(frame) {
                break;
            }
            if table.id != TableId::Leftovers && to_host {
                continue;
            }
            let Some(entry) = table.entries.iter().find(|entry| entry.rule.matches(frame)) else {
                continue;
            };
            for (to, _) in &entry.to {
                forward(*to, entry.tag.unwrap_or(0), frame, tirs, targets);
            }
            for (counters, _) in &entry.counters {
                targets.add_counters(*counters);
            }
            let traps = !matches!(table.id, TableId::Normal { traps: false, .. });
            to_host = entry.host > 0;
            if !targets.is_empty() {
                verdict = FlowVerdict::Deliver;
            } else if to_host {
                verdict = FlowVerdict::Host;
            } else if entry.drop || traps {
                verdict = FlowVerdict::Drop;
            }
            if !to_host && (traps || entry.drop) {
                break;
            }
        }
        verdict
    }

    /// Fills `targets` with the receive queues of sniffer rules, the only rules that see a frame
    /// that the host sends.
    pub fn resolve_sent(&self, frame: &ParsedFrame<'_>, tirs: &Slab<Tir>, targets: &mut Targets) {
        targets.clear();
        if self.sniffs_roce_only && !is_roce(frame.bytes) {
            return;
        }
        for (to, _) in &self.sniffers {
            forward(*to, 0, frame, tirs, targets);
        }
    }

    /// Returns `true` if the driver's own flow rules pass the frame to the host's stack: frames to
    /// the port's MAC address and broadcasts.
    pub fn host_takes(&self, frame: &ParsedFrame<'_>) -> bool {
        frame
            .bytes
            .get(..6)
            .is_some_and(|to| to == self.mac || to == [0xff; 6])
    }
}

/// Returns the match of an MC_DEFAULT flow rule, or of the unicast half of an ALL_DEFAULT flow
/// rule.
pub fn leftovers(multicast: bool) -> Match {
    Match::kinds(if multicast {
        kind::MULTICAST
    } else {
        kind::UNICAST
    })
}

#[inline(always)]
fn select(to: Destination, frame: &ParsedFrame<'_>, tirs: &Slab<Tir>) -> Option<RssResult> {
    match to {
        Destination::Rq(rq) => Some(RssResult {
            rq,
            hash: 0,
            hash_type: 0,
        }),
        Destination::Tir(tir) => tirs.at(tir).map(|tir| tir.select(frame)),
    }
}

fn forward(
    to: Destination,
    tag: u32,
    frame: &ParsedFrame<'_>,
    tirs: &Slab<Tir>,
    targets: &mut Targets,
) {
    if let Some(rss) = select(to, frame, tirs) {
        targets.push(Target { rss, tag });
    }
}

#[cfg(test)]
mod tests {
    use super::super::flow_spec::parse;
    use super::super::flow_spec::tests::*;
    use super::super::table::Fate;
    use super::*;
    use crate::handles::Index;
    use crate::handles::ObjectKind;
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

    struct Rules(NicSteering);

    impl Rules {
        fn new() -> Self {
            Self(NicSteering::new(MAC, false))
        }
        fn add(&mut self, priority: u16, specs: &[Vec<u8>], rq: Index) -> Result<(), Errno> {
            self.add_to(
                TableId::Normal {
                    priority,
                    traps: true,
                },
                specs,
                Some(rq),
            )
        }
        fn add_to(
            &mut self,
            table: TableId,
            specs: &[Vec<u8>],
            rq: Option<Index>,
        ) -> Result<(), Errno> {
            let parsed = parse(&specs.concat(), specs.len() as u8, ALL)?;
            let action = FlowAction {
                fate: rq.map_or(Fate::Drop, |rq| Fate::Forward(Destination::Rq(rq))),
                tag: parsed.tag,
                counters: None,
            };
            self.0.add(table, &parsed.rule, action)
        }
        fn targets(&self, bytes: &[u8]) -> (FlowVerdict, Vec<(Index, u32)>) {
            let tirs = Slab::new(ObjectKind::Tir, 1);
            let mut targets = Targets::default();
            let class = FrameClass::from_frame(bytes);
            let arrival = ParsedFrame::new(bytes, &class, 0);
            let verdict = self.0.resolve(&arrival, &tirs, &mut targets);
            match self.0.resolve_fast(&arrival, &tirs) {
                FastMatch::One(target) => {
                    assert_eq!(verdict, FlowVerdict::Deliver);
                    assert_eq!(targets.as_slice(), [target]);
                }
                FastMatch::Miss => assert_eq!(verdict, FlowVerdict::Miss),
                FastMatch::Undecided => {}
            }
            let list = targets
                .as_slice()
                .iter()
                .map(|target| (target.rss.rq, target.tag));
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
    fn equal_rules_duplicate_to_two_queues_and_are_counted_per_queue() {
        let mut rules = Rules::new();
        let place = TableId::Normal {
            priority: 3,
            traps: true,
        };
        for rq in [1, 1, 2] {
            rules.add(3, &[ipv4_any(), tag(7)], rq).unwrap();
        }
        assert_eq!(rules.targets(&frame(UDP, 6)).1, [(1, 7), (2, 7)]);
        let rule = parse(&ipv4_any(), 1, ALL).unwrap().rule;
        let action = |rq| FlowAction {
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
        assert_eq!(rules.targets(&frame(UDP, 6)), (FlowVerdict::Miss, vec![]));
    }

    #[test]
    fn conflicting_entries_are_refused() {
        let mut rules = Rules::new();
        rules.add(0, &[ipv4_any(), tag(7)], 1).unwrap();
        assert_eq!(rules.add(0, &[ipv4_any(), tag(8)], 1), Err(libc::EEXIST));
        assert_eq!(
            rules.add(0, &[ipv4_any()], 2),
            Ok(()),
            "takes the tag of the entry"
        );
        rules.add(2, &[ipv4_any()], 1).unwrap();
        assert_eq!(rules.add(2, &[ipv4_any(), tag(7)], 1), Err(libc::EEXIST));
        let place = TableId::Normal {
            priority: 0,
            traps: true,
        };
        assert_eq!(
            rules.add_to(place, &[ipv4_any(), tag(7)], None),
            Err(libc::EEXIST)
        );
        assert_eq!(rules.add(1, &[ipv4_any(), tag(8)], 1), Ok(()));
    }

    #[test]
    fn dropped_frames_go_nowhere_else() {
        let mut rules = Rules::new();
        rules
            .add_to(
                TableId::Normal {
                    priority: 0,
                    traps: true,
                },
                &[ipv4_any(), udp_any()],
                None,
            )
            .unwrap();
        rules.add(1, &[eth_any()], 5).unwrap();
        assert_eq!(rules.targets(&frame(UDP, 17)), (FlowVerdict::Drop, vec![]));
        assert_eq!(rules.targets(&frame(UDP, 6)).1, [(5, 0)]);
    }

    #[test]
    fn frames_passed_to_the_host_also_reach_the_leftovers() {
        let mut rules = Rules::new();
        let table = |priority| TableId::Normal {
            priority,
            traps: true,
        };
        let host = FlowAction {
            fate: Fate::Host,
            tag: None,
            counters: Some(3),
        };
        let udp = parse(&[ipv4_any(), udp_any()].concat(), 2, ALL).unwrap();
        rules.0.add(table(1), &udp.rule, host).unwrap();
        rules.add(2, &[eth_any()], 5).unwrap();
        assert_eq!(rules.targets(&frame(UDP, 17)), (FlowVerdict::Host, vec![]));
        assert_eq!(rules.targets(&frame(UDP, 6)).1, [(5, 0)]);
        rules.add(0, &[eth_any()], 6).unwrap();
        assert_eq!(
            rules.targets(&frame(UDP, 17)).1,
            [(6, 0)],
            "matched in an earlier table"
        );
        rules.0.remove(
            table(0),
            &parse(&eth_any(), 1, ALL).unwrap().rule,
            FlowAction {
                fate: Fate::Forward(Destination::Rq(6)),
                tag: None,
                counters: None,
            },
        );
        let left = FlowAction {
            fate: Fate::Forward(Destination::Rq(7)),
            tag: None,
            counters: None,
        };
        rules
            .0
            .add(TableId::Leftovers, &leftovers(false), left)
            .unwrap();
        assert_eq!(rules.targets(&frame(UDP, 17)).1, [(7, 0)]);
        assert_eq!(rules.targets(&frame(MAC, 17)), (FlowVerdict::Host, vec![]));
        rules.0.remove(table(1), &udp.rule, host);
        assert_eq!(rules.targets(&frame(UDP, 17)).1, [(5, 0)]);
    }

    #[test]
    fn dont_trap_rules_pass_frames_on() {
        let mut rules = Rules::new();
        rules
            .add_to(
                TableId::Normal {
                    priority: 4,
                    traps: false,
                },
                &[eth_any()],
                Some(1),
            )
            .unwrap();
        assert_eq!(
            rules.targets(&frame(UDP, 17)),
            (FlowVerdict::Deliver, vec![(1, 0)])
        );
        rules.add(4, &[eth_any()], 2).unwrap();
        assert_eq!(rules.targets(&frame(UDP, 17)).1, [(1, 0), (2, 0)]);
    }

    #[test]
    fn sniffers_copy_and_leftovers_take_frames_that_the_host_does_not() {
        let mut rules = Rules::new();
        rules.0.add_sniffer(Destination::Rq(9));
        let to = |rq| FlowAction {
            fate: Fate::Forward(Destination::Rq(rq)),
            tag: None,
            counters: None,
        };
        for multicast in [true, false] {
            rules
                .0
                .add(TableId::Leftovers, &leftovers(multicast), to(1))
                .unwrap();
        }
        rules
            .0
            .add(TableId::Leftovers, &leftovers(true), to(2))
            .unwrap();
        assert_eq!(rules.targets(&frame(UDP, 17)).1, [(9, 0), (1, 0)]);
        assert_eq!(
            rules.targets(&frame([1, 0, 0x5e, 0, 0, 1], 17)).1,
            [(9, 0), (1, 0), (2, 0)]
        );
        assert_eq!(rules.targets(&frame(MAC, 17)).1, [(9, 0)]);
        assert_eq!(rules.targets(&frame([0xff; 6], 17)).1, [(9, 0)]);
        rules.0.remove_sniffer(Destination::Rq(9));
        assert_eq!(rules.targets(&frame(MAC, 17)), (FlowVerdict::Miss, vec![]));
    }

    #[test]
    fn multicast_rules_come_after_all_priorities() {
        let mut rules = Rules::new();
        let group = [1, 0, 0x5e, 0, 0, 1];
        rules
            .add_to(TableId::Multicast, &[eth_to(group)], Some(1))
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
            "10.0.0.2 and 10.0.0.3 differ in the last bit"
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
