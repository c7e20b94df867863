//! Flow tables: actions of rules, and the entries that rules share.
//!
//! Imports `matching`. Invariant: within a table the criteria that were installed first win.

use crate::handles::Index;
use crate::process::{Errno, refuse_if};

use super::matching::Match;

/// Destination of a flow rule's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Frames go to a queue that the hash and indirection table of an RSS QP select.
    Tir(Index),
    /// Frames go to a RAW_PACKET QP's own receive queue.
    Rq(Index),
}

/// Flow table that holds a rule; frames pass the tables in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableId {
    /// Flow table of the NORMAL rules. Within a priority, DONT_TRAP rules come first.
    Normal {
        priority: u16,
        /// `true` if the flow table's rules do not pass matching frames to later tables.
        traps: bool,
    },
    /// Flow table of the NORMAL rules that match only group addresses.
    Multicast,
    /// Flow table of the ALL_DEFAULT and MC_DEFAULT rules.
    Leftovers,
}

impl TableId {
    /// Returns `true` if a matching entry of this flow table decides where a frame goes, for every
    /// frame.
    pub fn is_final(self) -> bool {
        match self {
            Self::Normal { traps, .. } => traps,
            Self::Multicast => true,
            Self::Leftovers => false,
        }
    }
}

/// Treatment of the frames that match a flow rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Forward(Destination),
    Drop,
    /// Pass the rule's frames to the host's stack, and to ALL_DEFAULT and MC_DEFAULT rules if the
    /// stack does not take them.
    Host,
}

/// Action of a flow rule: fate of its frames, flow tag and flow counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowAction {
    pub fate: Fate,
    pub tag: Option<u32>,
    pub counters: Option<Index>,
}

/// Entry of a flow table; rules with equal matches share it.
#[derive(Debug)]
pub struct FlowTableEntry {
    pub rule: Match,
    pub drop: bool,
    pub tag: Option<u32>,
    /// Destinations of the flow table entry, each with the number of rules that share it.
    pub to: Vec<(Destination, u32)>,
    /// Number of rules of the flow table entry that drop frames.
    drops: u32,
    /// Number of rules of the flow table entry that pass frames to the host's stack.
    pub host: u32,
    /// Flow counters of the flow table entry, each with the number of rules that share them.
    pub counters: Vec<(Index, u32)>,
}

impl FlowTableEntry {
    fn is_empty(&self) -> bool {
        self.to.is_empty() && self.drops == 0 && self.host == 0
    }
}

/// A flow table: its position in the order of flow tables, and its entries.
#[derive(Debug)]
pub struct FlowTable {
    pub id: TableId,
    pub entries: Vec<FlowTableEntry>,
}

impl FlowTable {
    /// Adds a rule to the flow table. Fails with `EEXIST` if the rule and the existing entry with
    /// the same match differ in whether they drop, or have different explicit tags.
    pub fn add(&mut self, rule: &Match, action: FlowAction) -> Result<(), Errno> {
        let drop = action.fate == Fate::Drop;
        let at = match self.entries.iter().position(|entry| entry.rule == *rule) {
            Some(at) => at,
            None => {
                // Entries of the same criteria are grouped, in the order of the first entry of each
                // group.
                let group = self
                    .entries
                    .iter()
                    .rposition(|entry| entry.rule.same_criteria(rule));
                let at = group.map_or(self.entries.len(), |last| last + 1);
                let entry = FlowTableEntry {
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
        // `check_conflicting_ftes`: a rule without a tag takes the tag of the entry.
        let other_tag = action.tag.is_some_and(|tag| entry.tag.unwrap_or(0) != tag);
        refuse_if(entry.drop != drop || other_tag, libc::EEXIST)?;
        match action.fate {
            Fate::Forward(to) => add_use(&mut entry.to, to),
            Fate::Drop => entry.drops += 1,
            Fate::Host => entry.host += 1,
        }
        if let Some(counters) = action.counters {
            add_use(&mut entry.counters, counters);
        }
        Ok(())
    }

    pub fn remove(&mut self, rule: &Match, action: FlowAction) {
        for entry in self.entries.iter_mut().filter(|entry| entry.rule == *rule) {
            match action.fate {
                Fate::Forward(to) => remove_use(&mut entry.to, to),
                Fate::Drop => entry.drops = entry.drops.saturating_sub(1),
                Fate::Host => entry.host = entry.host.saturating_sub(1),
            }
            if let Some(counters) = action.counters {
                remove_use(&mut entry.counters, counters);
            }
        }
        self.entries.retain(|entry| !entry.is_empty());
    }
}

/// Adds 1 to the number of rules that use `one` in a flow table entry's list.
pub fn add_use<T: Copy + PartialEq>(list: &mut Vec<(T, u32)>, one: T) {
    match list.iter_mut().find(|(known, _)| *known == one) {
        Some((_, times)) => *times += 1,
        None => list.push((one, 1)),
    }
}

/// Subtracts 1 from the number of rules that use `one` in a flow table entry's list; removes `one`
/// from the list at zero.
pub fn remove_use<T: Copy + PartialEq>(list: &mut Vec<(T, u32)>, one: T) {
    for (_, times) in list.iter_mut().filter(|(known, _)| *known == one) {
        *times = times.saturating_sub(1);
    }
    list.retain(|(_, times)| *times > 0);
}
