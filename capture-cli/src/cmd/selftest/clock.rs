//! Drift of the device's clock against the host's clock, and the PCIe link of the device.

use super::run::SelftestRun;
use std::{
    fs, thread,
    time::{Duration, Instant},
};
use wqcap_engine::device::{DeviceCaps, DeviceFacts};

/// Number of readings of the device's clock. The best one counts, because some are not interrupted.
const TRIES: usize = 32;
/// Time limit for all readings of the device's clock.
const MOST: Duration = Duration::from_secs(5);
/// Reason in a clock finding that the device's clock cannot be read.
const CLOCK_STANDS: &str = "the device's counter cannot be read, or does not advance";
/// Maximum delay with which the thread of the software NIC writes the device's counter.
const MODEL: Duration = Duration::from_millis(1);
/// Interval at which the measurement of the drift checks for a signal.
const TICK: Duration = Duration::from_millis(20);

/// Reading of the device's counter, with the host time at which it was read.
struct CounterReading {
    /// Value of the device's counter, in ticks.
    ticks: u64,
    /// Host time at which the device's counter was read.
    at: Instant,
    /// Uncertainty of the host time at which the device's counter was read.
    within: Duration,
}

/// Returns the best of several readings of the device's counter: of the fastest ones, the one with
/// the highest counter. A counter that is unchanged since the previous reading is read at its next
/// change. (A thread writes the counter of the software NIC.)
fn reading(run: &mut SelftestRun, caps: &DeviceCaps) -> Option<CounterReading> {
    let began = Instant::now();
    let first = run.context.query_clock().ok()?;
    let (mut last, mut all) = ((first, began), Vec::new());
    while all.len() < TRIES {
        if began.elapsed() > MOST || run.is_over() {
            return None;
        }
        let before = Instant::now();
        let ticks = run.context.query_clock().ok()?;
        if ticks != last.0 {
            let within = last.1.elapsed();
            let at = last.1 + within / 2;
            all.push(CounterReading { ticks, at, within });
        }
        last = (ticks, before);
    }
    let quickest = all.iter().map(|it| it.within).min()?;
    let ahead = |it: &CounterReading| {
        let ticks = it.ticks.wrapping_sub(first) & caps.timestamp_mask;
        ticks as f64 / caps.clock_khz as f64 * 1e6 - (it.at - began).as_nanos() as f64
    };
    all.into_iter()
        .filter(|it| it.within <= 2 * quickest)
        .max_by(|a, b| ahead(a).total_cmp(&ahead(b)))
}

/// Measures by how much the device's clock is faster than its nominal rate, compared with the
/// host's clock.
pub fn drift(run: &mut SelftestRun, device: &DeviceFacts, time: Duration) {
    let (subject, id) = ("clock_drift", "clock/faster than nominal");
    let caps = &device.caps;
    let Some(first) = reading(run, caps).filter(|_| caps.clock_khz > 0) else {
        run.record_not_asked(subject, id, CLOCK_STANDS);
        return;
    };
    run.announce(&format!(
        "measuring the drift of the device's clock for {time:?}"
    ));
    // The difference is modulo the counter's bits. The counter may wrap many times, but not twice
    // between two readings.
    let (mut ticks, mut counted) = (0, first.ticks);
    let mut count = |now: u64| {
        ticks += now.wrapping_sub(counted) & caps.timestamp_mask;
        counted = now;
        ticks
    };
    while first.at.elapsed() < time {
        if run.is_lost() {
            return;
        }
        thread::sleep(TICK.min(time));
        if let Ok(now) = run.context.query_clock() {
            count(now);
        }
    }
    let Some(last) = reading(run, caps) else {
        if !run.is_lost() {
            run.record_not_asked(subject, id, CLOCK_STANDS);
        }
        return;
    };
    let ticks = count(last.ticks);
    let host = (last.at - first.at).as_secs_f64();
    let shown = ticks as f64 / (caps.clock_khz as f64 * 1e3);
    let mut within = first.within + last.within;
    if device.software {
        within += MODEL;
    }
    let uncertainty = within.as_secs_f64() / host;
    // adjtimex(2) can adjust the host's clock by up to 500 ppm, but in practice the adjustment is
    // smaller.
    let uncertainty = uncertainty * 1e6 + 100.0;
    run.measured(
        subject,
        id,
        (shown / host - 1.0) * 1e6,
        "ppm",
        Some(uncertainty),
    );
}

/// Records the speed and width of the device's PCIe link.
#[expect(clippy::disallowed_methods, reason = "a file of sysfs")]
pub fn link(run: &mut SelftestRun) {
    for file in [
        "current_link_speed",
        "current_link_width",
        "max_link_speed",
        "max_link_width",
    ] {
        let path = format!("/sys/class/infiniband/{}/device/{file}", run.context.name());
        let value = fs::read_to_string(path).ok();
        let value = value.map(|text| text.trim().to_owned());
        run.value("pcie", &format!("pcie/{file}"), value);
    }
}
