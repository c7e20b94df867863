//! `wqcap selftest`: tests the real behaviour of a device, and writes a report that can be sent and
//! compared.
//!
//! | module | contents |
//! |---|---|
//! | [`report`] | the report and its schema |
//! | [`run`] | the findings so far, and the reason to stop |
//! | [`probe`] | objects, sizes, flags, hashes, rules |
//! | [`clock`] | drift of the device's clock, the PCIe link |
//! | [`disruptive`] | settings of the port, link and driver, changed and restored |
//! | [`frames`], [`rig`] | known frames, and the receiving queues with their rules |
//! | [`traffic`] | known frames from one port to another: where they arrive, completions, stamps, throughput; it runs the modules below |
//! | [`recovery`] | a WQ in error |
//! | [`striding`] | all frames on striding queues, fillers |
//! | [`compressed`] | compressed completions |
//! | [`sleeping`] | completion events and their moderation |
//! | [`lengths`] | the longest frames, several scatter entries, frames longer than their buffer |
//! | [`roce`] | RoCE packets |
//! | [`spread`] | inner headers, extension headers, a table that changes under load |
//! | [`held`] | delay drop |
//! | [`record`] | facts of the machine and the device |
//! | [`mod@verdict`] | known differences between cards, and which of them the device shows |
//! | [`mod@compare`] | differences between two reports |
//! | [`cards`] | reports as a table |
//!
//! Invariants: however a test ends, the report has the findings up to that point, and nothing that
//! was created stays. Objects and rules are destroyed with their owners, and with the process.

mod cards;
mod clock;
mod compare;
mod compressed;
mod disruptive;
mod frames;
mod held;
mod lengths;
mod probe;
mod record;
mod recovery;
mod report;
mod rig;
mod roce;
mod run;
mod sleeping;
mod spread;
mod striding;
mod traffic;
mod verdict;

use crate::{
    args::{ConfigArgs, SelftestArgs},
    cmd::check::enter_model,
    config::read_text,
    daemon::{end::EndLimits, signals},
    failure::Failure,
    term::{
        output,
        table::{aligned, counted},
        terminal,
    },
};
use report::{Outcome, SelftestReport, schema};
use run::SelftestRun;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};
use wqcap_engine::{
    device::{self, DeviceFacts},
    verbs::Context,
};

/// Default time for measuring the drift of a card's clock.
const DRIFT: Duration = Duration::from_secs(60);
/// Default time for measuring the drift of the software NIC's clock.
const DRIFT_ON_MODEL: Duration = Duration::from_secs(1);

/// Runs the command `wqcap selftest`: tests a device, compares two reports, or prints the schema or
/// a table of reports.
pub fn selftest(args: &SelftestArgs, quiet: bool) -> Result<(), Failure> {
    if args.schema {
        return output::print_json(&schema());
    }
    if let Some([a, b]) = args.compare.as_deref() {
        let differences = compare::compare(&read(a)?, &read(b)?);
        return if args.json {
            output::print_json(&differences)
        } else {
            output::print(&compare::text(&differences))
        };
    }
    if let Some(files) = &args.table {
        let reports = files.iter().map(|it| Ok((it.as_path(), read(it)?)));
        let reports: Vec<_> = reports.collect::<Result<_, Failure>>()?;
        return output::print(&cards::table(&reports));
    }
    let report = test(args, quiet)?;
    if let Some(path) = &args.report {
        write(path, &report)?;
    }
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&text(&report))?;
    }
    if !quiet {
        terminal::print_block(&summary(&report));
    }
    verdict(&report)
}

/// Tests the device that the arguments select, and returns the selftest report.
fn test(args: &SelftestArgs, quiet: bool) -> Result<SelftestReport, Failure> {
    let given = ConfigArgs {
        file: None,
        set: args.set.clone(),
    };
    let settings = given.model();
    if let Some(it) = args.set.iter().find(|it| !it.key.starts_with("model.")) {
        return Err(Failure::refused(format!(
            "--set {}={}: wqcap selftest accepts only keys of the software NIC; write --set model.KEY=VALUE",
            it.key, it.value
        )));
    }
    enter_model(args.model.as_slice(), &settings)?;
    let stop = signals::catch_within(EndLimits::SELFTEST)?;
    let device = chosen(args)?;
    let context = Context::open(&device.name)?;
    let port = args.tx_port;
    let sender = args.tx.as_deref().map(Context::open).transpose()?;
    let sender = sender.map(|context| rig::Sender { context, port });
    let mut run = SelftestRun {
        report: SelftestReport::new(args.disruptive),
        context,
        port: args.port,
        quiet,
        began: Instant::now(),
        stop,
    };
    run.report.part = device.vendor_part;
    run.report.firmware.clone_from(&device.firmware);
    run.report.software = device.software;
    record::record(&mut run, &device);
    clock::link(&mut run);
    probe::probe(&mut run, &device);
    let drift = args.drift.unwrap_or(if device.software {
        DRIFT_ON_MODEL
    } else {
        DRIFT
    });
    if !run.is_over() {
        clock::drift(&mut run, &device, drift);
    }
    match &sender {
        _ if run.is_over() => {}
        None => run.record_not_asked("frames", "traffic", "requires --tx"),
        Some(_) if !device.access.caps().in_memory => {
            run.record_not_asked("frames", "traffic", "the rings cannot be accessed directly");
        }
        Some(sender) => {
            traffic::traffic(&mut run, sender, &device);
        }
    }
    if !run.is_over() {
        disruptive::disruptive(&mut run, sender.as_ref(), &device);
    }
    let mut report = run.finish();
    report.verdicts = verdict::verdicts(&report);
    Ok(report)
}

