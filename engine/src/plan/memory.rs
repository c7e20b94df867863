//! Check that the memory that a run allocates fits the machine.

use super::{QueuePlan, control_group, queues};
use crate::{
    Error,
    analysis::flows::FlowsPlan,
    config::{Config, Format, Size},
    frame::dedup,
    text::counted,
};
use std::{fs, sync::LazyLock};

/// Returns the bytes of memory available to this process: the machine's, or the smaller limit of
/// its control group. `u64::MAX`: neither can be read.
#[must_use]
pub fn available_memory() -> u64 {
    /// Read once, at the start, because a sandbox may hide the file later.
    static MACHINE: LazyLock<u64> = LazyLock::new(|| machine_memory().unwrap_or(u64::MAX));
    control_group::memory_limit().map_or(*MACHINE, |it| it.min(*MACHINE))
}

/// Returns the bytes of the machine's memory, from `/proc/meminfo` (proc_meminfo(5)).
#[expect(clippy::disallowed_methods, reason = "a file of /proc")]
fn machine_memory() -> Option<u64> {
    let facts = fs::read_to_string("/proc/meminfo").ok()?;
    let total = facts.lines().find_map(|it| it.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Returns the bytes for the flow tables of `[[cutoff]]`, which limits how much of a flow is kept;
/// `None` without `[[cutoff]]`.
pub(super) fn of_cutoff(config: &Config) -> Option<u64> {
    (!config.cutoff.is_empty()).then_some(config.capture.cutoff_memory.0)
}

/// Checks that the memory that all configuration keys request is at most the `there` bytes that are
/// available, `rings` of them for the receive rings.
///
/// # Errors
/// The keys take more memory. The error names the key that takes most.
pub(super) fn fits(
    config: &Config,
    rings: u64,
    queues: &[QueuePlan],
    buffer: Size,
    there: u64,
) -> Result<(), Error> {
    let count = queues.len() as u64;
    let buffers = match config.output.format {
        Format::None => 0,
        Format::Pcap | Format::Pcapng => buffer.0,
    };
    let stages = queues::stages(queues) as u64;
    let cutoff = of_cutoff(config).unwrap_or(0);
    let flows = config.flows.as_ref().map_or(0, |it| it.memory.0);
    let names = match &config.flows {
        Some(it) if it.names => {
            FlowsPlan::names_of(it.memory.0 + cutoff) + stages * FlowsPlan::COPIES_BYTES
        }
        _ => 0,
    };
    let dedup = match config.capture.dedup.nanos() {
        0 => 0,
        // Time order adds one more window, over all queues.
        length => dedup::memory(length) * (stages + u64::from(config.output.is_ordered())),
    };
    let all = rings + buffers + flows + names + dedup + cutoff;
    if all <= there {
        return Ok(());
    }
    // Bytes that the other parts leave for the largest one.
    let left_for = |part: u64| there.saturating_sub(all - part);
    let shares = [
        (buffers, "output.buffer"),
        (flows, "flows.memory"),
        (names, "flows.names"),
        (dedup, "capture.dedup"),
        (cutoff, "capture.cutoff_memory"),
    ];
    let shares = shares.into_iter().filter(|(bytes, _)| *bytes > 0);
    let (bytes, mut keys): (Vec<_>, Vec<_>) = shares.unzip();
    let queues = counted(count, "queue");
    let of_rings = [(rings, queues.as_str())].into_iter().filter(|_| rings > 0);
    let shares: Vec<_> = of_rings
        .chain(bytes.into_iter().zip(keys.iter().copied()))
        .map(|(bytes, what)| format!("{} for {what}", about(bytes)))
        .collect();
    let describe = |remedy: String| {
        format!(
            "the run would take {} of memory ({}), but {} are available; {remedy}",
            about(all),
            shares.join(", "),
            about(there)
        )
    };
    let tables = [
        (buffers, "output.buffer"),
        (flows, "flows.memory"),
        (cutoff, "capture.cutoff_memory"),
    ];
    let (part, key) = tables.into_iter().max().unwrap_or_default();
    if rings >= part {
        let wrs = u128::from(config.capture.ring);
        let fits = wrs * u128::from(left_for(rings)) / u128::from(rings.max(1));
        let fits = 1u128 << fits.max(1).ilog2();
        let problem = describe(format!(
            "set capture.ring = {fits} or less, or a smaller capture.queues"
        ));
        keys.push("capture.queues");
        return Err(Error::config("capture.ring", config.capture.ring, problem).involving(&keys));
    }
    let left = left_for(part);
    let problem = describe(match left >> 20 {
        0 => "no value fits: give the run more memory".into(),
        _ => format!("set at most {}", mebibytes(left)),
    });
    Err(Error::config(key, format!("\"{}\"", Size(part)), problem).involving(&keys))
}

/// Formats a number of bytes as text in whole MiB or tenths of a GiB.
fn about(bytes: u64) -> String {
    match bytes >> 20 {
        mebibytes if mebibytes >> 10 == 0 => format!("{mebibytes} MiB"),
        mebibytes => format!("{:.1} GiB", mebibytes as f64 / 1024.0),
    }
}

/// Formats a number of bytes, rounded down to MiB, as a TOML value.
fn mebibytes(bytes: u64) -> String {
    format!("\"{}MiB\"", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_this_machine_is_known() {
        let machine = machine_memory().expect("procfs is mounted");
        assert!(((1 << 28)..(1 << 50)).contains(&machine), "{machine}");
        assert!(available_memory() <= machine);
    }
}
