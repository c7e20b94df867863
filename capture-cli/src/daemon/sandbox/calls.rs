//! System calls that a capture makes after its start, and the seccomp filter that allows only
//! these.
//!
//! The list was made by running the whole test suite with `process.sandbox = "log"`. If a call can
//! do more than a capture needs, its arguments are restricted too: memory never becomes executable;
//! sockets are UDP or RDMA netlink; threads may be created but not processes; arguments that name a
//! process must name this one; a new file never has a set-user-ID, set-group-ID or sticky bit; options
//! of sockets are those that captures set. A filter cannot read arguments behind a pointer, such as
//! those of `clone3` and `openat2`. These two fail with ENOSYS, and the C library falls back to
//! `clone` and `openat`.
//!
//! A filter cannot see which file a descriptor belongs to either. `flock` and `futimens` therefore
//! remain possible on every file that may be opened (`docs/service.md`).
//!
//! io_uring rings, the service manager's socket and listening sockets are opened before. On the
//! software NIC the list also has the calls of its wire.

use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};
use std::collections::BTreeMap;
use wqcap_engine::config::Backend;

/// Seccomp action for system calls that are not allowed: they fail with EPERM.
pub const REFUSED: SeccompAction = SeccompAction::Errno(libc::EPERM.cast_unsigned());
/// Seccomp action for system calls that are not allowed: the kernel executes and logs them.
pub const LOGGED: SeccompAction = SeccompAction::Log;

/// Kinds of kernel sockets that a capture of ordinary network interfaces creates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelSockets {
    /// The capture receives from RDMA devices only, and creates no such sockets.
    #[default]
    None,
    /// The capture creates packet sockets.
    Packet,
    /// The capture creates AF_XDP sockets with their program and maps, and packet sockets for
    /// promiscuous mode.
    PacketAndXdp,
}

impl KernelSockets {
    /// Returns the kinds of kernel sockets that captures by all of `backends` create.
    pub fn of(backends: impl Iterator<Item = Backend>) -> Self {
        backends.fold(Self::None, |all, it| match it {
            Backend::AfXdp => Self::PacketAndXdp,
            Backend::AfPacket if all == Self::None => Self::Packet,
            _ => all,
        })
    }
}

/// Parts of a capture that need additional system calls in the sandbox.
#[derive(Clone, Debug, Default)]
pub struct CaptureParts {
    /// Simulated traffic source (wire) of the software NIC on which the capture runs; `None`: a
    /// real device.
    pub wire: Option<String>,
    /// Kernel sockets through which the capture receives, which a later start creates again.
    pub kernel: KernelSockets,
}

/// Restricts all threads of this process to the allowed system calls, including those that `parts`
/// need.
pub fn restrict_all(beyond: SeccompAction, parts: &CaptureParts) -> Result<(), Error> {
    let filters = filters(beyond, parts)?;
    filters
        .iter()
        .try_for_each(|it| apply_filter_all_threads(it))
}

/// Builds the two seccomp filters of the sandbox. Of their results the kernel applies the stricter
/// one, and of two errors that of the later filter.
fn filters(beyond: SeccompAction, parts: &CaptureParts) -> Result<Vec<BpfProgram>, Error> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let absent = SeccompFilter::new(
        ABSENT.iter().map(|it| (*it, Vec::new())).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS.cast_unsigned()),
        arch,
    )?;
    let listed = SeccompFilter::new(rules(parts)?, beyond, SeccompAction::Allow, arch)?;
    Ok(vec![absent.try_into()?, listed.try_into()?])
}

/// System calls that fail with ENOSYS in the sandbox, because a seccomp filter cannot read their
/// arguments.
const ABSENT: [i64; 2] = [libc::SYS_clone3, libc::SYS_openat2];

