//! Receive offloads of an interface, switched off while a wire is open: the merging of frames (GRO,
//! LRO) and the removal of VLAN tags.
//!
//! Imports `packet_socket`. Invariant: an offload is switched off only by a process that will
//! switch it on again (see `helper`).

mod helper;

use std::ffi::c_int;
use std::io;

use super::packet_socket::Socket;
use helper::NamespaceInterface;

// Commands of linux/ethtool.h.
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_SGRO: u32 = 0x2c;
/// Offload flag of the removal of VLAN tags from received frames. XDP programs do not see the
/// removed tags; packet sockets get them as metadata.
pub(super) const ETH_FLAG_RXVLAN: u32 = 1 << 8;
/// Offload flag of LRO, with which the NIC merges received frames.
pub(super) const ETH_FLAG_LRO: u32 = 1 << 15;

/// Offloads of an interface that a wire switches off: GRO, which merges received frames, and the
/// flags that the wire names.
pub(super) struct Offloads {
    /// Interface whose offloads are switched on again when the value is dropped; `None` if none was
    /// switched off.
    off: Option<NamespaceInterface>,
    /// Error with which an offload of the interface could not be switched off.
    refused: Option<io::Error>,
}

impl Offloads {
    /// Switches off GRO and the offloads in `flags` on a network interface.
    pub(super) fn switch_off(socket: &Socket, index: c_int, flags: u32) -> Offloads {
        // A device that refuses the command has no such offload.
        let get = |command| socket.ethtool(index, [command, 0]).map_or(0, |it| it[1]);
        if get(ETHTOOL_GGRO) == 0 && get(ETHTOOL_GFLAGS) & flags == 0 {
            return Offloads {
                off: None,
                refused: None,
            };
        }
        let interface = NamespaceInterface::new(socket, index);
        let refused = helper::switch_off(socket, interface, flags).err();
        Offloads {
            // Despite an error some of the offloads may be off.
            off: Some(interface),
            refused,
        }
    }

    pub(super) fn refused(&self) -> Option<&io::Error> {
        self.refused.as_ref()
    }
}

impl Drop for Offloads {
    fn drop(&mut self) {
        if let Some(interface) = self.off {
            helper::switch_on(interface);
        }
    }
}