/// Returns the device that the arguments of the selftest select, after checking that it has the
/// selected port.
fn chosen(args: &SelftestArgs) -> Result<DeviceFacts, Failure> {
    let devices = device::list()?;
    let names: Vec<_> = devices.iter().map(|it| it.name.as_str()).collect();
    let names = names.join(", ");
    let found = match (&args.device, devices.as_slice()) {
        (Some(name), all) => all.iter().find(|it| it.name == *name),
        (None, [only]) => Some(only),
        (None, _) => None,
    };
    let Some(device) = found else {
        return Err(Failure::refused(match (&args.device, devices.is_empty()) {
            (_, true) => {
                "no RDMA device on this machine; to try the software NIC: wqcap selftest --model loopback"
                    .into()
            }
            (Some(name), _) => format!("--device {name}: there is no such RDMA device; this machine has {names}"),
            (None, _) => format!("this machine has several RDMA devices ({names}); choose one with --device"),
        }));
    };
    if device.ports.iter().all(|it| it.number != args.port) {
        return Err(Failure::refused(format!(
            "--port {}: {} has {} ports",
            args.port,
            device.name,
            device.ports.len()
        )));
    }
    Ok(device.clone())
}

/// Reads a selftest report from a file.
fn read(path: &Path) -> Result<SelftestReport, Failure> {
    let shown = path.display();
    let text = read_text(path).map_err(|e| Failure::refused(format!("{shown}: {e}")))?;
    SelftestReport::parse(&text).map_err(|e| {
        Failure::refused(format!(
            "{shown}: the file is not a report of a selftest: {e}"
        ))
    })
}

/// Writes a selftest report to a file.
#[expect(clippy::disallowed_methods, reason = "the user chose the file")]
fn write(path: &Path, report: &SelftestReport) -> Result<(), Failure> {
    let written = fs::write(path, output::json(report)?);
    written.map_err(|e| Failure::failed(format!("--report {}: {e}", path.display())))
}

/// Formats the findings of a selftest, then its verdicts, one line for each.
fn text(report: &SelftestReport) -> String {
    let row = |it: &report::Finding| {
        let time = match it.us {
            0 => String::new(),
            us => format!("{us} us"),
        };
        vec![it.id.clone(), it.outcome.text(), time]
    };
    let findings = aligned(&report.findings.iter().map(row).collect::<Vec<_>>());
    let verdicts = report.verdicts.iter().map(|it| format!("{it}\n"));
    findings + &verdicts.collect::<String>()
}

/// Formats the number of findings of a selftest by outcome.
fn summary(report: &SelftestReport) -> String {
    format!(
        "the selftest has {}: {} accepted, {} refused, {} as expected, {} not as expected, {} not asked; it took {} ms",
        counted(report.findings.len() as u64, "finding"),
        report.count(|it| matches!(it, Outcome::Accepted)),
        report.count(|it| matches!(it, Outcome::Refused { .. })),
        report.count(|it| matches!(it, Outcome::AsExpected)),
        report.count(|it| matches!(it, Outcome::Differs { .. })),
        report.count(|it| matches!(it, Outcome::NotAsked { .. })),
        report.duration_ms
    )
}

/// Returns a failure if the selftest ended early, or if a finding is not as expected.
fn verdict(report: &SelftestReport) -> Result<(), Failure> {
    match &report.ended_early {
        None => match report.count(|it| matches!(it, Outcome::Differs { .. })) {
            0 => Ok(()),
            n => Err(Failure::failed(format!(
                "the device differs from what the engine expects in {}; the lines with DIFFERS show them",
                counted(n as u64, "finding")
            ))),
        },
        Some(reason) => Err(Failure::failed(format!(
            "the selftest ended early: {reason}; the report has the findings up to that point"
        ))),
    }
}
