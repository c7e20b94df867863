//! Delay drop: a frame for a receive queue without WQEs stays on the wire for a while.
//!
//! Imports `counters`. The timeout is the device's, not a queue's (PRM "SET_DELAY_DROP_PARAMS"). When it expires the
//! device holds no frame any more and notifies its driver, which counts the event and arms the device again
//! (drivers/infiniband/hw/mlx5/main.c, `delay_drop_handler`). Programs get no event: they see `out_of_buffer`, and
//! what the driver shows in debugfs.
//!
//! Invariant: each timeout is counted once, and the device is armed after it.

use std::sync::atomic::Ordering;

use crate::device::counters::PortCounters;

/// A device's delay drop.
pub struct NicDelayDrop {
    timeout_ns: u64,
    armed: bool,
    /// The first port's, which hold the device's own.
    counters: &'static PortCounters,
}

impl NicDelayDrop {
    /// Armed, with a timeout in microseconds.
    pub fn new(timeout_us: u32, counters: &'static PortCounters) -> Self {
        Self {
            timeout_ns: u64::from(timeout_us) * 1000,
            armed: true,
            counters,
        }
    }

    /// Whether a frame that has waited for `waited_ns` waits on.
    pub fn holds(&mut self, waited_ns: u64) -> bool {
        self.armed &= waited_ns < self.timeout_ns;
        self.armed
    }

    /// The driver's answer to a timeout, between bursts.
    #[inline]
    pub fn rearm(&mut self) {
        if !self.armed {
            self.armed = true;
            let events = &self.counters.delay_drop_timeouts;
            events.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a queue that was created with delay drop. The driver never decreases the count.
    pub fn count_queue(&self) {
        let queues = &self.counters.delay_drop_queues;
        queues.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::counters;

    #[test]
    fn a_timeout_lets_everything_go_until_the_driver_has_answered() {
        let counters = counters::port(29, 1);
        let events = || counters.delay_drop_timeouts.load(Ordering::Relaxed);
        let mut delay_drop = NicDelayDrop::new(100, counters);
        assert!(delay_drop.holds(0) && delay_drop.holds(99_999));
        delay_drop.rearm();
        assert_eq!(events(), 0);
        assert!(!delay_drop.holds(100_000));
        assert!(!delay_drop.holds(0), "not armed");
        delay_drop.rearm();
        delay_drop.rearm();
        assert_eq!(events(), 1);
        assert!(delay_drop.holds(0));
    }
}
