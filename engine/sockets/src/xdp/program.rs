//! XDP program of a capture: it stamps each frame and passes it to the AF_XDP socket of its queue.
//!
//! The program has few instructions, so it is written here instruction by instruction, and loaded
//! with bpf(2) alone. Numbers and layouts are from linux/bpf.h and linux/if_link.h.
//!
//! Invariant: the program is on the interface as long as its [`ProgramLink`] exists. Only this
//! process has the link, so the kernel removes the program when the process ends for any reason.
#![allow(unsafe_code)]

use super::{
    bpf::{BpfCommand, LinkAttr, LinkDetachment, MapAttr, MapElement, ProgramAttr},
    mapping::KernelMapping,
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::atomic::Ordering,
};

/// Place at which the kernel runs the XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpHook {
    /// The program runs in the driver, before the kernel makes a packet of the frame.
    Native,
    /// The program runs in the kernel's network stack, which every driver supports.
    Generic,
}

/// Loaded XDP program with its maps.
#[derive(Debug)]
pub(super) struct SocketProgram {
    /// BPF map of AF_XDP sockets by queue.
    sockets: OwnedFd,
    /// Value of the BPF map with the gate: the program passes frames to the sockets while the word
    /// at the start is not 0.
    control: KernelMapping,
    program: OwnedFd,
}

/// Attachment of the XDP program to an interface. The kernel ends it with the last descriptor.
#[derive(Debug)]
pub(super) struct ProgramLink(OwnedFd);

impl Drop for ProgramLink {
    /// Detaches the program. Closing the descriptor would do the same, but not while a child that is
    /// about to exec has a copy.
    fn drop(&mut self) {
        let link_fd = self.0.as_raw_fd().cast_unsigned();
        // SAFETY: the argument has no addresses.
        let _ = unsafe { LinkDetachment { link_fd }.run() };
    }
}

