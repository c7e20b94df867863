//! Faults in effect on a port: a link that is down, frames that take longer to reach memory.
//!
//! Imports the settings' faults. Invariant: the budget of a burst is [`BURST`] unless a fault in effect, or one to
//! come, limits it.

use crate::settings::fault::FaultEnd;

/// The most frames that a port takes from its wire before the device is let go.
pub const BURST: usize = 64;

/// A link that is down.
struct Outage {
    since_ns: u64,
    end: FaultEnd,
}

impl Outage {
    fn is_over(&self, now_ns: u64) -> bool {
        match self.end {
            FaultEnd::Never => false,
            FaultEnd::AfterNs(ns) => now_ns.saturating_sub(self.since_ns) >= ns,
            FaultEnd::File(path) => path.exists(),
        }
    }
}

/// Frames that take longer.
struct Slow {
    ns: u64,
    until_ns: Option<u64>,
    /// When all frames so far have arrived.
    busy_ns: u64,
    received: u64,
}

/// See the module.
pub struct PortFaults {
    outage: Option<Outage>,
    slow: Option<Slow>,
    /// How many of the next frames were damaged on the wire.
    pub damaged: usize,
    /// The most frames of the next burst.
    pub budget: usize,
}

impl Default for PortFaults {
    fn default() -> Self {
        Self {
            outage: None,
            slow: None,
            damaged: 0,
            budget: BURST,
        }
    }
}

impl PortFaults {
    /// Whether a fault has taken the link down.
    pub fn has_outage(&self) -> bool {
        self.outage.is_some()
    }

    /// Whether the port has to be updated before the next burst.
    pub fn are_active(&self) -> bool {
        self.outage.is_some() || self.slow.is_some() || self.damaged > 0 || self.budget != BURST
    }

    pub fn start_outage(&mut self, now_ns: u64, end: FaultEnd) {
        self.outage = Some(Outage {
            since_ns: now_ns,
            end,
        });
    }

    /// Each frame takes `ns` longer from now on.
    pub fn slow_down(&mut self, now_ns: u64, received: u64, ns: u64, for_ns: Option<u64>) {
        self.slow = Some(Slow {
            ns: ns.max(1),
            until_ns: for_ns.map(|ns| now_ns.saturating_add(ns)),
            busy_ns: now_ns,
            received,
        });
    }

    /// Ends an outage whose time is over; returns whether it did.
    pub fn end_outage(&mut self, now_ns: u64) -> bool {
        let outage = self.outage.as_ref();
        let over = outage.is_some_and(|outage| outage.is_over(now_ns));
        if over {
            self.outage = None;
        }
        over
    }

    /// Sets the budget of the next burst to `left` at most, on a port that has received `received` frames.
    pub fn limit_burst(&mut self, now_ns: u64, received: u64, left: u64) {
        let until = self.slow.as_ref().and_then(|slow| slow.until_ns);
        if until.is_some_and(|until| now_ns >= until) {
            self.slow = None;
        }
        let mut budget = left.min(BURST as u64);
        if let Some(slow) = &mut self.slow {
            let new = received.saturating_sub(slow.received);
            slow.received = received;
            // Time without frames is not saved up, but a burst may come at once.
            slow.busy_ns = slow
                .busy_ns
                .saturating_add(new.saturating_mul(slow.ns))
                .max(now_ns.saturating_sub(slow.ns.saturating_mul(BURST as u64)));
            budget = budget.min(now_ns.saturating_sub(slow.busy_ns) / slow.ns);
        }
        self.budget = budget as usize;
    }
}
