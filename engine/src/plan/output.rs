//! Plan of the output: files, rotation, retention and flow records.

use super::{QueueMemory, QueuePlan};
use crate::{
    Error,
    analysis::flows::FlowsPlan,
    config::{self, Config, OutputConfig},
    text::counted,
};
use serde::Serialize;
use std::path::{Path, PathBuf};
use wqcap_files::{name::NameTemplate, sealed::KeySource};

/// Files or stream that a run writes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OutputPlan {
    /// Directory of the capture files; `None` if no files are written.
    pub dir: Option<PathBuf>,
    /// `true` if one stream in time order goes to stdout instead of files.
    pub stdout: bool,
    /// Order of frames: one file for each queue, or one file in time order.
    pub order: config::Order,
    /// Template of file names.
    pub name: NameTemplate,
    /// Operator's comment on the capture.
    pub comment: String,
    /// File format: `pcap`, `pcapng` or `none`.
    pub format: config::Format,
    /// Bytes of write buffers of all queues together.
    pub buffer: u64,
    /// Reaction when every buffer waits for the disk.
    pub on_full: config::OnFull,
    /// Conditions for starting a queue's next file.
    pub rotation: Rotation,
    /// Compression of files.
    pub compress: config::Compress,
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
    pub vlan: config::Vlan,
}

impl OutputPlan {
    /// Returns `true` if the frames of all queues are written in time order, to one file or to
    /// stdout.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.format != config::Format::None && (self.stdout || self.order == config::Order::Time)
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
    pub keep: config::Keep,
    /// Maximum number of finished files; 0 means no limit.
    pub files: u64,
    /// Maximum age since the last write, in nanoseconds; 0 means no limit.
    pub age_ns: u64,
    /// Minimum free space of the file system, in bytes or as a share of it.
    pub free: config::Keep,
}

impl Retention {
    /// Returns `true` if no limit is set, so that files are never deleted.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// Minimum write buffers of a queue: one being filled, one being written, one to continue in.
pub(crate) const LEAST_BLOCKS: usize = 3;

/// Returns the bytes of the smallest write buffer for frames of at most `longest` bytes.
///
/// A file's header with all its texts and a record with a comment fit into it, because a record may
/// span at most two buffers.
pub(crate) const fn least_block(longest: usize) -> usize {
    (longest + (12 << 10)).next_multiple_of(4096)
}

/// Returns the bytes of the longest frame: the longest that the buffers hold and the VLAN tag that
/// is put back.
pub(crate) fn longest(ring: &QueueMemory) -> usize {
    ring.longest() as usize + 4
}

/// Checks that `output.buffer` is large enough to merge frames in time order.
///
/// Merging takes buffers for each queue. With file output, only half of `output.buffer` is for
/// merging.
fn check_merge_buffer(output: &OutputConfig, queues: usize, longest: usize) -> Result<(), Error> {
    let halves = if output.is_stdout() { 1 } else { 2 };
    let least = (halves * queues.max(1) * LEAST_BLOCKS * least_block(longest)) as u64;
    if output.buffer.0 >= least || !output.is_ordered() {
        return Ok(());
    }
    let least = config::Size(least.next_multiple_of(1 << 10));
    Err(Error::config(
        "output.buffer",
        output.buffer,
        format!(
            "with {}, one file or stream in time order needs at least \"{least}\"; set that, fewer \
             capture.queues, or output.order = \"queue\"",
            counted(queues, "queue")
        ),
    ))
}

impl OutputPlan {
    /// Creates the plan for frames of at most `longest` bytes, once the queues have their cores.
    ///
    /// # Errors
    /// The name template is invalid, the hook's path cannot be made absolute, or the buffer is too
    /// small.
    pub(super) fn new(
        config: &Config,
        queues: &[QueuePlan],
        longest: usize,
        notes: &mut Vec<String>,
    ) -> Result<Self, Error> {
        let output = &config.output;
        let stdout = output.is_stdout();
        if output.format == config::Format::Pcap && !output.comment.is_empty() {
            notes.push(
                "output.comment: pcap files have no comments; set output.format = \"pcapng\""
                    .into(),
            );
        }
        if output.format != config::Format::None {
            check_merge_buffer(output, queues.len(), longest)?;
        }
        let to_files = output.format != config::Format::None && !stdout;
        Ok(Self {
            dir: to_files.then(|| output.dir.clone()),
            stdout,
            order: output.order,
            name: name(output)?,
            comment: output.comment.clone(),
            format: output.format,
            buffer: output.buffer.0,
            on_full: output.on_full.unwrap_or_default(),
            rotation: Rotation {
                size: output.rotate_size.0,
                period_ns: output.rotate_time.nanos(),
                frames: output.rotate_frames,
            },
            compress: output.compress,
            spare_cores: spare_cores(output, queues, &super::queues::allowed(), notes),
            retention: Retention {
                keep: output.keep,
                files: output.keep_files,
                age_ns: output.keep_age.nanos(),
                free: output.keep_free,
            },
            hook: hook(output)?,
            index_dir: (!output.index_dir.as_os_str().is_empty()).then(|| output.index_dir.clone()),
            journal: config.ship.as_ref().map(|it| it.journal.clone()),
            encrypt: output.key_source(),
            vlan: output.vlan,
        })
    }

