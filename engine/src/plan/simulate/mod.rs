//! Which queue each frame of a capture would take under a configuration, without a NIC.
//!
//! ```text
//! frame -> what the NIC would see of it (nic_view, tunnel) -> its rule (rules) -> hash, queue (crate `wqcap-rss`) -> tallies
//! -> SimulationReport
//! ```
//!
//! May import: [`crate::config`], [`crate::plan::steering`], the plain rule types of [`crate::verbs`], [`crate::Error`]
//! and crate `wqcap-rss`.
//!
//! Invariants: a frame is on exactly one queue, dropped by a rule, or left to the kernel, so that the sum over the
//! queues is the total; the rules are those that a run would install. Memory grows with the flows seen, by about a
//! hundred bytes each, and with nothing else.

mod flows;
mod nic_view;
mod report;
mod rules;
mod simulation;
mod suggest;
mod tally;
mod tunnel;

pub use report::{
    ByReason, Directions, HeaviestFlow, SimulatedQueue, SimulatedSpread, SimulationReport, Skew,
    SuggestedSetting, Suggestion,
};
pub use simulation::Simulation;

#[cfg(test)]
mod tests;
