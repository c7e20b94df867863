//! A process for each interface that switches offloads off and on, and on again when the program ends, however it ends.
//!
//! It is forked when a wire is opened for the first time, with the rights of then. A program that opens its device, gives up
//! its rights and opens it again, as `wqcap run` does, finds it there; so does one that closes it in a sandbox. It sleeps until
//! its end of a socket pair has a request or is closed, or the program's pidfd says that it is over. It is in a session of its
//! own with all signals blocked: what ends the program's process group does not end it before its work is done.
//!
//! Invariants: the process makes system calls and does nothing else, because the program may have had threads when it was
//! forked; it is nobody's child, because the program may wait for children of its own.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
    socketpair,
};

use super::super::mapping::between_mappings;
use super::super::packet_socket::Socket;
use super::{ETHTOOL_GFLAGS, ETHTOOL_GGRO, ETHTOOL_SFLAGS, ETHTOOL_SGRO};

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The process's descriptors are from here on.
const FIRST_FD: c_int = 10;

/// Requests: switch these flags and GRO off, or what was switched off on.
const OFF: u32 = 0;
const ON: u32 = 1;

/// An interface of a network namespace.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct NamespaceInterface {
    namespace: u64,
    index: c_int,
}

impl NamespaceInterface {
    /// That with this index in the socket's namespace, which before Linux 5.14 is taken for the only one.
    pub(super) fn new(socket: &Socket, index: c_int) -> NamespaceInterface {
        NamespaceInterface {
            namespace: socket.namespace().unwrap_or(0),
            index,
        }
    }
}

/// The program's end of a process.
struct Helper {
    interface: NamespaceInterface,
    end: OwnedFd,
    /// Wires that are open.
    wires: u32,
}

static HELPERS: Mutex<Vec<Helper>> = Mutex::new(Vec::new());

fn helpers() -> MutexGuard<'static, Vec<Helper>> {
    HELPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Switches GRO and these flags off, for one wire more.
pub(super) fn switch_off(
    socket: &Socket,
    interface: NamespaceInterface,
    flags: u32,
) -> io::Result<()> {
    let mut helpers = helpers();
    let at = match helpers.iter().position(|it| it.interface == interface) {
        Some(at) => at,
        None => {
            // As it is: only the permission is asked for, before a process is made.
            let [_, gro] = socket.ethtool(interface.index, [ETHTOOL_GGRO, 0])?;
            socket.ethtool(interface.index, [ETHTOOL_SGRO, gro])?;
            helpers.push(Helper::start(interface)?);
            helpers.len() - 1
        }
    };
    helpers[at].wires += 1;
    let done = helpers[at].request(OFF, flags);
    if done.as_ref().is_err_and(|e| e.raw_os_error().is_none()) {
        // It is gone.
        helpers.swap_remove(at);
    }
    done
}

/// Switches on what was switched off, unless another wire is open on the interface.
pub(super) fn switch_on(interface: NamespaceInterface) {
    let mut helpers = helpers();
    if let Some(it) = helpers.iter_mut().find(|it| it.interface == interface) {
        it.wires = it.wires.saturating_sub(1);
        if it.wires == 0 {
            // It fails if the interface is gone, or the process, which has switched it on then.
            let _ = it.request(ON, 0);
        }
    }
}

impl Helper {
    fn start(interface: NamespaceInterface) -> io::Result<Helper> {
        let close_on_exec = SocketFlags::CLOEXEC;
        let (end, process_end) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            close_on_exec,
            None,
        )?;
        set_socket_timeout(&end, Timeout::Recv, Some(PATIENCE))?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, close_on_exec, None)?;
        // SAFETY: it opens a descriptor of this process, or fails.
        let program = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) };
        let program = c_int::try_from(program).unwrap_or(-1);
        // SAFETY: a new descriptor that nobody else closes.
        let program = (program >= 0).then(|| unsafe { OwnedFd::from_raw_fd(program) });
        let process = Process {
            end: process_end.as_raw_fd(),
            program: program.as_ref().map_or(-1, AsRawFd::as_raw_fd),
            socket: socket.as_raw_fd(),
            index: interface.index,
            gro: false,
            flags: 0,
        };
        // SAFETY: both children only make system calls, and never return.
        unsafe {
            let forked = {
                let _no_mapping = between_mappings();
                fork()?
            };
            match forked {
                0 => {
                    if fork().is_ok_and(|pid| pid == 0) {
                        process.run();
                    }
                    // The one between is waited for, so that the other is nobody's child.
                    exit()
                }
                child => {
                    let mut status = 0;
                    // It fails if the program ignores SIGCHLD, once the child has ended.
                    while libc::waitpid(child, &raw mut status, 0) < 0
                        && io::Error::last_os_error().kind() == ErrorKind::Interrupted
                    {
                    }
                }
            }
        }
        Ok(Helper {
            interface,
            end,
            wires: 0,
        })
    }

    /// Has the process do something. An error without a number: it does not answer.
    fn request(&self, what: u32, flags: u32) -> io::Result<()> {
        let gone = || io::Error::other("the process for it does not answer");
        let request = u64::from(what) << 32 | u64::from(flags);
        let mut answer = [0; size_of::<c_int>()];
        send(&self.end, &request.to_ne_bytes(), SendFlags::NOSIGNAL).map_err(|_| gone())?;
        match recv(&self.end, &mut answer, RecvFlags::empty()) {
            Ok((_, 4)) => match c_int::from_ne_bytes(answer) {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            },
            _ => Err(gone()),
        }
    }
}

