//! Comparison of the inline and the fan-out pipeline, with the same frames and the same work per frame,
//! in alternating runs.
//!
//!     cargo build --release && cargo bench --bench pipeline
//!
//! The bench runs itself again on the software NIC, whose cost per frame is part of both results. A
//! ratio above 1 means that fan-out took longer. Fan-out gains from more cores: the loop, each parser
//! and the software NIC need one each.

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

/// Size of the measurement.
#[derive(Clone, Copy)]
struct Extent {
    frames: u64,
    /// Number of pairs of runs. The result is their median.
    pairs: usize,
}

impl Extent {
    /// Returns the size for `cargo bench`, or a small one for `cargo test --benches`, which only checks
    /// that the bench runs.
    fn from_env() -> Self {
        let (frames, pairs) = match std::env::var_os(CHILD) {
            Some(how) if how == "test" => (20_000, 1),
            _ => (400_000, 7),
        };
        Self { frames, pairs }
    }
}

/// Environment variable of the process on the software NIC: `bench` or `test`.
const CHILD: &str = "PIPELINE_BENCH_CHILD";

/// Consumer that reads each frame `rounds` times.
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

/// Returns the nanoseconds per frame of one run.
fn run(settings: &[(&str, &str)], rounds: u32, frames: u64) -> Result<f64, Box<dyn Error>> {
    let mut config = Config::with_overrides("", settings)?;
    config.set_finite_wire_defaults(true);
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
    let Extent { frames, pairs } = Extent::from_env();
    println!(
        "{frames} frames of 100 bytes, one queue; ratio = fan-out / inline, [min, max] of {pairs} pairs"
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
                "work {rounds:>2}, {parsers} parsers: inline {:>7.1} ns, fan-out {:>7.1} ns per frame, ratio {:.2} [{:.2}, {:.2}]",
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
    // cargo passes `--bench` for `cargo bench`.
    let how = if std::env::args().any(|it| it == "--bench") {
        "bench"
    } else {
        "test"
    };
    // Exec replaces this process.
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
