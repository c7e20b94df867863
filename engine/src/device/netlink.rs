//! Query of a port's network interface over RDMA netlink.
//!
//! In switchdev mode sysfs does not report the interface: the GID table is empty
//! (`mlx5_query_port_roce` of drivers/infiniband/hw/mlx5/main.c), and representors share
//! `device/net` with the uplink.
//!
//! May import: nothing beyond this folder. Sources: rdma/rdma_netlink.h for the numbers of commands and attributes,
//! linux/netlink.h for the layout of messages, drivers/infiniband/core/nldev.c (`nldev_port_get_doit`, `fill_port_info`).
//! The kernel reports an interface only in the caller's network namespace.
#![allow(unsafe_code)]

use rustix::net::{
    RecvFlags, SendFlags, recv, send,
    sockopt::{Timeout, set_socket_timeout},
};
use std::{
    io,
    os::fd::{FromRawFd, OwnedFd},
    time::Duration,
};

/// Returns the type of an RDMA netlink message: `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command)`.
const fn message_type(command: u16) -> u16 {
    const RDMA_NL_NLDEV: u16 = 5;
    (RDMA_NL_NLDEV << 10) + command
}

/// RDMA netlink command that lists devices: `RDMA_NLDEV_CMD_GET`.
const DEVICES: u16 = message_type(1);
/// RDMA netlink command that describes a port: `RDMA_NLDEV_CMD_PORT_GET`.
const PORT: u16 = message_type(5);

/// Netlink attribute of a device's index: `RDMA_NLDEV_ATTR_DEV_INDEX`, a u32.
const DEV_INDEX: u16 = 1;
/// Netlink attribute of a device's name: `RDMA_NLDEV_ATTR_DEV_NAME`, a string.
const DEV_NAME: u16 = 2;
/// Netlink attribute of a port's number: `RDMA_NLDEV_ATTR_PORT_INDEX`, a u32.
const PORT_INDEX: u16 = 3;
/// Netlink attribute of a network interface's name: `RDMA_NLDEV_ATTR_NDEV_NAME`, a string.
const NDEV_NAME: u16 = 51;

/// Bytes of a netlink message header, `struct nlmsghdr`: length (u32), type, flags (u16 each),
/// sequence number, port ID (u32 each).
const HEADER: usize = 16;
/// Bytes of a netlink attribute's header, `struct nlattr`: length and type (u16 each).
const ATTRIBUTE: usize = 4;
/// Mask of the type of a netlink attribute, `NLA_TYPE_MASK`: the two bits above it are flags.
const TYPE_MASK: u16 = 0x3fff;
/// Maximum bytes of a netlink datagram that the kernel fills (`netlink_recvmsg` of
/// net/netlink/af_netlink.c).
const MOST: usize = 32 << 10;
/// Maximum wait for an answer to a netlink request. The kernel answers within `send`; the software
/// NIC answers from another thread.
const PATIENCE: Duration = Duration::from_secs(1);

/// Number of objects that a netlink request is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Netlink request about one object, answered by one message.
    One,
    /// Netlink request about all objects, answered by messages up to `NLMSG_DONE`.
    List,
}

/// Returns the name of the network interface on a port of the RDMA device `device`, or `None` if it
/// has none in this network namespace.
///
/// # Errors
/// The kernel has no RDMA netlink, or no device of this name.
pub(super) fn port_interface(device: &str, port: u8) -> io::Result<Option<String>> {
    let socket = open()?;
    let index = exchange(
        &socket,
        Scope::List,
        &request(DEVICES, Scope::List, &[]),
        |answer| {
            let is_wanted = answer.text(DEV_NAME) == Some(device);
            is_wanted.then(|| answer.number(DEV_INDEX)).flatten()
        },
    )?
    .ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
    let of_port = [(DEV_INDEX, index), (PORT_INDEX, port.into())];
    exchange(
        &socket,
        Scope::One,
        &request(PORT, Scope::One, &of_port),
        |answer| answer.text(NDEV_NAME).map(str::to_owned),
    )
}

/// Opens the netlink socket with the C library's `socket`.
///
/// The software NIC replaces this function, because the machine's kernel does not have its devices.
fn open() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: a call without pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_RDMA) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    Ok(socket)
}

