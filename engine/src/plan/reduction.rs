//! Plan of the reduction: the frames and bytes that are left out before the sinks.

use crate::{
    Error,
    analysis::{
        flows::FlowsPlan,
        limits::{CutoffPlan, FlowLimit},
    },
    config::{Config, CutoffConfig},
    filter::{self, Filter, FilterCompiler},
    frame::dedup,
    pipeline::reduce::Reduction,
};

/// Derives the reduction of frames (filter, deduplication, sampling, cutoff, slicing) from the
/// configuration.
///
/// # Errors
/// `capture.filter` or the filter of a `[[cutoff]]` does not compile.
pub fn reduction(config: &Config) -> Result<Reduction, Error> {
    with_filters(config, &FilterCompiler::default())
}

/// Derives the reduction of frames like [`reduction`]; `filters` compiles the configuration's
/// filters.
pub(super) fn with_filters(config: &Config, filters: &FilterCompiler) -> Result<Reduction, Error> {
    let capture = &config.capture;
    let dedup_ns = capture.dedup.nanos();
    let limits = (1..)
        .zip(&config.cutoff)
        .map(|(n, it)| limit(n, it, filters));
    let limits = limits.collect::<Result<Vec<_>, _>>()?;
    Ok(Reduction {
        filter: compile_filter(filters, "capture.filter", &capture.filter)?,
        dedup_ns,
        dedup_ignore: capture.dedup_ignore.clone(),
        dedup_memory: match dedup_ns {
            0 => 0,
            length => dedup::memory(length),
        },
        sample: capture.sample,
        sample_by: capture.sample_by,
        cutoff: (!limits.is_empty()).then(|| CutoffPlan {
            limits,
            idle_ns: capture.cutoff_idle.nanos(),
            capacity: CutoffPlan::capacity_of(capture.cutoff_memory.0),
        }),
        slice: capture.slice,
        verify_fcs: capture.verify_fcs,
    })
}

/// Divides the memory of the flow tables of `[[cutoff]]` among `stages` queues or parsers. With
/// flow records, the cutoff uses their tables instead, whose capacity then applies.
pub(super) fn divide_cutoff(
    mut reduction: Reduction,
    stages: usize,
    flows: Option<&FlowsPlan>,
) -> Reduction {
    if let Some(cutoff) = &mut reduction.cutoff {
        let own = (cutoff.capacity / stages.max(1)).max(1);
        cutoff.capacity = flows.map_or(own, |it| it.capacity);
    }
    reduction
}

/// Returns the flow limit of the `[[cutoff]]` section with this number, counted from 1.
fn limit(
    number: usize,
    config: &CutoffConfig,
    filters: &FilterCompiler,
) -> Result<FlowLimit, Error> {
    Ok(FlowLimit {
        filter: compile_filter(filters, &format!("cutoff {number}: filter"), &config.filter)?,
        bytes: config.bytes.map(|it| it.0),
        packets: config.packets,
    })
}

/// Compiles the pcap-filter expression of a configuration key.
///
/// # Errors
/// The filter does not compile; the error names the key.
pub fn compile_filter(
    filters: &FilterCompiler,
    key: &str,
    expression: &str,
) -> Result<Filter, Error> {
    filters
        .compile(expression)
        .map_err(|e| Error::config(key, filter::quoted_expression(expression), e))
}
