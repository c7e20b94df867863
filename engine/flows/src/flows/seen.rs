//! Frames on their way into their flows.
//!
//! Each waits with what is to be known of it, not with its bytes, until there are enough to look for their flows side by
//! side: the caches' misses of one then pass while the others' are waited for.

use crate::flow_table::{FlowPlace, Guess, HashSeed, Key};
use wqcap_frame::{FiveTuple, Headers};

/// Frames that wait at most: as many as a loop takes at once.
pub(super) const MOST_SEEN: usize = 64;

/// What there is to know of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenFrame {
    pub(super) key: Key,
    /// When it was received.
    pub(super) ns: u64,
    /// Its length on the wire.
    pub(super) len: u32,
    /// The key is in order, and this its hash.
    pub(super) placed: bool,
    pub(super) hash: u32,
    /// Where its flow seems to be.
    pub(super) guess: Guess,
    /// Ethertype of the innermost packet.
    pub(super) ethertype: u16,
    /// Control bits of TCP.
    pub(super) flags: u8,
    /// Type and code of ICMP.
    pub(super) icmp: Option<[u8; 2]>,
    /// Whether it went from the lower end to the other.
    pub(super) upward: bool,
    /// Whether it came in a tunnel.
    pub(super) tunnel: bool,
    /// Which of the batch's outermost packets of tunnels is its own, if it came in one.
    pub(super) outer: u8,
}

impl SeenFrame {
    /// A frame of `len` bytes on the wire, received at `ns`; with its flow's place, if that is known. Its outermost packet
    /// goes to those of the batch's tunnels, if it came in one.
    #[expect(
        clippy::inline_always,
        reason = "made elsewhere, it would be copied to where it waits"
    )]
    #[inline(always)]
    pub(super) fn new(
        frame: &[u8],
        len: u32,
        ns: u64,
        outer: &Headers,
        inner: &Headers,
        place: Option<&FlowPlace>,
        outers: &mut Vec<FiveTuple>,
    ) -> Self {
        let (key, hash, upward, flags) = match place {
            Some(it) => (it.key, it.hash, it.upward, it.tcp_flags),
            None => {
                let (key, upward) = Key::of(frame, outer, inner);
                (key, 0, upward, inner.tcp_flags(frame))
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
            icmp: inner.icmp(frame),
            upward,
            tunnel,
            outer: if tunnel { keep(outer, outers) } else { 0 },
        }
    }

    /// Makes of it what its flow is found by.
    #[inline]
    pub(super) fn place(&mut self, seed: HashSeed) {
        if !self.placed {
            self.upward &= self.key.order();
            self.hash = self.key.hash(seed);
            self.placed = true;
        }
    }
}

/// Out of line, and apart from the frame's own: copied for this rare use, the packet would be waited for.
#[cold]
#[inline(never)]
fn keep(outer: &Headers, outers: &mut Vec<FiveTuple>) -> u8 {
    outers.push(outer.tuple);
    // Of a batch's frames, which are few.
    (outers.len() - 1) as u8
}
