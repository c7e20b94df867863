//! Plan of the output: files, rotation, retention and flow records.

use super::{Plan, QueueMemory, QueuePlan};
use crate::{
    Error,
    analysis::flows::FlowsPlan,
    config::{self, Compress, Config, OutputConfig},
    sink::{LEAST_BLOCKS, Origin, OutputLimits, OutputPlan, Retention, Rotation, least_block},
    text::counted,
};
use std::path::{Path, PathBuf};
use wqcap_files::{
    index::ENDING as INDEX,
    name::{NameTemplate, PART, SEALED},
};

/// Returns the length in bytes of the longest frame that a file may get: the longest that the
/// receive buffers hold, and the VLAN tag that is put back.
pub(crate) fn longest(ring: &QueueMemory) -> usize {
    ring.longest() as usize + 4
}

/// Checks that `output.buffer` is large enough to merge frames in time order.
///
/// Merging takes buffers for each queue. With file output, only half of `output.buffer` is for
/// merging.
fn check_merge_buffer(
    output: &OutputConfig,
    buffer: config::Size,
    queues: usize,
    longest: usize,
) -> Result<(), Error> {
    let halves = if output.is_stdout() { 1 } else { 2 };
    let least = (halves * queues.max(1) * LEAST_BLOCKS * least_block(longest)) as u64;
    if buffer.0 >= least || !output.is_ordered() {
        return Ok(());
    }
    let least = config::Size(least.next_multiple_of(1 << 10));
    Err(Error::config(
        "output.buffer",
        buffer,
        format!(
            "with {}, one file or stream in time order needs at least \"{least}\"; set that, fewer \
             capture.queues, or output.order = \"queue\"",
            counted(queues, "queue")
        ),
    )
    .involving(&["capture.queues", "output.order"]))
}

/// Creates the output plan for frames of at most `longest` bytes, once the queues have their cores.
/// A thread merges the frames of `merged` queues in time order.
///
/// # Errors
/// The name template is invalid, the hook's path cannot be made absolute, or the buffer is too
/// small.
pub(super) fn output(
    config: &Config,
    queues: &[QueuePlan],
    merged: usize,
    buffer: config::Size,
    longest: usize,
    notes: &mut Vec<String>,
) -> Result<OutputPlan, Error> {
    let output = &config.output;
    let stdout = output.is_stdout();
    if output.format == config::Format::Pcap && !output.comment.is_empty() {
        notes.push(
            "output.comment: pcap files have no comments; set output.format = \"pcapng\"".into(),
        );
    }
    if output.format == config::Format::Pcap && config.port.len() > 1 && output.is_ordered() {
        notes.push(
            "output.format: pcap files do not record which port received a frame; set \"pcapng\""
                .into(),
        );
    }
    if output.format != config::Format::None && merged > 0 {
        check_merge_buffer(output, buffer, merged, longest)?;
    }
    let to_files = output.format != config::Format::None && !stdout;
    Ok(OutputPlan {
        dir: to_files.then(|| output.dir.clone()),
        stdout,
        order: output.order(),
        name: name(output)?,
        comment: output.comment.clone(),
        format: output.format,
        buffer: buffer.0,
        on_full: output.on_full.unwrap_or_default(),
        rotation: limits(output).rotation,
        compress: output.compress,
        spare_cores: spare_cores(output, queues, &super::queues::allowed(), notes),
        retention: limits(output).retention,
        hook: hook(output)?,
        index_dir: (!output.index_dir.as_os_str().is_empty()).then(|| output.index_dir.clone()),
        journal: config.ship.as_ref().map(|it| it.journal.clone()),
        encrypt: output.key_source(),
        vlan: output.vlan,
    })
}

/// Returns the limits of capture files that a configuration sets. They can change while a capture
/// runs ([`Capture::set_output_limits`](crate::capture::Capture::set_output_limits)).
#[must_use]
pub fn limits(output: &OutputConfig) -> OutputLimits {
    OutputLimits::new(
        Rotation {
            size: output.rotate_size.0,
            period_ns: output.rotate_time.nanos(),
            frames: output.rotate_frames,
        },
        Retention {
            keep: output.keep,
            files: output.keep_files,
            age_ns: output.keep_age.nanos(),
            free: output.keep_free,
        },
    )
}

/// Maximum length in bytes of a file's name: NAME_MAX of linux/limits.h, which most file systems have.
const NAME_MAX: usize = 255;

/// Checks that the longest names of capture files, and of their indexes, are not too long for a file
/// system.
///
/// # Errors
/// A name, or a folder of it, has more than [`NAME_MAX`] bytes.
pub(super) fn names_fit(plan: &Plan) -> Result<(), Error> {
    let output = &plan.output;
    if output.dir.is_none() {
        return Ok(());
    }
    let name = output
        .name
        .bind(&Origin::here().host, &plan.names_in_files());
    // The name of a file that is encrypted ends in `.part` before, and in `.enc` afterwards.
    let sealed = if output.encrypt.is_some() { SEALED } else { "" };
    let index = if output.index_dir.is_some() {
        INDEX
    } else {
        ""
    };
    let ending = match output.compress {
        Compress::None => output.format.to_string(),
        // The extensions of both methods have the same length.
        _ => format!("{}.zst", output.format),
    };
    let suffixes = [PART.to_owned(), format!("{sealed}{index}")];
    let suffix = suffixes.iter().max_by_key(|it| it.len());
    let longest = name.longest_component(&format!("{ending}{}", suffix.map_or("", |it| it)));
    let len = longest.len();
    if len <= NAME_MAX {
        return Ok(());
    }
    let problem = format!(
        "the longest name of a file or directory has {len} bytes, {longest:?}; at most {NAME_MAX} are possible; shorten the name"
    );
    Err(Error::config(
        "output.name",
        format!("{:?}", output.name.to_string()),
        problem,
    ))
}

/// Parses the configured template of capture file names.
fn name(output: &OutputConfig) -> Result<NameTemplate, Error> {
    let template = output.name.parse::<NameTemplate>();
    template.map_err(|e| Error::config("output.name", &output.name, e))
}

/// Returns the cores that compress capture files: those that this process may use and that have no
/// loop or parser.
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

/// Returns the path of the hook program as an absolute path, which does not depend on PATH.
fn hook(output: &config::OutputConfig) -> Result<Option<PathBuf>, Error> {
    if output.hook.as_os_str().is_empty() {
        return Ok(None);
    }
    std::path::absolute(&output.hook)
        .map(Some)
        .map_err(|e| Error::config("output.hook", format!("{:?}", output.hook), e))
}

/// Plans the flow records. Their `stages` tables share `flows.memory` and, if a cutoff limits
/// flows, the memory `of_cutoff` (bytes) of its tables.
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
        )
        .involving(&["output.dir"]));
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