/// Returns the seccomp rules of all allowed system calls.
fn rules(parts: &CaptureParts) -> Result<BTreeMap<i64, Vec<SeccompRule>>, Error> {
    let kernel = parts.kernel;
    let lists = [FILES, MEMORY, THREADS, WAITING, SOCKETS, FACTS, OLD];
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = lists
        .concat()
        .into_iter()
        .map(|it| (it, Vec::new()))
        .collect();
    let never_executable = when(&[is_masked(2, libc::PROT_EXEC, 0)?])?;
    rules.insert(libc::SYS_mmap, vec![never_executable.clone()]);
    rules.insert(libc::SYS_mprotect, vec![never_executable]);
    let a_thread = when(&[is_masked(0, libc::CLONE_THREAD, libc::CLONE_THREAD)?])?;
    rules.insert(libc::SYS_clone, vec![a_thread]);
    // The other filter refuses these calls with ENOSYS.
    rules.extend(ABSENT.map(|it| (it, Vec::new())));
    for &(call, flags, mode) in CREATING {
        let ordinary = when(&[is_masked(mode, SPECIAL_MODES, 0)?])?;
        let mut either = vec![ordinary];
        if let Some(flags) = flags {
            // Without these flags the kernel does not read the mode.
            either.push(when(&[is_masked(flags, CREATES, 0)?])?);
        }
        rules.insert(call, either);
    }
    // futimens: the file is given by its descriptor.
    let by_descriptor = when(&[is_null(1)?, is(3, 0)?])?;
    rules.insert(libc::SYS_utimensat, vec![by_descriptor]);
    let one_of = |argument, values: &[i32]| -> Result<Vec<_>, Error> {
        values
            .iter()
            .map(|&it| when(&[is(argument, it)?]))
            .collect()
    };
    rules.insert(libc::SYS_ioctl, one_of(1, IOCTLS)?);
    rules.insert(libc::SYS_fcntl, one_of(1, FCNTLS)?);
    let this = std::process::id().cast_signed();
    rules.insert(libc::SYS_tgkill, one_of(0, &[this])?);
    rules.insert(libc::SYS_prlimit64, one_of(0, &[0, this])?);
    rules.insert(libc::SYS_sched_setaffinity, one_of(0, &[0])?);
    // Who 0 is this thread only for PRIO_PROCESS; for PRIO_USER it is all processes of the user.
    let own_priority = when(&[is(0, libc::PRIO_PROCESS.cast_signed())?, is(1, 0)?])?;
    rules.insert(libc::SYS_setpriority, vec![own_priority]);
    // TCP Fast Open connects without connect(2).
    for (call, flags) in [
        (libc::SYS_sendto, 3),
        (libc::SYS_sendmsg, 2),
        (libc::SYS_sendmmsg, 3),
    ] {
        let connected = when(&[is_masked(flags, libc::MSG_FASTOPEN, 0)?])?;
        rules.insert(call, vec![connected]);
    }
    let mut sockets = sockets()?;
    if kernel != KernelSockets::None {
        sockets.push(when(&[is(0, libc::AF_PACKET)?])?);
    }
    if kernel == KernelSockets::PacketAndXdp {
        sockets.push(when(&[is(0, libc::AF_XDP)?])?);
        rules.insert(libc::SYS_bpf, one_of(0, BPF_COMMANDS)?);
    }
    if let Some(wire) = parts.wire.as_deref() {
        // The software NIC accesses memory of this process that may be unmapped.
        rules.insert(libc::SYS_process_vm_readv, one_of(0, &[this])?);
        rules.insert(libc::SYS_process_vm_writev, one_of(0, &[this])?);
        match wire.split(':').next() {
            Some("af_packet") => sockets.push(when(&[is(0, libc::AF_PACKET)?])?),
            Some("peer") => {
                // The peer process may reconnect.
                sockets.push(when(&[
                    is(0, libc::AF_UNIX)?,
                    is_masked(1, SOCK_TYPE_MASK, libc::SOCK_SEQPACKET)?,
                ])?);
                rules.insert(libc::SYS_connect, Vec::new());
                rules.insert(libc::SYS_listen, Vec::new());
            }
            _ => {}
        }
    }
    rules.insert(libc::SYS_socket, sockets);
    let options = OPTIONS.iter();
    let options = options.map(|&(level, option)| when(&[is(1, level)?, is(2, option)?]));
    let mut options = options.collect::<Result<Vec<_>, _>>()?;
    for level in LEVELS {
        options.push(when(&[is(1, *level)?])?);
    }
    rules.insert(libc::SYS_setsockopt, options);
    Ok(rules)
}

/// Returns the seccomp rules for creating sockets: UDP for ethtool statistics, and the netlink
/// socket with which libibverbs lists devices.
fn sockets() -> Result<Vec<SeccompRule>, Error> {
    let mut rules = vec![when(&[
        is(0, libc::AF_NETLINK)?,
        is(2, libc::NETLINK_RDMA)?,
    ])?];
    for family in [libc::AF_INET, libc::AF_INET6] {
        for protocol in [0, libc::IPPROTO_UDP] {
            let udp = is_masked(1, SOCK_TYPE_MASK, libc::SOCK_DGRAM)?;
            rules.push(when(&[is(0, family)?, udp, is(2, protocol)?])?);
        }
    }
    Ok(rules)
}

