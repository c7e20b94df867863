//! Interface whose frames go to AF_XDP sockets: the XDP program, its gate, and promiscuous mode.

use super::{
    ChunkRing, XdpError, XdpHook, XdpSocket,
    link::{mtu, receive_queues, shown_queues},
    program::{ProgramLink, SocketProgram},
};
use crate::packet::raw::RawPacket;
use std::{io, sync::Arc};

/// Number of bytes that the kernel keeps in each chunk in front of the frame (`XDP_PACKET_HEADROOM`
/// of linux/bpf.h).
const HEADROOM: u32 = 256;
/// Number of bytes of an Ethernet header and two VLAN tags, which an MTU does not include.
const HEADERS: u32 = 14 + 2 * 4;

/// Attributes of the AF_XDP sockets of an interface.
#[derive(Clone, Copy, Debug)]
pub struct XdpAttr {
    /// Number of receive queues to capture, from queue 0. The frames of other queues stay with the
    /// kernel.
    pub queues: u32,
    /// Number of chunks of a queue's receive memory, each of which holds one frame.
    pub chunks: u32,
    /// Size in bytes of a chunk: 2048, or 4096, which is the maximum of the kernel with pages of 4
    /// KiB.
    pub chunk_bytes: u32,
    /// NUMA node for the receive memory; `None`: any node.
    pub numa_node: Option<u32>,
    /// `true` to set promiscuous mode on the interface while it is captured.
    pub promiscuous: bool,
}

impl XdpAttr {
    /// Returns the number of frames for which a sleeping thread is woken: half of the chunks or less,
    /// a power of two.
    pub(super) fn watermark(&self) -> u32 {
        /// Maximum number of frames, which a core receives in about a millisecond.
        const MOST: u32 = 8192;
        1 << (self.chunks / 2).clamp(1, MOST).ilog2()
    }

    /// Returns the size in bytes of the smallest chunk that holds the frames of this MTU, or of the
    /// largest chunk that the kernel has.
    #[must_use]
    pub const fn chunk_for(mtu: u32) -> u32 {
        if mtu <= Self::longest_mtu(2048) {
            2048
        } else {
            4096
        }
    }

    /// Returns the largest MTU whose frames, with two VLAN tags, fit in a chunk of `chunk_bytes`
    /// bytes.
    #[must_use]
    pub const fn longest_mtu(chunk_bytes: u32) -> u32 {
        chunk_bytes.saturating_sub(HEADROOM + HEADERS)
    }
}

/// Interface whose received frames go to AF_XDP sockets instead of the kernel, while its gate is
/// open.
#[derive(Debug)]
pub struct XdpInterface {
    /// Attachment of the XDP program. It is dropped first, so that the kernel gets the frames
    /// again.
    _link: ProgramLink,
    program: SocketProgram,
    /// Packet socket without frames. It holds promiscuous mode, and detects the deletion of the
    /// interface.
    packets: RawPacket,
    sockets: Vec<Arc<XdpSocket>>,
    interface: String,
    /// Number of the interface (ifindex).
    index: i32,
    hook: XdpHook,
    native_refusal: Option<io::Error>,
}

