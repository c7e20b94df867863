//! `wqcap run`: captures, from the plan to the final ledger.

use crate::{
    aliases,
    args::{ConfigArgs, DevicesArgs, LimitArgs, RunArgs},
    cmd::{
        check::{self, Checked, enter, enter_model, model_wire, settle},
        devices, key,
        recover::{self, Leftovers},
        summary::{self, Summary, SummaryFile},
    },
    daemon::{
        self,
        end::EndLimits,
        metrics::{Endpoint, Metrics, MetricsSource},
        sandbox::{Sandbox, hooks, outside::Outside},
        sd_notify::Service,
        signals,
    },
    failure::Failure,
    log,
    term::{output, progress::ProgressLine, stderr, terminal},
};
use std::{
    io::{self, IsTerminal},
    sync::{Arc, OnceLock},
    time::Duration,
};
use wqcap_control::{
    protocol::LogLevel,
    server::{ControlServer, ControlSocket},
};
use wqcap_engine::{
    capture::{End, Limits, Report, Resources},
    config::{Config, Sandbox as SandboxMode},
    device::DeviceFacts,
    filter::FilterCompiler,
    plan::{Plan, PortPlan},
    sink::PreparedRing,
    verbs::allow_release_of_lost_objects,
};
use wqcap_supervisor::{
    CaptureBackend, CurrentPlan, Event, Host, HostError, Interval, Presenter, Signals, Supervisor,
};

/// Checks that stdout can carry the stream of frames: no `--json`, and not a terminal.
fn require_stream(json: bool) -> Result<(), Failure> {
    let problem = if json {
        "--json goes to stdout too; use --summary FILE.json"
    } else if io::stdout().is_terminal() {
        "stdout is a terminal; pipe it into tcpdump -r -, tshark -r - or a file"
    } else {
        return Ok(());
    };
    Err(Failure::refused(format!("output.stdout = true: {problem}")))
}

