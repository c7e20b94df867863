//! Sinks for captured frames: each frame is encoded into a large block on its queue's core, and a
//! writer thread writes the blocks.
//!
//! ```text
//! frame -> encode into the queue's block -> full blocks -> writer -> O_DIRECT -> file -> closer -> its name
//!               ^                                            |
//!               +----------------- empty blocks -------------+
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `block` | block sink of a queue: encodes records into write blocks; states of its capture file |
//! | `write` | the writer thread, open files, the policy for errors of the disk, io_uring, the closer |
//! | `post` | processing of finished files: retention, hooks, encryption, indexes |
//! | `reorder` | `output.order = "time"`: merges the queues' records by time stamp, before the writer |
//! | `requests` | requests to sinks: rotation, marks, flushes |
//! | `compress` | compression of blocks on spare cores, between the sinks and the writer |
//!
//! A sink does not access slots, rings or devices: it gets frames through [`wqcap_core::consumer`].
//!
//! Invariants: a queue's core never accesses the disk. The offset of each block in its file is fixed,
//! so blocks may be written in any order. Only the contiguous blocks from the file's start count as
//! written. A file that cannot be continued is cut at the end of the last whole record in them.

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

pub use block::{BlockSink, PortsSink};
pub use compress::{CompressError, compress_blocks};
pub use limit::{Reached, WriteLimit, Written};
pub use origin::{Origin, PortDescription};
pub use output::{LEAST_BLOCKS, OutputLimits, OutputPlan, Retention, Rotation, least_block};
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
pub use requests::{Note, SinkRequests};
pub use wqcap_core::consumer::Count;
pub use write::{
    BLOCK, Backlog, Deleted, MOST_UNCLOSED, PreparedRing, Writer, WriterConfig, WriterReport,
};

/// Frame record to encode: a frame with its metadata.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Time of the frame's reception in nanoseconds since 1970.
    pub ns: u64,
    /// Bytes of the frame that are written to its record.
    pub bytes: &'a [u8],
    /// Frame length on the wire without the FCS in bytes, at least the length of `bytes`.
    pub len: u32,
    /// FCS to write behind the frame's bytes: the whole FCS or empty.
    pub fcs: &'a [u8],
    /// Length of the frame's FCS on the wire in bytes; 0 if the device does not deliver it.
    pub fcs_len: u32,
    /// Index of the frame's interface in the capture file.
    pub interface: u32,
    /// `true` if the frame's FCS was checked and does not match the frame.
    pub bad_fcs: bool,
    /// Number of the queue's frames dropped directly before this frame because no write block was
    /// free.
    pub lost_before: u64,
}

impl Record<'_> {
    /// Returns the captured length of the frame in bytes, including the FCS if it is written.
    #[inline]
    fn caplen(&self) -> usize {
        self.bytes.len() + self.fcs.len()
    }

    /// Returns the frame's length on the wire in bytes, including the FCS if the device delivers
    /// it.
    #[inline]
    fn wire_len(&self) -> u32 {
        self.len + self.fcs_len
    }

    /// Writes the frame and its FCS into `out`, which has exactly [`Record::caplen`] bytes.
    #[inline]
    fn copy_to(&self, out: &mut [u8]) {
        let (frame, fcs) = out.split_at_mut(self.bytes.len());
        copy(self.bytes, frame);
        if !fcs.is_empty() {
            fcs.copy_from_slice(self.fcs);
        }
    }
}

/// Copies the frame bytes `from` to `to`, which has the same length. Frames of 32 to 64 bytes are
/// copied without a call, as two overlapping halves.
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

/// Frame statistics of a capture file, written at its end.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Totals {
    /// Time stamp of the file's first frame record in nanoseconds since 1970.
    pub first_ns: u64,
    /// Time stamp of the file's last frame record in nanoseconds since 1970.
    pub last_ns: u64,
    /// Number of frames received for the capture file, including dropped ones.
    pub received: u64,
    /// Number of frames that were dropped before a frame of the capture file, or behind the last one
    /// of the run, because no write block was free.
    pub dropped: u64,
    /// Numbers of frames by the index of their interface, in a capture file of all queues. In the
    /// file of a queue, which has one interface, they are not complete and not written.
    pub interfaces: Vec<InterfaceTotals>,
}

/// Numbers of received and dropped frames of one interface of a capture file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceTotals {
    /// Number of the interface's frames received for the capture file, including dropped ones.
    pub received: u64,
    /// Number of the interface's frames among [`Totals::dropped`].
    pub dropped: u64,
}

impl Totals {
    /// Counts `received` more frames of an interface, of which `dropped` were dropped.
    #[inline]
    fn count_of(&mut self, interface: u32, received: u64, dropped: u64) {
        let index = interface as usize;
        if self.interfaces.len() <= index {
            self.make_room_for(index);
        }
        let of_interface = &mut self.interfaces[index];
        of_interface.received += received;
        of_interface.dropped += dropped;
    }

    #[cold]
    fn make_room_for(&mut self, index: usize) {
        self.interfaces
            .resize(index + 1, InterfaceTotals::default());
    }
}

/// Encoder of frame records into a capture file format.
pub trait Encoder: Clone + Send + 'static {
    /// Returns the file name extension of the capture file format, for example `pcap`.
    fn extension(&self) -> &'static str;
    /// Returns the header of a capture file of queue `queue`, or of all queues if `None`, whose
    /// first frame is stamped `ns`. The header reports the outages since the previous file, up to
    /// `ns`.
    fn header(&mut self, queue: Option<u16>, ns: u64) -> Vec<u8>;
    /// Returns the time stamp at which a new capture file must begin, because its header has more
    /// outages to report; `u64::MAX`: none.
    fn next_header_ns(&self) -> u64 {
        u64::MAX
    }
    /// Returns the index of a queue's interface in a capture file of all queues.
    fn interface(&self, _queue: u16) -> u32 {
        0
    }
    /// Returns `true` if a sink sends the trailer at its end also if it has taken no frame record.
    fn ends_without_records(&self) -> bool {
        false
    }
    /// Returns the encoded length of a frame record in bytes.
    fn record_len(&self, record: &Record<'_>) -> usize;
    /// Writes the frame record into `out`, which has exactly [`Encoder::record_len`] bytes.
    fn record(&self, out: &mut [u8], queue: u16, record: &Record<'_>);
    /// Returns `true` if frame records of the capture file format can carry an operator's marks.
    fn supports_marks(&self) -> bool {
        false
    }
    /// Sets the capture filter that applies from the next frame record. Returns `true` if that
    /// record must carry a note of the change ([`Encoder::record_with_notes`]).
    fn set_filter(&mut self, _filter: &str) -> bool {
        false
    }
    /// Returns the encoded frame record with these notes, if the capture file format supports
    /// notes.
    fn record_with_notes(&self, queue: u16, record: &Record<'_>, _notes: &[Note]) -> Vec<u8> {
        let mut out = vec![0; self.record_len(record)];
        self.record(&mut out, queue, record);
        out
    }
    /// Returns the trailer of a capture file. Its length does not depend on `totals`.
    fn trailer(&self, totals: &Totals) -> Vec<u8>;
}