impl XdpInterface {
    /// Opens the AF_XDP sockets of an interface with a closed gate, and attaches the XDP program:
    /// in the driver, or, if the driver refuses it, in the kernel's network stack. Returns the rings
    /// of the queues with the interface.
    ///
    /// # Errors
    /// The interface does not exist, has fewer queues, has too large an MTU, or has an XDP program
    /// already; the process lacks a capability; or the kernel refuses a step.
    pub fn open(interface: &str, attr: &XdpAttr) -> Result<(Self, Vec<ChunkRing>), XdpError> {
        let failed = |step| {
            move |source| XdpError::Program {
                interface: interface.to_owned(),
                step,
                source,
            }
        };
        let (packets, index) = find(interface)?;
        packets
            .bind(index, 0)
            .map_err(failed("bind a packet socket"))?;
        let XdpLimits { queues: has, mtu } = XdpLimits::read_by(&packets, interface, index)?;
        if attr.queues > has {
            return Err(XdpError::Queues {
                interface: interface.to_owned(),
                wanted: attr.queues,
                has,
            });
        }
        let longest = XdpAttr::longest_mtu(attr.chunk_bytes);
        if mtu > longest {
            return Err(XdpError::Mtu {
                interface: interface.to_owned(),
                mtu,
                chunk_bytes: attr.chunk_bytes,
                longest,
            });
        }
        let program = SocketProgram::load(attr.queues, attr.watermark())
            .map_err(|(step, source)| failed(step)(source))?;
        let (link, hook, native_refusal) =
            attach(&program, index).map_err(|source| match source.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => XdpError::Taken {
                    interface: interface.to_owned(),
                },
                _ => failed("attach the XDP program")(source),
            })?;
        let mut sockets = Vec::with_capacity(attr.queues as usize);
        let mut rings = Vec::with_capacity(attr.queues as usize);
        for queue in 0..attr.queues {
            let zero_copy = hook == XdpHook::Native;
            let watermark = program
                .watermark(queue)
                .map_err(failed("create the watermark of a queue"))?;
            let (socket, ring) =
                XdpSocket::open(interface, index, queue, zero_copy, watermark, attr)?;
            program
                .direct(queue, std::os::fd::AsFd::as_fd(&socket))
                .map_err(failed("put the AF_XDP socket into the BPF map"))?;
            sockets.push(Arc::new(socket));
            rings.push(ring);
        }
        if attr.promiscuous {
            packets
                .set_promiscuous(index)
                .map_err(failed("set promiscuous mode"))?;
        }
        let opened = Self {
            _link: link,
            program,
            packets,
            sockets,
            interface: interface.to_owned(),
            index,
            hook,
            native_refusal,
        };
        Ok((opened, rings))
    }

    /// Lets the frames of all captured queues into their rings. No call of the kernel is needed, so
    /// the gate can be opened and closed without rights.
    pub fn open_gate(&self) {
        self.program.set_gate(true);
    }

    /// Leaves all further frames to the kernel. Frames that the kernel processes at this moment may
    /// still arrive.
    pub fn close_gate(&self) {
        self.program.set_gate(false);
    }

    /// Returns the AF_XDP sockets of the receive queues, in the order of the queues.
    #[must_use]
    pub fn sockets(&self) -> &[Arc<XdpSocket>] {
        &self.sockets
    }

    /// Returns `true` if the interface was deleted or moved to another network namespace. A new
    /// interface of the same name is not mistaken for it.
    #[must_use]
    pub fn is_orphaned(&self) -> bool {
        self.packets.is_orphaned()
    }

    /// Returns the present number of receive queues of the interface in sysfs, captured or not; 0 if
    /// sysfs does not show the interface. The sandbox of a capture permits no ioctl of ethtool.
    #[must_use]
    pub fn shown_queues(&self) -> u32 {
        shown_queues(&self.interface, self.index).unwrap_or(0)
    }

    /// Returns the hardware type of the interface (`ARPHRD_…` of linux/if_arp.h).
    ///
    /// # Errors
    /// The kernel refuses the reading.
    pub fn hardware_type(&self) -> io::Result<u16> {
        Ok(self.packets.address()?.sll_hatype)
    }

    /// Returns the place at which the kernel runs the XDP program.
    #[must_use]
    pub fn hook(&self) -> XdpHook {
        self.hook
    }

    /// Returns the reason for which the driver refused the XDP program, if it did.
    #[must_use]
    pub fn native_refusal(&self) -> Option<&io::Error> {
        self.native_refusal.as_ref()
    }

    /// Returns the name of the interface at the start of the capture.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.interface
    }
}

/// Properties of an interface that limit its capture by AF_XDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpLimits {
    /// Number of receive queues of the interface.
    pub queues: u32,
    /// MTU of the interface in bytes.
    pub mtu: u32,
}

impl XdpLimits {
    /// Reads the MTU and the number of receive queues of an interface.
    ///
    /// # Errors
    /// The interface does not exist, or the process lacks CAP_NET_RAW.
    pub fn read(interface: &str) -> Result<Self, XdpError> {
        let (packets, index) = find(interface)?;
        Self::read_by(&packets, interface, index)
    }

    fn read_by(packets: &RawPacket, interface: &str, index: i32) -> Result<Self, XdpError> {
        Ok(Self {
            queues: receive_queues(packets, interface, index),
            mtu: mtu(packets, interface).map_err(|source| XdpError::Program {
                interface: interface.to_owned(),
                step: "read the MTU",
                source,
            })?,
        })
    }
}

/// Creates a packet socket, and returns it with the index of an interface.
fn find(interface: &str) -> Result<(RawPacket, i32), XdpError> {
    let packets = RawPacket::create().map_err(|source| XdpError::Create {
        kind: "AF_PACKET",
        source,
    })?;
    let index = packets
        .index_of(interface)
        .ok_or_else(|| XdpError::NoInterface {
            interface: interface.to_owned(),
        })?;
    Ok((packets, index))
}

/// Attaches the XDP program in the driver, or else in the network stack. Returns the attachment,
/// its place, and the error of a driver that refused the program.
fn attach(
    program: &SocketProgram,
    index: i32,
) -> io::Result<(ProgramLink, XdpHook, Option<io::Error>)> {
    let refusal = match program.attach(index, XdpHook::Native) {
        Ok(link) => return Ok((link, XdpHook::Native, None)),
        Err(e) => e,
    };
    // The interface has a program (`dev_xdp_attach` of net/core/dev.c).
    if matches!(refusal.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) {
        return Err(refusal);
    }
    let link = program.attach(index, XdpHook::Generic)?;
    Ok((link, XdpHook::Generic, Some(refusal)))
}
