//! Clock discipline: computes the linear conversion from device stamps to nanoseconds (the line)
//! from clock readings. The line follows the host's clock (held), or the NIC's own clock.
//!
//! One reading per second counts. It is the last one, unless an earlier one showed the NIC's clock
//! further ahead than a rate can explain. The reason is that an answer may be late and then shows a
//! past time, but an answer is never early.
//!
//! A held line is steered by a proportional and an integral part: the error is corrected within the
//! next second, and a share of it is added to the rate. Crystals are within [`MAX_RATE_ERROR`] of
//! their rate. A larger error is corrected over several seconds and does not change the rate.
//!
//! A clock that was set shows as a difference that no rate explains. The host's monotonic clock,
//! which is never set, distinguishes two cases. If the NIC's clock was set, the line continues as
//! if it had not jumped. If the host's clock was set, the line follows it.

use super::{ClockReading, Conversion, NicTime, StampForm, real_time};
use wqcap_core::stats::ClockReport;

/// Interval between two corrections of the stamp conversion, in nanoseconds.
const INTERVAL_NS: u64 = 1_000_000_000;
/// Time until the first correction of the stamp conversion, in nanoseconds. It is short because the
/// clock's rate is unknown until then.
const FIRST_NS: u64 = 100_000_000;
/// Maximum uncertainty of a clock reading, in nanoseconds. Readings with a larger uncertainty are
/// discarded.
const UNSURE_NS: u64 = 20_000;

/// Maximum deviation of a clock crystal from its rate, and maximum change by which one correction
/// alters the slope of the stamp conversion. The kernel slews its own clock by no more.
const MAX_RATE_ERROR: f64 = 500e-6;
/// Share of a clock error that is corrected within one correction interval.
///
/// With [`REMEMBERED`], a constant difference of rates is corrected completely. Noise of one
/// reading causes an error of the same size at the next reading, and of a third at the one after.
const AT_ONCE: f64 = 0.7;
/// Share of a clock error that is added to the estimated clock rate.
const REMEMBERED: f64 = 0.3;
/// Maximum uncertainty of the first estimate of the clock rate, as a fraction.
const RATE: f64 = 20e-6;
/// Clock error, in nanoseconds, that is too large to slew away: the host's clock was set forward.
/// The stamp conversion steps to the host's time.
const STEP_NS: i64 = 1_000_000_000;
/// Difference between the NIC's and the host's clock, in nanoseconds, that no clock rate explains,
/// in addition to a thousandth of the time since the last counted clock reading.
const JUMP_NS: i64 = 1_000_000;

/// Jumps of the NIC's and the host's clock since the last counted clock reading; 0 means that a
/// clock was not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Disturbance {
    /// Jump of the NIC's clock, in nanoseconds; 0: it was not set.
    pub nic_ns: i64,
    /// Jump of the host's system clock, in nanoseconds; 0: it was not set.
    pub host_ns: i64,
}

/// Clock discipline: computes the conversion from device stamps to nanoseconds from clock readings.
#[derive(Clone, Debug)]
pub struct ClockDiscipline {
    /// Form of the device's time stamps in completions.
    form: StampForm,
    /// `true` if the stamp conversion follows the host's time, `false` if it follows the NIC's.
    held: bool,
    /// Nominal nanoseconds per tick of the device's counter.
    nominal: f64,
    /// Relative deviation of the host clock's rate from the nominal rate of the NIC's ticks; `None`
    /// until it is known.
    rate: Option<f64>,
    /// Present linear conversion from device stamps to nanoseconds.
    line: Conversion,
    /// First clock reading since the NIC's or the host's clock was last set.
    first: ClockReading,
    /// Last counted clock reading.
    last: ClockReading,
    /// Clock reading since the last counted one that the NIC answered fastest, with the lead of the
    /// NIC's clock in it, in nanoseconds.
    best: Option<(i64, ClockReading)>,
    /// Last clock reading that was precise enough to use.
    seen: ClockReading,
    /// Time on the host's monotonic clock at which the next clock reading counts, in nanoseconds.
    due_ns: u64,
    /// Clock statistics of the run so far, for its report.
    report: ClockReport,
}

