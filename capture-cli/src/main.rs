//! `wqcap`: the command line of the capture engine.
//!
//! | room | what is in it |
//! |---|---|
//! | [`args`], [`aliases`], [`config`] | the command-line arguments, what those of tcpdump and dumpcap mean, and the configuration they lead to |
//! | [`cmd`] | the subcommands, a file or folder each |
//! | [`daemon`] | what a long run needs around its capture: sandbox, signals, service manager, metrics |
//! | [`term`] | stdout, stderr, tables, progress lines |
//! | [`mod@bench`] | `wqcap bench` |
//! | [`preload`] | how a program comes to run on the software NIC |
//!
//! Invariants: facts go to stdout, all else to stderr; exit statuses are decided in this file alone.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

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
use cmd::{
    check, ctl, devices, extcap, extract, manual, merge, model, pin, recover, rss, run, selftest,
    top,
};
#[cfg(feature = "ship")]
use cmd::{fleet, ship};
use daemon::sandbox;
use failure::{Failure, Kind};
use std::{process::ExitCode, time::Duration};
use term::{stderr, terminal};

/// How long the end of a run waits for a reader of stderr that does not read.
const LAST_WORDS: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) => {
            let e = args::hint(e);
            // Help and version come this way too, with status 0; a closed pipe under them is nobody's concern.
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
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
        CliCommand::Pin(it) => pin::pin(&it),
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
                terminal::say(format_args!("error: {message}"));
            }
            ExitCode::from(status(&failure))
        }
    };
    stderr::flush(LAST_WORDS);
    status
}

/// 0 done, 1 failed while running, 2 the command line, the config or the device cannot do it. `model` ends as env(1)
/// does when it cannot start the program.
fn status(failure: &Failure) -> u8 {
    match failure.kind {
        Kind::Failed => 1,
        Kind::Refused => 2,
        Kind::NotExecutable => 126,
        Kind::NotFound => 127,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_the_contract() {
        let of = |kind| {
            status(&Failure {
                kind,
                messages: Vec::new(),
            })
        };
        assert_eq!(
            [
                Kind::Failed,
                Kind::Refused,
                Kind::NotExecutable,
                Kind::NotFound
            ]
            .map(of),
            [1, 2, 126, 127]
        );
    }
}
