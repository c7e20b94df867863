//! Answers to `ioctl` for a virtual netdev: whether it is up, and the commands of `ethtool`.
//!
//! Imports `counters`, `ethtool` and the addresses of `sysfs`. An interface that is taken down
//! takes its port's link down, as the driver does (`mlx5e_close` of
//! drivers/net/ethernet/mellanox/mlx5/core/en_main.c).

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_short, c_void};
use std::ptr::NonNull;

use crate::device::counters;
use crate::process::Errno;
use crate::sysfs::address::virtual_netdev;

use super::ethtool;
use super::overlay::Overlay;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const OTHER_FLAGS: c_int = libc::IFF_BROADCAST | libc::IFF_RUNNING | libc::IFF_MULTICAST;

/// Decoded ioctl of the program on the netdev of a port of the model.
pub struct NetdevRequest {
    device: usize,
    port: u8,
    request: libc::c_ulong,
    arg: NonNull<libc::ifreq>,
}

/// Decodes an ioctl on a netdev of the model; returns `None` if the kernel has to handle it.
///
/// # Safety
/// `arg` is the argument that the program passes to `ioctl` with `request`.
pub unsafe fn decode(request: libc::c_ulong, arg: *mut c_void) -> Option<NetdevRequest> {
    if !matches!(
        request,
        SIOCETHTOOL | libc::SIOCGIFFLAGS | libc::SIOCSIFFLAGS
    ) || Overlay::get().is_none()
    {
        return None;
    }
    let arg = NonNull::new(arg.cast::<libc::ifreq>())?;
    // SAFETY: these requests take a `struct ifreq`, whose name is terminated by zero.
    let name = unsafe { CStr::from_ptr(arg.as_ref().ifr_name.as_ptr()) };
    let (device, port) = virtual_netdev(name.to_str().ok()?)?;
    Some(NetdevRequest {
        device,
        port,
        request,
        arg,
    })
}

impl NetdevRequest {
    /// Executes an ioctl on a netdev of the model and writes its result to the program's `ifreq`.
    ///
    /// # Safety
    /// The contract of [`decode`] holds; for `SIOCETHTOOL` the structure has the room that its
    /// counts state.
    pub unsafe fn execute(mut self) -> Result<c_int, Errno> {
        // SAFETY: the program owns the structure, by the function's contract.
        let arg = unsafe { self.arg.as_mut() };
        let counters = counters::port(self.device, self.port);
        match self.request {
            libc::SIOCGIFFLAGS => {
                let up = if counters.is_taken_down() {
                    0
                } else {
                    libc::IFF_UP
                };
                arg.ifr_ifru.ifru_flags = (up | OTHER_FLAGS) as c_short;
                Ok(0)
            }
            libc::SIOCSIFFLAGS => {
                ethtool::require_net_admin()?;
                // SAFETY: this request sets that member of the union.
                let flags = c_int::from(unsafe { arg.ifr_ifru.ifru_flags });
                counters.set_netdev_down(flags & libc::IFF_UP == 0);
                Ok(0)
            }
            // SAFETY: SIOCETHTOOL takes this member; the function's contract covers the structure
            // behind it.
            _ => unsafe {
                let words = arg.ifr_ifru.ifru_data;
                ethtool::answer(self.device, self.port, words.cast())
            },
        }
    }
}