impl ClockDiscipline {
    /// Starts the clock discipline of a device with the first clock reading.
    ///
    /// `khz` is the counter's nominal rate. With `held`, the line follows the host's time, which
    /// requires the form [`StampForm::Ticks`]. Real-time stamps are used unchanged.
    #[must_use]
    pub fn new(form: StampForm, khz: u64, held: bool, first: ClockReading) -> Self {
        let nominal = match form {
            StampForm::Ticks { .. } => 1e6 / khz.max(1) as f64,
            StampForm::RealTime => 1.0,
        };
        let (stamp, ns) = match (form, first.nic) {
            (StampForm::RealTime, _) => (real_time(first.system_ns), first.system_ns),
            (StampForm::Ticks { .. }, Some(nic)) if !held => (first.ticks, nic.ns),
            (StampForm::Ticks { .. }, _) => (first.ticks, first.system_ns),
        };
        let line = Conversion::new(form, stamp, ns, nominal);
        let mut keeper = Self {
            form,
            held,
            nominal,
            rate: None,
            line: if held {
                line.held_from(first.mono_ns)
            } else {
                line
            },
            first,
            last: first,
            best: None,
            seen: first,
            due_ns: first.mono_ns + FIRST_NS,
            report: ClockReport {
                real_time: form == StampForm::RealTime,
                ..ClockReport::default()
            },
        };
        keeper.report.offset_ns = keeper.offset(&first);
        keeper
    }

    /// Starts the clock discipline again for a device that stamps in UTC instead of ticks.
    pub fn switch_to_utc(&mut self, reading: ClockReading) {
        *self = Self::new(StampForm::RealTime, 1, false, reading);
    }

    /// Returns the present linear conversion from device stamps to nanoseconds.
    #[must_use]
    pub fn line(&self) -> &Conversion {
        &self.line
    }

    /// Returns the clock statistics of the run so far.
    #[must_use]
    pub fn report(&self) -> ClockReport {
        self.report
    }

    /// Processes a reading of the NIC's and the host's clocks; there should be several readings per
    /// second.
    ///
    /// Returns the changes of clocks since the last counted reading if this call has changed
    /// [`ClockDiscipline::line`], else `None`.
    pub fn update(&mut self, now: &ClockReading) -> Option<Disturbance> {
        let sure = now.uncertainty_ns <= UNSURE_NS;
        let usable = sure && (self.form != StampForm::RealTime || now.nic.is_some());
        if usable {
            let ahead = self.ahead_by(now);
            if self.best.is_none_or(|best| is_no_later(&best, ahead, now)) {
                self.best = Some((ahead, *now));
            }
            let at_once = self.is_jump_for_sure(now, ahead);
            self.seen = *now;
            if at_once {
                // Readings before the jump are useless.
                self.best = Some((ahead, *now));
                return self.apply(now);
            }
        }
        if now.mono_ns < self.due_ns {
            return None;
        }
        match self.best {
            Some((_, best)) => self.apply(&self.projected(&best)),
            None => {
                self.report.missed += 1;
                self.due_ns = now.mono_ns + INTERVAL_NS;
                None
            }
        }
    }

    /// Returns the last clock reading as it would be if the NIC had answered it as fast as the
    /// reading `best`.
    fn projected(&self, best: &ClockReading) -> ClockReading {
        let passed = ahead(self.seen.mono_ns, best.mono_ns) as f64;
        let on_the_nic = passed * (1.0 - self.rate.unwrap_or(0.0));
        let ticks = rounded(on_the_nic / self.nominal);
        ClockReading {
            ticks: best.ticks.wrapping_add_signed(ticks),
            nic: best.nic.map(|nic| NicTime {
                ns: nic.ns.wrapping_add_signed(rounded(on_the_nic)),
                ..nic
            }),
            uncertainty_ns: best.uncertainty_ns.max(self.seen.uncertainty_ns),
            ..self.seen
        }
    }

