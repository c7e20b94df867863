//! Command line of a program on the model, without `wqcap`.

use crate::{Program, binaries, process};
use std::{ffi::OsStr, path::Path};

/// Returns the settings of the model that every user of this process needs.
///
/// The model checks the capabilities of the process, as the kernel does. An ordinary user gets
/// `caps=all`.
#[must_use]
pub fn granted() -> &'static [&'static str] {
    if process::is_root() {
        &[]
    } else {
        &["caps=all"]
    }
}

/// Returns the command line of `program` on the model, with one device for each of `wires`.
///
/// The command line has the settings [`granted`], too.
///
/// # Panics
/// Panics if the model cannot be built.
#[must_use]
pub fn model<S: AsRef<OsStr>>(
    wires: &[&str],
    sets: &[&str],
    program: impl IntoIterator<Item = S>,
) -> Program {
    preloaded(binaries::model(), wires, &[granted(), sets].concat()).args(program)
}

/// Returns the beginning of a command line that preloads the model's shared object `object`. The
/// program and its arguments follow.
///
/// # Panics
/// Panics if the path of `object` has a space or a colon, which `LD_PRELOAD` cannot hold.
#[must_use]
pub fn preloaded(object: &Path, wires: &[&str], sets: &[&str]) -> Program {
    let object = object.to_str().expect("a UTF-8 path");
    assert!(!object.contains([' ', ':']), "LD_PRELOAD={object}");
    // env sets the variables for the program alone, and not for the programs that wrap it.
    Program::new("env").args([
        format!("LD_PRELOAD={object}"),
        format!("MLX5_MODEL_WIRES={}", wires.join("\n")),
        format!("MLX5_MODEL_SET={}", sets.join("\n")),
    ])
}
