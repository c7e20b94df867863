//! Signals: each has a defined effect on a capture, and none of those that people send kills it.
//!
//! | signal | effect |
//! |---|---|
//! | SIGINT, SIGQUIT, SIGTERM, and those of [`ENDING`] | the run ends in order; SIGINT or SIGQUIT again: at once |
//! | SIGHUP | the configuration is read again, or the run ends in order |
//! | SIGUSR1 | the counters are printed |
//! | SIGUSR2 | everything received so far is written into the files |
//! | SIGCONT | the log says how long the process was stopped |
//! | SIGIO, SIGXFSZ, SIGPIPE | none: where they report an error of a write, the write reports it too |
//!
//! Signals that report faults of the program (SIGSEGV, SIGABRT and so on) and those that stop it (SIGTSTP) keep their default
//! action. Signals that were ignored when the program started stay ignored, except SIGINT and SIGTERM: a shell's background
//! programs have SIGINT ignored, and `kill -INT` is meant for them.

use crate::term::terminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::{
    consts::{
        SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2,
        SIGVTALRM, SIGXCPU, SIGXFSZ,
    },
    flag,
    iterator::{SignalsInfo, exfiltrator::WithOrigin},
    low_level::{emulate_default_handler, siginfo::Origin, signal_name},
};
use std::{
    borrow::Cow,
    fs::File,
    io,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};
use wqcap_engine::{
    capture::supervisor::Signals,
    control::audit::{self, Peer},
};

/// A repeat within this time is the same request: timeout(1) and shells signal a process and its group.
const SAME: Duration = Duration::from_secs(1);
/// Signals besides SIGINT and SIGTERM that would kill the process and here end a run in order: timers that a parent has set,
/// limits on CPU time, a failing power supply. [`real_time`] has the others.
const ENDING: [i32; 7] = [
    SIGQUIT,
    SIGALRM,
    SIGVTALRM,
    SIGPROF,
    SIGXCPU,
    libc::SIGSTKFLT,
    libc::SIGPWR,
];
/// Signals without an effect, which would kill the process otherwise. SIGXFSZ: a limit to the length of files (ulimit -f) is
/// an error of the write, EFBIG. SIGPIPE is ignored by every program of Rust.
const WITHOUT_EFFECT: [i32; 2] = [SIGIO, SIGXFSZ];

/// Real-time signals that programs may use. All end a run in order.
fn real_time() -> impl Iterator<Item = i32> {
    libc::SIGRTMIN()..=libc::SIGRTMAX()
}

/// Keeps `signals` from killing this process. Those that are ignored stay ignored, and all others have their default action
/// again in programs that it starts.
fn outlive(signals: impl IntoIterator<Item = i32>) -> io::Result<()> {
    let ignored = Ignored::read();
    signals
        .into_iter()
        .filter(|it| !ignored.has(*it))
        .try_for_each(|it| flag::register(it, Arc::default()).map(drop))
}

/// Keeps SIGUSR1 and SIGUSR2 from killing a capture that begins. [`catch_into`] gives them their effect.
pub fn outlive_early_requests() -> io::Result<()> {
    outlive([SIGUSR1, SIGUSR2])
}

/// Keeps all signals that people send from killing a helper process, which ends with its capture. Signals to a group or a
/// unit are the capture's to act on.
pub fn leave_to_the_capture() -> io::Result<()> {
    let requests = [SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2];
    let all = requests.into_iter().chain(ENDING).chain(WITHOUT_EFFECT);
    outlive(all.chain(real_time()))
}

/// From now on SIGINT, SIGTERM, SIGHUP and the signals of [`ENDING`] set the flag that is returned. A SIGINT more than a second
/// later ends the process, as if it had never been caught, so that a shell sees how it ended. SIGUSR1 and SIGUSR2 have no
/// effect.
pub fn catch() -> io::Result<Arc<AtomicBool>> {
    let signals = Signals::new()?;
    let mut requests = catch_into(&signals, false)?;
    requests.reaction.audited = false;
    requests.escalate(Duration::ZERO, || {})?;
    Ok(Arc::clone(signals.stop_flag()))
}

/// As [`catch`], without an answer to signals until [`Requests::escalate`]. With `reloads`, SIGHUP asks for that instead, unless
/// the process has had a terminal and it is gone: who has closed it cannot be asked any more, and must not leave a port without
/// its kernel.
#[expect(clippy::disallowed_methods, reason = "the process's own terminal")]
pub fn catch_into(asked: &Signals, reloads: bool) -> io::Result<Requests> {
    let signals = SignalsInfo::new([SIGINT, SIGTERM])?;
    outlive(WITHOUT_EFFECT)?;
    let ignored = Ignored::read();
    let requests = [SIGHUP, SIGUSR1, SIGUSR2, SIGCONT];
    let caught = requests.into_iter().chain(ENDING).chain(real_time());
    // nohup(1) has SIGHUP ignored, and the run continues.
    for signal in caught.filter(|it| !ignored.has(*it)) {
        signals.add_signal(signal)?;
    }
    Ok(Requests {
        signals,
        reaction: Reaction {
            asked: asked.clone(),
            reloads,
            terminal: File::open("/dev/tty").ok(),
            audited: true,
        },
    })
}

