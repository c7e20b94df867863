//! The devices, their threads, and the files that programs reach them through.
//!
//! May import everything. A device's whole state lies behind one lock. The NIC's thread takes it for one
//! burst and lets it go; commands take it in between. So a command that destroys something returns when
//! the NIC has let go of it, and what is destroyed is never written to again.
//!
//! Invariants: a command that waits goes before the NIC's next burst; the thread runs while a context is
//! open and at no other time; after `fork` the child finds devices of its own, at rest, since the thread
//! stayed with the parent (and its copies of the parent's descriptors answer `EIO`).

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::abi;
use crate::device::clock::PAGE;
use crate::device::counters::DEVICES;
use crate::device::event::EventChannel;
use crate::device::port::Port;
use crate::device::state::{Context, State};
use crate::objects::ContextId;
use crate::process::thread;
use crate::process::{
    Errno,
    descriptors::{self as fds, File},
    real,
};
use crate::settings::{DeviceSettings, Settings};
use crate::sysfs::presence;
use crate::uapi;

/// How long the thread spins for more work before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long it sleeps at most: doorbells ring in memory, where nobody can wait for them.
const SLEEP_NS: u64 = 100_000;
/// Rounds between two looks at the time while spinning.
const SPIN_ROUNDS: u32 = 16;

/// A device.
pub struct Device {
    index: usize,
    settings: &'static DeviceSettings,
    /// Commands that want the lock.
    waiting: AtomicU32,
    state: Mutex<State>,
    /// Which process it is of, counted in forks, and the device of the next one.
    forks: u32,
    next: OnceLock<&'static Device>,
}

static FIRST: [OnceLock<&'static Device>; DEVICES] = [const { OnceLock::new() }; DEVICES];
static NEXT_CONTEXT: AtomicU32 = AtomicU32::new(1);

impl Device {
    /// Device `index` of this process.
    fn get(index: usize) -> Result<&'static Self, Errno> {
        let settings = Settings::global().devices.get(index).ok_or(libc::ENODEV)?;
        let mut slot = FIRST.get(index).ok_or(libc::ENODEV)?;
        loop {
            if slot.get().is_none() {
                // Lives as long as the process; if another thread was first, this one is never used.
                let device = Box::leak(Box::new(Self::new(index, settings)?));
                let _ = slot.set(device);
            }
            match slot.get() {
                Some(device) if device.forks == fds::forks() => return Ok(device),
                Some(device) => slot = &device.next,
                None => return Err(libc::ENOMEM),
            }
        }
    }

    fn new(index: usize, settings: &'static DeviceSettings) -> Result<Self, Errno> {
        Ok(Self {
            index,
            settings,
            waiting: AtomicU32::new(0),
            state: Mutex::new(State::new(index, settings)?),
            forks: fds::forks(),
            next: OnceLock::new(),
        })
    }

    /// What was asked for.
    pub fn settings(&self) -> &'static DeviceSettings {
        self.settings
    }

    /// The state, for a command.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// The first context of all starts the thread and plugs the wires in.
    fn start(&'static self, state: &mut State) -> Result<(), Errno> {
        if state.contexts.is_empty() {
            state.plug();
        }
        if !state.running {
            state.running = true;
            if thread::spawn(&self.settings.name, || self.run()).is_err() {
                state.running = false;
                return Err(libc::ENOMEM);
            }
        }
        Ok(())
    }

    /// The NIC's thread.
    fn run(&'static self) {
        thread::pin(self.settings.cpu);
        let mut spinning: Option<Instant> = None;
        let mut rounds = 0u32;
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.contexts.is_empty() {
                state.running = false;
                return;
            }
            let work = state.work();
            if let Some(ns) = state.leave() {
                drop(state);
                self.be_away(ns);
                continue;
            }
            let idle = if work > 0 {
                None
            } else {
                Some(Idle::of(&state))
            };
            drop(state);
            while self.waiting.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            }
            let Some(idle) = idle else {
                spinning = None;
                continue;
            };
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(SPIN_ROUNDS)
                && spinning.get_or_insert_with(Instant::now).elapsed() > SPIN
            {
                thread::sleep(&idle.fds[..idle.count], idle.ns);
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

impl Device {
    /// Nobody finds the device for so long: its driver is restarted.
    fn be_away(&'static self, ns: u64) {
        let name = &self.settings.name;
        presence::hide(self.index, name);
        let back = move || {
            std::thread::sleep(Duration::from_nanos(ns));
            self.lock().come_back();
            presence::show(self.index, name);
        };
        // Without a thread it stays away.
        let _ = thread::spawn(name, back);
    }
}

/// What the thread can wait for.
struct Idle {
    fds: [RawFd; thread::MAX_FDS],
    count: usize,
    ns: u64,
}

impl Idle {
    fn of(state: &State) -> Self {
        let mut idle = Self {
            fds: [-1; thread::MAX_FDS],
            count: 0,
            ns: SLEEP_NS,
        };
        for (slot, fd) in idle
            .fds
            .iter_mut()
            .zip(state.ports.iter().filter_map(Port::wait_fd))
        {
            *slot = fd;
            idle.count += 1;
        }
        let now = state.clock.now_ns();
        if let Some(due) = state.ports.iter().filter_map(Port::next_due_ns).min() {
            idle.ns = idle.ns.min(due.saturating_sub(now));
        }
        idle
    }
}

/// An open of a device: the file behind `/dev/infiniband/uverbs<N>`.
pub struct Session {
    device: &'static Device,
    context: ContextId,
    /// GET_CONTEXT has been answered.
    ready: AtomicBool,
}

/// The file that answers for a newly opened `/dev/infiniband/uverbs<device>`, `fd` being its descriptor.
///
/// # Errors
/// `ENODEV` if there is no such device, or not now.
pub fn open_context(device: usize, fd: RawFd) -> Result<Arc<dyn File>, Errno> {
    let _ = fd;
    let device = Device::get(device)?;
    if device.lock().is_away() {
        return Err(libc::ENODEV);
    }
    Ok(Arc::new(Session {
        device,
        context: NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed),
        ready: AtomicBool::new(false),
    }))
}