/// Sends a netlink request and returns the first value that `wanted` finds in the answers.
///
/// A missing answer is an error after [`PATIENCE`].
fn exchange<T>(
    socket: &OwnedFd,
    scope: Scope,
    request: &[u8],
    wanted: impl Fn(&NetlinkAttributes<'_>) -> Option<T>,
) -> io::Result<Option<T>> {
    send(socket, request, SendFlags::DONTWAIT)?;
    let mut found = None;
    let mut buffer = vec![0; MOST];
    loop {
        let (_, len) = recv(socket, &mut buffer, RecvFlags::TRUNC)?;
        let bytes = buffer
            .get(..len)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
        let is_end = read_answers(bytes, |answer| {
            if found.is_none() {
                found = wanted(answer);
            }
        })?;
        // The rest of a list is read too. Otherwise it would be taken for the answer to the next
        // request.
        if is_end || scope == Scope::One {
            return Ok(found);
        }
    }
}

/// Builds an RDMA netlink request with 32-bit attributes.
fn request(kind: u16, scope: Scope, attributes: &[(u16, u32)]) -> Vec<u8> {
    let flags = match scope {
        Scope::One => libc::NLM_F_REQUEST,
        Scope::List => libc::NLM_F_REQUEST | libc::NLM_F_DUMP,
    };
    let len = HEADER + attributes.len() * (ATTRIBUTE + 4);
    let mut bytes = Vec::with_capacity(len);
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags as u16).to_ne_bytes());
    bytes.extend([0; 8]);
    for (attribute, value) in attributes {
        bytes.extend((ATTRIBUTE as u16 + 4).to_ne_bytes());
        bytes.extend(attribute.to_ne_bytes());
        bytes.extend(value.to_ne_bytes());
    }
    bytes
}

/// Attributes of one netlink message.
struct NetlinkAttributes<'a>(&'a [u8]);

impl<'a> NetlinkAttributes<'a> {
    /// Returns the value of the first netlink attribute of type `wanted`.
    fn value(&self, wanted: u16) -> Option<&'a [u8]> {
        let mut rest = self.0;
        while let Some((len, kind)) = rest.first_chunk().map(|[a, b, c, d]| {
            let kind = u16::from_ne_bytes([*c, *d]);
            (usize::from(u16::from_ne_bytes([*a, *b])), kind & TYPE_MASK)
        }) {
            let value = rest.get(ATTRIBUTE..len)?;
            if kind == wanted {
                return Some(value);
            }
            rest = rest.get(len.next_multiple_of(4)..)?;
        }
        None
    }

    /// Returns the value of a u32 attribute of a netlink message.
    fn number(&self, wanted: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(self.value(wanted)?.try_into().ok()?))
    }

    /// Returns the value of a string attribute of a netlink message without its terminating zero;
    /// `None` if it is empty.
    fn text(&self, wanted: u16) -> Option<&'a str> {
        let text = std::str::from_utf8(self.value(wanted)?).ok()?;
        Some(text.trim_end_matches('\0')).filter(|text| !text.is_empty())
    }
}

