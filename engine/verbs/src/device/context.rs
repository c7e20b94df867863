//! Devices and their contexts.

use super::cm_id::CmId;
use super::ring_memory::RingMemory;
use crate::error::{VerbsError, check_created, check_errno, log_destroy_error};
use crate::mlx5dv as dv;
use crate::sys as ffi;
use std::{ffi::CStr, mem, ptr, sync::Arc};

/// Returns the provider's function for an extended verb, or `None` if the provider lacks it. With a
/// verb's name and its object, the macro returns an EOPNOTSUPP error instead of `None`.
macro_rules! operation {
    ($context:expr, $field:ident) => {
        $context
            .extended(std::mem::offset_of!($crate::sys::verbs_context, $field))
            .and_then(|operations| operations.$field)
    };
    ($context:expr, $field:ident, $verb:literal, $object:expr) => {
        $crate::device::operation!($context, $field)
            .ok_or_else(|| VerbsError::from_errno($verb, $object(), libc::EOPNOTSUPP))
    };
}
pub(crate) use operation;

/// Context of an open RDMA device (`ibv_context`). Clones share one handle and are cheap.
#[derive(Clone)]
pub struct Context(pub(crate) Arc<ContextInner>);

pub(crate) struct ContextInner {
    pub(crate) raw: *mut ffi::ibv_context,
    name: String,
    /// Connection manager identifier that lends the context: the connection manager keeps the
    /// device open for it. `None`: this crate closes the device.
    lender: Option<Arc<CmId>>,
    /// Memory of the CQ and WQ rings of a context that this crate opened; dropped after the device
    /// is closed.
    _ring_memory: Option<Arc<RingMemory>>,
}

// SAFETY: libibverbs documents every verb on a context as thread safe; the pointer is valid until
// the last holder drops.
unsafe impl Send for ContextInner {}
// SAFETY: as for Send: the library takes its own locks.
unsafe impl Sync for ContextInner {}

impl Drop for ContextInner {
    fn drop(&mut self) {
        if self.lender.is_some() {
            return;
        }
        // SAFETY: opened by `Context::open`, closed only here; children hold an Arc of self, so
        // none is left.
        log_destroy_error("ibv_close_device", unsafe {
            ffi::ibv_close_device(self.raw)
        });
    }
}

/// Directory with an entry for each RDMA device of the kernel.
const SYSFS: &str = "/sys/class/infiniband";

/// List of RDMA devices, freed on drop. Devices stay valid while the list lives, or while they are
/// open.
struct DeviceList(*mut *mut ffi::ibv_device, usize);

impl DeviceList {
    fn get() -> Result<Self, VerbsError> {
        if let Err(error) = ffi::Verbs::get() {
            // A machine without RDMA devices needs no libibverbs.
            let exists = std::fs::read_dir(SYSFS).is_ok_and(|mut devices| devices.next().is_some());
            return match exists {
                true => Err(error.into()),
                false => Ok(Self(ptr::null_mut(), 0)),
            };
        }
        let mut count = 0;
        // SAFETY: `count` outlives the call; the list is freed in Drop.
        let list = unsafe { ffi::ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return match VerbsError::last_os_error("ibv_get_device_list", "") {
                // ENOSYS: the kernel has no RDMA support. The machine has no devices, which is not
                // an error.
                VerbsError::Verb { source, .. } if source.raw_os_error() == Some(libc::ENOSYS) => {
                    Ok(Self(ptr::null_mut(), 0))
                }
                error => Err(error),
            };
        }
        Ok(Self(list, usize::try_from(count).unwrap_or(0)))
    }

    fn iter(&self) -> impl Iterator<Item = (*mut ffi::ibv_device, String)> + '_ {
        (0..self.1).map(|i| {
            // SAFETY: the library filled `1` entries, each a valid device with a NUL-terminated
            // name.
            unsafe {
                let device = *self.0.add(i);
                (
                    device,
                    CStr::from_ptr((*device).name.as_ptr())
                        .to_string_lossy()
                        .into_owned(),
                )
            }
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: from ibv_get_device_list, freed once.
            unsafe { ffi::ibv_free_device_list(self.0) };
        }
    }
}

/// Returns the names of the RDMA devices on this machine, `mlx5_2` before `mlx5_10`; empty if the
/// kernel has no RDMA support. The library's own order is unspecified.
///
/// # Errors
/// The library cannot list devices.
pub fn names() -> Result<Vec<String>, VerbsError> {
    let list = DeviceList::get()?;
    let mut names: Vec<_> = list.iter().map(|(_, name)| name).collect();
    names.sort_unstable_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    Ok(names)
}

