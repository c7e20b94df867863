//! Facts of a network interface by ioctl(2): its MTU and its number of receive queues.
#![allow(unsafe_code)]

use crate::packet::raw::{RawPacket, checked};
use std::{
    ffi::c_int,
    fs, io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd},
};

/// Returns the MTU of an interface: its longest packet in bytes, without the Ethernet header.
pub(super) fn mtu(packets: &RawPacket, interface: &str) -> io::Result<u32> {
    let mut request = request(interface)?;
    // SAFETY: the operation reads and writes a struct ifreq.
    checked(unsafe {
        libc::ioctl(
            packets.as_fd().as_raw_fd(),
            libc::SIOCGIFMTU,
            &raw mut request,
        )
    })?;
    // SAFETY: the operation has set this member of the union.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u32::try_from(mtu).unwrap_or(0))
}

/// Returns the number of receive queues of an interface: as the driver reports it, else as sysfs
/// shows it, else 1.
pub(super) fn receive_queues(packets: &RawPacket, interface: &str, index: c_int) -> u32 {
    channels(packets, interface)
        .ok()
        .or_else(|| shown_queues(interface, index))
        .map_or(1, |it| it.max(1))
}

/// Returns the number of an interface's channels that receive: those for receiving alone, and those
/// that also send (`struct ethtool_channels` of linux/ethtool.h).
fn channels(packets: &RawPacket, interface: &str) -> io::Result<u32> {
    /// Number of the ethtool command that reads the channels.
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    /// Positions of the fields `rx_count` and `combined_count`, in words of 32 bits.
    const RX_COUNT: usize = 5;
    const COMBINED_COUNT: usize = 8;
    let mut words = [0_u32; 9];
    words[0] = ETHTOOL_GCHANNELS;
    let mut request = request(interface)?;
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: the operation reads and writes a struct ifreq, and through its data pointer the words
    // of the command, which outlive the call.
    checked(unsafe {
        libc::ioctl(
            packets.as_fd().as_raw_fd(),
            libc::SIOCETHTOOL,
            &raw mut request,
        )
    })?;
    Ok(words[RX_COUNT].saturating_add(words[COMBINED_COUNT]))
}

/// Returns the number of receive queues in sysfs; `None` if sysfs shows another network namespace.
pub(super) fn shown_queues(interface: &str, index: c_int) -> Option<u32> {
    let folder = format!("/sys/class/net/{interface}");
    #[expect(clippy::disallowed_methods, reason = "a file of sysfs")]
    let shown = fs::read_to_string(format!("{folder}/ifindex")).ok()?;
    if shown.trim().parse() != Ok(index) {
        return None;
    }
    let queues = fs::read_dir(format!("{folder}/queues")).ok()?;
    let names = queues.flatten().map(|it| it.file_name());
    let count = names.filter(|it| it.as_encoded_bytes().starts_with(b"rx-"));
    u32::try_from(count.count()).ok()
}

/// Creates an ioctl(2) request for the interface of this name (netdevice(7)).
fn request(interface: &str) -> io::Result<libc::ifreq> {
    // SAFETY: a C struct of integers and a pointer, for which zeroes are a value.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    // The last byte stays 0.
    let room = request.ifr_name.len() - 1;
    if interface.len() > room {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    Ok(request)
}