/// Runs `wqcap run`: captures frames until a signal, a limit, or the end of the traffic source.
pub fn run(args: &RunArgs, quiet: bool) -> Result<(), Failure> {
    if args.list_interfaces {
        enter_model(&args.model, &args.config.model())?;
        return devices::devices(&DevicesArgs { json: args.json });
    }
    signals::outlive_early_requests().map_err(signals::uncaught)?;
    let mut given = aliases::settle(&args.aliases, &args.config, &args.limits)?;
    enter(&given.config, &args.model)?;
    given.resolve_devices(true)?;
    given.capture_models(&args.model)?;
    if !quiet {
        for note in &given.notes {
            terminal::print_note(format_args!("{note}"));
        }
    }
    let file = given.config.file.as_deref();
    if !allow_release_of_lost_objects() {
        tracing::debug!("libibverbs does not release objects whose device is lost");
    }
    let Checked {
        loaded,
        config,
        plan: Some(plan),
        filters,
    } = Checked::new(&given.config, true)?
    else {
        return Err(Failure::failed("internal error: the run has no plan"));
    };
    if plan.output.stdout {
        require_stream(args.json)?;
    }
    let summary = args.summary.as_deref().map(SummaryFile::new).transpose()?;
    for note in &plan.notes {
        tracing::warn!("{note}");
    }
    // From here on no write to a log collector or a terminal blocks.
    stderr::detach();
    // A key command, a key that is a pipe, or the resolution of a name may take any time. Signals
    // are not caught yet, so that SIGINT and SIGTERM end the process during this wait.
    let mut resources = Resources::default();
    if let Some(source) = &plan.output.encrypt {
        resources.encryption_key = Some(key::read(source, source.config_key())?);
    }
    let endpoint = config.metrics.as_ref();
    let endpoint = endpoint.map(|it| Endpoint::resolve("metrics.listen", &it.listen));
    let endpoint = endpoint.transpose()?;
    // Signals are caught before anything is created, so that a signal during the start has a
    // handler.
    let signals = Signals::new().map_err(signals::uncaught)?;
    // Without a config file SIGHUP has nothing to reload.
    let requests = signals::catch_into(&signals, file.is_some()).map_err(signals::uncaught)?;
    let limits = limits(&given.limits);
    resources.hook_process = hooks::start(&plan.output)?.map(Arc::new);
    if plan.output.dir.is_some() {
        resources.write_ring = Some(Arc::new(PreparedRing::new()));
    }
    let service = Service::new();
    let socket = config
        .control
        .as_ref()
        .map(ControlSocket::bind)
        .transpose()?;
    let replaced = summary.as_ref().and_then(SummaryFile::replaced);
    let control_path = config.control.as_ref().map(|it| it.unix.as_path());
    let outside = (config.process.sandbox != SandboxMode::Off
        && (replaced.is_some() || control_path.is_some()))
    .then(|| Outside::start(replaced, control_path))
    .transpose()?;
    // Only after the helper processes are started: programs that they run may not expect many descriptors (select(2)).
    daemon::raise_descriptor_limit();
    let sandbox = Sandbox::enter(
        &config,
        &plan,
        file.filter(|it| it.as_os_str() != "-"),
        args.summary.as_deref().filter(|_| replaced.is_none()),
        plan.ports().find_map(model_wire),
    )?;
    stderr::start_writer()?;
    let reported = Arc::<OnceLock<Arc<CaptureBackend>>>::default();
    let report = Arc::clone(&reported);
    requests
        .escalate(
            EndLimits::RUN,
            move || print_counters(report.get()),
            service.extender(),
        )
        .map_err(signals::uncaught)?;
    let levels = plan.output.name.folder_depth();
    let dir = plan.output.dir.as_deref();
    let leftovers = dir.map(|dir| Leftovers::begin(dir, levels, resources.encryption_key.clone()));
    let stop = Arc::clone(signals.stop_flag());
    let supervisor = Supervisor::new(loaded, plan.clone(), resources, limits, signals, Console);
    let _ = reported.set(supervisor.backend());
    let busy: Vec<_> = plan.queues.iter().map(|queue| queue.core).collect();
    let control = config
        .control
        .as_ref()
        .zip(socket)
        .map(|(it, socket)| ControlServer::start_on(socket, it, supervisor.backend(), &busy))
        .transpose()?;
    let metrics = endpoint
        .as_ref()
        .map(|it| {
            let status = control.as_ref().map(ControlServer::status_reader);
            let dir = plan.output.dir.clone();
            let source = MetricsSource::new(supervisor.backend(), status, dir);
            Metrics::start(it, move |older| source.text(older), &busy)
        })
        .transpose()?;
    if let Some(Metrics { address, .. }) = metrics.as_ref().filter(|_| !quiet) {
        terminal::print_line(format_args!("metrics at http://{address}/metrics"));
    }
    let supervised = supervisor.start()?;
    sandbox.close()?;
    let report = supervised.run(&mut CaptureHost {
        given: &given.config,
        config,
        filters,
        quiet,
        progress: ProgressLine::new(quiet),
        service,
    });
    // The control service ends before the files are listed, so that the client that requested the
    // end gets its answer first.
    drop((control, metrics));
    let recovered = leftovers.map(|it| it.finish(&stop)).unwrap_or_default();
    if !quiet {
        terminal::print_block(&recover::text(&recovered));
    }
    let json = Summary::new(&plan, &report, &recovered);
    let in_place = outside.is_none() || replaced.is_none();
    let written = match &summary {
        Some(file) if in_place => file.write(&json),
        _ => Ok(()),
    };
    let left = match outside {
        Some(it) => it.finish(Some(&json).filter(|_| !in_place)),
        None => Ok(()),
    };
    conclude(args, &json, &report, written.and(left), quiet)
}

/// Converts the limits of the command line to those of the engine.
fn limits(given: &LimitArgs) -> Limits {
    Limits {
        count: given.count,
        duration: given.duration,
        bytes: given.bytes.map(|it| it.0),
        files: given.files,
    }
}

/// Prints the current counters of the capture, which SIGUSR1 requests. They are printed also with
/// `--quiet`, because the user requested them.
fn print_counters(backend: Option<&Arc<CaptureBackend>>) {
    let text = backend.map(|it| summary::counters(&it.snapshot()));
    let text = text.unwrap_or_else(|| "counters: the capture has not begun\n".into());
    terminal::print_block(&text);
}

/// Host of the capture's supervisor: loads the configuration, and reports progress to stderr and
/// the service manager.
struct CaptureHost<'a> {
    /// Config file and settings of the command line, which a reload reads again.
    given: &'a ConfigArgs,
    /// Effective configuration of the run, with all defaults.
    config: Config,
    /// Compiler of the configuration's filters, which also serves each later search for a lost
    /// device.
    filters: FilterCompiler,
    /// `true` if `--quiet` is given: the run prints errors only.
    quiet: bool,
    /// Progress line of the capture on stderr.
    progress: ProgressLine,
    /// Reporter of the run to the service manager.
    service: Service,
}

