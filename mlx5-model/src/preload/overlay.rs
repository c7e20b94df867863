//! State of the shims once there is a device: the location of the device's files.
//!
//! Imports nothing of the model. Invariant: the constructor sets it once; it is never freed.

#![allow(unsafe_code)]

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Overlay: the files of the model that replace those of the machine for the program.
pub struct Overlay {
    /// Path of the model's run directory, without a slash at its end.
    pub dir: Vec<u8>,
    /// Number of the model's devices.
    pub devices: usize,
    /// Names and indices of the network interfaces that exist only in the model's overlay.
    pub virtual_netdevs: Vec<(CString, u32)>,
}

static OVERLAY: AtomicPtr<Overlay> = AtomicPtr::new(std::ptr::null_mut());

impl Overlay {
    /// Returns the overlay of the model's files; `None` until the constructor has finished, and
    /// always if no wire is configured.
    #[inline]
    pub fn get() -> Option<&'static Self> {
        // SAFETY: null, or a box leaked by `activate`.
        unsafe { OVERLAY.load(Ordering::Acquire).as_ref() }
    }

    /// Activates the overlay of the model's files: from now on the shims answer for the model.
    pub fn activate(self) {
        OVERLAY.store(Box::into_raw(Box::new(self)), Ordering::Release);
    }

    /// Returns the path of the model's run directory.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.dir))
    }
}
