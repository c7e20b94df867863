//! Inline against fan-out: the same frames, the same work on each, in turn within one run.
//!
//!     cargo build --release && cargo bench --bench pipeline
//!
//! It runs itself again on the software NIC, whose own cost per frame is part of both sides. A ratio above 1 means that
//! fan-out took longer. It gains by cores: a loop, its parsers and the software NIC each want one.

use std::{
    error::Error,
    hint::black_box,
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};
use wqcap_engine::{
    capture::{Capture, Limits},
    config::{Config, OnPortDown},
    device,
    pipeline::{Consumer, Frame, Verdict},
    plan::Plan,
};

/// How much is measured.
#[derive(Clone, Copy)]
struct Extent {
    frames: u64,
    /// Pairs of runs; the median counts.
    pairs: usize,
}

impl Extent {
    /// As `cargo bench` wants it, or `cargo test --benches`, which only looks whether all of it runs.
    fn wanted() -> Self {
        let (frames, pairs) = match std::env::var_os(CHILD) {
            Some(how) if how == "test" => (20_000, 1),
            _ => (400_000, 7),
        };
        Self { frames, pairs }
    }
}

/// Set for the one that runs on the software NIC: `bench` or `test`.
const CHILD: &str = "PIPELINE_BENCH_CHILD";

/// Reads each frame over and over.
struct Work {
    rounds: u32,
}

impl Consumer for Work {
    #[inline]
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
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
fn run(settings: &[(&str, &str)], rounds: u32, frames: u64) -> Result<f64, Box<dyn Error>> {
    let mut config = Config::with_overrides("", settings)?;
    config.for_finite_wire(true);
    config.capture.on_port_down = Some(OnPortDown::Wait);
    let plan = Plan::new(&config, &device::list()?)?;
    let limits = Limits {
        count: Some(frames),
        ..Limits::default()
    };
    let mut capture = Capture::start_with(&plan, limits, |_| Work { rounds })?;
    let begun = Instant::now();
    while !capture.wait(Instant::now() + Duration::from_millis(1)) {}
    let took = begun.elapsed();
    let report = capture.finish();
    report.queues.iter().try_for_each(|it| it.check())?;
    let per_frame = took.as_nanos() as f64 / frames as f64;
    Ok(per_frame)
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn compare() -> Result<(), Box<dyn Error>> {
    let base = [("capture.queues", "1"), ("output.format", "none")];
    let Extent { frames, pairs } = Extent::wanted();
    println!(
        "{frames} frames of 100 bytes, one queue; ratio = fan-out / inline, [least, most] of {pairs} pairs"
    );
    for rounds in [0, 1, 10] {
        for parsers in ["1", "2"] {
            let fanout = [
                ("pipeline.mode", "fanout"),
                ("pipeline.parsers_per_queue", parsers),
            ];
            let fanout = [&base[..], &fanout].concat();
            let (mut inline, mut fanned, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..pairs {
                let (one, other) = (run(&base, rounds, frames)?, run(&fanout, rounds, frames)?);
                inline.push(one);
                fanned.push(other);
                ratios.push(other / one);
            }
            ratios.sort_by(f64::total_cmp);
            println!(
                "work {rounds:>2}, {parsers} parsers: inline {:>7.1} ns, fan-out {:>7.1} ns a frame, ratio {:.2} [{:.2}, {:.2}]",
                median(inline),
                median(fanned),
                ratios[pairs / 2],
                ratios[0],
                ratios[pairs - 1]
            );
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os(CHILD).is_some() {
        return compare();
    }
    let exe = std::env::current_exe()?;
    let wqcap = exe.ancestors().nth(2).map(|profile| profile.join("wqcap"));
    let Some(wqcap) = wqcap.filter(|it| Path::is_file(it)) else {
        return Err("build the binaries first: cargo build --release".into());
    };
    // cargo says which of the two it runs.
    let how = if std::env::args().any(|it| it == "--bench") {
        "bench"
    } else {
        "test"
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
        .env(CHILD, how)
        .exec();
    Err(failed.into())
}
