//! Signals: each has a defined effect on a capture, and no signal that users usually send kills it.
//!
//! | signal | effect |
//! |---|---|
//! | SIGINT, SIGQUIT, SIGTERM, and those of [`ENDING`] | the run ends in order; a later SIGINT, SIGQUIT or SIGTERM ends it at once |
//! | SIGHUP | the configuration is read again, or the run ends in order |
//! | SIGUSR1 | the counters are printed |
//! | SIGUSR2 | everything received so far is written into the files |
//! | SIGCONT | the log reports how long the process was stopped |
//! | SIGIO, SIGXFSZ, SIGPIPE | none: an error of a write that they signal is also reported by the write |
//!
//! Signals that report faults of the program (SIGSEGV, SIGABRT and so on) and those that stop it
//! (SIGTSTP) keep their default action. Signals that were ignored when the program started stay
//! ignored, except SIGINT and SIGTERM: shells start background programs with SIGINT ignored, and
//! `kill -INT` must still reach them.

use super::end::{EndGuard, EndLimits};
use crate::{
    failure::Failure,
    term::{output, terminal},
};
use signal_hook::{
    consts::{
        SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2,
        SIGVTALRM, SIGXCPU, SIGXFSZ,
    },
    flag,
    iterator::{SignalsInfo, exfiltrator::WithOrigin},
    low_level::{siginfo::Origin, signal_name},
};
use std::{
    borrow::Cow,
    fs::File,
    io,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};
use wqcap_control::audit::{self, Peer};
use wqcap_supervisor::Signals;

/// Time within which a repeated signal counts as one request, because timeout(1) and shells signal
/// a process and its group.
const SAME: Duration = Duration::from_secs(1);
/// Signals besides SIGINT and SIGTERM whose default action kills the process, and which end a run
/// in order: timers that a parent has set, limits on CPU time, a failing power supply.
/// [`real_time`] returns further ones.
const ENDING: [i32; 7] = [
    SIGQUIT,
    SIGALRM,
    SIGVTALRM,
    SIGPROF,
    SIGXCPU,
    libc::SIGSTKFLT,
    libc::SIGPWR,
];
/// Signals that would kill the process by default, and which wqcap ignores. SIGXFSZ: a write beyond
/// a limit on the length of files (ulimit -f) also returns EFBIG. SIGPIPE is not listed, because
/// every Rust program ignores it.
const WITHOUT_EFFECT: [i32; 2] = [SIGIO, SIGXFSZ];

/// Returns the real-time signals that programs may use. Each of them ends a run in order.
fn real_time() -> impl Iterator<Item = i32> {
    libc::SIGRTMIN()..=libc::SIGRTMAX()
}

/// Ignores the error that a real-time signal cannot be caught: valgrind reserves one, and returns
/// EINVAL for it.
fn unless_reserved(signal: i32, caught: io::Result<()>) -> io::Result<()> {
    match caught {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) && signal >= libc::SIGRTMIN() => Ok(()),
        caught => caught,
    }
}

/// Keeps `signals` from killing this process. Signals that are already ignored stay ignored.
/// Programs that this process starts have the default action for the other signals.
fn ignore_default_action(signals: impl IntoIterator<Item = i32>) -> io::Result<()> {
    let ignored = IgnoredSignals::read();
    signals
        .into_iter()
        .filter(|it| !ignored.has(*it))
        .try_for_each(|it| unless_reserved(it, flag::register(it, Arc::default()).map(drop)))
}

/// Keeps the signals of [`WITHOUT_EFFECT`] from killing any command, even when it writes its first
/// message to a file that may not grow.
pub fn ignore_without_effect() -> io::Result<()> {
    ignore_default_action(WITHOUT_EFFECT)
}

/// Keeps SIGUSR1 and SIGUSR2 from killing a capture that is starting. [`catch_into`] later gives
/// these signals their effect.
pub fn outlive_early_requests() -> io::Result<()> {
    ignore_default_action([SIGUSR1, SIGUSR2])
}

/// Keeps signals from killing a helper process of a capture: if a signal reaches the whole process
/// group or unit, only the capture reacts to it, and the helper process ends with it.
pub fn ignore_in_helper() -> io::Result<()> {
    let requests = [SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2];
    let all = requests.into_iter().chain(ENDING).chain(WITHOUT_EFFECT);
    ignore_default_action(all.chain(real_time()))
}

