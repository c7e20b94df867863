//! Tests of the clock discipline with a simulated device's clock.

use super::*;

/// One second in nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// System time at the start of a run, in nanoseconds since 1970.
const EPOCH: u64 = 1_700_000_000 * SECOND;
/// Monotonic clock at the start of a run, in nanoseconds.
const BOOT: u64 = 5 * SECOND;
/// Maximum error of a simulated clock reading, in nanoseconds. With twice this error over the first
/// 0.1 s the rate is precise enough.
const UNCERTAIN: u64 = 900;

/// Simulated clocks of a device and a host. The true time `t` is in nanoseconds from the start.
#[derive(Clone)]
struct World {
    /// Drift of the device's clock at a time, both in nanoseconds.
    drift: fn(f64) -> f64,
    /// Nominal rate of the device's counter in kHz.
    khz: u64,
    /// Time and size of a jump of the device's clock, in nanoseconds.
    jump: Option<(u64, i64)>,
    /// Time and size of a change of the host's clock, in nanoseconds.
    set: Option<(u64, i64)>,
    /// State of the random number generator.
    dice: u64,
}

impl World {
    /// Creates clocks of a device and a host, of which only the device's clock drifts.
    fn new(drift: fn(f64) -> f64) -> Self {
        Self {
            drift,
            khz: 1_000_000,
            jump: None,
            set: None,
            dice: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Returns the device's time at the true time `t`, in nanoseconds since 1970.
    fn nic_ns(&self, t: u64) -> u64 {
        let jumped = self.jump.map_or(0, |(at, ns)| if t >= at { ns } else { 0 });
        (EPOCH + t).wrapping_add_signed(rounded((self.drift)(t as f64)) + jumped)
    }

    /// Returns the value of the device's counter at the true time `t`, in ticks.
    fn ticks(&self, t: u64) -> u64 {
        let ns = u128::from(self.nic_ns(t));
        u64::try_from(ns * u128::from(self.khz) / 1_000_000).expect("fits u64")
    }

    /// Returns the host's system time at the true time `t`, in nanoseconds since 1970.
    fn system_ns(&self, t: u64) -> u64 {
        let set = self.set.map_or(0, |(at, ns)| if t >= at { ns } else { 0 });
        (EPOCH + t).wrapping_add_signed(set)
    }

    /// Returns a clock reading at the true time `t` with a random error within its uncertainty.
    fn reading(&mut self, t: u64) -> ClockReading {
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let off = (self.dice >> 33) % (2 * UNCERTAIN + 1);
        let host = (t + off).saturating_sub(UNCERTAIN);
        ClockReading {
            ticks: self.ticks(t),
            nic: Some(NicTime {
                ns: self.nic_ns(t),
                ns_per_tick: 1e6 / self.khz as f64,
            }),
            system_ns: self.system_ns(host),
            mono_ns: BOOT + host,
            uncertainty_ns: UNCERTAIN,
        }
    }

    /// Returns the device stamp of a completion at the true time `t`.
    fn stamp(&self, form: StampForm, t: u64) -> u64 {
        match form {
            StampForm::Ticks { .. } => self.ticks(t),
            StampForm::RealTime => real_time(self.nic_ns(t)),
        }
    }
}

/// Interval between the clock readings of a capture, in nanoseconds.
const LOOK: u64 = SECOND / 50;

/// Runs the clock discipline for `seconds` with readings at a capture's interval, each answered
/// `late` nanoseconds late.
///
/// Returns for every reading its time and the lead of the line over the host's time just before it.
/// Asserts that a held line never moves back in time, unless the NIC's clock has jumped.
fn run_late(
    world: &mut World,
    form: StampForm,
    held: bool,
    seconds: u64,
    late: impl Fn(u64) -> u64,
) -> (ClockDiscipline, Vec<(u64, i64)>) {
    let mut keeper = ClockDiscipline::new(form, world.khz, held, world.reading(0));
    let mut errors = Vec::new();
    for t in (LOOK..=seconds * SECOND).step_by(LOOK as usize) {
        let stamp = world.stamp(form, t);
        let before = keeper.line().ns(stamp);
        errors.push((t, ahead(before, world.system_ns(t))));
        let shown = world.reading(t - late(t));
        let mut reading = world.reading(t);
        (reading.ticks, reading.nic) = (shown.ticks, shown.nic);
        let disturbance = keeper.update(&reading).unwrap_or_default();
        // The slope changes at the estimated present stamp. Between the estimate and the stamp, the
        // line may be off by the change of slope: a thousandth of the unknown rate's error over 0.1
        // s.
        let after = keeper.line().ns(stamp) + 50;
        if held && disturbance.nic_ns == 0 {
            assert!(
                after >= before,
                "the line moved back by {} ns",
                before - after
            );
        }
    }
    (keeper, errors)
}

/// Runs the clock discipline for `seconds` with a NIC that answers readings at once.
fn run(
    world: &mut World,
    form: StampForm,
    held: bool,
    seconds: u64,
) -> (ClockDiscipline, Vec<(u64, i64)>) {
    run_late(world, form, held, seconds, |_| 0)
}

/// Returns the largest error of the stamp conversion from the time `from` on, in nanoseconds.
fn worst(errors: &[(u64, i64)], from: u64) -> u64 {
    let late = errors.iter().filter(|(t, _)| *t >= from);
    late.map(|(_, error)| error.unsigned_abs())
        .max()
        .expect("at least one")
}

/// Both forms of the time stamps in completions.
const FORMS: [StampForm; 2] = [StampForm::Ticks { unused: 0 }, StampForm::RealTime];

/// Checks the bound of the stamps' error that docs/time.md states for a steady drift.
#[test]
fn a_steady_drift_is_held_within_the_stated_bound() {
    for drift in [|_| 0.0, |t| 20e-6 * t, |t| -100e-6 * t, |t| 400e-6 * t] as [fn(f64) -> f64; 4] {
        for khz in [1_000_000, 156_250] {
            let mut world = World {
                khz,
                ..World::new(drift)
            };
            let (keeper, errors) = run(&mut world, FORMS[0], true, 60);
            let ppm = drift(1e6);
            let unknown = drift(0.12e9).abs() as u64 + UNCERTAIN + 7;
            let first = worst(&errors[..6], 0);
            assert!(first <= unknown, "{ppm} ppm: {first} ns at first");
            let early = worst(&errors, 0);
            assert!(
                early <= unknown + 20_000 + 3 * UNCERTAIN,
                "{ppm} ppm: {early} ns"
            );
            let settled = worst(&errors, 10 * SECOND);
            assert!(settled <= 3 * UNCERTAIN, "{ppm} ppm: {settled} ns");
            let report = keeper.report();
            assert!((report.drift_ppm - ppm).abs() < 0.2, "{report:?}");
            assert_eq!(
                (report.jumps, report.missed, report.uncertainty_ns),
                (0, 0, UNCERTAIN)
            );
            assert!((58..=60).contains(&report.looks), "{report:?}");
            let off = ahead(world.nic_ns(60 * SECOND), world.system_ns(60 * SECOND));
            let error = (report.offset_ns - off).unsigned_abs();
            assert!(
                error <= UNCERTAIN + drift(SECOND as f64).abs() as u64,
                "{report:?}"
            );
        }
    }
}

/// A software NIC on a loaded machine updates its clock at irregular intervals.
#[test]
fn late_answers_are_distinguished_from_slow_clocks() {
    for ppm in [|t| 100e-6 * t, |t| -100e-6 * t] as [fn(f64) -> f64; 2] {
        let mut world = World::new(ppm);
        let late = |t: u64| match t / LOOK % 7 {
            3 => 2_000,
            other => 4_000_000 + other * 1_000_000,
        };
        let (keeper, errors) = run_late(&mut world, FORMS[0], true, 60, late);
        let settled = worst(&errors, 15 * SECOND);
        assert!(settled <= 2_000 + 3 * UNCERTAIN, "{settled}");
        assert_eq!(keeper.report().jumps, 0);
    }
}

#[test]
fn a_varying_rate_adds_its_change_over_some_seconds() {
    // 10 ppm up and down within ten minutes, like a card that warms up and cools down: 0.1 ppm per
    // second.
    const PERIOD: f64 = 600e9 / std::f64::consts::TAU;
    let drift = |t: f64| 10e-6 * PERIOD * (1.0 - (t / PERIOD).cos());
    let (_, errors) = run(&mut World::new(drift), FORMS[0], true, 120);
    let settled = worst(&errors, 10 * SECOND);
    assert!(settled <= 3 * UNCERTAIN + 500, "{settled}");
}

#[test]
fn a_jump_of_the_nic_s_clock_is_removed_at_the_next_reading() {
    for jump in [
        -60 * SECOND as i64,
        -5_000_000,
        5_000_000,
        60 * SECOND as i64,
    ] {
        let mut world = World::new(|t| 50e-6 * t);
        world.jump = Some((20 * SECOND, jump));
        let (keeper, errors) = run(&mut world, FORMS[0], true, 40);
        let report = keeper.report();
        assert_eq!(report.jumps, 1);
        assert!(
            (report.jumped_ns - jump).unsigned_abs() < 100_000,
            "{report:?}"
        );
        let settled = worst(&errors, 30 * SECOND);
        assert!(settled <= 3 * UNCERTAIN, "{jump}: {settled}");
        assert!(report.worst_error_ns < 100_000, "{report:?}");
        let between = errors
            .iter()
            .find(|(t, _)| *t >= 20 * SECOND)
            .expect("at least one");
        let until_then = (between.1 - jump).unsigned_abs();
        assert!(
            until_then < 100_000 + jump.unsigned_abs() / 1000,
            "{between:?}"
        );
    }
}

#[test]
fn a_host_s_clock_that_is_set_is_followed_without_stepping_back() {
    for (set, within) in [
        (3_600 * SECOND as i64, Some(SECOND)),
        (200_000, Some(10 * SECOND)),
        (-200_000, Some(10 * SECOND)),
        (-3_600 * SECOND as i64, None),
    ] {
        let mut world = World::new(|t| 50e-6 * t);
        world.set = Some((20 * SECOND, set));
        let (keeper, errors) = run(&mut world, FORMS[0], true, 60);
        assert_eq!(keeper.report().jumps, 0, "the NIC's clock did not jump");
        match within {
            Some(within) => {
                let settled = worst(&errors, 21 * SECOND + within);
                assert!(settled <= 4 * UNCERTAIN, "{set}: {settled}");
            }
            None => assert!(
                worst(&errors, 59 * SECOND) < 3_600 * SECOND,
                "the line follows the host's clock"
            ),
        }
    }
}

#[test]
fn set_clocks_are_distinguished() {
    for (host, nic, expected) in [
        (-7_000_000, 9_000_000, (-7_000_000, 9_000_000)),
        (9_000_000, -7_000_000, (9_000_000, -7_000_000)),
        (0, -30_000_000, (0, -30_000_000)),
        (8_000_000, 0, (8_000_000, 0)),
        // A rate may explain this difference.
        (900_000, 900_000, (0, 0)),
    ] {
        let mut world = World::new(|_| 0.0);
        let mut keeper = ClockDiscipline::new(FORMS[0], world.khz, true, world.reading(0));
        world.set = Some((SECOND / 2, host));
        world.jump = Some((SECOND / 2, nic));
        let mut found = (0, 0);
        for t in (LOOK..4 * SECOND).step_by(LOOK as usize) {
            let disturbance = keeper.update(&world.reading(t)).unwrap_or_default();
            found = (found.0 + disturbance.host_ns, found.1 + disturbance.nic_ns);
        }
        let off = |a: i64, b: i64| (a - b).unsigned_abs() > 10_000;
        assert!(
            !off(found.0, expected.0) && !off(found.1, expected.1),
            "{found:?} of {expected:?}"
        );
    }
}

#[test]
fn the_nic_s_own_clock_is_not_corrected() {
    for form in FORMS {
        let mut world = World::new(|t| 100e-6 * t);
        world.jump = Some((20 * SECOND, 5 * SECOND as i64));
        let (keeper, errors) = run(&mut world, form, false, 40);
        for (t, error) in errors {
            let own = ahead(world.nic_ns(t), world.system_ns(t));
            assert!((error - own).abs() < 1_000, "{t}: {error} of {own}");
        }
        assert_eq!(keeper.report().jumps, 1);
        // Real-time stamps are of another clock: a stamp far from the reading is written to files
        // unchanged.
        let utc = world.nic_ns(40 * SECOND) - 3_600 * SECOND;
        if form == StampForm::RealTime {
            assert_eq!(keeper.line().ns(real_time(utc)), utc);
            assert_eq!(keeper.report().worst_error_ns, 0, "an unreadable clock");
        }
    }
}

#[test]
fn without_the_driver_s_clock_info_ticks_have_the_nominal_rate() {
    let mut world = World::new(|t| 100e-6 * t);
    let bare = |mut it: ClockReading| {
        it.nic = None;
        it
    };
    let mut keeper = ClockDiscipline::new(FORMS[0], world.khz, false, bare(world.reading(0)));
    let taken = keeper.update(&bare(world.reading(SECOND)));
    assert_eq!(taken, Some(Disturbance::default()));
    assert_eq!(keeper.line().latest(0), u64::MAX);
    let off = ahead(keeper.line().ns(world.ticks(SECOND)), EPOCH + SECOND);
    assert!(off.abs_diff(100_000) <= 2 * UNCERTAIN, "{off}");
    assert!(keeper.report().offset_ns.abs_diff(100_000) <= 2 * UNCERTAIN);
    // Real-time stamps without clock info give no usable reading.
    let mut keeper = ClockDiscipline::new(FORMS[1], 1, false, bare(world.reading(0)));
    assert_eq!(keeper.update(&bare(world.reading(SECOND))), None);
    assert_eq!((keeper.report().looks, keeper.report().missed), (0, 1));
}

#[test]
fn the_line_of_text_has_one_length() {
    let long = ClockReport {
        offset_ns: i64::MIN,
        drift_ppm: f64::MIN,
        worst_error_ns: u64::MAX,
        looks: u64::MAX,
        jumps: u64::MAX,
        ..ClockReport::default()
    };
    assert_eq!(long.line().len(), ClockReport::default().line().len());
    let known = ClockReport {
        offset_ns: -1234,
        ..ClockReport::default()
    };
    assert!(known.line().contains(" -1234 ns"), "{}", known.line());
}
