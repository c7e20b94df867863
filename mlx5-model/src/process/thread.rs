//! Threads of the model: without the program's signals, pinned if asked for, with sleep that ends in time.
//!
//! Imports nothing of the model. Invariant: starting a thread leaves the caller's signal mask as it was.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

/// Starts a detached thread that no signal is delivered to: the program's handlers run on the program's threads.
/// Fails when the system has no further thread.
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

/// Pins the calling thread to a CPU, or lets it run on all. A thread inherits its creator's CPUs, and a NIC must not
/// share the core that its program has pinned itself to.
pub fn pin(cpu: Option<usize>) {
    // SAFETY: a CPU set is plain bits, for which zero is a value; CPU_SET checks its bounds; the kernel copies the
    // set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        match cpu {
            Some(cpu) => libc::CPU_SET(cpu.min(libc::CPU_SETSIZE as usize - 1), &mut set),
            None => (0..libc::CPU_SETSIZE as usize).for_each(|cpu| libc::CPU_SET(cpu, &mut set)),
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        // Sleeps of microseconds are to end in microseconds.
        libc::prctl(libc::PR_SET_TIMERSLACK, 1000);
    }
}

/// The most descriptors that [`sleep`] waits for; a port has one.
pub const MAX_FDS: usize = 4;

/// Sleeps until one of the descriptors is readable, `ns` have passed, or sooner.
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
    // SAFETY: the array has MAX_FDS entries, the kernel skips negative descriptors, and time and (absent) mask are
    // read only.
    unsafe {
        libc::ppoll(
            polls.as_mut_ptr(),
            MAX_FDS as libc::nfds_t,
            &time,
            std::ptr::null(),
        )
    };
}
