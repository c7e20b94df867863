//! Queue of a packet socket: its slots are the blocks of a TPACKET_V3 ring, each with many frames.
//!
//! The kernel has a block until it passes the block on as a whole. The kernel passes blocks on in
//! their order in the ring, and needs the next one back before it can continue.
#![allow(unsafe_code)]

use super::pool::{FrameFacts, Slot, SlotLayout, SlotMemory};
use super::{
    Account, Failed, Queue, Ring, RingAttr, RingError, TOO_LONG, Wake, places::SpareCapacity,
    tokens::BufferTokens,
};
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};
use wqcap_sockets::packet::{BlockRing, PacketCursor, PacketSocket};
use wqcap_verbs::VerbsError;

/// Receive queue of a packet socket with a TPACKET_V3 ring.
pub struct PacketQueue {
    socket: Arc<PacketSocket>,
    ring: BlockRing,
    tokens: BufferTokens,
    /// Number of blocks of the packet socket's ring.
    blocks: u32,
    /// Index of the block that the kernel passes on next, or that is being read.
    current: u32,
    /// Position of the next frame in the current block; `None`: the kernel has not passed the block
    /// on.
    cursor: Option<PacketCursor>,
}

impl Ring<PacketQueue> {
    /// Creates the receive ring of a packet socket over the blocks of its TPACKET_V3 ring.
    ///
    /// # Errors
    /// The queue refuses a block.
    pub fn from_socket(socket: Arc<PacketSocket>, ring: BlockRing) -> Result<Self, VerbsError> {
        let memory = Arc::clone(ring.memory());
        let attr = RingAttr {
            wrs: memory.blocks(),
            buffer: memory.block_bytes(),
            max_sge: 1,
            channel: true,
            ..RingAttr::default()
        };
        let slots = SlotMemory::from_blocks(memory, SlotLayout::new(attr));
        let queue = PacketQueue {
            socket,
            ring,
            tokens: BufferTokens::new(attr.wrs),
            blocks: attr.wrs,
            current: 0,
            cursor: None,
        };
        Self::with_queue(queue, Arc::new(slots), attr)
    }
}

impl PacketQueue {
    /// Enters at most `most` frames of the current block into the ring's account. Returns `false`
    /// if the kernel has not passed the block on.
    #[inline]
    fn poll_block(&mut self, account: &mut Account<'_>, most: usize) -> Result<bool, RingError> {
        let block = self.current;
        let cursor = match &mut self.cursor {
            Some(cursor) => cursor,
            // All blocks were read since this one, of which a parser still holds frames. Its status
            // is that of the first time: the kernel fills no block before it is returned.
            None if !account.is_posted(block) => return Ok(false),
            None => match self.ring.read(block) {
                Some(cursor) => self.cursor.insert(cursor),
                None => return Ok(false),
            },
        };
        let memory = account.memory;
        let mut cut = 0;
        let before = account.frames();
        {
            let failed = &mut account.batch.failed;
            let mut places = SpareCapacity::new(&mut account.batch.frames, most);
            while !places.is_full() {
                let frame = self
                    .ring
                    .next(cursor)
                    .map_err(|it| RingError::Block(it.0))?;
                let Some(frame) = frame else { break };
                let slot = memory.slot(block);
                if frame.len < frame.wire_len {
                    self.ring.count_too_long();
                    failed.push(Failed {
                        slot,
                        status: TOO_LONG,
                    });
                    cut += 1;
                    continue;
                }
                let facts = FrameFacts {
                    len: frame.len,
                    stamp: frame.stamp_ns,
                    stripped: None,
                };
                memory.fill(slot, frame.at, facts, |filled| places.push(filled));
            }
        }
        self.tokens.add(block, account.frames() - before + cut);
        if cursor.is_at_end() {
            self.cursor = None;
            self.current = (block + 1) % self.blocks;
            account.release_buffer(block)?;
        }
        Ok(true)
    }
}

