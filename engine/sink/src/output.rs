//! What a run writes, and what stays of it.

use serde::Serialize;
use std::path::{Path, PathBuf};
use wqcap_core::settings::{Compress, Format, Keep, OnFull, Order, Vlan};
use wqcap_files::{name::NameTemplate, sealed::KeySource};

/// Files or stream that a run writes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OutputPlan {
    /// Directory of the capture files; `None` if no files are written.
    pub dir: Option<PathBuf>,
    /// `true` if one stream in time order goes to stdout instead of files.
    pub stdout: bool,
    /// Order of frames: one file for each queue, or one file in time order.
    pub order: Order,
    /// Template of file names.
    pub name: NameTemplate,
    /// Operator's comment on the capture.
    pub comment: String,
    /// File format: `pcap`, `pcapng` or `none`.
    pub format: Format,
    /// Bytes of write buffers of all queues together.
    pub buffer: u64,
    /// Reaction when every buffer waits for the disk.
    pub on_full: OnFull,
    /// Conditions for starting a queue's next file.
    pub rotation: Rotation,
    /// Compression of files.
    pub compress: Compress,
    /// Cores that compress: cores without a loop or parser.
    pub spare_cores: Vec<usize>,
    /// Limits on the finished files that are kept.
    pub retention: Retention,
    /// Program to run after each finished file.
    pub hook: Option<PathBuf>,
    /// Directory of indexes of finished files.
    pub index_dir: Option<PathBuf>,
    /// Journal of `wqcap ship`; files that it has not shipped are deleted last.
    pub journal: Option<PathBuf>,
    /// Source of the key that encrypts finished files; `None` if files are not encrypted.
    pub encrypt: Option<KeySource>,
    /// Treatment of VLAN tags that the NIC strips.
    pub vlan: Vlan,
}

impl OutputPlan {
    /// Returns `true` if the frames of all queues are written in time order, to one file or to
    /// stdout.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.format != Format::None && (self.stdout || self.order == Order::Time)
    }

    /// Creates a plan of plain pcap files in `dir`, one for each queue, which are never rotated or
    /// deleted. `buffer` is the bytes of write buffers.
    #[must_use]
    pub fn pcap(dir: &Path, buffer: u64) -> Self {
        Self {
            dir: Some(dir.to_owned()),
            format: Format::Pcap,
            buffer,
            on_full: OnFull::Hold,
            ..Self::default()
        }
    }
}

/// Conditions for starting a queue's next file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rotation {
    /// Maximum bytes of a file; 0 means no limit.
    pub size: u64,
    /// Period in nanoseconds: a new file starts at every multiple of it on the wall clock; 0 means
    /// never.
    pub period_ns: u64,
    /// Maximum frames of a file; 0 means no limit.
    pub frames: u64,
}

/// Limits on the finished files that are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Retention {
    /// Maximum size of all finished files, in bytes or as a share of the file system.
    pub keep: Keep,
    /// Maximum number of finished files; 0 means no limit.
    pub files: u64,
    /// Maximum age since the last write, in nanoseconds; 0 means no limit.
    pub age_ns: u64,
    /// Minimum free space of the file system, in bytes or as a share of it.
    pub free: Keep,
}

impl Retention {
    /// Returns `true` if no limit is set, so that files are never deleted.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// Minimum write buffers of a queue: one being filled, one being written, one to continue in.
pub const LEAST_BLOCKS: usize = 3;

/// Returns the bytes of the smallest write buffer for frames of at most `longest` bytes.
///
/// A file's header with all its texts and a record with a comment fit into it, because a record may
/// span at most two buffers.
pub const fn least_block(longest: usize) -> usize {
    (longest + (12 << 10)).next_multiple_of(4096)
}
