//! What is written, and what stays of it.

use serde::Serialize;
use std::path::{Path, PathBuf};
use wqcap_core::settings::{Compress, Format, Keep, OnFull, Order, Vlan};
use wqcap_files::{name::NameTemplate, sealed::KeySource};

/// Files of the run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OutputPlan {
    /// Where; `None`: nothing is written, frames are counted.
    pub dir: Option<PathBuf>,
    /// One stream to stdout in place of files, in the order of time.
    pub stdout: bool,
    /// One file for each queue, or one in the order of time.
    pub order: Order,
    /// Files' names.
    pub name: NameTemplate,
    /// What the operator says of the capture.
    pub comment: String,
    /// `pcap`, `pcapng` or `none`.
    pub format: Format,
    /// Bytes of write buffers of all queues together.
    pub buffer: u64,
    /// When every buffer waits for the disk.
    pub on_full: OnFull,
    /// When a queue goes on to its next file.
    pub rotation: Rotation,
    /// How files are compressed.
    pub compress: Compress,
    /// Cores for that, which no queue has.
    pub spare_cores: Vec<usize>,
    /// What stays of finished files.
    pub retention: Retention,
    /// The program to run after each finished file.
    pub hook: Option<PathBuf>,
    /// The folder of indexes of finished files.
    pub index_dir: Option<PathBuf>,
    /// The journal of what ships finished files; those that it has not shipped are deleted last.
    pub journal: Option<PathBuf>,
    /// Where the key comes from that finished files are encrypted with; `None`: they are not.
    pub encrypt: Option<KeySource>,
    /// What becomes of tags that the NIC takes off.
    pub vlan: Vlan,
}

impl OutputPlan {
    /// Whether the frames of all queues are written in the order of time, to one file or to stdout.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.format != Format::None && (self.stdout || self.order == Order::Time)
    }

    /// Plain pcap files in `dir`, with `buffer` bytes of write buffers: one for each queue, never rotated or deleted.
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

/// When a queue goes on to its next file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rotation {
    /// Before a file would grow beyond so many bytes; 0: never.
    pub size: u64,
    /// At every multiple of so many nanoseconds of the wall clock; 0: never.
    pub period_ns: u64,
    /// After so many frames; 0: never.
    pub frames: u64,
}

/// What may stay of finished files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Retention {
    /// In bytes.
    pub keep: Keep,
    /// In files; 0: any number.
    pub files: u64,
    /// How long after they were written last, in nanoseconds; 0: for ever.
    pub age_ns: u64,
    /// What stays free of the file system.
    pub free: Keep,
}

impl Retention {
    /// Whether nothing is ever deleted.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// Write buffers a queue has at least: one being filled, one being written, one to go on in.
pub const LEAST_BLOCKS: usize = 3;

/// Bytes of the smallest write buffer, for frames of at most `longest` bytes: a file's header with all its texts and a
/// record with a note fit it, since a record may reach over two buffers and no more.
pub const fn least_block(longest: usize) -> usize {
    (longest + (12 << 10)).next_multiple_of(4096)
}
