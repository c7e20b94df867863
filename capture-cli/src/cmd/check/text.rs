//! Plan as comments of its configuration.

use crate::{
    aliases::Alias,
    term::{
        table::{bytes, counted, thousands},
        text::Text,
    },
};
use std::{fmt::Write, time::Duration};
use wqcap_engine::{
    analysis::flows::FlowsPlan,
    config::{Backend, Config, Format, Order},
    files::name::SEALED,
    frame::dedup::MayDiffer,
    pipeline::reduce::Reduction,
    plan::{
        DescriptorPlan, Plan, PortPlan,
        steering::{self, Spread},
    },
};

/// Duration in milliseconds of a stall of the disk that should lose no frames. Garbage collection
/// in a solid-state disk takes about that long.
const STALL_MS: f64 = 250.0;

/// Describes how many frames a queue's ring holds while its loop does not poll, and how long that
/// lasts if the queue receives the full rate of its port.
fn holds_line(port: &PortPlan) -> String {
    /// Number of bytes that each frame takes on the cable besides the captured ones: FCS, preamble
    /// and gap.
    const AROUND: f64 = 4.0 + 8.0 + 12.0;
    let rate = port.facts().map_or(0.0, |it| it.rate_gbps);
    let held = [60u32, 1500].map(|len| {
        let frames = port.ring.frames(len);
        let seconds = frames as f64 * (f64::from(len) + AROUND) * 8.0 / (rate * 1e9);
        let time = if rate > 0.0 {
            format!(" ({:.2} ms at {rate} Gbit/s)", seconds * 1e3)
        } else {
            String::new()
        };
        format!("{} of {len} bytes{time}", counted(frames, "frame"))
    });
    format!("{} in each queue", held.join(" or "))
}

/// Formats the configuration keys that options of tcpdump and dumpcap set, as comments of the
/// configuration.
pub fn aliases(aliases: &[Alias]) -> String {
    let row = |it: &Alias| (Text(&it.option).to_string(), it.sets.clone());
    let rows: Vec<_> = aliases.iter().map(row).collect();
    let Some(width) = rows.iter().map(|(option, _)| option.chars().count()).max() else {
        return String::new();
    };
    let mut text = String::from("# The command line\n");
    for (option, sets) in rows {
        let _ = writeln!(text, "#   {option:<width$}  {}", Text(sets));
    }
    text + "\n"
}