/// Allows the release of verbs objects whose device was removed. The kernel has then freed them and
/// returns EIO when they are destroyed. libibverbs keeps its half of each object, rings included,
/// unless `RDMAV_ALLOW_DISASSOC_DESTROY` is set when it first lists devices.
///
/// Call this before the first use of libibverbs and before the first thread starts. If the process
/// already has several threads, returns `false` and does nothing.
#[must_use]
pub fn allow_release_of_lost_objects() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    if !threads.is_ok_and(|threads| threads == 1) {
        return false;
    }
    // SAFETY: the calling thread is the only one, so no other thread reads the environment.
    unsafe { std::env::set_var("RDMAV_ALLOW_DISASSOC_DESTROY", "1") };
    true
}

impl Context {
    /// Opens the RDMA device named `name`.
    ///
    /// # Errors
    /// The device does not exist or cannot be opened.
    pub fn open(name: &str) -> Result<Self, VerbsError> {
        let list = DeviceList::get()?;
        let Some((device, _)) = list.iter().find(|(_, n)| n == name) else {
            return Err(VerbsError::NoDevice(name.to_owned()));
        };
        // SAFETY: `device` is from the list, which is still held.
        let raw = check_created(
            unsafe { ffi::ibv_open_device(device) },
            "ibv_open_device",
            name,
        )?;
        // libmlx5 keeps a pointer to the ring memory; a `Box` would claim unique access to it.
        let ring_memory = Arc::<RingMemory>::default();
        // SAFETY: just opened; `ContextInner` closes the device before it drops the ring memory.
        unsafe { ring_memory.serve(raw) };
        Ok(Self(Arc::new(ContextInner {
            raw,
            name: name.to_owned(),
            lender: None,
            _ring_memory: Some(ring_memory),
        })))
    }

    /// Returns the RDMA device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the RDMA device's attributes.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn query_device(&self) -> Result<ffi::ibv_device_attr_ex, VerbsError> {
        // SAFETY: plain old data; all zero is the documented start for a query.
        let mut attr: ffi::ibv_device_attr_ex = unsafe { mem::zeroed() };
        let ret = match operation!(self.0, query_device_ex) {
            // SAFETY: the provider's own function on its own context, with the true size of `attr`.
            Some(query) => unsafe {
                query(
                    self.0.raw,
                    ptr::null(),
                    &raw mut attr,
                    mem::size_of_val(&attr),
                )
            },
            // SAFETY: the plain verb fills the leading part.
            None => unsafe { ffi::ibv_query_device(self.0.raw, &raw mut attr.orig_attr) },
        };
        check_errno(ret, "ibv_query_device_ex", || self.name().into())?;
        Ok(attr)
    }

    /// Returns the attributes of a port of the device; ports are counted from 1.
    ///
    /// # Errors
    /// The verb's errno; EINVAL for a port that the device does not have.
    pub fn query_port(&self, port: u8) -> Result<ffi::ibv_port_attr, VerbsError> {
        // SAFETY: plain old data, filled by the call.
        let mut attr: ffi::ibv_port_attr = unsafe { mem::zeroed() };
        let ret = match operation!(self.0, query_port) {
            // SAFETY: the provider's own function, with the true size of `attr`.
            Some(query) => unsafe {
                query(self.0.raw, port, &raw mut attr, mem::size_of_val(&attr))
            },
            // SAFETY: the compatible form is a prefix of the full one.
            None => unsafe { ffi::ibv_query_port(self.0.raw, port, (&raw mut attr).cast()) },
        };
        check_errno(ret, "ibv_query_port", || {
            format!("{} port {port}", self.name())
        })?;
        Ok(attr)
    }

    /// Returns the current value of the device's free-running clock, in ticks.
    ///
    /// # Errors
    /// EOPNOTSUPP if the device offers none.
    pub fn query_clock(&self) -> Result<u64, VerbsError> {
        let object = || self.name().to_owned();
        let query = operation!(self.0, query_rt_values, "ibv_query_rt_values_ex", object)?;
        let mut values = ffi::ibv_values_ex {
            comp_mask: ffi::ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0,
            // SAFETY: a timespec of zeroes is a valid one.
            raw_clock: unsafe { mem::zeroed() },
        };
        // SAFETY: the provider's own function on its own context.
        let errno = unsafe { query(self.0.raw, &raw mut values) };
        check_errno(errno, "ibv_query_rt_values_ex", object)?;
        // libmlx5 puts the ticks into tv_nsec and leaves tv_sec 0.
        Ok(values.raw_clock.tv_nsec as u64)
    }

    /// Returns libmlx5's attributes of the device, with those that `mask` adds to the base; `None`
    /// for another provider.
    pub(crate) fn mlx5_attributes(&self, mask: u32) -> Option<dv::mlx5dv_context> {
        // SAFETY: plain integers; `comp_mask` selects the requested ones.
        let mut attr: dv::mlx5dv_context = unsafe { mem::zeroed() };
        attr.comp_mask = mask.into();
        // SAFETY: a live context of libmlx5, as checked first, and an attribute that outlives the
        // call.
        let known = self.0.is_mlx5()
            && unsafe { dv::mlx5dv_query_device(self.0.raw.cast(), &raw mut attr) } == 0;
        known.then_some(attr)
    }

    /// Returns the context of the device that a connection manager identifier is bound to. The
    /// connection manager keeps it open while the identifier lives.
    pub(crate) fn lent_by(id: &Arc<CmId>) -> Option<Self> {
        let locked = id.lock();
        // SAFETY: a live identifier; the library sets `verbs` when it is bound to a device, and
        // keeps that open.
        let raw = unsafe { (*id.raw).verbs };
        drop(locked);
        if raw.is_null() {
            return None;
        }
        // SAFETY: a live context, whose device has a NUL-terminated name.
        let name = unsafe { CStr::from_ptr((*(*raw).device).name.as_ptr()) };
        Some(Self(Arc::new(ContextInner {
            raw,
            name: name.to_string_lossy().into_owned(),
            lender: Some(Arc::clone(id)),
            _ring_memory: None,
        })))
    }
}

