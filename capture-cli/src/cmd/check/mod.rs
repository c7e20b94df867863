//! `wqcap check`: validates a configuration and prints its plan, without creating anything.
//!
//! The output is itself a configuration; the plan is in its comments.

mod hook;
mod machine;
mod now;
mod refusal;
mod text;

pub use now::text_now;

use crate::{
    aliases::{self, Alias},
    args::{CheckArgs, ConfigArgs},
    cmd::{ctl, devices::require_capable, privileges},
    daemon::sandbox::user,
    failure::Failure,
    preload,
    term::{output, terminal},
};
use serde::Serialize;
use std::{fs, path::Path};
use wqcap_engine::{
    config::{Backend, Config, Problem},
    device::{self, DeviceFacts},
    filter::FilterCompiler,
    plan::{Plan, PortPlan},
    sink::outlook::outlook_of_folder,
    stats::Outlook,
};

/// Runs `wqcap check`: prints the effective configuration and its plan. Returns a failure if a run
/// could not start.
pub fn check(args: &CheckArgs) -> Result<(), Failure> {
    let mut given = aliases::settle(&args.aliases, &args.config, &args.limits)?;
    enter(&given.config, &args.model)?;
    let required = args.device_required || args.privileges || !args.model.is_empty();
    given.resolve_devices(required)?;
    given.capture_models(&args.model)?;
    for note in &given.notes {
        terminal::print_note(format_args!("{note}"));
    }
    let Checked {
        mut config, plan, ..
    } = Checked::new(&given.config, required)?;
    if let Some(plan) = plan.as_ref().filter(|_| args.privileges) {
        let wire = args.model.first().map(String::as_str);
        return privileges::check(plan, config.wq.delay_drop, wire, args.json);
    }
    match &plan {
        Some(plan) => plan.fill_in(&mut config),
        None => {
            config.set_defaults();
            terminal::print_note(format_args!(
                "no RDMA device on this machine, so settings that depend on a device are unchecked; --device-required makes this an error"
            ));
        }
    }
    let kept = plan.as_ref().map(|it| &it.output);
    let outlook = kept.and_then(|it| outlook_of_folder(it.dir.as_deref()?, &it.retention));
    if args.json {
        output::print_json(&CheckReport {
            config: &config,
            plan: plan.as_ref(),
            aliases: &given.aliases,
            outlook,
        })
    } else {
        let aliases = text::aliases(&given.aliases);
        let disk = outlook.map(|it| format!("#   disk      {}\n", ctl::disk(&it)));
        let plan = text(&config, plan.as_ref());
        output::print(&format!("{aliases}{plan}{}", disk.unwrap_or_default()))
    }
}

/// Report that `wqcap check --json` prints.
#[derive(Serialize)]
struct CheckReport<'a> {
    config: &'a Config,
    plan: Option<&'a Plan>,
    aliases: &'a [Alias],
    outlook: Option<Outlook>,
}

/// Configuration that has been checked against this machine.
pub struct Checked {
    /// Configuration as given, before the defaults of the software NIC's finite traffic source.
    pub loaded: Config,
    /// Configuration with the defaults of the software NIC's finite traffic source.
    pub config: Config,
    /// Plan of the run; `None`: no device exists, and none is required.
    pub plan: Option<Plan>,
    /// Compiler that has compiled the filters of the configuration, for further use.
    pub filters: FilterCompiler,
}

impl Checked {
    /// Reads the configuration, switches to its user, and checks the configuration against this
    /// machine and its device. The failure has all problems.
    pub fn new(args: &ConfigArgs, device_required: bool) -> Result<Self, Failure> {
        let mut reading = args.read()?;
        let loaded = reading.config().clone();
        reading.add(user::switch_user(&loaded).err());
        reading.add(machine::problems(&loaded));
        let mut config = loaded.clone();
        let devices = device::candidates(&loaded)?;
        let filters = FilterCompiler::default();
        let planned = if devices.is_empty() && !device_required {
            let checked = Plan::check_without_device(&loaded, &filters);
            checked.map(|()| None).map_err(problems)
        } else {
            plan(&mut config, &devices, &filters).map(Some)
        };
        let plan = planned.unwrap_or_else(|found| {
            reading.add(found);
            None
        });
        if !reading.problems().is_empty() {
            return Err(args.refuse(reading.problems()));
        }
        Ok(Self {
            loaded,
            config,
            plan,
            filters,
        })
    }
}

/// Formats a configuration as TOML, with its plan in comments.
pub fn text(config: &Config, plan: Option<&Plan>) -> String {
    let plan = plan
        .map(|plan| text::describe(plan, config))
        .unwrap_or_default();
    format!("{}{plan}", config.to_toml())
}

/// Restarts this process on the software NIC if `wires`, its simulated traffic sources, are given.
pub fn enter_model(wires: &[String], settings: &[crate::args::Setting]) -> Result<(), Failure> {
    match (wires, settings.first()) {
        ([_, ..], _) => preload::enter(wires, settings),
        ([], Some(it)) => Err(Failure::refused(format!(
            "--set model.{}={}: keys of the software NIC require --model WIRE",
            it.key, it.value
        ))),
        ([], None) => Ok(()),
    }
}

/// Switches to the user of the run (`process.user`), and restarts on the software NIC if `wires`
/// are given.
pub fn enter(config: &ConfigArgs, wires: &[String]) -> Result<(), Failure> {
    // Input that is not a file can be read only once, which happens after the restart. Errors are
    // also reported then, together with all others.
    if !wires.is_empty()
        && config.file.as_deref().is_none_or(Path::is_file)
        && let Ok(reading) = config.read()
    {
        let _ = user::switch_user(reading.config());
    }
    enter_model(wires, &config.model())
}

