//! One round of the NIC's work: sends, receives, events.
//!
//! Imports `state` and `fault`.

use super::clock::Now;
use super::fault;
use super::queues::Queues;
use super::rq::RqState;
use super::sq::SqState;
use super::state::DeviceState;
use crate::handles::Index;

/// Maximum number of WQEs of a send queue that are executed in a row.
const SEND_BURST: usize = 64;

/// Runs one round of the NIC's thread. Returns the number of frames and WQEs that it handled.
pub fn run(state: &mut DeviceState) -> usize {
    let now_ns = state.clock.tick();
    if state.has_faults {
        fault::apply(state, now_ns);
        if state.is_dead() {
            return 0;
        }
    }
    let now = state.clock.burst();
    let mut work = send(state, now);
    for port in &mut state.ports {
        work += port.receive(&mut state.queues, now);
    }
    end_burst(state, now.ns);
    work
}

fn send(state: &mut DeviceState, now: Now) -> usize {
    let mut work = 0;
    let busy: Vec<Index> = state
        .queues
        .sqs
        .iter_mut()
        .filter_map(|(index, sq)| (sq.state() != SqState::Idle && !sq.is_empty()).then_some(index))
        .collect();
    for index in busy {
        work += send_queue(state, index, now);
    }
    work
}

fn send_queue(state: &mut DeviceState, index: Index, now: Now) -> usize {
    let mut done = 0;
    let DeviceState {
        queues,
        ports,
        frame,
        ..
    } = state;
    while done < SEND_BURST {
        let Some(sq) = queues.sqs.at_mut(index) else {
            break;
        };
        let Some(wqe) = sq.execute_next(&queues.regions, frame) else {
            break;
        };
        if wqe.has_frame()
            && let Some(port) = ports.get_mut(usize::from(sq.port).wrapping_sub(1))
        {
            port.send(queues, frame, now);
        }
        if let Some((sq, cq)) = queues.send_queue(index) {
            sq.complete(&wqe, cq, now.cycles(now.shown_ns), frame.len() as u32);
        }
        done += 1;
    }
    if let Some((sq, cq)) = queues.send_queue(index) {
        sq.flush(cq);
    }
    done
}

/// Runs the steps of the NIC's thread that are due once per burst of frames: flushes, events,
/// counters, link changes.
fn end_burst(state: &mut DeviceState, now_ns: u64) {
    state.queues.delay_drop.rearm();
    let Queues { rqs, cqs, .. } = &mut state.queues;
    for (_, rq) in rqs
        .iter_mut()
        .filter(|(_, rq)| rq.state() == RqState::Error)
    {
        if let Some(cq) = cqs.at_mut(rq.cq) {
            rq.flush(cq);
        }
    }
    for (_, cq) in cqs.iter_mut() {
        cq.end_burst(now_ns);
        if let Some(errors) = cq.take_errors()
            && let Some(port) = state.ports.first()
        {
            port.count_errors(&errors);
        }
    }
    for at in 0..state.ports.len() {
        let port = &mut state.ports[at];
        if let Some(change) = port.end_burst(&mut state.queues, now_ns) {
            let number = port.number();
            state.notify(change, number);
        }
    }
}
