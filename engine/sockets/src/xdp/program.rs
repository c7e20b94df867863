//! XDP program of a capture: it stamps and counts each frame, and passes it to the AF_XDP socket of
//! its queue.
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
    watermark::{COUNT_SHIFT, QueueWatermark, count_at},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{Arc, atomic::Ordering},
};

/// Place at which the kernel runs the XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpHook {
    /// Place in the driver, before the kernel makes a packet of the frame.
    Native,
    /// Place in the kernel's network stack, which every driver supports.
    Generic,
}

/// Loaded XDP program with its BPF maps.
#[derive(Debug)]
pub(super) struct SocketProgram {
    /// BPF map of AF_XDP sockets by queue.
    sockets: OwnedFd,
    /// BPF map of BPF rings by queue.
    watermarks: OwnedFd,
    /// Value of the control map: the gate, and the frame counts of the queues ([`count_at`]). The
    /// program passes frames to the sockets while the word at the start is not 0.
    control: Arc<KernelMapping>,
    program: OwnedFd,
}

/// Attachment of the XDP program to an interface. The kernel ends it with the last descriptor.
#[derive(Debug)]
pub(super) struct ProgramLink(OwnedFd);

impl Drop for ProgramLink {
    /// Detaches the XDP program from its interface. Closing the descriptor would have this effect
    /// too, but not while a child that is about to exec has a copy.
    fn drop(&mut self) {
        let link_fd = self.0.as_raw_fd().cast_unsigned();
        // SAFETY: the argument has no addresses.
        let _ = unsafe { LinkDetachment { link_fd }.run() };
    }
}

/// Failure to load the XDP program: the step that failed, and its error.
pub(super) type LoadFailure = (&'static str, io::Error);

impl SocketProgram {
    /// Loads the XDP program for the first `queues` receive queues of an interface, with a closed
    /// gate. A queue reaches its watermark with every Nth frame, where N is `every`, a power of
    /// two.
    pub(super) fn load(queues: u32, every: u32) -> Result<Self, LoadFailure> {
        /// `BPF_MAP_TYPE_ARRAY`, `BPF_MAP_TYPE_ARRAY_OF_MAPS` and `BPF_MAP_TYPE_XSKMAP` of
        /// `enum bpf_map_type`.
        const ARRAY: u32 = 2;
        const ARRAY_OF_MAPS: u32 = 12;
        const XSKMAP: u32 = 17;
        /// Flag of a map whose values can be mapped into a process (Linux 5.5).
        const BPF_F_MMAPABLE: u32 = 1 << 10;
        /// `BPF_PROG_TYPE_XDP` of `enum bpf_prog_type`.
        const XDP: u32 = 6;
        let map = |map_type, value_size, max_entries, map_flags, inner_map_fd| {
            let key_size = size_of::<u32>() as u32;
            let attr = MapAttr {
                map_type,
                key_size,
                value_size,
                max_entries,
                map_flags,
                inner_map_fd,
            };
            attr.create()
        };
        let descriptor = size_of::<u32>() as u32;
        let sockets = map(XSKMAP, descriptor, queues, 0, 0)
            .map_err(|e| ("create the BPF map of AF_XDP sockets", e))?;
        let watermarks = QueueWatermark::ring()
            .and_then(|it| {
                let inner = it.as_raw_fd().cast_unsigned();
                map(ARRAY_OF_MAPS, descriptor, queues, 0, inner)
            })
            .map_err(|e| ("create the BPF map of watermarks", e))?;
        let len = count_at(queues);
        let map_of_control = map(ARRAY, len as u32, 1, BPF_F_MMAPABLE, 0)
            .map_err(|e| ("create the BPF map of the gate", e))?;
        let control = KernelMapping::map(map_of_control.as_fd(), 0, len)
            .map_err(|e| ("map the BPF map of the gate", e))?;
        let steps = instructions(&ProgramOperands {
            sockets: sockets.as_raw_fd(),
            watermarks: watermarks.as_raw_fd(),
            control: map_of_control.as_raw_fd(),
            queues,
            every,
        });
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
            watermarks,
            control: Arc::new(control),
            program,
        })
    }

    /// Directs the frames of a receive queue to an AF_XDP socket that is bound to the queue.
    pub(super) fn direct(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        store(&self.sockets, queue, socket)
    }

    /// Creates the watermark of a receive queue.
    pub(super) fn watermark(&self, queue: u32) -> io::Result<QueueWatermark> {
        let watermark = QueueWatermark::create(queue, &self.control)?;
        store(&self.watermarks, queue, watermark.as_fd())?;
        Ok(watermark)
    }

    /// Opens or closes the gate, by which the XDP program passes frames to the sockets of all
    /// queues.
    pub(super) fn set_gate(&self, is_open: bool) {
        self.control
            .word(0)
            .store(is_open.into(), Ordering::Release);
    }

    /// Attaches the XDP program to the interface of this index.
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

