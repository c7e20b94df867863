//! Watermark of a receive queue: a descriptor that becomes readable when the XDP program has passed
//! on many frames, so that a sleeping thread is not woken for a few.
//!
//! The XDP program counts the frames of each queue, and puts an entry on the queue's BPF ring with
//! every Nth of them. The kernel wakes the ring's reader if all earlier entries were consumed.

use super::{
    bpf::MapAttr,
    mapping::{KernelMapping, page_bytes},
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
};

/// Binary logarithm of the distance in bytes between two frame counts in the control map: each has
/// a cache line, behind the line of the gate.
pub(super) const COUNT_SHIFT: u32 = 6;

/// Returns the offset of a queue's frame count in the control map.
pub(super) const fn count_at(queue: u32) -> usize {
    (queue as usize + 1) << COUNT_SHIFT
}

/// Watermark of a receive queue: its descriptor becomes readable when many frames have arrived.
#[derive(Debug)]
pub(super) struct QueueWatermark {
    ring: OwnedFd,
    /// Page with this process's end of the BPF ring.
    consumer: KernelMapping,
    /// Page with the kernel's end of the BPF ring.
    producer: KernelMapping,
    /// Control map of the XDP program, which has the frame counts.
    control: Arc<KernelMapping>,
    queue: u32,
}

impl QueueWatermark {
    pub(super) fn create(queue: u32, control: &Arc<KernelMapping>) -> io::Result<Self> {
        let page = page_bytes();
        let ring = Self::ring()?;
        // Two pages precede the entries, one for each end (`struct bpf_ringbuf` of
        // kernel/bpf/ringbuf.c).
        let consumer = KernelMapping::map(ring.as_fd(), 0, page)?;
        let producer = KernelMapping::map_read_only(ring.as_fd(), page as u64, page)?;
        Ok(Self {
            ring,
            consumer,
            producer,
            control: Arc::clone(control),
            queue,
        })
    }

    /// Creates a BPF ring of one page. It holds many more entries than the one that wakes the reader.
    pub(super) fn ring() -> io::Result<OwnedFd> {
        /// `BPF_MAP_TYPE_RINGBUF` of `enum bpf_map_type` (Linux 5.8).
        const RINGBUF: u32 = 27;
        let attr = MapAttr {
            map_type: RINGBUF,
            key_size: 0,
            value_size: 0,
            max_entries: page_bytes() as u32,
            map_flags: 0,
            inner_map_fd: 0,
        };
        attr.create()
    }

    /// Sets the queue's frame count to 0, and consumes all entries of the BPF ring. If the XDP program
    /// counts a frame at this moment, the watermark may be reached earlier.
    pub(super) fn reset(&self) {
        self.control
            .long(count_at(self.queue))
            .store(0, Ordering::Relaxed);
        let end = self.producer.long(0).load(Ordering::Acquire);
        self.consumer.long(0).store(end, Ordering::Release);
    }
}

impl AsFd for QueueWatermark {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}
