//! Recovery of a lost device with `device.on_loss = "retry"`: delays between attempts, and the new
//! capture.

use std::time::Duration;
use wqcap_core::sync::wakeup::Wakeup;
use wqcap_engine::{
    Error,
    capture::{Capture, Limits, Report, Resources},
    plan::Plan,
};

/// Delay before the first attempt to find a lost device; each further delay is twice as long, up to
/// the longest.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);
/// Duration of a capture after which the delays for a lost device start again at the shortest.
const STABLE: Duration = Duration::from_secs(30);

/// Delays between attempts to find a lost device.
#[derive(Debug)]
pub(super) struct Backoff(Duration);

impl Backoff {
    /// Creates the delays for a lost device, starting with the shortest.
    pub(super) fn new() -> Self {
        Self(FIRST)
    }

    /// Returns the delay before the next attempt to find a lost device and doubles it, up to the
    /// longest.
    pub(super) fn next(&mut self) -> Duration {
        let wait = self.0;
        self.0 = (wait * 2).min(LONGEST);
        wait
    }

    /// Resets the delay between attempts if a capture ran for a stable `time`. A device that is
    /// lost repeatedly after a short time keeps long delays, which limits the CPU load.
    pub(super) fn record_run(&mut self, time: Duration) {
        if time >= STABLE {
            self.0 = FIRST;
        }
    }
}

/// Starts a capture that continues from the report `earlier`, on the device that `found` was
/// planned for. The device may have another name or firmware; all other settings are those of
/// `before`.
///
/// # Errors
/// The network interface is not present yet, or a verb fails. The call may be repeated.
pub(super) fn continue_capture(
    before: &Plan,
    found: Plan,
    resources: &Resources,
    limits: Limits,
    earlier: &Report,
    wakeup: &Wakeup,
) -> Result<(Capture, Plan), String> {
    if let (Some(netdev), None) = (&before.netdev, &found.netdev) {
        return Err(format!(
            "the network interface {netdev} of the device is not present"
        ));
    }
    let plan = Plan {
        device: found.device,
        netdev: found.netdev,
        ..before.clone()
    };
    let capture = Capture::continue_from(&plan, resources, limits, earlier, wakeup);
    let capture = capture.map_err(|e: Error| e.to_string())?;
    Ok((capture, plan))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_up_to_a_limit_and_are_reset_after_a_stable_run() {
        let mut backoff = Backoff::new();
        let waits: Vec<_> = (0..9).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(
            waits,
            [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
        );
        backoff.record_run(STABLE / 2);
        assert_eq!(backoff.next(), LONGEST);
        backoff.record_run(STABLE);
        assert_eq!(backoff.next(), FIRST);
    }
}
