//! Assigned numbers that announce the next header: ethertypes and IP protocol numbers.

/// Ethertypes (IEEE registration authority), each with the RFC or standard that defines its use.
pub mod ethertype {
    /// Largest value that is an 802.3 length instead of an ethertype: IEEE 802.3 clause 3.2.6.
    pub const LONGEST_LENGTH: u16 = 1500;
    /// Ethertype of IPv4: RFC 894.
    pub const IPV4: u16 = 0x0800;
    /// Ethertype of ARP: RFC 826.
    pub const ARP: u16 = 0x0806;
    /// Ethertype of transparent Ethernet bridging: RFC 1701.
    pub const ETHERNET: u16 = 0x6558;
    /// Ethertype of a customer VLAN tag: IEEE 802.1Q clause 9.5.
    pub const VLAN: u16 = 0x8100;
    /// Ethertype of PPP in GRE: RFC 2637.
    pub const PPP: u16 = 0x880b;
    /// Ethertype of IPv6: RFC 2464.
    pub const IPV6: u16 = 0x86dd;
    /// Ethertype of MPLS unicast: RFC 3032.
    pub const MPLS: u16 = 0x8847;
    /// Ethertype of MPLS multicast: RFC 5332.
    pub const MPLS_MULTICAST: u16 = 0x8848;
    /// Ethertype of the PPPoE session stage: RFC 2516.
    pub const PPPOE: u16 = 0x8864;
    /// Ethertype of a service VLAN tag: IEEE 802.1Q clause 9.5.
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// Ethertype of ERSPAN types I and II in GRE.
    pub const ERSPAN: u16 = 0x88be;
    /// Ethertype of ERSPAN type III in GRE.
    pub const ERSPAN_III: u16 = 0x22eb;
    /// Ethertype of a provider backbone bridge's I-TAG: IEEE 802.1Q clause 9.5.
    pub const BACKBONE_SERVICE: u16 = 0x88e7;
    /// Ethertype of an E-Tag: IEEE 802.1BR.
    pub const ETAG: u16 = 0x893f;
    /// Ethertype of Cisco's VN-Tag.
    pub const VNTAG: u16 = 0x8926;
    /// Ethertype of Cisco's metadata (security group tags).
    pub const CISCO_METADATA: u16 = 0x8909;
    /// Ethertype of Cisco's time stamp tag.
    pub const CISCO_TTAG: u16 = 0x8988;
    /// Ethertype of Cisco FabricPath.
    pub const FABRICPATH: u16 = 0x8903;
    /// Ethertype of Arista's time stamps.
    pub const ARISTA_TIME: u16 = 0xd28b;
    /// Ethertype of high-availability seamless redundancy: IEC 62439-3.
    pub const HSR: u16 = 0x892f;
    /// Ethertype of a redundancy tag: IEEE 802.1CB.
    pub const RTAG: u16 = 0xf1c1;
    /// Ethertype of the network service header: RFC 8300.
    pub const NSH: u16 = 0x894f;
    /// Ethertype of the outer VLAN tag that was in use before the service tag was assigned.
    pub const OLD_QINQ: u16 = 0x9100;
}

/// IP protocol numbers (IANA "Assigned Internet Protocol Numbers").
pub mod protocol {
    /// Protocol number of IPv6 hop-by-hop options: RFC 8200.
    pub const HOP_BY_HOP: u8 = 0;
    /// Protocol number of ICMP: RFC 792.
    pub const ICMP: u8 = 1;
    /// Protocol number of IPv4 in IP: RFC 2003.
    pub const IPV4: u8 = 4;
    /// Protocol number of TCP: RFC 9293.
    pub const TCP: u8 = 6;
    /// Protocol number of UDP: RFC 768.
    pub const UDP: u8 = 17;
    /// Protocol number of IPv6 in IP: RFC 2473.
    pub const IPV6: u8 = 41;
    /// Protocol number of the IPv6 routing header: RFC 8200.
    pub const ROUTING: u8 = 43;
    /// Protocol number of the IPv6 fragment header: RFC 8200.
    pub const FRAGMENT: u8 = 44;
    /// Protocol number of GRE: RFC 2784.
    pub const GRE: u8 = 47;
    /// Protocol number of ESP: RFC 4303.
    pub const ESP: u8 = 50;
    /// Protocol number of AH: RFC 4302.
    pub const AH: u8 = 51;
    /// Protocol number of ICMPv6: RFC 4443.
    pub const ICMPV6: u8 = 58;
    /// Protocol number for "no next header": RFC 8200.
    pub const NO_NEXT: u8 = 59;
    /// Protocol number of IPv6 destination options: RFC 8200.
    pub const DESTINATION: u8 = 60;
    /// Protocol number of EtherIP: RFC 3378.
    pub const ETHERIP: u8 = 97;
    /// Protocol number of L2TP version 3: RFC 3931.
    pub const L2TP: u8 = 115;
    /// Protocol number of SCTP: RFC 9260.
    pub const SCTP: u8 = 132;
    /// Protocol number of the IPv6 mobility header: RFC 6275.
    pub const MOBILITY: u8 = 135;
    /// Protocol number of MPLS in IP: RFC 4023.
    pub const MPLS: u8 = 137;
    /// Protocol number of the Host Identity Protocol: RFC 7401.
    pub const HIP: u8 = 139;
    /// Protocol number of Shim6: RFC 5533.
    pub const SHIM6: u8 = 140;
    /// Protocol number of Ethernet in IP: RFC 8986.
    pub const ETHERNET: u8 = 143;
}
