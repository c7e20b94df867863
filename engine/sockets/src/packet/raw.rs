//! Descriptor of a packet socket: the calls that a socket needs with and without a ring.
#![allow(unsafe_code)]

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, netdevice};
use std::{
    ffi::c_int,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

/// Packet socket that receives no frame before it is bound to a protocol.
#[derive(Debug)]
pub(crate) struct RawPacket(OwnedFd);

impl RawPacket {
    pub(crate) fn create() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0: the socket receives nothing before it is bound.
        let fd = net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        Ok(Self(fd))
    }

    /// Returns the index of a network interface; `None`: there is no such interface.
    pub(crate) fn index_of(&self, interface: &str) -> Option<c_int> {
        let index = netdevice::name_to_index(&self.0, interface).ok()?;
        Some(index.cast_signed())
    }

    /// Binds the socket to an interface. With protocol 0 it receives no frame.
    pub(crate) fn bind(&self, index: c_int, protocol: u16) -> io::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol.to_be(),
            sll_ifindex: index,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the kernel reads `len` bytes of the address, which outlives the call.
        checked(unsafe { libc::bind(self.0.as_raw_fd(), (&raw const address).cast(), len) })
    }

    pub(crate) fn address(&self) -> io::Result<libc::sockaddr_ll> {
        // SAFETY: a C struct of integers, for which zeroes are a value.
        let mut address: libc::sockaddr_ll = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut len = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the kernel writes at most `len` bytes, which the struct has.
        checked(unsafe {
            libc::getsockname(self.0.as_raw_fd(), (&raw mut address).cast(), &raw mut len)
        })?;
        Ok(address)
    }

    /// Returns `true` if the socket's interface was deleted or moved to another network namespace.
    /// The kernel then binds its sockets to index -1 (`packet_notifier` of net/packet/af_packet.c),
    /// so a new interface of the same name is not mistaken for it.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.address().is_ok_and(|it| it.sll_ifindex == -1)
    }

    /// Sets promiscuous mode on an interface while the socket exists (PACKET_ADD_MEMBERSHIP).
    pub(crate) fn set_promiscuous(&self, index: c_int) -> io::Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set_option(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
    }

    pub(crate) fn set_option<T>(&self, level: c_int, option: c_int, value: &T) -> io::Result<()> {
        // SAFETY: the kernel reads `size_of::<T>()` bytes of `value`, and what it points to, which
        // outlives the call.
        checked(unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                level,
                option,
                (&raw const *value).cast(),
                size_of::<T>() as u32,
            )
        })
    }

    /// Attaches a classic BPF program to the socket (SO_ATTACH_FILTER).
    pub(crate) fn attach_filter(&self, steps: &mut [libc::sock_filter]) -> io::Result<()> {
        // The kernel copies the struct with its padding, so all of it must be initialised.
        // SAFETY: a C struct of an integer and a pointer, for which zeroes are a value.
        let mut program: libc::sock_fprog = unsafe { MaybeUninit::zeroed().assume_init() };
        (program.len, program.filter) = (steps.len() as u16, steps.as_mut_ptr());
        self.set_option(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    /// Reads an option of level SOL_PACKET whose value consists of integers.
    pub(crate) fn get<T: Copy>(&self, option: c_int) -> io::Result<T> {
        let mut value = MaybeUninit::<T>::zeroed();
        let mut len = size_of::<T>() as u32;
        // SAFETY: the kernel writes at most `len` bytes, which `value` has.
        checked(unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                option,
                value.as_mut_ptr().cast(),
                &raw mut len,
            )
        })?;
        // SAFETY: the callers' types consist of integers, for which any bytes are a value.
        Ok(unsafe { value.assume_init() })
    }
}

impl AsFd for RawPacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Converts the result of a system call; a negative one becomes the error of errno.
pub(crate) fn checked(result: c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