/// What the process works with.
struct Process {
    /// Its end of the socket pair.
    end: RawFd,
    /// Of the program; -1 before Linux 5.3.
    program: RawFd,
    /// Any socket of the interface's network namespace.
    socket: RawFd,
    index: c_int,
    /// What it has switched off.
    gro: bool,
    flags: u32,
}

impl Process {
    /// From its first step to its last.
    ///
    /// # Safety
    /// In a forked child only.
    unsafe fn run(mut self) -> ! {
        // SAFETY: system calls on this process and its own descriptors, with structures on its stack.
        unsafe {
            libc::syscall(libc::SYS_setsid);
            // The kernel's set of signals, not the C library's.
            let all = u64::MAX;
            let size = size_of::<u64>();
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_SETMASK,
                &raw const all,
                ptr::null_mut::<u64>(),
                size,
            );
            libc::syscall(
                libc::SYS_prctl,
                libc::PR_SET_NAME,
                c"wqcap-offloads".as_ptr(),
            );
            libc::syscall(libc::SYS_chdir, c"/".as_ptr());
            self.keep_only_its_descriptors();
            loop {
                let mut fds = [self.end, self.program].map(|fd| libc::pollfd {
                    fd,
                    events: libc::POLLIN,
                    revents: 0,
                });
                // No signal interrupts it. Without a pidfd, the end of the program closes the pair.
                libc::syscall(
                    libc::SYS_ppoll,
                    fds.as_mut_ptr(),
                    fds.len(),
                    ptr::null::<libc::timespec>(),
                    ptr::null::<u64>(),
                    size,
                );
                let is_over = fds[1].revents != 0;
                let mut request = 0u64;
                if is_over
                    || libc::syscall(libc::SYS_read, self.end, &raw mut request, size)
                        != size as c_long
                {
                    self.switch_on();
                    exit()
                }
                let errno = if (request >> 32) as u32 == OFF {
                    self.switch_off(request as u32)
                } else {
                    self.switch_on()
                };
                let len = size_of::<c_int>();
                libc::syscall(libc::SYS_write, self.end, &raw const errno, len);
            }
        }
    }

    /// Switches off what is on; the last error.
    fn switch_off(&mut self, flags: u32) -> c_int {
        let mut errno = 0;
        if matches!(self.ethtool([ETHTOOL_GGRO, 0]), Ok([_, on]) if on != 0) {
            match self.ethtool([ETHTOOL_SGRO, 0]) {
                Ok(_) => self.gro = true,
                Err(e) => errno = e,
            }
        }
        if let Ok([_, present]) = self.ethtool([ETHTOOL_GFLAGS, 0])
            && present & flags != 0
        {
            match self.ethtool([ETHTOOL_SFLAGS, present & !flags]) {
                Ok(_) => self.flags |= present & flags,
                Err(e) => errno = e,
            }
        }
        errno
    }

    /// Switches on what was switched off; the last error.
    fn switch_on(&mut self) -> c_int {
        let mut errno = 0;
        if std::mem::take(&mut self.gro) {
            errno = self.ethtool([ETHTOOL_SGRO, 1]).err().unwrap_or(errno);
        }
        let flags = std::mem::take(&mut self.flags);
        if flags != 0
            && let Ok([_, present]) = self.ethtool([ETHTOOL_GFLAGS, 0])
        {
            let on = self.ethtool([ETHTOOL_SFLAGS, present | flags]);
            errno = on.err().unwrap_or(errno);
        }
        errno
    }

    /// Closes all other descriptors, so that nobody waits for this process in vain: readers of the program's output, say.
    /// Before Linux 5.9 they stay open.
    fn keep_only_its_descriptors(&mut self) {
        let mut kept = [self.end, self.program, self.socket];
        let mut from = FIRST_FD;
        // SAFETY: descriptors of this process alone. Those that it needs are copied first, each beyond the one before.
        unsafe {
            for fd in kept.iter_mut().filter(|fd| **fd >= 0) {
                let copy = libc::syscall(libc::SYS_fcntl, *fd, libc::F_DUPFD, from);
                if copy < 0 {
                    return;
                }
                *fd = copy as c_int;
                from = *fd + 1;
            }
            let mut from = 0;
            for fd in kept.into_iter().filter(|fd| *fd >= 0) {
                libc::syscall(libc::SYS_close_range, from, fd - 1, 0);
                from = fd + 1;
            }
            libc::syscall(libc::SYS_close_range, from, u32::MAX, 0);
        }
        [self.end, self.program, self.socket] = kept;
    }

    /// An ethtool command of two words, or the error's number.
    fn ethtool(&self, mut words: [u32; 2]) -> Result<[u32; 2], c_int> {
        // SAFETY: a C struct of integers and a pointer, for which zeroes are a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = self.index;
        // The kernel gives the name of the index, and then takes it.
        self.ioctl(libc::SIOCGIFNAME as libc::c_ulong, &mut request)?;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        self.ioctl(libc::SIOCETHTOOL as libc::c_ulong, &mut request)?;
        // The compiler does not know that the kernel wrote it.
        Ok(std::hint::black_box(words))
    }

    fn ioctl(&self, operation: libc::c_ulong, request: &mut libc::ifreq) -> Result<(), c_int> {
        // SAFETY: the operations read and write a struct ifreq, and one of them two words that it points to.
        let ret =
            unsafe { libc::syscall(libc::SYS_ioctl, self.socket, operation, &raw mut *request) };
        if ret == 0 {
            return Ok(());
        }
        // SAFETY: this thread's own.
        Err(unsafe { *libc::__errno_location() })
    }
}

