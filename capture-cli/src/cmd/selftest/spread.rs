//! Spread of frames over queues where devices differ: inner headers of tunnels, headers behind
//! extension headers, and a table that changes under load.

use super::{
    frames::{ipv6_tcp, number_of, numbered, udp, vxlan},
    probe::{inner, vxlan as to_vxlan},
    rig::{HASH_AT, Pass, Sender, accepted, plan, spread as table},
    run::SelftestRun,
};
use crate::{bench::wire::Generator, failure::Failure};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use wqcap_engine::{
    capture::{Capture, Limits, Respread},
    device::DeviceFacts,
    pipeline::{Consumer, Frame, Verdict},
    verbs::{Inner, RssQp},
};
use wqcap_rss::{HashDepth, HashFields, RssKey, Toeplitz, queue_of};

/// Number of flows in each test of the spread.
const FLOWS: u16 = 64;
/// Number of changes of the RSS indirection table under load.
const CHANGES: usize = 6;
/// Time between two changes of the RSS indirection table.
const BETWEEN: Duration = Duration::from_millis(20);
/// Time that the sender of test frames waits between bursts of [`BURST`] frames: about 100,000
/// frames a second.
const PACE: Duration = Duration::from_micros(80);
const BURST: usize = 8;
/// Number of different frames that are sent while the RSS indirection table changes.
const NUMBERS: u32 = 1024;
/// Time limit for the last test frames to arrive.
const LAST: Duration = Duration::from_millis(500);

/// Runs the tests of how frames spread over the receive queues.
pub fn spread(run: &mut SelftestRun, sender: &Sender, device: &DeviceFacts) {
    inner_hash(run, sender);
    extension_headers(run, sender);
    respread(run, sender, device);
}

/// Tests that a hash over the inner headers of a tunnel leads frames to the queues for which it is
/// computed.
fn inner_hash(run: &mut SelftestRun, sender: &Sender) {
    let (subject, id) = ("tunnel_offloads", "spread: inner flows on their queues");
    if !accepted(run, "hash/inner ipv4+udp") || !accepted(run, "rule/vxlan, inner ipv4 tcp") {
        let reason = "the device refused the hash or the rule for inner headers";
        return run.record_not_asked(subject, id, reason);
    }
    let inner_frames: Vec<_> = (0..FLOWS).map(|flow| udp(flow, 40)).collect();
    let frames: Vec<_> = inner_frames.iter().map(|it| vxlan(it)).collect();
    let pass = Pass::new("spread: inner", subject);
    let Some((mut rig, mut generator)) = pass.open(run, sender, &frames) else {
        return;
    };
    let fields = HashFields::IPV4 | HashFields::UDP_PORTS | HashFields::INNER;
    let qp = run.request(subject, "spread: inner: QP", |_| {
        RssQp::create(&rig.pd, &rig.tables[0], &RssKey::SYMMETRIC, fields)
    });
    let Some(qp) = qp else { return };
    let specs = inner(&to_vxlan(), Inner::Ipv4, Inner::Udp);
    let rule = run.request(subject, "spread: inner: rule", |run| {
        run.install(&qp, 0, specs)
    });
    if rule.is_none() {
        return;
    }
    let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
    let mut right = 0u16;
    for (frame, outer) in inner_frames.iter().zip(&frames) {
        let came = generator.send(1).ok().and_then(|_| rig.receive());
        let Some((queue, it)) = came else { break };
        let (_, _, expected) = queue_of(frame, HashDepth::L4, &toeplitz, &table());
        right += u16::from(queue == expected && it.bytes == *outer);
    }
    if !run.is_lost() {
        run.expect(subject, id, FLOWS, right, None);
    }
}

/// Records which headers the device hashes of TCP behind IPv6 extension headers.
fn extension_headers(run: &mut SelftestRun, sender: &Sender) {
    let (subject, id) = ("rss", "spread: tcp behind ipv6 extension headers");
    let pass = Pass::new("spread: extension headers", subject);
    let frame = ipv6_tcp(3, true);
    let Some((mut rig, mut generator)) = pass.open(run, sender, std::slice::from_ref(&frame))
    else {
        return;
    };
    let came = generator.send(1).ok().and_then(|_| rig.receive());
    let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
    let plain = ipv6_tcp(3, false);
    let hash = |depth| queue_of(&plain, depth, &toeplitz, &table()).1;
    let found = came.map(|(_, it)| {
        let hash_in_cqe = u32::from_be_bytes([0, 1, 2, 3].map(|at| it.raw[HASH_AT + at]));
        match hash_in_cqe {
            _ if it.bytes != frame => "another frame",
            it if hash(HashDepth::L4) == Some(it) => "hashed with its ports",
            it if hash(HashDepth::L3) == Some(it) => "hashed without its ports",
            0 => "not hashed",
            _ => "hashed otherwise",
        }
    });
    if !run.is_lost() {
        run.value(subject, id, found);
    }
}

