//! XDP program of an `af_xdp` wire, with its map of sockets and its link to the interface.
//!
//! The program writes the time in front of each frame, counts the frame, and passes it to the
//! socket of its receive queue. It has about forty instructions, so it is written here instruction
//! by instruction, and loaded with bpf(2) alone. Other crates do more and fit worse: aya loads
//! programs from object files, which need a BPF compiler; xsk-rs and Debian's libxdp attach
//! libxdp's dispatcher, which stays on the interface when its process is killed.
//!
//! Imports `bpf` and `watermark`. Numbers and layouts are from linux/bpf.h and linux/if_link.h.
//! Invariant: the program is on the interface exactly as long as its `Link` exists, because only
//! the descriptor of this process holds the link.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::bpf::{
    self, BPF_LINK_CREATE, BPF_LINK_DETACH, BPF_MAP_UPDATE_ELEM, BPF_PROG_LOAD, Failed, LinkCreate,
    LinkDetach, MapCreate, MapUpdate, ProgLoad,
};
use super::watermark::{COUNT_SHIFT, Watermark};

/// BPF map type of AF_XDP sockets by queue (enum bpf_map_type).
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
/// BPF program type of XDP programs (enum bpf_prog_type).
const BPF_PROG_TYPE_XDP: u32 = 6;
/// BPF attach type of XDP programs (enum bpf_attach_type).
const BPF_XDP: u32 = 37;
/// Flag of an XDP program that accepts frames of several buffers (Linux 5.18).
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Mode in which the XDP program is attached: in the driver, or in the kernel's network stack.
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

/// Loaded XDP program with its BPF maps.
pub(super) struct LoadedProgram {
    map: OwnedFd,
    watermark: Watermark,
    program: OwnedFd,
}

/// Attachment of the XDP program to an interface. The kernel removes it with the last descriptor of
/// the link, at the latest when the process ends for any reason.
pub(super) struct XdpLink(OwnedFd);

impl Drop for XdpLink {
    /// Detaches the XDP program from the interface. Closing the descriptor would do the same, but
    /// not while a child that is about to exec has a copy.
    fn drop(&mut self) {
        let link_fd = self.0.as_raw_fd() as u32;
        let _ = bpf::call(BPF_LINK_DETACH, &LinkDetach { link_fd });
    }
}

