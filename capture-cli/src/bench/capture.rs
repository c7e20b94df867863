//! `wqcap bench capture`: what a queue's core pays for a frame that is written: poll, time stamp, parse of the 5-tuple,
//! copy into a block, submission, repost. The thread's own CPU time counts; the disk has a thread of its own.
//!
//! Rings are filled before, with the queue's loop held back, and then the rules are taken away, so that neither the wire
//! nor the NIC is in the figures. The baseline is the same loop with frames parsed and counted only.

use super::report::{Measured, Report};
use crate::{
    args::{BenchCaptureArgs, Setting},
    check::{enter_model, settle},
    config,
    failure::Failure,
};
use engine::{
    capture::{Capture, Limits},
    config::Compress,
    frame::Headers,
    pipeline::{Consumer, Frame, Verdict},
    plan::Plan,
    sink::{Count, Files, Keep, OnFull, PcapEncoder, Rotation, Writer},
    stats::Counter,
};
use rustix::time::{ClockId, clock_gettime};
use std::{
    hint::black_box,
    path::Path,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

/// WRs of the ring.
const RING: u64 = 8192;
/// Frames of a round, and a few more: a batch may still be on its way back to the ring when that is filled again, and a
/// batch is held back by whom it is to wait for.
const ROUND: u64 = RING - 256;
/// `output.buffer` by default.
const BUFFER: u64 = 256 << 20;
/// Frames a second that fill the ring: not so many that the wire is in the way of what is measured.
const FILLING: u64 = 1_000_000;
/// How long a ring may take to fill.
const PATIENCE: Duration = Duration::from_secs(20);

/// Drains rings into a file and into nothing, in turn, and prints the ratio.
pub fn capture(args: &BenchCaptureArgs) -> Result<(), Failure> {
    if args.device.is_none() {
        let wire = format!("synth:size={},flows=256,pps={FILLING}", args.frame);
        enter_model(Some(&wire), &[])?;
    }
    let shown = args.dir.display();
    let scratch = tempfile::Builder::new()
        .prefix(".wqcap-bench-")
        .tempdir_in(&args.dir)
        .map_err(|e| Failure::refused(format!("{shown}: {e}")))?;
    let plan = plan(args)?;
    let mut pairs = Vec::new();
    for _ in 0..args.repeats {
        let counted = rounds(&plan, args.rounds, Count)?;
        pairs.push((to_files(&plan, args, scratch.path())?, counted));
    }
    let name = format!("capture/pcap/{}B/1q", args.frame);
    let mut result = Measured::of(name, "count", &pairs);
    let frames = ROUND * u64::from(args.rounds);
    result.more.insert("frames".into(), frames.into());
    result.more.insert("repeats".into(), args.repeats.into());
    let [ours, counted] = [0, 1].map(|i| -> Vec<f64> {
        let of = |pair: &(f64, f64)| [pair.0, pair.1][i];
        pairs.iter().map(of).collect()
    });
    result.more.insert("ns".into(), ours.into());
    result.more.insert("baseline_ns".into(), counted.into());
    Report::new(vec![result]).print(args.json)
}

/// One queue with nothing in its way.
fn plan(args: &BenchCaptureArgs) -> Result<Plan, Failure> {
    let ring = RING.to_string();
    let mut set = vec![
        ("capture.queues", "1"),
        ("capture.ring", &ring),
        ("capture.idle", "spin"),
        ("output.format", "none"),
    ];
    if let Some(device) = &args.device {
        set.push(("device.name", device));
    }
    let set: Vec<_> = set
        .into_iter()
        .map(|(key, value)| Setting {
            key: key.into(),
            value: value.into(),
        })
        .collect();
    settle(&mut config::load(None, &set.iter().collect::<Vec<_>>())?)
}

fn to_files(plan: &Plan, args: &BenchCaptureArgs, dir: &Path) -> Result<f64, Failure> {
    let files = Files {
        dir: dir.to_owned(),
        buffer: BUFFER,
        on_full: OnFull::Hold,
        rotation: Rotation::default(),
        snaplen: 0,
        longest: plan.buffer as usize * plan.max_sge as usize,
        compress: Compress::None,
        spare_cores: Vec::new(),
        keep: Keep::default(),
        hook: None,
        hook_process: None,
        index_dir: None,
    };
    let (writer, mut sinks) = Writer::start(&files, &PcapEncoder::new(0), &[Arc::default()])?;
    let sink = sinks.pop().ok_or_else(|| Failure::failed("no sink"))?;
    let ns = rounds(plan, args.rounds, sink)?;
    let finished = writer.finish();
    if let Some(failure) = finished.failures.first() {
        return Err(Failure::failed(failure.clone()));
    }
    for file in &finished.files {
        let gone = std::fs::remove_file(file);
        gone.map_err(|e| Failure::failed(format!("{}: {e}", file.display())))?;
    }
    Ok(ns)
}

/// Nanoseconds of the queue's thread for a frame: the mean of so many rounds, behind one that warms up.
fn rounds<C: Consumer + 'static>(plan: &Plan, rounds: u32, sink: C) -> Result<f64, Failure> {
    let (go, held) = sync_channel(1);
    let (told, results) = sync_channel(1);
    let measured = Mutex::new(Some(Held {
        sink,
        held,
        told,
        frames: 0,
        began: None,
    }));
    let make = |_| Place(measured.lock().ok().and_then(|mut it| it.take()));
    let mut capture = Capture::start_with(plan, Limits::default(), make)?;
    let mut sum = Round::default();
    let mut done = Ok(());
    for number in 0..=rounds {
        let round = drained(&mut capture, plan, number > 0, &go, &results);
        match round {
            Ok(round) if number > 0 => {
                sum.frames += round.frames;
                sum.ns += round.ns;
            }
            Ok(_) => {}
            Err(e) => {
                done = Err(e);
                break;
            }
        }
    }
    // Before the capture ends, or its loop would be held for ever: what is on the ring is let through.
    drop(go);
    let _ = capture.finish();
    done.map(|()| sum.ns as f64 / sum.frames as f64)
}

