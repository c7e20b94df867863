//! Frames that wait to be added to their flows.
//!
//! The needed data of each frame is kept, not its bytes, until there are enough frames to search
//! their flows together. Cache misses of several searches then overlap.

use crate::flow_table::{FlowPlace, Guess, HashSeed, Key};
use wqcap_core::consumer::Frame;
use wqcap_frame::{FiveTuple, Headers, Tcp};

/// Maximum number of frames that wait to be added to their flows: the number that a receive loop
/// polls at once.
pub(super) const MOST_SEEN: usize = 64;

/// Data of a frame that is needed to add the frame to its flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenFrame {
    pub(super) key: Key,
    /// Time at which the frame was received, in nanoseconds since 1970.
    pub(super) ns: u64,
    /// Length of the observed frame on the wire in bytes, without FCS.
    pub(super) len: u32,
    /// `true` after the ends in the frame's flow key are ordered and the key's hash is computed.
    pub(super) placed: bool,
    pub(super) hash: u32,
    /// Guessed position of the frame's flow in the flow table.
    pub(super) guess: Guess,
    /// Ethertype of the frame's innermost packet.
    pub(super) ethertype: u16,
    /// TCP control bits (flags) of the frame.
    pub(super) flags: u8,
    /// Type and code of the frame's ICMP message; `None` for other protocols.
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

/// TCP segment with SYN among the frames that wait to be added to their flows.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenSyn {
    /// Index of the segment's frame among the frames that wait.
    pub(super) at: usize,
    /// TCP sequence and acknowledgement number of the segment with SYN.
    pub(super) numbers: [u32; 2],
}

/// Data that few of the frames that wait for their flows have, in the order of the frames.
#[derive(Debug)]
pub(super) struct SeenDetails {
    /// Addresses and ports of the outermost packets of the frames that came in tunnels.
    pub(super) outers: Vec<FiveTuple>,
    /// TCP segments with SYN among the waiting frames.
    pub(super) syns: Vec<SeenSyn>,
}

impl SeenDetails {
    pub(super) fn new() -> Self {
        Self {
            outers: Vec::with_capacity(MOST_SEEN),
            syns: Vec::with_capacity(MOST_SEEN),
        }
    }

    pub(super) fn clear(&mut self) {
        self.outers.clear();
        self.syns.clear();
    }

    /// Adds a frame's outermost packet, and returns its index. The function is not inlined, and the
    /// packet is outside the frame's data: a copy for this rare case would slow down all frames.
    #[cold]
    #[inline(never)]
    fn push_outer(&mut self, outer: &Headers) -> u8 {
        self.outers.push(outer.tuple);
        // The list has at most one packet for each frame of a batch.
        (self.outers.len() - 1) as u8
    }

    /// Adds the TCP numbers of a segment with SYN, which is number `at` of the frames that wait.
    /// The function is not inlined: other segments do not read their numbers.
    #[cold]
    #[inline(never)]
    pub(super) fn push_syn(&mut self, at: usize, bytes: &[u8], inner: &Headers) {
        let numbers = |tcp: Tcp<'_>| [tcp.sequence(), tcp.acknowledgement()];
        let numbers = inner.tcp(bytes).map_or([0; 2], numbers);
        self.syns.push(SeenSyn { at, numbers });
    }
}

impl SeenFrame {
    /// Creates the data of a frame that its flow needs; `flags` are the frame's TCP control bits.
    /// `place` is its flow, if known. The outermost packet is added to `details` if the frame came
    /// in a tunnel.
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
        flags: u8,
        details: &mut SeenDetails,
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
        let tunnel = outer.l3() != inner.l3();
        Self {
            key,
            ns,
            len,
            hash,
            placed: place.is_some(),
            guess: Guess::default(),
            ethertype: inner.ethertype,
            flags,
            icmp: inner.icmp(bytes),
            upward,
            port,
            tunnel,
            outer: if tunnel { details.push_outer(outer) } else { 0 },
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
