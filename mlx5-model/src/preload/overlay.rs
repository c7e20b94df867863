//! What the shims know once there is a device: where its files are.
//!
//! Imports nothing of the model. Invariant: set once, by the constructor, and never freed.

#![allow(unsafe_code)]

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The files that the model lays over the machine's.
pub struct Overlay {
    /// The run directory, without a slash at its end.
    pub dir: Vec<u8>,
    /// How many devices there are.
    pub devices: usize,
    /// Interfaces that exist in the overlay alone, with their indices.
    pub virtual_netdevs: Vec<(CString, u32)>,
}

static OVERLAY: AtomicPtr<Overlay> = AtomicPtr::new(std::ptr::null_mut());

impl Overlay {
    /// The overlay; `None` before the constructor has finished, and for good if no wire is asked for.
    #[inline]
    pub fn get() -> Option<&'static Self> {
        // SAFETY: null, or a box leaked by `activate`.
        unsafe { OVERLAY.load(Ordering::Acquire).as_ref() }
    }

    /// From here on the shims answer for the model.
    pub fn activate(self) {
        OVERLAY.store(Box::into_raw(Box::new(self)), Ordering::Release);
    }

    /// The run directory.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.dir))
    }
}
