//! The control service over RDMA, tried on whatever RDMA device there is, without a capture: Soft-RoCE serves SRQs
//! and cannot capture.
//!
//! ```text
//! srq_trial serve CONFIG.toml            serves its [control] section until `shutdown`
//! srq_trial try ADDRESS:PORT KEYS N DIR  starts services of its own, tries them, connects N times
//! srq_trial half ADDRESS:PORT KEYS       begins a request and waits to be killed
//! ```
//!
//! Each trial prints a line, `ok NAME` or `FAIL NAME: why`; status 1 if any failed.

mod service;
mod trials;

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["serve", config] => service::serve(config),
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

/// Whatever went wrong, in words.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;
