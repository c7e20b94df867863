//! How long to wait between tries while the device of a capture is lost and `device.on_loss = "retry"`.

use crate::{
    Error,
    capture::{Capture, Limits, Report},
    plan::Plan,
    sync::wakeup::Wakeup,
};
use std::time::Duration;

/// The wait before the first try; each further one is twice as long, up to the longest.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);
/// A capture that has lasted so long was no failed try.
const STABLE: Duration = Duration::from_secs(30);

/// The waits between tries.
#[derive(Debug)]
pub(super) struct Backoff(Duration);

impl Backoff {
    /// Begins with the shortest wait.
    pub(super) fn new() -> Self {
        Self(FIRST)
    }

    /// The next wait, each longer than the one before.
    pub(super) fn next(&mut self) -> Duration {
        let wait = self.0;
        self.0 = (wait * 2).min(LONGEST);
        wait
    }

    /// A capture has run for `time`. A device that is lost again and again at once must not keep the machine busy.
    pub(super) fn has_run(&mut self, time: Duration) {
        if time >= STABLE {
            self.0 = FIRST;
        }
    }
}

/// Starts a capture that goes on from `earlier`, on the device that `found` was planned for. The device may have another
/// name or firmware; what is captured, and how, stays as in `before`.
///
/// # Errors
/// The network interface is not there yet, or a verb fails: try again later.
pub(super) fn go_on(
    before: &Plan,
    found: Plan,
    limits: Limits,
    earlier: &Report,
    wakeup: &Wakeup,
) -> Result<(Capture, Plan), String> {
    if let (Some(netdev), None) = (&before.netdev, &found.netdev) {
        return Err(format!("its network interface {netdev} is not there"));
    }
    let plan = Plan {
        device: found.device,
        netdev: found.netdev,
        ..before.clone()
    };
    let capture = Capture::go_on(&plan, limits, earlier, wakeup);
    let capture = capture.map_err(|e: Error| e.to_string())?;
    Ok((capture, plan))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_limit_and_are_short_again_after_a_stable_run() {
        let mut backoff = Backoff::new();
        let waits: Vec<_> = (0..9).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(
            waits,
            [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
        );
        backoff.has_run(STABLE / 2);
        assert_eq!(backoff.next(), LONGEST);
        backoff.has_run(STABLE);
        assert_eq!(backoff.next(), FIRST);
    }
}
