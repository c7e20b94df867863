//! Frames that wait to be added to their flows.
//!
//! The needed data of each frame is kept, not its bytes, until there are enough frames to search
//! their flows together. Cache misses of several searches then overlap.

use crate::flow_table::{FlowPlace, Guess, HashSeed, Key};
use wqcap_core::consumer::Frame;
use wqcap_frame::{FiveTuple, Headers};

/// Maximum number of frames that wait to be added to their flows: the number that a receive loop
/// polls at once.
pub(super) const MOST_SEEN: usize = 64;

/// Data of a frame that its flow needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenFrame {
    pub(super) key: Key,
    /// Time at which the frame was received, in nanoseconds since 1970.
    pub(super) ns: u64,
    /// Length of the observed frame on the wire in bytes.
    pub(super) len: u32,
    /// Set when the frame's flow key is in order and its hash is computed.
    pub(super) placed: bool,
    pub(super) hash: u32,
    /// Guessed position of the frame's flow in the flow table.
    pub(super) guess: Guess,
    /// Ethertype of the frame's innermost packet.
    pub(super) ethertype: u16,
    /// Sequence and acknowledgement number of the frame's TCP segment; 0 for other protocols.
    pub(super) numbers: [u32; 2],
    /// TCP control bits of the frame.
    pub(super) flags: u8,
    /// Type and code of the frame's ICMP message.
    pub(super) icmp: Option<[u8; 2]>,
    /// `true` if the frame went from its flow's lower end to the upper one.
    pub(super) upward: bool,
    /// Index of the captured port that received the frame, as in [`Frame::port`].
    pub(super) port: u8,
    /// `true` if the frame came in a tunnel.
    pub(super) tunnel: bool,
    /// Index of the frame's outermost packet in the batch's list of outermost packets, if it came
    /// in a tunnel.
    pub(super) outer: u8,
}

impl SeenFrame {
    /// Creates the flow data of a frame. `place` is its flow, if known. The outermost packet is
    /// added to `outers` if the frame came in a tunnel.
    #[expect(
        clippy::inline_always,
        reason = "construction elsewhere would copy the frame data into the list"
    )]
    #[inline(always)]
    pub(super) fn new(
        frame: &Frame<'_>,
        outer: &Headers,
        inner: &Headers,
        place: Option<&FlowPlace>,
        outers: &mut Vec<FiveTuple>,
    ) -> Self {
        let &Frame {
            bytes,
            len,
            ns,
            port,
            ..
        } = frame;
        let (key, hash, upward) = match place {
            Some(it) => (it.key, it.hash, it.upward),
            None => {
                let (key, upward) = Key::from_headers(bytes, outer, inner);
                (key, 0, upward)
            }
        };
        let (numbers, flags) = match inner.tcp(bytes) {
            Some(tcp) => ([tcp.sequence(), tcp.acknowledgement()], tcp.flags()),
            None => ([0; 2], 0),
        };
        let tunnel = outer.l3() != inner.l3();
        Self {
            key,
            ns,
            len,
            hash,
            placed: place.is_some(),
            guess: Guess::default(),
            ethertype: inner.ethertype,
            numbers,
            flags,
            icmp: inner.icmp(bytes),
            upward,
            port,
            tunnel,
            outer: if tunnel { push_outer(outer, outers) } else { 0 },
        }
    }

    /// Orders the ends in the frame's flow key and computes the key's hash.
    #[inline]
    pub(super) fn place(&mut self, seed: HashSeed) {
        if !self.placed {
            self.upward &= self.key.order();
            self.hash = self.key.hash(seed);
            self.placed = true;
        }
    }
}

/// Adds the frame's outermost packet to the batch's list. Out of line and outside the frame's data:
/// a copy for this rare case would slow down all frames.
#[cold]
#[inline(never)]
fn push_outer(outer: &Headers, outers: &mut Vec<FiveTuple>) -> u8 {
    outers.push(outer.tuple);
    // The list has at most one packet for each frame of a batch.
    (outers.len() - 1) as u8
}
