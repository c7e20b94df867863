//! Injection of due faults, and update of those in effect.
//!
//! Imports `state` and the settings' faults.

use crate::settings::fault::{Effect, Fault};

use super::cq::CqObject;
use super::port::{LinkChange, NicPort};
use super::rq::{Rq, RqState};
use super::state::DeviceState;

/// Injects the faults that are due into the device, updates those in effect, and records whether
/// any fault remains.
#[cold]
pub fn apply(state: &mut DeviceState, now_ns: u64) {
    if state.is_dead() {
        return;
    }
    let mut schedule = std::mem::take(&mut state.schedule);
    schedule.run(|fault| is_due(state, fault, now_ns) && inject(state, fault, now_ns));
    let mut has_faults = state.is_dead() || !schedule.is_empty();
    for at in 0..state.ports.len() {
        let port = &mut state.ports[at];
        let left = schedule.frames_left(port.number(), port.received());
        let change = port.update_faults(now_ns, left);
        has_faults |= port.has_faults();
        let number = port.number();
        if let Some(change) = change {
            state.notify(change, number);
        }
    }
    state.schedule = schedule;
    state.has_faults = has_faults;
}

fn is_due(state: &DeviceState, fault: &Fault, now_ns: u64) -> bool {
    // No more faults are injected into a device that has died in the same round.
    if state.is_dead() {
        return false;
    }
    let port = state.ports.get(usize::from(fault.port).wrapping_sub(1));
    port.is_some_and(|port| fault.is_due(port.received(), port.since_rule_ns(now_ns)))
}

/// Injects one fault into the device. Returns `false` if the fault cannot be injected yet, such as
/// before its WQ exists.
fn inject(state: &mut DeviceState, fault: &Fault, now_ns: u64) -> bool {
    let at = usize::from(fault.port).wrapping_sub(1);
    match fault.effect {
        Effect::WqFatal(queue) => return with_wq(state, queue, |rq, cq| rq.fail(cq)).is_some(),
        Effect::BadLkey(queue) => {
            return with_wq(state, queue, |rq, _| rq.invalidate_keys()).is_some();
        }
        Effect::BadFcs(queue) => {
            let reaches_queues = state.ports.get(at).is_some_and(NicPort::delivers_bad_fcs);
            let damage = |rq: &mut Rq, _: &mut CqObject| {
                if reaches_queues {
                    rq.damage_next();
                }
            };
            if with_wq(state, queue, damage).is_none() {
                return false;
            }
            // As `mlx5_set_port_fcs`: the port checks every frame's FCS unless `rx-all` is on.
            if let Some(port) = state.ports.get_mut(at).filter(|_| !reaches_queues) {
                port.corrupt_next_fcs();
            }
        }
        Effect::CqOverrun(queue) => {
            let dead = with_wq(state, queue, |rq, cq| {
                cq.fail();
                rq.cq
            });
            let Some(dead) = dead else { return false };
            state.queues.fail_receive_queues(dead);
        }
        Effect::PortDown(end) => {
            let Some(port) = state.ports.get_mut(at) else {
                return true;
            };
            if port.has_outage() {
                return false;
            }
            let number = port.number();
            if let Some(change) = port.take_down(now_ns, end) {
                state.notify(change, number);
            }
        }
        Effect::DeviceFatal(end) => {
            state.die(end);
            state.ports.iter_mut().for_each(NicPort::die);
            state.notify(LinkChange::Lost, 0);
        }
        Effect::SlowPci { ns, for_ns } => {
            if let Some(port) = state.ports.get_mut(at) {
                port.slow_down(now_ns, ns, for_ns);
            }
        }
        Effect::PciOverflow(frames) => {
            if let Some(port) = state.ports.get_mut(at) {
                port.overflow(frames as usize);
            }
        }
        Effect::ClockJump(ns) => {
            state.clock.jump(ns);
            state.ports.iter_mut().for_each(NicPort::clock_jumped);
        }
        Effect::ClockBusy(for_ns) => state.clock.keep_updating(for_ns),
    }
    true
}

/// Calls `change` with the receive queue that was created as number `serial`, and its CQ. Returns
/// `None` without the call if that queue does not exist or is not ready.
fn with_wq<T>(
    state: &mut DeviceState,
    serial: u32,
    change: impl FnOnce(&mut Rq, &mut CqObject) -> T,
) -> Option<T> {
    let is_target = |rq: &Rq| rq.serial == Some(serial) && rq.state() == RqState::Ready;
    let (index, _) = state.queues.rqs.iter().find(|(_, rq)| is_target(rq))?;
    let (rq, cq) = state.queues.receive_queue(index)?;
    Some(change(rq, cq))
}
