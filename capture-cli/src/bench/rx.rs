//! `wqcap bench rx`: compares the engine's loop (slots, time stamps, ledger, repost) with minimal
//! programs for the same rings: a bare loop over `ibv_start_poll` that reads the same fields, and a
//! bare loop over `ibv_poll_cq`.
//!
//! Each loop drains rings that were filled before. With software stamps the NIC may compress the
//! CQEs of the engine. It never compresses those of the bare loops, which read the NIC's stamps.

use super::{
    bare::{self, BareAttr, Poll},
    report::{BenchReport, Measured},
    rounds::{self, FILLING, RING, drain},
};
use crate::{args::BenchRxArgs, cmd::check::enter_model, failure::Failure};
use std::hint::black_box;
use wqcap_engine::{
    config::Timestamps,
    memory::prefetch_line,
    pipeline::{Consumer, Frame, Verdict},
    plan::Plan,
    sink::Count,
};

/// Runs `wqcap bench rx`: measures the engine's receive loop and the bare loops in turn, and prints
/// the ratios of their times.
pub fn rx(args: &BenchRxArgs) -> Result<(), Failure> {
    if args.device.is_none() {
        let wire = format!("synth:size={},flows=4096,pps={FILLING}", args.frame);
        enter_model(std::slice::from_ref(&wire), &[])?;
    }
    let mut results = Vec::new();
    for queues in &args.queues {
        if !queues.is_power_of_two() {
            return Err(Failure::refused(format!(
                "--queues {queues}: the number of queues must be a power of two, because their number is the size of the indirection table; write 1, 2, 4 and so on"
            )));
        }
        let mut plans = Vec::new();
        for receive in &args.receive {
            let more = [
                ("capture.buffer", args.buffer().to_string()),
                ("capture.receive", receive.to_string()),
                ("capture.ring", args.ring.to_string()),
                ("capture.timestamps", args.timestamps.to_string()),
            ];
            plans.push(rounds::plan(*queues, args.device.as_deref(), &more)?);
        }
        for batch in &args.batch {
            for plan in &mut plans {
                plan.batch = usize::from(*batch);
            }
            results.extend(measure(&plans, args)?);
        }
    }
    BenchReport::new(results).print(args.common.json)
}

/// Measures the engine's receive loop with the settings of each plan, and compares its times with
/// those of the benchmark's own minimal loops (bare loops) and with those of the plan before it.
fn measure(plans: &[Plan], args: &BenchRxArgs) -> Result<Vec<Measured>, Failure> {
    let mut engines: Vec<Vec<(f64, f64)>> = vec![Vec::new(); plans.len()];
    let mut lines = Vec::new();
    let mut poll_cq = Vec::new();
    let first = &plans[0];
    for _ in 0..args.common.repeats {
        let least = bare(first, args, Poll::CqEx)?;
        for (plan, engine) in plans.iter().zip(&mut engines) {
            let sinks = plan.queues.iter().map(|_| Count).collect();
            let ours = drain(plan, args.frame, args.rounds, sinks)?;
            engine.push((ours.mean_ns(), least));
        }
        if args.prefetch {
            let read = |ahead| {
                let sinks = first.queues.iter().map(|_| FirstLine { ahead }).collect();
                drain(first, args.frame, args.rounds, sinks).map(|it| it.mean_ns())
            };
            lines.push((read(true)?, read(false)?));
        }
        poll_cq.push((bare(first, args, Poll::PollCq)?, least));
    }
    let batch = match first.batch {
        Plan::BATCH => String::new(),
        other => format!("/b{other}"),
    };
    let stamps = match args.timestamps {
        Timestamps::Hardware => "",
        Timestamps::Software => "/software",
    };
    let queues = first.queues.len();
    let named = |what: &str, mode: &str, base: &'static str, pairs: &[(f64, f64)]| {
        let name = format!("rx/{what}/{}B/{queues}q{batch}{mode}{stamps}", args.frame);
        let baseline: Vec<_> = pairs.iter().map(|(_, least)| *least).collect();
        Measured::from_pairs(name, base, pairs)
            .with("repeats", args.common.repeats)
            .with("baseline_ns", baseline)
    };
    let modes: Vec<_> = args.receive.iter().map(|it| format!("/{it}")).collect();
    let mode = |i: usize| if plans.len() > 1 { &modes[i][..] } else { "" };
    let mut all = Vec::new();
    for (i, engine) in engines.iter().enumerate() {
        all.push(named("engine", mode(i), "cq_ex", engine));
        if i > 0 {
            let before = engine.iter().zip(&engines[i - 1]);
            let pairs: Vec<_> = before
                .map(|((it, _), (before, _))| (*it, *before))
                .collect();
            all.push(named("engine", mode(i), args.receive[i - 1].into(), &pairs));
        }
    }
    if args.prefetch {
        all.push(named("prefetched", mode(0), "first line", &lines));
    }
    all.push(named("poll_cq", "", "cq_ex", &poll_cq));
    Ok(all)
}

/// Frame consumer that reads the first cache line of each frame.
struct FirstLine {
    /// `true` to prefetch the cache lines of a batch before its first frame is read.
    ahead: bool,
}

impl Consumer for FirstLine {
    #[inline]
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        black_box(frame.bytes.first_chunk::<16>().copied());
        Verdict::Captured
    }

    #[inline]
    fn prefetch<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]>) {
        if self.ahead {
            frames.for_each(|bytes| prefetch_line(bytes.as_ptr()));
        }
    }
}

/// Measures the time per frame of a bare receive loop over the plan's ring, in nanoseconds.
fn bare(plan: &Plan, args: &BenchRxArgs, poll: Poll) -> Result<f64, Failure> {
    let attr = BareAttr {
        poll,
        ring: RING,
        buffer: args.buffer(),
        batch: plan.batch,
    };
    let read = |frame: &[u8], stamp| {
        black_box((frame.len(), stamp));
    };
    Ok(bare::drain(plan, attr, args.rounds, read)?.mean_ns())
}
