//! Views of the layers below IP: Ethernet, VLAN, MPLS, PPPoE and ARP.

mod arp;
mod ethernet;
mod mpls;
mod pppoe;
mod vlan;

pub use arp::Arp;
pub use ethernet::{Ethernet, Llc};
pub use mpls::Mpls;
pub use pppoe::{Ppp, Pppoe};
pub use vlan::Vlan;
