//! `wqcap check`: what a configuration means here, without creating anything.
//!
//! What is printed is a configuration again: the plan stands in its comments.

use crate::{
    aliases::{self, Alias},
    args::CheckArgs,
    cmd::{devices::require_capable, privileges},
    failure::Failure,
    preload,
    term::{
        output,
        table::{bytes, thousands},
        terminal,
    },
};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::{fmt::Write, fs, io, path::Path, time::Duration};
use wqcap_engine::{
    analysis::flows::FlowsPlan,
    config::{Config, Format, Order},
    device,
    plan::Reduction,
    plan::{
        Plan,
        steering::{self, Spread},
    },
};

/// A stall of a disk that should cost nothing, in milliseconds: garbage collection in a solid-state disk takes as long.
const STALL_MS: f64 = 250.0;

/// Prints the effective configuration and its plan; fails where a run would.
pub fn check(args: &CheckArgs) -> Result<(), Failure> {
    let mut given = aliases::settle(&args.aliases, &args.config, &args.limits)?;
    enter_model(args.model.as_deref(), &given.config.model())?;
    given.look_up()?;
    for note in &given.notes {
        terminal::say(format_args!("note: {note}"));
    }
    let mut config = given.config.load()?;
    let planned = settle(&mut config);
    if args.privileges {
        let wire = args.model.as_deref();
        return privileges::check(&planned?, config.wq.delay_drop, wire, args.json);
    }
    let plan = planned.as_ref().ok();
    config.fill_in();
    if let Some(plan) = plan {
        fill_in(&mut config, plan);
    }
    if args.json {
        output::print_json(&serde_json::json!({
            "config": config,
            "plan": plan,
            "aliases": given.aliases,
        }))?;
    } else {
        let aliases = alias_lines(&given.aliases);
        output::print(&format!("{aliases}{}", text(&config, plan)))?;
    }
    planned.map(drop)
}

/// What the options of tcpdump and dumpcap set, as comments.
fn alias_lines(aliases: &[Alias]) -> String {
    let Some(width) = aliases.iter().map(|it| it.option.chars().count()).max() else {
        return String::new();
    };
    let mut text = String::from("# The command line\n");
    for Alias { option, sets } in aliases {
        let _ = writeln!(text, "#   {option:<width$}  {sets}");
    }
    text + "\n"
}

/// A configuration with its plan in comments.
pub fn text(config: &Config, plan: Option<&Plan>) -> String {
    let plan = plan.map(|plan| describe(plan, config)).unwrap_or_default();
    format!("{}{plan}", config.to_toml())
}

/// Starts this process again on the software NIC, if that is asked for.
pub fn enter_model(wire: Option<&str>, settings: &[crate::args::Setting]) -> Result<(), Failure> {
    match (wire, settings.first()) {
        (Some(wire), _) => preload::enter(wire, settings),
        (None, Some(it)) => Err(Failure::refused(format!(
            "--set model.{}={}: keys of the software NIC need --model WIRE",
            it.key, it.value
        ))),
        (None, None) => Ok(()),
    }
}

/// Makes the plan, with the defaults that a finite wire has.
pub fn settle(config: &mut Config) -> Result<Plan, Failure> {
    let devices = device::list()?;
    require_capable(&devices, config.device.name.as_deref())?;
    require_folders(config)?;
    let plan = Plan::new(config, &devices)?;
    require_wire(&plan)?;
    let before = config.clone();
    wire_defaults(config, &plan);
    if *config == before {
        Ok(plan)
    } else {
        Ok(Plan::new(config, &devices)?)
    }
}