/// Passes the attributes of each netlink message of a datagram to `each`; returns `true` if a list
/// of messages has ended.
///
/// # Errors
/// The kernel's error, or a datagram that does not consist of whole messages.
fn read_answers(datagram: &[u8], mut each: impl FnMut(&NetlinkAttributes<'_>)) -> io::Result<bool> {
    let broken = || io::Error::from_raw_os_error(libc::EBADMSG);
    let mut rest = datagram;
    while !rest.is_empty() {
        let header: &[u8; HEADER] = rest.first_chunk().ok_or_else(broken)?;
        let [a, b, c, d, e, f, ..] = *header;
        let len = u32::from_ne_bytes([a, b, c, d]) as usize;
        let payload = rest.get(HEADER..len).ok_or_else(broken)?;
        match i32::from(u16::from_ne_bytes([e, f])) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                // struct nlmsgerr begins with the negative errno.
                let errno = payload.first_chunk().ok_or_else(broken)?;
                return Err(io::Error::from_raw_os_error(-i32::from_ne_bytes(*errno)));
            }
            libc::NLMSG_NOOP => {}
            _ => each(&NetlinkAttributes(payload)),
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wqcap_testkit::skip;

    /// Returns a netlink message in the kernel's layout, with attributes padded to 4 bytes.
    fn message(kind: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut payload = Vec::new();
        for (attribute, value) in attributes {
            payload.extend((ATTRIBUTE as u16 + value.len() as u16).to_ne_bytes());
            payload.extend(attribute.to_ne_bytes());
            payload.extend(*value);
            payload.resize(payload.len().next_multiple_of(4), 0);
        }
        let mut bytes = ((HEADER + payload.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(payload);
        bytes
    }

    /// Returns a netlink message that describes an RDMA device.
    fn device(index: u32, name: &[u8]) -> Vec<u8> {
        let index = index.to_ne_bytes();
        message(DEVICES, &[(DEV_INDEX, &index), (DEV_NAME, name)])
    }

    /// Index and name of an RDMA device in a netlink message.
    type Found = (Option<u32>, Option<String>);

    /// Returns the device index and name in each netlink message, and `true` if the list has ended.
    fn names(datagram: &[u8]) -> io::Result<(Vec<Found>, bool)> {
        let mut all = Vec::new();
        let end = read_answers(datagram, |it| {
            let name = it.text(DEV_NAME).or_else(|| it.text(NDEV_NAME));
            all.push((it.number(DEV_INDEX), name.map(str::to_owned)));
        })?;
        Ok((all, end))
    }

    #[test]
    fn a_list_of_devices_is_read_to_its_end() {
        let mut list = device(3, b"mlx5_0\0");
        list.extend(device(4, b"mlx5_bond_0\0"));
        let both = vec![
            (Some(3), Some("mlx5_0".to_owned())),
            (Some(4), Some("mlx5_bond_0".to_owned())),
        ];
        assert_eq!(names(&list).expect("whole messages"), (both.clone(), false));
        list.extend(message(libc::NLMSG_DONE as u16, &[]));
        assert_eq!(names(&list).expect("whole messages"), (both, true));
    }

    #[test]
    fn a_port_has_the_interface_that_its_answer_names() {
        let (index, number) = (7u32.to_ne_bytes(), 1u32.to_ne_bytes());
        let unrelated = [0xff; 9];
        // NLA_F_NESTED, a flag of another attribute's type.
        let nested = 1 << 15 | 60;
        let with = message(
            PORT,
            &[
                (DEV_INDEX, &index),
                (nested, &unrelated),
                (PORT_INDEX, &number),
                (50, &number),
                (NDEV_NAME, b"ens1f0np0\0"),
            ],
        );
        let found = names(&with).expect("whole messages").0;
        assert_eq!(found, [(Some(7), Some("ens1f0np0".to_owned()))]);
        let without = message(PORT, &[(DEV_INDEX, &index), (PORT_INDEX, &number)]);
        assert_eq!(
            names(&without).expect("whole messages").0,
            [(Some(7), None)]
        );
    }

    #[test]
    fn an_error_of_the_kernel_and_a_cut_message_are_errors() {
        let mut error = message(libc::NLMSG_ERROR as u16, &[]);
        error.extend((-libc::EINVAL).to_ne_bytes());
        error[0] += 4;
        let refused = names(&error).expect_err("an error");
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        let whole = device(3, b"mlx5_0\0");
        for len in 1..whole.len() {
            let cut = names(&whole[..len]).expect_err("truncated message");
            assert_eq!(cut.raw_os_error(), Some(libc::EBADMSG), "{len} bytes");
        }
        // A length of zero must not cause an endless loop.
        let mut endless = message(DEVICES, &[(DEV_NAME, b"x")]);
        endless[HEADER] = 0;
        assert_eq!(names(&endless).expect("whole messages").0, [(None, None)]);
        endless[0] = 0;
        assert!(names(&endless).is_err());
    }

    #[test]
    fn a_request_has_the_layout_of_the_headers() {
        let bytes = request(PORT, Scope::One, &[(DEV_INDEX, 9), (PORT_INDEX, 2)]);
        assert_eq!(bytes.len(), 32);
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!(word(0), 32);
        let of_attribute = |kind: u32| 8 | kind << 16;
        if cfg!(target_endian = "little") {
            assert_eq!(word(4), 0x1405 | 1 << 16, "type and NLM_F_REQUEST");
            assert_eq!([word(16), word(24)], [1, 3].map(of_attribute));
        }
        assert_eq!([word(20), word(28)], [9, 2]);
    }

    /// For every device of this machine, RDMA netlink reports the interface that sysfs has.
    #[test]
    fn the_kernel_answers_as_sysfs_does() {
        let folder = "/sys/class/infiniband";
        let devices: Vec<_> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(|it| it.ok()?.file_name().into_string().ok())
            .collect();
        if devices.is_empty() {
            skip!("this machine has no RDMA device");
        }
        for device in devices {
            let ndev = format!("{folder}/{device}/ports/1/gid_attrs/ndevs/0");
            let in_sysfs = std::fs::read_to_string(ndev).ok();
            let answer = port_interface(&device, 1).expect("RDMA netlink");
            println!("{device}: {answer:?}, in sysfs {in_sysfs:?}");
            if let Some(name) = in_sysfs {
                assert_eq!(answer.as_deref(), Some(name.trim()), "{device}");
            }
        }
        let none = port_interface("nosuch0", 1).expect_err("no such device");
        assert_eq!(none.raw_os_error(), Some(libc::ENODEV));
    }
}
