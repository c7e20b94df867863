//! What wakes a sleeper once frames have filled a good part of the buffers: the XDP program counts the frames of each receive
//! queue, and puts an entry on a ring whenever a count comes to a multiple (BPF_MAP_TYPE_RINGBUF, Linux,
//! Documentation/bpf/ringbuf.rst).
//!
//! A socket by itself wakes at each frame and a timer at none, so a sleeper that wants many frames at once would have to
//! wake as often as the fastest sender could fill the buffers.
//!
//! Imports `mapping` and `bpf`. Invariant: the ring's entries are the kernel's, and this process moves one end of it. Both
//! sides write to the counts, so the mark is not exact: a count that the kernel is just adding to goes on from there when it is
//! set to 0, and of a queue that several processors serve at once, which happens in skb mode, some frames may not count. A
//! sleeper needs a time limit beside it.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::mapping::{MappingAccess, SharedMapping};
use super::bpf::{self, BPF_F_MMAPABLE, MapCreate};

/// enum bpf_map_type.
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_RINGBUF: u32 = 27;
/// A page in front of the ring's entries holds this process's end, and the one behind it the kernel's
/// (`struct bpf_ringbuf`, kernel/bpf/ringbuf.c).
const PAGE: usize = 4096;
/// Bytes of a count, so that each has a cache line of its own: binary logarithm.
pub(super) const COUNT_SHIFT: u32 = 6;

pub(super) struct Watermark {
    ring: OwnedFd,
    program_counts: OwnedFd,
    counts: SharedMapping,
    queues: u32,
    consumer: SharedMapping,
    producer: SharedMapping,
}

impl Watermark {
    /// For so many queues.
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
        .map_err(|e: io::Error| ("make a map of counts", e))?;
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
        .map_err(|e: io::Error| ("make a ring of watermarks", e))?;
        Ok(Watermark {
            ring,
            program_counts,
            counts,
            queues,
            consumer,
            producer,
        })
    }

    /// The map of counts and the ring, for the program.
    pub(super) fn maps(&self) -> (RawFd, RawFd) {
        (self.program_counts.as_raw_fd(), self.ring.as_raw_fd())
    }

    /// Begins to count anew. The descriptor becomes readable when a queue's count has come to its mark.
    pub(super) fn begin(&self) -> RawFd {
        for queue in 0..self.queues as usize {
            word(&self.counts, queue << COUNT_SHIFT).store(0, Ordering::Relaxed);
        }
        let end = word(&self.producer, 0).load(Ordering::Acquire);
        word(&self.consumer, 0).store(end, Ordering::Release);
        self.ring.as_raw_fd()
    }
}

/// The word at a place of a mapping.
fn word(memory: &SharedMapping, at: usize) -> &AtomicU64 {
    // SAFETY: the place of an aligned word within the mapping, as its caller knows, which lives as long as the mapping; both
    // sides reach it as a whole. Of memory that may only be read, nothing but loads are asked for.
    unsafe { AtomicU64::from_ptr(memory.base().as_ptr().add(at).cast()) }
}