/// What a drained ring cost.
#[derive(Clone, Copy, Default)]
struct Round {
    frames: u64,
    ns: u64,
}

/// Fills the ring, takes the rules away, and lets the loop go.
fn drained(
    capture: &mut Capture,
    plan: &Plan,
    again: bool,
    go: &SyncSender<()>,
    results: &Receiver<Round>,
) -> Result<Round, Failure> {
    if again {
        capture.resume(plan)?;
    }
    fill(capture)?;
    capture.pause();
    let stuck = || Failure::failed("the queue's loop has not drained its ring");
    go.send(()).map_err(|_| stuck())?;
    results.recv_timeout(PATIENCE).map_err(|_| stuck())
}

/// Waits until the NIC finds no WR any more.
fn fill(capture: &mut Capture) -> Result<(), Failure> {
    let lost = |capture: &Capture| match capture.snapshot().nic.get("out_of_buffer") {
        Some(Counter::Value(n)) => Some(*n),
        _ => None,
    };
    let Some(before) = lost(capture) else {
        return Err(Failure::refused(
            "out_of_buffer cannot be read: nobody can tell when a ring is full",
        ));
    };
    let deadline = Instant::now() + PATIENCE;
    while lost(capture).is_none_or(|now| now <= before) {
        if Instant::now() >= deadline {
            return Err(Failure::failed(format!(
                "no {RING} frames in {PATIENCE:?}: is there traffic on the port?"
            )));
        }
        let _ = capture.wait(Instant::now() + Duration::from_millis(1));
    }
    Ok(())
}

/// A consumer that holds its loop back until the ring is full, and takes the time of the rest.
struct Held<C> {
    sink: C,
    held: Receiver<()>,
    told: SyncSender<Round>,
    /// Frames of this round so far.
    frames: u64,
    /// The thread's CPU time at its beginning; `None`: it is to be waited for.
    began: Option<u64>,
}

/// A queue's consumer; there is one queue.
struct Place<C>(Option<Held<C>>);

/// Nanoseconds that this thread has run.
fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl<C: Consumer> Consumer for Place<C> {
    #[inline]
    fn frame(&mut self, frame: Frame<'_>) -> Verdict {
        let Some(it) = &mut self.0 else {
            return Verdict::Captured;
        };
        it.frames += 1;
        black_box(Headers::parse(frame.bytes).tuple);
        it.sink.frame(frame)
    }

    #[inline]
    fn batch(&mut self) {
        let Some(it) = &mut self.0 else { return };
        // When nobody is there to say so, there are no more rounds.
        if it.began.is_none() && it.held.recv().is_ok() {
            it.frames = 0;
            it.began = Some(cpu_ns());
        }
        it.sink.batch();
    }

    #[inline]
    fn handled(&mut self) {
        let Some(it) = &mut self.0 else { return };
        it.sink.handled();
        if it.frames >= ROUND
            && let Some(began) = it.began.take()
        {
            let round = Round {
                frames: it.frames,
                ns: cpu_ns() - began,
            };
            let _ = it.told.send(round);
        }
    }

    fn idle(&mut self) {
        if let Some(it) = &mut self.0 {
            it.sink.idle();
        }
    }
}
