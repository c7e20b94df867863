//! Gate of a packet socket: classic BPF programs that choose the frames which the kernel puts into
//! the socket's ring.
//!
//! The kernel runs the program before it looks for room in the ring, so a frame that the gate keeps
//! out is in no count of the socket (`packet_rcv` and `tpacket_rcv` of net/packet/af_packet.c).

use wqcap_core::settings::Direction;

/// Program of a packet socket's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Gate that lets no frame pass.
    Closed,
    /// Gate that lets the frames of this direction pass.
    Open(Direction),
}

/// Maximum number of bytes of a frame that a gate's program lets pass: more than any frame has.
const WHOLE: u32 = 0x7fff_ffff;
/// Address of the packet type in the area of ancillary data: `SKF_AD_OFF + SKF_AD_PKTTYPE`
/// (linux/filter.h).
const PACKET_TYPE: u32 = (-0x1000_i32 + 4).cast_unsigned();
/// Packet type of a frame that the host sends: `PACKET_OUTGOING` (linux/if_packet.h).
pub(super) const OUTGOING: u32 = 4;

/// Length of the longest program of a gate in instructions.
const LONGEST: usize = 4;

impl Gate {
    /// Returns the gate's classic BPF program and its number of instructions.
    pub(super) fn program(self) -> ([libc::sock_filter; LONGEST], usize) {
        /// Opcode `BPF_RET | BPF_K`, which returns a constant.
        const RETURN: u16 = 0x06;
        /// Opcode `BPF_LD | BPF_W | BPF_ABS`, which loads a word.
        const LOAD: u16 = 0x20;
        /// Opcode `BPF_JMP | BPF_JEQ | BPF_K`, which compares the loaded word with a constant.
        const EQUAL: u16 = 0x15;
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let end = |bytes| step(RETURN, 0, 0, bytes);
        let of_type = |outgoing, other| {
            let steps = [
                step(LOAD, 0, 0, PACKET_TYPE),
                step(EQUAL, 0, 1, OUTGOING),
                end(outgoing),
                end(other),
            ];
            (steps, LONGEST)
        };
        match self {
            Self::Closed => ([end(0); LONGEST], 1),
            Self::Open(Direction::Both) => ([end(WHOLE); LONGEST], 1),
            Self::Open(Direction::In) => of_type(0, WHOLE),
            Self::Open(Direction::Out) => of_type(WHOLE, 0),
        }
    }
}