impl Session {
    /// The device.
    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// Whose objects commands are about.
    pub fn context(&self) -> ContextId {
        self.context
    }

    /// Whether GET_CONTEXT has been answered.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// The device's state.
    pub fn lock(&self) -> MutexGuard<'static, State> {
        self.device.lock()
    }

    /// Whether a command may run. A dead device still takes leave of its objects (mlx5
    /// `mlx5_internal_err_ret_value`). To a program that had it open when its driver went away it is gone for good, and
    /// its objects with it: the kernel answers nothing but the close of the file (`ib_uverbs_write`,
    /// `ib_uverbs_ioctl` of a disassociated file).
    ///
    /// # Errors
    /// `EIO` if it may not.
    pub fn admit(&self, takes_leave: bool) -> Result<(), Errno> {
        let state = self.lock();
        let gone = self.is_ready() && !state.contexts.contains_key(&self.context);
        if gone || state.is_dead() && !takes_leave {
            return Err(libc::EIO);
        }
        Ok(())
    }

    /// Answers GET_CONTEXT, once: from here on the device runs.
    ///
    /// # Errors
    /// `EINVAL` the second time, or when there can be no channel or thread.
    pub fn begin(&self) -> Result<RawFd, Errno> {
        let mut state = self.lock();
        if self.is_ready() {
            return Err(libc::EINVAL);
        }
        let events = EventChannel::asynchronous()?;
        let fd = events.fd();
        self.device.start(&mut state)?;
        state.contexts.insert(
            self.context,
            Context {
                events,
                channels: Vec::new(),
            },
        );
        self.ready.store(true, Ordering::Release);
        Ok(fd)
    }

    fn map(
        &self,
        addr: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        offset: libc::off_t,
    ) -> Result<*mut c_void, Errno> {
        if len != PAGE || !self.is_ready() {
            return Err(libc::EINVAL);
        }
        self.admit(true)?;
        // The driver finds command and index in the page offset.
        match ((offset as u64 / PAGE as u64) >> 8) & 0xff {
            command
                if [
                    abi::MLX5_IB_MMAP_REGULAR_PAGE,
                    abi::MLX5_IB_MMAP_WC_PAGE,
                    abi::MLX5_IB_MMAP_NC_PAGE,
                ]
                .contains(&(command as u32)) =>
            {
                // Doorbell registers. The device watches doorbell records instead, so writes to these
                // may go nowhere.
                let anonymous = libc::MAP_SHARED | libc::MAP_ANONYMOUS | flags & libc::MAP_FIXED;
                real::mmap(addr, len, prot, anonymous, -1, 0)
            }
            command if command as u32 == abi::MLX5_IB_MMAP_CORE_CLOCK => {
                self.lock().clock.map_counter(addr, prot, flags)
            }
            command if command as u32 == abi::MLX5_IB_MMAP_CLOCK_INFO => {
                self.lock().clock.map_info(addr, prot, flags)
            }
            _ => Err(libc::EINVAL),
        }
    }
}

impl File for Session {
    fn read(&self, _fd: RawFd, _buf: &mut [u8]) -> Result<usize, Errno> {
        Err(libc::EINVAL)
    }

    fn write(&self, _fd: RawFd, buf: &[u8]) -> Result<usize, Errno> {
        uapi::write(self, buf)
    }

    fn ioctl(&self, _fd: RawFd, request: c_ulong, arg: *mut c_void) -> Result<c_int, Errno> {
        uapi::ioctl(self, request, arg as u64).map(|()| 0)
    }

    fn mmap(
        &self,
        _fd: RawFd,
        addr: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        offset: libc::off_t,
    ) -> Result<*mut c_void, Errno> {
        self.map(addr, len, prot, flags, offset)
    }

    fn close(&self, _fd: RawFd) {
        if self.ready.swap(false, Ordering::AcqRel) {
            self.lock().close_context(self.context);
        }
    }
}
