//! Signals that end a run in order, or let it read its configuration again.

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    flag, iterator,
    low_level::emulate_default_handler,
};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// A repeat within this time is the same request: timeout(1) and shells signal a process and its group.
const SAME: Duration = Duration::from_secs(1);

/// From now on SIGINT, SIGTERM and SIGHUP set the flag that is returned. A SIGINT more than a second later ends the
/// process, as if it had never been caught, so that a shell sees how it ended.
pub fn catch() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    catch_into(&stop, &stop)?.escalate(Arc::default(), Duration::ZERO)?;
    Ok(stop)
}

/// The same, with SIGHUP in a flag of its own, and without an answer to repeats yet.
pub fn catch_into(stop: &Arc<AtomicBool>, hangup: &Arc<AtomicBool>) -> io::Result<Repeats> {
    let repeats = iterator::Signals::new([SIGINT, SIGTERM])?;
    flag::register(SIGINT, Arc::clone(stop))?;
    flag::register(SIGTERM, Arc::clone(stop))?;
    // A limit to the length of files (ulimit -f) is an error of the write, EFBIG, and not the end of the process.
    flag::register(SIGXFSZ, Arc::default())?;
    // nohup(1) has it ignored, and the run is to go on.
    if !is_ignored(SIGHUP) {
        flag::register(SIGHUP, Arc::clone(hangup))?;
    }
    Ok(Repeats(repeats))
}

/// Requests to end, as they come.
pub struct Repeats(iterator::Signals);

impl Repeats {
    /// From now on a SIGINT that is no repeat of the first request sets `at_once`, and ends the process `grace` later.
    pub fn escalate(mut self, at_once: Arc<AtomicBool>, grace: Duration) -> io::Result<()> {
        let watch = move || {
            let mut first = None;
            for signal in self.0.forever() {
                let first: &mut Instant = first.get_or_insert_with(Instant::now);
                if signal == SIGINT && first.elapsed() >= SAME {
                    at_once.store(true, Ordering::Relaxed);
                    thread::sleep(grace);
                    // It fails for signals that the system has not.
                    let _ = emulate_default_handler(SIGINT);
                }
            }
        };
        let builder = thread::Builder::new().name("wqcap-signals".into());
        builder.spawn(watch).map(drop)
    }
}

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
