//! Queue of an AF_XDP socket: its slots are the chunks of the socket's memory, each with one frame.
//!
//! The kernel has a chunk from its posting until a descriptor of the ring of filled chunks names it.
//! The time stamps of frames are in nanoseconds since 1970 ([`crate::StampSource::Kernel`]).
#![allow(unsafe_code)]

use super::pool::{FrameFacts, Slot, SlotLayout, SlotMemory};
use super::{Account, Queue, Ring, RingAttr, RingError, Wake, places::SpareCapacity};
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};
use wqcap_sockets::xdp::{ChunkRing, XdpSocket};
use wqcap_verbs::VerbsError;

/// Receive queue of an AF_XDP socket.
pub struct XdpQueue {
    socket: Arc<XdpSocket>,
    ring: ChunkRing,
    /// `true`: the loop sleeps until many frames have arrived; `false`: until one has.
    gathers: bool,
}

impl Ring<XdpQueue> {
    /// Creates the receive ring of an AF_XDP socket over the chunks of its memory, and gives the
    /// kernel all of them.
    ///
    /// # Errors
    /// The queue refuses a chunk.
    pub fn from_xdp(socket: Arc<XdpSocket>, ring: ChunkRing) -> Result<Self, VerbsError> {
        let attr = RingAttr {
            wrs: ring.chunks(),
            buffer: ring.chunk_bytes(),
            max_sge: 1,
            channel: true,
            ..RingAttr::default()
        };
        let slots = SlotMemory::from_chunks(Arc::clone(ring.memory()), SlotLayout::new(attr));
        let queue = XdpQueue {
            socket,
            ring,
            gathers: false,
        };
        Self::with_queue(queue, Arc::new(slots), attr)
    }
}

impl XdpQueue {
    /// Wakes the network driver if it has stopped to take free chunks.
    #[inline]
    fn wake_driver(&self) {
        if self.ring.needs_wakeup() {
            self.socket.wake();
        }
    }

    /// Enters at most `limit` of the frames that waited at the last refresh into the ring's
    /// account.
    #[inline]
    fn enter(&mut self, account: &mut Account<'_>, limit: usize) -> Result<(), RingError> {
        let memory = account.memory;
        let (frames, mut slots) = account.parts();
        let mut places = SpareCapacity::new(frames, limit);
        while !places.is_full() {
            let frame = self
                .ring
                .take_frame()
                .map_err(|it| RingError::Descriptor(it.0))?;
            let Some(frame) = frame else { break };
            let slot = slots.take_slot(frame.chunk)?;
            let facts = FrameFacts {
                len: frame.len,
                stamp: frame.stamp_ns,
                stripped: None,
            };
            memory.fill(slot, frame.at, facts, |filled| places.push(filled));
        }
        Ok(())
    }
}

// SAFETY: `post` marks a chunk, drops its token and gives the chunk to the kernel, which then names
// it in at most one descriptor; `enter` creates its next token for that descriptor only if the chunk
// is marked. The kernel does not write to a chunk after its descriptor.
unsafe impl Queue for XdpQueue {
    #[inline]
    fn poll(&mut self, account: &mut Account<'_>, limit: usize) -> Result<(), RingError> {
        if !self.ring.refresh() {
            self.wake_driver();
            return Ok(());
        }
        let entered = self.enter(account, limit);
        self.ring.release();
        entered
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
        for slot in slots {
            posted[slot.index() as usize] = true;
            count += 1;
            // SAFETY: the chunk's token was returned, so no byte of it is read any more, and the
            // kernel has no chunk whose token exists.
            unsafe { self.ring.give(slot.index()) };
        }
        self.ring.publish();
        self.wake_driver();
        Ok(count)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(match self.gathers {
            true => self.ring.watermark_fd(),
            false => self.socket.as_fd(),
        })
    }

    /// Lets the next sleep last until many frames have arrived, or until its time limit: a loop that
    /// wakes for each frame of a slow link needs several times the CPU time. The sleep lasts until
    /// the next frame if few chunks are free.
    fn arm(&mut self, wake: Wake) -> Result<(), VerbsError> {
        self.gathers = wake == Wake::AtMany && self.ring.begin_gathering();
        self.wake_driver();
        Ok(())
    }

    /// Clears a pending error of the AF_XDP socket.
    fn take_event(&mut self) -> bool {
        self.socket.clear_error();
        true
    }
}

#[cfg(test)]
mod tests {
    //! Frames of the loopback interface of a network namespace that the test makes itself, with `ip`.

    use super::*;
    use crate::ring::{Batch, namespace::in_namespace, pool::Filled};
    use std::{
        net::UdpSocket,
        thread,
        time::{Duration, Instant},
    };
    use wqcap_core::{sync::wakeup::wait_readable, time::system_ns};
    use wqcap_sockets::xdp::{XdpAttr, XdpInterface};

    const ATTR: XdpAttr = XdpAttr {
        queues: 1,
        chunks: 48,
        chunk_bytes: 2048,
        numa_node: None,
        promiscuous: false,
    };
    /// Time limit for frames to arrive in a test.
    const PATIENCE: Duration = Duration::from_secs(10);
    /// Number of bytes of a test frame's Ethernet, IPv4 and UDP headers.
    const HEADERS: usize = 14 + 20 + 8;

