//! Statistics of the device clock over a capture.

use serde::Serialize;

/// Statistics of the NIC's clock compared with the host's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ClockReport {
    /// `true` if the NIC stamps frames in real time, `false` if it counts ticks.
    pub real_time: bool,
    /// NIC's clock minus the host's clock at the last clock reading, in nanoseconds.
    ///
    /// The NIC's clock is the driver's conversion of the counter. If the driver does not report it,
    /// both clocks are taken to be equal at the start. All fields of this report are about that
    /// clock. The clock of real-time stamps can differ from it.
    pub offset_ns: i64,
    /// Rate of the NIC's clock relative to the host's, in parts per million; positive if the NIC's
    /// clock is faster.
    pub drift_ppm: f64,
    /// Maximum difference between a stamp in the capture files and the host's time at a counted
    /// clock reading, in nanoseconds.
    ///
    /// Readings that found a jump are excluded. The value is 0 for real-time stamps, whose clock
    /// cannot be read.
    pub worst_error_ns: u64,
    /// Maximum uncertainty of a counted reading of the NIC's clock, in nanoseconds.
    pub uncertainty_ns: u64,
    /// Number of readings of the NIC's clock that these statistics count, one per second.
    pub looks: u64,
    /// Number of seconds without a usable reading of the NIC's clock.
    pub missed: u64,
    /// Number of jumps of the NIC's clock.
    pub jumps: u64,
    /// Sum of the jumps of the NIC's clock, in nanoseconds.
    pub jumped_ns: i64,
}

impl ClockReport {
    /// Returns the clock statistics as a line of text for the end of a capture file. Its length is
    /// constant, because space for the end of a file is reserved in advance.
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

    /// Adds the clock report of an earlier run of the same capture.
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
