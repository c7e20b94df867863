//! `wqcap bench wake`: what `capture.idle = "sleep"` costs a frame that comes after a pause.
//!
//! Frames that are far apart, each looked at as soon as its loop has it: its age is the system's time then less its
//! stamp. With `spin` the loop is at the ring; with `sleep` the NIC has to wake it.

use super::{
    now_ns,
    report::{BenchReport, Measured},
};
use crate::{
    args::BenchWakeArgs,
    cmd::check,
    failure::Failure,
    term::{output, table::counted},
};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use wqcap_engine::{
    capture::{Capture, Limits},
    config::{Config, Format, Idle},
    pipeline::{Consumer, Frame, Verdict},
};

/// How long frames are waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Captures with both in turn, and prints the difference.
pub fn wake(args: &BenchWakeArgs) -> Result<(), Failure> {
    check::enter_model(args.model.as_deref(), &args.config.model())?;
    let mut config = args.config.load()?;
    config.capture.queues.get_or_insert(1);
    config.output.format = Format::None;
    let (mut pairs, mut extra) = (Vec::new(), Vec::new());
    for _ in 0..args.common.repeats {
        let spin = median_age(&config, Idle::Spin, args.frames)?;
        let sleep = median_age(&config, Idle::Sleep, args.frames)?;
        pairs.push((sleep, spin));
        extra.push(sleep - spin);
    }
    extra.sort_by(f64::total_cmp);
    let result = Measured::of("wake/sleep/1q".into(), "spin", &pairs)
        .with("repeats", args.common.repeats)
        .with("extra_ns", extra.clone());
    BenchReport::new(vec![result]).print(args.common.json)?;
    if args.common.json {
        return Ok(());
    }
    let us = |at: usize| extra[at] / 1000.0;
    output::print(&format!(
        "sleeping adds {:.1} us to the age of a frame after a pause ({:.1} to {:.1})\n",
        us(extra.len() / 2),
        us(0),
        us(extra.len() - 1)
    ))
}

/// The median age of so many frames, in nanoseconds.
fn median_age(config: &Config, idle: Idle, frames: u64) -> Result<f64, Failure> {
    let mut config = config.clone();
    config.capture.idle = Some(idle);
    let plan = check::settle(&mut config)?;
    let ages = Arc::new(Mutex::new(Vec::new()));
    let limits = Limits {
        count: Some(frames),
        duration: Some(PATIENCE),
        ..Limits::default()
    };
    let mut capture = Capture::start_with(&plan, limits, |_| Ages {
        seen: Vec::new(),
        all: Arc::clone(&ages),
    })?;
    while !capture.wait(Instant::now() + Duration::from_secs(1)) {}
    // The loops have ended after this, and handed over what they saw.
    drop(capture.finish());
    let mut ages = ages.lock().map_or_else(|_| Vec::new(), |it| it.clone());
    if (ages.len() as u64) < frames {
        return Err(Failure::failed(format!(
            "{} within {} s, not {frames}: is there traffic?",
            counted(ages.len() as u64, "frame"),
            PATIENCE.as_secs()
        )));
    }
    let middle = ages.len() / 2;
    let (_, median, _) = ages.select_nth_unstable(middle);
    Ok(*median as f64)
}

/// Writes down the age of every frame.
struct Ages {
    seen: Vec<i64>,
    all: Arc<Mutex<Vec<i64>>>,
}

impl Consumer for Ages {
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        self.seen
            .push(now_ns().wrapping_sub(frame.ns).cast_signed());
        Verdict::Captured
    }
}

impl Drop for Ages {
    fn drop(&mut self) {
        if let Ok(mut all) = self.all.lock() {
            all.append(&mut self.seen);
        }
    }
}
