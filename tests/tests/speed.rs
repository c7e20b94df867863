//! How fast the model is, which only an otherwise idle machine can tell: `scripts/soak` runs this.

use std::time::Duration;
use wqcap_tests::{
    Dir, Program, binaries, need,
    process::clients::{self, Build},
    skip,
    wqcap::model,
};

/// Of the rate of the program it replaces, what the model reaches at least.
const LEAST: f64 = 1.0;
/// Rounds, in each of which everything that is compared has its turn.
const ROUNDS: usize = 7;
/// 64-byte frames of a turn.
const FRAMES: &str = "4000000";

/// `middle (least to most)`
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

fn middle(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// What a frame costs through any number of queues, as a bare loop over `ibv_poll_cq` sees it.
#[test]
#[ignore = "a measurement, for an idle machine: scripts/soak runs it"]
fn a_frame_costs_the_same_through_1_and_16_queues() {
    const QUEUES: [&str; 5] = ["1", "2", "4", "8", "16"];
    let client = clients::ours("rate", Build::Plain);
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
    let one = middle(&figures[0]);
    let most = figures.iter().map(|it| middle(it)).fold(one, f64::max);
    assert!(most <= one * 1.2, "{most:.1} ns, {one:.1} with one queue");
}

/// Frames per second of `t_rss`, in millions.
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

/// Beside the program that the model replaces: the same client, in turns, on the same two cores.
#[test]
#[ignore = "a measurement, for an idle machine: scripts/soak runs it"]
fn the_model_beside_the_spike() {
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
    let ratio = middle(&ours) / middle(&theirs);
    skip::say(&format!(
        "spike {} Mpps, model {} Mpps, ratio {ratio:.2}",
        spread(&theirs),
        spread(&ours)
    ));
    assert!(ratio >= LEAST, "{ratio:.2}");
}
