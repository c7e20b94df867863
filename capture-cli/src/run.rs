//! `wqcap run`: a capture from its plan to its ledger.

use crate::{
    args::RunArgs,
    check::{enter_model, is_on_model, port, settle},
    comeback::{Backoff, Outcome, Search},
    config,
    desk::{self, Desk, Next},
    failure::Failure,
    look::Looks,
    metrics::{Metrics, Source},
    output,
    progress::Progress,
    recover::{self, Leftovers},
    sandbox::{Sandbox, hooks, user},
    service::Service,
    signals,
    summary::{self, Summary, SummaryFile},
    terminal,
};
use engine::{
    capture::{Capture, End, Limits, Report},
    config::{Config, OnLoss},
    control::{Control, backend::Done},
    plan::Plan,
    verbs::release_what_is_lost,
};
use std::{
    io::{self, IsTerminal},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a signal may go unnoticed.
const LOOK: Duration = Duration::from_millis(50);

/// stdout must be free for frames, and lead to somebody who wants them.
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

/// Becomes who the run is to be, and goes over to the software NIC if the run is to be there.
pub fn enter(args: &RunArgs) -> Result<(), Failure> {
    let (settings, model) = config::split(&args.set);
    // What is no file is read once, and that is behind the model.
    if args.model.is_some() && args.config.as_deref().is_none_or(Path::is_file) {
        user::become_one(&config::load(args.config.as_deref(), &settings)?)?;
    }
    enter_model(args.model.as_deref(), &model)
}

/// Captures until a signal, a limit, or the end of the wire.
pub fn run(args: &RunArgs, quiet: bool) -> Result<(), Failure> {
    enter(args)?;
    let (settings, _) = config::split(&args.set);
    let mut config = config::load(args.config.as_deref(), &settings)?;
    user::become_one(&config)?;
    let loaded = config.clone();
    if !release_what_is_lost() {
        tracing::debug!("libibverbs keeps its half of objects whose device is lost");
    }
    let mut plan = settle(&mut config)?;
    if plan.output.stdout {
        require_stream(args.json)?;
    }
    let summary = args.summary.as_deref().map(SummaryFile::new).transpose()?;
    for note in &plan.notes {
        tracing::warn!("{note}");
    }
    // Before anything is created: a signal during the start must find its handler.
    let (stop, reload) = (Arc::default(), Arc::default());
    // Without a file a hangup is a terminal that is gone.
    let hangup = if args.config.is_some() {
        &reload
    } else {
        &stop
    };
    signals::catch_into(&stop, hangup)
        .map_err(|e| Failure::refused(format!("cannot catch signals: {e}")))?;
    let limits = Limits {
        count: args.count,
        duration: args.duration,
    };
    if let Some(hook) = &plan.output.hook {
        plan.output.hook_process = Some(Arc::new(hooks::start(hook)?));
    }
    let sandbox = Sandbox::enter(
        &config,
        &plan,
        args.config.as_deref(),
        args.summary.as_deref(),
        is_on_model(&plan),
    )?;
    let leftovers = plan.output.dir.as_deref().map(Leftovers::begin);
    let mut desk = Desk::new(args, &loaded, &plan, reload);
    let busy: Vec<_> = plan.queues.iter().map(|queue| queue.core).collect();
    let control = config
        .control
        .as_ref()
        .map(|it| Control::start(it, desk.counter(), &busy))
        .transpose()?;
    let metrics = config
        .metrics
        .as_ref()
        .map(|it| {
            let watcher = control.as_ref().map(Control::watcher);
            let dir = plan.output.dir.clone();
            let source = Source::new(desk.counter(), watcher, dir);
            Metrics::start(it.listen, source, &busy)
        })
        .transpose()?;
    if let Some(Metrics { address, .. }) = metrics.as_ref().filter(|_| !quiet) {
        terminal::say(format_args!("metrics at http://{address}/metrics"));
    }
    let report = captures(&config, &plan, limits, &stop, quiet, &mut desk, &sandbox)?;
    // Before files are told of: who asked for the end hears of it first.
    drop((control, metrics));
    let recovered = leftovers.map(Leftovers::finish).unwrap_or_default();
    if !quiet {
        terminal::write_lines(recover::text(&recovered).as_bytes());
    }
    let json = Summary::new(&plan, &report, &recovered);
    conclude(args, &json, &report, summary.as_ref(), quiet)
}

/// Captures, and again as often as that is ordered between a `stop` and a `start`.
fn captures(
    config: &Config,
    plan: &Plan,
    limits: Limits,
    stop: &AtomicBool,
    quiet: bool,
    desk: &mut Desk<'_>,
    sandbox: &Sandbox,
) -> Result<Report, Failure> {
    let mut capture = Capture::start(plan, limits)?;
    sandbox.close()?;
    let mut sum: Option<Report> = None;
    loop {
        let mut service = Service::new();
        let mut waiting = Vec::new();
        let run = Run {
            config,
            limits,
            stop,
            quiet,
        };
        let (report, next) = run.whole(capture, plan.clone(), &mut service, desk, &mut waiting);
        desk.has_ended(&report);
        desk::tell_ended(waiting, &report.end);
        let report = match sum {
            None => report,
            Some(before) => before.followed_by(report),
        };
        if next != Next::Stop || report.end.is_failure() {
            return Ok(report);
        }
        match started_again(plan, limits, stop, &mut service, desk) {
            Some(again) => capture = again,
            None => return Ok(report),
        }
        sum = Some(report);
    }
}

/// What holds for one capture from its start to its end, however often its device is lost in between.
struct Run<'a> {
    config: &'a Config,
    limits: Limits,
    stop: &'a AtomicBool,
    quiet: bool,
}