/// Consumer of a capture that counts how often each numbered test frame arrives.
struct NumberedFrames(Arc<Vec<AtomicU32>>);

impl Consumer for NumberedFrames {
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        let number = number_of(frame.bytes).and_then(|n| self.0.get(n as usize));
        if let Some(count) = number {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Verdict::Captured
    }
}

/// Tests that no frame arrives twice while a capture changes its RSS indirection table.
fn respread(run: &mut SelftestRun, sender: &Sender, device: &DeviceFacts) {
    let (subject, id) = ("respread", "respread: frames that arrived twice");
    if run.is_over() {
        return;
    }
    run.announce("changing the indirection table under load");
    match change_table(run, sender, device) {
        _ if run.is_lost() => {}
        Ok((twice, lost)) => {
            run.expect(subject, id, 0, twice, None);
            // Also those that found the queues full.
            run.measured(
                subject,
                "respread: lost frames",
                lost.into(),
                "frames",
                None,
            );
        }
        Err(e) => run.expect(subject, id, 0, e.messages, None),
    }
}

/// Changes the RSS indirection table of a capture while frames arrive. Returns the number of frames
/// that arrived twice, and the number that did not arrive.
fn change_table(
    run: &SelftestRun,
    sender: &Sender,
    device: &DeviceFacts,
) -> Result<(u32, u32), Failure> {
    let plan = plan(device, run.port, 4)?;
    let frames: Vec<_> = (0..NUMBERS)
        .map(|n| numbered((n % u32::from(FLOWS)) as u16, 40, n))
        .collect();
    let mut generator = Generator::make(&sender.context, sender.port, 256, &frames)?;
    let counts: Arc<Vec<AtomicU32>> = Arc::new((0..NUMBERS).map(|_| AtomicU32::new(0)).collect());
    let consumer = |_| NumberedFrames(Arc::clone(&counts));
    let mut capture = Capture::start_with(&plan, Limits::default(), consumer)?;
    let stop = AtomicBool::new(false);
    let (sent, changed) = thread::scope(|scope| {
        let send = || {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                sent += generator.send(BURST)?;
                thread::sleep(PACE);
            }
            Ok::<_, Failure>(sent)
        };
        let sending = thread::Builder::new().spawn_scoped(scope, send);
        let sending = sending
            .map_err(|e| Failure::of_setup(format_args!("cannot start a thread: {e}"), &e))?;
        let mut change = || {
            for n in 0..CHANGES {
                let _ = capture.wait(Instant::now() + BETWEEN);
                let weights = if n % 2 == 0 { [4, 2, 1, 1] } else { [1; 4] };
                let _ = capture.respread(&Respread::Weights(weights.to_vec()))?;
            }
            Ok::<_, Failure>(())
        };
        let changed = change();
        stop.store(true, Ordering::Relaxed);
        let sent = sending
            .join()
            .unwrap_or_else(|_| Err(Failure::failed("the sending thread has panicked")));
        Ok::<_, Failure>((sent, changed))
    })?;
    changed?;
    let sent = u32::try_from(sent?).unwrap_or(u32::MAX);
    let sum = || {
        counts
            .iter()
            .map(|it| it.load(Ordering::Relaxed))
            .sum::<u32>()
    };
    let began = Instant::now();
    while sum() < sent && began.elapsed() < LAST {
        let _ = capture.wait(Instant::now() + Duration::from_millis(5));
    }
    drop(capture.finish());
    let (mut twice, mut lost) = (0, 0);
    for (number, count) in (0..).zip(counts.iter()) {
        // The frames are sent in turn.
        let expected = sent / NUMBERS + u32::from(number < sent % NUMBERS);
        let count = count.load(Ordering::Relaxed);
        twice += count.saturating_sub(expected);
        lost += expected.saturating_sub(count);
    }
    Ok((twice, lost))
}
