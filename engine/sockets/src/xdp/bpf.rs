//! System call bpf(2): the commands that the XDP program needs. Numbers and layouts are from
//! linux/bpf.h. The kernel accepts any prefix of `union bpf_attr` and takes the rest as zeroes
//! (`__sys_bpf` of kernel/bpf/syscall.c). Here the rest is in memory, too: tools that check system
//! calls read the whole union.
#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_long},
    io,
    os::fd::{FromRawFd, OwnedFd, RawFd},
    ptr,
};

/// Number of 64-bit words of memory for `union bpf_attr`, of which any command uses the beginning.
const WORDS: usize = 24;

/// Command of bpf(2) with the argument that belongs to it.
///
/// # Safety
/// `COMMAND` reads `Self` as its part of `union bpf_attr`, and `Self` has no padding.
pub(super) unsafe trait BpfCommand {
    /// Number of the command of bpf(2) (`enum bpf_cmd`).
    const COMMAND: c_int;

    /// Runs the command, and returns its result.
    ///
    /// # Safety
    /// The memory at the argument's addresses is valid for what the command reads and writes there.
    unsafe fn run(&self) -> io::Result<RawFd>
    where
        Self: Sized,
    {
        const { assert!(size_of::<Self>() <= size_of::<[u64; WORDS]>()) }
        let mut whole = [0_u64; WORDS];
        // SAFETY: both are as long as `Self` at least, which by the trait has no padding.
        unsafe { ptr::copy_nonoverlapping(self, whole.as_mut_ptr().cast(), 1) };
        // SAFETY: by the trait, the kernel reads `size_of::<Self>()` bytes of the argument; the
        // caller vouches for the memory at its addresses.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                c_long::from(Self::COMMAND),
                whole.as_ptr(),
                size_of::<Self>(),
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(result as RawFd)
    }

    /// Runs a command that returns a new descriptor.
    ///
    /// # Safety
    /// As for [`BpfCommand::run`]. The command returns a descriptor.
    unsafe fn open(&self) -> io::Result<OwnedFd>
    where
        Self: Sized,
    {
        // SAFETY: as the caller vouches.
        let fd = unsafe { self.run() }?;
        // SAFETY: the kernel has just opened the descriptor, which it closes on exec.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Argument of `BPF_MAP_CREATE`, which creates a BPF map.
#[repr(C)]
pub(super) struct MapAttr {
    pub(super) map_type: u32,
    pub(super) key_size: u32,
    pub(super) value_size: u32,
    pub(super) max_entries: u32,
    pub(super) map_flags: u32,
    /// Descriptor of a map like those that a map of maps holds; else 0.
    pub(super) inner_map_fd: u32,
}

// SAFETY: the layout of linux/bpf.h, six words of 32 bits.
unsafe impl BpfCommand for MapAttr {
    const COMMAND: c_int = 0;
}

impl MapAttr {
    /// Creates the BPF map that this argument describes.
    pub(super) fn create(&self) -> io::Result<OwnedFd> {
        // SAFETY: the argument has no addresses, and the command returns a descriptor.
        unsafe { self.open() }
    }
}

/// Argument of `BPF_MAP_UPDATE_ELEM`, which stores an entry in a BPF map.
#[repr(C)]
pub(super) struct MapElement {
    pub(super) map_fd: u32,
    pub(super) padding: u32,
    pub(super) key: u64,
    pub(super) value: u64,
    pub(super) flags: u64,
}

// SAFETY: the layout of linux/bpf.h, with its padding as a field.
unsafe impl BpfCommand for MapElement {
    const COMMAND: c_int = 2;
}

/// Argument of `BPF_PROG_LOAD`, which loads a BPF program.
#[repr(C)]
pub(super) struct ProgramAttr {
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

// SAFETY: the layout of linux/bpf.h, without padding.
unsafe impl BpfCommand for ProgramAttr {
    const COMMAND: c_int = 5;
}

/// Argument of `BPF_LINK_CREATE`, which attaches a BPF program.
#[repr(C)]
pub(super) struct LinkAttr {
    pub(super) prog_fd: u32,
    pub(super) target_ifindex: u32,
    pub(super) attach_type: u32,
    pub(super) flags: u32,
}

// SAFETY: the layout of linux/bpf.h, four words of 32 bits.
unsafe impl BpfCommand for LinkAttr {
    const COMMAND: c_int = 28;
}

/// Argument of `BPF_LINK_DETACH`, which detaches a BPF program.
#[repr(C)]
pub(super) struct LinkDetachment {
    pub(super) link_fd: u32,
}

// SAFETY: the layout of linux/bpf.h, one word of 32 bits.
unsafe impl BpfCommand for LinkDetachment {
    const COMMAND: c_int = 34;
}
