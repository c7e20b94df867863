//! Trials of the control service over RDMA on any RDMA device, without a capture: Soft-RoCE has
//! SRQs but cannot capture.
//! `scripts/vm-srq` runs them in a virtual machine.
//!
//! ```text
//! srq_trial serve CONFIG.toml            serves as its [control] section says until `shutdown`
//! srq_trial try ADDRESS:PORT KEYS N DIR  starts services, runs all trials, connects N times
//! srq_trial half ADDRESS:PORT KEYS       sends half a request and waits to be killed
//! ```
//!
//! Each trial prints a line, `ok NAME` or `FAIL NAME: REASON`. The exit status is 1 if any trial
//! failed.

mod serve;
mod service;
mod trials;

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["serve", config] => serve::serve(config),
        ["try", address, keys, connects, dir] => trials::run(address, keys, connects, dir),
        ["half", address, keys] => trials::half(address, keys),
        _ => Err("usage: srq_trial serve|try|half ...; see its source".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("srq_trial: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Result of a trial; the error is a text.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;
