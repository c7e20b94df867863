//! `wqcap bench capture`: what a queue's core pays for a frame that is written: poll, time stamp, parse of the 5-tuple,
//! copy into a block, submission, repost. The thread's own CPU time counts; the disk has a thread of its own.
//!
//! Rings are filled before, with the queue's loop held back, and then the rules are taken away, so that neither the wire
//! nor the NIC is in the figures. The baseline is the same loop with frames parsed and counted only.

use super::{
    files,
    report::{BenchReport, Measured},
    rounds::{FILLING, Round, drain, plan},
};
use crate::{args::BenchCaptureArgs, cmd::check::enter_model, failure::Failure};
use std::{hint::black_box, path::Path};
use wqcap_engine::{
    frame::Headers,
    pipeline::{Consumer, Frame, Verdict},
    plan::Plan,
    sink::Count,
};

/// Drains rings into a file and into nothing, in turn, and prints the ratio.
pub fn capture(args: &BenchCaptureArgs) -> Result<(), Failure> {
    if args.device.is_none() {
        let wire = format!("synth:size={},flows=256,pps={FILLING}", args.frame);
        enter_model(Some(&wire), &[])?;
    }
    let scratch = files::scratch(&args.dir)?;
    let receive = [("capture.receive", args.receive.to_string())];
    let plan = plan(1, args.device.as_deref(), &receive)?;
    let (mut pairs, mut frames) = (Vec::new(), 0);
    for _ in 0..args.common.repeats {
        let counted = drain(&plan, args.frame, args.rounds, vec![Parsed(Count)])?;
        frames = counted.frames;
        let ours = to_files(&plan, args, scratch.path())?;
        pairs.push((ours.mean_ns(), counted.mean_ns()));
    }
    let name = format!("capture/pcap/{}B/1q", args.frame);
    let (ours, counted): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
    let result = Measured::of(name, "count", &pairs)
        .with("frames", frames)
        .with("repeats", args.common.repeats)
        .with("ns", ours)
        .with("baseline_ns", counted);
    BenchReport::new(vec![result]).print(args.common.json)
}

fn to_files(plan: &Plan, args: &BenchCaptureArgs, dir: &Path) -> Result<Round, Failure> {
    let (writer, sink) = files::start(dir, plan.ring.longest() as usize)?;
    let round = drain(plan, args.frame, args.rounds, vec![Parsed(sink)])?;
    for file in files::finish(writer)? {
        files::remove(&file)?;
    }
    Ok(round)
}

/// A consumer whose frames' headers are looked at first.
struct Parsed<C>(C);

impl<C: Consumer> Consumer for Parsed<C> {
    #[inline]
    fn frame(&mut self, frame: Frame<'_>) -> Verdict {
        black_box(Headers::parse(frame.bytes).tuple);
        self.0.frame(frame)
    }

    #[inline]
    fn batch(&mut self) {
        self.0.batch();
    }

    #[inline]
    fn handled(&mut self) {
        self.0.handled();
    }

    fn idle(&mut self) {
        self.0.idle();
    }
}
