//! RDMA netlink: a socket whose other end answers with the devices and the netdevs of their ports.
//!
//! Imports the settings. libibverbs asks for devices over netlink too, but its socket is bound first,
//! which fails here (`rdmanl_socket_alloc` of rdma-core); it then reads sysfs. Only programs that
//! send without binding get answers: the kernel binds their socket itself.
//!
//! Sources: rdma/rdma_netlink.h for the numbers, drivers/infiniband/core/nldev.c
//! (`nldev_get_dumpit`, `nldev_port_get_doit`, `fill_port_info`) for the answers.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{recv, send, socketpair};

use crate::process::{Errno, thread};
use crate::settings::DeviceSettings;
use crate::sysfs::address::virtual_ifindex;

/// RDMA netlink commands (`RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, ...)`): `RDMA_NLDEV_CMD_GET` and
/// `RDMA_NLDEV_CMD_PORT_GET`.
const DEVICES: u16 = (5 << 10) + 1;
const PORT: u16 = (5 << 10) + 5;
/// Attributes of RDMA netlink: `RDMA_NLDEV_ATTR_{DEV_INDEX, DEV_NAME, PORT_INDEX, NDEV_INDEX,
/// NDEV_NAME}`.
const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const NDEV_INDEX: u16 = 50;
const NDEV_NAME: u16 = 51;
/// Size of a netlink message's header (`struct nlmsghdr`) in bytes.
const HEADER: usize = 16;
/// Size of a netlink attribute's header (`struct nlattr`) in bytes.
const ATTRIBUTE: usize = 4;

/// Program's end of the RDMA netlink socket pair, whose other end a thread of the model serves from
/// the first request on.
static SOCKET: OnceLock<OwnedFd> = OnceLock::new();

/// Opens an RDMA netlink socket that a thread of the model answers for those of `devices` that are
/// below `class`, the directory `sys/class/infiniband` of the run directory.
///
/// All such sockets are duplicates of one, because a program that is sandboxed after its first
/// request may not create a pair of sockets. A program that uses two at a time could read the answer
/// for the other.
pub fn open(devices: &'static [DeviceSettings], class: &Path) -> Result<i32, Errno> {
    let socket = match SOCKET.get() {
        Some(socket) => socket,
        None => {
            let socket = start(devices, class)?;
            SOCKET.get_or_init(|| socket)
        }
    };
    let copy = fcntl_dupfd_cloexec(socket, 0).map_err(|error| error.raw_os_error())?;
    Ok(copy.into_raw_fd())
}

/// Starts the thread that answers RDMA netlink requests, and returns the program's end of its pair
/// of sockets.
fn start(devices: &'static [DeviceSettings], class: &Path) -> Result<OwnedFd, Errno> {
    let pair = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    let (program, model) = pair.map_err(|error| error.raw_os_error())?;
    let class = class.to_owned();
    let serve = move || serve(&model, devices, &class);
    thread::start("mlx5_netlink", serve).map_err(|_| libc::ENOMEM)?;
    Ok(program)
}

/// Answers RDMA netlink requests on `socket` until the program closes its end.
fn serve(socket: &OwnedFd, devices: &[DeviceSettings], class: &Path) {
    let mut request = [0; 4096];
    while let Ok((len, _)) = recv(socket, &mut request, RecvFlags::empty()) {
        if len == 0 {
            return;
        }
        let present = |device: &DeviceSettings| class.join(&device.name).exists();
        for datagram in answers(&request[..len], devices, present) {
            if send(socket, &datagram, SendFlags::NOSIGNAL).is_err() {
                return;
            }
        }
    }
}

