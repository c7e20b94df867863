//! What an interface does to received frames before a wire sees them, switched off while the wire is open.
//!
//! Imports `packet_socket`. Invariant: what was switched off is switched on again on drop, unless the process is killed.

use std::ffi::c_int;
use std::io;

use super::packet_socket::Socket;

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
    /// A descriptor of its own, for the drop.
    socket: Option<Socket>,
    index: c_int,
    gro: bool,
    flags: u32,
    refused: Option<io::Error>,
}

impl Offloads {
    pub(super) fn switch_off(socket: &Socket, index: c_int, flags: u32) -> Offloads {
        let mut offloads = Offloads {
            socket: None,
            index,
            gro: false,
            flags: 0,
            refused: None,
        };
        // A device that does not answer has no such offload.
        let get = |command| socket.ethtool(index, [command, 0]).map_or(0, |it| it[1]);
        let mut set = |command, value| {
            let set = socket.ethtool(index, [command, value]);
            set.map_err(|e| offloads.refused = Some(e)).is_ok()
        };
        let present = get(ETHTOOL_GFLAGS);
        let gro = get(ETHTOOL_GGRO) != 0 && set(ETHTOOL_SGRO, 0);
        let off = present & flags;
        let off = if off != 0 && set(ETHTOOL_SFLAGS, present & !off) {
            off
        } else {
            0
        };
        (offloads.gro, offloads.flags) = (gro, off);
        if gro || off != 0 {
            offloads.socket = socket.duplicate().ok();
        }
        offloads
    }

    pub(super) fn refused(&self) -> Option<&io::Error> {
        self.refused.as_ref()
    }
}

impl Drop for Offloads {
    fn drop(&mut self) {
        let Some(socket) = &self.socket else { return };
        // Errors mean that the interface is gone, and nothing is to be restored.
        if self.gro {
            let _ = socket.ethtool(self.index, [ETHTOOL_SGRO, 1]);
        }
        if self.flags != 0
            && let Ok([_, flags]) = socket.ethtool(self.index, [ETHTOOL_GFLAGS, 0])
        {
            let _ = socket.ethtool(self.index, [ETHTOOL_SFLAGS, flags | self.flags]);
        }
    }
}