impl Run<'_> {
    /// Captures until the end, and goes on after each loss of the device if it is to; who ordered the end is left in
    /// `waiting`.
    fn whole(
        &self,
        mut capture: Capture,
        mut plan: Plan,
        service: &mut Service,
        desk: &mut Desk<'_>,
        waiting: &mut Vec<Done>,
    ) -> (Report, Next) {
        let began = capture.ready();
        let mut backoff = Backoff::new();
        loop {
            let headline = headline(&plan);
            desk.is_running(&capture);
            service.ready(&headline);
            if !self.quiet {
                terminal::say(format_args!("{headline}"));
            }
            let ready = capture.ready();
            let (mut report, next, now) = self.attend(capture, &plan, service, desk, waiting);
            if !self.is_to_go_on(&report, next) {
                return (report, next);
            }
            if desk.has_lost(&report) {
                tracing::warn!("it was drained: `start` captures again once the device is back");
                report.end = End::Stopped;
                return (report, Next::Stop);
            }
            let search = Search {
                config: self.config,
                plan: now,
                limits: self.limits,
                began,
                stop: self.stop,
                service,
                desk,
                waiting,
            };
            match search.run(&report, ready.elapsed(), &mut backoff) {
                Outcome::Back(back) => (capture, plan) = *back,
                Outcome::Over(end, next) => {
                    if next == Next::End {
                        service.stopping();
                    }
                    report.end = end;
                    return (report, next);
                }
            }
        }
    }

    fn is_to_go_on(&self, report: &Report, next: Next) -> bool {
        report.end.is_loss() && next == Next::GoOn && self.config.device.on_loss == OnLoss::Retry
    }

    /// Watches a capture until it ends, or is to end; who ordered that is left in `waiting`. Tells the plan as it was
    /// in the end, too.
    fn attend(
        &self,
        mut capture: Capture,
        plan: &Plan,
        service: &mut Service,
        desk: &mut Desk<'_>,
        waiting: &mut Vec<Done>,
    ) -> (Report, Next, Plan) {
        let progress = Progress::new(self.quiet);
        let mut looks = Looks::new();
        let mut next = Next::GoOn;
        while !capture.wait(Instant::now() + LOOK) {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            next = desk.serve(&mut capture, plan, waiting);
            if next != Next::GoOn {
                break;
            }
            if let Some(look) = looks.take(&capture) {
                progress.show(&look);
                service.tell(&look);
                desk.has_seen(&look.now);
            }
        }
        let stopped = self.stop.load(Ordering::Relaxed);
        let goes_on = capture.has_lost_its_device() && self.config.device.on_loss == OnLoss::Retry;
        if next == Next::End || next == Next::GoOn && (stopped || !goes_on) {
            service.stopping();
        }
        progress.clear();
        if stopped && !self.quiet && terminal::is_terminal() {
            terminal::say(format_args!(
                "draining queues and closing files; ^C again ends at once"
            ));
        }
        let now = capture.plan_now(plan);
        (capture.finish(), next, now)
    }
}

/// Waits for a `start` that succeeds; `None`: the process is to end.
fn started_again(
    plan: &Plan,
    limits: Limits,
    stop: &AtomicBool,
    service: &mut Service,
    desk: &mut Desk<'_>,
) -> Option<Capture> {
    loop {
        let order: Done = desk.await_start(stop, || service.rest())?;
        match Capture::start(plan, limits) {
            Ok(capture) => {
                desk.is_running(&capture);
                order.tell(Ok(desk::changed("running")));
                return Some(capture);
            }
            Err(e) => order.tell(Err(desk::failed(e.to_string()))),
        }
    }
}

/// Tells the end everywhere it is asked for; the first failure does not keep the others from being told.
fn conclude(
    args: &RunArgs,
    json: &Summary<'_>,
    report: &Report,
    file: Option<&SummaryFile>,
    quiet: bool,
) -> Result<(), Failure> {
    let outcomes = [
        file.map_or(Ok(()), |file| file.write(json)),
        if args.json {
            output::print_json(json)
        } else {
            Ok(())
        },
        summary::balance(&report.queues),
        ended(&report.end),
    ];
    if !quiet {
        terminal::write_lines(summary::text(report).as_bytes());
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

fn ended(end: &End) -> Result<(), Failure> {
    match end {
        End::Stopped | End::Count | End::Duration | End::PortDown | End::ReaderLeft => Ok(()),
        End::DeviceLost(text) => Err(Failure::failed(format!("the device is gone: {text}"))),
        End::Storage(text) | End::Failed(text) => Err(Failure::failed(text.clone())),
    }
}

/// What is captured and where it goes.
fn headline(plan: &Plan) -> String {
    let netdev = port(plan)
        .and_then(|port| port.netdev.as_deref())
        .map(|name| format!(" ({name})"));
    let queues = plan.queues.len();
    let into = match &plan.output.dir {
        _ if plan.output.stdout => "to stdout".into(),
        Some(dir) => format!("into {}", dir.display()),
        None => "counting only".into(),
    };
    format!(
        "capturing {} port {}{} on {queues} {}, {into}",
        plan.device.name,
        plan.port,
        netdev.unwrap_or_default(),
        if queues == 1 { "queue" } else { "queues" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_the_engine_are_failures_here() {
        for end in [
            End::Stopped,
            End::Count,
            End::Duration,
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
