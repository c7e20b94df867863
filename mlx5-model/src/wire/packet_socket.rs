//! Packet socket of a live wire, and its interface: each system call in a safe function.
//!
//! Invariant: the descriptor is open as long as the value exists.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::net::{netdevice, sockopt};

/// Packet socket option that excludes the frames that the host sends (linux/if_packet.h).
const PACKET_IGNORE_OUTGOING: c_int = 23;

/// Raw packet socket for the frames of an interface, whose calls do not block.
pub(super) struct Socket(OwnedFd);

impl Socket {
    /// Opens a packet socket that receives nothing yet.
    pub(super) fn new() -> io::Result<Socket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(Socket(net::socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            flags,
            None,
        )?))
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Sets the packet socket's options that must be set before its ring is created.
    pub(super) fn prepare(&self) -> io::Result<()> {
        self.set(
            libc::PACKET_VERSION,
            &(libc::tpacket_versions::TPACKET_V3 as c_int),
        )?;
        self.set_ignore_outgoing(true);
        Ok(())
    }

    /// Sets whether the packet socket leaves out frames that the host sends. Kernels before 4.20
    /// lack the option; then only the packet type distinguishes these frames.
    pub(super) fn set_ignore_outgoing(&self, ignore: bool) {
        let _ = self.set(PACKET_IGNORE_OUTGOING, &c_int::from(ignore));
    }

    pub(super) fn set_ring(&self, request: &libc::tpacket_req3) -> io::Result<()> {
        self.set(libc::PACKET_RX_RING, request)
    }

    /// Switches on promiscuous mode of the interface with this index. The kernel reverts it when
    /// the socket closes for any reason.
    pub(super) fn set_promiscuous(&self, index: c_int) -> io::Result<()> {
        self.set(
            libc::PACKET_ADD_MEMBERSHIP,
            &libc::packet_mreq {
                mr_ifindex: index,
                mr_type: libc::PACKET_MR_PROMISC as u16,
                mr_alen: 0,
                mr_address: [0; 8],
            },
        )
    }

    /// Binds the packet socket to the interface with this index; it receives all the interface's
    /// frames from now on.
    pub(super) fn bind(&self, index: c_int) -> io::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
            sll_ifindex: index,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let length = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the address is `length` bytes long and only read.
        checked(unsafe { libc::bind(self.fd(), (&raw const address).cast(), length) })?;
        Ok(())
    }

    /// Returns the link-layer address that the packet socket is bound to.
    pub(super) fn address(&self) -> io::Result<libc::sockaddr_ll> {
        // SAFETY: a C struct of integers, for which zeroes are a value.
        let mut address: libc::sockaddr_ll = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut length = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the kernel writes at most `length` bytes, which the struct has.
        checked(unsafe {
            libc::getsockname(self.fd(), (&raw mut address).cast(), &raw mut length)
        })?;
        Ok(address)
    }

    /// Returns `true` if the packet socket's interface was deleted or moved to another network
    /// namespace. The kernel then binds its packet sockets to index -1 (packet_notifier,
    /// net/packet/af_packet.c). Unlike the name or the index, this cannot mistake a new interface
    /// for the old one.
    pub(super) fn is_orphaned(&self) -> bool {
        self.address().is_ok_and(|it| it.sll_ifindex == -1)
    }

    /// Clears the pending error of the packet socket, usually ENETDOWN.
    pub(super) fn clear_error(&self) {
        let _ = sockopt::socket_error(&self.0);
    }

    /// Returns the number of frames that found no room in the packet socket's ring since the last
    /// call.
    pub(super) fn take_drops(&self) -> u64 {
        self.statistics().map_or(0, |it| u64::from(it.tp_drops))
    }

    /// Sends one frame on the packet socket's interface. The frame does not return through the
    /// ring: the kernel skips the socket that sent it.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        net::send(&self.0, frame, SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// Returns the index of the network interface `name`.
    pub(super) fn index_of(&self, name: &str) -> io::Result<c_int> {
        Ok(netdevice::name_to_index(&self.0, name)?.cast_signed())
    }

    fn set<T>(&self, option: c_int, value: &T) -> io::Result<()> {
        // SAFETY: the kernel reads `size_of::<T>()` bytes of `value`.
        checked(unsafe {
            libc::setsockopt(
                self.fd(),
                libc::SOL_PACKET,
                option,
                (&raw const *value).cast::<c_void>(),
                size_of::<T>() as u32,
            )
        })?;
        Ok(())
    }

    fn statistics(&self) -> io::Result<libc::tpacket_stats_v3> {
        let mut value = MaybeUninit::<libc::tpacket_stats_v3>::zeroed();
        let mut length = size_of::<libc::tpacket_stats_v3>() as u32;
        // SAFETY: the kernel writes at most `length` bytes, which `value` has.
        checked(unsafe {
            libc::getsockopt(
                self.fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                value.as_mut_ptr().cast(),
                &raw mut length,
            )
        })?;
        // SAFETY: the struct consists of integers, for which any bytes are a value.
        Ok(unsafe { value.assume_init() })
    }
}

fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
