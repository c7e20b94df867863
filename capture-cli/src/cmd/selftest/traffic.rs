//! Known frames from one port to another: the queues where they arrive, and their completions.

use super::{
    compressed::compressed,
    frames::{MAC, TestFrame, frames, udp},
    held::held,
    lengths::{lengths, too_long},
    probe::{FLAGS, ipv4, own, tcp},
    recovery::recovery,
    report::{Finding, Outcome},
    rig::{PATIENCE, Pass, Sender, WRS, accepted, is_connected, plan},
    roce::roce,
    run::{HasErrno, SelftestRun},
    sleeping::sleeping,
    spread::spread,
    striding::{FRAMES, SUBJECT, default_shape, striding},
};
use crate::{
    bench::wire::{Generator, search, trial},
    failure::Failure,
};
use std::{
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use wqcap_engine::{
    capture::Membership,
    device::{DeviceFacts, counters::NicReader},
    verbs::{CompletionStamps, FlowSpec},
};

/// ID of the finding on the kind of time stamps of a CQ that was created for ticks.
pub const STAMP_KIND: &str = "stamps: kind";
/// Value of the finding [`STAMP_KIND`] for time stamps of the device's counter.
pub const TICKS: &str = "ticks";
/// Number of seconds in a day.
const A_DAY: u64 = 86_400;
/// Number of frames that the test of drop counters sends beyond the WQEs of the receiving queue.
const TOO_MANY: u32 = 10;
/// Number of test frames whose time stamps the selftest checks.
const STAMPED: u16 = 64;
/// Duration of a throughput trial at one rate on a card.
const TRIAL: Duration = Duration::from_millis(300);
/// Duration of a throughput trial at one rate on the software NIC.
const TRIAL_ON_MODEL: Duration = Duration::from_millis(100);
/// Runs all tests of the selftest that send frames.
pub fn traffic(run: &mut SelftestRun, sender: &Sender, device: &DeviceFacts) {
    let port = device.ports.iter().find(|it| it.number == run.port);
    let mtu = port.and_then(|it| it.mtu).unwrap_or(1500) as usize;
    let all = frames(mtu);
    // A port that is not promiscuous drops frames to other addresses than those of its interface.
    let netdev = port.and_then(|it| it.netdev.as_deref());
    let _accepted = match netdev.map(|it| Membership::accept(it, MAC)).transpose() {
        Ok(accepted) => accepted,
        Err(e) => {
            run.note("frames", "traffic/address", 0, Outcome::refused(e.errno()));
            None
        }
    };
    if !is_connected(run, sender, "traffic") {
        return;
    }
    let plain = Pass::new("frame", "frames");
    plain.send(run, sender, &all, true);
    for (name, subject, flags) in FLAGS {
        let id = &format!("frame with {name}");
        if accepted(run, &format!("wq/flag/{name}")) {
            let pass = Pass {
                id,
                subject,
                ..plain
            };
            pass.with_flags(flags).send(run, sender, &all, false);
        } else {
            run.record_not_asked(subject, id, "the device refused the flag");
        }
    }
    if run.report.disruptive {
        let pass = Pass {
            id: "frame by steal",
            first: FlowSpec::ETHERNET,
            ..plain
        };
        pass.send(run, sender, &all, false);
    }
    dropped(run, sender, &all);
    if accepted(run, "rule/sniffer") {
        sniffed(run, sender);
    } else {
        run.record_not_asked(
            "sniffer",
            "sniffer: a copy",
            "requires --disruptive and the sniffer rule",
        );
    }
    too_long(run, sender, &all, netdev);
    counters(run, sender, netdev);
    stamps(run, sender, device);
    recovery(run, sender, Pass::new("recovery", "recovery"));
    let shape = default_shape(run, device);
    match shape {
        Ok(shape) => striding(run, sender, shape, &all),
        Err(reason) => run.record_not_asked(SUBJECT, FRAMES, reason),
    }
    compressed(run, sender, device, shape);
    sleeping(run, sender, device, shape);
    lengths(run, sender, device, shape, &all);
    roce(run, sender, device);
    spread(run, sender, device);
    held(run, sender, netdev);
    throughput(run, sender, device);
}

/// Tests that a drop rule precedes the other flow rules: of two test frames only the second one
/// arrives.
fn dropped(run: &mut SelftestRun, sender: &Sender, all: &[TestFrame]) {
    let two = ["ipv4 tcp", "ipv4 udp"].map(|name| all.iter().find(|it| it.name == name));
    let [Some(first), Some(second)] = two else {
        return;
    };
    let pass = Pass::new("drop rule", "rules");
    let frames = [first.bytes.clone(), second.bytes.clone()];
    let Some((mut rig, mut generator)) = pass.open(run, sender, &frames) else {
        return;
    };
    let specs = vec![own(), ipv4(None), tcp(0), FlowSpec::Drop];
    let rule = run.request("rules", "drop rule: before the others", |run| {
        run.install(&rig.qps[0], 0, specs)
    });
    if rule.is_none() {
        return;
    }
    let sent = [(); 2].map(|()| generator.send(1).is_ok());
    let arrived = rig.receive().map(|(_, it)| crc32fast::hash(&it.bytes));
    if !run.is_lost() {
        let expected = sent[1].then(|| crc32fast::hash(&second.bytes));
        run.expect("rules", "drop rule: what arrives", expected, arrived, None);
    }
}

/// Tests that a sniffer rule delivers a copy of a frame that another flow rule delivers.
fn sniffed(run: &mut SelftestRun, sender: &Sender) {
    let pass = Pass::new("sniffer", "sniffer");
    let Some((mut rig, mut generator)) = pass.open(run, sender, &[udp(0, 40)]) else {
        return;
    };
    let Some(_sniffer) = run.sniffer("sniffer: rule", &rig.qps[0]) else {
        return;
    };
    let sent = generator.send(1).is_ok();
    let both = [(); 2].map(|()| rig.receive().is_some());
    if !run.is_lost() {
        let id = "sniffer: a copy";
        run.expect("sniffer", id, sent, both == [true; 2], None);
    }
}

/// Tests that the device counts frames that find no WQE, because the receiving queues are full and
/// are not polled.
fn counters(run: &mut SelftestRun, sender: &Sender, netdev: Option<&str>) {
    let pass = Pass::new("counters", "counters");
    let Some((rig, mut generator)) = pass.open(run, sender, &[udp(0, 40)]) else {
        return;
    };
    let reader = NicReader::start(run.context.name(), run.port, netdev, false);
    let lost = || reader.growth().get("out_of_buffer")?.value();
    let (mut sent, began) = (0, Instant::now());
    while sent < WRS + TOO_MANY && began.elapsed() < PATIENCE {
        // The call sends 0 frames or 1. At first the send queue has no room until the last frames
        // have left.
        sent += generator.send(1).map_or(0, |n| n as u32);
    }
    let began = Instant::now();
    // The firmware may update the counter late, and may also count lost frames of other senders.
    while lost().is_some_and(|n| n < TOO_MANY.into()) && began.elapsed() < PATIENCE {
        thread::yield_now();
    }
    drop(rig);
    let found = lost().map(|n| n.min(TOO_MANY.into()));
    if !run.is_lost() {
        let id = "counters: out_of_buffer";
        run.expect("counters", id, TOO_MANY, found, None);
    }
}

/// Tests that the time stamps of frames are in order, and lie between readings of the device's
/// clock.
fn stamps(run: &mut SelftestRun, sender: &Sender, device: &DeviceFacts) {
    let mask = device.caps.timestamp_mask;
    if mask == 0 {
        run.record_not_asked("timestamp_mask", "stamps", "the device stamps nothing");
        return;
    }
    let mut pass = Pass::new("stamps", "timestamp_mask");
    pass.queue.stamps = CompletionStamps::Ticks;
    let Some((mut rig, mut generator)) = pass.open(run, sender, &[udp(0, 40)]) else {
        return;
    };
    let (mut seen, mut outside, mut last, mut backward) = (0u16, 0, None, 0);
    let mut in_utc = 0u16;
    for _ in 0..STAMPED {
        if run.is_over() {
            return;
        }
        let before = run.context.query_clock();
        let came = generator.send(1).ok().and_then(|_| rig.receive());
        let after = run.context.query_clock();
        let Some((_, it)) = came else { continue };
        seen += 1;
        in_utc += u16::from(is_utc(it.cqe.timestamp));
        let stamp = it.cqe.timestamp & mask;
        // The difference is modulo the counter's bits: the counter may wrap between two stamps.
        if let (Ok(before), Ok(after)) = (before, after) {
            let since = |start: u64, end: u64| end.wrapping_sub(start) & mask;
            outside += u16::from(since(before, stamp) > since(before, after));
        }
        if let Some(last) = last {
            backward += u16::from(stamp.wrapping_sub(last) & mask > mask / 2);
        }
        last = Some(stamp);
    }
    if run.is_lost() {
        return;
    }
    run.expect("stamps", "stamps: frames", STAMPED, seen, None);
    if seen > 0 {
        let kind = if in_utc == seen { "UTC" } else { TICKS };
        run.value("stamps", STAMP_KIND, kind);
    }
    run.expect(
        "stamps",
        "stamps: earlier than the one before",
        0,
        backward,
        None,
    );
    let id = "stamps: not between readings of the clock";
    if device.software {
        let reason = "the software NIC uses the time of its thread's last update as stamp";
        run.record_not_asked("stamps", id, reason);
    } else {
        run.expect("stamps", id, 0, outside, None);
    }
    if device.caps.real_time {
        real_time(run, sender);
    } else {
        let reason = "the device stamps in ticks only";
        run.record_not_asked("realtime_clock", "stamps: real time: receiver", reason);
    }
}

/// Returns `true` if a time stamp is the host's UTC time: seconds in the upper half, nanoseconds in
/// the lower half. A counter of ticks is near it only for seconds in more than a century.
fn is_utc(stamp: u64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |it| it.as_secs());
    (stamp >> 32).abs_diff(now) < A_DAY && stamp as u32 <= 1_000_000_000
}