impl LoadedProgram {
    /// Loads the XDP program for the first `queues` receive queues of an interface. The watermark
    /// is reached with every Nth frame of a queue; N is `every`, a power of two.
    pub(super) fn load(queues: u32, every: u32) -> Result<LoadedProgram, Failed> {
        let map = bpf::create_map(&MapCreate {
            map_type: BPF_MAP_TYPE_XSKMAP,
            key_size: size_of::<u32>() as u32,
            value_size: size_of::<u32>() as u32,
            max_entries: queues,
            flags: 0,
        });
        let map = map.map_err(|e| ("cannot create the BPF map of AF_XDP sockets", e))?;
        let watermark = Watermark::new(queues)?;
        let (counts, watermarks) = watermark.maps();
        let code = instructions(&Operands {
            sockets: map.as_raw_fd(),
            counts,
            watermarks,
            queues,
            every,
        });
        let load = |prog_flags| {
            bpf::create(
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
        let program = program.map_err(|e| ("cannot load the XDP program", e))?;
        Ok(LoadedProgram {
            map,
            watermark,
            program,
        })
    }

    /// Returns the watermark that the XDP program signals.
    pub(super) fn watermark(&self) -> &Watermark {
        &self.watermark
    }

    /// Directs the frames of a receive queue to an AF_XDP socket that is bound to that queue.
    pub(super) fn direct(&self, queue: u32, socket: RawFd) -> io::Result<()> {
        let update = MapUpdate {
            map_fd: self.map.as_raw_fd() as u32,
            reserved: 0,
            key: &raw const queue as u64,
            value: &raw const socket as u64,
            flags: 0,
        };
        bpf::call(BPF_MAP_UPDATE_ELEM, &update).map(drop)
    }

    /// Attaches the XDP program to the interface `index`.
    pub(super) fn attach(&self, index: libc::c_int, place: Attached) -> io::Result<XdpLink> {
        let link = bpf::create(
            BPF_LINK_CREATE,
            &LinkCreate {
                prog_fd: self.program.as_raw_fd() as u32,
                target_ifindex: index.cast_unsigned(),
                attach_type: BPF_XDP,
                flags: place.flag(),
            },
        )?;
        Ok(XdpLink(link))
    }
}

/// Encodes a BPF instruction: opcode, destination and source registers, offset, immediate, in the
/// layout of struct bpf_insn (linux/bpf.h).
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

/// Bytes of the XDP program's stamp in front of a frame: the arrival time by the host's monotonic
/// clock, and this time XOR [`MARK`]. If the driver leaves no room for the stamp, other bytes are
/// there.
pub(super) const STAMP_LEN: usize = 16;
const MARK: u64 = 0x7771_6361_7020_3a29;

/// Returns the arrival time from the XDP program's stamp in front of a frame, or `None` if `bytes`
/// is not a stamp.
#[inline]
pub(super) fn stamp(bytes: &[u8]) -> Option<u64> {
    let time = u64::from_ne_bytes(*bytes.first_chunk()?);
    let mixed = u64::from_ne_bytes(*bytes.last_chunk()?);
    (time ^ mixed == MARK).then_some(time)
}

/// Operands of the XDP program's instructions.
struct Operands {
    /// Descriptor of the BPF map of AF_XDP sockets by queue.
    sockets: RawFd,
    /// Descriptor of the BPF map of frame counts by queue.
    counts: RawFd,
    /// Descriptor of the BPF ring that signals watermarks.
    watermarks: RawFd,
    /// Number of receive queues whose frames the wire takes.
    queues: u32,
    /// Number of a queue's frames from one watermark to the next, a power of two.
    every: u32,
}

/// Builds the XDP program. A frame of the first `queues` receive queues goes to the socket of its
/// queue, with the time in front; any other frame goes to the kernel. Every Nth frame of a queue,
/// with N = `every`, puts an entry on the ring, which wakes its reader.
fn instructions(of: &Operands) -> [u64; 39] {
    // Opcodes of loads and stores: BPF_LDX | BPF_MEM with BPF_W and BPF_DW, BPF_STX | BPF_MEM |
    // BPF_DW, BPF_LD | BPF_IMM | BPF_DW.
    const LOAD: u8 = 0x61;
    const LOAD_LONG: u8 = 0x79;
    const STORE_64: u8 = 0x7b;
    const LOAD_64: u8 = 0x18;
    // Opcodes of arithmetic: BPF_ALU64 | BPF_MOV, BPF_ADD, BPF_AND and BPF_LSH with BPF_K, BPF_MOV,
    // BPF_ADD and BPF_XOR with BPF_X.
    const SET: u8 = 0xb7;
    const ADD: u8 = 0x07;
    const AND: u8 = 0x57;
    const SHIFT: u8 = 0x67;
    const COPY: u8 = 0xbf;
    const ADD_REGISTER: u8 = 0x0f;
    const XOR: u8 = 0xaf;
    // Opcodes of jumps: BPF_JMP | BPF_JGE | BPF_K, BPF_JMP | BPF_JNE | BPF_K, BPF_JMP | BPF_JGT |
    // BPF_X, BPF_JMP | BPF_CALL and BPF_JMP | BPF_EXIT.
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
    // the key (Linux 5.3). BPF_FUNC_ringbuf_output: long (ring, data, bytes, flags); without flags
    // it wakes a reader that has consumed all earlier entries (Linux 5.8).
    const KTIME_GET_NS: i32 = 5;
    const REDIRECT_MAP: i32 = 51;
    const XDP_ADJUST_META: i32 = 54;
    const RINGBUF_OUTPUT: i32 = 130;
    const LEN: i32 = STAMP_LEN as i32;
    const COUNT: i32 = size_of::<u64>() as i32;
    [
        // r6 = the context; r0 = the result for a frame of another queue
        instruction(COPY, 6, 1, 0, 0),
        instruction(SET, 0, 0, 0, XDP_PASS),
        // r8 = the queue; jump to the end if the wire does not have it
        instruction(LOAD, 8, 6, RX_QUEUE_INDEX, 0),
        instruction(IF_NOT_BELOW, 8, 0, 34, of.queues.cast_signed()),
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
        // r2 = the address of the queue's count; add 1; skip the ring if the count is not a
        // multiple
        instruction(LOAD_64, 2, BPF_PSEUDO_MAP_VALUE, 0, of.counts),
        instruction(0, 0, 0, 0, 0),
        instruction(COPY, 1, 8, 0, 0),
        instruction(SHIFT, 1, 0, 0, COUNT_SHIFT.cast_signed()),
        instruction(ADD_REGISTER, 2, 1, 0, 0),
        instruction(LOAD_LONG, 1, 2, 0, 0),
        instruction(ADD, 1, 0, 0, 1),
        instruction(STORE_64, 2, 1, 0, 0),
        instruction(AND, 1, 0, 0, of.every.cast_signed() - 1),
        instruction(IF_NOT, 1, 0, 5, 0),
        // ringbuf_output(the ring in two words, the count, its length, no flags)
        instruction(LOAD_64, 1, BPF_PSEUDO_MAP_FD, 0, of.watermarks),
        instruction(0, 0, 0, 0, 0),
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
        let code = instructions(&Operands {
            sockets: 0x0102,
            counts: 0x0103,
            watermarks: 0x0104,
            queues: 3,
            every: 8192,
        });
        let bytes = |at: usize| code[at].to_ne_bytes();
        assert_eq!(bytes(0), [0xbf, 0x16, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(2), [0x61, 0x68, 0x10, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(4), [0xb7, 0x02, 0, 0, 0xf0, 0xff, 0xff, 0xff]);
        assert_eq!(bytes(17), [0x7b, 0x17, 8, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(18), [0x18, 0x22, 0, 0, 0x03, 0x01, 0, 0]);
        assert_eq!(bytes(26), [0x57, 1, 0, 0, 0xff, 0x1f, 0, 0]);
        assert_eq!(bytes(28), [0x18, 0x11, 0, 0, 0x04, 0x01, 0, 0]);
        assert_eq!(bytes(33), [0x18, 0x11, 0, 0, 0x02, 0x01, 0, 0]);
        assert_eq!(bytes(37), [0x85, 0, 0, 0, 51, 0, 0, 0]);
        // Targets of the jumps: the count, the redirection and the end.
        let to = |at: usize| at + 1 + usize::from(bytes(at)[2]);
        assert_eq!(bytes(3), [0x35, 0x08, 34, 0, 3, 0, 0, 0]);
        assert_eq!((to(3), to(6), to(11)), (code.len() - 1, 18, 18));
        assert_eq!(to(27), 33);
    }

    #[test]
    fn bytes_without_the_mark_are_not_a_stamp() {
        let mut bytes = [0; STAMP_LEN];
        assert_eq!(stamp(&bytes), None);
        bytes[..8].copy_from_slice(&77u64.to_ne_bytes());
        bytes[8..].copy_from_slice(&(77 ^ MARK).to_ne_bytes());
        assert_eq!(stamp(&bytes), Some(77));
        bytes[8] ^= 1;
        assert_eq!(stamp(&bytes), None);
        assert_eq!(stamp(&[]), None);
    }
}
