//! AF_XDP sockets that receive an interface's frames instead of the kernel (linux/if_xdp.h,
//! and Documentation/networking/af_xdp.rst).
//!
//! An [`XdpInterface`] has one [`XdpSocket`] for each receive queue. An XDP program passes each
//! frame to the socket of its queue, if the gate is open: no frame arrives before
//! [`XdpInterface::open_gate`]. The kernel itself gets none of the frames that a socket gets, so the
//! host cannot be reached by these queues. Frames that the host sends are not received.
//!
//! The kernel writes each frame into a chunk of the socket's memory. A [`ChunkRing`] takes the
//! frames in their order, and gives their chunks back in any order. A frame that is longer than a
//! chunk is lost and counted, so an interface with too large an MTU is refused.
//!
//! A thread that is woken for each frame of a slow link needs most of its time for that. So the XDP
//! program also counts the frames of each queue, and a thread can sleep until half of the chunks are
//! filled ([`ChunkRing::begin_gathering`]).
//!
//! The XDP program writes the time in front of each frame. Time stamps of the NIC and VLAN tags that
//! the NIC moves aside (`bpf_xdp_metadata_rx_timestamp`, `bpf_xdp_metadata_rx_vlan_tag`) are not
//! read: they need a program of one device with BTF. So the tag of a frame is lost if the NIC strips
//! it, until the user sets `ethtool -K IFACE rxvlan off`; the same holds for tags that the other end
//! of a veth pair leaves to the hardware (`txvlan`).
//!
//! The program and promiscuous mode end with the process, even after `kill -9`. No other setting of
//! the interface is changed.

mod bpf;
mod clock;
mod error;
mod interface;
mod link;
mod mapping;
mod memory;
mod program;
mod ring;
mod socket;
mod watermark;

pub use error::XdpError;
pub use interface::{XdpAttr, XdpInterface, XdpLimits};
pub use memory::ChunkMemory;
pub use program::XdpHook;
pub use ring::{BadDescriptor, ChunkRing, XdpFrame};
pub use socket::{XdpCounts, XdpSocket};

#[cfg(test)]
mod tests;
