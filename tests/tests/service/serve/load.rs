//! Clients beside a capture at a high rate. `scripts/soak` runs these on an idle machine.

use super::{Answer, Service, serve};
use std::{
    fs, thread,
    time::{Duration, Instant},
};
use wqcap_tests::{Dir, Wqcap, binaries, ledger::number};

/// Number of clients at the same time.
const CLIENTS: usize = 64;
/// Duration of a round.
const ROUND: Duration = Duration::from_secs(10);
/// Frames per second.
const RATE: u64 = 200_000;
/// Bytes of memory of a request, at most.
const OF_REQUEST: u64 = 64 << 20;

/// Result of a round.
#[derive(Debug)]
struct Round {
    received: u64,
    lost: u64,
    answers: usize,
    refused: usize,
    bytes: u64,
    /// Largest resident memory of the service in bytes.
    memory: u64,
}

/// Captures at the full rate, with clients or without.
fn round(clients: usize) -> Round {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "live")
        .model(&format!("synth:size=200,flows=256,proto=mix,pps={RATE}"))
        .queues(1)
        .sets(&[
            "output.format=pcapng",
            "output.rotate_size=64MB",
            "capture.ring=4096",
            "output.buffer=64MiB",
        ])
        .control();
    let mut running = run.start();
    let _ = run.ctl().until_counted(&mut running, "captured", RATE);
    let service = Service::start(&serve(run.out_path(), []));
    let url = format!(
        "{}/api/v1/packets?limit_bytes=50000000&filter=udp",
        service.url
    );
    let until = Instant::now() + ROUND;
    let before = run.ctl().capture()["ledger"].clone();
    let answers: Vec<Answer> = thread::scope(|scope| {
        let asked: Vec<_> = (0..clients)
            .map(|_| {
                scope.spawn(|| {
                    let mut answers = Vec::new();
                    while Instant::now() < until {
                        let mut answer = Answer::of(&url, &[]);
                        answer.body = (answer.body.len() as u64).to_string().into_bytes();
                        if answer.status == 429 {
                            thread::sleep(Duration::from_millis(200));
                        }
                        answers.push(answer);
                    }
                    answers
                })
            })
            .collect();
        asked
            .into_iter()
            .flat_map(|it| it.join().expect("joined"))
            .collect()
    });
    thread::sleep(until.saturating_duration_since(Instant::now()));
    let after = run.ctl().capture()["ledger"].clone();
    let grown = |line: &str| number(&after[line]) - number(&before[line]);
    let status =
        fs::read_to_string(format!("/proc/{}/status", service.run.pid())).expect("a status");
    let peak = status
        .lines()
        .find_map(|it| it.strip_prefix("VmHWM:"))
        .expect("a peak");
    let peak: u64 = peak
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    let _ = service.stop();
    let _ = run.ctl().run(&["shutdown"]).expect(0);
    let _ = running.wait().expect(0);
    let bytes = |it: &&Answer| it.text().parse::<u64>().unwrap_or(0);
    Round {
        received: grown("received"),
        lost: grown("dropped_storage") + grown("dropped_pipeline") + grown("errors"),
        answers: answers.iter().filter(|it| it.status == 200).count(),
        refused: answers.iter().filter(|it| it.status == 429).count(),
        bytes: answers
            .iter()
            .filter(|it| it.status == 200)
            .map(|it| bytes(&it))
            .sum(),
        memory: peak << 10,
    }
}

/// Pairs of rounds without and with clients.
#[test]
#[ignore = "needs an idle machine, a release build and minutes; scripts/soak runs it"]
fn clients_cost_the_capture_no_frames() {
    let _ = binaries::dir();
    for n in 0..5 {
        let (without, with) = (round(0), round(CLIENTS));
        for (it, clients) in [(&without, 0), (&with, CLIENTS)] {
            println!(
                "round {n}, {clients} clients: {} of {} frames lost; {} answers of {} bytes, {} refused; {} bytes of memory",
                it.lost, it.received, it.answers, it.bytes, it.refused, it.memory
            );
        }
        assert!(with.answers > 0, "{with:?}");
        assert!(with.memory < 8 * OF_REQUEST + (64 << 20), "{with:?}");
        let share = |it: &Round| it.lost as f64 / it.received.max(1) as f64;
        assert!(
            share(&with) <= share(&without) + 0.001,
            "{without:?} {with:?}"
        );
    }
}
