//! Running a program on the software NIC: preloads the model's shared object and sets the
//! environment variables that it reads.
//!
//! Invariant: this module does not interpret wires and settings. The model itself refuses what it
//! does not understand, with status 2, before the program begins.

use crate::{
    args::Setting,
    failure::{Failure, FailureKind},
    term::terminal,
};
use caps::{CapSet, Capability};
use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{self, Command},
};

/// File name of the software NIC's shared object, which is preloaded into programs.
const OBJECT: &str = "libmlx5_model.so";
/// Environment variable with the wires of the software NIC, its simulated traffic sources, one per
/// line.
const WIRES: &str = "MLX5_MODEL_WIRES";
/// Environment variable with the settings of the software NIC, one `key=value` per line.
const SET: &str = "MLX5_MODEL_SET";
/// Environment variable with the ID of the process that re-executed itself on the software NIC.
/// execve keeps the process ID; a child process has another one.
const GUARD: &str = "WQCAP_MODEL_ENTERED";
/// Environment variable of the dynamic linker that names the objects to preload.
const PRELOAD: &str = "LD_PRELOAD";

/// Re-executes this process with the software NIC preloaded. Returns at once if this process was
/// re-executed already.
pub fn enter(wires: &[String], settings: &[Setting]) -> Result<(), Failure> {
    if entered() {
        return loaded();
    }
    let mut settings = settings.to_vec();
    if wires.iter().all(|it| grants_all(it))
        && !settings.iter().any(|it| it.key == "caps")
        && !has_net_raw()
    {
        terminal::print_note(format_args!(
            "this process lacks CAP_NET_RAW; the software NIC grants every capability, because the wire {} reaches no network",
            wires.join(", ")
        ));
        settings.push(Setting {
            key: "caps".into(),
            value: "all".into(),
        });
    }
    let mut args = env::args_os();
    let mut command = Command::new(this_program()?);
    command
        .arg0(args.next().unwrap_or_else(|| "wqcap".into()))
        .args(args);
    command.env(GUARD, process::id().to_string());
    let wires: Vec<_> = wires.iter().map(String::as_str).collect();
    equip(&mut command, &wires, &settings)?;
    let e = command.exec();
    Err(Failure::refused(format!(
        "cannot restart wqcap with the software NIC: {e}"
    )))
}

/// Replaces this process with the program `program` on the software NIC.
pub fn exec(wires: &[&str], settings: &[Setting], program: &[OsString]) -> Result<(), Failure> {
    let Some((program, args)) = program.split_first() else {
        return Err(Failure::refused("no program to run; write it after --"));
    };
    let mut command = Command::new(program);
    command.args(args);
    equip(&mut command, wires, settings)?;
    let e = command.exec();
    Err(Failure {
        kind: if e.kind() == io::ErrorKind::NotFound {
            FailureKind::NotFound
        } else {
            FailureKind::NotExecutable
        },
        messages: vec![format!("cannot run {}: {e}", program.display())],
    })
}

/// Returns `true` if this process has re-executed itself on the software NIC.
pub fn entered() -> bool {
    env::var(GUARD).is_ok_and(|id| id == process::id().to_string())
}

/// Returns `true` if the environment has a setting of the software NIC with this key, for any
/// device or port.
pub fn is_set(key: &str) -> bool {
    env::var(SET)
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.split_once('='))
        .any(|(name, _)| name.rsplit('.').next() == Some(key))
}

/// Returns `true` if a wire of the software NIC, its simulated traffic source, only replays or
/// generates frames, so that the software NIC can grant all capabilities safely.
fn grants_all(wire: &str) -> bool {
    ["pcap", "synth", "loopback"].contains(&wire.split(':').next().unwrap_or_default())
}

/// Returns `true` if this process has CAP_NET_RAW in its effective set.
fn has_net_raw() -> bool {
    caps::has_cap(None, CapSet::Effective, Capability::CAP_NET_RAW).unwrap_or(false)
}