/// Stores a descriptor in the entry of a receive queue in a BPF map.
fn store(map: &OwnedFd, queue: u32, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let value = descriptor.as_raw_fd();
    let element = MapElement {
        map_fd: map.as_raw_fd().cast_unsigned(),
        padding: 0,
        key: &raw const queue as u64,
        value: &raw const value as u64,
        flags: 0,
    };
    // SAFETY: the command reads a key and a value of a word each, which outlive the call.
    unsafe { element.run() }.map(drop)
}

/// Number of bytes of the XDP program's stamp in front of a frame: the time of the monotonic clock,
/// and this time XOR [`MARK`]. If the driver has no room for the stamp, other bytes are there.
pub(super) const STAMP_BYTES: usize = 16;
const MARK: u64 = 0x7771_6361_7020_3a29;

/// Returns the time in the XDP program's stamp in front of a frame; `None`: the bytes are no stamp.
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

/// Operands of the XDP program's instructions.
struct ProgramOperands {
    /// Descriptor of the BPF map of AF_XDP sockets by queue.
    sockets: RawFd,
    /// Descriptor of the BPF map of BPF rings by queue.
    watermarks: RawFd,
    /// Descriptor of the program's control map.
    control: RawFd,
    /// Number of receive queues that are captured.
    queues: u32,
    /// Number of a queue's frames from one watermark to the next, a power of two.
    every: u32,
}