    /// Returns the nanoseconds that the NIC's clock gained on the host's monotonic clock since the
    /// last counted clock reading, after correction by the estimated rate.
    fn ahead_by(&self, now: &ClockReading) -> i64 {
        let passed = ahead(now.mono_ns, self.last.mono_ns);
        let drifted = rounded(passed as f64 * self.rate.unwrap_or(0.0));
        self.elapsed(&self.last, now) + drifted - passed
    }

    /// Returns the maximum difference between the NIC's and the host's clock, in nanoseconds, that
    /// a clock rate and the readings' uncertainty explain.
    fn explained(&self, now: &ClockReading) -> i64 {
        let unsure = self.last.uncertainty_ns + now.uncertainty_ns;
        JUMP_NS + ahead(now.mono_ns, self.last.mono_ns) / 1000 + unsure.cast_signed()
    }

    /// Returns `true` if the NIC's clock went back or is further ahead than any rate explains. A
    /// clock that is behind may only have answered late.
    fn is_jump_for_sure(&self, now: &ClockReading, ahead: i64) -> bool {
        ahead > self.explained(now) || self.elapsed(&self.seen, now) < -JUMP_NS
    }

    /// Applies a counted clock reading: detects clocks that were set, updates the clock statistics,
    /// and corrects the stamp conversion.
    fn apply(&mut self, reading: &ClockReading) -> Option<Disturbance> {
        let beyond = |ns: i64| {
            if ns.abs() > self.explained(reading) {
                ns
            } else {
                0
            }
        };
        let host = ahead(reading.system_ns, self.last.system_ns);
        let disturbance = Disturbance {
            nic_ns: beyond(self.ahead_by(reading)),
            host_ns: beyond(host - ahead(reading.mono_ns, self.last.mono_ns)),
        };
        let calm = disturbance == Disturbance::default();
        // A held line continues as if the NIC's clock had not jumped.
        let jumped = if self.held { disturbance.nic_ns } else { 0 };
        if disturbance.nic_ns != 0 {
            self.report.jumps += 1;
            self.report.jumped_ns = self.report.jumped_ns.saturating_add(disturbance.nic_ns);
        }
        let error = match self.form {
            StampForm::Ticks { .. } => {
                let stamp = self.stamp(reading, jumped);
                ahead(reading.system_ns, self.line.ns(stamp))
            }
            // The clock that makes the stamps is not the one that was read.
            StampForm::RealTime => 0,
        };
        self.record(reading, error, calm);
        self.line = if self.held {
            self.steer(reading, jumped, error)
        } else {
            self.nic_line(reading).unwrap_or(self.line)
        };
        // With an imprecise first reading, the rate would stay unknown for long.
        let better = self.rate.is_none() && reading.uncertainty_ns < self.first.uncertainty_ns / 4;
        if !calm || better {
            self.first = *reading;
        }
        self.last = *reading;
        self.best = None;
        self.due_ns = reading.mono_ns + INTERVAL_NS;
        Some(disturbance)
    }

    /// Updates the clock statistics with a counted clock reading. `calm` means that no clock was
    /// set.
    fn record(&mut self, now: &ClockReading, error: i64, calm: bool) {
        self.report.looks += 1;
        self.report.offset_ns = self.offset(now);
        self.report.uncertainty_ns = self.report.uncertainty_ns.max(now.uncertainty_ns);
        if calm {
            self.report.worst_error_ns = self.report.worst_error_ns.max(error.unsigned_abs());
            if let Some(rate) = self.host_rate(now) {
                self.report.drift_ppm = -rate * 1e6;
            }
        }
    }

    /// Updates the estimated clock rate and returns the stamp conversion from a clock reading on,
    /// with a slope that approaches the host's time within a second.
    ///
    /// The line continues without a step, as if the NIC's clock had not jumped. If the host's clock
    /// was set forward, it steps.
    fn steer(&mut self, reading: &ClockReading, jumped: i64, error: i64) -> Conversion {
        let wanted = error as f64 / INTERVAL_NS as f64;
        self.rate = match self.rate {
            None => self.first_rate(reading),
            Some(rate) if wanted.abs() <= MAX_RATE_ERROR => {
                Some((rate + REMEMBERED * wanted).clamp(-MAX_RATE_ERROR, MAX_RATE_ERROR))
            }
            known => known,
        };
        let (stamp, unjumped) = (reading.ticks, self.stamp(reading, jumped));
        let (ns, bend) = if error > STEP_NS {
            (reading.system_ns, 0.0)
        } else {
            (
                self.line.ns(unjumped),
                (AT_ONCE * wanted).clamp(-MAX_RATE_ERROR, MAX_RATE_ERROR),
            )
        };
        let slope = self.nominal * (1.0 + self.rate.unwrap_or(0.0) + bend);
        Conversion::new(self.form, stamp, ns, slope).held_from(reading.mono_ns)
    }

