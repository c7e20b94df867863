//! From readings to lines: the files' clock is held to the host's, or goes by the NIC's own.
//!
//! Of the looks of a second the last one counts, unless an earlier one showed the NIC's clock further ahead than a rate
//! can explain: an answer may be late, and then shows a time that has passed, but it is never early. Held, the line is steered by a proportional and an integral
//! part: the difference found is made up for within the next second, and what it says of the rate is remembered.
//! Crystals are within [`MOST`] of their rate; a difference that would take more is made up for over several seconds,
//! and no rate is learned from it.
//!
//! A clock that was set shows as a difference that no rate explains. Which one it was is told by the host's monotonic
//! clock, which nobody sets: the NIC's, then the line goes on as if it had not jumped; or the host's own, then the
//! line goes after it.

use super::{ClockReading, Conversion, Form, NicTime, real_time};
use wqcap_core::stats::ClockReport;

/// How often the line is corrected, in nanoseconds.
const EVERY_NS: u64 = 1_000_000_000;
/// The first time, when nothing is known of the rate.
const FIRST_NS: u64 = 100_000_000;
/// A reading that is less sure is not gone by, in nanoseconds.
const UNSURE_NS: u64 = 20_000;

/// The most that a crystal is off its rate, and that a difference bends the line by; the kernel slews its own clock by
/// no more.
const MOST: f64 = 500e-6;
/// Shares of a difference that are made up for at once, and that are remembered as the rate. A constant difference of
/// rates dies out; noise of one reading is off the line by its own size at the next, by a third at the one after.
const AT_ONCE: f64 = 0.7;
const REMEMBERED: f64 = 0.3;
/// How exactly a rate must be known before it is gone by.
const RATE: f64 = 20e-6;
/// A difference too large to slew away, in nanoseconds: the host's clock was set forward. The line steps after it.
const STEP_NS: i64 = 1_000_000_000;
/// Differences that no rate explains: this, and a thousandth of the time since the last reading that counted.
const JUMP_NS: i64 = 1_000_000;

/// Which clocks were set since the reading before, and by how much; 0: not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disturbance {
    /// The NIC's, in nanoseconds.
    pub nic_ns: i64,
    /// The host's, in nanoseconds.
    pub host_ns: i64,
}

/// Makes lines of readings.
#[derive(Clone, Debug)]
pub struct Keeper {
    form: Form,
    /// The files speak the host's time.
    held: bool,
    /// Nanoseconds of a tick, by the data sheet.
    nominal: f64,
    /// How much faster than that the line must run, once it is known.
    rate: Option<f64>,
    line: Conversion,
    /// The first reading since either clock was set.
    first: ClockReading,
    /// The last that counted.
    last: ClockReading,
    /// The one that was answered soonest since then, and how far the NIC's clock was ahead.
    best: Option<(i64, ClockReading)>,
    /// The last of all.
    seen: ClockReading,
    /// When one is to count, on the monotonic clock.
    due_ns: u64,
    report: ClockReport,
}

