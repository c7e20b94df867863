//! Simulation of the queue that each frame of a capture file would take under a configuration,
//! without a NIC.
//!
//! ```text
//! frame -> the NIC's view of it (nic_view, tunnel) -> its rule (rules) -> hash, queue (crate `wqcap-rss`)
//! -> counts (tally) -> SimulationReport
//! ```
//!
//! May import: [`crate::config`], [`crate::plan::steering`], the plain rule types of [`crate::verbs`], [`crate::Error`]
//! and crate `wqcap-rss`.
//!
//! Invariants:
//!
//! - Each frame is on exactly one queue, dropped by a rule, or left to the kernel. The sum over the
//!   queues is the total.
//! - The rules are those that a run would install.
//! - Memory grows only with the number of flows, by about a hundred bytes each.

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
