//! Failures of AF_XDP sockets, with their remedies.

use std::io;
use wqcap_core::error::ResourceError;

/// Failure to receive the frames of an interface by AF_XDP sockets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XdpError {
    /// A socket that the capture needs cannot be created.
    #[error(
        "cannot create a socket of kind {kind}: {source}{}",
        creation_remedy(source)
    )]
    Create {
        /// Address family of the socket that cannot be created.
        kind: &'static str,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// The interface does not exist in this network namespace.
    #[error("{interface}: there is no such network interface")]
    NoInterface {
        /// Name of the interface.
        interface: String,
    },
    /// More receive queues are to be captured than the interface has.
    #[error(
        "{interface}: cannot capture {wanted} receive queues: the interface has {has}; use {has} or fewer, or add queues \
         with `ethtool -L {interface}`"
    )]
    Queues {
        /// Name of the interface.
        interface: String,
        /// Number of receive queues to capture.
        wanted: u32,
        /// Number of receive queues of the interface.
        has: u32,
    },
    /// Frames of the interface can be longer than a chunk of the receive memory.
    #[error(
        "{interface}: an MTU of {mtu} is too large for AF_XDP with chunks of {chunk_bytes} bytes: the limit is \
         {longest}; use `ip link set dev {interface} mtu {longest}`, or the backend af_packet"
    )]
    Mtu {
        /// Name of the interface.
        interface: String,
        /// MTU of the interface in bytes.
        mtu: u32,
        /// Size in bytes of a chunk of the receive memory.
        chunk_bytes: u32,
        /// Largest MTU whose frames fit in a chunk.
        longest: u32,
    },
    /// The interface has an XDP program already.
    #[error(
        "{interface} has an XDP program already, which `ip link show dev {interface}` shows: end its process, or remove \
         the program with `ip link set dev {interface} xdp off`"
    )]
    Taken {
        /// Name of the interface.
        interface: String,
    },
    /// The XDP program cannot be loaded or attached, or the interface cannot be prepared.
    #[error("{interface}: cannot {step}: {source}{}", program_remedy(source))]
    Program {
        /// Name of the interface.
        interface: String,
        /// Step that failed, such as "load the XDP program".
        step: &'static str,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// The receive memory of a queue cannot be allocated.
    #[error("{interface} queue {queue}: {source}; set a smaller capture.ring")]
    Memory {
        /// Name of the interface.
        interface: String,
        /// Number of the receive queue whose memory cannot be allocated.
        queue: u32,
        /// Failure of the allocation of the receive memory.
        source: ResourceError,
    },
    /// The AF_XDP socket of a receive queue cannot be prepared or read.
    #[error(
        "{interface} queue {queue}: cannot {step}: {source}{}",
        queue_remedy(source)
    )]
    Queue {
        /// Name of the interface.
        interface: String,
        /// Number of the receive queue of the socket.
        queue: u32,
        /// Step that failed, such as "bind the AF_XDP socket".
        step: &'static str,
        /// Error that the kernel returned.
        source: io::Error,
    },
}

impl XdpError {
    /// Returns the errno that the kernel returned, if there is one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Create { source, .. }
            | Self::Program { source, .. }
            | Self::Queue { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// Capabilities of a capture by AF_XDP. CAP_IPC_LOCK frees the receive memory from RLIMIT_MEMLOCK
/// (`xdp_umem_account_pages` of net/xdp/xdp_umem.c), whose usual 8 MiB are less than the rings take.
pub(super) const RIGHTS: &str =
    "; run as root, or grant CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_IPC_LOCK";

fn creation_remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => RIGHTS,
        Some(libc::EAFNOSUPPORT) => {
            "; use a kernel with CONFIG_XDP_SOCKETS, or the backend af_packet"
        }
        _ => "",
    }
}

fn program_remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => RIGHTS,
        Some(libc::EINVAL | libc::ENOSYS) => {
            "; use Linux 5.9 or newer with CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL, or the backend af_packet"
        }
        _ => "; use the backend af_packet",
    }
}

fn queue_remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => RIGHTS,
        Some(libc::EBUSY) => {
            "; another AF_XDP socket has this receive queue: end its process (`ss --xdp -p` shows it)"
        }
        Some(libc::ENOBUFS) => {
            "; the receive memory exceeds the limit of locked memory (RLIMIT_MEMLOCK): raise `ulimit -l` \
             (LimitMEMLOCK= of systemd), grant CAP_IPC_LOCK, or set a smaller capture.ring"
        }
        Some(libc::ENOMEM) => "; set a smaller capture.ring",
        _ => "",
    }
}
