//! Ranges of the keys, as far as they hold on every machine. Limits of a device are the plan's to check.

use super::{Config, ConfigError, FlowsConfig, Format, OnLoss, OutputConfig, Size, Span};
use std::{fmt::Display, time::Duration};

/// The RQ's producer index has 16 bits, and libmlx5 rounds a ring up to a power of two.
const MAX_RING: u32 = 32_768;
/// What pcap readers take at most for one record (libpcap's `MAXIMUM_SNAPLEN`).
const MAX_FRAME: u64 = 262_144;
/// mlx5 takes indirection tables up to 2^13 entries.
const MAX_TABLE: u32 = 1 << 13;

/// Refuses the first value that is out of range.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    device(config)?;
    capture(config)?;
    rss(config)?;
    output(config)
}

fn device(Config { device, output, .. }: &Config) -> Result<(), ConfigError> {
    if device.on_loss == OnLoss::Retry && output.is_stdout() && output.format == Format::Pcap {
        let problem = "output.stdout with output.format = \"pcap\" cannot continue after a loss, since a pcap stream has one \
                       header; choose pcapng, which begins a new section";
        return refuse("device.on_loss", "\"retry\"", problem);
    }
    if let (Some(name), Some(netdev)) = (&device.name, &device.netdev) {
        let problem = format!("device.name = {name:?} is set too; set only one of them");
        return refuse("device.netdev", format!("{netdev:?}"), problem);
    }
    within("device.port", u32::from(device.port), 1, 254)
}

fn capture(
    Config {
        capture, pipeline, ..
    }: &Config,
) -> Result<(), ConfigError> {
    if let Some(queues) = capture.queues {
        within("capture.queues", u32::from(queues), 1, MAX_TABLE)?;
    }
    if capture.cores.as_ref().is_some_and(Vec::is_empty) {
        return refuse(
            "capture.cores",
            "[]",
            "name at least one CPU, or leave the key out for the CPUs of the NIC's NUMA node",
        );
    }
    within("capture.ring", capture.ring, 1, MAX_RING)?;
    if !capture.ring.is_power_of_two() {
        let nearest = capture.ring.next_power_of_two();
        return refuse(
            "capture.ring",
            capture.ring,
            format!("must be a power of two, such as {nearest}"),
        );
    }
    within("capture.buffer", capture.buffer, Size(64), Size(MAX_FRAME))?;
    within("capture.max_sge", capture.max_sge, 1, 32)?;
    within("capture.snaplen", capture.snaplen, Size(0), Size(MAX_FRAME))?;
    within("capture.sample", capture.sample, 1, u32::MAX)?;
    within(
        "pipeline.parsers_per_queue",
        u32::from(pipeline.parsers_per_queue),
        1,
        64,
    )
}

fn rss(Config { rss, capture, .. }: &Config) -> Result<(), ConfigError> {
    let hex = rss.key.len() == 80 && rss.key.bytes().all(|b| b.is_ascii_hexdigit());
    if !hex && !["symmetric", "microsoft"].contains(&rss.key.as_str()) {
        let problem = "write \"symmetric\", \"microsoft\" or exactly 80 hex digits (40 bytes)";
        return refuse("rss.key", format!("{:?}", rss.key), problem);
    }
    within("rss.table_size", rss.table_size, 1, MAX_TABLE)?;
    if !rss.table_size.is_power_of_two() {
        return refuse(
            "rss.table_size",
            rss.table_size,
            "must be a power of two: the hash is masked, not divided",
        );
    }
    if let Some(queues) = capture.queues
        && u32::from(queues) > rss.table_size
    {
        let problem =
            format!("smaller than capture.queues = {queues}: some queues would never get a frame");
        return refuse("rss.table_size", rss.table_size, problem);
    }
    weights(&rss.weights, capture.queues)
}

