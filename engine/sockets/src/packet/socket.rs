//! Packet socket: its creation in the order that the kernel needs, its gate, its counts.

use super::{
    blocks::{BlockMemory, BlockRing},
    gate::Gate,
    raw::RawPacket,
};
use rustix::net::sockopt;
use std::{
    ffi::c_int,
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};
use wqcap_core::settings::Direction;

/// Failure to create, prepare or read a packet socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// A packet socket cannot be created.
    #[error("cannot create a packet socket: {0}")]
    Create(#[source] io::Error),
    /// The interface does not exist in this network namespace.
    #[error("{interface}: there is no such network interface")]
    NoInterface {
        /// Name of the interface.
        interface: String,
    },
    /// The ring of a packet socket cannot be created or mapped.
    #[error(
        "{interface}: cannot map a packet ring of {blocks} blocks of {block_bytes} bytes: {source}"
    )]
    Ring {
        /// Name of the interface.
        interface: String,
        /// Number of blocks of the socket's ring.
        blocks: u32,
        /// Size in bytes of a block of the ring.
        block_bytes: u32,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// The kernel refused an option of the packet socket.
    #[error("{interface}: cannot set {option} of a packet socket: {source}")]
    Option {
        /// Name of the interface.
        interface: String,
        /// Name of the socket option, as in packet(7).
        option: &'static str,
        /// Error that the kernel returned.
        source: io::Error,
    },
}

impl PacketError {
    /// Returns the errno that the kernel returned, if there is one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Create(source) | Self::Ring { source, .. } | Self::Option { source, .. } => {
                source.raw_os_error()
            }
            Self::NoInterface { .. } => None,
        }
    }
}

/// Attributes for creating a packet socket.
#[derive(Clone, Copy, Debug)]
pub struct PacketAttr {
    /// Number of blocks of the socket's ring.
    pub blocks: u32,
    /// Size in bytes of a block of the ring: a power of two from 64 KiB.
    pub block_bytes: u32,
    /// Time after which the kernel passes on a block that is not full, in whole milliseconds.
    pub retire: Duration,
    /// `true` to set promiscuous mode on the interface while the socket exists.
    pub promiscuous: bool,
    /// Direction of the frames that the socket receives.
    pub direction: Direction,
}

/// Fanout group of packet sockets. The kernel gives each frame to one socket of the group, by a hash
/// that is the same for both directions of a flow (`PACKET_FANOUT_HASH`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FanoutGroup(u16);

/// Counts of a packet socket since the last reading (`struct tpacket_stats_v3`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Number of frames that the gate let pass, including those that found no room in the ring.
    pub frames: u64,
    /// Number of frames that found no room in the ring.
    pub dropped: u64,
    /// Number of times that the ring had no free block.
    pub freezes: u64,
}

/// Packet socket that is bound to an interface.
#[derive(Debug)]
pub struct PacketSocket {
    raw: RawPacket,
    interface: String,
    direction: Direction,
}

impl PacketSocket {
    /// Creates a packet socket with its ring on `interface`, with a closed gate.
    ///
    /// # Errors
    /// The interface does not exist, the process lacks CAP_NET_RAW (EPERM), or the kernel has no
    /// memory for the ring.
    pub fn open(interface: &str, attr: &PacketAttr) -> Result<(Self, BlockRing), PacketError> {
        let socket = Self {
            raw: RawPacket::create().map_err(PacketError::Create)?,
            interface: interface.to_owned(),
            direction: attr.direction,
        };
        let index = socket
            .raw
            .index_of(interface)
            .ok_or_else(|| PacketError::NoInterface {
                interface: interface.to_owned(),
            })?;
        socket.set_gate(Gate::Closed)?;
        let version = libc::tpacket_versions::TPACKET_V3 as c_int;
        socket.set("PACKET_VERSION", libc::PACKET_VERSION, &version)?;
        let memory = socket.map(attr).map_err(|source| PacketError::Ring {
            interface: interface.to_owned(),
            blocks: attr.blocks,
            block_bytes: attr.block_bytes,
            source,
        })?;
        socket
            .raw
            .bind(index, libc::ETH_P_ALL as u16)
            .map_err(|source| socket.refused("the address (bind)", source))?;
        if attr.promiscuous {
            socket
                .raw
                .set_promiscuous(index)
                .map_err(|source| socket.refused("PACKET_ADD_MEMBERSHIP", source))?;
        }
        // An interface that is down leaves ENETDOWN here. Its frames arrive once it is up.
        socket.clear_error();
        Ok((socket, BlockRing::new(memory)))
    }

