//! Recovery of a WQ that a bad memory key has brought into the error state.

use super::{
    rig::{Pass, Sender, frame_of_queue_0},
    run::SelftestRun,
};
use std::time::Duration;
use wqcap_engine::verbs::{AsyncEvent, AsyncEvents, WqState};

/// Completion status `IBV_WC_LOC_PROT_ERR`: the memory key of a WQE is invalid.
const LOCAL_PROTECTION: u32 = 4;
/// Completion status `IBV_WC_WR_FLUSH_ERR`: the WQE was flushed because its WQ is in error.
const FLUSHED: u32 = 5;
/// Time limit for the device's event that reports a WQ in error.
const EVENT: Duration = Duration::from_secs(2);

/// Tests the recovery of a WQ that a bad memory key has brought into the error state.
pub fn recovery(run: &mut SelftestRun, sender: &Sender, pass: Pass<'_>) {
    let Pass { id, subject, .. } = pass;
    let named = |what: &str| format!("{id}: {what}");
    let frame = frame_of_queue_0(40);
    let Some((mut rig, mut generator)) = pass.open(run, sender, &[frame]) else {
        return;
    };
    let events = run.request(subject, named("events"), |run| {
        AsyncEvents::open(&run.context)
    });
    let Some(mut events) = events else {
        return;
    };
    let queue = &mut rig.queues[0];
    let wrs = queue.wrs();
    let reset = run.request(subject, named("ready to reset"), |_| {
        queue.set_state(None, WqState::Reset)
    });
    let bad = run.request(subject, named("bad keys"), |_| queue.make_ready(false));
    if reset.is_none() || bad.is_none() {
        return;
    }
    // WQEs whose last completion has arrived.
    let (mut statuses, mut ended, mut ended_first) = (Vec::new(), 0, true);
    if generator.send(1).is_ok() {
        while ended < wrs
            && let Some((_, it)) = rig.receive()
        {
            if statuses.is_empty() {
                ended_first = it.is_last;
            }
            statuses.push(it.cqe.status);
            ended += u32::from(it.is_last);
        }
    }
    if run.is_lost() {
        return;
    }
    let first = statuses.first().copied();
    run.expect(subject, &named("status"), LOCAL_PROTECTION, first, None);
    let flushed = statuses.iter().filter(|it| **it == FLUSHED).count();
    let expected = wrs - u32::from(ended_first);
    run.expect(subject, &named("flushed"), expected, flushed, None);
    let fatal = AsyncEvent::WqFatal(rig.queues[0].id());
    let Some(came) = run.until_event(&mut events, fatal, EVENT) else {
        return;
    };
    run.expect(subject, &named("event"), true, came, None);
    let queue = &mut rig.queues[0];
    // The kernel's record of the state is still ready. A device may require the actual state.
    let with_state = named("error to reset, with the state named");
    let unnamed = run.request(subject, named("error to reset"), |_| {
        queue.set_state(None, WqState::Reset)
    });
    if unnamed.is_some() {
        run.record_not_asked(subject, &with_state, "the request was accepted without it");
    } else {
        run.request(subject, with_state, |_| {
            queue.set_state(Some(WqState::Error), WqState::Reset)
        });
    }
    run.request(subject, named("reset to ready"), |_| queue.make_ready(true));
    let arrived = generator.send(1).ok().and_then(|_| rig.receive());
    let status = arrived.map(|(_, it)| it.cqe.status);
    run.expect(subject, &named("receives again"), 0, status, None);
}
