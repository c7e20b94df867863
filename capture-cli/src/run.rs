//! `wqcap run`: a capture from its plan to its ledger.

use crate::{
    args::RunArgs,
    check::{enter_model, port, settle},
    config,
    failure::Failure,
    output,
    progress::Progress,
    service::Service,
    signals,
    summary::{self, Summary, SummaryFile},
    terminal,
};
use engine::{
    capture::{Capture, End, Limits, Report},
    plan::Plan,
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// How long a signal may go unnoticed.
const LOOK: Duration = Duration::from_millis(50);

/// Captures until a signal, a limit, or the end of the wire.
pub fn run(args: &RunArgs, quiet: bool) -> Result<(), Failure> {
    let (settings, model) = config::split(&args.set);
    enter_model(args.model.as_deref(), &model)?;
    let mut config = config::load(args.config.as_deref(), &settings)?;
    let plan = settle(&mut config)?;
    let summary = args.summary.as_deref().map(SummaryFile::new).transpose()?;
    for note in &plan.notes {
        tracing::warn!("{note}");
    }
    // Before anything is created: a signal during the start must find its handler.
    let stop =
        signals::catch().map_err(|e| Failure::refused(format!("cannot catch signals: {e}")))?;
    let limits = Limits {
        count: args.count,
        duration: args.duration,
    };
    let capture = Capture::start(&plan, limits)?;
    let service = Service::new();
    let headline = headline(&plan);
    service.ready(&headline);
    if !quiet {
        terminal::say(format_args!("{headline}"));
    }
    let report = attend(capture, &stop, service, quiet);
    conclude(args, &plan, &report, summary.as_ref(), quiet)
}

/// Watches a capture until it ends, or is to end.
fn attend(mut capture: Capture, stop: &AtomicBool, mut service: Service, quiet: bool) -> Report {
    let mut progress = Progress::new(quiet);
    while !capture.wait(Instant::now() + LOOK) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        progress.tick(&capture);
        service.tick(&capture);
    }
    service.stopping();
    progress.clear();
    if stop.load(Ordering::Relaxed) && !quiet && terminal::is_terminal() {
        terminal::say(format_args!(
            "draining queues and closing files; ^C again ends at once"
        ));
    }
    capture.finish()
}

/// Tells the end everywhere it is asked for; the first failure does not keep the others from being told.
fn conclude(
    args: &RunArgs,
    plan: &Plan,
    report: &Report,
    file: Option<&SummaryFile>,
    quiet: bool,
) -> Result<(), Failure> {
    let json = Summary::new(plan, report);
    let outcomes = [
        file.map_or(Ok(()), |file| file.write(&json)),
        if args.json {
            output::print_json(&json)
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
        End::Stopped | End::Count | End::Duration | End::PortDown => Ok(()),
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
    let into = plan
        .output
        .dir
        .as_ref()
        .map_or("counting only".into(), |dir| {
            format!("into {}", dir.display())
        });
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
            End::DeviceLost("eth0 was deleted".into()),
            End::Storage("a.pcap: no space".into()),
            End::Failed("queue 1".into()),
        ] {
            assert_eq!(ended(&end).is_err(), end.is_failure(), "{end:?}");
        }
    }
}
