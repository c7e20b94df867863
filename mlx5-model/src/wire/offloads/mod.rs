//! What an interface does to received frames before a wire sees them, switched off while the wire is open.
//!
//! Imports `packet_socket`. Invariant: only a process that will switch it on again switches something off (see `helper`).

mod helper;

use std::ffi::c_int;
use std::io;

use super::packet_socket::Socket;
use helper::NamespaceInterface;

/// linux/ethtool.h.
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_SGRO: u32 = 0x2c;
/// Tags taken out of frames: XDP programs do not see them, packet sockets are told of them.
pub(super) const ETH_FLAG_RXVLAN: u32 = 1 << 8;
/// Frames merged by the NIC.
pub(super) const ETH_FLAG_LRO: u32 = 1 << 15;

/// GRO, which merges received frames, and those of the flags above that a wire names.
pub(super) struct Offloads {
    /// What is to be switched on again; `None`: nothing.
    off: Option<NamespaceInterface>,
    refused: Option<io::Error>,
}

impl Offloads {
    pub(super) fn switch_off(socket: &Socket, index: c_int, flags: u32) -> Offloads {
        // A device that does not answer has no such offload.
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
            // Some of it may be off all the same.
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
