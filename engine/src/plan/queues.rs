//! Plan of the queues: their number, their cores, and the indirection table that spreads flows over
//! them.

use super::{Merge, PortPlan};
use crate::{
    Error,
    config::{self, Backend, Config, Loops},
    device::DeviceFacts,
    pipeline::ParserCpu,
    text::counted,
};
use serde::Serialize;
use wqcap_rss::table::{IndirectionTable, TableError};

/// Plan of a receive queue: an `ibv_wq` with its CQ, polled on one core.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct QueuePlan {
    /// Index of the receive queue, counted from 0; part of the capture file's name.
    pub index: u16,
    /// Index of the queue's port in [`Plan::ports`](super::Plan::ports).
    #[serde(skip)]
    pub port: usize,
    /// CPU that the queue's receive loop is pinned to.
    pub core: usize,
    /// `true` if another loop or a parser shares the receive loop's core. An empty poll then yields
    /// instead of spinning.
    pub shared_core: bool,
    /// CPUs of the queue's parser threads; empty in inline mode.
    pub parsers: Vec<ParserCpu>,
}

/// Maximum number of receive queues that a plan has by default.
pub(super) const DEFAULT_QUEUES: usize = 8;

/// Returns the CPUs that this process may run on.
pub(super) fn allowed() -> Vec<usize> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    cores.iter().map(|core| core.id).collect()
}

/// Returns the cores of the receive loops: the configured cores, else those of `near`.
///
/// # Errors
/// The process may not use a configured core.
pub(super) fn cores(
    config: &Config,
    allowed: &[usize],
    near: &[usize],
) -> Result<Vec<usize>, Error> {
    let cores = match &config.capture.cores {
        Some(cores) => {
            if let Some(core) = cores.iter().find(|c| !allowed.contains(c)) {
                return Err(Error::config(
                    "capture.cores",
                    format!("{cores:?}"),
                    format!("CPU {core} is not available to this process; use CPUs of {allowed:?}"),
                ));
            }
            cores.clone()
        }
        None => near.to_vec(),
    };
    if cores.is_empty() {
        return Err(Error::config(
            "capture.cores",
            "[]",
            "name at least one core, or leave the key out",
        ));
    }
    Ok(cores)
}

/// Returns the number of receive queues of a port of `device`, if `cores` cores receive.
///
/// # Errors
/// The device does not support the configured number.
pub(super) fn count(config: &Config, device: &DeviceFacts, cores: usize) -> Result<usize, Error> {
    // An AF_XDP socket receives the frames of one queue of the NIC.
    let of_nic = device.kernel.as_ref().map(|it| it.rx_queues as usize);
    let of_nic = of_nic.filter(|_| config.device.backend == config::Backend::AfXdp);
    let usual = match config.capture.mode {
        _ if of_nic.is_some() => of_nic.unwrap_or_default(),
        // One core is enough for the links of most such interfaces, and one file is in order.
        _ if device.kernel.is_some() => 1,
        // The sniffer rule reaches one queue only: see `Steering`.
        config::Mode::Sniffer => 1,
        _ => cores.min(DEFAULT_QUEUES),
    };
    let count = config.capture.queues.map_or(usual, usize::from);
    let most = match device.raw_qp_only {
        true => 1,
        false => device.caps.max_wq.min(device.caps.max_table) as usize,
    };
    let most = of_nic.map_or(most, |queues| queues.min(most));
    if count == 0 || count > most {
        return Err(Error::config(
            "capture.queues",
            count,
            format!("{} supports 1 to {most}", device.name),
        ));
    }
    Ok(count)
}