/// Makes SIGINT, SIGTERM, SIGHUP and the signals of [`ENDING`] set the returned stop flag. The
/// process ends within [`EndLimits::COMMAND`]. A SIGINT or SIGTERM more than a second later ends the
/// process as if it had never been caught, so that a shell sees the signal. SIGUSR1 and SIGUSR2 have
/// no effect.
///
/// # Errors
/// The signals cannot be caught, or the system has no thread for them.
pub fn catch() -> Result<Arc<AtomicBool>, Failure> {
    catch_within(EndLimits::COMMAND)
}

/// Catches signals as [`catch`] does, with other time limits for the end of the process.
pub fn catch_within(limits: EndLimits) -> Result<Arc<AtomicBool>, Failure> {
    let signals = catch_unaudited(false, limits).map_err(uncaught)?;
    Ok(Arc::clone(signals.stop_flag()))
}

/// Catches signals as [`catch`] does. With `reloads`, SIGHUP requests a reload, which
/// [`Signals::take_reload`] returns, unless the controlling terminal of the process is gone.
#[cfg(any(feature = "serve", feature = "ship"))]
pub fn catch_to_reload(reloads: bool) -> Result<Signals, Failure> {
    catch_unaudited(reloads, EndLimits::COMMAND).map_err(uncaught)
}

/// Catches signals without writing a line of the audit trail for each of them.
fn catch_unaudited(reloads: bool, limits: EndLimits) -> io::Result<Signals> {
    let signals = Signals::new()?;
    let mut requests = catch_into(&signals, reloads)?;
    requests.reaction.audited = false;
    requests.escalate(limits, || {}, |_| {})?;
    Ok(signals)
}

/// Returns the failure that signals cannot be caught.
pub fn uncaught(e: io::Error) -> Failure {
    Failure::of_setup(format_args!("cannot catch signals: {e}"), &e)
}

/// Catches the signals of [`catch`], which have no effect until [`SignalRequests::escalate`]. With
/// `reloads`, SIGHUP requests a reload instead of the end, unless the controlling terminal of the
/// process is gone: its user can no longer react, and the run must not keep a port from the kernel.
#[expect(
    clippy::disallowed_methods,
    reason = "the controlling terminal of this process"
)]
pub fn catch_into(asked: &Signals, reloads: bool) -> io::Result<SignalRequests> {
    let signals = SignalsInfo::new([SIGINT, SIGTERM])?;
    let ignored = IgnoredSignals::read();
    let requests = [SIGHUP, SIGUSR1, SIGUSR2, SIGCONT];
    let caught = requests.into_iter().chain(ENDING).chain(real_time());
    // nohup(1) has SIGHUP ignored, and the run continues.
    for signal in caught.filter(|it| !ignored.has(*it)) {
        unless_reserved(signal, signals.add_signal(signal))?;
    }
    Ok(SignalRequests {
        signals,
        reaction: Reaction {
            asked: asked.clone(),
            reloads,
            terminal: File::open("/dev/tty").ok(),
            audited: true,
        },
    })
}

/// Caught signals of the process, which request the end, a reload, a report or a flush.
pub struct SignalRequests {
    /// Iterator over the caught signals, with their senders.
    signals: SignalsInfo<WithOrigin>,
    /// State that the effects of the caught signals need.
    reaction: Reaction,
}

/// State that the effects of signals on a capture need.
struct Reaction {
    /// Flags through which signals request actions of the capture's supervisor.
    asked: Signals,
    /// `true` if SIGHUP requests a reload of the configuration, `false` if it requests the end.
    reloads: bool,
    /// Controlling terminal of the process at its start; `None`: there was none.
    terminal: Option<File>,
    /// `true` if caught signals are written to the audit trail.
    audited: bool,
}

impl SignalRequests {
    /// Starts to act on signals, including those received before. A SIGINT or SIGTERM that does not
    /// repeat the first one requests the end at once. The guard thread ends the process within
    /// `limits`, and calls `extend` as [`EndGuard::start`] describes. SIGUSR1 and the guard thread call
    /// `report`. Each requested change is written to the audit trail before it is made.
    pub fn escalate(
        self,
        limits: EndLimits,
        report: impl Fn() + Send + Sync + 'static,
        extend: impl Fn(Duration) + Send + 'static,
    ) -> io::Result<()> {
        let report = Arc::new(report);
        let last = Arc::clone(&report);
        let name = |it| name(it).into_owned();
        let guard = EndGuard::start(limits, name, move || last(), extend)?;
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
                    _ => reaction.end(&origin, &mut first, &guard),
                }
            }
        };
        let builder = thread::Builder::new().name("wqcap-signals".into());
        builder.spawn(watch).map(drop)
    }
}

