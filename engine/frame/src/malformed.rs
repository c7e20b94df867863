//! Classes of malformed frames, one byte each, for counting.

use serde::Serialize;
use strum::{IntoStaticStr, VariantArray};

/// Class of a malformed frame: the reason why parsing stopped, or a contradiction between headers.
/// Statistics use the name in snake case, for instance `llc_short`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Malformed {
    /// Frame is shorter than an Ethernet header.
    EthernetShort,
    /// Frame ends within an LLC or SNAP header.
    LlcShort,
    /// Frame ends within a VLAN tag.
    VlanShort,
    /// Frame ends within an MPLS label.
    MplsShort,
    /// Frame ends within a PPPoE or PPP header.
    PppShort,
    /// PPPoE version or type is not 1, or the PPPoE length exceeds the frame.
    PppoeHeader,
    /// Frame ends within an ARP packet.
    ArpShort,
    /// Packet ends within an IPv4 header.
    Ipv4Short,
    /// IP version is not 4 although the header before it announced IPv4.
    Ipv4Version,
    /// IPv4 header length is below 20 bytes.
    Ipv4HeaderLength,
    /// IPv4 total length is below the header length or exceeds the frame.
    Ipv4TotalLength,
    /// Packet ends within an IPv6 header.
    Ipv6Short,
    /// IP version is not 6 although the header before it announced IPv6.
    Ipv6Version,
    /// IPv6 payload length exceeds the frame.
    Ipv6PayloadLength,
    /// Packet ends within an IPv6 extension header.
    Ipv6ExtensionShort,
    /// Packet ends within an authentication header (AH), or the AH length is below its fixed part.
    AhShort,
    /// Packet ends within an ESP header.
    EspShort,
    /// Packet ends within a TCP header.
    TcpShort,
    /// TCP data offset is below 20 bytes.
    TcpHeaderLength,
    /// Packet ends within a UDP header.
    UdpShort,
    /// UDP length is below 8 bytes or exceeds the packet.
    UdpLength,
    /// Packet ends within an SCTP common header.
    SctpShort,
    /// Packet ends within an ICMP header.
    IcmpShort,
    /// Packet ends within a GRE or ERSPAN header.
    GreShort,
    /// Packet ends within a VXLAN header.
    VxlanShort,
    /// Packet ends within a Geneve header.
    GeneveShort,
    /// Packet ends within a GTP-U header.
    GtpShort,
    /// Frame ends within a header of a switch or a fabric, such as VN-Tag or NSH.
    TagShort,
    /// Packet ends within a header of CAPWAP, L2TP, TZSP, Teredo, EtherIP or 802.11.
    TunnelShort,
    /// Frame has more headers than [`crate::MAX_HEADERS`].
    TooDeep,
}

impl Malformed {
    /// All classes of malformed frames, in the order of their numbers.
    pub const ALL: &[Self] = Self::VARIANTS;
}

/// Number of malformed frames of each class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MalformedCounts([u64; Malformed::ALL.len()]);

impl MalformedCounts {
    /// Counts a malformed frame of the given class.
    #[inline]
    pub fn count(&mut self, class: Malformed) {
        self.0[class as usize] += 1;
    }

    /// Returns the classes of malformed frames with a count above 0, each with its count.
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