/// Allowed commands of `bpf` (`enum bpf_cmd` of linux/bpf.h): create a map and update an entry,
/// load a program, attach it to an interface, detach it.
const BPF_COMMANDS: &[i32] = &[0, 2, 5, 28, 34];

/// Allowed requests of `ioctl`: test for a terminal and its width, non-blocking mode of a
/// descriptor, index, name, address, MTU and statistics of an interface, and uverbs
/// (`RDMA_VERBS_IOCTL` of rdma/rdma_user_ioctl_cmds.h).
const IOCTLS: &[i32] = &[
    libc::TCGETS as i32,
    libc::TIOCGWINSZ as i32,
    libc::FIONBIO as i32,
    libc::SIOCGIFNAME as i32,
    libc::SIOCGIFINDEX as i32,
    libc::SIOCGIFADDR as i32,
    libc::SIOCGIFMTU as i32,
    libc::SIOCETHTOOL as i32,
    0xc018_1b01_u32.cast_signed(),
];

/// Levels of `setsockopt` of which every option is allowed: those of packet sockets, AF_XDP sockets
/// and netlink sockets. Which of these sockets can be created is restricted.
const LEVELS: &[i32] = &[libc::SOL_PACKET, libc::SOL_XDP, libc::SOL_NETLINK];

/// Allowed options of `setsockopt`, each with its level: timeouts, buffers, and filters of packet
/// sockets. Options by which a socket sends from other hosts' addresses or past the rules of routing
/// and filtering (`IP_TRANSPARENT`, `SO_MARK`, `SO_BINDTODEVICE`) are not allowed, although
/// CAP_NET_RAW permits them (`sk_setsockopt` of net/core/sock.c, `do_ip_setsockopt` of
/// net/ipv4/ip_sockglue.c).
const OPTIONS: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, SO_RCVTIMEO_NEW),
    (libc::SOL_SOCKET, SO_SNDTIMEO_NEW),
];

/// Socket option `SO_RCVTIMEO_NEW` of asm-generic/socket.h, which rustix sets: a receive timeout of
/// 64 bits.
const SO_RCVTIMEO_NEW: i32 = 66;
/// Socket option `SO_SNDTIMEO_NEW` of asm-generic/socket.h: a send timeout of 64 bits.
const SO_SNDTIMEO_NEW: i32 = 67;

/// System calls that create a file or folder, with the indexes of their arguments for flags, if they
/// have any, and for the mode.
const CREATING: &[(i64, Option<u8>, u8)] = &[
    (libc::SYS_mkdirat, None, 2),
    (libc::SYS_openat, Some(2), 3),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, None, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, Some(1), 2),
];

/// Flags of `open` with which it creates a file: O_CREAT and `__O_TMPFILE`.
const CREATES: i32 = libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY);

/// Mode bits that new files and folders of a sandboxed capture never have: set-user-ID,
/// set-group-ID, sticky.
const SPECIAL_MODES: i32 = 0o7000;

/// Allowed commands of `fcntl`: copies and flags of a descriptor, and the size of a pipe. The
/// commands that lock files, and those that choose the process to be signalled, are not allowed.
const FCNTLS: &[i32] = &[
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETPIPE_SZ,
    libc::F_SETPIPE_SZ,
];

/// Bits of a socket's type argument that hold the type (`SOCK_TYPE_MASK` of linux/net.h); the bits
/// above are flags.
const SOCK_TYPE_MASK: i32 = 0xf;

/// Builds a seccomp rule that holds if all conditions hold.
fn when(conditions: &[SeccompCondition]) -> Result<SeccompRule, Error> {
    Ok(SeccompRule::new(conditions.to_vec())?)
}

/// Builds the seccomp condition that argument `argument`, an `int`, of a system call equals
/// `value`.
fn is(argument: u8, value: i32) -> Result<SeccompCondition, Error> {
    is_masked(argument, -1, value)
}

/// Builds the seccomp condition that the bits `mask` of argument `argument`, an `int` or flags in
/// its lower half, of a system call equal `value`.
fn is_masked(argument: u8, mask: i32, value: i32) -> Result<SeccompCondition, Error> {
    let mask = SeccompCmpOp::MaskedEq(u64::from(mask.cast_unsigned()));
    let value = u64::from(value.cast_unsigned());
    Ok(SeccompCondition::new(
        argument,
        SeccompCmpArgLen::Dword,
        mask,
        value,
    )?)
}

