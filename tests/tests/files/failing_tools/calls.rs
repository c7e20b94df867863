//! System calls of the tools, with the errors that strace injects into them.

use std::collections::BTreeMap;

/// Calls with their injected errors. A tool that makes a call of neither this table nor [`SKIPPED`]
/// is a finding.
const INJECTED: &[(&[&str], &[&str])] = &[
    (
        &["open", "openat", "openat2"],
        &["EMFILE", "ENFILE", "ENOMEM", "EACCES", "EIO"],
    ),
    (
        &["read", "pread64", "readv", "preadv"],
        &["EIO", "EINTR", "ENOMEM"],
    ),
    (
        &["write", "pwrite64", "writev", "pwritev"],
        &["EIO", "ENOSPC", "EINTR"],
    ),
    (
        &["sendfile", "copy_file_range"],
        &["EIO", "ENOSPC", "EINVAL"],
    ),
    (
        &["stat", "fstat", "lstat", "statx", "newfstatat"],
        &["EIO", "EACCES", "ENOMEM"],
    ),
    (&["statfs", "fstatfs", "access", "faccessat2"], &["EIO"]),
    (&["getdents64"], &["EIO", "ENOMEM"]),
    (&["readlink", "readlinkat"], &["EINVAL", "EACCES"]),
    (&["getcwd"], &["ENOMEM"]),
    (&["fsync", "fdatasync", "syncfs"], &["EIO", "ENOSPC"]),
    (&["ftruncate", "fallocate"], &["EIO", "ENOSPC", "EINTR"]),
    (&["lseek"], &["EINVAL"]),
    (
        &["rename", "renameat", "renameat2", "link", "linkat"],
        &["EIO", "ENOSPC", "EACCES"],
    ),
    (&["unlink", "unlinkat", "rmdir"], &["EIO", "EACCES"]),
    (&["mkdir", "mkdirat"], &["ENOSPC", "EACCES"]),
    (
        &[
            "chmod",
            "fchmod",
            "fchmodat",
            "fchown",
            "fchownat",
            "utimensat",
        ],
        &["EPERM", "EIO"],
    ),
    (&["flock"], &["ENOLCK", "EINTR"]),
    (&["fcntl"], &["EINVAL", "EMFILE"]),
    (&["close"], &["EIO", "ENOSPC"]),
    (&["dup", "dup2", "dup3", "pipe2"], &["EMFILE"]),
    (&["mmap", "mremap", "mprotect"], &["ENOMEM", "EAGAIN"]),
    (&["munmap", "madvise"], &["ENOMEM", "EINVAL"]),
    (&["clone", "clone3"], &["EAGAIN", "ENOMEM"]),
    (&["poll", "ppoll"], &["EINTR", "ENOMEM"]),
    (
        &["eventfd2", "epoll_create1", "timerfd_create", "signalfd4"],
        &["EMFILE", "ENFILE", "ENOMEM"],
    ),
    (&["epoll_ctl"], &["ENOMEM", "ENOSPC"]),
    (&["epoll_wait", "epoll_pwait"], &["EINTR"]),
    (&["nanosleep", "clock_nanosleep"], &["EINTR"]),
    (
        &["socket", "socketpair"],
        &["EMFILE", "ENFILE", "ENOMEM", "EACCES"],
    ),
    (&["bind", "listen"], &["EADDRINUSE", "EACCES"]),
    (&["connect"], &["ECONNREFUSED", "EAGAIN", "EINTR"]),
    (
        &["accept", "accept4"],
        &["EMFILE", "ENFILE", "ENOMEM", "ECONNABORTED", "EINTR"],
    ),
    (
        &["recvfrom", "recvmsg", "sendto", "sendmsg"],
        &["ECONNRESET", "EINTR", "ENOMEM"],
    ),
    (&["shutdown"], &["ENOTCONN"]),
    (
        &["setsockopt", "getsockopt", "getsockname", "getpeername"],
        &["EINVAL", "ENOBUFS"],
    ),
    (&["ioctl"], &["ENOTTY", "EIO"]),
    (&["prlimit64", "setpriority"], &["EPERM"]),
    (&["getpriority", "sched_getaffinity"], &["ESRCH"]),
    (&["getrandom"], &["EINTR"]),
    (&["prctl", "seccomp"], &["EINVAL", "EACCES"]),
    (
        &[
            "landlock_create_ruleset",
            "landlock_add_rule",
            "landlock_restrict_self",
        ],
        &["ENOSYS", "ENOMEM", "E2BIG"],
    ),
    (&["capget", "capset"], &["EPERM"]),
    (&["sysinfo", "sched_setaffinity"], &["EINVAL"]),
];

