//! Wire on a live interface: a packet socket with a TPACKET_V3 ring.
//!
//! Frames are borrowed from the ring that the kernel fills, and delivered as the kernel gives them,
//! except that a VLAN tag that the kernel has removed is put back in place. So frames that the
//! kernel has merged, or that the sending end of a veth pair has left to hardware to finish, are
//! not as on a cable: super-frames are longer than the MTU, and checksums may be incomplete. A
//! super-frame that does not fit a block of the ring counts as too long. The wire changes nothing
//! of the interface except promiscuous mode.
//!
//! Invariants: a block of the ring is accessed only between its handover by the kernel and its
//! release; a frame's tag is put back once, however often the NIC makes the frame wait.

mod ring;

use std::io;
use std::mem::offset_of;
use std::os::fd::RawFd;

use rustix::time::ClockId;

use super::arrival::Arrivals;
use super::delivery::{Delivery, MIN_FRAME, Receiver, WireDirection, WireDrops, WireState};
use super::error::WireError;
use super::packet_socket::Socket;
use super::spec::WireSpec;
use super::spec::af_packet::AfPacketSpec;
use ring::PacketRxRing;

/// Interval in nanoseconds between two checks of an idle `af_packet` wire that its interface
/// exists.
const CHECK_NS: u64 = 10_000_000;
/// Time in nanoseconds for which an `af_packet` wire expects frames after its interface was
/// deleted: several times the time in which the kernel hands over an unfinished block.
const LINGER_NS: u64 = 50_000_000;

const ETHERTYPE_VLAN: u16 = 0x8100;
const VLAN: usize = 4;
const MACS: usize = 12;
/// Offset of the struct sockaddr_ll behind a frame's header in a TPACKET block: the size of struct
/// tpacket3_hdr, aligned as by TPACKET_ALIGN.
const ADDRESS_AT: usize = size_of::<libc::tpacket3_hdr>().next_multiple_of(16);
/// Smallest offset of a frame behind its header in a TPACKET block: there is room for a VLAN tag
/// behind the address. The kernel leaves at least 16 bytes for the Ethernet header, aligns their
/// end to 16 bytes, and so leaves more than a tag (`tpacket_rcv`, net/packet/af_packet.c).
const FRAME_AT: usize = ADDRESS_AT + size_of::<libc::sockaddr_ll>() + VLAN;

/// Open `af_packet` wire, which copies the frames of a network interface.
pub(super) struct AfPacketWire {
    ring: PacketRxRing,
    socket: Socket,
    cursor: BlockCursor,
    arrivals: Arrivals,
    /// Number of frames that the packet socket's ring has lost so far (tp_drops). Reading the
    /// kernel's count resets it, so the reads are summed.
    drops: u64,
    /// Next time, by the NIC's clock, at which an idle wire checks that its network interface
    /// exists.
    check_ns: u64,
    /// Time, by the NIC's clock, at which the wire found its network interface deleted; `None`
    /// while it exists.
    gone_ns: Option<u64>,
    lost: bool,
}

impl AfPacketWire {
    pub(super) fn open(wire: &WireSpec, spec: &AfPacketSpec) -> Result<AfPacketWire, WireError> {
        let failed = |operation: &str, advice: &str| {
            let (operation, advice) = (operation.to_owned(), advice.to_owned());
            move |source| WireError::new(wire, operation, source, advice)
        };
        let socket = Socket::new().map_err(failed(
            "cannot open a packet socket",
            "grant CAP_NET_RAW in the interface's network namespace",
        ))?;
        let index = socket.index_of(&spec.iface).map_err(failed(
            "cannot find the interface",
            "`ip link` lists the interfaces of this network namespace",
        ))?;
        // The version determines the layout of the ring, so it is set first.
        socket.prepare().map_err(failed(
            "cannot set up the packet socket",
            "use Linux 3.2 or newer with CONFIG_PACKET",
        ))?;
        let ring = PacketRxRing::map(&socket, spec.ring as usize).map_err(failed(
            &format!("cannot map the packet ring of {} MiB", spec.ring >> 20),
            "use a smaller ring, such as ring=8MiB",
        ))?;
        // A socket of protocol 0 receives nothing until it is bound, so no frame of another
        // interface gets into the ring.
        socket
            .bind(index)
            .map_err(failed("cannot bind to the interface", ""))?;
        let address = socket
            .address()
            .map_err(failed("cannot read the hardware type", ""))?;
        let hardware = address.sll_hatype;
        if !matches!(hardware, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) {
            let kind = format!("the interface has hardware type {hardware}, which is not Ethernet");
            let source = io::Error::new(io::ErrorKind::Unsupported, kind);
            return Err(failed(
                "cannot use the interface",
                "use an Ethernet interface",
            )(source));
        }
        socket
            .set_promiscuous(index)
            .map_err(failed("cannot set promiscuous mode", ""))?;
        // An interface that is down causes an error here. The wire waits until the interface is up.
        socket.clear_error();
        Ok(AfPacketWire {
            ring,
            socket,
            cursor: BlockCursor::default(),
            // The kernel's default clock for stamps of frames (`tpacket_rcv`,
            // net/packet/af_packet.c).
            arrivals: Arrivals::new(ClockId::Realtime),
            drops: 0,
            check_ns: 0,
            gone_ns: None,
            lost: false,
        })
    }

