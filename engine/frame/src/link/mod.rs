//! Views of the layers below IP: Ethernet, VLAN, tags of fabrics, MPLS, PPPoE, ARP and 802.11.

mod arp;
mod ethernet;
mod fabric;
mod mpls;
mod pppoe;
mod vlan;
mod wlan;

pub use arp::Arp;
pub use ethernet::{Ethernet, Llc};
pub use fabric::{FabricTag, Nsh};
pub use mpls::Mpls;
pub use pppoe::{Ppp, Pppoe};
pub use vlan::Vlan;
pub use wlan::Wlan;