/// Calls that are not made to fail, with the reason.
const SKIPPED: &[(&[&str], &str)] = &[
    (
        &[
            "exit",
            "exit_group",
            "wait4",
            "rt_sigreturn",
            "restart_syscall",
        ],
        "the end of a thread, and calls of the library that attaches strace",
    ),
    (
        &[
            "set_robust_list",
            "rseq",
            "set_tid_address",
            "arch_prctl",
            "rt_sigprocmask",
            "sigaltstack",
            "tgkill",
        ],
        "glibc and std make them for each thread and abort, or ignore the result",
    ),
    (
        &[
            "getpid",
            "gettid",
            "getuid",
            "geteuid",
            "getgid",
            "getegid",
            "getppid",
            "sched_yield",
            "uname",
        ],
        "they cannot fail",
    ),
    (
        &["brk"],
        "the kernel returns the unchanged break instead of an error, which strace cannot inject",
    ),
    (
        &["futex"],
        "the kernel wakes threads without failure; an injected error loses the wake-up",
    ),
    (
        &["clock_gettime", "gettimeofday"],
        "they fail only for clocks that do not exist",
    ),
];

/// Calls of std before `main`, at whose failure it aborts: a signal handler's number and action are
/// constants there.
const CALLS_BEFORE_MAIN: &[(&str, usize)] = &[("rt_sigaction", 5)];

/// Errors of `rt_sigaction`, which programs also call after their start.
const SIGNAL_ERRORS: &[&str] = &["EINVAL"];

/// Part of a log line of a call that cannot fail: the wake-up of a thread through an eventfd.
const WAKE_UP: &str = r#", "\1\0\0\0\0\0\0\0", 8)"#;

/// Part of a log line of a call whose failure signal-hook ignores: its handler of signals wakes a
/// thread through a socket pair. The signal is kept, and the next one wakes the thread for both.
const SIGNAL_WAKE_UP: &str = r#", "X", 1, MSG_DONTWAIT, NULL, 0)"#;

/// Returns `true` if the call of a log line fails on no kernel, or if no tool sees its failure.
pub fn cannot_fail(line: &str) -> bool {
    line.contains(" write(") && line.contains(WAKE_UP)
        || line.contains(" sendto(") && line.contains(SIGNAL_WAKE_UP)
}

/// Injected failure of a system call: each thread's `nth` call fails with `error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub call: &'static str,
    pub error: &'static str,
    pub nth: usize,
}

/// Returns the errors of a call. `None`: the call is in no table.
fn errors_of(call: &str) -> Option<(&'static str, &'static [&'static str])> {
    if call == "rt_sigaction" {
        return Some(("rt_sigaction", SIGNAL_ERRORS));
    }
    let skipped = SKIPPED.iter().flat_map(|(calls, _)| calls.iter());
    if let Some(name) = skipped.copied().find(|it| *it == call) {
        return Some((name, &[]));
    }
    INJECTED.iter().find_map(|(calls, errors)| {
        let name = calls.iter().find(|it| **it == call)?;
        Some((*name, *errors))
    })
}

/// Counts the calls of each kind in a log of strace, for the thread that makes the most of them.
pub fn counted(log: &str) -> BTreeMap<String, usize> {
    let mut threads: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for line in log.lines() {
        let Some((pid, rest)) = line.split_once(' ') else {
            continue;
        };
        let Some((call, _)) = rest.trim_start().split_once('(') else {
            continue;
        };
        if !call.is_empty()
            && call
                .bytes()
                .all(|it| it.is_ascii_alphanumeric() || it == b'_')
        {
            *threads.entry((pid, call)).or_default() += 1;
        }
    }
    let mut most: BTreeMap<String, usize> = BTreeMap::new();
    for ((_, call), n) in threads {
        let it = most.entry(call.to_owned()).or_default();
        *it = n.max(*it);
    }
    most
}

/// Returns the failures of these numbers of calls, or the calls that are in no table.
pub fn faults(counts: &BTreeMap<String, usize>) -> Result<Vec<Fault>, Vec<String>> {
    let unknown: Vec<_> = counts.keys().filter(|it| errors_of(it).is_none()).collect();
    if !unknown.is_empty() {
        return Err(unknown.into_iter().cloned().collect());
    }
    let mut all = Vec::new();
    for (name, count) in counts {
        let Some((call, errors)) = errors_of(name) else {
            continue;
        };
        let early = CALLS_BEFORE_MAIN.iter().find(|it| it.0 == call);
        let first = 1 + early.map_or(0, |it| it.1);
        for nth in first..=*count {
            all.extend(errors.iter().map(|error| Fault { call, error, nth }));
        }
    }
    Ok(all)
}
