//! Hash profiles: the RSS QPs that a capture installs, the fields that each of them hashes, and the
//! order in which their rules are matched.
//!
//! One RSS QP (one TIR) hashes a single L3 type and at most a single L4 type. To hash all frames by
//! addresses and ports therefore takes seven QPs, which this module lists.
//!
//! **May import** `core`/`std`, `bitflags` and `strum`.
//!
//! **Invariant**: no profile's fields mix IPv4 with IPv6 or TCP with UDP (the kernel rejects both
//! with EINVAL), and [`Profile::to_install`] lists rules in the order in which the NIC must match
//! them.

use strum::Display;

/// Header layers that enter the RSS hash; displayed as in a configuration file, `l3` or `l4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display)]
#[strum(serialize_all = "lowercase")]
pub enum HashDepth {
    /// Hash addresses only; all fragments of a datagram stay with their flow.
    L3,
    /// Hash addresses, and ports where a frame has them; flows between the same two hosts spread.
    L4,
}

/// RSS profile: a flow rule with its RSS QP, that is, the frames that it takes and the fields that
/// it hashes. Displayed in plans and statistics as, for instance, `ipv4-tcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display)]
#[strum(serialize_all = "kebab-case")]
#[repr(u8)]
pub enum Profile {
    /// Profile of frames that match ETH/IPv4/TCP, hashed by addresses and ports.
    Ipv4Tcp,
    /// Profile of frames that match ETH/IPv4/UDP, hashed by addresses and ports.
    Ipv4Udp,
    /// Profile of frames that match ETH/IPv6/TCP, hashed by addresses and ports.
    Ipv6Tcp,
    /// Profile of frames that match ETH/IPv6/UDP, hashed by addresses and ports.
    Ipv6Udp,
    /// Profile of frames that match ETH/IPv4, hashed by addresses.
    Ipv4,
    /// Profile of frames that match ETH/IPv6, hashed by addresses.
    Ipv6,
    /// Profile of all remaining frames: ETH with an all-zero mask, not hashed, on an indirection
    /// table of one entry.
    CatchAll,
}

impl Profile {
    /// All RSS profiles in the order of their discriminants, which is also the order in which their
    /// flow rules are matched.
    pub const ALL: [Self; 7] = [
        Self::Ipv4Tcp,
        Self::Ipv4Udp,
        Self::Ipv6Tcp,
        Self::Ipv6Udp,
        Self::Ipv4,
        Self::Ipv6,
        Self::CatchAll,
    ];

    /// Returns the header fields that the profile's RSS QP hashes, for `rx_hash_fields_mask`. Empty
    /// for the catch-all, which mlx5 accepts only with an indirection table of one entry.
    #[inline]
    #[must_use]
    pub const fn hash_fields(self) -> HashFields {
        match self {
            Self::Ipv4Tcp => HashFields::IPV4.union(HashFields::TCP_PORTS),
            Self::Ipv4Udp => HashFields::IPV4.union(HashFields::UDP_PORTS),
            Self::Ipv6Tcp => HashFields::IPV6.union(HashFields::TCP_PORTS),
            Self::Ipv6Udp => HashFields::IPV6.union(HashFields::UDP_PORTS),
            Self::Ipv4 => HashFields::IPV4,
            Self::Ipv6 => HashFields::IPV6,
            Self::CatchAll => HashFields::NONE,
        }
    }

    /// Returns the offset to add to the base flow priority for the profile's flow rule (a lower
    /// priority is matched first): 0 for profiles with ports, 1 for profiles with addresses only, 2
    /// for the catch-all.
    #[inline]
    #[must_use]
    pub const fn priority_offset(self) -> u8 {
        match self {
            Self::Ipv4Tcp | Self::Ipv4Udp | Self::Ipv6Tcp | Self::Ipv6Udp => 0,
            Self::Ipv4 | Self::Ipv6 => 1,
            Self::CatchAll => 2,
        }
    }

    /// Returns the RSS profiles to install, in match order, so that exactly one of their flow rules
    /// takes each frame.
    #[must_use]
    pub const fn to_install(depth: HashDepth) -> &'static [Self] {
        match depth {
            HashDepth::L4 => &Self::ALL,
            HashDepth::L3 => &[Self::Ipv4, Self::Ipv6, Self::CatchAll],
        }
    }
}

