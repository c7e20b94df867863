//! Devices of the process, and their threads.
//!
//! Imports `round`, `state` and the modules below them. A device's whole state is behind one lock.
//! The NIC's thread takes the lock for one burst and releases it; commands take it in between. So a
//! command that destroys an object returns when the NIC no longer uses the object, and the NIC
//! never writes to it again.
//!
//! The thread does not spin if only wires that signal their frames can bring work. It then rests,
//! and the rest becomes longer while no frame arrives. After frames it waits until others gather,
//! so that one wake-up handles many frames.
//!
//! Invariants: a waiting command runs before the NIC's next burst. The thread runs only while a
//! context is open. After `fork` the child gets separate devices at rest, because the thread stays
//! with the parent; the child's copies of the parent's descriptors fail with `EIO`.

use std::iter;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::process::{Errno, descriptors, thread};
use crate::settings::{self, DeviceSettings, MAX_DEVICES, fault::FaultEnd};
use crate::wire::WireSpec;

use super::port::NicPort;
use super::round;
use super::state::DeviceState;

/// Time for which the NIC's thread spins for more frames and WQEs before it sleeps, in nanoseconds.
const SPIN_NS: u64 = 50_000;
/// Longest sleep of the NIC's thread in nanoseconds. Doorbells are writes to memory, which cannot
/// wake a thread.
const MAX_SLEEP_NS: u64 = 100_000;
/// Length in nanoseconds of the first rest of the NIC's thread; a frame ends a rest early. During a
/// rest the clock that programs read stands still until the next command, and the arming of a CQ is
/// not noticed.
const REST_NS: u64 = 2_000_000;
/// Length in nanoseconds of the longest rest of the NIC's thread.
const MAX_REST_NS: u64 = 64_000_000;
/// Shortest time for which the NIC's thread lets frames gather on a wire, in nanoseconds. Each
/// wake-up costs as much as several hundred frames.
const GATHER_NS: u64 = 200_000;
/// Longest time for which frames gather on a wire with a receive ring of the default size, in
/// nanoseconds; a wire with a smaller ring gets less time. In this time 2 million frames of 1500
/// bytes per second fill less than half of the default ring.
const MAX_GATHER_NS: u64 = 16_000_000;
/// Number of frames that should have gathered on the wires at a wake-up of the NIC's thread.
const GATHERED: u64 = 8192;
/// Interval between two checks for the file that ends a restart of the device's driver.
const FILE_CHECK: Duration = Duration::from_millis(1);

/// Function that shows or hides a device in sysfs, by index and name, around a restart of its
/// driver.
pub type SetPresence = fn(usize, &str, bool);

/// A modelled NIC device of the process, with the state that its lock protects.
pub struct Device {
    index: usize,
    settings: &'static DeviceSettings,
    set_presence: SetPresence,
    /// Number of commands that wait for the device's lock.
    waiting: AtomicU32,
    state: Mutex<DeviceState>,
    /// Number of forks of this process when the device was created, which identifies the device's
    /// process.
    forks: u32,
    /// Separate device that a child process uses instead of this one after a fork.
    next: OnceLock<&'static Device>,
}

static FIRST: [OnceLock<&'static Device>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];

impl Device {
    /// Returns the modelled device with number `index` of this process. Fails with `ENODEV` if it
    /// does not exist.
    pub fn get(index: usize, set_presence: SetPresence) -> Result<&'static Self, Errno> {
        let settings = settings::global().devices.get(index).ok_or(libc::ENODEV)?;
        let mut slot = FIRST.get(index).ok_or(libc::ENODEV)?;
        loop {
            if slot.get().is_none() {
                // The device lives as long as the process. If another thread was first, this one is
                // never used.
                let device = Box::leak(Box::new(Self {
                    index,
                    settings,
                    set_presence,
                    waiting: AtomicU32::new(0),
                    state: Mutex::new(DeviceState::new(index, settings)?),
                    forks: descriptors::forks(),
                    next: OnceLock::new(),
                }));
                let _ = slot.set(device);
            }
            match slot.get() {
                Some(device) if device.forks == descriptors::forks() => return Ok(device),
                Some(device) => slot = &device.next,
                None => return Err(libc::ENOMEM),
            }
        }
    }

    pub fn index(&self) -> usize {
        self.index
    }

    pub fn settings(&self) -> &'static DeviceSettings {
        self.settings
    }

    /// Locks the device's state for a command. The clock is updated, even while the NIC's thread
    /// rests.
    pub fn lock(&self) -> MutexGuard<'_, DeviceState> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.clock.tick();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Starts the NIC's thread, and plugs the wires in for the first context. Fails with `ENOMEM`
    /// when the system cannot start another thread.
    pub fn start(&'static self, state: &mut DeviceState) -> Result<(), Errno> {
        if state.contexts.is_empty() {
            state.plug();
        }
        if !state.running {
            state.running = true;
            if thread::start(&self.settings.name, || self.run()).is_err() {
                state.running = false;
                return Err(libc::ENOMEM);
            }
        }
        Ok(())
    }

    /// Runs the main loop of the NIC's thread until no context of the device is open.
    fn run(&'static self) {
        thread::pin(self.settings.cpu);
        let mut idle = Idleness::new(self.settings);
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.contexts.is_empty() {
                state.running = false;
                return;
            }
            let work = round::run(&mut state);
            if let Some(end) = state.start_restart() {
                drop(state);
                self.restart(end);
                continue;
            }
            let wait = idle.next_wait(work, &mut state);
            drop(state);
            while self.waiting.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            }
            match wait {
                _ if work > 0 => {}
                Some(wait) => thread::sleep(&wait.fds[..wait.count], wait.ns),
                None => std::hint::spin_loop(),
            }
        }
    }

    /// Hides the device in sysfs, and starts a thread that shows it again when its driver has
    /// restarted.
    fn restart(&'static self, end: FaultEnd) {
        let name = &self.settings.name;
        (self.set_presence)(self.index, name, false);
        let finish = move || {
            match end {
                FaultEnd::Never => return,
                FaultEnd::AfterNs(ns) => std::thread::sleep(Duration::from_nanos(ns)),
                FaultEnd::File(path) => {
                    while !path.exists() {
                        std::thread::sleep(FILE_CHECK);
                    }
                }
            }
            self.lock().finish_restart();
            (self.set_presence)(self.index, name, true);
        };
        // If no thread can be started, the device stays hidden.
        let _ = thread::start(name, finish);
    }
}