impl Host for CaptureHost<'_> {
    fn load_config(&mut self) -> Result<Config, HostError> {
        Ok(self.given.load_again()?)
    }

    fn find_device(&mut self) -> Result<Plan, HostError> {
        Ok(settle(&mut self.config.clone(), &self.filters)?)
    }

    fn running(&mut self, plan: &Plan) {
        self.service.restart();
        let headline = headline(plan);
        self.service.ready(&headline);
        if !self.quiet {
            terminal::print_line(format_args!("{headline}"));
        }
    }

    fn snapshot(&mut self, interval: &Interval) {
        self.progress.draw_interval(interval);
        self.service.report(interval);
    }

    fn finishing(&mut self, cause: Event) {
        self.progress.clear();
        if cause == Event::Signal && !self.quiet && terminal::is_terminal() {
            terminal::print_line(format_args!(
                "draining queues and closing files; press ^C again to end at once"
            ));
        }
    }

    fn ending(&mut self) {
        self.service.stopping();
    }

    fn stopped(&mut self) {
        self.service.report_stopped();
    }

    fn searching(&mut self, device: &str, tries: u32, wait: Duration) {
        self.service.report_search(device, tries, wait);
    }
}

/// Presenter that provides texts and the log level for answers of the control service.
struct Console;

impl Presenter for Console {
    fn devices_text(&self, devices: &[DeviceFacts]) -> String {
        devices::text(devices)
    }

    fn plan_text(&self, now: &CurrentPlan) -> String {
        check::text_now(now)
    }

    fn log_level(&self) -> String {
        log::level()
    }

    fn set_log_level(&self, level: LogLevel) -> Result<(), HostError> {
        Ok(log::set_level(&level.to_string())?)
    }
}

/// Reports the end of the run in all requested ways: summary, JSON and text. A failure of one
/// report does not prevent the others.
fn conclude(
    args: &RunArgs,
    json: &Summary<'_>,
    report: &Report,
    written: Result<(), Failure>,
    quiet: bool,
) -> Result<(), Failure> {
    let is_lost = written.is_err();
    let outcomes = [
        written,
        if args.json {
            output::print_json(json)
        } else {
            Ok(())
        },
        summary::balance(&report.queues),
        ended(&report.end),
    ];
    // A summary that cannot be written is at least shown.
    if !quiet || is_lost {
        terminal::print_block(&summary::text(report));
    }
    let mut messages: Vec<_> = outcomes
        .into_iter()
        .filter_map(Result::err)
        .flat_map(|it| it.messages)
        .collect();
    match messages.pop() {
        None => Ok(()),
        Some(last) => {
            let mut failure = Failure::failed(last);
            failure.messages.splice(0..0, messages);
            Err(failure)
        }
    }
}

/// Returns the failure of a run whose end is a failure, otherwise `Ok`.
fn ended(end: &End) -> Result<(), Failure> {
    match end {
        End::DeviceLost(text) => Err(Failure::failed(format!("the device was lost: {text}"))),
        End::Storage(text) | End::Failed(text) => Err(Failure::failed(text)),
        End::Stopped
        | End::Count
        | End::Duration
        | End::Bytes
        | End::Files
        | End::PortDown
        | End::ReaderLeft => Ok(()),
    }
}

/// Returns the first line of a run, which names the device, the queues and the destination.
fn headline(plan: &Plan) -> String {
    let queues = plan.queues.len();
    let into = match &plan.output.dir {
        _ if plan.output.stdout => "to stdout".into(),
        Some(dir) => format!("into {}", dir.display()),
        None => "counting only".into(),
    };
    let ports: Vec<_> = plan.ports().map(port_in_words).collect();
    let ports = ports.join(" and ");
    format!(
        "capturing {ports} on {queues} {}, {into}",
        if queues == 1 { "queue" } else { "queues" }
    )
}

/// Returns the name of a captured port with its network interface.
fn port_in_words(port: &PortPlan) -> String {
    if port.device.kernel.is_some() {
        return port.device.name.clone();
    }
    let netdev = port.netdev.as_ref().map(|name| format!(" ({name})"));
    format!(
        "{} port {}{}",
        port.device.name,
        port.number,
        netdev.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_ends_of_the_engine_are_failures() {
        for end in [
            End::Stopped,
            End::Count,
            End::Duration,
            End::Bytes,
            End::Files,
            End::PortDown,
            End::ReaderLeft,
            End::DeviceLost("eth0 was deleted".into()),
            End::Storage("a.pcap: no space".into()),
            End::Failed("queue 1".into()),
        ] {
            assert_eq!(ended(&end).is_err(), end.is_failure(), "{end:?}");
        }
    }
}