bitflags::bitflags! {
    /// Set of header fields that enter the RSS hash, with the bits of the uAPI's
    /// `rx_hash_fields_mask` (`enum mlx5_rx_hash_fields` in `rdma/mlx5-abi.h`).
    ///
    /// Any 64 bits are a valid set, including sets that the kernel rejects: the driver decides
    /// which ones can be installed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct HashFields: u64 {
        /// RSS hash field: source IPv4 address (`MLX5_RX_HASH_SRC_IPV4`).
        const SRC_IPV4 = 1 << 0;
        /// RSS hash field: destination IPv4 address (`MLX5_RX_HASH_DST_IPV4`).
        const DST_IPV4 = 1 << 1;
        /// RSS hash field: source IPv6 address (`MLX5_RX_HASH_SRC_IPV6`).
        const SRC_IPV6 = 1 << 2;
        /// RSS hash field: destination IPv6 address (`MLX5_RX_HASH_DST_IPV6`).
        const DST_IPV6 = 1 << 3;
        /// RSS hash field: source TCP port (`MLX5_RX_HASH_SRC_PORT_TCP`).
        const SRC_PORT_TCP = 1 << 4;
        /// RSS hash field: destination TCP port (`MLX5_RX_HASH_DST_PORT_TCP`).
        const DST_PORT_TCP = 1 << 5;
        /// RSS hash field: source UDP port (`MLX5_RX_HASH_SRC_PORT_UDP`).
        const SRC_PORT_UDP = 1 << 6;
        /// RSS hash field: destination UDP port (`MLX5_RX_HASH_DST_PORT_UDP`).
        const DST_PORT_UDP = 1 << 7;
        /// RSS hash field: IPsec security parameters index (`MLX5_RX_HASH_IPSEC_SPI`).
        const IPSEC_SPI = 1 << 8;
        /// Flag by which the other RSS hash fields refer to the tunnelled headers
        /// (`MLX5_RX_HASH_INNER`).
        const INNER = 1 << 31;
    }
}

impl HashFields {
    /// Empty set of RSS hash fields: nothing is hashed.
    pub const NONE: Self = Self::empty();
    /// RSS hash fields of both IPv4 addresses.
    pub const IPV4: Self = Self::SRC_IPV4.union(Self::DST_IPV4);
    /// RSS hash fields of both IPv6 addresses.
    pub const IPV6: Self = Self::SRC_IPV6.union(Self::DST_IPV6);
    /// RSS hash fields of both TCP ports.
    pub const TCP_PORTS: Self = Self::SRC_PORT_TCP.union(Self::DST_PORT_TCP);
    /// RSS hash fields of both UDP ports.
    pub const UDP_PORTS: Self = Self::SRC_PORT_UDP.union(Self::DST_PORT_UDP);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_match_the_uapi_header() {
        assert_eq!(Profile::Ipv4Tcp.hash_fields().bits(), 0x33);
        assert_eq!(Profile::Ipv4Udp.hash_fields().bits(), 0xc3);
        assert_eq!(Profile::Ipv6Tcp.hash_fields().bits(), 0x3c);
        assert_eq!(Profile::Ipv6Udp.hash_fields().bits(), 0xcc);
        assert_eq!(Profile::Ipv4.hash_fields().bits(), 0x03);
        assert_eq!(Profile::Ipv6.hash_fields().bits(), 0x0c);
        assert_eq!(Profile::CatchAll.hash_fields().bits(), 0);
        assert_eq!(HashFields::IPSEC_SPI.bits(), 0x100);
        assert_eq!(HashFields::INNER.bits(), 0x8000_0000);
    }

    #[test]
    fn no_profile_mixes_fields_that_one_tir_cannot_hash() {
        for profile in Profile::ALL {
            let fields = profile.hash_fields();
            assert!(!(fields.intersects(HashFields::IPV4) && fields.intersects(HashFields::IPV6)));
            assert!(
                !(fields.intersects(HashFields::TCP_PORTS)
                    && fields.intersects(HashFields::UDP_PORTS))
            );
        }
    }

    #[test]
    fn names_match_those_in_plans() {
        let names = Profile::ALL.map(|it| it.to_string());
        assert_eq!(
            names.join(" "),
            "ipv4-tcp ipv4-udp ipv6-tcp ipv6-udp ipv4 ipv6 catch-all"
        );
    }

    #[test]
    fn rules_are_listed_in_the_order_they_are_matched() {
        for depth in [HashDepth::L3, HashDepth::L4] {
            let rules = Profile::to_install(depth);
            assert!(rules.is_sorted_by_key(|rule| rule.priority_offset()));
            assert_eq!(rules.last(), Some(&Profile::CatchAll));
        }
        assert_eq!(Profile::to_install(HashDepth::L4).len(), 7);
        assert_eq!(
            Profile::to_install(HashDepth::L3),
            [Profile::Ipv4, Profile::Ipv6, Profile::CatchAll]
        );
    }

    #[test]
    fn sets_support_union_and_contains() {
        let mut fields = HashFields::IPV4 | HashFields::SRC_PORT_UDP;
        assert!(fields.contains(HashFields::DST_IPV4) && fields.contains(HashFields::NONE));
        assert!(
            !fields.contains(HashFields::UDP_PORTS) && fields.intersects(HashFields::UDP_PORTS)
        );
        fields |= HashFields::DST_PORT_UDP;
        assert_eq!(fields, Profile::Ipv4Udp.hash_fields());
        assert!(!fields.is_empty() && HashFields::default().is_empty());
    }
}
