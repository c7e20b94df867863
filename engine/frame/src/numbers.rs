//! Assigned numbers: what announces a header.

/// Ethertypes (IEEE registration authority; the RFC or standard that assigns the use).
pub mod ethertype {
    /// The largest value that is an 802.3 length: IEEE 802.3 clause 3.2.6.
    pub const LONGEST_LENGTH: u16 = 1500;
    /// IPv4, RFC 894.
    pub const IPV4: u16 = 0x0800;
    /// ARP, RFC 826.
    pub const ARP: u16 = 0x0806;
    /// Transparent Ethernet bridging, RFC 1701.
    pub const ETHERNET: u16 = 0x6558;
    /// Customer VLAN tag, IEEE 802.1Q clause 9.5.
    pub const VLAN: u16 = 0x8100;
    /// PPP within GRE, RFC 2637.
    pub const PPP: u16 = 0x880b;
    /// IPv6, RFC 2464.
    pub const IPV6: u16 = 0x86dd;
    /// MPLS unicast, RFC 3032.
    pub const MPLS: u16 = 0x8847;
    /// MPLS multicast, RFC 5332.
    pub const MPLS_MULTICAST: u16 = 0x8848;
    /// PPPoE session stage, RFC 2516.
    pub const PPPOE: u16 = 0x8864;
    /// Service VLAN tag, IEEE 802.1Q clause 9.5.
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// ERSPAN types I and II within GRE.
    pub const ERSPAN: u16 = 0x88be;
    /// ERSPAN type III within GRE.
    pub const ERSPAN_III: u16 = 0x22eb;
    /// Double tags from before the service tag was assigned.
    pub const OLD_QINQ: u16 = 0x9100;
}

/// Protocol numbers above IP (IANA "Assigned Internet Protocol Numbers").
pub mod protocol {
    /// IPv6 hop-by-hop options, RFC 8200.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP, RFC 792.
    pub const ICMP: u8 = 1;
    /// IPv4 in IP, RFC 2003.
    pub const IPV4: u8 = 4;
    /// TCP, RFC 9293.
    pub const TCP: u8 = 6;
    /// UDP, RFC 768.
    pub const UDP: u8 = 17;
    /// IPv6 in IP, RFC 2473.
    pub const IPV6: u8 = 41;
    /// IPv6 routing header, RFC 8200.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header, RFC 8200.
    pub const FRAGMENT: u8 = 44;
    /// GRE, RFC 2784.
    pub const GRE: u8 = 47;
    /// ESP, RFC 4303.
    pub const ESP: u8 = 50;
    /// AH, RFC 4302.
    pub const AH: u8 = 51;
    /// ICMPv6, RFC 4443.
    pub const ICMPV6: u8 = 58;
    /// Nothing follows, RFC 8200.
    pub const NO_NEXT: u8 = 59;
    /// IPv6 destination options, RFC 8200.
    pub const DESTINATION: u8 = 60;
    /// SCTP, RFC 9260.
    pub const SCTP: u8 = 132;
    /// IPv6 mobility header, RFC 6275.
    pub const MOBILITY: u8 = 135;
    /// MPLS in IP, RFC 4023.
    pub const MPLS: u8 = 137;
    /// Host identity protocol, RFC 7401.
    pub const HIP: u8 = 139;
    /// Shim6, RFC 5533.
    pub const SHIM6: u8 = 140;
    /// Ethernet in IP, RFC 8986.
    pub const ETHERNET: u8 = 143;
}