impl Keeper {
    /// Begins with a reading. `khz` is the counter's nominal rate; `held`: the files speak the host's time, which takes
    /// ticks. Stamps in real time are gone by as they are.
    #[must_use]
    pub fn new(form: Form, khz: u64, held: bool, first: ClockReading) -> Self {
        let nominal = match form {
            Form::Ticks { .. } => 1e6 / khz.max(1) as f64,
            Form::RealTime => 1.0,
        };
        let (stamp, ns) = match (form, first.nic) {
            (Form::RealTime, _) => (real_time(first.system_ns), first.system_ns),
            (Form::Ticks { .. }, Some(nic)) if !held => (first.ticks, nic.ns),
            (Form::Ticks { .. }, _) => (first.ticks, first.system_ns),
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
                real_time: form == Form::RealTime,
                ..ClockReport::default()
            },
        };
        keeper.report.offset_ns = keeper.offset(&first);
        keeper
    }

    /// The line that holds.
    #[must_use]
    pub fn line(&self) -> &Conversion {
        &self.line
    }

    /// How it went so far.
    #[must_use]
    pub fn report(&self) -> ClockReport {
        self.report
    }

    /// Takes a reading, of which there should be a few a second. Tells which clock was set since the last one, and
    /// whether [`Keeper::line`] is another now.
    pub fn see(&mut self, now: &ClockReading) -> Option<Disturbance> {
        let sure = now.uncertainty_ns <= UNSURE_NS;
        let usable = sure && (self.form != Form::RealTime || now.nic.is_some());
        if usable {
            let ahead = self.ahead_by(now);
            if self.best.is_none_or(|best| is_no_later(&best, ahead, now)) {
                self.best = Some((ahead, *now));
            }
            let at_once = self.is_jump_for_sure(now, ahead);
            self.seen = *now;
            if at_once {
                // What was seen before it tells nothing any more.
                self.best = Some((ahead, *now));
                return self.count(now);
            }
        }
        if now.mono_ns < self.due_ns {
            return None;
        }
        match self.best {
            Some((_, best)) => self.count(&self.moved_on(&best)),
            None => {
                self.report.missed += 1;
                self.due_ns = now.mono_ns + EVERY_NS;
                None
            }
        }
    }

    /// What the last reading would have shown, had it been answered as soon as this one was.
    fn moved_on(&self, best: &ClockReading) -> ClockReading {
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

    /// How far the NIC's clock went ahead of the host's monotonic one since the last reading that counted, but for its
    /// rate.
    fn ahead_by(&self, now: &ClockReading) -> i64 {
        let passed = ahead(now.mono_ns, self.last.mono_ns);
        let drifted = rounded(passed as f64 * self.rate.unwrap_or(0.0));
        self.elapsed(&self.last, now) + drifted - passed
    }

    /// What a rate, and looks that were not sure, may explain of that.
    fn explained(&self, now: &ClockReading) -> i64 {
        let unsure = self.last.uncertainty_ns + now.uncertainty_ns;
        JUMP_NS + ahead(now.mono_ns, self.last.mono_ns) / 1000 + unsure.cast_signed()
    }

    /// A clock that went back, or is where it cannot be yet. One that is behind may only have answered late.
    fn is_jump_for_sure(&self, now: &ClockReading, ahead: i64) -> bool {
        ahead > self.explained(now) || self.elapsed(&self.seen, now) < -JUMP_NS
    }

    /// Goes by a reading.
    fn count(&mut self, reading: &ClockReading) -> Option<Disturbance> {
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
        // Held, the line goes on as if the clock had not jumped.
        let jumped = if self.held { disturbance.nic_ns } else { 0 };
        if disturbance.nic_ns != 0 {
            self.report.jumps += 1;
            self.report.jumped_ns = self.report.jumped_ns.saturating_add(disturbance.nic_ns);
        }
        let error = match self.form {
            Form::Ticks { .. } => {
                let stamp = self.stamp(reading, jumped);
                ahead(reading.system_ns, self.line.ns(stamp))
            }
            // The reading is not of the clock that stamps.
            Form::RealTime => 0,
        };
        self.note(reading, error, calm);
        self.line = if self.held {
            self.steered(reading, jumped, error)
        } else {
            self.own(reading).unwrap_or(self.line)
        };
        // A poor reading to begin with would keep the rate unknown for long.
        let better = self.rate.is_none() && reading.uncertainty_ns < self.first.uncertainty_ns / 4;
        if !calm || better {
            self.first = *reading;
        }
        self.last = *reading;
        self.best = None;
        self.due_ns = reading.mono_ns + EVERY_NS;
        Some(disturbance)
    }

    /// What the report tells of a reading.
    fn note(&mut self, now: &ClockReading, error: i64, calm: bool) {
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

    /// The line from a reading on, bent so that it meets the host's time a second later. It goes on where it was, as if the
    /// NIC's clock had not jumped.
    fn steered(&mut self, reading: &ClockReading, jumped: i64, error: i64) -> Conversion {
        let wanted = error as f64 / EVERY_NS as f64;
        self.rate = match self.rate {
            None => self.first_rate(reading),
            Some(rate) if wanted.abs() <= MOST => {
                Some((rate + REMEMBERED * wanted).clamp(-MOST, MOST))
            }
            known => known,
        };
        let (stamp, unjumped) = (reading.ticks, self.stamp(reading, jumped));
        let (ns, bend) = if error > STEP_NS {
            (reading.system_ns, 0.0)
        } else {
            (
                self.line.ns(unjumped),
                (AT_ONCE * wanted).clamp(-MOST, MOST),
            )
        };
        let slope = self.nominal * (1.0 + self.rate.unwrap_or(0.0) + bend);
        Conversion::new(self.form, stamp, ns, slope).held_from(reading.mono_ns)
    }

    /// The rate by two looks alone, once these are far enough apart for what they may be off by.
    fn first_rate(&self, now: &ClockReading) -> Option<f64> {
        let unsure = (self.first.uncertainty_ns + now.uncertainty_ns) as f64;
        let passed = ahead(now.mono_ns, self.first.mono_ns) as f64;
        let rate = self.host_rate(now).filter(|_| unsure <= RATE * passed)?;
        Some(rate.clamp(-MOST, MOST))
    }

    /// The NIC's own line from now on, where its driver tells.
    fn own(&self, now: &ClockReading) -> Option<Conversion> {
        match self.form {
            Form::RealTime => None,
            Form::Ticks { .. } => now
                .nic
                .map(|nic| Conversion::new(self.form, now.ticks, nic.ns, nic.ns_per_tick)),
        }
    }

    /// How much faster the host's clock runs than the device's, since either was set.
    fn host_rate(&self, now: &ClockReading) -> Option<f64> {
        let device = self.elapsed(&self.first, now);
        let host = ahead(now.system_ns, self.first.system_ns);
        (device > 0 && host > 0).then(|| host as f64 / device as f64 - 1.0)
    }

    /// Nanoseconds between two readings by what stamps the frames.
    fn elapsed(&self, from: &ClockReading, to: &ClockReading) -> i64 {
        if let (Some(from), Some(to)) = (from.nic, to.nic)
            && (self.form == Form::RealTime || !self.held)
        {
            return ahead(to.ns, from.ns);
        }
        let Form::Ticks { .. } = self.form else {
            return ahead(to.mono_ns, from.mono_ns);
        };
        rounded(self.form.distance(from.ticks, to.ticks) as f64 * self.nominal)
    }

    /// What the device's counter would show at a reading, had its clock not jumped by so much.
    fn stamp(&self, at: &ClockReading, jumped_ns: i64) -> u64 {
        let jumped = rounded(jumped_ns as f64 / self.nominal);
        at.ticks.wrapping_add_signed(-jumped)
    }

    fn offset(&self, now: &ClockReading) -> i64 {
        match now.nic {
            Some(nic) => ahead(nic.ns, now.system_ns),
            None => self.elapsed(&self.first, now) - ahead(now.system_ns, self.first.system_ns),
        }
    }
}

/// Whether a reading was answered no later than an earlier one, as far as a rate can tell: the younger tells more of now.
fn is_no_later((most, best): &(i64, ClockReading), ahead_by: i64, now: &ClockReading) -> bool {
    let since = ahead(now.mono_ns, best.mono_ns) as f64;
    ahead_by + rounded(since * MOST) >= *most
}

/// How far one time is ahead of another.
fn ahead(one: u64, other: u64) -> i64 {
    one.wrapping_sub(other).cast_signed()
}

fn rounded(ns: f64) -> i64 {
    ns.round() as i64
}

#[cfg(test)]
mod tests;
