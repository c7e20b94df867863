//! What is wrong with a frame, in one byte: a class to count by, never a story.

use serde::Serialize;
use strum::{IntoStaticStr, VariantArray};

/// Why parsing went no further, or what the headers contradict; its name in statistics is, for instance, `llc_short`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Malformed {
    /// Shorter than an Ethernet header.
    EthernetShort,
    /// Ends within an LLC or SNAP header.
    LlcShort,
    /// Ends within a VLAN tag.
    VlanShort,
    /// Ends within an MPLS label.
    MplsShort,
    /// Ends within a PPPoE or PPP header.
    PppShort,
    /// PPPoE tells another version or type than 1, or more bytes than there are.
    PppoeHeader,
    /// Ends within an ARP packet.
    ArpShort,
    /// Ends within an IPv4 header.
    Ipv4Short,
    /// Another version than 4 where IPv4 was announced.
    Ipv4Version,
    /// A header length below 20 bytes.
    Ipv4HeaderLength,
    /// A total length below the header's, or beyond the frame's end.
    Ipv4TotalLength,
    /// Ends within an IPv6 header.
    Ipv6Short,
    /// Another version than 6 where IPv6 was announced.
    Ipv6Version,
    /// A payload length beyond the frame's end.
    Ipv6PayloadLength,
    /// Ends within an IPv6 extension header.
    Ipv6ExtensionShort,
    /// Ends within an authentication header, or the header tells less than its own length.
    AhShort,
    /// Ends within an ESP header.
    EspShort,
    /// Ends within a TCP header.
    TcpShort,
    /// A TCP data offset below 20 bytes.
    TcpHeaderLength,
    /// Ends within a UDP header.
    UdpShort,
    /// A UDP length below 8 bytes or beyond its packet's end.
    UdpLength,
    /// Ends within an SCTP common header.
    SctpShort,
    /// Ends within an ICMP header.
    IcmpShort,
    /// Ends within a GRE or ERSPAN header.
    GreShort,
    /// Ends within a VXLAN header.
    VxlanShort,
    /// Ends within a Geneve header.
    GeneveShort,
    /// Ends within a GTP-U header.
    GtpShort,
    /// More headers than are followed.
    TooDeep,
}

impl Malformed {
    /// Every class, in order.
    pub const ALL: &[Self] = Self::VARIANTS;
}

/// How many frames of each class there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MalformedCounts([u64; Malformed::ALL.len()]);

impl MalformedCounts {
    /// One more.
    #[inline]
    pub fn count(&mut self, class: Malformed) {
        self.0[class as usize] += 1;
    }

    /// Every class that occurred, with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Malformed, u64)> + '_ {
        let counts = Malformed::ALL.iter().copied().zip(self.0);
        counts.filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_numbered_in_order_and_take_a_byte() {
        assert_eq!(size_of::<Option<Malformed>>(), 1);
        for (i, class) in Malformed::ALL.iter().enumerate() {
            assert_eq!(*class as usize, i);
        }
    }

    #[test]
    fn counts_are_kept_by_class() {
        let mut counts = MalformedCounts::default();
        counts.count(Malformed::TooDeep);
        counts.count(Malformed::UdpShort);
        counts.count(Malformed::UdpShort);
        let named: Vec<_> = counts.iter().map(|(c, n)| (<&str>::from(c), n)).collect();
        assert_eq!(named, [("udp_short", 2), ("too_deep", 1)]);
    }
}