/// Formats the plan of a run as comments of the configuration.
pub fn describe(plan: &Plan, config: &Config) -> String {
    let mut text = String::from("\n# The plan\n");
    let mut line = |what: &str, value: String| {
        let _ = writeln!(text, "#   {what:<9} {}", Text(value));
    };
    for (index, port) in plan.ports().enumerate() {
        if plan.has_several_ports() {
            line("port", port.label.clone());
        }
        // The buffers of all ports.
        let buffers = match index {
            0 => format!("; write buffers: {}", bytes(plan.output.buffer)),
            _ => String::new(),
        };
        line("device", device_line(port));
        let of_kernel = port.device.kernel.as_ref().map(|_| match port.backend {
            Backend::AfXdp => ("AF_XDP socket", "chunk", "does not get"),
            _ => ("packet socket", "block", "still receives"),
        });
        match of_kernel {
            Some((socket, part, gets)) => line(
                "queues",
                format!(
                    "{} with {} of {} each; the kernel {gets} the frames",
                    counted(port.queues as u64, socket),
                    counted(port.ring.wrs.into(), part),
                    bytes(port.ring.buffer.into()),
                ),
            ),
            None => line(
                "queues",
                format!(
                    "the capture uses {} of {} with {}; the longest frame that fits has {} bytes",
                    match port.device.raw_qp_only {
                        true => "1 RAW_PACKET QP".into(),
                        false => counted(port.queues as u64, "WQ"),
                    },
                    counted(port.ring.wrs.into(), "WR"),
                    match port.ring.striding {
                        Some(it) => format!("{} strides of {} bytes", it.strides, it.stride),
                        None => format!("{} x {} bytes", port.ring.max_sge, port.ring.buffer),
                    },
                    port.ring.longest()
                ),
            ),
        }
        if port.device.kernel.is_none() {
            line("holds", holds_line(port));
        }
        let cores = plan.queues_of(index).map(|queue| {
            format!(
                "q{} on {}{}",
                queue.index,
                queue.core,
                if queue.shared_core { " (shared)" } else { "" }
            )
        });
        line("cores", cores.collect::<Vec<_>>().join(", "));
        if let Some(parsers) = parsers_line(plan, index) {
            line("parsers", parsers);
        }
        match port.device.kernel {
            Some(_) => line("memory", format!("rings: {}{buffers}", bytes(port.memory))),
            None => line(
                "memory",
                format!(
                    "registered memory: {}; {}: {}{buffers}",
                    bytes(port.memory),
                    if port.compression.is_some() {
                        "compressed CQs"
                    } else {
                        "CQs"
                    },
                    bytes(port.ring.cq() * port.queues as u64)
                ),
            ),
        }
        if port.delays_drop() {
            line("delay", delay_line(port));
        }
        // A QP with its own receive queue has no table.
        let has_tables = port.device.kernel.is_none() && !port.device.raw_qp_only;
        if has_tables {
            line("table", table_line(plan, index));
        }
        let rss_qps = port.steering.qps.iter().filter(|_| has_tables);
        for (i, qp) in rss_qps.enumerate() {
            let spread = match qp.spread {
                Spread::Table => format!("table of {}", port.table.len()),
                Spread::Queue(queue) => format!("table of 1: q{queue}"),
            };
            line(
                if i == 0 { "QPs" } else { "" },
                format!(
                    "{i}  {:<10} {spread}{}",
                    qp.profile,
                    if qp.inner {
                        ", by the inner packet"
                    } else {
                        ""
                    }
                ),
            );
        }
        for (i, rule) in port.steering.rules.iter().enumerate() {
            line(
                if i == 0 { "rules" } else { "" },
                format!(
                    "priority {:<2} {} -> QP {}",
                    rule.priority,
                    steering::describe(&rule.specs),
                    rule.qp
                ),
            );
        }
        if let Some(split) = &port.steering.split {
            let nic = split.nic.join("; ");
            line(
                "filter",
                format!(
                    "the NIC selects frames by these rules: {nic}; software then selects among them by this expression: {}",
                    split.software
                ),
            );
        }
    }
    if plan.is_paired() {
        let ports = plan.queues.len() as u64;
        let text = format!(
            "one receive loop polls the queues of {} and merges their frames by time stamp",
            counted(ports, "port")
        );
        line("loops", text);
    }
    if let Some(reduced) = reduction_line(&plan.reduction) {
        line("kept", reduced);
    }
    line("files", files_line(plan, config));
    if let Some(flows) = &plan.flows {
        line("flows", flows_line(flows, plan.observers()));
    }
    line("limits", descriptors_line(plan));
    for (i, note) in plan.notes.iter().enumerate() {
        line(if i == 0 { "notes" } else { "" }, note.clone());
    }
    text
}

/// Describes how many file descriptors the run may need, and for what.
fn descriptors_line(plan: &Plan) -> String {
    let it = &plan.descriptors;
    let limit = DescriptorPlan::limit();
    let limit = limit.map_or_else(|| "any number".into(), thousands);
    format!(
        "file descriptors: up to {} of {limit} ({} for ports, {} for files, {} for clients and the process)",
        thousands(it.total()),
        it.ports,
        it.files,
        it.services
    )
}

/// Describes the captured device of the plan and its port in a line.
fn device_line(plan: &PortPlan) -> String {
    let mut text = match &plan.device.kernel {
        Some(kernel) => {
            let driver = kernel.driver.as_deref().unwrap_or("no driver");
            format!("{}, {driver}", plan.device.name)
        }
        None => format!("{} port {}", plan.device.name, plan.number),
    };
    if let Some(port) = plan.facts() {
        let netdev = port
            .netdev
            .as_deref()
            .filter(|_| plan.device.kernel.is_none())
            .map(|name| format!(" ({name})"))
            .unwrap_or_default();
        let mtu = port
            .mtu
            .map(|mtu| format!(", MTU {mtu}"))
            .unwrap_or_default();
        let _ = write!(
            text,
            "{netdev}, {}, {} Gbit/s{mtu}",
            port.state, port.rate_gbps
        );
    }
    text
}

/// Describes how long the NIC holds frames for a WQ without buffers, if its driver publishes that.
fn delay_line(plan: &PortPlan) -> String {
    match plan.device.delay_drop {
        Some(facts) => format!(
            "the NIC holds frames up to {} us for a WQ without buffers; this timeout expired {} since the driver was loaded",
            thousands(facts.timeout_us),
            counted(facts.num_timeout_events, "time")
        ),
        None => "debugfs (mlx5/PCI/delay_drop) has the time that the NIC holds frames, but this process cannot read \
                 it; root can, where debugfs is mounted"
            .into(),
    }
}

