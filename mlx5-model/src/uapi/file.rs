//! An open file of a device: `/dev/infiniband/uverbs<N>`.
//!
//! Imports `device`. The commands operate on this file; `super` dispatches to them.

use std::collections::HashSet;
use std::ffi::c_void;
use std::os::fd::RawFd;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::CapabilitySet;

use crate::abi;
use crate::device::clock::PAGE;
use crate::device::event::EventChannel;
use crate::device::nic::Device;
use crate::device::state::{ContextObject, DYNAMIC_UARS, DeviceState};
use crate::handles::ContextId;
use crate::process::{Errno, MapRequest, has_capability, real, refuse_if};
use crate::settings::{self, DeviceSettings, NicCaps};

static NEXT_CONTEXT: AtomicU32 = AtomicU32::new(1);

/// Open verbs file of a device (`/dev/infiniband/uverbs<N>`), with its device context once
/// GET_CONTEXT has succeeded.
pub struct UverbsFile {
    device: &'static Device,
    context: ContextId,
    /// Set once GET_CONTEXT has succeeded on the verbs file.
    has_context: AtomicBool,
}

impl UverbsFile {
    /// Opens the verbs file of a device. Fails with `ENODEV` while the device's driver restarts.
    pub fn open(device: &'static Device) -> Result<Self, Errno> {
        refuse_if(device.lock().is_restarting(), libc::ENODEV)?;
        Ok(Self {
            device,
            context: NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed),
            has_context: AtomicBool::new(false),
        })
    }

    pub fn settings(&self) -> &'static DeviceSettings {
        self.device.settings()
    }

    pub fn caps(&self) -> &'static NicCaps {
        &self.device.settings().caps
    }

    /// Returns the device's node GUID, host-endian.
    pub fn node_guid(&self) -> u64 {
        self.settings().node_guid(self.device.index())
    }

    /// Returns the id of the device context that owns the objects of this verbs file.
    pub fn context(&self) -> ContextId {
        self.context
    }

    /// Returns `true` if GET_CONTEXT has succeeded on the verbs file.
    pub fn has_context(&self) -> bool {
        self.has_context.load(Ordering::Acquire)
    }

    /// Locks the state of the verbs file's device.
    pub fn lock(&self) -> MutexGuard<'static, DeviceState> {
        self.device.lock()
    }

    /// Fails with `EPERM` if the program lacks a Linux capability that the verbs command requires.
    pub fn require(&self, capability: CapabilitySet) -> Result<(), Errno> {
        let enforced = settings::global().enforce_caps;
        refuse_if(enforced && !has_capability(capability), libc::EPERM)
    }

    /// Fails with `EIO` if a verbs command may not run. On a dead device objects can only be
    /// destroyed (mlx5 `mlx5_internal_err_ret_value`). A program that had the device open when its
    /// driver restarted has lost the device and its objects for good: the kernel accepts only the
    /// close of the file (`ib_uverbs_write`, `ib_uverbs_ioctl` of a disassociated file).
    pub fn check_alive(&self, destroys: bool) -> Result<(), Errno> {
        let state = self.lock();
        let lost = self.has_context() && !state.contexts.contains_key(&self.context);
        refuse_if(lost || state.is_dead() && !destroys, libc::EIO)?;
        Ok(())
    }

    /// Executes GET_CONTEXT, which starts the device. Returns the descriptor of the context's
    /// asynchronous events. Fails with `EINVAL` the second time, or when no event channel or thread
    /// can be created.
    pub fn create_context(&self) -> Result<RawFd, Errno> {
        let mut state = self.lock();
        refuse_if(self.has_context(), libc::EINVAL)?;
        let events = EventChannel::asynchronous()?;
        let fd = events.fd();
        self.device.start(&mut state)?;
        let context = ContextObject {
            events,
            channels: Vec::new(),
            uars: HashSet::new(),
        };
        state.contexts.insert(self.context, context);
        self.has_context.store(true, Ordering::Release);
        Ok(fd)
    }

    /// Closes the verbs file's device context and destroys its objects.
    pub fn close_context(&self) {
        if self.has_context.swap(false, Ordering::AcqRel) {
            self.lock().close_context(self.context);
        }
    }

    /// Maps a page of the device: doorbell registers (of the context or of a thread domain), the
    /// clock's counter, or the clock info page.
    pub fn map(&self, request: MapRequest) -> Result<*mut c_void, Errno> {
        refuse_if(request.len != PAGE || !self.has_context(), libc::EINVAL)?;
        self.check_alive(true)?;
        // As in the driver, the page offset holds command and index.
        let page = (request.offset as u64 / PAGE as u64) as u32;
        match page >> 8 & 0xff {
            abi::MLX5_IB_MMAP_REGULAR_PAGE
            | abi::MLX5_IB_MMAP_WC_PAGE
            | abi::MLX5_IB_MMAP_NC_PAGE => map_doorbells(request),
            abi::MLX5_IB_MMAP_ALLOC_WC => {
                // As `get_extended_index` of the driver.
                let index = page & 0xff | (page >> 16 & 0xff) << 8;
                let mut state = self.lock();
                let context = state.contexts.get_mut(&self.context).ok_or(libc::EINVAL)?;
                if index >= DYNAMIC_UARS || context.uars.contains(&index) {
                    return Err(libc::EINVAL);
                }
                let mapped = map_doorbells(request)?;
                context.uars.insert(index);
                Ok(mapped)
            }
            abi::MLX5_IB_MMAP_CORE_CLOCK => self.lock().clock.counter().map(request),
            abi::MLX5_IB_MMAP_CLOCK_INFO => self.lock().clock.info().map(request),
            _ => Err(libc::EINVAL),
        }
    }
}

/// Maps the device's doorbell registers. The device reads doorbell records instead, so writes to
/// the registers have no effect.
fn map_doorbells(request: MapRequest) -> Result<*mut c_void, Errno> {
    let fixed = request.flags & libc::MAP_FIXED;
    let anonymous = MapRequest {
        flags: libc::MAP_SHARED | libc::MAP_ANONYMOUS | fixed,
        offset: 0,
        ..request
    };
    real::mmap(-1, anonymous)
}