    /// Returns the host clock's rate from the first clock reading and `now`, once the time between
    /// them is long compared with their uncertainty.
    fn first_rate(&self, now: &ClockReading) -> Option<f64> {
        let unsure = (self.first.uncertainty_ns + now.uncertainty_ns) as f64;
        let passed = ahead(now.mono_ns, self.first.mono_ns) as f64;
        let rate = self.host_rate(now).filter(|_| unsure <= RATE * passed)?;
        Some(rate.clamp(-MAX_RATE_ERROR, MAX_RATE_ERROR))
    }

    /// Returns the stamp conversion that follows the NIC's own clock, or `None` if the driver does
    /// not report that clock or stamps are in real time.
    fn nic_line(&self, now: &ClockReading) -> Option<Conversion> {
        match self.form {
            StampForm::RealTime => None,
            StampForm::Ticks { .. } => now
                .nic
                .map(|nic| Conversion::new(self.form, now.ticks, nic.ns, nic.ns_per_tick)),
        }
    }

    /// Returns the relative deviation of the host clock's rate from the NIC clock's since either
    /// clock was set; positive if the host's clock is faster.
    fn host_rate(&self, now: &ClockReading) -> Option<f64> {
        let device = self.elapsed(&self.first, now);
        let host = ahead(now.system_ns, self.first.system_ns);
        (device > 0 && host > 0).then(|| host as f64 / device as f64 - 1.0)
    }

    /// Returns the nanoseconds between two clock readings on the clock that stamps frames.
    fn elapsed(&self, from: &ClockReading, to: &ClockReading) -> i64 {
        if let (Some(from), Some(to)) = (from.nic, to.nic)
            && (self.form == StampForm::RealTime || !self.held)
        {
            return ahead(to.ns, from.ns);
        }
        let StampForm::Ticks { .. } = self.form else {
            return ahead(to.mono_ns, from.mono_ns);
        };
        rounded(self.form.distance(from.ticks, to.ticks) as f64 * self.nominal)
    }

    /// Returns the NIC's counter value of a clock reading as it would be without the clock's jump
    /// by `jumped_ns`.
    fn stamp(&self, at: &ClockReading, jumped_ns: i64) -> u64 {
        let jumped = rounded(jumped_ns as f64 / self.nominal);
        at.ticks.wrapping_add_signed(-jumped)
    }

    /// Returns the NIC's clock minus the host's system clock in a clock reading, in nanoseconds.
    fn offset(&self, now: &ClockReading) -> i64 {
        match now.nic {
            Some(nic) => ahead(nic.ns, now.system_ns),
            None => self.elapsed(&self.first, now) - ahead(now.system_ns, self.first.system_ns),
        }
    }
}

/// Returns `true` if the NIC answered a clock reading as fast as an earlier reading, within the
/// error of a clock rate. The newer reading is then preferred.
fn is_no_later((most, best): &(i64, ClockReading), ahead_by: i64, now: &ClockReading) -> bool {
    let since = ahead(now.mono_ns, best.mono_ns) as f64;
    ahead_by + rounded(since * MAX_RATE_ERROR) >= *most
}

/// Returns the difference of two clock times; positive if `one` is later.
fn ahead(one: u64, other: u64) -> i64 {
    one.wrapping_sub(other).cast_signed()
}

/// Rounds a fractional clock value to whole nanoseconds or ticks.
fn rounded(ns: f64) -> i64 {
    ns.round() as i64
}

#[cfg(test)]
mod tests;