// SAFETY: `post` marks a block only when the last token of the block has been returned, and drops
// that token; only then the kernel gets the block, and writes to it until it passes it on.
unsafe impl Queue for PacketQueue {
    #[inline]
    fn poll(&mut self, account: &mut Account<'_>, limit: usize) -> Result<(), RingError> {
        let start = account.frames();
        loop {
            let left = limit - (account.frames() - start);
            if left == 0 || !self.poll_block(account, left)? {
                return Ok(());
            }
        }
    }

    #[inline]
    fn post(
        &mut self,
        posted: &mut [bool],
        slots: impl Iterator<Item = Slot>,
        _memory: &SlotMemory,
        _attr: RingAttr,
    ) -> Result<u32, i32> {
        let mut count = 0;
        let ring = &mut self.ring;
        self.tokens.gather(slots, |slot| {
            posted[slot.index() as usize] = true;
            count += 1;
            // SAFETY: this was the block's last token, so no frame of it is read any more, and its
            // cursor was dropped before the kernel's token was returned.
            unsafe { ring.give_back(slot.index()) };
        });
        Ok(count)
    }

    /// Returns `true` if the current block has frames, whether or not the kernel has passed it on.
    #[inline]
    fn has_partial_block(&self) -> bool {
        self.ring.has_frames(self.current)
    }

    /// Returns `true` if the kernel has passed on the block three quarters of the ring ahead.
    fn is_short_of_memory(&self) -> bool {
        let ahead = self.blocks - self.blocks.div_ceil(4);
        self.ring.is_passed_on((self.current + ahead) % self.blocks)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    /// Does nothing: the socket is readable whenever the kernel has passed on a block.
    fn arm(&mut self, _wake: Wake) -> Result<(), VerbsError> {
        Ok(())
    }

    /// Clears a pending error of the socket, which would end every sleep at once.
    fn take_event(&mut self) -> bool {
        self.socket.clear_error();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{Batch, namespace::in_namespace};
    use std::{
        net::UdpSocket,
        thread,
        time::{Duration, Instant},
    };
    use wqcap_core::settings::Direction;
    use wqcap_sockets::packet::PacketAttr;

    const ATTR: PacketAttr = PacketAttr {
        blocks: 4,
        block_bytes: 1 << 16,
        retire: Duration::from_millis(2),
        promiscuous: false,
        direction: Direction::In,
    };

    /// Polls the ring for half a second. Returns the batches with frames, which hold their blocks.
    fn polled(ring: &mut Ring<PacketQueue>) -> Vec<Batch> {
        let end = Instant::now() + Duration::from_millis(500);
        let mut held = Vec::new();
        while Instant::now() < end {
            let mut batch = Batch::new(64);
            ring.poll(&mut batch, 64).expect("no error");
            held.extend(Some(batch).filter(|it| it.slots() > 0));
            thread::yield_now();
        }
        held
    }

    /// Parsers of other threads may hold frames of every block of the ring.
    #[test]
    fn a_ring_whose_blocks_are_all_held_has_no_frames() {
        in_namespace("65536", || {
            let (socket, ring) = PacketSocket::open("lo", &ATTR).expect("a packet socket");
            let socket = Arc::new(socket);
            socket.open_gate().expect("an open gate");
            let mut ring = Ring::from_socket(socket, ring).expect("a ring");
            let receiver = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            let to = receiver.local_addr().expect("an address");
            let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            let send = || {
                for _ in 0..20 {
                    sender.send_to(&[7; 30_000], to).expect("sends");
                }
            };
            send();
            let held = polled(&mut ring);
            let frames = |held: &[Batch]| held.iter().map(|it| it.frames.len()).sum::<usize>();
            // Two datagrams fit in a block. The kernel may retire a block after the first.
            let blocks = 4..=8;
            assert!(blocks.contains(&frames(&held)), "{}", frames(&held));
            assert_eq!(ring.outstanding(), 0);
            send();
            assert_eq!(frames(&polled(&mut ring)), 0);
            for mut batch in held {
                ring.repost(&mut batch).expect("blocks are given back");
            }
            send();
            let again = frames(&polled(&mut ring));
            assert!(blocks.contains(&again), "{again}");
        });
    }
}
