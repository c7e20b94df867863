//! Why a verb, or memory for one, was refused.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd},
};
use wqcap_core::error::ResourceError;

/// Names the verb, its object and the errno, or the value that does not fit this machine.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// A verb failed.
    #[error("{verb}({object}): {source}{}", hint(verb, source).map(|h| format!("; {h}")).unwrap_or_default())]
    Verb {
        /// The verb's name, `ibv_create_wq`.
        verb: &'static str,
        /// On what: the device, queue or rule.
        object: String,
        /// The errno.
        source: io::Error,
    },
    /// There is no RDMA device of this name.
    #[error("{0}: there is no such RDMA device")]
    NoDevice(String),
    /// An IP address is not one RDMA device's.
    #[error(
        "{0} is no address of one RDMA device; `rdma link` lists devices with their interfaces"
    )]
    NoDeviceAt(SocketAddr),
    /// The operating system refuses memory.
    #[error(transparent)]
    Memory(#[from] ResourceError),
}

impl VerbsError {
    /// `verb` on `object` returned `errno`.
    #[must_use]
    pub fn from_errno(verb: &'static str, object: impl Into<String>, errno: i32) -> Self {
        Self::Verb {
            verb,
            object: object.into(),
            source: io::Error::from_raw_os_error(errno),
        }
    }

    /// `verb` on `object` left its errno with the calling thread.
    #[must_use]
    pub fn last_os_error(verb: &'static str, object: impl Into<String>) -> Self {
        let errno = io::Error::last_os_error().raw_os_error();
        Self::from_errno(verb, object, errno.unwrap_or(libc::EIO))
    }

    /// What the errno of a verb means on mlx5, where it is not what its text says, and what to do.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Verb { verb, source, .. } => hint(verb, source),
            _ => None,
        }
    }
}

/// What a verb has made, or the errno that it left with the calling thread.
pub(crate) fn made<T>(
    raw: *mut T,
    verb: &'static str,
    object: impl Into<String>,
) -> Result<*mut T, VerbsError> {
    if raw.is_null() {
        return Err(VerbsError::last_os_error(verb, object));
    }
    Ok(raw)
}

/// For a verb that returns 0 or its errno.
pub(crate) fn answered(
    errno: i32,
    verb: &'static str,
    object: impl FnOnce() -> String,
) -> Result<(), VerbsError> {
    match errno {
        0 => Ok(()),
        errno => Err(VerbsError::from_errno(verb, object(), errno)),
    }
}

/// For a call that returns 0, or else leaves its errno with the calling thread.
pub(crate) fn called(
    ret: i32,
    verb: &'static str,
    object: impl Into<String>,
) -> Result<(), VerbsError> {
    match ret {
        0 => Ok(()),
        _ => Err(VerbsError::last_os_error(verb, object)),
    }
}

/// Makes reading a descriptor return at once when there is nothing.
pub(crate) fn set_nonblocking(of: &impl AsFd, object: &str) -> Result<(), VerbsError> {
    let fd = of.as_fd().as_raw_fd();
    // SAFETY: fcntl on a descriptor that is borrowed for the call.
    let ret = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    called(ret, "fcntl", object)
}

fn hint(verb: &str, errno: &io::Error) -> Option<&'static str> {
    Some(match (verb, errno.raw_os_error()?) {
        ("ibv_create_qp_ex" | "ibv_create_flow", libc::EPERM) => {
            "raw packet QPs and flow rules need CAP_NET_RAW: run as root, or `setcap cap_net_raw+ep` on the binary"
        }
        ("ibv_create_wq" | "mlx5dv_create_wq", libc::EPERM) => {
            "delay drop needs CAP_SYS_RAWIO: run as root, or `setcap cap_net_raw,cap_sys_rawio+ep` on the binary"
        }
        ("ibv_create_wq" | "mlx5dv_create_wq", libc::EINVAL) => {
            "more WRs or scatter entries than a WQ of the device has: ask for fewer"
        }
        (
            "ibv_create_wq"
            | "mlx5dv_create_wq"
            | "ibv_create_rwq_ind_table"
            | "ibv_create_qp_ex"
            | "ibv_create_flow",
            libc::EOPNOTSUPP,
        ) => "the device or its driver does not offer this",
        ("ibv_reg_mr", libc::ENOMEM) => {
            "the memory could not be locked: raise `ulimit -l` (LimitMEMLOCK=) or give CAP_IPC_LOCK"
        }
        ("rdma_create_event_channel", libc::ENODEV | libc::ENOENT) => {
            "the kernel's connection manager is not there: `modprobe rdma_ucm`"
        }
        ("rdma_bind_addr" | "rdma_resolve_addr", libc::ENODEV | libc::EADDRNOTAVAIL) => {
            "no RDMA device has or reaches this address; `rdma link` lists devices with their interfaces"
        }
        ("ibv_create_srq" | "rdma_create_srq", libc::EINVAL) => {
            "more WRs than the device takes (max_srq_wr, `ibv_devinfo -v`)"
        }
        ("ibv_create_srq" | "rdma_create_srq", libc::ENOMEM) => {
            "the device has no more SRQs, or no more memory may be locked (`ulimit -l`)"
        }
        ("ibv_modify_srq", libc::EINVAL) => {
            "the device resizes no SRQ (no IBV_DEVICE_SRQ_RESIZE), or more WRs are posted or a higher limit is armed than it would hold"
        }
        ("ibv_create_flow", libc::ENOMEM) => {
            "mlx5 answers so for a priority above 15 and when its flow tables are full"
        }
        ("ibv_create_flow", libc::EEXIST) => {
            "a rule with the same match and another action exists on this port"
        }
        _ => return None,
    })
}

/// Reports a destroy that failed. It cannot: every child holds its parents. If it does, it is a bug worth a line.
pub(crate) fn destroyed(verb: &'static str, ret: i32) {
    if ret != 0 {
        tracing::error!(verb, errno = ret, "{}", io::Error::from_raw_os_error(ret));
    }
}