/// Failure to load the program, with the step that failed.
pub(super) type LoadFailure = (&'static str, io::Error);

impl SocketProgram {
    /// Loads the program for the first `queues` receive queues of an interface, with a closed gate.
    pub(super) fn load(queues: u32) -> Result<Self, LoadFailure> {
        /// `BPF_MAP_TYPE_ARRAY` and `BPF_MAP_TYPE_XSKMAP` of `enum bpf_map_type`.
        const ARRAY: u32 = 2;
        const XSKMAP: u32 = 17;
        /// Flag of a map whose values can be mapped into a process (Linux 5.5).
        const BPF_F_MMAPABLE: u32 = 1 << 10;
        /// `BPF_PROG_TYPE_XDP` of `enum bpf_prog_type`.
        const XDP: u32 = 6;
        let word = size_of::<u32>() as u32;
        let sockets = MapAttr {
            map_type: XSKMAP,
            key_size: word,
            value_size: word,
            max_entries: queues,
            map_flags: 0,
        };
        let sockets = sockets
            .create()
            .map_err(|e| ("create the BPF map of AF_XDP sockets", e))?;
        let gate = MapAttr {
            map_type: ARRAY,
            key_size: word,
            value_size: 2 * word,
            max_entries: 1,
            map_flags: BPF_F_MMAPABLE,
        };
        let gate = gate
            .create()
            .map_err(|e| ("create the BPF map of the gate", e))?;
        let control = KernelMapping::map(gate.as_fd(), 0, 2 * size_of::<u32>())
            .map_err(|e| ("map the BPF map of the gate", e))?;
        let steps = instructions(sockets.as_raw_fd(), gate.as_raw_fd(), queues);
        let attr = ProgramAttr {
            prog_type: XDP,
            insn_cnt: steps.len() as u32,
            insns: steps.as_ptr() as u64,
            license: c"MIT OR Apache-2.0".as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log_buf: 0,
            kern_version: 0,
            prog_flags: 0,
            prog_name: *b"wqcap\0\0\0\0\0\0\0\0\0\0\0",
        };
        // SAFETY: the instructions and the licence outlive the call, which returns a descriptor.
        let program = unsafe { attr.open() }.map_err(|e| ("load the XDP program", e))?;
        Ok(Self {
            sockets,
            control,
            program,
        })
    }

    /// Directs the frames of a receive queue to an AF_XDP socket that is bound to the queue.
    pub(super) fn direct(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let socket = socket.as_raw_fd();
        let element = MapElement {
            map_fd: self.sockets.as_raw_fd().cast_unsigned(),
            padding: 0,
            key: &raw const queue as u64,
            value: &raw const socket as u64,
            flags: 0,
        };
        // SAFETY: the command reads a key and a value of a word each, which outlive the call.
        unsafe { element.run() }.map(drop)
    }

    /// Opens or closes the gate of all queues.
    pub(super) fn set_gate(&self, is_open: bool) {
        self.control
            .word(0)
            .store(is_open.into(), Ordering::Release);
    }

    /// Attaches the program to the interface of this index.
    pub(super) fn attach(&self, index: i32, hook: XdpHook) -> io::Result<ProgramLink> {
        /// `BPF_XDP` of `enum bpf_attach_type`.
        const BPF_XDP: u32 = 37;
        const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
        const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
        let attr = LinkAttr {
            prog_fd: self.program.as_raw_fd().cast_unsigned(),
            target_ifindex: index.cast_unsigned(),
            attach_type: BPF_XDP,
            flags: match hook {
                XdpHook::Native => XDP_FLAGS_DRV_MODE,
                XdpHook::Generic => XDP_FLAGS_SKB_MODE,
            },
        };
        // SAFETY: the argument has no addresses, and the command returns a descriptor.
        unsafe { attr.open() }.map(ProgramLink)
    }
}

/// Bytes of the program's stamp in front of a frame: the time of the monotonic clock, and this time
/// XOR [`MARK`]. If the driver has no room for the stamp, other bytes are there.
pub(super) const STAMP_BYTES: usize = 16;
const MARK: u64 = 0x7771_6361_7020_3a29;

/// Returns the time in the bytes in front of a frame; `None`: they are not a stamp.
#[inline]
pub(super) fn stamp(bytes: &[u8; STAMP_BYTES]) -> Option<u64> {
    let (time, mixed) = bytes.split_at(STAMP_BYTES / 2);
    let word = |it: &[u8]| it.first_chunk().copied().map(u64::from_ne_bytes);
    let (time, mixed) = (word(time)?, word(mixed)?);
    (time ^ mixed == MARK).then_some(time)
}

/// Encodes an instruction as opcode, destination and source register, offset and immediate
/// (`struct bpf_insn`).
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

/// Builds the program. While the gate is open, a frame of the first `queues` receive queues goes to
/// the socket of its queue, with the time in front. Any other frame goes to the kernel.
const fn instructions(sockets: RawFd, gate: RawFd, queues: u32) -> [u64; 28] {
    // Opcodes of loads and stores: BPF_LDX | BPF_MEM | BPF_W, BPF_STX | BPF_MEM | BPF_DW,
    // BPF_LD | BPF_IMM | BPF_DW.
    const LOAD: u8 = 0x61;
    const STORE_64: u8 = 0x7b;
    const LOAD_64: u8 = 0x18;
    // Opcodes of arithmetic: BPF_ALU64 | BPF_MOV | BPF_K, BPF_ADD | BPF_K, BPF_MOV | BPF_X,
    // BPF_XOR | BPF_X.
    const SET: u8 = 0xb7;
    const ADD: u8 = 0x07;
    const COPY: u8 = 0xbf;
    const XOR: u8 = 0xaf;
    // Opcodes of jumps: BPF_JMP | BPF_JEQ | BPF_K, BPF_JMP | BPF_JGE | BPF_K,
    // BPF_JMP | BPF_JNE | BPF_K, BPF_JMP | BPF_JGT | BPF_X, BPF_JMP | BPF_CALL, BPF_JMP | BPF_EXIT.
    const IF_EQUAL: u8 = 0x15;
    const IF_NOT_BELOW: u8 = 0x35;
    const IF_NOT: u8 = 0x55;
    const IF_ABOVE: u8 = 0x2d;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    // Source registers of LOAD_64: the immediate is the descriptor of a map, and the destination
    // register gets the map, or the address of its first value.
    const BPF_PSEUDO_MAP_FD: u8 = 1;
    const BPF_PSEUDO_MAP_VALUE: u8 = 2;
    // Offsets in struct xdp_md, to which register 1 points at the start.
    const DATA: i16 = 0;
    const DATA_META: i16 = 8;
    const RX_QUEUE_INDEX: i16 = 16;
    const XDP_PASS: i32 = 2;
    // Helper functions of the kernel. BPF_FUNC_ktime_get_ns: u64 (), for programs of any licence
    // since Linux 5.8. BPF_FUNC_xdp_adjust_meta: long (context, change). BPF_FUNC_redirect_map:
    // long (map, key, flags); the low bits of the flags are the result if the map has no entry for
    // the key (Linux 5.3).
    const KTIME_GET_NS: i32 = 5;
    const REDIRECT_MAP: i32 = 51;
    const XDP_ADJUST_META: i32 = 54;
    const LEN: i32 = STAMP_BYTES as i32;
    [
        // r6 = the context; r0 = the result for a frame that is not captured
        instruction(COPY, 6, 1, 0, 0),
        instruction(SET, 0, 0, 0, XDP_PASS),
        // Jump to the end if the gate is closed
        instruction(LOAD_64, 2, BPF_PSEUDO_MAP_VALUE, 0, gate),
        instruction(0, 0, 0, 0, 0),
        instruction(LOAD, 2, 2, 0, 0),
        instruction(IF_EQUAL, 2, 0, 21, 0),
        // r8 = the queue; jump to the end if the capture does not have it
        instruction(LOAD, 8, 6, RX_QUEUE_INDEX, 0),
        instruction(IF_NOT_BELOW, 8, 0, 19, queues.cast_signed()),
        // Get room in front of the frame; skip the time if there is none
        instruction(SET, 2, 0, 0, -LEN),
        instruction(CALL, 0, 0, 0, XDP_ADJUST_META),
        instruction(IF_NOT, 0, 0, 11, 0),
        // r7 = the start of the room; skip the time if the frame does not begin behind it, a check
        // that the kernel requires
        instruction(LOAD, 7, 6, DATA_META, 0),
        instruction(LOAD, 1, 6, DATA, 0),
        instruction(COPY, 2, 7, 0, 0),
        instruction(ADD, 2, 0, 0, LEN),
        instruction(IF_ABOVE, 2, 1, 6, 0),
        // Store the time, and the time XOR the mark
        instruction(CALL, 0, 0, 0, KTIME_GET_NS),
        instruction(STORE_64, 7, 0, 0, 0),
        instruction(LOAD_64, 1, 0, 0, MARK as i32),
        instruction(0, 0, 0, 0, (MARK >> 32) as i32),
        instruction(XOR, 1, 0, 0, 0),
        instruction(STORE_64, 7, 1, 8, 0),
        // return redirect_map(the map in two words, the queue, pass)
        instruction(LOAD_64, 1, BPF_PSEUDO_MAP_FD, 0, sockets),
        instruction(0, 0, 0, 0, 0),
        instruction(COPY, 2, 8, 0, 0),
        instruction(SET, 3, 0, 0, XDP_PASS),
        instruction(CALL, 0, 0, 0, REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares instructions with the bytes that a BPF compiler emits on a little-endian machine.
    #[cfg(target_endian = "little")]
    #[test]
    fn the_program_is_laid_out_as_the_kernel_reads_it() {
        let code = instructions(0x0102, 0x0103, 3);
        let bytes = |at: usize| code[at].to_ne_bytes();
        assert_eq!(bytes(0), [0xbf, 0x16, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(2), [0x18, 0x22, 0, 0, 0x03, 0x01, 0, 0]);
        assert_eq!(bytes(6), [0x61, 0x68, 0x10, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(8), [0xb7, 0x02, 0, 0, 0xf0, 0xff, 0xff, 0xff]);
        assert_eq!(bytes(21), [0x7b, 0x17, 8, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(22), [0x18, 0x11, 0, 0, 0x02, 0x01, 0, 0]);
        assert_eq!(bytes(26), [0x85, 0, 0, 0, 51, 0, 0, 0]);
        // Targets of the jumps: the end, and the redirection.
        let to = |at: usize| at + 1 + usize::from(bytes(at)[2]);
        assert_eq!((to(5), to(7)), (code.len() - 1, code.len() - 1));
        assert_eq!((to(10), to(15)), (22, 22));
    }

    #[test]
    fn bytes_without_the_mark_are_not_a_stamp() {
        let mut bytes = [0; STAMP_BYTES];
        assert_eq!(stamp(&bytes), None);
        bytes[..8].copy_from_slice(&77u64.to_ne_bytes());
        bytes[8..].copy_from_slice(&(77 ^ MARK).to_ne_bytes());
        assert_eq!(stamp(&bytes), Some(77));
        bytes[8] ^= 1;
        assert_eq!(stamp(&bytes), None);
    }
}
