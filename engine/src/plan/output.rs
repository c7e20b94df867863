//! What is written, and what stays of it.

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

/// Files of the run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OutputPlan {
    /// Where; `None`: nothing is written, frames are counted.
    pub dir: Option<PathBuf>,
    /// One stream to stdout in place of files, in the order of time.
    pub stdout: bool,
    /// One file for each queue, or one in the order of time.
    pub order: config::Order,
    /// Files' names.
    pub name: NameTemplate,
    /// What the operator says of the capture.
    pub comment: String,
    /// `pcap`, `pcapng` or `none`.
    pub format: config::Format,
    /// Bytes of write buffers of all queues together.
    pub buffer: u64,
    /// When every buffer waits for the disk.
    pub on_full: config::OnFull,
    /// When a queue goes on to its next file.
    pub rotation: Rotation,
    /// How files are compressed.
    pub compress: config::Compress,
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
    pub vlan: config::Vlan,
}

impl OutputPlan {
    /// Whether the frames of all queues are written in the order of time, to one file or to stdout.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.format != config::Format::None && (self.stdout || self.order == config::Order::Time)
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
    pub keep: config::Keep,
    /// In files; 0: any number.
    pub files: u64,
    /// How long after they were written last, in nanoseconds; 0: for ever.
    pub age_ns: u64,
    /// What stays free of the file system.
    pub free: config::Keep,
}

impl Retention {
    /// Whether nothing is ever deleted.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// Write buffers a queue has at least: one being filled, one being written, one to go on in.
pub(crate) const LEAST_BLOCKS: usize = 3;

/// Bytes of the smallest write buffer, for frames of at most `longest` bytes: a file's header with all its texts and a
/// record with a note fit it, since a record may reach over two buffers and no more.
pub(crate) const fn least_block(longest: usize) -> usize {
    (longest + (12 << 10)).next_multiple_of(4096)
}

/// Bytes of the longest frame: a VLAN tag that is put back stands in front of what the buffers hold.
pub(crate) fn longest(ring: &QueueMemory) -> usize {
    ring.longest() as usize + 4
}

/// Holds `output.buffer` to what putting frames in the order of time takes: buffers for each queue, in half of it where
/// the other half is for a file.
fn in_order_of_time(output: &OutputConfig, queues: usize, longest: usize) -> Result<(), Error> {
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
    /// As configured, for frames of at most `longest` bytes; queues have their cores already.
    ///
    /// # Errors
    /// The hook's path cannot be made absolute, or the buffer is too small.
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
                "output.comment: pcap has no comments; output.format = \"pcapng\" has".into(),
            );
        }
        if output.format != config::Format::None {
            in_order_of_time(output, queues.len(), longest)?;
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

    /// Plain pcap files in `dir`, with `buffer` bytes of write buffers: one for each queue, never rotated or deleted.
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

/// Files' names; a configuration that was read has a sound template.
fn name(output: &OutputConfig) -> Result<NameTemplate, Error> {
    let template = output.name.parse();
    template.map_err(|e: String| Error::config("output.name", &output.name, e))
}

/// Cores that compress: those this process may use and no loop or parser has.
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
            "output.compress: every core has a loop or a parser, so compression takes time from them; name fewer capture.cores"
                .into(),
        );
    }
    cores
}

/// The hook, by a path that does not depend on PATH.
fn hook(output: &config::OutputConfig) -> Result<Option<PathBuf>, Error> {
    if output.hook.as_os_str().is_empty() {
        return Ok(None);
    }
    std::path::absolute(&output.hook)
        .map(Some)
        .map_err(|e| Error::config("output.hook", format!("{:?}", output.hook), e))
}

/// What flow records are written, with tables for so many queues or parsers, which share the memory; that of a cutoff, too.
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