/// Builds the seccomp condition that argument `argument`, a pointer, of a system call is null.
fn is_null(argument: u8) -> Result<SeccompCondition, Error> {
    Ok(SeccompCondition::new(
        argument,
        SeccompCmpArgLen::Qword,
        SeccompCmpOp::Eq,
        0,
    )?)
}

/// Allowed system calls for capture files, indexes, flow records, sysfs and devices.
const FILES: &[i64] = &[
    libc::SYS_close,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_linkat,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_pipe2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_sync_file_range,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Allowed system calls for the memory of rings, buffers and the heap.
const MEMORY: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_get_mempolicy,
    libc::SYS_madvise,
    libc::SYS_mbind,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mremap,
    libc::SYS_msync,
    libc::SYS_munlock,
    libc::SYS_munmap,
    libc::SYS_set_mempolicy,
];

/// Allowed system calls for threads, their CPUs, their signals and their end.
const THREADS: &[i64] = &[
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getcpu,
    libc::SYS_getpriority,
    libc::SYS_gettid,
    libc::SYS_prctl,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
];

/// Allowed system calls for reading clocks, and for waiting for a time or for files.
const WAITING: &[i64] = &[
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
];

/// Allowed system calls for the sockets of control, metrics and the service manager.
const SOCKETS: &[i64] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
];

/// Allowed system calls that return the identity and properties of the process and the machine.
const FACTS: &[i64] = &[
    libc::SYS_capget,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getrusage,
    libc::SYS_getuid,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Allowed older system calls, which newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const OLD: &[i64] = &[
    libc::SYS_access,
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_getdents,
    libc::SYS_getrlimit,
    libc::SYS_link,
    libc::SYS_lstat,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
/// Allowed older system calls: none, because this architecture does not have them.
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[i64] = &[];

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, ipproto, socket, sockopt};
    use std::{io::ErrorKind, process::Command, thread};

    /// Runs `work` in a separate thread with the filters, because a filter cannot be removed.
    fn within<T: Send + 'static>(
        beyond: SeccompAction,
        parts: CaptureParts,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let restricted = move || {
            for filter in filters(beyond, &parts).unwrap() {
                seccompiler::apply_filter(&filter).unwrap();
            }
            work()
        };
        thread::spawn(restricted).join().unwrap()
    }

    #[test]
    fn programs_and_raw_sockets_are_refused() {
        let (spawned, sockets) = within(REFUSED, CaptureParts::default(), || {
            let raw = |family| socket(family, SocketType::RAW, Some(ipproto::RAW)).map(drop);
            (
                Command::new("true").status().map_err(|e| e.kind()),
                [
                    AddressFamily::PACKET,
                    AddressFamily::INET,
                    AddressFamily::INET6,
                ]
                .map(raw),
            )
        });
        assert_eq!(spawned, Err(ErrorKind::PermissionDenied));
        assert_eq!(sockets, [Err(rustix::io::Errno::PERM); 3]);
    }

    #[test]
    fn threads_files_and_sockets_work() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = path.clone();
        within(REFUSED, CaptureParts::default(), || {
            thread::spawn(|| std::fs::write(file, "frames"))
                .join()
                .unwrap()
                .unwrap();
            let udp = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
            let second = Some(std::time::Duration::from_secs(1));
            sockopt::set_socket_timeout(&udp, sockopt::Timeout::Recv, second).unwrap();
            std::net::UdpSocket::from(udp)
                .set_write_timeout(second)
                .unwrap();
        });
        assert_eq!(std::fs::read_to_string(path).unwrap(), "frames");
    }

    #[test]
    fn calls_that_are_only_logged_work() {
        assert!(
            within(LOGGED, CaptureParts::default(), || Command::new("true")
                .status())
            .unwrap()
            .success()
        );
    }

    #[test]
    fn times_are_set_only_by_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let (named, opened) = within(REFUSED, CaptureParts::default(), move || {
            let file = std::fs::File::create(&path).unwrap();
            let times = rustix::fs::Timestamps {
                last_access: Default::default(),
                last_modification: Default::default(),
            };
            let by_name =
                rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::empty());
            (by_name, rustix::fs::futimens(&file, &times))
        });
        assert_eq!(named, Err(rustix::io::Errno::PERM));
        assert_eq!(opened, Ok(()));
    }
}