impl ContextInner {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns `true` if libmlx5 is the context's provider.
    pub(crate) fn is_mlx5(&self) -> bool {
        // SAFETY: a live context; the library only compares the provider.
        unsafe { dv::is_mlx5((*self.raw).device) }
    }

    /// Rejects a context of a provider other than libmlx5 with EOPNOTSUPP, the error of `verb` on
    /// `object`: libmlx5 does not check each object, and may not be installed.
    pub(crate) fn require_mlx5(
        &self,
        verb: &'static str,
        object: impl FnOnce() -> String,
    ) -> Result<(), VerbsError> {
        match self.is_mlx5() {
            true => Ok(()),
            false => Err(VerbsError::from_errno(verb, object(), libc::EOPNOTSUPP)),
        }
    }

    /// Rejects verbs objects of other contexts with EINVAL. The kernel finds an object by a number
    /// that each context counts separately: a number of another context would name another object,
    /// which may be destroyed at any time.
    pub(crate) fn refuse_others<'a>(
        &self,
        others: impl IntoIterator<Item = &'a Arc<Self>>,
        verb: &'static str,
        object: impl FnOnce() -> String,
    ) -> Result<(), VerbsError> {
        match others.into_iter().find(|it| it.raw != self.raw) {
            None => Ok(()),
            Some(other) => {
                let object = format!(
                    "{} (one of its verbs objects belongs to another context of device {})",
                    object(),
                    other.name
                );
                Err(VerbsError::from_errno(verb, object, libc::EINVAL))
            }
        }
    }

    /// Returns the provider's table of extended verbs, if it includes the verb at `offset`.
    ///
    /// rdma-sys 0.3 compares `abi_compat` with 2^32-1 and so finds no table on a 64-bit machine;
    /// its inline functions for WQs, tables and flows would all return EOPNOTSUPP.
    /// `__VERBS_ABI_IS_EXTENDED` in `infiniband/verbs.h` is a pointer with all bits set.
    pub(crate) fn extended(&self, offset: usize) -> Option<&ffi::verbs_context> {
        // SAFETY: a live context; `verbs.h` documents that with this mark the context is the last
        // member of a verbs_context, whose `sz` is the size of the part (counted from its end) that
        // the library filled.
        unsafe {
            if (*self.raw).abi_compat as usize != usize::MAX {
                return None;
            }
            let table = self
                .raw
                .byte_sub(mem::offset_of!(ffi::verbs_context, context))
                .cast::<ffi::verbs_context>();
            ((*table).sz >= size_of::<ffi::verbs_context>() - offset).then(|| &*table)
        }
    }
}
