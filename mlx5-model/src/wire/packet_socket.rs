//! Packet socket of a live wire, and its interface: each system call in a safe function.
//!
//! Constants that the crate `libc` lacks are from linux/if_packet.h, linux/ethtool.h and
//! linux/sockios.h. Invariant: the descriptor is open as long as the value exists.

#![allow(unsafe_code)]

use std::ffi::{CString, c_int, c_void};
use std::io::{self, IoSlice};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::net::{self, AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType};
use rustix::net::{netdevice, sockopt};

use super::gso::VirtioHeader;

/// Packet socket option: each frame has a `struct virtio_net_hdr` in front (linux/if_packet.h).
const PACKET_VNET_HDR: c_int = 15;
/// Packet socket option: frames that the host sends are not received (linux/if_packet.h).
const PACKET_IGNORE_OUTGOING: c_int = 23;

/// ethtool command that reads the numbers of channels (linux/ethtool.h).
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// Raw packet socket whose calls do not block.
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
        self.set(PACKET_VNET_HDR, &1)?;
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

    /// Sets promiscuous mode on an interface. The kernel reverts it when the socket closes for any
    /// reason.
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

    /// Binds the packet socket to an interface, and receives all its frames from now on.
    pub(super) fn bind(&self, index: c_int) -> io::Result<()> {
        self.bind_to(index, libc::ETH_P_ALL as u16)
    }

    /// Binds the packet socket to an interface without receiving: to send, and to detect the
    /// deletion of the interface.
    pub(super) fn bind_send_only(&self, index: c_int) -> io::Result<()> {
        self.bind_to(index, 0)
    }

    fn bind_to(&self, index: c_int, protocol: u16) -> io::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol.to_be(),
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

    /// Returns the address that the packet socket is bound to.
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

    /// Sends one frame on a packet socket that was prepared for a ring. The frame does not return
    /// through the ring: the kernel skips the socket that sent it.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.send_with(&[0; VirtioHeader::LEN], frame)
    }

    /// Sends one frame on a packet socket that was not prepared for a ring.
    pub(super) fn send_plain(&self, frame: &[u8]) -> io::Result<()> {
        net::send(&self.0, frame, SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// Sends a frame with the virtio header in front that PACKET_VNET_HDR requires.
    pub(super) fn send_with(
        &self,
        header: &[u8; VirtioHeader::LEN],
        frame: &[u8],
    ) -> io::Result<()> {
        let parts = [IoSlice::new(header), IoSlice::new(frame)];
        let mut control = SendAncillaryBuffer::default();
        net::sendmsg(&self.0, &parts, &mut control, SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// Returns the index of the network interface `name`.
    pub(super) fn index_of(&self, name: &str) -> io::Result<c_int> {
        Ok(netdevice::name_to_index(&self.0, name)?.cast_signed())
    }

    /// Returns the number of an interface's receive queues: those that only receive, and those that
    /// also send (struct ethtool_channels, linux/ethtool.h). 1 if the driver does not report them.
    pub(super) fn receive_queues(&self, index: c_int) -> u32 {
        const RX_COUNT: usize = 5;
        const COMBINED_COUNT: usize = 8;
        let mut words = [0; 9];
        words[0] = ETHTOOL_GCHANNELS;
        let channels = self.ethtool(index, words);
        channels.map_or(1, |it| (it[RX_COUNT] + it[COMBINED_COUNT]).max(1))
    }

    /// Returns the MTU of an interface: its longest packet in bytes, without the Ethernet header.
    pub(super) fn mtu(&self, index: c_int) -> io::Result<usize> {
        let name = netdevice::index_to_name(&self.0, index.cast_unsigned())?;
        let mut request = request(&name)?;
        // SAFETY: the operation reads and writes a struct ifreq.
        checked(unsafe { libc::ioctl(self.fd(), libc::SIOCGIFMTU, &raw mut request) })?;
        // SAFETY: the operation has set this member of the union.
        Ok(unsafe { request.ifr_ifru.ifru_mtu }.max(0) as usize)
    }

    /// Runs an ETHTOOL_* command, whose number is the first of the `words`. Returns the words as
    /// the kernel has left them.
    pub(super) fn ethtool<const N: usize>(
        &self,
        index: c_int,
        mut words: [u32; N],
    ) -> io::Result<[u32; N]> {
        let name = netdevice::index_to_name(&self.0, index.cast_unsigned())?;
        let mut request = request(&name)?;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        // SAFETY: the operation reads and writes a struct ifreq, and through its data pointer as
        // many words as its command has, which outlive the call.
        checked(unsafe { libc::ioctl(self.fd(), libc::SIOCETHTOOL, &raw mut request) })?;
        // The compiler does not see that the kernel has written the words.
        Ok(std::hint::black_box(words))
    }

    /// Returns the unique number of the packet socket's network namespace (`SO_NETNS_COOKIE`, Linux
    /// 5.14).
    pub(super) fn namespace(&self) -> io::Result<u64> {
        const SO_NETNS_COOKIE: c_int = 71;
        let mut cookie = 0u64;
        let mut length = size_of::<u64>() as u32;
        let (level, option) = (libc::SOL_SOCKET, SO_NETNS_COOKIE);
        // SAFETY: the kernel writes at most `length` bytes, which `cookie` has.
        checked(unsafe {
            libc::getsockopt(
                self.fd(),
                level,
                option,
                (&raw mut cookie).cast(),
                &raw mut length,
            )
        })?;
        Ok(cookie)
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

/// Builds the request of an ioctl(2) on the network interface `name`.
fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: a C struct of integers and a pointer, for which zeroes are a value.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    let name = CString::new(name)?;
    let name = name.as_bytes_with_nul();
    if name.len() > request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as _;
    }
    Ok(request)
}
