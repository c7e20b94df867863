//! How the device clock went during a capture.

use serde::Serialize;

/// How the device's clock went beside the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ClockReport {
    /// The device stamps in real time; else it counts ticks.
    pub real_time: bool,
    /// The NIC's clock minus the host's at the last reading, in nanoseconds. The NIC's is what its driver takes the
    /// counter for; where that cannot be told, both were equal at the start. All that is told is of that clock, from
    /// which the one that stamps in real time can part.
    pub offset_ns: i64,
    /// How much faster the NIC's clock runs than the host's, in parts per million.
    pub drift_ppm: f64,
    /// The most that a stamp in the files was off the host's time at any reading that counted, in nanoseconds, those
    /// aside that found a jump; 0 of real time, which cannot be read.
    pub worst_error_ns: u64,
    /// What a reading that counted may itself have been off by, at most, in nanoseconds.
    pub uncertainty_ns: u64,
    /// Looks that counted, one a second.
    pub looks: u64,
    /// Seconds without any.
    pub missed: u64,
    /// How often the NIC's clock jumped.
    pub jumps: u64,
    /// By how much in sum, in nanoseconds.
    pub jumped_ns: i64,
}

impl ClockReport {
    /// A line of text for a file's end. It has the same length whatever it says, since what closes a file is planned
    /// for before.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "stamps: NIC clock minus system clock {:>+20} ns, drift {:>+10.3} ppm, worst error {:>20} ns, \
             looks {:>10}, jumps {:>10}",
            self.offset_ns,
            self.drift_ppm.clamp(-99_999.0, 99_999.0),
            self.worst_error_ns,
            self.looks.min(9_999_999_999),
            self.jumps.min(9_999_999_999),
        )
    }

    /// Adds what an earlier run of the same capture has seen.
    #[must_use]
    pub fn after(self, earlier: &Self) -> Self {
        Self {
            worst_error_ns: self.worst_error_ns.max(earlier.worst_error_ns),
            uncertainty_ns: self.uncertainty_ns.max(earlier.uncertainty_ns),
            looks: self.looks + earlier.looks,
            missed: self.missed + earlier.missed,
            jumps: self.jumps + earlier.jumps,
            jumped_ns: self.jumped_ns.saturating_add(earlier.jumped_ns),
            ..self
        }
    }
}
