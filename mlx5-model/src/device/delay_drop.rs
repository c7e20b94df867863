//! Delay drop: a frame for a receive queue without WQEs stays on the wire for a limited time.
//!
//! Imports `counters`. The timeout belongs to the device, not to a queue (PRM
//! "SET_DELAY_DROP_PARAMS"). When it expires, the device stops holding frames and notifies its
//! driver, which counts the event and arms the device again (drivers/infiniband/hw/mlx5/main.c,
//! `delay_drop_handler`). Programs get no event: they see `out_of_buffer` and the driver's files in
//! debugfs.
//!
//! Invariant: each timeout is counted once, and the device is armed after it.

use std::sync::atomic::Ordering;

use crate::device::counters::PortCounters;

/// Delay drop state of a device.
pub struct NicDelayDrop {
    timeout_ns: u64,
    armed: bool,
    /// Counters of the device's first port, which include those of the device.
    counters: &'static PortCounters,
}

impl NicDelayDrop {
    /// Creates the armed delay drop state with a timeout in microseconds.
    pub fn new(timeout_us: u32, counters: &'static PortCounters) -> Self {
        Self {
            timeout_ns: u64::from(timeout_us) * 1000,
            armed: true,
            counters,
        }
    }

    /// Returns `true` if delay drop continues to hold a frame on the wire that has waited for
    /// `waited_ns` nanoseconds.
    pub fn holds(&mut self, waited_ns: u64) -> bool {
        self.armed &= waited_ns < self.timeout_ns;
        self.armed
    }

    /// Handles a delay drop timeout as the driver does, between bursts: counts it and arms delay
    /// drop again.
    #[inline]
    pub fn rearm(&mut self) {
        if !self.armed {
            self.armed = true;
            let events = &self.counters.delay_drop_timeouts;
            events.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds 1 to the number of receive queues that were created with delay drop. The driver never
    /// decreases this number.
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
    fn a_timeout_stops_holding_until_the_driver_rearms() {
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
