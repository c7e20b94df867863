//! Where captured frames go: encoded once into large blocks on the queue's core, written by a thread of their own.
//!
//! ```text
//! frame -> encode into the queue's block -> full blocks -> writer -> O_DIRECT -> file -> closer -> its name
//!               ^                                            |
//!               +----------------- empty blocks -------------+
//! ```
//!
//! | room | what is in it |
//! |---|---|
//! | `block` | the queue's half: records into blocks |
//! | `write` | the disk's half: the writer thread, open files, io_uring, the closer |
//! | `post` | what happens to finished files: retention, hooks, indexes |
//! | `reorder` | `output.order = "time"`: the queues' records joined by their stamps, before the writer |
//! | `requests` | what others ask of sinks: the next file, marks |
//! | `compress` | compression of blocks on cores of their own, between sinks and writer |
//!
//! May import: [`wqcap_memory`], [`wqcap_files::name`], [`wqcap_core::stats`], [`wqcap_core::settings`]'s words, what
//! [`crate::device::clock`] reports, and the seam of [`wqcap_core::consumer`]. A sink does not know that slots, rings or devices exist.
//!
//! Invariants: a queue's core never touches the disk. Blocks of a file are numbered by their offset, so they may be
//! written in any order; what counts as written is the unbroken run from the file's start, and a file that breaks is
//! cut at the end of its last whole record in that run.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod block;
mod compress;
mod limit;
mod origin;
pub mod outlook;
mod output;
mod pcap;
mod pcapng;
mod post;
mod reorder;
mod requests;
mod write;

pub use block::BlockSink;
pub use compress::compress_blocks;
pub use limit::{Reached, WriteLimit, Written};
pub use origin::Origin;
pub use output::{LEAST_BLOCKS, OutputPlan, Retention, Rotation, least_block};
pub use pcap::PcapEncoder;
pub use pcapng::PcapngEncoder;
pub use post::gauge::{PinnedFiles, RetentionGauge};
pub use post::{
    hook::{HookGate, HookProcess, HookReport, serve_hooks},
    retention::FinishTimes,
    sealer::EncryptionReport,
};
pub use reorder::InOrder;
pub use reorder::Relay;
pub use requests::{Note, Requests};
pub use wqcap_core::consumer::Count;
pub use write::{BLOCK, Backlog, Deleted, Files, Finished, KeptRing, Writer};

/// One record to be encoded.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Nanoseconds since 1970.
    pub ns: u64,
    /// What is kept of the frame.
    pub bytes: &'a [u8],
    /// The frame's length on the wire without the FCS, at least that of `bytes`.
    pub len: u32,
    /// What is kept of the FCS, behind `bytes`: all of it or nothing.
    pub fcs: &'a [u8],
    /// The FCS's bytes on the wire, 0 where the device does not deliver it.
    pub fcs_len: u32,
    /// The FCS was checked, and is another frame's.
    pub bad_fcs: bool,
    /// Frames of this queue lost right before this one, for want of room.
    pub lost_before: u64,
}

impl Record<'_> {
    /// Bytes in the file, the FCS's among them.
    #[inline]
    fn caplen(&self) -> usize {
        self.bytes.len() + self.fcs.len()
    }

    /// Bytes on the wire, the FCS's among them if the file holds such.
    #[inline]
    fn wire_len(&self) -> u32 {
        self.len + self.fcs_len
    }

    /// Writes what is kept of the frame into `out`, which has exactly [`Record::caplen`] bytes.
    #[inline]
    fn copy_to(&self, out: &mut [u8]) {
        let (frame, fcs) = out.split_at_mut(self.bytes.len());
        copy(self.bytes, frame);
        if !fcs.is_empty() {
            fcs.copy_from_slice(self.fcs);
        }
    }
}

/// Copies into as many bytes. The shortest of frames are copied without a call, both halves at once, which overlap.
#[inline]
fn copy(from: &[u8], to: &mut [u8]) {
    const HALF: usize = 32;
    if from.len() <= 2 * HALF
        && let (Some(first), Some(last)) = (from.first_chunk::<HALF>(), from.last_chunk::<HALF>())
    {
        let to = &mut to[..from.len()];
        to[..HALF].copy_from_slice(first);
        to[from.len() - HALF..].copy_from_slice(last);
    } else {
        to.copy_from_slice(from);
    }
}

/// What a file can tell of itself at its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Stamp of the first record.
    pub first_ns: u64,
    /// Stamp of the last record.
    pub last_ns: u64,
    /// Frames this queue received while the file was open.
    pub received: u64,
    /// Those of them that found no room.
    pub dropped: u64,
}

/// Turns frames into the bytes of a file format.
pub trait Encoder: Clone + Send + 'static {
    /// The file name's ending, `pcap`.
    fn extension(&self) -> &'static str;
    /// What a file of this queue begins with, whose first frame is stamped `ns`; `None`: it holds the frames of all
    /// queues. It tells what has happened since the file before it, up to that stamp.
    fn header(&mut self, queue: Option<u16>, ns: u64) -> Vec<u8>;
    /// The stamp from which on frames are not for that file, but for one that tells of more.
    fn until(&self) -> u64 {
        u64::MAX
    }
    /// Bytes of the record.
    fn record_len(&self, record: &Record<'_>) -> usize;
    /// Writes the record into `out`, which has exactly [`Encoder::record_len`] bytes.
    fn record(&self, out: &mut [u8], queue: u16, record: &Record<'_>);
    /// Whether records can tell of marks.
    fn tells_marks(&self) -> bool {
        false
    }
    /// Another filter holds from the next record on; whether that record is to tell ([`Encoder::annotated`]).
    fn filtered(&mut self, _filter: &str) -> bool {
        false
    }
    /// The record, telling its reader these notes, where the format has room for that.
    fn annotated(&self, queue: u16, record: &Record<'_>, _notes: &[Note]) -> Vec<u8> {
        let mut out = vec![0; self.record_len(record)];
        self.record(&mut out, queue, record);
        out
    }
    /// What a file ends with: so many bytes, whatever it tells.
    fn trailer(&self, totals: &Totals) -> Vec<u8>;
}