/// Measures the difference between the device's real-time stamps and the host's clock.
fn real_time(run: &mut SelftestRun, sender: &Sender) {
    let mut pass = Pass::new("stamps: real time", "realtime_clock");
    pass.queue.stamps = CompletionStamps::RealTime;
    let Some((mut rig, mut generator)) = pass.open(run, sender, &[udp(0, 40)]) else {
        return;
    };
    if let Some((_, it)) = generator.send(1).ok().and_then(|_| rig.receive()) {
        let stamp = it.cqe.timestamp;
        // The stamp has seconds and nanoseconds (PRM, "Real-Time Clock").
        let device = (stamp >> 32) as f64 + (stamp as u32) as f64 / 1e9;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let host = now.map_or(0.0, |it| it.as_secs_f64());
        let id = "stamps: real time, ahead of the host";
        // A clock in TAI is 37 s ahead.
        run.measured("realtime_clock", id, device - host, "s", Some(1.0));
    }
}

/// Measures the highest rate of frames without loss for each number of queues and frame length, by
/// the search of `bench wire`.
fn throughput(run: &mut SelftestRun, sender: &Sender, device: &DeviceFacts) {
    let Some(port) = device.ports.iter().find(|it| it.number == run.port) else {
        return;
    };
    let is_wrong =
        |it: &Finding| it.id.starts_with(FRAMES) && matches!(it.outcome, Outcome::Differs { .. });
    if run.report.findings.iter().any(is_wrong) {
        let reason = "the striding queues of a capture differ from what the engine expects";
        return run.record_not_asked("throughput", "throughput", reason);
    }
    run.announce("measuring the throughput");
    let time = if device.software {
        TRIAL_ON_MODEL
    } else {
        TRIAL
    };
    for (queues, size) in [(1, 64), (1, 1514), (4, 64), (4, 1514)] {
        if run.is_over() {
            return;
        }
        let id = format!("throughput: {queues} queues, {size} bytes");
        let flows: Vec<_> = (0..256).map(|flow| udp(flow, size - 42)).collect();
        let line = port.rate_gbps * 1e9 / (8.0 * (size as f64 + 24.0));
        let mut best = || -> Result<_, Failure> {
            let plan = plan(device, run.port, queues)?;
            let mut generator = Generator::make(&sender.context, sender.port, 1024, &flows)?;
            let (best, _) = search(line, 0.0, |rate| match run.is_over() {
                true => Err(Failure::failed("ended")),
                false => trial(&plan, &mut generator, rate, time),
            })?;
            Ok(best.sent_per_s / 1e6)
        };
        match best() {
            Ok(mpps) => run.measured("throughput", &id, mpps, "Mpps", None),
            Err(_) if run.is_lost() => return,
            Err(e) => run.expect("throughput", &id, "a rate", e.messages, None),
        }
    }
}