/// Requests to end, to reload, to report or to flush, as they come.
pub struct Requests {
    signals: SignalsInfo<WithOrigin>,
    reaction: Reaction,
}

/// Effects of signals.
struct Reaction {
    asked: Signals,
    /// SIGHUP asks for a reload; else for the end.
    reloads: bool,
    /// The process's, from its start; `None`: it has none.
    terminal: Option<File>,
    audited: bool,
}

/// Whether nobody has the other end of a terminal any more.
fn is_gone(terminal: &File) -> bool {
    let mut fds = [PollFd::new(terminal, PollFlags::empty())];
    let now = Timespec::default();
    poll(&mut fds, Some(&now)).is_ok_and(|_| fds[0].revents().contains(PollFlags::HUP))
}

impl Requests {
    /// From now on requests are answered, those that have come before too: a SIGINT that is no repeat of the first one asks
    /// for the end at once, and ends the process `grace` later. SIGUSR1 calls `report`. What a signal changes is in the audit
    /// trail before it changes.
    pub fn escalate(self, grace: Duration, report: impl Fn() + Send + 'static) -> io::Result<()> {
        let Self {
            mut signals,
            reaction,
        } = self;
        let watch = move || {
            let mut first = None;
            for origin in signals.forever() {
                match origin.signal {
                    SIGUSR1 => report(),
                    SIGUSR2 => reaction.asked.flush(sender(&origin)),
                    SIGCONT => reaction.asked.continued(),
                    SIGHUP if reaction.reloads && !reaction.has_lost_its_terminal() => {
                        reaction.asked.reload(sender(&origin));
                    }
                    _ => reaction.end(&origin, &mut first, grace),
                }
            }
        };
        let builder = thread::Builder::new().name("wqcap-signals".into());
        builder.spawn(watch).map(drop)
    }
}

impl Reaction {
    fn has_lost_its_terminal(&self) -> bool {
        let is_lost = self.terminal.as_ref().is_some_and(is_gone);
        if is_lost {
            tracing::warn!("SIGHUP: the terminal is gone, and the run ends");
        }
        is_lost
    }

    /// Ends the run for a signal; `first` is when the first such signal came.
    fn end(&self, origin: &Origin, first: &mut Option<Instant>, grace: Duration) {
        let signal = origin.signal;
        // ^C on the run's own terminal is seen there.
        let audited = self.audited && !(origin.process.is_none() && terminal::is_terminal());
        let write = |new| {
            if audited {
                audit::signal(&sender(origin), &name(signal), new);
            }
        };
        match *first {
            None => {
                *first = Some(Instant::now());
                write("the run ends");
                self.asked.stop();
            }
            Some(first) if [SIGINT, SIGQUIT].contains(&signal) && first.elapsed() >= SAME => {
                write("the run ends at once");
                self.asked.stop_at_once();
                thread::sleep(grace);
                // It fails for signals that the system has not. SIGQUIT's default would write all buffers to a core file.
                let _ = emulate_default_handler(SIGINT);
            }
            Some(_) => {}
        }
    }
}

fn name(signal: i32) -> Cow<'static, str> {
    match signal {
        libc::SIGPWR => "SIGPWR".into(),
        libc::SIGSTKFLT => "SIGSTKFLT".into(),
        _ => signal_name(signal).map_or_else(|| format!("signal {signal}").into(), Into::into),
    }
}

/// Who has sent a signal: a process, or the kernel, for a terminal.
fn sender(origin: &Origin) -> Peer {
    match &origin.process {
        Some(it) => Peer::process(it.uid, it.pid),
        None => Peer::named("the kernel"),
    }
}

/// Signals that are ignored, as a mask: bit 0 for signal 1.
struct Ignored(u64);

impl Ignored {
    #[expect(clippy::disallowed_methods, reason = "a file of /proc")]
    fn read() -> Self {
        let status = std::fs::read_to_string("/proc/self/status");
        Self(status.map_or(0, |text| ignored_in(&text)))
    }

    fn has(&self, signal: i32) -> bool {
        self.0 >> (signal - 1) & 1 == 1
    }
}

/// proc_pid_status(5): `SigIgn` is a mask in hex.
fn ignored_in(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_mask_of_ignored_signals() {
        let has = |status, signal| Ignored(ignored_in(status)).has(signal);
        assert!(has(
            "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n",
            SIGHUP
        ));
        assert!(!has("SigIgn:\t0000000000001000\n", SIGHUP));
        assert!(!has("", SIGHUP));
        assert!(has("SigIgn:\t8000000000000000\n", libc::SIGRTMAX()));
    }

    #[test]
    fn every_signal_has_a_name() {
        assert_eq!(name(SIGQUIT), "SIGQUIT");
        assert_eq!(name(libc::SIGPWR), "SIGPWR");
        assert_eq!(name(libc::SIGRTMIN() + 1), "signal 35");
    }
}
