//! Hash profiles: the RSS QPs a capture installs, what each hashes, and in which order their rules
//! are matched.
//!
//! One RSS QP (one TIR) hashes a single L3 type and at most a single L4 type, so "hash everything
//! by its addresses and ports" is not one QP but seven. This file is that list.
//!
//! **May import** `core`/`std`, `bitflags` and `strum`.
//!
//! **Invariant**: no profile's fields mix IPv4 with IPv6 or TCP with UDP (the kernel refuses both
//! with EINVAL), and [`Profile::to_install`] lists rules in the order in which the NIC must try
//! them.

use strum::Display;

/// How deep into a frame the hash reaches; its name is that in a configuration, `l3` or `l4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display)]
#[strum(serialize_all = "lowercase")]
pub enum HashDepth {
    /// Addresses only: the fragments of a datagram stay with their flow.
    L3,
    /// Addresses and ports, where a frame has ports: flows between the same two hosts spread.
    L4,
}

/// One rule with its RSS QP: the frames it takes and the fields it hashes. Its name in plans and statistics is, for
/// instance, `ipv4-tcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display)]
#[strum(serialize_all = "kebab-case")]
#[repr(u8)]
pub enum Profile {
    /// ETH/IPv4/TCP, hashed by addresses and ports.
    Ipv4Tcp,
    /// ETH/IPv4/UDP, hashed by addresses and ports.
    Ipv4Udp,
    /// ETH/IPv6/TCP, hashed by addresses and ports.
    Ipv6Tcp,
    /// ETH/IPv6/UDP, hashed by addresses and ports.
    Ipv6Udp,
    /// ETH/IPv4, hashed by addresses.
    Ipv4,
    /// ETH/IPv6, hashed by addresses.
    Ipv6,
    /// ETH with an all-zero mask: whatever is left, not hashed, on a table of one entry.
    CatchAll,
}

impl Profile {
    /// Every profile, in the order of their indices, which is also the order in which their rules
    /// are matched.
    pub const ALL: [Self; 7] = [
        Self::Ipv4Tcp,
        Self::Ipv4Udp,
        Self::Ipv6Tcp,
        Self::Ipv6Udp,
        Self::Ipv4,
        Self::Ipv6,
        Self::CatchAll,
    ];

    /// The fields the profile's RSS QP hashes, for `rx_hash_fields_mask`. Empty for the catch-all,
    /// which mlx5 accepts only with a table of one entry.
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

    /// What to add to the base flow priority (lower is matched first): 0 for profiles with ports, 1
    /// for those with addresses alone, 2 for the catch-all.
    #[inline]
    #[must_use]
    pub const fn priority_offset(self) -> u8 {
        match self {
            Self::Ipv4Tcp | Self::Ipv4Udp | Self::Ipv6Tcp | Self::Ipv6Udp => 0,
            Self::Ipv4 | Self::Ipv6 => 1,
            Self::CatchAll => 2,
        }
    }

    /// The profiles to install so that each frame is taken by exactly one, in the order in which
    /// they are matched.
    #[must_use]
    pub const fn to_install(depth: HashDepth) -> &'static [Self] {
        match depth {
            HashDepth::L4 => &Self::ALL,
            HashDepth::L3 => &[Self::Ipv4, Self::Ipv6, Self::CatchAll],
        }
    }
}

bitflags::bitflags! {
    /// A set of frame fields that enter the hash, with the bits of the uAPI's `rx_hash_fields_mask`
    /// (`enum mlx5_rx_hash_fields` in `rdma/mlx5-abi.h`).
    ///
    /// Any 64 bits are a set, also ones the kernel refuses: what may be installed is the driver's to
    /// say, not this type's.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct HashFields: u64 {
        /// `MLX5_RX_HASH_SRC_IPV4`.
        const SRC_IPV4 = 1 << 0;
        /// `MLX5_RX_HASH_DST_IPV4`.
        const DST_IPV4 = 1 << 1;
        /// `MLX5_RX_HASH_SRC_IPV6`.
        const SRC_IPV6 = 1 << 2;
        /// `MLX5_RX_HASH_DST_IPV6`.
        const DST_IPV6 = 1 << 3;
        /// `MLX5_RX_HASH_SRC_PORT_TCP`.
        const SRC_PORT_TCP = 1 << 4;
        /// `MLX5_RX_HASH_DST_PORT_TCP`.
        const DST_PORT_TCP = 1 << 5;
        /// `MLX5_RX_HASH_SRC_PORT_UDP`.
        const SRC_PORT_UDP = 1 << 6;
        /// `MLX5_RX_HASH_DST_PORT_UDP`.
        const DST_PORT_UDP = 1 << 7;
        /// `MLX5_RX_HASH_IPSEC_SPI`.
        const IPSEC_SPI = 1 << 8;
        /// `MLX5_RX_HASH_INNER`: the other bits speak of the tunnelled headers.
        const INNER = 1 << 31;
    }
}

impl HashFields {
    /// No field: nothing is hashed.
    pub const NONE: Self = Self::empty();
    /// Both IPv4 addresses.
    pub const IPV4: Self = Self::SRC_IPV4.union(Self::DST_IPV4);
    /// Both IPv6 addresses.
    pub const IPV6: Self = Self::SRC_IPV6.union(Self::DST_IPV6);
    /// Both TCP ports.
    pub const TCP_PORTS: Self = Self::SRC_PORT_TCP.union(Self::DST_PORT_TCP);
    /// Both UDP ports.
    pub const UDP_PORTS: Self = Self::SRC_PORT_UDP.union(Self::DST_PORT_UDP);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_the_header() {
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
    fn no_profile_mixes_what_one_tir_cannot_hash() {
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
    fn names_are_those_of_plans() {
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
    fn sets_join_and_contain() {
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
