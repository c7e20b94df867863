//! What is written, and what stays of it.

use super::{QueueMemory, QueuePlan};
use crate::{
    Error,
    analysis::flows::FlowsPlan,
    config::{self, Config, OutputConfig},
    sink::{LEAST_BLOCKS, OutputPlan, Retention, Rotation, least_block},
    text::counted,
};
use std::path::{Path, PathBuf};
use wqcap_files::name::NameTemplate;

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

/// As configured, for frames of at most `longest` bytes; queues have their cores already.
///
/// # Errors
/// The hook's path cannot be made absolute, or the buffer is too small.
pub(super) fn output(
    config: &Config,
    queues: &[QueuePlan],
    longest: usize,
    notes: &mut Vec<String>,
) -> Result<OutputPlan, Error> {
    let output = &config.output;
    let stdout = output.is_stdout();
    if output.format == config::Format::Pcap && !output.comment.is_empty() {
        notes.push("output.comment: pcap has no comments; output.format = \"pcapng\" has".into());
    }
    if output.format != config::Format::None {
        in_order_of_time(output, queues.len(), longest)?;
    }
    let to_files = output.format != config::Format::None && !stdout;
    Ok(OutputPlan {
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
