//! IP, its extension headers, and its control messages.

mod icmp;
mod ipsec;
mod ipv4;
mod ipv6;

pub use icmp::Icmp;
pub use ipsec::{Ah, Esp};
pub use ipv4::Ipv4;
pub use ipv6::{Extension, Ipv6, Ipv6Fragment};