/// What the software NIC says of the plan's port; no real one has such files.
fn model_says(plan: &Plan, what: &str) -> Option<String> {
    let (device, port) = (&plan.device.name, plan.port);
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/{what}");
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The wire of the software NIC, if the plan's port is one of its.
pub fn model_wire(plan: &Plan) -> Option<String> {
    model_says(plan, "model_wire")
}

/// The software NIC says of each port whether its wire ends.
fn wire_defaults(config: &mut Config, plan: &Plan) {
    if model_says(plan, "model_finite").as_deref() == Some("1") {
        let wire = model_wire(plan).unwrap_or_default();
        config.for_finite_wire(!is_lossy(&wire));
    }
}

/// A wire that cannot be opened leaves the software NIC's port without a link: nothing would ever arrive.
fn require_wire(plan: &Plan) -> Result<(), Failure> {
    let Some(wire) = model_wire(plan) else {
        return Ok(());
    };
    let down = port(plan).is_some_and(|port| port.state != "ACTIVE");
    if down && !preload::is_set("link_up") {
        return Err(Failure::refused(format!(
            "--model {wire}: cannot open the wire; the message of the software NIC has the cause"
        )));
    }
    Ok(())
}

/// Whether the wire was told not to wait for buffers.
fn is_lossy(wire: &str) -> bool {
    wire.split_once(':')
        .is_some_and(|(_, options)| options.split(',').any(|word| word == "lossy"))
}

/// Writes out what the plan has settled.
fn fill_in(config: &mut Config, plan: &Plan) {
    config.device.name = Some(plan.device.name.clone());
    config.device.netdev = None;
    config.capture.queues = u16::try_from(plan.queues.len()).ok();
    config.capture.cores = Some(plan.queues.iter().map(|queue| queue.core).collect());
}

/// Folders must be there and writable; only a run's first file would find out otherwise. The same goes for the hook.
fn require_folders(config: &Config) -> Result<(), Failure> {
    match config.output.format {
        Format::None => {}
        Format::Pcap | Format::Pcapng if config.output.is_stdout() => {}
        Format::Pcap | Format::Pcapng => {
            folder("output.dir", &config.output.dir)?;
            hook(&config.output.hook)?;
        }
    }
    match &config.flows {
        None => Ok(()),
        Some(flows) => folder("flows.dir", &flows.dir),
    }
}

fn hook(program: &Path) -> Result<(), Failure> {
    if program.as_os_str().is_empty() {
        return Ok(());
    }
    let problem = match fs::metadata(program) {
        Err(e) => e.to_string(),
        Ok(metadata) if !metadata.is_file() => "is not a file; name a program".into(),
        Ok(_) => match accessat(CWD, program, Access::EXEC_OK, AtFlags::EACCESS) {
            Ok(()) => return Ok(()),
            Err(e) => format!("cannot be run: {}; chmod +x it", io::Error::from(e)),
        },
    };
    Err(unusable("output.hook", program, &problem))
}

fn folder(key: &str, dir: &Path) -> Result<(), Failure> {
    let shown = dir.display();
    let way_out = format!("create it (mkdir -p '{shown}') or name another (--set {key}=.)");
    let writing = Access::WRITE_OK | Access::EXEC_OK;
    let problem = match fs::metadata(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => format!("no such directory; {way_out}"),
        Err(e) => e.to_string(),
        Ok(metadata) if !metadata.is_dir() => format!("is not a directory; {way_out}"),
        Ok(_) => match accessat(CWD, dir, writing, AtFlags::EACCESS) {
            Ok(()) => return Ok(()),
            Err(e) => format!(
                "cannot be written to: {}; change its permissions or name another (--set {key}=.)",
                io::Error::from(e)
            ),
        },
    };
    Err(unusable(key, dir, &problem))
}

fn unusable(key: &str, path: &Path, problem: &str) -> Failure {
    Failure::refused(format!("{key} = \"{}\": {problem}", path.display()))
}

/// How many frames wait in a queue that nobody reads, and how long that lasts at the port's rate when it is the only one.
fn holds_line(plan: &Plan) -> String {
    /// Bytes of a frame on the wire beyond what is captured: FCS, preamble and gap.
    const AROUND: f64 = 4.0 + 8.0 + 12.0;
    let port = plan.device.ports.iter().find(|it| it.number == plan.port);
    let rate = port.map_or(0.0, |it| it.rate_gbps);
    let held = [60u32, 1500].map(|len| {
        let frames = plan.ring.frames(len);
        let seconds = frames as f64 * (f64::from(len) + AROUND) * 8.0 / (rate * 1e9);
        let time = if rate > 0.0 {
            format!(" ({:.2} ms at {rate} Gbit/s)", seconds * 1e3)
        } else {
            String::new()
        };
        format!("{frames} frames of {len} bytes{time}")
    });
    format!("{} in each queue", held.join(" or "))
}

/// The plan as comments.
fn describe(plan: &Plan, config: &Config) -> String {
    let mut text = String::from("\n# The plan\n");
    let mut line = |what: &str, value: String| {
        let _ = writeln!(text, "#   {what:<9} {value}");
    };
    line("device", device_line(plan));
    line(
        "queues",
        format!(
            "{} WQs of {} WRs with {}: frames of up to {} bytes fit",
            plan.queues.len(),
            plan.ring.wrs,
            match plan.ring.striding {
                Some(it) => format!("{} strides of {} bytes", it.strides, it.stride),
                None => format!("{} x {} bytes", plan.ring.max_sge, plan.ring.buffer),
            },
            plan.ring.longest()
        ),
    );
    line("holds", holds_line(plan));
    let cores = plan.queues.iter().map(|queue| {
        format!(
            "q{} on {}{}",
            queue.index,
            queue.core,
            if queue.shared_core { " (shared)" } else { "" }
        )
    });
    line("cores", cores.collect::<Vec<_>>().join(", "));
    if let Some(parsers) = parsers_line(plan) {
        line("parsers", parsers);
    }
    line(
        "memory",
        format!(
            "{} registered, {} of {}CQs, {} of write buffers",
            bytes(plan.memory),
            bytes(plan.ring.cq() * plan.queues.len() as u64),
            if plan.compression.is_some() {
                "compressed "
            } else {
                ""
            },
            bytes(plan.output.buffer)
        ),
    );
    if plan.delays_drop() {
        line("delay", delay_line(plan));
    }
    line("table", table_line(plan));
    for (i, qp) in plan.steering.qps.iter().enumerate() {
        let spread = match qp.spread {
            Spread::Table => format!("table of {}", plan.table.len()),
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
    for (i, rule) in plan.steering.rules.iter().enumerate() {
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
    if let Some(split) = &plan.steering.split {
        let nic = split.nic.join("; ");
        line(
            "filter",
            format!(
                "in the NIC, by these rules: {nic}; in software, of what they take: {}",
                split.software
            ),
        );
    }
    if let Some(reduced) = reduction_line(&plan.reduction) {
        line("kept", reduced);
    }
    line("files", files_line(plan, config));
    if let Some(flows) = &plan.flows {
        line("flows", flows_line(flows, plan.stages()));
    }
    for (i, note) in plan.notes.iter().enumerate() {
        line(if i == 0 { "notes" } else { "" }, note.clone());
    }
    text
}

fn device_line(plan: &Plan) -> String {
    let mut text = format!("{} port {}", plan.device.name, plan.port);
    if let Some(port) = port(plan) {
        let netdev = port
            .netdev
            .as_deref()
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

/// How long the NIC holds frames for a WQ without buffers, as far as its driver tells.
fn delay_line(plan: &Plan) -> String {
    match plan.device.delay_drop {
        Some(told) => format!(
            "the NIC holds frames up to {} us for a WQ without buffers; this timeout expired {} times since the driver was loaded",
            thousands(told.timeout_us),
            thousands(told.num_timeout_events)
        ),
        None => "how long the NIC holds frames is in debugfs (mlx5/PCI/delay_drop), which this process cannot read; \
                 root can where it is mounted"
            .into(),
    }
}

/// Where parsers run, and what becomes of frames that find theirs full; `None`: the loops work on frames themselves.
fn parsers_line(plan: &Plan) -> Option<String> {
    let queues = plan.queues.iter().filter(|queue| !queue.parsers.is_empty());
    let seats = queues.map(|queue| {
        let cores: Vec<_> = queue.parsers.iter().map(|it| it.core.to_string()).collect();
        format!("q{} on {}", queue.index, cores.join(" "))
    });
    let seats: Vec<_> = seats.collect();
    let full = plan.pipeline.on_full;
    (!seats.is_empty()).then(|| format!("{}; full: {full}", seats.join(", ")))
}

/// What is left out or cut off on purpose; `None`: nothing is.
fn reduction_line(reduction: &Reduction) -> Option<String> {
    let mut steps = Vec::new();
    if let Some(program) = reduction.filter.program() {
        steps.push(format!("filter of {} instructions", program.len()));
    }
    if reduction.dedup_ns > 0 {
        let memory = bytes(reduction.dedup_memory);
        steps.push(format!("deduplicate ({memory} for each queue or parser)"));
    }
    if reduction.sample > 1 {
        steps.push(format!("1 {} in {}", reduction.sample_by, reduction.sample));
    }
    match String::from(reduction.slice) {
        whole if whole.is_empty() => {}
        slice => steps.push(format!("cut after {slice}")),
    }
    (!steps.is_empty()).then(|| steps.join(", then "))
}

/// The port of the plan.
pub fn port(plan: &Plan) -> Option<&device::PortFacts> {
    plan.device
        .ports
        .iter()
        .find(|port| port.number == plan.port)
}

/// How many entries each queue has.
fn table_line(plan: &Plan) -> String {
    let shares = plan.queues.iter().map(|queue| {
        let entries = plan.table.iter().filter(|it| **it == queue.index).count();
        format!("q{} {entries}", queue.index)
    });
    format!(
        "{} entries: {}",
        plan.table.len(),
        shares.collect::<Vec<_>>().join(", ")
    )
}

fn files_line(plan: &Plan, config: &Config) -> String {
    if plan.output.stdout {
        return format!("one stream of {} to stdout", plan.output.format);
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
    if let Some(rate) = port(plan)
        .map(|port| port.rate_gbps)
        .filter(|rate| *rate > 0.0)
    {
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

fn flows_line(flows: &FlowsPlan, stages: usize) -> String {
    let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
    format!(
        "{}; every {} s, up to {} flows",
        flows.dir.join("wqcap-flows-<ns>.parquet").display(),
        seconds(flows.interval_ns),
        thousands((flows.capacity * stages) as u64)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::devices::tests::device;

    #[test]
    fn what_is_printed_is_a_config() {
        let dir = tempfile::tempdir().unwrap();
        let settings = [
            ("output.dir", dir.path().to_str().unwrap()),
            ("capture.queues", "2"),
            ("rss.table_size", "4"),
        ];
        let mut config = Config::with_overrides("", &settings).unwrap();
        let mut plan = Plan::new(&config, &[device("mlx5_0", &[])]).unwrap();
        plan.notes = vec!["two queues share a core".into()];
        plan.queues[0].shared_core = false;
        plan.queues[1].shared_core = true;
        config.fill_in();
        fill_in(&mut config, &plan);
        let text = format!("{}{}", config.to_toml(), describe(&plan, &config));
        assert_eq!(Config::parse(&text).unwrap(), config);
        let [first, second] = [0, 1].map(|i| plan.queues[i].core);
        for part in [
            "#   device    mlx5_0 port 1 (ens1f0np0), ACTIVE, 100 Gbit/s, MTU 1500
",
            &format!(
                "#   cores     q0 on {first}, q1 on {second} (shared)
"
            ),
            "#   memory    32 MiB registered, 1 MiB of CQs, 256 MiB of write buffers
",
            "#   table     4 entries: q0 2, q1 2
",
            "table of 4
",
            "wqcap-q<QQ>-<start ns>.pcapng; the buffers hold 21 ms at 100 Gbit/s, 250 ms would take output.buffer = \"2981MiB\"
",
            "#   notes     two queues share a core
",
        ] {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
    }

    #[test]
    fn a_folder_that_will_not_do_is_told_with_a_way_out() {
        let dir = tempfile::tempdir().unwrap();
        assert!(folder("output.dir", dir.path()).is_ok());
        let missing = dir.path().join("no");
        let message = folder("output.dir", &missing)
            .unwrap_err()
            .messages
            .remove(0);
        assert!(
            message.starts_with("output.dir = ") && message.contains("mkdir -p"),
            "{message}"
        );
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(
            folder("output.dir", &file).unwrap_err().messages[0].contains("is not a directory")
        );
        // Not even root can write here.
        assert!(
            folder("output.dir", Path::new("/proc/self"))
                .unwrap_err()
                .messages[0]
                .contains("cannot be written to")
        );
        let counting =
            Config::with_overrides("", &[("output.format", "none"), ("output.dir", "/no")])
                .unwrap();
        assert!(require_folders(&counting).is_ok());
    }

    #[test]
    fn wires_that_do_not_wait() {
        for (wire, lossy) in [
            ("pcap:a.pcap", false),
            ("pcap:a,lossy", true),
            ("synth:lossy,count=1", true),
            ("synth", false),
        ] {
            assert_eq!(is_lossy(wire), lossy, "{wire}");
        }
    }

    #[test]
    fn the_models_keys_need_the_model() {
        let settings = ["rate=25".parse().unwrap()];
        let failure = enter_model(None, &settings).unwrap_err();
        assert!(
            failure.messages[0].contains("model.rate=25")
                && failure.messages[0].contains("--model")
        );
    }
}
