//! Helper process, one per interface, that switches offloads off and on. It also switches them on
//! when the program ends for any reason.
//!
//! The process is forked when a wire is opened for the first time, and has the program's rights at
//! that time. So it works for a program that opens its device, gives up its rights and opens the
//! device again, as `wqcap run` does, and for a program that closes its device in a sandbox. The
//! process sleeps until its end of a socket pair has a request or is closed, or until the program's
//! pidfd reports the end of the program. It is in a separate session with all signals blocked: a
//! signal to the program's process group does not end it before its work is done.
//!
//! Invariants: the process makes system calls and does nothing else, because the program may have
//! had threads when it was forked; the process is not a child of the program, because the program
//! may wait for its own children.

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

/// Timeout of the program's request to the helper process.
const PATIENCE: Duration = Duration::from_secs(2);
/// Lowest descriptor number of the helper process.
const FIRST_FD: c_int = 10;

/// Request to the helper process to switch off GRO and the given offload flags.
const OFF: u32 = 0;
/// Request to the helper process to switch on the offloads that were switched off.
const ON: u32 = 1;

/// Network interface of a network namespace.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct NamespaceInterface {
    /// Number of the interface's network namespace; 0 before Linux 5.14.
    namespace: u64,
    index: c_int,
}

impl NamespaceInterface {
    /// Creates the identity of the network interface `index` in the socket's network namespace.
    /// Before Linux 5.14 all namespaces count as one.
    pub(super) fn new(socket: &Socket, index: c_int) -> NamespaceInterface {
        NamespaceInterface {
            namespace: socket.namespace().unwrap_or(0),
            index,
        }
    }
}

/// Connection of the program to a helper process.
struct Helper {
    interface: NamespaceInterface,
    /// The program's end of the socket pair to the helper process.
    end: OwnedFd,
    /// Number of open wires on the helper process's interface.
    wires: u32,
}

static HELPERS: Mutex<Vec<Helper>> = Mutex::new(Vec::new());

fn helpers() -> MutexGuard<'static, Vec<Helper>> {
    HELPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Switches off GRO and the offloads in `flags`, for one more wire on the network interface.
pub(super) fn switch_off(
    socket: &Socket,
    interface: NamespaceInterface,
    flags: u32,
) -> io::Result<()> {
    let mut helpers = helpers();
    let at = match helpers.iter().position(|it| it.interface == interface) {
        Some(at) => at,
        None => {
            // Sets GRO to its current value, to check the permission before a process is forked.
            let [_, gro] = socket.ethtool(interface.index, [ETHTOOL_GGRO, 0])?;
            socket.ethtool(interface.index, [ETHTOOL_SGRO, gro])?;
            helpers.push(Helper::start(interface)?);
            helpers.len() - 1
        }
    };
    helpers[at].wires += 1;
    let done = helpers[at].request(OFF, flags);
    if done.as_ref().is_err_and(|e| e.raw_os_error().is_none()) {
        // The process is gone.
        helpers.swap_remove(at);
    }
    done
}

/// Switches on the offloads that were switched off, unless another wire is open on the network
/// interface.
pub(super) fn switch_on(interface: NamespaceInterface) {
    let mut helpers = helpers();
    if let Some(it) = helpers.iter_mut().find(|it| it.interface == interface) {
        it.wires = it.wires.saturating_sub(1);
        if it.wires == 0 {
            // The request fails if the interface is gone, or if the process is gone, which then has
            // switched the offloads on.
            let _ = it.request(ON, 0);
        }
    }
}

