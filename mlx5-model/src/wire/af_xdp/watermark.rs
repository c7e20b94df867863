//! Watermark of the receive buffers: wakes a sleeping thread once frames have filled a large part
//! of them.
//!
//! The XDP program counts the frames of each receive queue, and puts an entry on a ring whenever a
//! count reaches a multiple of the watermark (BPF_MAP_TYPE_RINGBUF, Linux,
//! Documentation/bpf/ringbuf.rst). An AF_XDP socket alone wakes the thread at each frame, and a
//! timer at none. So a thread that waits for many frames would have to wake as often as the fastest
//! sender could fill the buffers.
//!
//! Imports `mapping` and `bpf`. Invariant: only the kernel writes the ring's entries, and this
//! process moves one end of the ring. Both sides write the counts, so the watermark is not exact.
//! If the kernel increments a count while this process sets it to 0, the old count may continue. If
//! several CPUs serve a queue at once, which happens in skb mode, some frames may not count. A
//! sleeping thread needs a time limit too.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::mapping::{MappingAccess, SharedMapping};
use super::bpf::{self, BPF_F_MMAPABLE, MapCreate};

/// BPF map type of an array (enum bpf_map_type).
const BPF_MAP_TYPE_ARRAY: u32 = 2;
/// BPF map type of a ring buffer (enum bpf_map_type).
const BPF_MAP_TYPE_RINGBUF: u32 = 27;
/// Bytes of a page. Two pages precede the entries of a BPF ring: the first has the position of this
/// process, the second the position of the kernel (`struct bpf_ringbuf`, kernel/bpf/ringbuf.c).
const PAGE: usize = 4096;
/// Binary logarithm of the bytes per frame count, which has a whole cache line of 64 bytes.
pub(super) const COUNT_SHIFT: u32 = 6;

/// Counts of frames by receive queue, and the BPF ring that signals the watermark.
pub(super) struct Watermark {
    ring: OwnedFd,
    /// BPF map of the frame counts, which the XDP program increments.
    program_counts: OwnedFd,
    counts: SharedMapping,
    /// Number of receive queues whose frames are counted.
    queues: u32,
    /// Page of the BPF ring with the position of this process.
    consumer: SharedMapping,
    /// Page of the BPF ring with the position of the kernel.
    producer: SharedMapping,
}

impl Watermark {
    /// Creates the frame counts and the BPF ring for `queues` receive queues.
    pub(super) fn new(queues: u32) -> Result<Watermark, bpf::Failed> {
        let map = |fd: &OwnedFd, len: usize, at: usize, access| {
            SharedMapping::new(fd.as_raw_fd(), len, at as u64, access)
        };
        let (program_counts, counts) = (|| {
            let len = queues << COUNT_SHIFT;
            let fd = bpf::create_map(&MapCreate {
                map_type: BPF_MAP_TYPE_ARRAY,
                key_size: size_of::<u32>() as u32,
                value_size: len,
                max_entries: 1,
                flags: BPF_F_MMAPABLE,
            })?;
            let len = (len as usize).next_multiple_of(PAGE);
            let counts = map(&fd, len, 0, MappingAccess::ReadWrite)?;
            Ok((fd, counts))
        })()
        .map_err(|e: io::Error| ("cannot create the BPF map of frame counts", e))?;
        let (ring, consumer, producer) = (|| {
            let fd = bpf::create_map(&MapCreate {
                map_type: BPF_MAP_TYPE_RINGBUF,
                key_size: 0,
                value_size: 0,
                max_entries: PAGE as u32,
                flags: 0,
            })?;
            let consumer = map(&fd, PAGE, 0, MappingAccess::ReadWrite)?;
            let producer = map(&fd, PAGE, PAGE, MappingAccess::Read)?;
            Ok((fd, consumer, producer))
        })()
        .map_err(|e: io::Error| ("cannot create the BPF ring of watermarks", e))?;
        Ok(Watermark {
            ring,
            program_counts,
            counts,
            queues,
            consumer,
            producer,
        })
    }

    /// Returns the descriptors of the BPF map of frame counts and of the BPF ring, for the XDP
    /// program.
    pub(super) fn maps(&self) -> (RawFd, RawFd) {
        (self.program_counts.as_raw_fd(), self.ring.as_raw_fd())
    }

    /// Sets all frame counts to 0. Returns a descriptor that becomes readable when a queue's count
    /// has reached the watermark.
    pub(super) fn begin(&self) -> RawFd {
        for queue in 0..self.queues as usize {
            word(&self.counts, queue << COUNT_SHIFT).store(0, Ordering::Relaxed);
        }
        let end = word(&self.producer, 0).load(Ordering::Acquire);
        word(&self.consumer, 0).store(end, Ordering::Release);
        self.ring.as_raw_fd()
    }
}

/// Returns the word at the offset `at` of a shared mapping.
fn word(memory: &SharedMapping, at: usize) -> &AtomicU64 {
    // SAFETY: the callers pass the offset of an aligned word within the mapping; the word lives as
    // long as the mapping, and both sides access it as a whole. Memory that is mapped for reading
    // is only loaded from.
    unsafe { AtomicU64::from_ptr(memory.base().as_ptr().add(at).cast()) }
}
