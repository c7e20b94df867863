//! The process that runs `output.hook` for a capture, which itself may start no programs.
//!
//! It is started before files are closed off, and so hooks may do what the capture's user may. All that a capture can
//! ask of it is the configured program with a path of its choice.

use super::{drop_capture_rights, own_command};
use crate::{args::HooksArgs, daemon::signals, failure::Failure};
use std::{io, path::Path};
use wqcap_engine::sink::{HookProcess, serve_hooks};

/// Starts it: this program as `wqcap hooks PROGRAM`.
pub fn start(program: &Path) -> Result<HookProcess, Failure> {
    let refused = |e: io::Error| {
        Failure::refused(format!(
            "cannot start the process that runs output.hook: {e}"
        ))
    };
    let mut command = own_command("hooks").map_err(refused)?;
    command.arg(program);
    HookProcess::start(command).map_err(refused)
}

/// `wqcap hooks`: what it then does.
pub fn serve(args: &HooksArgs) -> Result<(), Failure> {
    drop_capture_rights()
        .map_err(|e| Failure::failed(format!("cannot drop the capture's rights for hooks: {e}")))?;
    signals::leave_to_the_capture()
        .map_err(|e| Failure::failed(format!("cannot catch signals: {e}")))?;
    serve_hooks(&args.program, io::stdin().lock(), io::stdout()).map_err(Failure::from)
}
