//! Signals that end a run in order, or let it read its configuration again.

use crate::term::terminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    flag,
    iterator::{SignalsInfo, exfiltrator::WithOrigin},
    low_level::{emulate_default_handler, siginfo::Origin},
};
use std::{
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

/// From now on SIGINT, SIGTERM and SIGHUP set the flag that is returned. A SIGINT more than a second later ends the
/// process, as if it had never been caught, so that a shell sees how it ended.
pub fn catch() -> io::Result<Arc<AtomicBool>> {
    let signals = Signals::new()?;
    let mut requests = catch_into(&signals, false)?;
    requests.audited = false;
    requests.escalate(Duration::ZERO)?;
    Ok(Arc::clone(signals.stop_flag()))
}

/// The same, without an answer to them yet. With `reloads`, SIGHUP asks for that instead, unless the process has had a
/// terminal and it is gone: who has closed it cannot be asked any more, and must not leave a port without its kernel.
#[expect(
    clippy::disallowed_methods,
    reason = "the terminal, and a file of /proc"
)]
pub fn catch_into(asked: &Signals, reloads: bool) -> io::Result<Requests> {
    let signals = SignalsInfo::new([SIGINT, SIGTERM])?;
    // A limit to the length of files (ulimit -f) is an error of the write, EFBIG, and not the end of the process.
    flag::register(SIGXFSZ, Arc::default())?;
    // nohup(1) has it ignored, and the run is to go on.
    if !is_ignored(SIGHUP) {
        signals.add_signal(SIGHUP)?;
    }
    Ok(Requests {
        signals,
        asked: asked.clone(),
        reloads,
        terminal: File::open("/dev/tty").ok(),
        audited: true,
    })
}

/// Requests to end or to reload, as they come.
pub struct Requests {
    signals: SignalsInfo<WithOrigin>,
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
    /// for the end at once, and ends the process `grace` later. What a signal changes is in the audit trail before it
    /// changes.
    pub fn escalate(mut self, grace: Duration) -> io::Result<()> {
        let watch = move || {
            let mut first = None;
            for origin in self.signals.forever() {
                let (signal, who) = (origin.signal, sender(&origin));
                if signal == SIGHUP && self.reloads {
                    if !self.terminal.as_ref().is_some_and(is_gone) {
                        self.asked.reload(who);
                        continue;
                    }
                    tracing::warn!("SIGHUP: the terminal is gone, and the run ends");
                }
                // ^C on the run's own terminal is seen there.
                let audited =
                    self.audited && !(origin.process.is_none() && terminal::is_terminal());
                let told = |new| {
                    if audited {
                        audit::signal(&who, name(signal), new);
                    }
                };
                match first {
                    None => {
                        first = Some(Instant::now());
                        told("the run ends");
                        self.asked.stop();
                    }
                    Some(first) if signal == SIGINT && first.elapsed() >= SAME => {
                        told("the run ends at once");
                        self.asked.stop_at_once();
                        thread::sleep(grace);
                        // It fails for signals that the system has not.
                        let _ = emulate_default_handler(SIGINT);
                    }
                    Some(_) => {}
                }
            }
        };
        let builder = thread::Builder::new().name("wqcap-signals".into());
        builder.spawn(watch).map(drop)
    }
}

fn name(signal: i32) -> &'static str {
    match signal {
        SIGHUP => "SIGHUP",
        SIGTERM => "SIGTERM",
        _ => "SIGINT",
    }
}

/// Who has sent a signal: a process, or the kernel, for a terminal.
fn sender(origin: &Origin) -> Peer {
    match &origin.process {
        Some(it) => Peer::process(it.uid, it.pid),
        None => Peer::named("the kernel"),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the terminal, and a file of /proc"
)]
fn is_ignored(signal: i32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|text| ignored_in(&text, signal))
}

/// proc_pid_status(5): `SigIgn` is a mask in hex, bit 0 for signal 1.
fn ignored_in(status: &str, signal: i32) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_mask_of_ignored_signals() {
        assert!(ignored_in(
            "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n",
            SIGHUP
        ));
        assert!(!ignored_in("SigIgn:\t0000000000001000\n", SIGHUP));
        assert!(!ignored_in("", SIGHUP));
    }
}