/// Idle state of the NIC's thread, from which it computes how long it waits.
#[derive(Default)]
struct Idleness {
    /// Time at which the NIC's thread began to spin, in nanoseconds.
    since_ns: Option<u64>,
    /// Number of frames and WQEs that the NIC's thread has handled since its last wait.
    worked: u64,
    /// Time for which the NIC's thread now lets frames gather on the wires, in nanoseconds.
    gathers_ns: u64,
    /// Longest time for which the NIC's thread lets frames gather on the device's wires, in
    /// nanoseconds.
    most_gather_ns: u64,
    /// Length of the last rest of the NIC's thread in nanoseconds.
    rested_ns: u64,
}

impl Idleness {
    fn new(settings: &DeviceSettings) -> Self {
        let rings = settings.ports.iter().filter_map(|it| it.wire.ring());
        let least = rings.min().unwrap_or(0).min(WireSpec::DEFAULT_RING);
        Self {
            gathers_ns: GATHER_NS,
            most_gather_ns: MAX_GATHER_NS * (least >> 20) / (WireSpec::DEFAULT_RING >> 20),
            ..Self::default()
        }
    }

    /// Returns the wait of the NIC's thread after a round that handled `work` frames and WQEs;
    /// `None`: the thread continues at once.
    fn next_wait(&mut self, work: usize, state: &mut DeviceState) -> Option<Wait> {
        if work > 0 {
            self.worked += work as u64;
            (self.since_ns, self.rested_ns) = (None, 0);
            return None;
        }
        let now_ns = state.clock.now_ns();
        if state.can_rest() {
            let worked = std::mem::take(&mut self.worked);
            let holds = state.is_holding();
            let gathers = worked > 0 || holds;
            let wait = if gathers {
                // Scales the time with the rate of the last frames.
                let wanted = (self.gathers_ns * GATHERED)
                    .checked_div(worked)
                    .unwrap_or(self.gathers_ns)
                    .min(2 * self.gathers_ns);
                let wanted = if holds { 0 } else { wanted };
                self.gathers_ns = wanted.min(self.most_gather_ns).max(GATHER_NS);
                Wait::new(iter::empty(), self.gathers_ns)
            } else {
                self.rested_ns = (self.rested_ns * 2).clamp(REST_NS, MAX_REST_NS);
                Wait::for_frames(state, self.rested_ns)
            };
            for (_, cq) in state.queues.cqs.iter_mut() {
                cq.fire_due_before(now_ns + wait.ns);
            }
            return Some(wait);
        }
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        (now_ns - since_ns > SPIN_NS).then(|| Wait::for_frames(state, MAX_SLEEP_NS))
    }
}

/// Wait of the idle NIC thread: descriptors of wires that end it, and a time limit.
struct Wait {
    fds: [RawFd; thread::MAX_FDS],
    count: usize,
    ns: u64,
}

impl Wait {
    /// Creates a wait of the NIC's thread for `ns`, or until one of the descriptors is readable.
    fn new(fds: impl Iterator<Item = RawFd>, ns: u64) -> Self {
        let mut wait = Self {
            fds: [-1; thread::MAX_FDS],
            count: 0,
            ns,
        };
        for (slot, fd) in wait.fds.iter_mut().zip(fds) {
            *slot = fd;
            wait.count += 1;
        }
        wait
    }

    /// Creates a wait of the NIC's thread for frames of the wires, until the next frame of a paced
    /// wire is due, and at most `ns`.
    fn for_frames(state: &DeviceState, ns: u64) -> Self {
        let mut wait = Self::new(state.ports.iter().filter_map(NicPort::wait_fd), ns);
        let now = state.clock.now_ns();
        if let Some(due) = state.ports.iter().filter_map(NicPort::next_due_ns).min() {
            wait.ns = wait.ns.min(due.saturating_sub(now));
        }
        wait
    }
}
