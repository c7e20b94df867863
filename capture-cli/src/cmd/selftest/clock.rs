//! The device's clock against the host's, and the slot it sits in.

use super::run::Run;
use std::{
    fs, thread,
    time::{Duration, Instant},
};
use wqcap_engine::device::{DeviceCaps, DeviceFacts};

/// Readings of which the best counts: by then some were made without an interruption.
const TRIES: usize = 32;
/// How long they may take.
const MOST: Duration = Duration::from_secs(5);
/// Why there is no reading.
const CLOCK_STANDS: &str = "the device's counter cannot be read, or stands still";
/// How late the software NIC's thread may write its counter.
const MODEL: Duration = Duration::from_millis(1);
/// How often a signal is looked for.
const TICK: Duration = Duration::from_millis(20);

/// A reading of the device's counter, when it was made, and how long it took.
struct Reading {
    ticks: u64,
    at: Instant,
    within: Duration,
}

/// The best of some readings: of those that were made quickest, the one that shows most. A counter that stands still
/// between two (the software NIC's is written by its thread) is read at its next change.
fn reading(run: &mut Run, caps: &DeviceCaps) -> Option<Reading> {
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
            all.push(Reading { ticks, at, within });
        }
        last = (ticks, before);
    }
    let quickest = all.iter().map(|it| it.within).min()?;
    let ahead = |it: &Reading| {
        let ticks = it.ticks.wrapping_sub(first) & caps.timestamp_mask;
        ticks as f64 / caps.clock_khz as f64 * 1e6 - (it.at - began).as_nanos() as f64
    };
    all.into_iter()
        .filter(|it| it.within <= 2 * quickest)
        .max_by(|a, b| ahead(a).total_cmp(&ahead(b)))
}

/// How much faster than its nominal rate the device's clock runs, by the host's.
pub fn drift(run: &mut Run, device: &DeviceFacts, time: Duration) {
    let (subject, id) = ("clock_drift", "clock/faster than nominal");
    let caps = &device.caps;
    let Some(first) = reading(run, caps).filter(|_| caps.clock_khz > 0) else {
        run.not_asked(subject, id, CLOCK_STANDS);
        return;
    };
    run.say(&format!("measuring the clock's drift for {time:?}"));
    // Modulo the counter's bits: it may wrap many times, but not twice between two looks.
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
            run.not_asked(subject, id, CLOCK_STANDS);
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
    // The host's own clock may be steered by 500 ppm (adjtimex(2)), but is not in practice.
    let uncertainty = uncertainty * 1e6 + 100.0;
    run.measured(
        subject,
        id,
        (shown / host - 1.0) * 1e6,
        "ppm",
        Some(uncertainty),
    );
}

/// The PCIe link.
#[expect(clippy::disallowed_methods, reason = "a file of sysfs")]
pub fn link(run: &mut Run) {
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
