//! The devices of the process, and their threads.
//!
//! Imports `round`, `state` and what is below them. A device's whole state lies behind one lock. The NIC's thread
//! takes it for one burst and releases it; commands take it in between. So a command that destroys something returns
//! when the NIC no longer uses it, and what is destroyed is never written to again.
//!
//! Where nothing but a wire that tells of its frames can bring work, the thread does not spin: it rests, for longer the
//! longer nothing has come, and after frames for a while in which others gather, so that many are one wake-up.
//!
//! Invariants: a command that waits goes before the NIC's next burst; the thread runs while a context is open and at
//! no other time; after `fork` the child finds devices of its own, at rest, since the thread stayed with the parent
//! (and its copies of the parent's descriptors answer `EIO`).

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

/// How long the thread spins for more work before it sleeps.
const SPIN_NS: u64 = 50_000;
/// The longest sleep: doorbells ring in memory, where nobody can wait for them.
const MAX_SLEEP_NS: u64 = 100_000;
/// The first rest, which a frame ends early, and the longest. The clock that programs read stands meanwhile, until the next
/// command, and a completion of before is not yet seen to be waited for.
const REST_NS: u64 = 2_000_000;
const MAX_REST_NS: u64 = 64_000_000;
/// How long frames gather, and how many should by then: each wake-up costs as much as several hundred frames. Wires that
/// tell when their rings fill have the longest time. Within that of the others a ring of the default size is not half filled by
/// 2 million frames of 1500 bytes a second; a smaller one has less.
const GATHER_NS: u64 = 200_000;
const MAX_GATHER_NS: u64 = 64_000_000;
const MAX_BLIND_GATHER_NS: u64 = 16_000_000;
const GATHERED: u64 = 8192;
/// The time between two checks for the file that ends a restart.
const FILE_CHECK: Duration = Duration::from_millis(1);

/// Shows or hides a device in sysfs, by index and name, around a restart of its driver.
pub type SetPresence = fn(usize, &str, bool);

/// A device.
pub struct Device {
    index: usize,
    settings: &'static DeviceSettings,
    set_presence: SetPresence,
    /// Commands that wait for the lock.
    waiting: AtomicU32,
    state: Mutex<DeviceState>,
    /// The process that it belongs to, counted in forks, and the device of the next one.
    forks: u32,
    next: OnceLock<&'static Device>,
}

static FIRST: [OnceLock<&'static Device>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];

impl Device {
    /// Device `index` of this process. Fails with `ENODEV` if there is none.
    pub fn get(index: usize, set_presence: SetPresence) -> Result<&'static Self, Errno> {
        let settings = settings::global().devices.get(index).ok_or(libc::ENODEV)?;
        let mut slot = FIRST.get(index).ok_or(libc::ENODEV)?;
        loop {
            if slot.get().is_none() {
                // Lives as long as the process; if another thread was first, this one is never used.
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

    /// The state, for a command. Its clock is of now, though the thread may rest.
    pub fn lock(&self) -> MutexGuard<'_, DeviceState> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.clock.tick();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Starts the thread and plugs the wires in, for the first context of all. Fails with `ENOMEM` when the system
    /// has no further thread.
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

    /// The NIC's thread.
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
            let wait = idle.after(work, &mut state);
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

    /// Hides the device while its driver restarts.
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
        // Without a thread it stays away.
        let _ = thread::start(name, finish);
    }
}

/// How long the thread has had nothing to do.
#[derive(Default)]
struct Idleness {
    /// Since when it spins.
    since_ns: Option<u64>,
    /// The work it has had since it last slept.
    worked: u64,
    /// How long frames gather now, and at most on a wire that does not tell when its ring fills.
    gathers_ns: u64,
    most_blind_ns: u64,
    /// How long it has rested.
    rested_ns: u64,
}

impl Idleness {
    fn new(settings: &DeviceSettings) -> Self {
        let rings = settings.ports.iter().filter_map(|it| it.wire.ring());
        let least = rings.min().unwrap_or(0).min(WireSpec::DEFAULT_RING);
        Self {
            gathers_ns: GATHER_NS,
            most_blind_ns: MAX_BLIND_GATHER_NS * (least >> 20) / (WireSpec::DEFAULT_RING >> 20),
            ..Self::default()
        }
    }

    /// What the thread waits for after a round; `None`: it goes on at once.
    fn after(&mut self, work: usize, state: &mut DeviceState) -> Option<Wait> {
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
                let mut wait = Wait::for_marks(state);
                let most_ns = match wait.count == state.ports.len() {
                    true => MAX_GATHER_NS,
                    false => self.most_blind_ns,
                };
                // At the rate at which they came.
                let wanted = (self.gathers_ns * GATHERED)
                    .checked_div(worked)
                    .unwrap_or(self.gathers_ns)
                    .min(2 * self.gathers_ns);
                self.gathers_ns = if holds { 0 } else { wanted }.min(most_ns).max(GATHER_NS);
                wait.ns = self.gathers_ns;
                wait
            } else {
                self.rested_ns = (self.rested_ns * 2).clamp(REST_NS, MAX_REST_NS);
                Wait::for_frames(state, self.rested_ns)
            };
            for (_, cq) in state.queues.cqs.iter_mut() {
                cq.rest(now_ns + wait.ns);
            }
            return Some(wait);
        }
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        (now_ns - since_ns > SPIN_NS).then(|| Wait::for_frames(state, MAX_SLEEP_NS))
    }
}

/// What an idle thread waits for.
struct Wait {
    fds: [RawFd; thread::MAX_FDS],
    count: usize,
    ns: u64,
}

impl Wait {
    /// Waits for `ns`, or until one of the descriptors is readable.
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

    /// Lets frames gather, until a wire that tells of that has a good part of its ring full.
    fn for_marks(state: &DeviceState) -> Self {
        Self::new(state.ports.iter().filter_map(NicPort::begin_gathering), 0)
    }

    /// Waits for wires, until the next frame of one with a pace is due, and for `ns` at most.
    fn for_frames(state: &DeviceState, ns: u64) -> Self {
        let mut wait = Self::new(state.ports.iter().filter_map(NicPort::wait_fd), ns);
        let now = state.clock.now_ns();
        if let Some(due) = state.ports.iter().filter_map(NicPort::next_due_ns).min() {
            wait.ns = wait.ns.min(due.saturating_sub(now));
        }
        wait
    }
}