/// Makes the plan of a run, and applies the defaults of the software NIC's traffic source to the
/// configuration. `filters` compiles the configuration's filters.
pub fn settle(config: &mut Config, filters: &FilterCompiler) -> Result<Plan, Failure> {
    let devices = device::candidates(config)?;
    let mut found = machine::folders(config);
    match plan(config, &devices, filters) {
        Ok(plan) if found.is_empty() => return Ok(plan),
        Ok(_) => {}
        Err(more) => found.extend(more),
    }
    Err(Failure::all_refused(found.iter().map(ToString::to_string)))
}

/// Makes the plan of a run on one of `devices`, and applies the defaults of the software NIC's
/// traffic source to the configuration.
fn plan(
    config: &mut Config,
    devices: &[DeviceFacts],
    filters: &FilterCompiler,
) -> Result<Plan, Vec<Problem>> {
    let name = config.device.name.as_deref();
    if let Err(failure) = require_capable(devices, name, config.capture.mode) {
        let others = Plan::check_without_device(config, filters).err();
        let mut found: Vec<_> = others.into_iter().flat_map(problems).collect();
        let ports = config.of_ports();
        let is_of_kernel = |it: &Config| match it.device.backend {
            Backend::Auto => devices.is_empty() && it.device.netdev.is_some(),
            backend => backend.is_of_kernel(),
        };
        if ports.iter().all(is_of_kernel) {
            let names = ports.iter().filter_map(|it| it.device.netdev.as_deref());
            let problem = "there is no such network interface";
            found.extend(names.map(|it| Problem::new("device.netdev", format!("{it:?}"), problem)));
        } else {
            let missing = failure.messages.iter();
            found.extend(missing.map(|it| Problem::new("", "", it)));
        }
        return Err(found);
    }
    let plan = Plan::with_filters(config, devices, filters).map_err(problems)?;
    require_wires(&plan).map_err(|it| vec![Problem::new("", "", it.messages.join("; "))])?;
    let before = config.clone();
    wire_defaults(config, &plan);
    if *config == before {
        Ok(plan)
    } else {
        Plan::with_filters(config, devices, filters).map_err(problems)
    }
}

/// Splits an engine error into one configuration problem for each message.
fn problems(error: wqcap_engine::Error) -> Vec<Problem> {
    use wqcap_engine::Error;
    match error {
        Error::Several(all) => all.into_iter().flat_map(problems).collect(),
        Error::Config(one) => vec![one],
        Error::SeveralDevices(_) => {
            let several = Problem::new("", "", error);
            vec![several.involving(&["device.name", "device.netdev"])]
        }
        other => vec![Problem::new("", "", other)],
    }
}

/// Reads a file that the software NIC publishes for a port. Real devices have no such files.
#[expect(clippy::disallowed_methods, reason = "a file of sysfs")]
fn model_file(plan: &PortPlan, what: &str) -> Option<String> {
    let (device, port) = (&plan.device.name, plan.number);
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/{what}");
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Returns the wire, the simulated traffic source, of a port of the software NIC; `None`: the port
/// is real.
pub fn model_wire(plan: &PortPlan) -> Option<String> {
    model_file(plan, "model_wire")
}

/// Applies the defaults for the wires, the simulated traffic sources, to the configuration. The
/// software NIC publishes the wire of each port and whether it is finite.
fn wire_defaults(config: &mut Config, plan: &Plan) {
    let is_live = |wire: String| wire.starts_with("af_packet:");
    if plan.ports().filter_map(model_wire).any(is_live) {
        config.set_live_wire_defaults();
    }
    let is_finite = |it: &PortPlan| model_file(it, "model_finite").as_deref() == Some("1");
    if plan.ports().all(is_finite) {
        let lossy = plan.ports().filter_map(model_wire).any(|it| is_lossy(&it));
        config.set_finite_wire_defaults(!lossy);
    }
}

/// Checks that the wires, the simulated traffic sources of the software NIC, are open. A wire that
/// cannot be opened leaves the port without a link, and no frame would arrive.
fn require_wires(plan: &Plan) -> Result<(), Failure> {
    for port in plan.ports() {
        let Some(wire) = model_wire(port) else {
            continue;
        };
        let down = port.facts().is_some_and(|it| it.state != "ACTIVE");
        if down && !preload::is_set("link_up") {
            return Err(Failure::refused(format!(
                "--model {wire}: cannot open the wire; the message of the software NIC has the cause"
            )));
        }
    }
    Ok(())
}

/// Returns `true` if the wire of the software NIC drops frames instead of waiting for receive
/// buffers.
fn is_lossy(wire: &str) -> bool {
    wire.split_once(':')
        .is_some_and(|(_, options)| options.split(',').any(|word| word == "lossy"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::devices::tests::device;

    #[test]
    fn the_output_is_a_config() {
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
        plan.fill_in(&mut config);
        let text = format!("{}{}", config.to_toml(), text::describe(&plan, &config));
        assert_eq!(Config::parse(&text).unwrap(), config);
        let [first, second] = [0, 1].map(|i| plan.queues[i].core);
        for part in [
            "#   device    mlx5_0 port 1 (ens1f0np0), ACTIVE, 100 Gbit/s, MTU 1500
",
            &format!(
                "#   cores     q0 on {first}, q1 on {second} (shared)
"
            ),
            "#   memory    registered memory: 32 MiB; CQs: 1 MiB; write buffers: 256 MiB
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
    fn lossy_wires_are_recognised() {
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
    fn model_keys_require_a_model() {
        let settings = ["rate=25".parse().unwrap()];
        let failure = enter_model(&[], &settings).unwrap_err();
        assert!(
            failure.messages[0].contains("model.rate=25")
                && failure.messages[0].contains("--model")
        );
    }
}