impl Reaction {
    /// Returns `true`, with a warning, if the controlling terminal of the process is gone.
    fn has_lost_its_terminal(&self) -> bool {
        let is_lost = self.terminal.as_ref().is_some_and(output::is_gone);
        if is_lost {
            tracing::warn!("SIGHUP: the controlling terminal is gone, so the run ends");
        }
        is_lost
    }

    /// Ends the run because a signal arrived. `first` is the time of the first such signal.
    fn end(&self, origin: &Origin, first: &mut Option<Instant>, guard: &EndGuard) {
        let signal = origin.signal;
        // ^C on the run's own terminal is visible there and needs no audit line.
        let audited = self.audited && !(origin.process.is_none() && terminal::is_terminal());
        let write = |new| {
            if audited {
                audit::log_signal(&sender(origin), &name(signal), new);
            }
        };
        match *first {
            None => {
                *first = Some(Instant::now());
                guard.mark(signal);
                write("the run ends");
                self.asked.stop();
            }
            Some(first)
                if [SIGINT, SIGQUIT, SIGTERM].contains(&signal) && first.elapsed() >= SAME =>
            {
                write("the run ends at once");
                self.asked.stop_at_once();
                guard.mark(signal);
            }
            Some(_) => {}
        }
    }
}

/// Returns the name of a signal from its number.
fn name(signal: i32) -> Cow<'static, str> {
    match signal {
        libc::SIGPWR => "SIGPWR".into(),
        libc::SIGSTKFLT => "SIGSTKFLT".into(),
        _ => signal_name(signal).map_or_else(|| format!("signal {signal}").into(), Into::into),
    }
}

/// Returns the sender of a signal for the audit trail: a process, or the kernel for signals of a
/// terminal.
fn sender(origin: &Origin) -> Peer {
    match &origin.process {
        Some(it) => Peer::process(it.uid, it.pid),
        None => Peer::named("the kernel"),
    }
}

/// Mask of the signals that the process ignores: bit 0 is signal 1.
struct IgnoredSignals(u64);

impl IgnoredSignals {
    /// Reads the mask of ignored signals of this process from /proc.
    #[expect(clippy::disallowed_methods, reason = "a file of /proc")]
    fn read() -> Self {
        let status = std::fs::read_to_string("/proc/self/status");
        Self(status.map_or(0, |text| ignored_in(&text)))
    }

    /// Returns `true` if the process ignores `signal`.
    fn has(&self, signal: i32) -> bool {
        self.0 >> (signal - 1) & 1 == 1
    }
}

/// Returns the mask of ignored signals (`SigIgn`, in hex) in the text of /proc/PID/status
/// (proc_pid_status(5)).
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
        let has = |status, signal| IgnoredSignals(ignored_in(status)).has(signal);
        assert!(has(
            "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n",
            SIGHUP
        ));
        assert!(!has("SigIgn:\t0000000000001000\n", SIGHUP));
        assert!(!has("", SIGHUP));
        assert!(has("SigIgn:\t8000000000000000\n", libc::SIGRTMAX()));
    }

    #[test]
    fn only_a_real_time_signal_may_be_reserved() {
        let refused = |errno| Err(io::Error::from_raw_os_error(errno));
        assert!(unless_reserved(libc::SIGRTMAX(), refused(libc::EINVAL)).is_ok());
        assert!(unless_reserved(libc::SIGRTMAX(), refused(libc::EPERM)).is_err());
        assert!(unless_reserved(SIGQUIT, refused(libc::EINVAL)).is_err());
    }

    #[test]
    fn every_signal_has_a_name() {
        assert_eq!(name(SIGQUIT), "SIGQUIT");
        assert_eq!(name(libc::SIGPWR), "SIGPWR");
        assert_eq!(name(libc::SIGRTMIN() + 1), "signal 35");
    }
}
