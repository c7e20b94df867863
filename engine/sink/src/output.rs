//! Output settings of a run: what it writes, and which finished files are kept.

use serde::Serialize;
use std::path::{Path, PathBuf};
use wqcap_core::settings::{Compress, Format, Keep, OnFull, Order, Vlan};
use wqcap_files::{name::NameTemplate, sealed::KeySource};

/// Output settings of a run: the files or the stream that it writes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OutputPlan {
    /// Directory of the capture files; `None` if no files are written.
    pub dir: Option<PathBuf>,
    /// `true` if one stream in time order goes to stdout instead of files.
    pub stdout: bool,
    /// Order of frames in the output: one file for each queue, or one file in time order.
    pub order: Order,
    /// Template for the names of capture files.
    pub name: NameTemplate,
    /// Operator's comment on the capture, for readers of its files.
    pub comment: String,
    /// Format of the capture files: `pcap`, `pcapng` or `none`.
    pub format: Format,
    /// Size of all queues' write buffers together, in bytes.
    pub buffer: u64,
    /// Reaction to frames when every write buffer waits for the disk.
    pub on_full: OnFull,
    /// Conditions for starting a queue's next capture file.
    pub rotation: Rotation,
    /// Compression of the capture files.
    pub compress: Compress,
    /// Cores on which files are compressed: cores without a receive loop or parser.
    pub spare_cores: Vec<usize>,
    /// Retention limits on the finished files that are kept.
    pub retention: Retention,
    /// Program to run after each finished capture file.
    pub hook: Option<PathBuf>,
    /// Directory for the indexes of finished capture files.
    pub index_dir: Option<PathBuf>,
    /// Directory of the journal of `wqcap ship`; files that are not shipped are deleted last.
    pub journal: Option<PathBuf>,
    /// Source of the key that encrypts finished capture files; `None`: files are not encrypted.
    pub encrypt: Option<KeySource>,
    /// Treatment of VLAN tags that the NIC strips from frames.
    pub vlan: Vlan,
}

impl OutputPlan {
    /// Returns `true` if the frames of all queues are written in time order, to one file or to
    /// stdout.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.format != Format::None && (self.stdout || self.order == Order::Time)
    }

    /// Returns the limits of the capture files that can change while a capture runs.
    #[must_use]
    pub fn limits(&self) -> OutputLimits {
        OutputLimits {
            rotation: self.rotation,
            retention: self.retention,
        }
    }

    /// Replaces the limits of the capture files that can change while a capture runs.
    pub fn set_limits(&mut self, limits: OutputLimits) {
        (self.rotation, self.retention) = (limits.rotation, limits.retention);
    }

    /// Creates output settings for plain pcap files in `dir`, one for each queue, which are never
    /// rotated or deleted. `buffer` is the size of all write buffers in bytes.
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

/// Limits of a run's capture files that can change while a capture runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutputLimits {
    /// Conditions for starting a queue's next capture file.
    pub rotation: Rotation,
    /// Retention limits on the finished files that are kept.
    pub retention: Retention,
}

impl OutputLimits {
    /// Creates limits of capture files from the conditions for starting the next one and the limits on
    /// finished ones.
    #[must_use]
    pub fn new(rotation: Rotation, retention: Retention) -> Self {
        Self {
            rotation,
            retention,
        }
    }
}

/// Rotation: the conditions for starting a queue's next capture file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rotation {
    /// Maximum bytes of a capture file; 0 means no limit.
    pub size: u64,
    /// Rotation period in nanoseconds: a new capture file starts at every multiple of it on the
    /// wall clock; 0 means never.
    pub period_ns: u64,
    /// Maximum frames of a capture file; 0 means no limit.
    pub frames: u64,
}

/// Retention limits on the finished files that are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Retention {
    /// Maximum size of all finished capture files, in bytes or as a share of the file system.
    pub keep: Keep,
    /// Maximum number of finished capture files; 0 means no limit.
    pub files: u64,
    /// Maximum age of a capture file since its last write, in nanoseconds; 0 means no limit.
    pub age_ns: u64,
    /// Minimum free space of the output file system, in bytes or as a share of it.
    pub free: Keep,
}

impl Retention {
    /// Returns `true` if no retention limit is set, so that capture files are never deleted.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// Minimum number of write buffers of a queue: one being filled, one being written, one to continue
/// in.
pub const LEAST_BLOCKS: usize = 3;

/// Returns the size in bytes of the smallest write buffer for frames of at most `longest` bytes.
///
/// A file's header with all its texts and a record with a comment fit into it, because a record may
/// span at most two buffers.
pub const fn least_block(longest: usize) -> usize {
    (longest + (12 << 10)).next_multiple_of(4096)
}
