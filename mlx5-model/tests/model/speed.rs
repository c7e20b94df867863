//! Measurements of the model's speed. They need an idle machine, so only `scripts/soak` runs them.

use crate::c_client;
use std::time::Duration;
use wqcap_testkit::{
    Dir, Program, binaries,
    model::model,
    need,
    process::clients::{self, Build},
    skip,
};

/// Minimum ratio of the model's frame rate to that of the spike, the program that it replaces.
const MIN_RATIO: f64 = 1.0;
/// Number of rounds. Each round measures every candidate once.
const ROUNDS: usize = 7;
/// Number of 64-byte frames per measurement.
const FRAMES: &str = "4000000";

/// Formats measurements as `median (minimum to maximum)`.
fn spread(figures: &[f64]) -> String {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len() - 1;
    format!(
        "{:.1} ({:.1} to {:.1})",
        sorted[last / 2],
        sorted[0],
        sorted[last]
    )
}

/// Returns the median.
fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Measures the time per frame of a bare loop over `ibv_poll_cq` with 1 to 16 queues.
#[test]
#[ignore = "a measurement, for an idle machine: scripts/soak runs it"]
fn a_frame_takes_the_same_time_with_1_and_16_queues() {
    const QUEUES: [&str; 5] = ["1", "2", "4", "8", "16"];
    let client = c_client("rate", Build::Plain);
    let client = client.to_str().expect("a plain path");
    let mut figures = [const { Vec::<f64>::new() }; QUEUES.len()];
    for _ in 0..ROUNDS {
        for (figures, queues) in figures.iter_mut().zip(QUEUES) {
            let program = [client, queues, FRAMES, "1"];
            let done = model(&["synth:size=64,flows=256"], &["cpu=0"], program)
                .run()
                .expect(0);
            figures.push(done.stdout.trim().parse().expect("nanoseconds"));
        }
    }
    for (figures, queues) in figures.iter().zip(QUEUES) {
        skip::say(&format!("{queues} queues: {} ns a frame", spread(figures)));
    }
    let one = median(&figures[0]);
    let most = figures.iter().map(|it| median(it)).fold(one, f64::max);
    assert!(
        most <= one * 1.2,
        "{most:.1} ns a frame, {one:.1} ns with one queue"
    );
}

/// Runs the client `t_rss` and returns its rate in millions of frames per second.
fn rate(program: Program) -> f64 {
    let done = program
        .env("BENCH", "1")
        .env("CPU", "1")
        .timeout(Duration::from_secs(60))
        .run()
        .expect(0);
    let words: Vec<_> = done.stdout.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "Mpps");
    words[at.unwrap_or_else(|| panic!("no rate in {done}")) - 1]
        .parse()
        .expect("a rate")
}

/// Compares the model with the spike, the program that it replaces: the same client runs on both in
/// turn, on the same two cores.
#[test]
#[ignore = "a measurement, for an idle machine: scripts/soak runs it"]
fn the_model_is_at_least_as_fast_as_the_spike() {
    let client = need!(clients::theirs("t_rss", Build::Plain));
    let client = client.to_str().expect("a plain path");
    let dir = Dir::new();
    let spike = dir.join("spike.so");
    let _ = Program::new("gcc")
        .args(["-O2", "-march=native", "-shared", "-fPIC", "-w", "-o"])
        .arg(&spike)
        .arg(binaries::root().join("../shared/spike/mlx5emu.c"))
        .args(["-ldl", "-lpthread"])
        .run()
        .expect(0);
    let args = [client, "poll", "1", FRAMES];
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let program = Program::new(client)
            .args(&args[1..])
            .env("LD_PRELOAD", &spike)
            .env("EMU_DIR", dir.join("emu"))
            .env("EMU_FLOWS", "16")
            .env("EMU_CPU", "0");
        theirs.push(rate(program));
        ours.push(rate(model(&["synth:size=64,flows=16"], &["cpu=0"], args)));
    }
    let ratio = median(&ours) / median(&theirs);
    skip::say(&format!(
        "spike {} Mpps, model {} Mpps, ratio {ratio:.2}",
        spread(&theirs),
        spread(&ours)
    ));
    assert!(
        ratio >= MIN_RATIO,
        "ratio {ratio:.2}, at least {MIN_RATIO} expected"
    );
}