/// Builds the XDP program. While the gate is open, a frame of the first `queues` receive queues
/// goes to the socket of its queue, with the time in front; every Nth frame of a queue puts an
/// entry on the queue's BPF ring. Any other frame goes to the kernel.
const fn instructions(of: &ProgramOperands) -> [u64; 52] {
    // Opcodes of loads and stores: BPF_LDX | BPF_MEM and BPF_STX | BPF_MEM with BPF_W and BPF_DW,
    // BPF_LD | BPF_IMM | BPF_DW.
    const LOAD: u8 = 0x61;
    const LOAD_LONG: u8 = 0x79;
    const STORE: u8 = 0x63;
    const STORE_64: u8 = 0x7b;
    const LOAD_64: u8 = 0x18;
    // Opcodes of arithmetic: BPF_ALU64 | BPF_MOV, BPF_ADD, BPF_AND and BPF_LSH with BPF_K; BPF_MOV,
    // BPF_ADD and BPF_XOR with BPF_X.
    const SET: u8 = 0xb7;
    const ADD: u8 = 0x07;
    const AND: u8 = 0x57;
    const SHIFT: u8 = 0x67;
    const COPY: u8 = 0xbf;
    const ADD_REGISTER: u8 = 0x0f;
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
    // the key (Linux 5.3). BPF_FUNC_map_lookup_elem: void * (map, key). BPF_FUNC_ringbuf_output: long
    // (ring, data, bytes, flags); without flags it wakes a reader that has consumed all earlier
    // entries (Linux 5.8).
    const MAP_LOOKUP: i32 = 1;
    const RINGBUF_OUTPUT: i32 = 130;
    const KTIME_GET_NS: i32 = 5;
    const REDIRECT_MAP: i32 = 51;
    const XDP_ADJUST_META: i32 = 54;
    const LEN: i32 = STAMP_BYTES as i32;
    const COUNT: i32 = size_of::<u64>() as i32;
    // Offsets on the stack, whose end is in register 10: a key of a map, and the data of an entry.
    const KEY: i16 = -4;
    const DATA_OUT: i16 = -16;
    [
        // r6 = the context; r0 = the result for a frame that is not captured
        instruction(COPY, 6, 1, 0, 0),
        instruction(SET, 0, 0, 0, XDP_PASS),
        // Jump to the end if the gate is closed
        instruction(LOAD_64, 2, BPF_PSEUDO_MAP_VALUE, 0, of.control),
        instruction(0, 0, 0, 0, 0),
        instruction(LOAD, 2, 2, 0, 0),
        instruction(IF_EQUAL, 2, 0, 45, 0),
        // r8 = the queue; jump to the end if the capture does not have it
        instruction(LOAD, 8, 6, RX_QUEUE_INDEX, 0),
        instruction(IF_NOT_BELOW, 8, 0, 43, of.queues.cast_signed()),
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
        // r2 = the address of the queue's count; add 1; skip the ring if the count is not a multiple
        instruction(LOAD_64, 2, BPF_PSEUDO_MAP_VALUE, 0, of.control),
        instruction(0, 0, 0, 0, count_at(0) as i32),
        instruction(COPY, 1, 8, 0, 0),
        instruction(SHIFT, 1, 0, 0, COUNT_SHIFT.cast_signed()),
        instruction(ADD_REGISTER, 2, 1, 0, 0),
        instruction(LOAD_LONG, 1, 2, 0, 0),
        instruction(ADD, 1, 0, 0, 1),
        instruction(STORE_64, 2, 1, 0, 0),
        instruction(AND, 1, 0, 0, of.every.cast_signed() - 1),
        instruction(IF_NOT, 1, 0, 14, 0),
        // r0 = map_lookup_elem(the map in two words, the queue); skip the ring if there is none
        instruction(STORE, 10, 8, KEY, 0),
        instruction(STORE_64, 10, 8, DATA_OUT, 0),
        instruction(LOAD_64, 1, BPF_PSEUDO_MAP_FD, 0, of.watermarks),
        instruction(0, 0, 0, 0, 0),
        instruction(COPY, 2, 10, 0, 0),
        instruction(ADD, 2, 0, 0, KEY as i32),
        instruction(CALL, 0, 0, 0, MAP_LOOKUP),
        instruction(IF_EQUAL, 0, 0, 6, 0),
        // ringbuf_output(the ring, the data, its length, no flags)
        instruction(COPY, 1, 0, 0, 0),
        instruction(COPY, 2, 10, 0, 0),
        instruction(ADD, 2, 0, 0, DATA_OUT as i32),
        instruction(SET, 3, 0, 0, COUNT),
        instruction(SET, 4, 0, 0, 0),
        instruction(CALL, 0, 0, 0, RINGBUF_OUTPUT),
        // return redirect_map(the map in two words, the queue, pass)
        instruction(LOAD_64, 1, BPF_PSEUDO_MAP_FD, 0, of.sockets),
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
        let code = instructions(&ProgramOperands {
            sockets: 0x0102,
            watermarks: 0x0103,
            control: 0x0104,
            queues: 3,
            every: 8192,
        });
        let bytes = |at: usize| code[at].to_ne_bytes();
        assert_eq!(bytes(0), [0xbf, 0x16, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(2), [0x18, 0x22, 0, 0, 0x04, 0x01, 0, 0]);
        assert_eq!(bytes(6), [0x61, 0x68, 0x10, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(8), [0xb7, 0x02, 0, 0, 0xf0, 0xff, 0xff, 0xff]);
        assert_eq!(bytes(21), [0x7b, 0x17, 8, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(23), [0, 0, 0, 0, 64, 0, 0, 0]);
        assert_eq!(bytes(30), [0x57, 1, 0, 0, 0xff, 0x1f, 0, 0]);
        assert_eq!(bytes(32), [0x63, 0x8a, 0xfc, 0xff, 0, 0, 0, 0]);
        assert_eq!(bytes(34), [0x18, 0x11, 0, 0, 0x03, 0x01, 0, 0]);
        assert_eq!(bytes(46), [0x18, 0x11, 0, 0, 0x02, 0x01, 0, 0]);
        assert_eq!(bytes(50), [0x85, 0, 0, 0, 51, 0, 0, 0]);
        // Targets of the jumps: the end, the count and the redirection.
        let to = |at: usize| at + 1 + usize::from(bytes(at)[2]);
        assert_eq!((to(5), to(7)), (code.len() - 1, code.len() - 1));
        assert_eq!((to(10), to(15)), (22, 22));
        assert_eq!((to(31), to(39)), (46, 46));
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
