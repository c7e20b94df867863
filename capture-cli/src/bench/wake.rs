//! `wqcap bench wake`: measures what `capture.idle = "sleep"` costs a frame that arrives after a
//! pause.
//!
//! The age of a frame is the system time when its loop receives the frame, minus its time stamp.
//! The frames are far apart. With `spin` the loop polls the ring all the time; with `sleep` the NIC
//! has to wake it.

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
    filter::FilterCompiler,
    pipeline::{Consumer, Frame, Verdict},
};

/// Time limit for receiving all frames of a capture of the benchmark.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `wqcap bench wake`: captures with `capture.idle` "spin" and "sleep" in turn, and prints the
/// difference between the ages of the frames.
pub fn wake(args: &BenchWakeArgs) -> Result<(), Failure> {
    check::enter_model(args.model.as_slice(), &args.config.model())?;
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
    let result = Measured::from_pairs("wake/sleep/1q".into(), "spin", &pairs)
        .with("repeats", args.common.repeats)
        .with("extra_ns", extra.clone());
    BenchReport::new(vec![result]).print(args.common.json)?;
    if args.common.json {
        return Ok(());
    }
    let us = |at: usize| extra[at] / 1000.0;
    output::print(&format!(
        "a sleeping receive loop adds {:.1} us to the age of a frame after a pause (range: {:.1} to {:.1} us)\n",
        us(extra.len() / 2),
        us(0),
        us(extra.len() - 1)
    ))
}

/// Measures the median age of `frames` frames when the receive loop gets them, in nanoseconds.
fn median_age(config: &Config, idle: Idle, frames: u64) -> Result<f64, Failure> {
    let mut config = config.clone();
    config.capture.idle = Some(idle);
    let plan = check::settle(&mut config, &FilterCompiler::default())?;
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
    // After this the loops have ended, and their ages are complete.
    drop(capture.finish());
    let mut ages = ages.lock().map_or_else(|_| Vec::new(), |it| it.clone());
    if (ages.len() as u64) < frames {
        return Err(Failure::failed(format!(
            "the capture received {} within {} s instead of {frames}; check that the port has traffic",
            counted(ages.len() as u64, "frame"),
            PATIENCE.as_secs()
        )));
    }
    let middle = ages.len() / 2;
    let (_, median, _) = ages.select_nth_unstable(middle);
    Ok(*median as f64)
}

/// Frame consumer that records the age of every frame of a queue.
struct Ages {
    /// Ages of the frames of one queue so far, in nanoseconds.
    seen: Vec<i64>,
    /// Ages of the frames of all queues, in nanoseconds.
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
