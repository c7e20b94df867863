//! Rounds of bare loops: rings are filled while no loop polls them, the rules are removed, and then
//! this thread drains them.

mod ring;

pub use ring::{BareAttr, Poll};

use super::rounds::{Round, SETTLING, cpu_ns, fill, number};
use crate::failure::Failure;
use ring::BareRings;
use std::{thread, time::Duration};
use wqcap_engine::{
    plan::Plan,
    verbs::{Context, FlowKind, FlowRule, FlowSpec, Masked},
};

/// Measures the CPU time of frames in a bare receive loop on the plan's port, in `rounds` rounds
/// after one that warms up. `each` is called with the bytes and the time stamp of every frame.
pub fn drain(
    plan: &Plan,
    attr: BareAttr,
    rounds: u32,
    mut each: impl FnMut(&[u8], u64),
) -> Result<Round, Failure> {
    let context = Context::open(&plan.port.device.name)?;
    let everything = FlowRule {
        port: plan.port.number,
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
    let lost = |_: &BareRings| number(plan, "hw_counters/out_of_buffer");
    let pause = |_: &mut BareRings| thread::sleep(Duration::from_millis(1));
    let mut sum = Round::default();
    for number in 0..=rounds {
        rings.open()?;
        fill(&mut rings, plan.queues.len(), attr.ring.into(), lost, pause)?;
        rings.close();
        thread::sleep(SETTLING);
        for ring in &mut rings.rings {
            let began = cpu_ns();
            let frames = ring.drain(&mut each)?;
            let ns = cpu_ns() - began;
            if number > 0 {
                sum += Round { frames, ns };
            }
        }
    }
    Ok(sum)
}
