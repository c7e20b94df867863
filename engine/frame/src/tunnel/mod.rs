//! Views of tunnel headers: GRE, ERSPAN, VXLAN, Geneve and GTP-U.

mod geneve;
mod gre;
mod gtp;
mod vxlan;

pub use geneve::Geneve;
pub use gre::{Erspan, Gre};
pub use gtp::Gtp;
pub use vxlan::Vxlan;