impl Helper {
    /// Forks the helper process of a network interface.
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
        // SAFETY: the call opens a descriptor of this process, or fails.
        let program = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) };
        let program = c_int::try_from(program).unwrap_or(-1);
        // SAFETY: the descriptor is new, and no other code closes it.
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
                    // The program waits for this process, so that the helper process is not its
                    // child.
                    exit()
                }
                child => {
                    let mut status = 0;
                    // If the program ignores SIGCHLD, the call fails once the child has ended.
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

    /// Sends a request to the helper process and waits for its answer. An error without an error
    /// number means that the process does not answer.
    fn request(&self, what: u32, flags: u32) -> io::Result<()> {
        let gone = || io::Error::other("the helper process does not answer");
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

/// State of the helper process that switches the offloads of an interface.
struct Process {
    /// The helper process's end of the socket pair.
    end: RawFd,
    /// Pidfd of the program that the helper process serves; -1 before Linux 5.3.
    program: RawFd,
    /// Socket in the network namespace of the helper process's interface.
    socket: RawFd,
    /// Index of the helper process's network interface.
    index: c_int,
    /// Set when the helper process has switched off GRO.
    gro: bool,
    /// Flags of the offloads that the helper process has switched off.
    flags: u32,
}

impl Process {
    /// Runs the helper process until the program ends.
    ///
    /// # Safety
    /// The calling process must be a forked child.
    unsafe fn run(mut self) -> ! {
        // SAFETY: the system calls affect only this process and its descriptors, with structures on
        // its stack.
        unsafe {
            libc::syscall(libc::SYS_setsid);
            // A signal set of the kernel's size, not the C library's.
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
                // No signal interrupts the call. Without a pidfd, the end of the program closes the
                // socket pair.
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

    /// Switches off GRO and the interface's offloads in `flags` that are on. Returns the last error
    /// number, or 0.
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

    /// Switches on the interface's offloads that were switched off. Returns the last error number,
    /// or 0.
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

    /// Closes all other descriptors of the helper process, so that no other process waits until
    /// this one closes them, such as a reader of the program's output. Before Linux 5.9 they stay
    /// open.
    fn keep_only_its_descriptors(&mut self) {
        let mut kept = [self.end, self.program, self.socket];
        let mut from = FIRST_FD;
        // SAFETY: only descriptors of this process are changed. Needed ones are copied first, each
        // above the previous one.
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

    /// Runs an ethtool command of two words on the interface. Returns the words as the kernel has
    /// left them, or the error number.
    fn ethtool(&self, mut words: [u32; 2]) -> Result<[u32; 2], c_int> {
        // SAFETY: a C struct of integers and a pointer, for which zeroes are a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = self.index;
        // SIOCGIFNAME writes the interface's name into the request, and SIOCETHTOOL takes the name.
        self.ioctl(libc::SIOCGIFNAME as libc::c_ulong, &mut request)?;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        self.ioctl(libc::SIOCETHTOOL as libc::c_ulong, &mut request)?;
        // The compiler does not see that the kernel has written the words.
        Ok(std::hint::black_box(words))
    }

    fn ioctl(&self, operation: libc::c_ulong, request: &mut libc::ifreq) -> Result<(), c_int> {
        // SAFETY: the operations read and write a struct ifreq, and SIOCETHTOOL the two words at
        // its pointer.
        let ret =
            unsafe { libc::syscall(libc::SYS_ioctl, self.socket, operation, &raw mut *request) };
        if ret == 0 {
            return Ok(());
        }
        // SAFETY: the pointer is valid for the calling thread.
        Err(unsafe { *libc::__errno_location() })
    }
}

/// Forks without the C library's fork handlers, which the helper process must not run.
///
/// # Safety
/// The child must only make system calls.
unsafe fn fork() -> io::Result<c_int> {
    // SAFETY: the child continues on a copy of this stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(pid as c_int)
}

/// Ends the helper process at once.
///
/// # Safety
/// The calling process must be a forked child.
unsafe fn exit() -> ! {
    loop {
        // SAFETY: the call ends only this process.
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
    use wqcap_testkit::need;

    const RING: u32 = 64 << 10;

    fn socket_with_ring() -> io::Result<Socket> {
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

    /// Checks that a helper process has no copy of memory that was mapped when it was forked. A
    /// copy would hold the socket as long as the helper process lives.
    #[test]
    fn no_helper_process_holds_a_closed_wires_socket() {
        let socket = need!(socket_with_ring().map_err(|e| format!("needs a packet socket: {e}")));
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
        // Processes that have not yet closed their descriptors hold the socket for a moment.
        let began = Instant::now();
        while is_open() {
            assert!(began.elapsed() < lab::PATIENCE, "the socket is still open");
            thread::sleep(lab::MOMENT);
        }
    }
}
