//! What is wrong with a frame, in one byte: a class to count by, never a story.

use serde::Serialize;

/// Declares the classes once, with their names.
macro_rules! classes {
    ($($(#[$doc:meta])* $class:ident = $name:literal,)+) => {
        /// Why parsing went no further, or what the headers contradict.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[repr(u8)]
        pub enum Malformed {
            $($(#[$doc])* #[serde(rename = $name)] $class,)+
        }

        impl Malformed {
            /// Every class, in order.
            pub const ALL: &[Self] = &[$(Self::$class,)+];

            /// Its name in statistics.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$class => $name,)+ }
            }
        }
    };
}

classes! {
    /// Shorter than an Ethernet header.
    EthernetShort = "ethernet_short",
    /// Ends within an LLC or SNAP header.
    LlcShort = "llc_short",
    /// Ends within a VLAN tag.
    VlanShort = "vlan_short",
    /// Ends within an MPLS label.
    MplsShort = "mpls_short",
    /// Ends within a PPPoE or PPP header.
    PppShort = "ppp_short",
    /// PPPoE tells another version or type than 1, or more bytes than there are.
    PppoeHeader = "pppoe_header",
    /// Ends within an ARP packet.
    ArpShort = "arp_short",
    /// Ends within an IPv4 header.
    Ipv4Short = "ipv4_short",
    /// Another version than 4 where IPv4 was announced.
    Ipv4Version = "ipv4_version",
    /// A header length below 20 bytes.
    Ipv4HeaderLength = "ipv4_header_length",
    /// A total length below the header's, or beyond the frame's end.
    Ipv4TotalLength = "ipv4_total_length",
    /// Ends within an IPv6 header.
    Ipv6Short = "ipv6_short",
    /// Another version than 6 where IPv6 was announced.
    Ipv6Version = "ipv6_version",
    /// A payload length beyond the frame's end.
    Ipv6PayloadLength = "ipv6_payload_length",
    /// Ends within an IPv6 extension header.
    Ipv6ExtensionShort = "ipv6_extension_short",
    /// Ends within an authentication header, or the header tells less than its own length.
    AhShort = "ah_short",
    /// Ends within an ESP header.
    EspShort = "esp_short",
    /// Ends within a TCP header.
    TcpShort = "tcp_short",
    /// A TCP data offset below 20 bytes.
    TcpHeaderLength = "tcp_header_length",
    /// Ends within a UDP header.
    UdpShort = "udp_short",
    /// A UDP length below 8 bytes or beyond its packet's end.
    UdpLength = "udp_length",
    /// Ends within an SCTP common header.
    SctpShort = "sctp_short",
    /// Ends within an ICMP header.
    IcmpShort = "icmp_short",
    /// Ends within a GRE or ERSPAN header.
    GreShort = "gre_short",
    /// Ends within a VXLAN header.
    VxlanShort = "vxlan_short",
    /// Ends within a Geneve header.
    GeneveShort = "geneve_short",
    /// Ends within a GTP-U header.
    GtpShort = "gtp_short",
    /// More headers than are followed.
    TooDeep = "too_deep",
}

/// How many frames of each class there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedCounts([u64; Malformed::ALL.len()]);

impl Default for MalformedCounts {
    fn default() -> Self {
        Self([0; Malformed::ALL.len()])
    }
}

impl MalformedCounts {
    /// One more.
    #[inline]
    pub fn count(&mut self, class: Malformed) {
        self.0[class as usize] += 1;
    }

    /// Frames of this class.
    #[must_use]
    pub fn of(&self, class: Malformed) -> u64 {
        self.0[class as usize]
    }

    /// Frames of all classes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
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
        assert_eq!((counts.of(Malformed::UdpShort), counts.total()), (2, 3));
        let named: Vec<_> = counts.iter().map(|(c, n)| (c.name(), n)).collect();
        assert_eq!(named, [("udp_short", 2), ("too_deep", 1)]);
    }
}