    pub(super) fn state(&self) -> WireState {
        if self.lost {
            WireState::Lost
        } else {
            WireState::Up
        }
    }

    pub(super) fn drops(&mut self) -> WireDrops {
        self.drops += self.socket.take_drops();
        WireDrops {
            ring: self.drops,
            size: self.cursor.damaged,
            ..WireDrops::default()
        }
    }

    pub(super) fn wait_fd(&self) -> Option<RawFd> {
        (!self.lost).then(|| self.socket.fd())
    }

    pub(super) fn has_room(&self) -> bool {
        !self.ring.is_near_end()
    }

    pub(super) fn set_sniffing(&mut self, on: bool) {
        self.cursor.sniffing = on;
        self.socket.set_ignore_outgoing(!on);
    }

    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.socket.send(frame)
    }

    #[inline]
    pub(super) fn burst(
        &mut self,
        now_ns: u64,
        budget: usize,
        receiver: &mut impl Receiver,
    ) -> usize {
        let mut taken = 0;
        while taken < budget {
            let Some(block) = self.ring.block() else {
                if taken == 0 {
                    self.idle(now_ns);
                }
                break;
            };
            if taken == 0 {
                self.arrivals.begin(now_ns);
            }
            while let Some(piece) = self.cursor.head(block) {
                if taken == budget {
                    return taken;
                }
                let bytes = &block[piece.at..][..piece.len];
                let came_ns = self.arrivals.came_ns(piece.stamp_ns);
                if receiver.deliver_late(bytes, piece.direction, came_ns) == Delivery::Wait {
                    return taken;
                }
                self.cursor.consume();
                taken += 1;
            }
            self.cursor.started = false;
            self.ring.release();
        }
        taken
    }

    fn idle(&mut self, now_ns: u64) {
        if self.lost || now_ns < self.check_ns {
            return;
        }
        self.check_ns = now_ns.saturating_add(CHECK_NS);
        // A pending error would make every poll(2) return at once.
        self.socket.clear_error();
        if self.socket.is_orphaned() {
            let gone = *self.gone_ns.get_or_insert(now_ns);
            self.lost = now_ns.saturating_sub(gone) >= LINGER_NS;
        }
    }
}

/// Read position in the current TPACKET block.
#[derive(Default)]
struct BlockCursor {
    /// Set when the header of the TPACKET block has been read.
    started: bool,
    /// Offset of the next frame's header in the TPACKET block.
    at: usize,
    /// Number of frames from `at` to the end of the TPACKET block.
    left: u32,
    /// Frame at the head of the TPACKET block whose header has been read.
    ready: Option<BlockPiece>,
    /// Set when the wire also delivers frames that the host sends.
    sniffing: bool,
    /// Number of lost frames that were cut, too short, or in a damaged TPACKET block.
    damaged: u64,
}

/// Place of a frame within a TPACKET block, with its direction and time.
#[derive(Clone, Copy, Debug)]
struct BlockPiece {
    at: usize,
    len: usize,
    direction: WireDirection,
    /// Time at which the kernel received the frame, by the kernel's clock.
    stamp_ns: u64,
}

