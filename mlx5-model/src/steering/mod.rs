//! Steering: selection of the queues that a frame goes to.
//!
//! Imports `frame`, `handles` and the crate `wqcap-rss`. Rules come from the flow specs of verbs
//! (`flow_spec`) or from mlx5dv's match criteria (`match_param`). They become a match (`matching`,
//! with `tunnel` for inner headers) in a table (`table`) of a port (`rules`). A `tir` selects the
//! queue by RSS. `roce` recognises RoCE frames.

pub mod flow_spec;
pub mod match_param;
mod matching;
mod roce;
mod rules;
mod table;
mod targets;
mod tir;
mod tunnel;

pub use matching::{Match, MatchCaps};
pub use roce::is_roce;
pub use rules::{FastMatch, FlowVerdict, NicSteering, leftovers};
pub use table::{Destination, Fate, FlowAction, TableId};
pub use targets::{Target, Targets};
pub use tir::Tir;

/// Lowest priority of flow rules (`MLX5_IB_FLOW_LAST_PRIO`).
pub const LAST_PRIORITY: u16 = 15;