/// Checks that the shared object of the software NIC is loaded. A run with `--model` must never
/// capture from a real NIC.
#[expect(clippy::disallowed_methods, reason = "a file of /proc")]
fn loaded() -> Result<(), Failure> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    if maps.lines().any(|line| line.ends_with(OBJECT)) {
        return Ok(());
    }
    Err(Failure::refused(format!(
        "{PRELOAD} with {OBJECT} had no effect: the dynamic linker ignores it for a program with file capabilities; \
         use a copy of wqcap without them (cp drops them)"
    )))
}

/// Sets the environment variables of `command` that the dynamic linker and the software NIC read.
fn equip(command: &mut Command, wires: &[&str], settings: &[Setting]) -> Result<(), Failure> {
    let object = find()?;
    if object
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|b| b" :".contains(b))
    {
        return Err(Failure::refused(format!(
            "{}: the environment variable {PRELOAD} cannot contain a path with a space or a colon; install wqcap elsewhere",
            object.display()
        )));
    }
    if let Some(wire) = wires.iter().find(|wire| wire.contains('\n')) {
        return Err(Failure::refused(format!(
            "wire {wire:?}: the description of a wire must be one line"
        )));
    }
    let settings: Vec<_> = settings
        .iter()
        .map(|it| format!("{}={}", it.key, it.value))
        .collect();
    command.env(PRELOAD, joined(&object, env::var_os(PRELOAD)));
    command
        .env(WIRES, wires.join("\n"))
        .env(SET, settings.join("\n"));
    Ok(())
}

/// Returns the value of the environment variable LD_PRELOAD: the software NIC's `object` first,
/// then the objects in `present`, each once.
fn joined(object: &Path, present: Option<OsString>) -> OsString {
    let mut all = object.as_os_str().to_owned();
    for other in present
        .as_deref()
        .unwrap_or_default()
        .as_bytes()
        .split(|b| b" :".contains(b))
    {
        let other = OsStr::from_bytes(other);
        if !other.is_empty() && other != object {
            all.push(":");
            all.push(other);
        }
    }
    all
}

/// Returns the path of the executable file of this process.
fn this_program() -> Result<PathBuf, Failure> {
    env::current_exe()
        .map_err(|e| Failure::refused(format!("cannot determine the path of this program: {e}")))
}

/// Returns the path of the software NIC's shared object, or a failure if it is not found.
fn find() -> Result<PathBuf, Failure> {
    let places = places(&this_program()?);
    if let Some(place) = places.iter().find(|place| place.is_file()) {
        return Ok(place.clone());
    }
    let places = places.map(|place| place.display().to_string());
    Err(Failure::refused(format!(
        "cannot find the software NIC in {}; build it with: cargo build -p mlx5-model",
        places.join(" and ")
    )))
}

/// Returns the paths where the software NIC's shared object is searched: next to the program, then
/// in `../lib/wqcap`.
fn places(program: &Path) -> [PathBuf; 2] {
    let folder = program.parent().unwrap_or(Path::new("/"));
    let above = folder.parent().unwrap_or(folder);
    [folder.join(OBJECT), above.join("lib/wqcap").join(OBJECT)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_is_searched_in_two_places() {
        assert_eq!(
            places(Path::new("/usr/bin/wqcap")),
            [
                Path::new("/usr/bin/libmlx5_model.so"),
                Path::new("/usr/lib/wqcap/libmlx5_model.so")
            ]
        );
    }

    #[test]
    fn objects_that_are_preloaded_already_stay() {
        let object = Path::new("/l/m.so");
        let with = |text: &str| joined(object, Some(text.into()));
        assert_eq!(joined(object, None), "/l/m.so");
        assert_eq!(with("/a.so /b.so"), "/l/m.so:/a.so:/b.so");
        assert_eq!(with("/l/m.so:/a.so"), "/l/m.so:/a.so");
    }

    #[test]
    fn capabilities_are_granted_where_no_network_is_reached() {
        for (wire, granted) in [
            ("pcap:x.pcap", true),
            ("synth:size=64", true),
            ("synth", true),
            ("loopback", true),
            ("af_packet:eth0", false),
            ("peer:/run/x", false),
        ] {
            assert_eq!(grants_all(wire), granted, "{wire}");
        }
    }
}