fn weights(weights: &[u32], queues: Option<u16>) -> Result<(), ConfigError> {
    if weights.is_empty() {
        return Ok(());
    }
    let value = format!("{weights:?}");
    if weights.iter().all(|w| *w == 0) {
        return refuse("rss.weights", value, "at least one weight must be above 0");
    }
    match queues {
        Some(queues) if weights.len() != usize::from(queues) => {
            let problem = format!(
                "{} weights for capture.queues = {queues}; write one per queue",
                weights.len()
            );
            refuse("rss.weights", value, problem)
        }
        _ => Ok(()),
    }
}

fn output(config: &Config) -> Result<(), ConfigError> {
    let output = &config.output;
    if output.dir.as_os_str().is_empty() && output.format != Format::None {
        return refuse(
            "output.dir",
            "\"\"",
            "name a directory, or set output.format = \"none\" to count frames only",
        );
    }
    if output.index_dir == output.dir {
        return refuse(
            "output.index_dir",
            output.index_dir.display(),
            "output.dir holds capture files only: name another directory",
        );
    }
    if output.is_stdout() {
        stdout(output)?;
    }
    within(
        "output.buffer",
        output.buffer,
        Size(64 << 10),
        Size(1 << 40),
    )?;
    off_or_at_least("output.rotate_size", output.rotate_size, Size(64 << 10))?;
    off_or_at_least(
        "output.rotate_time",
        output.rotate_time,
        Span(Duration::from_millis(100)),
    )?;
    if let Some(control) = &config.control {
        within("control.srq", control.srq, 1, 1 << 16)?;
        within("control.srq_max", control.srq_max, control.srq, 1 << 16)?;
        within(
            "control.srq_calm",
            Span(control.srq_calm),
            Span(Duration::from_secs(1)),
            Span(Duration::from_secs(86_400)),
        )?;
    }
    config.flows.as_ref().map_or(Ok(()), flows)
}

fn flows(flows: &FlowsConfig) -> Result<(), ConfigError> {
    let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
    within("flows.interval", flows.interval, Span(second), Span(day))?;
    for (key, value) in [("flows.active", flows.active), ("flows.idle", flows.idle)] {
        within(key, value, Span(Duration::from_millis(100)), Span(day))?;
    }
    within("flows.memory", flows.memory, Size(64 << 10), Size(1 << 40))
}

/// A stream is no file.
fn stdout(output: &OutputConfig) -> Result<(), ConfigError> {
    let files = OutputConfig::default();
    let keys = [
        (
            "output.rotate_size",
            output.rotate_size != files.rotate_size,
        ),
        (
            "output.rotate_time",
            output.rotate_time != files.rotate_time,
        ),
        ("output.keep", output.keep != files.keep),
        ("output.keep_files", output.keep_files != files.keep_files),
        ("output.compress", output.compress != files.compress),
        ("output.index_dir", output.index_dir != files.index_dir),
        ("output.hook", output.hook != files.hook),
    ];
    if output.format == Format::None {
        return refuse(
            "output.stdout",
            true,
            "output.format = \"none\" only counts frames; choose pcap or pcapng",
        );
    }
    match keys.iter().find(|(_, set)| *set) {
        None => Ok(()),
        Some((key, _)) => refuse(
            "output.stdout",
            true,
            format!("{key} applies only to files; leave one of the two out"),
        ),
    }
}

fn within<T: PartialOrd + Display>(
    key: &'static str,
    value: T,
    least: T,
    most: T,
) -> Result<(), ConfigError> {
    if value < least || value > most {
        return refuse(key, value, format!("must be {least} to {most}"));
    }
    Ok(())
}

fn off_or_at_least<T: PartialOrd + Display + Default>(
    key: &'static str,
    value: T,
    least: T,
) -> Result<(), ConfigError> {
    if value != T::default() && value < least {
        return refuse(key, value, format!("must be 0 (never) or at least {least}"));
    }
    Ok(())
}

fn refuse(
    key: &'static str,
    value: impl Display,
    problem: impl Into<String>,
) -> Result<(), ConfigError> {
    Err(ConfigError::Value {
        key: key.into(),
        value: value.to_string(),
        problem: problem.into(),
    })
}
