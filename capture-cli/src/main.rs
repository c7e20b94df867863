//! `wqcap`: what the user typed, turned into a call of the engine and back into words.
//!
//! One file for each subcommand; `args` is what can be typed, `config` what it means, `preload` how a program comes
//! to run on the software NIC, `terminal` everything that is written to stderr. May import `engine`, never the crate
//! `rss` or verbs: whoever needs those belongs into the engine.
//!
//! Invariants: facts go to stdout, all else to stderr; exit statuses are decided in this file alone.

mod args;
mod bench;
mod check;
mod config;
mod ctl;
mod devices;
mod extcap;
mod extract;
mod failure;
mod log;
mod manual;
mod merge;
mod metrics;
mod model;
mod output;
mod preload;
mod privileges;
mod progress;
mod recover;
mod rss;
mod run;
mod sandbox;
mod service;
mod signals;
mod summary;
mod table;
mod terminal;
mod time;
mod top;

use args::{Args, Command};
use clap::Parser;
use failure::{Failure, Kind};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) => {
            // Help and version come this way too, with status 0; a closed pipe under them is nobody's concern.
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    log::start(args.verbose, args.quiet);
    let outcome = match args.command {
        Command::Devices(it) => devices::devices(&it),
        Command::Check(it) => check::check(&it),
        Command::Run(it) => run::run(&it, args.quiet),
        Command::Model(it) => model::model(&it),
        Command::Rss(it) => rss::rss(&it, args.quiet),
        Command::Merge(it) => merge::merge(&it, args.quiet),
        Command::Ctl(it) => ctl::ctl(&it),
        Command::Extract(it) => extract::extract(&it, args.quiet),
        Command::Bench(it) => bench::bench(&it.command),
        Command::Recover(it) => recover::recover(&it),
        Command::Top(it) => top::top(&it),
        Command::Extcap(it) => extcap::extcap(&it),
        Command::Manual(it) => manual::manual(&it),
        Command::Hooks(it) => sandbox::hooks::serve(&it),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            for message in &failure.messages {
                terminal::say(format_args!("error: {message}"));
            }
            ExitCode::from(status(&failure))
        }
    }
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
