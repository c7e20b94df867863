//! Inline against fan-out: the same frames, the same work on each, in turn within one run.
//!
//!     cargo build --release && cargo bench --bench pipeline
//!
//! It runs itself again on the software NIC, whose own cost per frame is part of both sides. A ratio above 1 means that
//! fan-out took longer. It gains by cores: a loop, its parsers and the software NIC each want one.

use engine::{
    capture::{Capture, Limits},
    config::{Config, OnPortDown},
    device,
    pipeline::{Consumer, Frame, Verdict},
    plan::Plan,
};
use std::{
    error::Error,
    hint::black_box,
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

const FRAMES: u64 = 400_000;
/// Pairs of runs; the median counts.
const PAIRS: usize = 7;

/// Reads each frame over and over.
struct Work {
    rounds: u32,
}

impl Consumer for Work {
    #[inline]
    fn frame(&mut self, frame: Frame<'_>) -> Verdict {
        for _ in 0..self.rounds {
            black_box(
                frame
                    .bytes
                    .iter()
                    .fold(0u64, |sum, it| sum.rotate_left(5) ^ u64::from(*it)),
            );
        }
        Verdict::Captured
    }
}

/// Nanoseconds per frame of one run.
fn run(settings: &[(&str, &str)], rounds: u32) -> Result<f64, Box<dyn Error>> {
    let mut config = Config::with_overrides("", settings)?;
    config.for_finite_wire(true);
    config.capture.on_port_down = Some(OnPortDown::Wait);
    let plan = Plan::new(&config, &device::list()?)?;
    let limits = Limits {
        count: Some(FRAMES),
        duration: None,
    };
    let mut capture = Capture::start_with(&plan, limits, |_| Work { rounds })?;
    let begun = Instant::now();
    while !capture.wait(Instant::now() + Duration::from_millis(1)) {}
    let took = begun.elapsed();
    let report = capture.finish();
    report.queues.iter().try_for_each(|it| it.check())?;
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    let per_frame = took.as_nanos() as f64 / FRAMES as f64;
    Ok(per_frame)
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn compare() -> Result<(), Box<dyn Error>> {
    let base = [("capture.queues", "1"), ("output.format", "none")];
    println!(
        "{FRAMES} frames of 100 bytes, one queue; ratio = fan-out / inline, [least, most] of {PAIRS} pairs"
    );
    for rounds in [0, 1, 10] {
        for parsers in ["1", "2"] {
            let fanout = [
                ("pipeline.mode", "fanout"),
                ("pipeline.parsers_per_queue", parsers),
            ];
            let fanout = [&base[..], &fanout].concat();
            let (mut inline, mut fanned, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..PAIRS {
                let (one, other) = (run(&base, rounds)?, run(&fanout, rounds)?);
                inline.push(one);
                fanned.push(other);
                ratios.push(other / one);
            }
            ratios.sort_by(f64::total_cmp);
            println!(
                "work {rounds:>2}, {parsers} parsers: inline {:>7.1} ns, fan-out {:>7.1} ns a frame, ratio {:.2} [{:.2}, {:.2}]",
                median(inline),
                median(fanned),
                ratios[PAIRS / 2],
                ratios[0],
                ratios[PAIRS - 1]
            );
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os("PIPELINE_BENCH_CHILD").is_some() {
        return compare();
    }
    let exe = std::env::current_exe()?;
    let wqcap = exe.ancestors().nth(2).map(|profile| profile.join("wqcap"));
    let Some(wqcap) = wqcap.filter(|it| Path::is_file(it)) else {
        return Err("build the binaries first: cargo build --release".into());
    };
    // It replaces this process.
    let failed = Command::new(wqcap)
        .args([
            "model",
            "--set",
            "caps=all",
            "--wire",
            "synth:size=100,flows=1024,count=1000000000",
        ])
        .arg("--")
        .arg(exe)
        .env("PIPELINE_BENCH_CHILD", "1")
        .exec();
    Err(failed.into())
}