/// Returns the datagrams that answer an RDMA netlink request about `devices`.
fn answers(
    request: &[u8],
    devices: &[DeviceSettings],
    present: impl Fn(&DeviceSettings) -> bool,
) -> Vec<Vec<u8>> {
    let word = |at: usize| request.get(at..)?.first_chunk().copied();
    let kind = word(4).map(|[a, b, _, _]: [u8; 4]| u16::from_ne_bytes([a, b]));
    let number = |wanted: u16| {
        let mut at = HEADER;
        while let Some([a, b, c, d]) = word(at) {
            let len = usize::from(u16::from_ne_bytes([a, b]));
            if u16::from_ne_bytes([c, d]) == wanted {
                return word(at + ATTRIBUTE).map(u32::from_ne_bytes);
            }
            at += len.max(ATTRIBUTE).next_multiple_of(4);
        }
        None
    };
    let described = |index: usize, device: &DeviceSettings| {
        let mut all = Vec::new();
        push(&mut all, DEV_INDEX, &(index as u32).to_ne_bytes());
        push(&mut all, DEV_NAME, &text(&device.name));
        all
    };
    let shown = devices.iter().enumerate().filter(|(_, it)| present(it));
    match kind {
        Some(DEVICES) => {
            let list = shown.flat_map(|(index, device)| {
                let mut all = described(index, device);
                let ports = device.ports.len() as u32;
                push(&mut all, PORT_INDEX, &ports.to_ne_bytes());
                message(DEVICES, &all)
            });
            let done = message(libc::NLMSG_DONE as u16, &0i32.to_ne_bytes());
            vec![list.collect(), done]
        }
        Some(PORT) => {
            let port = shown
                .clone()
                .find(|(index, _)| number(DEV_INDEX) == Some(*index as u32))
                .and_then(|(index, device)| {
                    let number = number(PORT_INDEX)?;
                    let port = device.ports.get((number as usize).checked_sub(1)?)?;
                    Some((index, device, number, port))
                });
            let Some((index, device, number, port)) = port else {
                return vec![error(libc::EINVAL)];
            };
            let mut all = described(index, device);
            push(&mut all, PORT_INDEX, &number.to_ne_bytes());
            let ifindex = virtual_ifindex(index, number as u8);
            push(&mut all, NDEV_INDEX, &ifindex.to_ne_bytes());
            push(&mut all, NDEV_NAME, &text(&port.ifname));
            vec![message(PORT, &all)]
        }
        _ => vec![error(libc::EOPNOTSUPP)],
    }
}

fn text(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

fn push(to: &mut Vec<u8>, attribute: u16, value: &[u8]) {
    to.extend(((ATTRIBUTE + value.len()) as u16).to_ne_bytes());
    to.extend(attribute.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = ((HEADER + payload.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([0; 10]);
    bytes.extend(payload);
    bytes
}

/// Returns an RDMA netlink message with `struct nlmsgerr`: the negative errno, and the header of
/// the request.
fn error(errno: Errno) -> Vec<u8> {
    let mut payload = (-errno).to_ne_bytes().to_vec();
    payload.extend([0; HEADER]);
    message(libc::NLMSG_ERROR as u16, &payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn request(kind: u16, attributes: &[(u16, u32)]) -> Vec<u8> {
        let mut payload = Vec::new();
        for (attribute, value) in attributes {
            push(&mut payload, *attribute, &value.to_ne_bytes());
        }
        message(kind, &payload)
    }

    #[test]
    fn a_port_is_answered_with_its_netdev() {
        let settings = Settings::parse("loopback\nloopback", "switchdev=true\nvfs=2").unwrap();
        let answer = |request: &[u8]| answers(request, &settings.devices, |_| true);
        let list = answer(&request(DEVICES, &[]));
        assert_eq!(list.len(), 2);
        let holds = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|it| it == text);
        assert!(holds(&list[0], b"mlx5_0\0") && holds(&list[0], b"mlx5_1\0"));
        let port = answer(&request(PORT, &[(DEV_INDEX, 1), (PORT_INDEX, 1)]));
        assert!(holds(&port[0], b"mlx5_1p1\0") && !holds(&port[0], b"vf0"));
        for wrong in [
            request(PORT, &[(DEV_INDEX, 1), (PORT_INDEX, 2)]),
            request(PORT, &[(DEV_INDEX, 9), (PORT_INDEX, 1)]),
            request(PORT, &[(PORT_INDEX, 1)]),
            request(9, &[]),
        ] {
            assert_eq!(
                answer(&wrong)[0][4..6],
                (libc::NLMSG_ERROR as u16).to_ne_bytes()
            );
        }
        let hidden = answers(&request(DEVICES, &[]), &settings.devices, |it| {
            it.name == "mlx5_1"
        });
        assert!(!holds(&hidden[0], b"mlx5_0\0") && holds(&hidden[0], b"mlx5_1\0"));
    }
}
