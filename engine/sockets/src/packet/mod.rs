//! Packet sockets with a TPACKET_V3 ring (packet(7), and
//! Documentation/networking/packet_mmap.rst of the kernel).
//!
//! A [`PacketSocket`] is created with its gate closed: it is bound to its interface, has joined its
//! fanout group, and receives no frame until [`PacketSocket::open_gate`]. So no frame arrives twice
//! while the sockets of a group are created one after the other.
//!
//! The kernel fills one block of the ring after the other. It passes on a block that is full, or
//! whose time is over ([`PacketAttr::retire`]). A [`PacketCursor`] walks the frames of such a block.

mod blocks;
mod gate;
pub(crate) mod raw;
mod socket;

pub use blocks::{BlockFrame, BlockMemory, BlockRing, Damaged, OddFrames, PacketCursor};
pub use socket::{FanoutGroup, PacketAttr, PacketCounts, PacketError, PacketSocket};

#[cfg(test)]
mod tests;
