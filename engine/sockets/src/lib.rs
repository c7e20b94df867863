//! Receive sockets of the kernel, for network interfaces without an RDMA device.
//!
//! [`packet`] has packet sockets (`AF_PACKET`) with a TPACKET_V3 ring: the kernel copies each frame
//! into a block of the ring, and still processes the frame itself.
//!
//! [`xdp`] has AF_XDP sockets: the kernel passes the frames of a receive queue to the socket, and
//! does not process them itself.
//!
//! Nothing here changes a setting of an interface, except for promiscuous mode. The kernel ends that
//! with the socket, even after `kill -9`.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod packet;
pub mod xdp;
