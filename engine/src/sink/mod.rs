//! Where captured frames go: encoded once into large blocks on the queue's core, written by a thread of their own.
//!
//! ```text
//! frame -> encode into the queue's block -> full blocks -> writer -> io_uring, O_DIRECT -> file -> closer -> its name
//!               ^                                            |
//!               +----------------- empty blocks -------------+
//! ```
//!
//! `writer` is what others see of this, `work` the thread that writes, `open` a file it writes, `disk` its way there,
//! `ahead` who opens files for it.
//!
//! In the order of time, an orderer joins the queues' blocks before that (`order`), and writes to stdout itself if it
//! is to (`stream`). With compression, packers stand between the sinks and the writer (`pack`).
//!
//! May import: [`crate::memory`], [`crate::name`], [`crate::stats`], [`crate::config`]'s words, what
//! [`crate::device::clock`] reports, and the seam of [`crate::pipeline`]. A sink does not know that slots, rings or devices exist.
//!
//! Invariants: a queue's core never touches the disk. Blocks of a file are numbered by their offset, so they may be
//! written in any order; what counts as written is the unbroken run from the file's start, and a file that breaks is
//! cut at the end of its last whole record in that run.

mod aftercare;
mod ahead;
mod backlog;
mod block;
mod closer;
mod count;
mod disk;
mod drought;
mod hook;
mod keep;
mod named;
mod open;
mod order;
mod origin;
mod pack;
mod pcap;
mod pcapng;
mod plain;
mod stream;
mod work;
mod writer;

pub use backlog::Backlog;
pub use block::{BlockSink, OnFull, Rotation};
pub use count::Count;
pub use hook::{HookProcess, HookReport, serve_hooks};
pub use keep::{Keep, Share};
pub use order::Relay;
pub use origin::Origin;
pub use pack::compress_blocks;
pub use pcap::PcapEncoder;
pub use pcapng::PcapngEncoder;
pub use plain::write_plainly;
pub use writer::{Deleted, Files, Finished, Writer};

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
        frame.copy_from_slice(self.bytes);
        fcs.copy_from_slice(self.fcs);
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
    /// What a file of this queue begins with; `None`: it holds the frames of all queues. It tells what has happened
    /// since the file before it.
    fn header(&mut self, queue: Option<u16>) -> Vec<u8>;
    /// Bytes of the record.
    fn record_len(&self, record: &Record<'_>) -> usize;
    /// Writes the record into `out`, which has exactly [`Encoder::record_len`] bytes.
    fn record(&self, out: &mut [u8], queue: u16, record: &Record<'_>);
    /// Another filter holds from the next record on; whether that record is to tell ([`Encoder::annotated`]).
    fn filtered(&mut self, _filter: &str) -> bool {
        false
    }
    /// The record, telling its reader that this filter holds from it on, where the format has room for that.
    fn annotated(&self, queue: u16, record: &Record<'_>, _filter: &str) -> Vec<u8> {
        let mut out = vec![0; self.record_len(record)];
        self.record(&mut out, queue, record);
        out
    }
    /// What a file ends with: so many bytes, whatever it tells.
    fn trailer(&self, totals: &Totals) -> Vec<u8>;
}