    /// Creates a plan of plain pcap files in `dir`, one for each queue, which are never rotated or
    /// deleted. `buffer` is the bytes of write buffers.
    #[must_use]
    pub fn pcap(dir: &Path, buffer: u64) -> Self {
        Self {
            dir: Some(dir.to_owned()),
            format: config::Format::Pcap,
            buffer,
            on_full: config::OnFull::Hold,
            ..Self::default()
        }
    }
}

/// Parses the template of file names. A configuration that was read has a valid one.
fn name(output: &OutputConfig) -> Result<NameTemplate, Error> {
    let template = output.name.parse();
    template.map_err(|e: String| Error::config("output.name", &output.name, e))
}

/// Returns the cores that compress: those that this process may use and that have no loop or
/// parser.
fn spare_cores(
    output: &config::OutputConfig,
    queues: &[QueuePlan],
    allowed: &[usize],
    notes: &mut Vec<String>,
) -> Vec<usize> {
    if output.compress == config::Compress::None || output.format == config::Format::None {
        return Vec::new();
    }
    let cores: Vec<usize> = allowed
        .iter()
        .copied()
        .filter(|id| {
            let taken = |queue: &QueuePlan| {
                queue.core == *id || queue.parsers.iter().any(|seat| seat.core == *id)
            };
            !queues.iter().any(taken)
        })
        .collect();
    if cores.is_empty() {
        notes.push(
            "output.compress: every core runs a loop or a parser, and compression slows these down; set fewer capture.cores"
                .into(),
        );
    }
    cores
}

/// Returns the hook as an absolute path, which does not depend on PATH.
fn hook(output: &config::OutputConfig) -> Result<Option<PathBuf>, Error> {
    if output.hook.as_os_str().is_empty() {
        return Ok(None);
    }
    std::path::absolute(&output.hook)
        .map(Some)
        .map_err(|e| Error::config("output.hook", format!("{:?}", output.hook), e))
}

/// Plans the flow records: `stages` tables share `flows.memory` and, with a cutoff, its memory
/// `of_cutoff` in bytes.
pub(super) fn flows(
    flows: &config::FlowsConfig,
    output: Option<&Path>,
    stages: usize,
    of_cutoff: Option<u64>,
) -> Result<FlowsPlan, Error> {
    if !cfg!(feature = "flows") {
        return Err(Error::config(
            "flows",
            flows.dir.display(),
            "this build has no flow records; build it with cargo's feature `flows`",
        ));
    }
    let same = |output: &Path| {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        real(output) == real(&flows.dir)
    };
    if output.is_some_and(same) {
        return Err(Error::config(
            "flows.dir",
            format!("{:?}", flows.dir),
            "output.dir holds capture files only; name another directory",
        ));
    }
    let stages = stages.max(1) as u64;
    Ok(FlowsPlan {
        dir: flows.dir.clone(),
        interval_ns: flows.interval.nanos(),
        active_ns: flows.active.nanos(),
        idle_ns: flows.idle.nanos(),
        capacity: FlowsPlan::capacity_of(flows.memory.0 / stages, of_cutoff.map(|it| it / stages)),
        names: flows.names,
    })
}
