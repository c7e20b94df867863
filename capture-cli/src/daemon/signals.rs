//! Signals that end a run in order, or let it read its configuration again.

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};
use std::{
    io,
    sync::{Arc, atomic::AtomicBool},
};

/// From now on SIGINT, SIGTERM and SIGHUP set the flag that is returned. A second SIGINT ends the process at once,
/// as if it had never been caught, so that a shell sees how it ended.
pub fn catch() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    catch_into(&stop, &stop)?;
    Ok(stop)
}

/// The same, with SIGHUP in a flag of its own.
pub fn catch_into(stop: &Arc<AtomicBool>, hangup: &Arc<AtomicBool>) -> io::Result<()> {
    let again = Arc::new(AtomicBool::new(false));
    // The order matters: at the first SIGINT `again` is still unset.
    flag::register_conditional_default(SIGINT, Arc::clone(&again))?;
    flag::register(SIGINT, again)?;
    flag::register(SIGINT, Arc::clone(stop))?;
    flag::register(SIGTERM, Arc::clone(stop))?;
    // nohup(1) has it ignored, and the run is to go on.
    if !is_ignored(SIGHUP) {
        flag::register(SIGHUP, Arc::clone(hangup))?;
    }
    Ok(())
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