/// Returns `true` if one receive loop polls the queues of all ports. Adds a note if the ports cannot be
/// paired.
pub(super) fn are_paired(config: &Config, ports: &[PortPlan], notes: &mut Vec<String>) -> bool {
    if ports.len() < 2 || config.capture.loops == Loops::Separate {
        return false;
    }
    let output = &config.output;
    let has_blocks = |it: &PortPlan| it.device.kernel.is_some() && it.backend != Backend::AfXdp;
    let blocks = ports.iter().filter(|it| has_blocks(it)).count();
    let problem = if config.pipeline.mode == config::PipelineMode::Fanout {
        "with pipeline.mode = \"fanout\""
    } else if ports.iter().any(|it| it.queues > 1) {
        "with several queues per port"
    } else if blocks > 0 && blocks < ports.len() {
        "with af_packet next to another backend"
    } else if output.format != config::Format::None && output.is_stdout() {
        "with a stream to stdout"
    } else if output.format != config::Format::None && !output.is_ordered() {
        "without one file in time order"
    } else {
        return true;
    };
    notes.push(format!(
        "capture.loops: each port gets its own receive loops {problem}"
    ));
    false
}

/// Plans one receive queue for each of `ports` ports, all polled on one core.
pub(super) fn of_one_loop(ports: usize, core: usize) -> Vec<QueuePlan> {
    let queue = |port: usize| QueuePlan {
        index: port as u16,
        port,
        core,
        shared_core: false,
        parsers: Vec::new(),
    };
    (0..ports).map(queue).collect()
}

/// Plans the receive queues of all ports on the CPUs `cores`. `counts` is the number of queues of
/// each port.
pub(super) fn queues(
    config: &Config,
    counts: &[usize],
    cores: &[usize],
    near: &[usize],
    notes: &mut Vec<String>,
) -> Vec<QueuePlan> {
    let count: usize = counts.iter().sum();
    if count > cores.len() {
        let key = match counts {
            [_] => format!("capture.queues = {count}: "),
            _ => String::new(),
        };
        notes.push(format!(
            "{key}{count} receive loops share {}; each loop yields its core when its queue is empty",
            counted(cores.len(), "core")
        ));
    }
    let loops: Vec<usize> = (0..count).map(|i| cores[i % cores.len()]).collect();
    let parsers = match config.pipeline.mode {
        config::PipelineMode::Inline => Vec::new(),
        config::PipelineMode::Fanout => {
            let wanted = count * usize::from(config.pipeline.parsers_per_queue);
            parser_cores(&loops, near, wanted, notes)
        }
    };
    let is_shared = |core: usize| {
        let threads = loops.iter().chain(&parsers).filter(|it| **it == core);
        threads.count() > 1
    };
    let mut parser_cpus = parsers.iter().map(|&core| ParserCpu {
        core,
        shared_core: is_shared(core),
    });
    let ports = counts.iter().enumerate();
    let ports = ports.flat_map(|(port, queues)| std::iter::repeat_n(port, *queues));
    let queue = |((index, &core), port)| QueuePlan {
        index,
        port,
        core,
        shared_core: is_shared(core),
        parsers: parser_cpus.by_ref().take(parsers.len() / count).collect(),
    };
    (0..).zip(&loops).zip(ports).map(queue).collect()
}

/// Returns a note if the control group's quota of CPU time is less than the receive loops use. `cpus`
/// is the number of CPUs that this process may use at the same time by its affinity (which a cpuset
/// limits) and its quota, of either version of control groups.
pub(super) fn quota_note(queues: &[QueuePlan], allowed: usize, cpus: usize) -> Option<String> {
    let mut cores: Vec<_> = queues.iter().map(|it| it.core).collect();
    cores.sort_unstable();
    cores.dedup();
    (cpus < allowed && cpus < cores.len()).then(|| {
        format!(
            "the control group has CPU time for {}, and receive loops run on {}: the kernel stops them for a part of each \
             period, in which frames are lost; raise the quota (CPUQuota= of the unit), or set fewer capture.queues",
            counted(cpus, "CPU"),
            counted(cores.len(), "core")
        )
    })
}