impl BlockCursor {
    /// Returns the frame at the head of the TPACKET block `block`, the same frame until
    /// [`BlockCursor::consume`]. `None` at the end of the block.
    #[inline]
    fn head(&mut self, block: &mut [u8]) -> Option<BlockPiece> {
        if !self.started {
            self.start(block);
        }
        while self.ready.is_none() && self.left > 0 {
            if self.read_frame(block).is_none() {
                // The block is damaged. No frame from here on can be found.
                self.damaged += u64::from(self.left);
                self.left = 0;
            }
        }
        self.ready
    }

    /// Removes the frame at the head of the TPACKET block, so that the next frame becomes the head.
    fn consume(&mut self) {
        self.ready = None;
    }

    /// Reads the header of the TPACKET block `block`, and moves the cursor to its first frame.
    fn start(&mut self, block: &[u8]) {
        const HEADER: usize = offset_of!(libc::tpacket_block_desc, hdr);
        let count = word(block, HEADER + offset_of!(libc::tpacket_hdr_v1, num_pkts));
        let first = word(
            block,
            HEADER + offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt),
        );
        self.started = true;
        self.left = count.unwrap_or(0);
        self.at = first.unwrap_or(0) as usize;
    }

    /// Reads the header of a frame in a TPACKET block (struct tpacket3_hdr, linux/if_packet.h) and
    /// moves the cursor to the next frame. `None` if the header points outside the block.
    fn read_frame(&mut self, block: &mut [u8]) -> Option<()> {
        let header = self.at;
        let field = |at: usize| word(block, header + at);
        let status = field(offset_of!(libc::tpacket3_hdr, tp_status))?;
        let len = field(offset_of!(libc::tpacket3_hdr, tp_snaplen))? as usize;
        let whole_len = field(offset_of!(libc::tpacket3_hdr, tp_len))? as usize;
        let next = field(offset_of!(libc::tpacket3_hdr, tp_next_offset))? as usize;
        let at = header
            + usize::from(half(
                block,
                header + offset_of!(libc::tpacket3_hdr, tp_mac),
            )?);
        if at + len > block.len() || at < header + FRAME_AT {
            return None;
        }
        let pkttype = offset_of!(libc::sockaddr_ll, sll_pkttype);
        let pkttype = *block.get(header + ADDRESS_AT + pkttype)?;
        let variant = header + offset_of!(libc::tpacket3_hdr, hv1);
        let tci = word(
            block,
            variant + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tci),
        )?;
        let tpid = half(
            block,
            variant + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tpid),
        )?;
        self.left -= 1;
        self.at = header + next;

        let direction = match pkttype {
            libc::PACKET_OUTGOING => WireDirection::Transmitted,
            _ => WireDirection::Received,
        };
        if direction == WireDirection::Transmitted && !self.sniffing {
            return Some(());
        }
        if len < whole_len || len < MIN_FRAME {
            self.damaged += 1;
            return Some(());
        }
        let seconds = field(offset_of!(libc::tpacket3_hdr, tp_sec))?;
        let nanoseconds = field(offset_of!(libc::tpacket3_hdr, tp_nsec))?;
        let mut piece = BlockPiece {
            at,
            len,
            direction,
            stamp_ns: u64::from(seconds) * 1_000_000_000 + u64::from(nanoseconds),
        };
        if status & libc::TP_STATUS_VLAN_VALID != 0 {
            let tpid = match status & libc::TP_STATUS_VLAN_TPID_VALID {
                0 => ETHERTYPE_VLAN,
                _ => tpid,
            };
            // The tag takes the place of the last bytes before the frame (see `FRAME_AT`).
            piece.at -= VLAN;
            piece.len += VLAN;
            block.copy_within(at..at + MACS, piece.at);
            let tag = &mut block[piece.at + MACS..][..VLAN];
            tag[..2].copy_from_slice(&tpid.to_be_bytes());
            tag[2..].copy_from_slice(&(tci as u16).to_be_bytes());
        }
        self.ready = Some(piece);
        Some(())
    }
}

fn word(block: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*block.get(at..)?.first_chunk()?))
}

fn half(block: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*block.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests;
