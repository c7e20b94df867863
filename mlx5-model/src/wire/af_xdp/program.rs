//! The XDP program that hands an interface's frames to the wire's sockets, its map of sockets, and its place on the
//! interface.
//!
//! The program is five instructions, so it stands here as such, and bpf(2) takes it by itself. The crates that were
//! looked at do more and fit worse: aya loads programs from object files, which a compiler for BPF would have to make;
//! xsk-rs and Debian's libxdp attach libxdp's dispatcher, which stays on the interface when its process is killed.
//!
//! Imports nothing of the model. Numbers and layouts are from linux/bpf.h and linux/if_link.h; the kernel takes any
//! prefix of `union bpf_attr` and zeroes behind it. Invariant: the program is on the interface as long as the value
//! lives, and no longer, since nothing but this process's descriptor holds the link.

#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// enum bpf_cmd.
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_DETACH: libc::c_int = 34;
/// enum bpf_map_type, enum bpf_prog_type, enum bpf_attach_type.
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
/// The program can take frames of several buffers (Linux 5.18).
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// What bpf(2) takes for `BPF_MAP_CREATE`.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

/// For `BPF_MAP_UPDATE_ELEM`.
#[repr(C)]
struct MapUpdate {
    map_fd: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// For `BPF_PROG_LOAD`.
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

/// For `BPF_LINK_CREATE`.
#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// For `BPF_LINK_DETACH`.
#[repr(C)]
struct LinkDetach {
    link_fd: u32,
}

/// A step towards the program, and why it failed.
pub(super) type Failed = (&'static str, io::Error);

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attached {
    Native,
    Skb,
}

impl Attached {
    fn flag(self) -> u32 {
        match self {
            Attached::Native => XDP_FLAGS_DRV_MODE,
            Attached::Skb => XDP_FLAGS_SKB_MODE,
        }
    }
}

/// A program that is loaded and on no interface yet.
pub(super) struct Program {
    map: OwnedFd,
    program: OwnedFd,
}

/// Its place on an interface, which it leaves with the last descriptor of the link: at the end of its process at the
/// latest, however that ends.
pub(super) struct Link(OwnedFd);

impl Drop for Link {
    /// Closing does the same, but not while a child that is about to start another program has a copy.
    fn drop(&mut self) {
        let link_fd = self.0.as_raw_fd() as u32;
        let _ = bpf(BPF_LINK_DETACH, &LinkDetach { link_fd });
    }
}

impl Program {
    /// Loads it for an interface with so many receive queues.
    pub(super) fn load(queues: u32) -> Result<Program, Failed> {
        let map = create(
            BPF_MAP_CREATE,
            &MapCreate {
                map_type: BPF_MAP_TYPE_XSKMAP,
                key_size: size_of::<u32>() as u32,
                value_size: size_of::<u32>() as u32,
                max_entries: queues,
            },
        );
        let map = map.map_err(|e| ("make a map of sockets", e))?;
        let code = instructions(map.as_raw_fd());
        let load = |prog_flags| {
            create(
                BPF_PROG_LOAD,
                &ProgLoad {
                    prog_type: BPF_PROG_TYPE_XDP,
                    insn_cnt: code.len() as u32,
                    insns: code.as_ptr() as u64,
                    license: c"MIT OR Apache-2.0".as_ptr() as u64,
                    log_level: 0,
                    log_size: 0,
                    log_buf: 0,
                    kern_version: 0,
                    prog_flags,
                    prog_name: *b"mlx5_model\0\0\0\0\0\0",
                },
            )
        };
        let program = match load(BPF_F_XDP_HAS_FRAGS) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => load(0),
            other => other,
        };
        let program = program.map_err(|e| ("load the XDP program", e))?;
        Ok(Program { map, program })
    }

    /// Has the frames of a receive queue go to an AF_XDP socket that is bound to that queue.
    pub(super) fn direct(&self, queue: u32, socket: RawFd) -> io::Result<()> {
        let update = MapUpdate {
            map_fd: self.map.as_raw_fd() as u32,
            reserved: 0,
            key: &raw const queue as u64,
            value: &raw const socket as u64,
            flags: 0,
        };
        bpf(BPF_MAP_UPDATE_ELEM, &update).map(drop)
    }

    /// Puts it on an interface.
    pub(super) fn attach(&self, index: libc::c_int, place: Attached) -> io::Result<Link> {
        let link = create(
            BPF_LINK_CREATE,
            &LinkCreate {
                prog_fd: self.program.as_raw_fd() as u32,
                target_ifindex: index.cast_unsigned(),
                attach_type: BPF_XDP,
                flags: place.flag(),
            },
        )?;
        Ok(Link(link))
    }
}

/// An instruction: opcode, destination and source registers, offset, immediate, as linux/bpf.h lays out struct bpf_insn.
const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> u64 {
    let registers = if cfg!(target_endian = "little") {
        from << 4 | to
    } else {
        to << 4 | from
    };
    let [low, high] = offset.to_ne_bytes();
    let [a, b, c, d] = immediate.to_ne_bytes();
    u64::from_ne_bytes([code, registers, low, high, a, b, c, d])
}

/// The program: a frame goes to the socket of its receive queue, and to the kernel if that queue has none.
fn instructions(map: RawFd) -> [u64; 6] {
    /// BPF_LDX | BPF_MEM | BPF_W, BPF_LD | BPF_IMM | BPF_DW, BPF_ALU64 | BPF_MOV | BPF_K, BPF_JMP | BPF_CALL and
    /// BPF_JMP | BPF_EXIT.
    const LOAD: u8 = 0x61;
    const LOAD_64: u8 = 0x18;
    const MOVE: u8 = 0xb7;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    /// The immediate is the descriptor of a map, and the register gets the map.
    const BPF_PSEUDO_MAP_FD: u8 = 1;
    /// Offset of `rx_queue_index` in struct xdp_md, which register 1 points to at the start.
    const RX_QUEUE_INDEX: i16 = 16;
    const XDP_PASS: i32 = 2;
    /// BPF_FUNC_redirect_map: long (map, key, flags). The low bits of the flags are what it returns when the map has
    /// nothing under the key (Linux 5.3).
    const REDIRECT_MAP: i32 = 51;
    [
        // r2 = the queue
        instruction(LOAD, 2, 1, RX_QUEUE_INDEX, 0),
        // r1 = the map, in two words
        instruction(LOAD_64, 1, BPF_PSEUDO_MAP_FD, 0, map),
        instruction(0, 0, 0, 0, 0),
        // r3 = what else becomes of the frame
        instruction(MOVE, 3, 0, 0, XDP_PASS),
        // r0 = redirect_map(r1, r2, r3)
        instruction(CALL, 0, 0, 0, REDIRECT_MAP),
        // return r0
        instruction(EXIT, 0, 0, 0, 0),
    ]
}

/// bpf(2) for a command whose answer is a descriptor.
fn create<T>(command: libc::c_int, attr: &T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attr)?;
    // SAFETY: the kernel has just opened it, and closes it on exec by itself.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bpf<T>(command: libc::c_int, attr: &T) -> io::Result<RawFd> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `attr`, and what its pointers lead to, which the callers keep
    // until the call has returned.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As a compiler for BPF lays it out on a little-endian machine.
    #[cfg(target_endian = "little")]
    #[test]
    fn the_program_is_laid_out_as_the_kernel_reads_it() {
        let bytes: Vec<u8> = instructions(0x0102)
            .iter()
            .flat_map(|it| it.to_ne_bytes())
            .collect();
        let expected = [
            [0x61, 0x12, 0x10, 0, 0, 0, 0, 0],
            [0x18, 0x11, 0, 0, 0x02, 0x01, 0, 0],
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0xb7, 0x03, 0, 0, 2, 0, 0, 0],
            [0x85, 0, 0, 0, 51, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat());
    }
}
