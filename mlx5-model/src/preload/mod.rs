//! The library's life in a process: what runs when it is loaded, at a fork, and at exit; and the C
//! symbols that stand in front of the C library's ([`paths`] by name, [`descriptors`] by number).
//!
//! Imports everything of the shell, and of the device only `nic::open_context`.
//!
//! Invariants:
//! - Until the constructor has finished, and for ever when no wire is asked for, every shim is a
//!   call to the C library and nothing else. The constructor itself comes through the shims.
//! - A shim sets errno exactly when it fails; when it succeeds errno is as the program left it.
//! - No shim panics, allocates or locks for what is not the model's.
//! - Variadic functions are declared with their one optional argument: stable Rust cannot define
//!   variadic ones, and the System V conventions of x86-64 and aarch64 pass it just so.

#![allow(unsafe_code)]

mod descriptors;
mod path_resolve;
mod paths;

use std::ffi::{CStr, CString};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::device::counters;
use crate::process::real::{self, errno, set_errno};
use crate::process::{
    Errno,
    descriptors::{self as fds, File},
};
use crate::settings::Settings;
use crate::sysfs::{self, presence, run_dir, tree};

/// What the shims know once there is a device.
struct Stage {
    /// The run directory, without a slash at its end.
    dir: Vec<u8>,
    devices: usize,
    /// Interfaces that exist only here, and their indices.
    made_up: Vec<(CString, u32)>,
}

static STAGE: AtomicPtr<Stage> = AtomicPtr::new(std::ptr::null_mut());

impl Stage {
    #[inline]
    fn get() -> Option<&'static Stage> {
        // SAFETY: null, or a box leaked by the constructor.
        unsafe { STAGE.load(Ordering::Acquire).as_ref() }
    }
}

/// Ends the process at once, without its exit handlers: it has not begun yet.
pub fn leave(status: i32) -> ! {
    // SAFETY: no preconditions.
    unsafe { libc::_exit(status) }
}

/// Runs before `main`.
extern "C" fn load() {
    // The runtime of a sanitizer or a shell may look at errno before main; leave no trace.
    let errno = errno();
    if let Err(error) = set_stage(Settings::global()) {
        eprintln!("mlx5-model: {error}");
        leave(2);
    }
    set_errno(errno);
}

fn set_stage(settings: &'static Settings) -> Result<(), String> {
    if settings.devices.is_empty() {
        return Ok(());
    }
    let told = |what: &str, error: std::io::Error| format!("{what}: {error}");
    let inherited = run_dir::inherited();
    let fresh = inherited.is_none();
    let dir = match inherited {
        Some(dir) => dir,
        None => run_dir::create(|dir| tree::write(dir, settings))?,
    };
    presence::attach(&dir);
    counters::attach(&dir.join("counters")).map_err(|error| told("counters", error))?;
    let mut made_up = Vec::new();
    for (number, device) in settings.devices.iter().enumerate() {
        for (port, number_of) in device.ports.iter().zip(1..) {
            if fresh {
                sysfs::set_port_state(number, number_of, port.link_up);
            }
            if port.netdev.is_none()
                && let Ok(name) = CString::new(port.ifname.as_str())
            {
                made_up.push((name, tree::made_up_index(number, number_of)));
            }
        }
    }
    let dir = CString::new(dir.into_os_string().into_vec())
        .map_err(|_| "a run directory with a zero byte")?;
    // The C library's own setenv: shells export one that is not ready before main.
    // SAFETY: both are C strings, and no other thread runs before main.
    if unsafe { real::raw::setenv(DIR_NAME.as_ptr(), dir.as_ptr(), 1) } != 0 {
        return Err(told(run_dir::DIR, std::io::Error::last_os_error()));
    }
    // SAFETY: a plain function of a library that stays loaded.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    let stage = Stage {
        dir: dir.into_bytes(),
        devices: settings.devices.len(),
        made_up,
    };
    STAGE.store(Box::into_raw(Box::new(stage)), Ordering::Release);
    Ok(())
}

const DIR_NAME: &CStr = c"MLX5_MODEL_DIR";

/// A child that lives on without exec uses the tree too. It may outlive its parent.
extern "C" fn forked() {
    let errno = errno();
    if let Some(stage) = Stage::get() {
        let _ = run_dir::join(stage.path());
    }
    set_errno(errno);
}

/// Runs at exit, after the program's own handlers.
extern "C" fn unload() {
    if let Some(stage) = Stage::get() {
        run_dir::leave(stage.path());
    }
}

#[cfg(not(test))]
#[used]
// SAFETY: the section holds pointers to functions of this type, run once each when loading.
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

#[cfg(not(test))]
#[used]
// SAFETY: as above, when exiting.
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;

/// Opens `/dev/infiniband/uverbs<device>`: `/dev/zero`, so that fstat, its device number and
/// private mappings are a character device's, with the NIC behind it.
fn open_device(device: usize, flags: i32) -> Result<RawFd, Errno> {
    let flags = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC);
    let fd = real::open(c"/dev/zero", flags, 0)?;
    if flags & libc::O_PATH != 0 {
        return Ok(fd);
    }
    let installed = crate::device::nic::open_context(device, fd).and_then(|file| install(fd, file));
    installed.map(|()| fd).inspect_err(|_| {
        let _ = real::close(fd);
    })
}

fn install(fd: RawFd, file: Arc<dyn File>) -> Result<(), Errno> {
    fds::forget(fd);
    fds::install(fd, file)
}

/// Runs the model's own answer: errno is set when it fails and left alone when it succeeds.
fn answer<T>(failed: T, own: impl FnOnce() -> Result<T, Errno>) -> T {
    let before = errno();
    match own() {
        Ok(value) => {
            set_errno(before);
            value
        }
        Err(error) => {
            set_errno(error);
            failed
        }
    }
}

/// Exports a C function under its own name, except to the unit tests' runner.
macro_rules! export {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// As the C function of that name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? $body
    )*};
}
use export;
