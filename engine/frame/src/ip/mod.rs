//! Views of the IP layer: IPv4, IPv6, extension headers, IPsec and ICMP.

mod icmp;
mod ipsec;
mod ipv4;
mod ipv6;

pub use icmp::Icmp;
pub use ipsec::{Ah, Esp};
pub use ipv4::Ipv4;
pub use ipv6::{ExtensionHeader, Ipv6, Ipv6Fragment};