/// Returns the cores of `wanted` parser threads: round robin over the cores without a receive loop,
/// or over all cores if every core has one.
fn parser_cores(
    loops: &[usize],
    near: &[usize],
    wanted: usize,
    notes: &mut Vec<String>,
) -> Vec<usize> {
    let free: Vec<usize> = near
        .iter()
        .copied()
        .filter(|core| !loops.contains(core))
        .collect();
    let cores = if free.is_empty() { near } else { &free };
    if free.len() < wanted {
        notes.push(format!(
            "pipeline.parsers_per_queue: {} for {} without a loop: they share cores; set fewer capture.queues to \
             leave more",
            counted(wanted, "parser"),
            counted(free.len(), "core")
        ));
    }
    cores.iter().copied().cycle().take(wanted).collect()
}

/// Returns the allowed CPUs of the device's NUMA node, or all allowed CPUs if the node is unknown
/// or has none of them.
#[expect(clippy::disallowed_methods, reason = "a file of sysfs")]
pub(super) fn near(node: Option<u32>, allowed: &[usize]) -> Vec<usize> {
    let list = node.and_then(|n| {
        std::fs::read_to_string(format!("/sys/devices/system/node/node{n}/cpulist")).ok()
    });
    let on_node: Vec<usize> = list.map(|l| cpus(l.trim())).unwrap_or_default();
    let both: Vec<usize> = allowed
        .iter()
        .copied()
        .filter(|c| on_node.contains(c))
        .collect();
    if both.is_empty() {
        allowed.to_vec()
    } else {
        both
    }
}

/// Parses a CPU list in the form of the kernel's sysfs, such as `0-3,8`.
pub(super) fn cpus(list: &str) -> Vec<usize> {
    list.split(',')
        .filter_map(|part| {
            let (a, b) = part.split_once('-').unwrap_or((part, part));
            Some(a.parse::<usize>().ok()?..=b.parse::<usize>().ok()?)
        })
        .flatten()
        .collect()
}

/// Returns the indirection table that the RSS QPs share, as the queue number in each entry; one
/// entry on a device without tables.
pub(super) fn table(
    config: &Config,
    queues: usize,
    device: &DeviceFacts,
) -> Result<Vec<u16>, Error> {
    if device.raw_qp_only {
        return Ok(vec![0]);
    }
    let (mut size, most) = (config.rss.table_size, device.caps.max_table);
    // The kernel, or the fan-out of packet sockets, spreads the frames; the key does not apply.
    if device.kernel.is_some() {
        let entries = u32::try_from(queues).unwrap_or(u32::MAX);
        size = size.max(entries.next_power_of_two());
    } else if size > most {
        return Err(Error::config(
            "rss.table_size",
            size,
            format!(
                "the size of the indirection table must be a power of two; the device supports at most {most} entries"
            ),
        ));
    }
    let weights = &config.rss.weights;
    if !weights.is_empty() && weights.len() != queues {
        return Err(Error::config(
            "rss.weights",
            format!("{weights:?}"),
            format!(
                "the list has {} for {}; write one weight per queue, or set capture.queues = {}",
                counted(weights.len(), "weight"),
                counted(queues, "queue"),
                weights.len()
            ),
        )
        .involving(&["capture.queues"]));
    }
    let queues = u16::try_from(queues).unwrap_or(u16::MAX);
    let table = IndirectionTable::new(size, queues, weights).map_err(|e| match e {
        TableError::NoWeight { .. } => Error::config("rss.weights", format!("{weights:?}"), e),
        _ => Error::config("rss.table_size", size, e),
    })?;
    Ok(table.entries().to_vec())
}

/// Returns the number of stages (filter, deduplication, sampling, cutoff) that process frames: one
/// per queue when inline, else one per parser.
pub(super) fn stages(queues: &[QueuePlan]) -> usize {
    queues.iter().map(|queue| queue.parsers.len().max(1)).sum()
}

/// Returns the number of stages that observe frames: those after the merge in time order, else all
/// stages.
pub(super) fn observers(queues: &[QueuePlan], merge: Merge) -> usize {
    match merge {
        Merge::Nothing => stages(queues),
        Merge::Queues => queues.len(),
        Merge::Ports | Merge::Loop => 1,
    }
}
