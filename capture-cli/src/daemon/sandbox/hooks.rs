//! Process that runs `output.hook` for a capture, which itself must not start programs.
//!
//! It starts before file access is restricted, so a hook has the rights of the capture's user. A
//! capture can request only one thing from it: to run the configured program with a file of
//! `output.dir` that was just finished ([`HookGate`]).

use super::{drop_capture_rights, own_command};
use crate::{args::HooksArgs, daemon::signals, failure::Failure};
use std::{
    ffi::{OsStr, OsString},
    io,
    path::Path,
};
use wqcap_engine::sink::{HookGate, HookProcess, OutputPlan, serve_hooks};

/// Starts the helper process that runs the hook `output.hook` of a plan, if the plan has one: this
/// program as `wqcap hooks --dir DIR --name TEMPLATE PROGRAM`.
pub fn start(output: &OutputPlan) -> Result<Option<HookProcess>, Failure> {
    let (Some(program), Some(dir)) = (&output.hook, &output.dir) else {
        return Ok(None);
    };
    let refused = |e: io::Error| {
        let message = format!("cannot start the process that runs output.hook: {e}");
        Failure::of_setup(message, &e)
    };
    let mut command = own_command("hooks").map_err(refused)?;
    command
        .arg(option("--dir=", dir.as_os_str()))
        .arg(option("--name=", output.name.to_string().as_ref()))
        .arg(program);
    HookProcess::start(command).map(Some).map_err(refused)
}

/// Joins a command-line option's name and its value.
fn option(name: &str, value: &OsStr) -> OsString {
    let mut option = OsString::from(name);
    option.push(value);
    option
}

/// Runs hooks in the helper process of a capture until the capture ends (`wqcap hooks`).
pub fn serve(args: &HooksArgs) -> Result<(), Failure> {
    drop_capture_rights().map_err(|e| {
        Failure::failed(format!(
            "the hook process cannot drop the rights of the capture: {e}"
        ))
    })?;
    signals::ignore_in_helper()
        .map_err(|e| Failure::failed(format!("cannot catch signals: {e}")))?;
    let name = args.name.parse();
    let name = name.map_err(|e| Failure::refused(format!("--name {:?}: {e}", args.name)))?;
    let gate = HookGate::new(Path::new(&args.dir), name)
        .map_err(|e| Failure::refused(format!("output.dir = {:?}: {e}", args.dir)))?;
    serve_hooks(&args.program, gate, io::stdin().lock(), io::stdout()).map_err(Failure::from)
}
