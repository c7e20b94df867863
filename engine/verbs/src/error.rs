//! Errors of verbs and of memory allocation.

use crate::library::LibraryError;
use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd},
};
use wqcap_core::error::ResourceError;

/// Error of this crate: a failed verb with its object and errno, an unknown RDMA device or address,
/// or a failed memory allocation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// Error of a failed verb, with its object and errno.
    #[error("{verb}({object}): {source}{}", hint(verb, source).map(|h| format!("; {h}")).unwrap_or_default())]
    Verb {
        /// Name of the verb that failed, for example `ibv_create_wq`.
        verb: &'static str,
        /// Object that the verb was called for: device, queue or flow rule.
        object: String,
        /// Errno that the verb returned.
        source: io::Error,
    },
    /// Name of a requested device that no RDMA device has.
    #[error("there is no RDMA device {0}; `rdma link` lists the devices of this machine")]
    NoDevice(String),
    /// IP address that does not belong to exactly one RDMA device.
    #[error(
        "the address {0} does not belong to exactly one RDMA device; `rdma link` lists devices with their interfaces"
    )]
    NoDeviceAt(SocketAddr),
    /// Error of a library of rdma-core that cannot be loaded.
    #[error(transparent)]
    Library(#[from] &'static LibraryError),
    /// Error of memory that the operating system refuses.
    #[error(transparent)]
    Memory(#[from] ResourceError),
}

impl VerbsError {
    /// Creates the error of `verb` on `object`, which returned `errno`.
    #[must_use]
    pub fn from_errno(verb: &'static str, object: impl Into<String>, errno: i32) -> Self {
        Self::Verb {
            verb,
            object: object.into(),
            source: io::Error::from_raw_os_error(errno),
        }
    }

    /// Creates the error of `verb` on `object` from the calling thread's errno.
    #[must_use]
    pub fn last_os_error(verb: &'static str, object: impl Into<String>) -> Self {
        let errno = io::Error::last_os_error().raw_os_error();
        Self::from_errno(verb, object, errno.unwrap_or(libc::EIO))
    }

    /// Returns the meaning of a verb's errno on mlx5, where it differs from the errno's text, and
    /// the remedy.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Verb { verb, source, .. } => hint(verb, source),
            _ => None,
        }
    }
}

/// Returns the object `raw` that a verb created, or the error with the calling thread's errno if
/// `raw` is null.
pub(crate) fn check_created<T>(
    raw: *mut T,
    verb: &'static str,
    object: impl Into<String>,
) -> Result<*mut T, VerbsError> {
    if raw.is_null() {
        return Err(VerbsError::last_os_error(verb, object));
    }
    Ok(raw)
}

/// Converts the return value of a verb that returns 0 or its errno to a result.
pub(crate) fn check_errno(
    errno: i32,
    verb: &'static str,
    object: impl FnOnce() -> String,
) -> Result<(), VerbsError> {
    match errno {
        0 => Ok(()),
        errno => Err(VerbsError::from_errno(verb, object(), errno)),
    }
}

/// Converts the return value of a call that returns 0, or else sets the calling thread's errno, to
/// a result.
pub(crate) fn check_ret(
    ret: i32,
    verb: &'static str,
    object: impl Into<String>,
) -> Result<(), VerbsError> {
    match ret {
        0 => Ok(()),
        _ => Err(VerbsError::last_os_error(verb, object)),
    }
}

/// Makes reads from a file descriptor non-blocking.
pub(crate) fn set_nonblocking(of: &impl AsFd, object: &str) -> Result<(), VerbsError> {
    let fd = of.as_fd().as_raw_fd();
    // SAFETY: fcntl on a descriptor that is borrowed for the call.
    let ret = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    check_ret(ret, "fcntl", object)
}

fn hint(verb: &str, errno: &io::Error) -> Option<&'static str> {
    Some(match (verb, errno.raw_os_error()?) {
        ("ibv_create_qp_ex" | "ibv_create_qp" | "ibv_create_flow", libc::EPERM) => {
            "raw packet QPs and flow rules need CAP_NET_RAW: run as root, or `setcap cap_net_raw+ep` on the binary"
        }
        ("ibv_create_wq" | "mlx5dv_create_wq", libc::EPERM) => {
            "delay drop needs CAP_SYS_RAWIO: run as root, or `setcap cap_net_raw,cap_sys_rawio+ep` on the binary"
        }
        ("ibv_create_wq" | "mlx5dv_create_wq", libc::EINVAL) => {
            "the device's limit of WRs or scatter entries per WQ is exceeded: request fewer"
        }
        ("ibv_create_qp", libc::EINVAL) => {
            "the device's limit of WRs or scatter entries per QP is exceeded: request fewer"
        }
        (
            "ibv_create_wq"
            | "mlx5dv_create_wq"
            | "ibv_create_rwq_ind_table"
            | "ibv_create_qp"
            | "ibv_create_qp_ex"
            | "ibv_create_flow",
            libc::EOPNOTSUPP,
        ) => "the device or its driver does not support this operation",
        ("ibv_reg_mr", libc::ENOMEM) => {
            "the memory cannot be locked: raise `ulimit -l` (LimitMEMLOCK=) or grant CAP_IPC_LOCK"
        }
        ("rdma_create_event_channel", libc::ENODEV | libc::ENOENT) => {
            "the kernel's RDMA connection manager is not loaded: run `modprobe rdma_ucm`"
        }
        ("rdma_bind_addr" | "rdma_resolve_addr", libc::ENODEV | libc::EADDRNOTAVAIL) => {
            "no RDMA device has this address or a route to it; `rdma link` lists devices with their interfaces"
        }
        ("ibv_create_srq" | "rdma_create_srq", libc::EINVAL) => {
            "the number of WRs exceeds the device's limit (max_srq_wr in `ibv_devinfo -v`)"
        }
        ("ibv_create_srq" | "rdma_create_srq", libc::ENOMEM) => {
            "all SRQs of the device are in use, or the limit of locked memory is reached (`ulimit -l`)"
        }
        ("ibv_modify_srq", libc::EINVAL) => {
            "the device cannot resize SRQs (no IBV_DEVICE_SRQ_RESIZE), or the size is below the number of posted WRs or the armed limit"
        }
        ("ibv_create_flow", libc::ENOMEM) => {
            "on mlx5, the priority is above 15 or the flow tables are full"
        }
        ("ibv_create_flow", libc::EBUSY) => {
            "another program has the device's only sniffer rule: end it"
        }
        ("ibv_create_flow", libc::EEXIST) => {
            "a rule with the same match and another action exists on this port"
        }
        _ => return None,
    })
}

/// Logs that a verbs object could not be destroyed. It indicates a bug: every child holds its
/// parents, so no object in use is destroyed.
pub(crate) fn log_destroy_error(verb: &'static str, ret: i32) {
    if ret != 0 {
        tracing::error!(
            verb,
            errno = ret,
            "cannot destroy an RDMA object: {}",
            io::Error::from_raw_os_error(ret)
        );
    }
}
