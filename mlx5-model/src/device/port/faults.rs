//! Faults in effect on a port: a link that is down, and slow writes to memory.
//!
//! Imports the settings' faults. Invariant: the budget of a burst is [`BURST`] unless a fault in
//! effect or a pending one limits it.

use crate::settings::fault::FaultEnd;

/// Maximum number of frames that a port takes from its wire before the device's lock is released.
pub const BURST: usize = 64;

/// A link outage that an injected fault has caused.
struct LinkOutage {
    since_ns: u64,
    end: FaultEnd,
}

impl LinkOutage {
    fn is_over(&self, now_ns: u64) -> bool {
        match self.end {
            FaultEnd::Never => false,
            FaultEnd::AfterNs(ns) => now_ns.saturating_sub(self.since_ns) >= ns,
            FaultEnd::File(path) => path.exists(),
        }
    }
}

/// Slowdown of the writes of received frames to memory, caused by an injected fault.
struct Slowdown {
    ns: u64,
    until_ns: Option<u64>,
    /// Time when all frames that the port has received so far have reached memory.
    busy_ns: u64,
    received: u64,
}

/// Injected faults in effect on a port.
pub struct PortFaults {
    outage: Option<LinkOutage>,
    slow: Option<Slowdown>,
    /// Number of the next frames on the port's wire that get a wrong FCS by an injected fault.
    pub damaged: usize,
    /// Number of the next frames on the port's wire that the PCIe bus does not take, by an injected
    /// fault.
    pub overflowing: usize,
    /// Maximum number of frames of the port's next burst, which faults may reduce.
    pub budget: usize,
}

impl Default for PortFaults {
    fn default() -> Self {
        Self {
            outage: None,
            slow: None,
            damaged: 0,
            overflowing: 0,
            budget: BURST,
        }
    }
}

impl PortFaults {
    /// Returns `true` if an injected fault has taken the port's link down.
    pub fn has_outage(&self) -> bool {
        self.outage.is_some()
    }

    /// Returns `true` if the port's faults have to be updated before the next burst.
    pub fn are_active(&self) -> bool {
        self.outage.is_some()
            || self.slow.is_some()
            || self.damaged + self.overflowing > 0
            || self.budget != BURST
    }

    pub fn start_outage(&mut self, now_ns: u64, end: FaultEnd) {
        self.outage = Some(LinkOutage {
            since_ns: now_ns,
            end,
        });
    }

    /// Delays the write to memory of each frame that the port receives by `ns` nanoseconds from now
    /// on.
    pub fn slow_down(&mut self, now_ns: u64, received: u64, ns: u64, for_ns: Option<u64>) {
        self.slow = Some(Slowdown {
            ns: ns.max(1),
            until_ns: for_ns.map(|ns| now_ns.saturating_add(ns)),
            busy_ns: now_ns,
            received,
        });
    }

    /// Ends the port's link outage if its time is over. Returns `true` if it did.
    pub fn end_outage(&mut self, now_ns: u64) -> bool {
        let outage = self.outage.as_ref();
        let over = outage.is_some_and(|outage| outage.is_over(now_ns));
        if over {
            self.outage = None;
        }
        over
    }

    /// Limits the next burst of a port that has received `received` frames: to at most `left`
    /// frames, and to those that a slowdown lets through by now.
    pub fn limit_burst(&mut self, now_ns: u64, received: u64, left: u64) {
        let until = self.slow.as_ref().and_then(|slow| slow.until_ns);
        if until.is_some_and(|until| now_ns >= until) {
            self.slow = None;
        }
        let mut budget = left.min(BURST as u64);
        if let Some(slow) = &mut self.slow {
            let new = received.saturating_sub(slow.received);
            slow.received = received;
            // Time without frames does not accumulate, except for one burst.
            slow.busy_ns = slow
                .busy_ns
                .saturating_add(new.saturating_mul(slow.ns))
                .max(now_ns.saturating_sub(slow.ns.saturating_mul(BURST as u64)));
            budget = budget.min(now_ns.saturating_sub(slow.busy_ns) / slow.ns);
        }
        self.budget = budget as usize;
    }
}