/// Describes the cores of the parser threads, and the action when their queue is full. `None`: the
/// receive loops process frames themselves.
fn parsers_line(plan: &Plan, port: usize) -> Option<String> {
    let queues = plan
        .queues_of(port)
        .filter(|queue| !queue.parsers.is_empty());
    let seats = queues.map(|queue| {
        let cores: Vec<_> = queue.parsers.iter().map(|it| it.core.to_string()).collect();
        format!("q{} on {}", queue.index, cores.join(" "))
    });
    let seats: Vec<_> = seats.collect();
    let full = plan.pipeline.on_full;
    (!seats.is_empty()).then(|| format!("{}; full: {full}", seats.join(", ")))
}

/// Describes the frames that the plan leaves out or shortens on purpose. `None`: there are none.
fn reduction_line(reduction: &Reduction) -> Option<String> {
    let mut steps = Vec::new();
    if let Some(program) = reduction.filter.program() {
        let length = counted(program.len() as u64, "instruction");
        steps.push(format!("filter of {length}"));
    }
    if reduction.dedup_ns > 0 {
        let memory = bytes(reduction.dedup_memory);
        let ignored = reduction.dedup_ignore.iter().map(MayDiffer::to_string);
        let ignored = match ignored.collect::<Vec<_>>() {
            none if none.is_empty() => String::new(),
            some => format!(", ignoring {}", some.join(", ")),
        };
        steps.push(format!(
            "repeated frames are left out{ignored} ({memory} of memory for each queue or parser)"
        ));
    }
    if reduction.sample > 1 {
        steps.push(format!("1 {} in {}", reduction.sample_by, reduction.sample));
    }
    if let Some(cutoff) = &reduction.cutoff {
        let limits = counted(cutoff.limits.len() as u64, "limit");
        let flows = thousands(cutoff.capacity as u64);
        steps.push(format!(
            "flows are cut off by {limits} ({flows} flows in the table of each queue or parser)"
        ));
    }
    match String::from(reduction.slice) {
        whole if whole.is_empty() => {}
        slice => steps.push(format!("cut after {slice}")),
    }
    (!steps.is_empty()).then(|| steps.join(", then "))
}

/// Describes the number of entries of each queue in the RSS indirection table.
fn table_line(plan: &Plan, port: usize) -> String {
    let shares = plan.queues_of(port).enumerate().map(|(i, queue)| {
        let table = &plan.port_of(queue).table;
        let entries = table.iter().filter(|it| usize::from(**it) == i).count();
        format!("q{} {entries}", queue.index)
    });
    let shares: Vec<_> = shares.collect();
    let entries = plan.ports().nth(port).map_or(0, |it| it.table.len());
    format!("{entries} entries: {}", shares.join(", "))
}

/// Describes the capture files, and how long the write buffers last at the port's rate.
fn files_line(plan: &Plan, config: &Config) -> String {
    if plan.output.stdout {
        return format!("one stream of {} is written to stdout", plan.output.format);
    }
    let Some(dir) = plan
        .output
        .dir
        .as_deref()
        .filter(|_| config.output.format != Format::None)
    else {
        return "none: frames are only counted".into();
    };
    let mut text = format!(
        "{}",
        dir.join(format!(
            "{}.{}{}",
            match (plan.output.name.is_default(), plan.output.order) {
                (false, _) => plan.output.name.to_string(),
                (true, Order::Time) => "wqcap-all-<start ns>".into(),
                (true, Order::Queue) => "wqcap-q<QQ>-<start ns>".into(),
            },
            plan.output.format,
            plan.output.compress.ending()
        ))
        .display()
    );
    if let Some(key) = &plan.output.encrypt {
        let _ = write!(
            text,
            ", then encrypted ({SEALED}) with the key of {}",
            key.config_key()
        );
    }
    let rates = plan.ports().filter_map(PortPlan::facts);
    let rate: f64 = rates.map(|it| it.rate_gbps).sum();
    if rate > 0.0 {
        let ms = plan.output.buffer as f64 * 8.0 / (rate * 1e6);
        let _ = write!(text, "; the buffers hold {ms:.0} ms at {rate} Gbit/s");
        if ms < STALL_MS {
            let need = (rate * 1e6 / 8.0 * STALL_MS / f64::from(1 << 20)).ceil();
            let _ = write!(
                text,
                ", {STALL_MS} ms would take output.buffer = \"{need}MiB\""
            );
        }
    }
    text
}

/// Describes the flow records that a run writes, in a line of the plan.
fn flows_line(flows: &FlowsPlan, stages: usize) -> String {
    let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
    format!(
        "{}; every {} s, up to {} flows{}",
        flows.dir.join("wqcap-flows-<ns>.parquet").display(),
        seconds(flows.interval_ns),
        thousands((flows.capacity * stages) as u64),
        if flows.names { ", with names" } else { "" }
    )
}
