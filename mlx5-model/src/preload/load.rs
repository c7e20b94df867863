//! Constructor and destructor of the library in a process.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, NulError};
use std::io;
use std::os::unix::ffi::OsStringExt;

use crate::device::counters;
use crate::process::print_line;
use crate::process::real::{self, errno, raw, set_errno};
use crate::settings::{self, ModelSettingsError, Settings};
use crate::sysfs::run_dir::{self, RunDirError};
use crate::sysfs::{address, presence, tree};

use super::overlay::Overlay;

const RUN_DIR: &CStr = c"MLX5_MODEL_DIR";

/// Reason why the model cannot start.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(transparent)]
    Settings(#[from] ModelSettingsError),
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    #[error("cannot map the port counters of the run directory: {0}{remedy}", remedy = run_dir::remedy(.0))]
    Counters(io::Error),
    #[error("the run directory's path contains a zero byte")]
    ZeroByte(#[from] NulError),
    #[error("cannot set MLX5_MODEL_DIR: {0}")]
    Environment(io::Error),
}

/// Reads the model's settings and starts the model. Runs before `main`.
extern "C" fn load() {
    // The runtime of a sanitizer or a shell may read errno before main, so errno is restored.
    let errno = errno();
    let settings = Settings::from_env().map_err(LoadError::from);
    let start = |settings| real::without_size_signal(|| start(settings::set(settings)));
    if let Err(error) = settings.and_then(start) {
        print_line(error);
        // Exit instead of running on another device than was asked for. The exit handlers are
        // skipped, because the program has not started yet.
        // SAFETY: no preconditions.
        unsafe { libc::_exit(2) }
    }
    set_errno(errno);
}

/// Joins or creates the run directory, maps the port counters and activates the shims of the C
/// library's functions.
fn start(settings: &'static Settings) -> Result<(), LoadError> {
    if settings.devices.is_empty() {
        return Ok(());
    }
    let inherited = run_dir::inherited();
    let is_first = inherited.is_none();
    let dir = match inherited {
        Some(dir) => dir,
        None => run_dir::create(|dir| tree::write(dir, settings))?,
    };
    presence::attach(&dir);
    counters::attach(&dir.join("counters")).map_err(LoadError::Counters)?;
    let mut virtual_netdevs = Vec::new();
    for (index, device) in settings.devices.iter().enumerate() {
        for (port, number) in device.ports.iter().zip(1..) {
            if is_first {
                let counters = counters::port(index, number);
                counters.set_link_up(port.link_up);
                if port.rx_all {
                    counters.set_rx_all();
                }
                counters.start_queue_counters(device.caps.counter_start.into());
            }
            if port.netdev.is_none()
                && let Ok(name) = CString::new(port.ifname.as_str())
            {
                virtual_netdevs.push((name, address::virtual_ifindex(index, number)));
            }
        }
    }
    let dir = CString::new(dir.into_os_string().into_vec())?;
    // Uses the C library's own setenv: the one that shells export is not ready before main.
    // SAFETY: both are C strings, and no other thread runs before main.
    if unsafe { raw::setenv(RUN_DIR.as_ptr(), dir.as_ptr(), 1) } != 0 {
        return Err(LoadError::Environment(io::Error::last_os_error()));
    }
    // SAFETY: the handler is a plain function of a library that stays loaded.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    Overlay {
        dir: dir.into_bytes(),
        devices: settings.devices.len(),
        virtual_netdevs,
    }
    .activate();
    Ok(())
}

/// Registers a fork's child process with the run directory, because the child may outlive its
/// parent.
extern "C" fn forked() {
    let errno = errno();
    if let Some(overlay) = Overlay::get() {
        let _ = run_dir::join(overlay.path());
    }
    set_errno(errno);
}

/// Unregisters this process from the run directory. Runs at exit of the process, after the
/// program's own handlers.
extern "C" fn unload() {
    if let Some(overlay) = Overlay::get() {
        run_dir::leave(overlay.path());
    }
}

#[cfg(not(any(test, fuzzing)))]
#[used]
// SAFETY: the section holds pointers to functions of this type; each runs once at loading.
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

#[cfg(not(any(test, fuzzing)))]
#[used]
// SAFETY: the section holds pointers to functions of this type; each runs once at exit.
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;
