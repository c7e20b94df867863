//! The process that runs `output.hook` for a capture, which itself may start no programs.
//!
//! It is started before files are closed off, and so hooks may do what the capture's user may. All that a capture can
//! ask of it is the configured program with a path of its choice.

use crate::{args::HooksArgs, failure::Failure};
use caps::CapSet;
use std::{env, io, os::unix::process::CommandExt, path::Path, process::Command};
use wqcap_engine::sink::{HookProcess, serve_hooks};

/// Starts it: this program as `wqcap hooks PROGRAM`.
pub fn start(program: &Path) -> Result<HookProcess, Failure> {
    let refused = |e: io::Error| {
        Failure::refused(format!(
            "cannot start the process that runs output.hook: {e}"
        ))
    };
    let mut command = Command::new(env::current_exe().map_err(refused)?);
    command.arg("hooks").arg(program);
    // ^C at a terminal is for the capture, which then gives its hooks their time.
    command.process_group(0);
    HookProcess::start(command).map_err(refused)
}

/// `wqcap hooks`: what it then does.
pub fn serve(args: &HooksArgs) -> Result<(), Failure> {
    // What a capture takes is not for its hooks: an ordinary user's program that is executed has ambient capabilities
    // alone. Clearing those is no privileged call, which a hardened unit may not make.
    caps::clear(None, CapSet::Ambient)
        .map_err(|e| Failure::failed(format!("cannot drop the capture's rights for hooks: {e}")))?;
    serve_hooks(&args.program, io::stdin().lock(), io::stdout()).map_err(Failure::from)
}
