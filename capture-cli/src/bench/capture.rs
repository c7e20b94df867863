//! `wqcap bench capture`: what a queue's core pays for a frame that is written: poll, time stamp, parse of the 5-tuple,
//! copy into a block, submission, repost. The thread's own CPU time counts; the disk has a thread of its own.
//!
//! Rings are filled before, with the queue's loop held back, and then the rules are taken away, so that neither the wire
//! nor the NIC is in the figures. The baseline is the same loop with frames parsed and counted only.

use super::{
    report::{BenchReport, Measured},
    rounds::{FILLING, ROUND, mean_ns, plan},
};
use crate::{args::BenchCaptureArgs, cmd::check::enter_model, failure::Failure};
use std::{hint::black_box, path::Path, sync::Arc};
use wqcap_engine::{
    frame::Headers,
    pipeline::{Consumer, Frame, Verdict},
    plan::{OutputPlan, Plan},
    sink::{Count, Files, PcapEncoder, Writer},
};

/// `output.buffer` by default.
const BUFFER: u64 = 256 << 20;

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
    let plan = plan(1, args.device.as_deref(), &[])?;
    let mut pairs = Vec::new();
    for _ in 0..args.repeats {
        let counted = mean_ns(&plan, args.rounds, vec![Parsed(Count)])?;
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
    BenchReport::new(vec![result]).print(args.json)
}

fn to_files(plan: &Plan, args: &BenchCaptureArgs, dir: &Path) -> Result<f64, Failure> {
    let files = Files {
        output: OutputPlan::pcap(dir, BUFFER),
        snaplen: 0,
        longest: plan.buffer as usize * plan.max_sge as usize,
        hook_process: None,
    };
    let (writer, mut sinks) = Writer::start(&files, &PcapEncoder::new(0), &[Arc::default()])?;
    let sink = sinks.pop().ok_or_else(|| Failure::failed("no sink"))?;
    let ns = mean_ns(plan, args.rounds, vec![Parsed(sink)])?;
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
