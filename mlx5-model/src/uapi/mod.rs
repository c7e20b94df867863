//! The kernel's interface: `/dev/infiniband/uverbs<N>` with its commands, which are decoded,
//! checked and executed on a device.
//!
//! Imports `device` and the modules below it. `write` and `ioctl` check the framing (`request`,
//! `attrs`) and call the commands. These make the checks of the kernel and of the mlx5 driver.
//!
//! Invariants: a command is checked as the kernel checks it before it has any effect. Structs are
//! copied out of the bytes whatever their alignment, and the shorter structs of older programs are
//! zero-extended. A response never exceeds the buffer of the command.

mod attrs;
mod commands;
mod file;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod ioctl;
mod request;
mod trace;
mod write;

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::device::nic::{Device, SetPresence};
use crate::process::descriptors::File;
use crate::process::{Errno, MapRequest};

use file::UverbsFile;

/// Opens `/dev/infiniband/uverbs<index>`. Fails with `ENODEV` if the device does not exist or its
/// driver restarts.
pub fn open(index: usize, set_presence: SetPresence) -> Result<Arc<dyn File>, Errno> {
    let device = Device::get(index, set_presence)?;
    Ok(Arc::new(UverbsFile::open(device)?))
}

impl File for UverbsFile {
    fn read(&self, _fd: RawFd, _buf: &mut [u8]) -> Result<usize, Errno> {
        Err(libc::EINVAL)
    }

    fn write(&self, _fd: RawFd, buf: &[u8]) -> Result<usize, Errno> {
        write::write(self, buf)
    }

    fn ioctl(&self, _fd: RawFd, request: c_ulong, arg: *mut c_void) -> Result<c_int, Errno> {
        ioctl::ioctl(self, request, arg as u64).map(|()| 0)
    }

    fn mmap(&self, _fd: RawFd, request: MapRequest) -> Result<*mut c_void, Errno> {
        self.map(request)
    }

    fn close(&self, _fd: RawFd) {
        self.close_context();
    }
}