/// Forks without what the C library does about it, which is not this process's to do.
///
/// # Safety
/// The child may only make system calls.
unsafe fn fork() -> io::Result<c_int> {
    // SAFETY: the child goes on with a copy of this stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(pid as c_int)
}

/// # Safety
/// In a forked child only.
unsafe fn exit() -> ! {
    loop {
        // SAFETY: it ends this process alone.
        unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::lab;
    use super::super::super::mapping::{MappingAccess, SharedMapping};
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Instant;
    use wqcap_tests::need;

    const RING: u32 = 64 << 10;

    fn with_ring() -> io::Result<Socket> {
        let socket = Socket::new()?;
        socket.prepare()?;
        socket.set_ring(&libc::tpacket_req3 {
            tp_block_size: RING,
            tp_block_nr: 1,
            tp_frame_size: 2048,
            tp_frame_nr: RING / 2048,
            tp_retire_blk_tov: 0,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        })?;
        Ok(socket)
    }

    /// Each of them lives on with a copy of the memory that was mapped when it was forked.
    #[test]
    fn no_process_holds_a_closed_wires_socket() {
        let socket = need!(with_ring().map_err(|e| format!("needs a packet socket: {e}")));
        let inode = fs::metadata(format!("/proc/self/fd/{}", socket.fd()));
        let inode = inode.unwrap().ino().to_string();
        let is_open = || {
            let all = fs::read_to_string("/proc/thread-self/net/packet").unwrap();
            all.lines()
                .any(|it| it.split_whitespace().last() == Some(&inode))
        };
        assert!(is_open());
        let lo = NamespaceInterface {
            namespace: 0,
            index: 1,
        };
        let enough = AtomicBool::new(false);
        let _helpers: Vec<_> = thread::scope(|scope| {
            scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    drop(
                        SharedMapping::new(socket.fd(), RING as usize, 0, MappingAccess::ReadWrite)
                            .unwrap(),
                    );
                }
            });
            let helpers = (0..100).map(|_| Helper::start(lo)).collect();
            enough.store(true, Ordering::Relaxed);
            helpers
        });
        drop(socket);
        // Processes on their way to their own program or descriptors still have it for a moment.
        let began = Instant::now();
        while is_open() {
            assert!(began.elapsed() < lab::PATIENCE, "it is still open");
            thread::sleep(lab::MOMENT);
        }
    }
}
