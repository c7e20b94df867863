//! `wqcap`: the command line of the capture engine.
//!
//! | module | contents |
//! |---|---|
//! | [`args`], [`aliases`], [`config`] | command-line arguments, the meaning of tcpdump's and dumpcap's options, and the resulting configuration |
//! | [`cmd`] | the subcommands, a file or folder each |
//! | [`daemon`] | services around a long capture: sandbox, signals, service manager, metrics |
//! | [`term`] | stdout, stderr, tables, progress lines |
//! | [`mod@bench`] | `wqcap bench` |
//! | [`preload`] | running a program on the software NIC |
//!
//! Invariants: facts go to stdout, everything else to stderr. Only this file decides exit statuses.

#![cfg_attr(not(test), warn(clippy::disallowed_macros, clippy::disallowed_methods))]

mod aliases;
mod args;
mod bench;
mod cmd;
mod config;
mod daemon;
mod failure;
mod log;
mod preload;
mod term;

use args::{Args, CliCommand};
use clap::Parser;
#[cfg(feature = "flows")]
use cmd::flows;
#[cfg(feature = "serve")]
use cmd::serve;
use cmd::{
    check, ctl, devices, extcap, extract, manual, merge, model, pin, recover, rss, run, selftest,
    top,
};
#[cfg(feature = "ship")]
use cmd::{fleet, ship};
use daemon::{sandbox, signals};
use failure::{Failure, FailureKind};
use std::{env, process::ExitCode, time::Duration};
use term::{message, stderr, terminal};

/// Time limit for writing the last lines to stderr if the program that reads stderr is stuck.
const LAST_WORDS: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) => {
            let e = args::hint(e);
            let given = env::args_os().map(|it| it.to_string_lossy().into_owned());
            message::set_format(message::of_arguments(given));
            // clap reports help and version as errors with status 0. A closed pipe is ignored.
            match e.use_stderr() {
                true => print_refusal(&e.render().to_string()),
                false => drop(e.print()),
            }
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    message::set_format(args.log_format);
    // The system refuses handlers only of signals that it does not have.
    let _ = signals::ignore_without_effect();
    log::start(args.verbose, args.quiet);
    let outcome = match args.command {
        CliCommand::Devices(it) => devices::devices(&it),
        CliCommand::Check(it) => check::check(&it),
        CliCommand::Run(it) => run::run(&it, args.quiet),
        CliCommand::Model(it) => model::model(&it),
        CliCommand::Rss(it) => rss::rss(&it, args.quiet),
        CliCommand::Merge(it) => merge::merge(&it, args.quiet),
        CliCommand::Ctl(it) => ctl::ctl(&it),
        CliCommand::Extract(it) => extract::extract(&it, args.quiet),
        #[cfg(feature = "flows")]
        CliCommand::Flows(it) => flows::flows(&it, args.quiet),
        CliCommand::Pin(it) => pin::pin(&it),
        #[cfg(feature = "serve")]
        CliCommand::Serve(it) => serve::serve(&it, args.quiet),
        #[cfg(feature = "ship")]
        CliCommand::Ship(it) => ship::ship(&it, args.quiet),
        #[cfg(feature = "ship")]
        CliCommand::Fleet(it) => fleet::fleet(&it),
        CliCommand::Bench(it) => bench::bench(&it.command),
        CliCommand::Selftest(it) => selftest::selftest(&it, args.quiet),
        CliCommand::Recover(it) => recover::recover(&it),
        CliCommand::Top(it) => top::top(&it),
        CliCommand::Extcap(it) => extcap::extcap(&it),
        CliCommand::Manual(it) => manual::manual(&it),
        CliCommand::Hooks(it) => sandbox::hooks::serve(&it),
        CliCommand::Outside(it) => sandbox::outside::serve(&it),
    };
    let status = match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            for message in &failure.messages {
                terminal::print_error(message);
            }
            ExitCode::from(status(&failure))
        }
    };
    stderr::flush(LAST_WORDS);
    status
}

/// Prints clap's text on a command line that it does not accept: an error, or the requested help.
fn print_refusal(text: &str) {
    match text.strip_prefix("error: ") {
        Some(message) => terminal::print_error(message),
        None => terminal::print_block(text),
    }
}

/// Returns the exit status of wqcap for a failure: 1 if the command failed while running; 2 if the
/// command line, the config or the device does not allow it. For `model`, 126 and 127 as in env(1):
/// the program cannot be executed or is not found.
fn status(failure: &Failure) -> u8 {
    match failure.kind {
        FailureKind::Failed => 1,
        FailureKind::Refused => 2,
        FailureKind::NotExecutable => 126,
        FailureKind::NotFound => 127,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses_are_those_of_the_contract() {
        let of = |kind| {
            status(&Failure {
                kind,
                messages: Vec::new(),
            })
        };
        assert_eq!(
            [
                FailureKind::Failed,
                FailureKind::Refused,
                FailureKind::NotExecutable,
                FailureKind::NotFound
            ]
            .map(of),
            [1, 2, 126, 127]
        );
    }
}