    /// Creates a fanout group with this socket as its first member.
    ///
    /// # Errors
    /// The kernel has no free group, or is older than 4.12.
    pub fn create_fanout(&self) -> Result<FanoutGroup, PacketError> {
        /// `PACKET_FANOUT_FLAG_UNIQUEID`: the kernel chooses a number that no group has.
        const UNIQUE: u32 = 0x2000;
        const OPTION: &str = "PACKET_FANOUT";
        let kind = libc::PACKET_FANOUT_HASH | UNIQUE;
        self.set(OPTION, libc::PACKET_FANOUT, &(kind << 16))?;
        let group: u32 = self
            .raw
            .get(libc::PACKET_FANOUT)
            .map_err(|source| self.refused(OPTION, source))?;
        Ok(FanoutGroup((group & 0xffff) as u16))
    }

    /// Adds this socket to a fanout group.
    ///
    /// # Errors
    /// The group is full, or its sockets are bound to another interface.
    pub fn join_fanout(&self, group: FanoutGroup) -> Result<(), PacketError> {
        let kind = libc::PACKET_FANOUT_HASH;
        let request = kind << 16 | u32::from(group.0);
        self.set("PACKET_FANOUT", libc::PACKET_FANOUT, &request)
    }

    /// Lets the frames of the socket's direction into its ring.
    ///
    /// # Errors
    /// The kernel refuses the program.
    pub fn open_gate(&self) -> Result<(), PacketError> {
        self.set_gate(Gate::Open(self.direction))
    }

    /// Keeps all further frames out of the socket's ring. Frames that the kernel processes at this
    /// moment may still arrive.
    ///
    /// # Errors
    /// The kernel refuses the program.
    pub fn close_gate(&self) -> Result<(), PacketError> {
        self.set_gate(Gate::Closed)
    }

    /// Returns the counts since the last call: the kernel resets them with each reading.
    ///
    /// # Errors
    /// The kernel refuses the reading.
    pub fn take_counts(&self) -> Result<PacketCounts, PacketError> {
        let counts: libc::tpacket_stats_v3 = self
            .raw
            .get(libc::PACKET_STATISTICS)
            .map_err(|source| self.refused("PACKET_STATISTICS", source))?;
        Ok(PacketCounts {
            frames: counts.tp_packets.into(),
            dropped: counts.tp_drops.into(),
            freezes: counts.tp_freeze_q_cnt.into(),
        })
    }

    /// Clears the pending error of the socket, usually ENETDOWN. Otherwise each wait for the socket
    /// ends at once.
    pub fn clear_error(&self) {
        // The result is the pending error itself.
        let _ = sockopt::socket_error(&self.raw);
    }

    /// Returns `true` if the socket's interface was deleted or moved to another network namespace.
    /// A new interface of the same name is not mistaken for it.
    #[must_use]
    pub fn is_orphaned(&self) -> bool {
        self.raw.is_orphaned()
    }

    /// Returns the hardware type of the socket's interface (`ARPHRD_…` of linux/if_arp.h).
    ///
    /// # Errors
    /// The kernel refuses the reading.
    pub fn hardware_type(&self) -> io::Result<u16> {
        Ok(self.raw.address()?.sll_hatype)
    }

    /// Returns the name of the socket's interface at its creation.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Creates the socket's ring in the kernel and maps it.
    fn map(&self, attr: &PacketAttr) -> io::Result<BlockMemory> {
        /// Frame size in the request. With TPACKET_V3 the kernel only checks that it divides a
        /// block.
        const FRAME: u32 = 2048;
        let retire = u32::try_from(attr.retire.as_millis()).unwrap_or(u32::MAX);
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let request = libc::tpacket_req3 {
            tp_block_size: attr.block_bytes,
            tp_block_nr: attr.blocks,
            tp_frame_size: FRAME,
            tp_frame_nr: (attr.block_bytes / FRAME)
                .checked_mul(attr.blocks)
                .ok_or_else(invalid)?,
            // 0 would let the kernel choose a time.
            tp_retire_blk_tov: retire.max(1),
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        self.raw
            .set_option(libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        BlockMemory::map(self.raw.as_fd(), attr.blocks, attr.block_bytes)
    }

    fn set_gate(&self, gate: Gate) -> Result<(), PacketError> {
        let (mut steps, len) = gate.program();
        self.raw
            .attach_filter(&mut steps[..len])
            .map_err(|source| self.refused("SO_ATTACH_FILTER", source))
    }

    fn set<T>(&self, name: &'static str, option: c_int, value: &T) -> Result<(), PacketError> {
        self.raw
            .set_option(libc::SOL_PACKET, option, value)
            .map_err(|source| self.refused(name, source))
    }

    fn refused(&self, option: &'static str, source: io::Error) -> PacketError {
        PacketError::Option {
            interface: self.interface.clone(),
            option,
            source,
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}