    fn send(numbers: std::ops::Range<u32>) {
        let receiver = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let to = receiver.local_addr().expect("an address");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        for number in numbers {
            sender.send_to(&number.to_be_bytes(), to).expect("sends");
        }
    }

    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < PATIENCE, "{what}");
            thread::yield_now();
        }
    }

    /// Receives as many frames as `numbers` has, and checks that they carry these numbers in order.
    fn receive(ring: &mut Ring<XdpQueue>, numbers: std::ops::Range<u32>) -> Vec<Filled> {
        let mut batch = Batch::new(7);
        let mut frames = Vec::new();
        until("all frames", || {
            ring.poll(&mut batch, usize::MAX).expect("polls");
            frames.append(&mut batch.frames);
            frames.len() >= numbers.len()
        });
        let now = system_ns();
        assert!(
            frames
                .iter()
                .all(|it| now.abs_diff(it.stamp()) < PATIENCE.as_nanos() as u64)
        );
        assert!(frames.iter().map(|it| number(it, ring)).eq(numbers));
        frames
    }

    fn number(frame: &Filled, ring: &Ring<XdpQueue>) -> u32 {
        u32::from_be_bytes(
            *frame.bytes(ring.memory())[HEADERS..]
                .first_chunk()
                .expect("4 bytes"),
        )
    }

    /// Returns the slots of frames to the ring, the last frame's first.
    fn give_back(ring: &mut Ring<XdpQueue>, frames: Vec<Filled>) {
        let mut batch = Batch::new(7);
        batch
            .home
            .extend(frames.into_iter().rev().map(Filled::into_slot));
        ring.repost(&mut batch).expect("posts");
    }

    #[test]
    fn a_chunk_returns_to_the_kernel_with_its_slot_and_no_frame_is_received_twice() {
        in_namespace("1500", || {
            let (interface, rings) = XdpInterface::open("lo", &ATTR).expect("opens");
            let [ring] = <[_; 1]>::try_from(rings).expect("one ring");
            let socket = Arc::clone(&interface.sockets()[0]);
            let lost = || interface.sockets()[0].counts().expect("counts").lost();
            let mut ring = Ring::from_xdp(socket, ring).expect("a ring");
            assert_eq!((ring.outstanding(), ring.away()), (ATTR.chunks, 0));
            interface.open_gate();
            // Half of the chunks are held, and the others circulate out of order.
            send(0..24);
            let held = receive(&mut ring, 0..24);
            assert_eq!((ring.outstanding(), ring.away()), (24, 24));
            for round in 1..20 {
                let numbers = 24 * round..24 * (round + 1);
                send(numbers.clone());
                let frames = receive(&mut ring, numbers);
                give_back(&mut ring, frames);
            }
            // The held chunks take no frame.
            send(0..40);
            until("lost frames are counted", || lost() == 16);
            let frames = receive(&mut ring, 0..24);
            assert_eq!((ring.outstanding(), ring.away()), (0, 48));
            assert!(held.iter().map(|it| number(it, &ring)).eq(0..24));
            give_back(&mut ring, frames);
            give_back(&mut ring, held);
            assert_eq!((ring.outstanding(), ring.away()), (ATTR.chunks, 0));
            send(0..48);
            receive(&mut ring, 0..48);
            assert_eq!((lost(), ring.outstanding()), (16, 0));
        });
    }

    #[test]
    fn a_sleep_lasts_until_many_frames_have_arrived_and_until_one_has_if_few_chunks_are_free() {
        in_namespace("1500", || {
            let (interface, mut rings) = XdpInterface::open("lo", &ATTR).expect("opens");
            let socket = Arc::clone(&interface.sockets()[0]);
            let mut ring = Ring::from_xdp(socket, rings.remove(0)).expect("a ring");
            interface.open_gate();
            let wakes = |ring: &mut Ring<XdpQueue>, patience| {
                wait_readable(ring.event_fd().expect("a descriptor"), patience)
            };
            ring.arm(Wake::AtFirst).expect("arms");
            send(0..1);
            assert!(wakes(&mut ring, PATIENCE));
            let first = receive(&mut ring, 0..1);
            give_back(&mut ring, first);
            // A third of the 48 chunks is the largest power of two below their half.
            ring.arm(Wake::AtMany).expect("arms");
            send(0..15);
            let frames = receive(&mut ring, 0..15);
            assert!(!wakes(&mut ring, Duration::ZERO));
            send(0..1);
            assert!(wakes(&mut ring, PATIENCE));
            ring.arm(Wake::AtMany).expect("arms");
            assert!(!wakes(&mut ring, Duration::ZERO));
            let held = (frames, receive(&mut ring, 0..1));
            send(0..9);
            let more = receive(&mut ring, 0..9);
            ring.arm(Wake::AtMany).expect("arms");
            assert!(!wakes(&mut ring, Duration::ZERO));
            send(0..1);
            assert!(wakes(&mut ring, PATIENCE));
            assert!(ring.take_event());
            for frames in [held.0, held.1, more] {
                give_back(&mut ring, frames);
            }
            receive(&mut ring, 0..1);
        });
    }
}
