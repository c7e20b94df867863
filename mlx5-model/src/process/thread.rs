//! Threads of the model: signals are blocked, a CPU can be set, and sleeps end on time.
//!
//! Imports nothing of the model. Invariant: starting a thread leaves the caller's signal mask
//! unchanged.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

/// Starts a detached thread with all signals blocked, so that the program's handlers run on the
/// program's threads. Fails when the system cannot start another thread.
pub fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set it is given, and pthread_sigmask the old one.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    // SAFETY: `before` was initialised above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    started.map(drop)
}

/// Pins the calling thread to a CPU, or allows all CPUs for `None`. A thread inherits its creator's
/// CPUs, and the NIC's thread must not share the core that its program has pinned itself to.
pub fn pin(cpu: Option<usize>) {
    // SAFETY: a CPU set is plain bits, for which zero is a valid value; CPU_SET checks its bounds;
    // the kernel copies the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        match cpu {
            Some(cpu) => libc::CPU_SET(cpu.min(libc::CPU_SETSIZE as usize - 1), &mut set),
            None => (0..libc::CPU_SETSIZE as usize).for_each(|cpu| libc::CPU_SET(cpu, &mut set)),
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        // Limits the timer slack to 1 µs: sleeps of microseconds must end in microseconds.
        libc::prctl(libc::PR_SET_TIMERSLACK, 1000);
    }
}

/// Maximum number of descriptors that [`sleep`] can wait for; each port of a device has one.
pub const MAX_FDS: usize = 4;

/// Makes the calling thread sleep for at most `ns` nanoseconds, until one of the descriptors is
/// readable or a signal arrives.
pub fn sleep(fds: &[RawFd], ns: u64) {
    let mut polls = [libc::pollfd {
        fd: -1,
        events: libc::POLLIN,
        revents: 0,
    }; MAX_FDS];
    for (poll, fd) in polls.iter_mut().zip(fds) {
        poll.fd = *fd;
    }
    let time = libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the array has MAX_FDS entries, the kernel skips negative descriptors, and the call
    // only reads the time and the absent mask.
    unsafe {
        libc::ppoll(
            polls.as_mut_ptr(),
            MAX_FDS as libc::nfds_t,
            &time,
            std::ptr::null(),
        )
    };
}
