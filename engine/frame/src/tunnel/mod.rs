//! Views of tunnel headers: GRE, ERSPAN, VXLAN, Geneve, GTP-U, CAPWAP, L2TP, TZSP, Teredo and
//! EtherIP.

mod capwap;
mod geneve;
mod gre;
mod gtp;
mod l2tp;
mod teredo;
mod tzsp;
mod vxlan;

pub use capwap::Capwap;
pub use geneve::Geneve;
pub use gre::{Erspan, Gre};
pub use gtp::Gtp;
pub use l2tp::L2tp;
pub use teredo::{EtherIp, Teredo};
pub use tzsp::Tzsp;
pub use vxlan::Vxlan;
