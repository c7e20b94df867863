//! `wqcap bench rx`: the engine's loop (slots, time stamps, ledger, repost) beside the least that a program can do with
//! such rings: a bare loop over `ibv_start_poll` that reads the same fields, and one over `ibv_poll_cq`.
//!
//! Each drains rings that were filled before.

mod bare;

use super::{
    report::{BenchReport, Measured},
    rounds::{self, FILLING, RING, Round, cpu_ns, fill, mean_ns},
};
use crate::{args::BenchRxArgs, cmd::check::enter_model, failure::Failure};
use bare::{BareAttr, BareRings, Poll};
use std::{fs, thread, time::Duration};
use wqcap_engine::{
    plan::Plan,
    sink::Count,
    verbs::{Context, FlowKind, FlowRule, FlowSpec, Masked},
};

/// All in turn, and prints the ratios.
pub fn rx(args: &BenchRxArgs) -> Result<(), Failure> {
    if args.device.is_none() {
        let wire = format!("synth:size={},flows=4096,pps={FILLING}", args.frame);
        enter_model(Some(&wire), &[])?;
    }
    let mut results = Vec::new();
    for queues in &args.queues {
        if !queues.is_power_of_two() {
            return Err(Failure::refused(format!(
                "--queues {queues}: write a power of two: bare loops spread over tables without weights"
            )));
        }
        let more = [("capture.buffer", args.buffer().to_string())];
        let mut plan = rounds::plan(*queues, args.device.as_deref(), &more)?;
        for batch in &args.batch {
            plan.batch = usize::from(*batch);
            results.extend(measure(&plan, args)?);
        }
    }
    BenchReport::new(results).print(args.common.json)
}

fn measure(plan: &Plan, args: &BenchRxArgs) -> Result<[Measured; 2], Failure> {
    let (mut engine, mut poll_cq) = (Vec::new(), Vec::new());
    for _ in 0..args.common.repeats {
        let least = bare(plan, Poll::CqEx, args.rounds)?;
        let sinks = plan.queues.iter().map(|_| Count).collect();
        engine.push((mean_ns(plan, args.rounds, sinks)?, least));
        poll_cq.push((bare(plan, Poll::PollCq, args.rounds)?, least));
    }
    let batch = match plan.batch {
        Plan::BATCH => String::new(),
        other => format!("/b{other}"),
    };
    let named = |what, pairs: &[(f64, f64)]| {
        let name = format!("rx/{what}/{}B/{}q{batch}", args.frame, plan.queues.len());
        let baseline: Vec<_> = pairs.iter().map(|(_, least)| *least).collect();
        Measured::of(name, "cq_ex", pairs)
            .with("repeats", args.common.repeats)
            .with("baseline_ns", baseline)
    };
    Ok([named("engine", &engine), named("poll_cq", &poll_cq)])
}

/// Nanoseconds that a bare loop takes for a frame: the mean of so many rounds, behind one that warms up.
fn bare(plan: &Plan, poll: Poll, rounds: u32) -> Result<f64, Failure> {
    let context = Context::open(&plan.device.name)?;
    let port = plan.port;
    let attr = BareAttr {
        poll,
        ring: RING,
        buffer: plan.ring.buffer,
        batch: plan.batch,
    };
    let everything = FlowRule {
        port,
        kind: FlowKind::Normal,
        priority: 0,
        specs: vec![
            FlowSpec::ETHERNET,
            FlowSpec::Ipv4 {
                src: Masked::default(),
                dst: Masked::default(),
                proto: Masked::default(),
            },
        ],
    };
    let mut rings = BareRings::make(&context, plan.queues.len(), attr, everything)?;
    let counter = format!(
        "/sys/class/infiniband/{}/ports/{port}/hw_counters/out_of_buffer",
        context.name()
    );
    let lost = |_: &BareRings| fs::read_to_string(&counter).ok()?.trim().parse().ok();
    let rest = |_: &mut BareRings| thread::sleep(Duration::from_millis(1));
    let mut sum = Round::default();
    for number in 0..=rounds {
        rings.let_in()?;
        fill(&mut rings, plan.queues.len(), lost, rest)?;
        rings.shut();
        // What the NIC has begun comes to its end.
        thread::sleep(Duration::from_millis(5));
        for ring in &mut rings.rings {
            let began = cpu_ns();
            let frames = ring.drain()?;
            let ns = cpu_ns() - began;
            if number > 0 {
                sum += Round { frames, ns };
            }
        }
    }
    Ok(sum.mean_ns())
}
