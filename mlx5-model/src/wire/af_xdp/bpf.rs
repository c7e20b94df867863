//! System call bpf(2): the commands that the wire needs.
//!
//! Imports nothing. Numbers and layouts are from linux/bpf.h. The kernel accepts any prefix of
//! `union bpf_attr` and takes the rest as zeroes.

#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

// Commands of bpf(2), enum bpf_cmd.
pub(super) const BPF_MAP_CREATE: libc::c_int = 0;
pub(super) const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
pub(super) const BPF_PROG_LOAD: libc::c_int = 5;
pub(super) const BPF_LINK_CREATE: libc::c_int = 28;
pub(super) const BPF_LINK_DETACH: libc::c_int = 34;
/// Flag of a BPF map whose values can be mapped into a process (Linux 5.5).
pub(super) const BPF_F_MMAPABLE: u32 = 1 << 10;

/// Argument of bpf(2) for `BPF_MAP_CREATE`.
#[repr(C)]
pub(super) struct MapCreate {
    pub(super) map_type: u32,
    pub(super) key_size: u32,
    pub(super) value_size: u32,
    pub(super) max_entries: u32,
    pub(super) flags: u32,
}

/// Argument of bpf(2) for `BPF_MAP_UPDATE_ELEM`.
#[repr(C)]
pub(super) struct MapUpdate {
    pub(super) map_fd: u32,
    pub(super) reserved: u32,
    pub(super) key: u64,
    pub(super) value: u64,
    pub(super) flags: u64,
}

/// Argument of bpf(2) for `BPF_PROG_LOAD`.
#[repr(C)]
pub(super) struct ProgLoad {
    pub(super) prog_type: u32,
    pub(super) insn_cnt: u32,
    pub(super) insns: u64,
    pub(super) license: u64,
    pub(super) log_level: u32,
    pub(super) log_size: u32,
    pub(super) log_buf: u64,
    pub(super) kern_version: u32,
    pub(super) prog_flags: u32,
    pub(super) prog_name: [u8; 16],
}

/// Argument of bpf(2) for `BPF_LINK_CREATE`.
#[repr(C)]
pub(super) struct LinkCreate {
    pub(super) prog_fd: u32,
    pub(super) target_ifindex: u32,
    pub(super) attach_type: u32,
    pub(super) flags: u32,
}

/// Argument of bpf(2) for `BPF_LINK_DETACH`.
#[repr(C)]
pub(super) struct LinkDetach {
    pub(super) link_fd: u32,
}

/// Failed step of loading or attaching the XDP program, such as "cannot load the XDP
/// program", and its error.
pub(super) type Failed = (&'static str, io::Error);

/// Creates a BPF map with bpf(2).
pub(super) fn create_map(map: &MapCreate) -> io::Result<OwnedFd> {
    create(BPF_MAP_CREATE, map)
}

/// Calls bpf(2) with a command that returns a descriptor.
pub(super) fn create<T>(command: libc::c_int, attr: &T) -> io::Result<OwnedFd> {
    let fd = call(command, attr)?;
    // SAFETY: the kernel has just opened the descriptor, and closes it on exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls bpf(2) with a command, and returns its result or the error of errno.
pub(super) fn call<T>(command: libc::c_int, attr: &T) -> io::Result<RawFd> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `attr` and the memory at its pointers,
    // which the callers keep until the call has returned.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            libc::c_long::from(command),
            &raw const *attr,
            size_of::<T>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as RawFd)
    }
}
