//! Known frames from one port to another: the queues where they arrive, and their completions.

use super::{
    frames::{TestFrame, frames, udp},
    probe::{FLAGS, MAC, ipv4, own, tcp},
    report::Outcome,
    rig::{PATIENCE, Pass, Sender, WRS, accepted, is_connected, spread},
    run::{HasErrno, SelftestRun},
};
use crate::{
    bench::wire::{Generator, search, trial},
    failure::Failure,
};
use std::{
    thread,
    time::{Duration, Instant},
};
use wqcap_engine::{
    capture::Membership,
    config::Config,
    device::{DeviceFacts, counters::NicReader},
    plan::Plan,
    verbs::{AsyncEvent, AsyncEvents, CompletionStamps, FlowSpec, WqState},
};
use wqcap_rss::{HashDepth, RssKey, Toeplitz, queue_of};

/// Size in bytes of a receive slot that is too short for the longest test frame.
const SHORT_SLOT: u32 = 1024;
/// Number of frames that the test of drop counters sends beyond the WQEs of the receiving queue.
const TOO_MANY: u32 = 10;
/// Number of frames whose time stamps the selftest checks.
const STAMPED: u16 = 64;
/// Duration of a throughput trial at one rate on a card.
const TRIAL: Duration = Duration::from_millis(300);
/// Duration of a throughput trial at one rate on the software NIC.
const TRIAL_ON_MODEL: Duration = Duration::from_millis(100);
/// Completion status `IBV_WC_LOC_LEN_ERR`.
const LOCAL_LENGTH: u32 = 1;
/// Completion status `IBV_WC_LOC_PROT_ERR`.
const LOCAL_PROTECTION: u32 = 4;
/// Completion status `IBV_WC_WR_FLUSH_ERR`.
const FLUSHED: u32 = 5;

/// Runs all selftests that send frames.
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
                flags,
                ..plain
            };
            pass.send(run, sender, &all, false);
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
    } else if !run.is_over() {
        run.record_not_asked(
            "sniffer",
            "sniffer: a copy",
            "requires --disruptive and the sniffer rule",
        );
    }
    too_long(run, sender, &all);
    counters(run, sender, netdev);
    stamps(run, sender, device);
    recovery(run, sender);
    throughput(run, sender, device);
}

/// Tests that a drop rule precedes the other rules: of two test frames only the second one arrives.
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

/// Tests that a sniffer rule gets a copy of a frame that another rule receives.
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

/// Tests the completion status of a frame that is longer than its receive slot.
fn too_long(run: &mut SelftestRun, sender: &Sender, all: &[TestFrame]) {
    let Some(longest) = all.iter().find(|it| it.name == "longest") else {
        return;
    };
    let pass = Pass {
        slot: SHORT_SLOT,
        ..Pass::new("too long", "frames")
    };
    let frames = [longest.bytes.clone()];
    let Some((mut rig, mut generator)) = pass.open(run, sender, &frames) else {
        return;
    };
    let status = generator.send(1).ok().and_then(|_| rig.receive());
    let found = status.as_ref().map(|(_, it)| it.cqe.status);
    let raw = status.as_ref().map(|(_, it)| &it.raw);
    run.expect("frames", "too long: status", LOCAL_LENGTH, found, raw);
}

/// Tests that the device counts frames that find no WQE, because the queues are full and are not
/// polled.
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

/// Tests that the time stamps of frames are in order, and between readings of the device's clock.
fn stamps(run: &mut SelftestRun, sender: &Sender, device: &DeviceFacts) {
    let mask = device.caps.timestamp_mask;
    if mask == 0 {
        run.record_not_asked("timestamp_mask", "stamps", "the device stamps nothing");
        return;
    }
    let pass = Pass {
        stamps: CompletionStamps::Ticks,
        ..Pass::new("stamps", "timestamp_mask")
    };
    let Some((mut rig, mut generator)) = pass.open(run, sender, &[udp(0, 40)]) else {
        return;
    };
    let (mut seen, mut outside, mut last, mut backward) = (0u16, 0, None, 0);
    for _ in 0..STAMPED {
        if run.is_over() {
            return;
        }
        let before = run.context.query_clock();
        let came = generator.send(1).ok().and_then(|_| rig.receive());
        let after = run.context.query_clock();
        let Some((_, it)) = came else { continue };
        seen += 1;
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

/// Measures the distance of the device's real-time stamps from the host's clock.
fn real_time(run: &mut SelftestRun, sender: &Sender) {
    let pass = Pass {
        stamps: CompletionStamps::RealTime,
        ..Pass::new("stamps: real time", "realtime_clock")
    };
    let Some((mut rig, mut generator)) = pass.open(run, sender, &[udp(0, 40)]) else {
        return;
    };
    if let Some((_, it)) = generator.send(1).ok().and_then(|_| rig.receive()) {
        let stamp = it.cqe.timestamp;
        // The stamp has seconds and nanoseconds (PRM, "Real-Time Clock").
        let device = (stamp >> 32) as f64 + (stamp as u32) as f64 / 1e9;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let host = now.map_or(0.0, |it| it.as_secs_f64());
        let id = "stamps: real time, ahead of the host";
        // A clock in TAI is 37 s ahead.
        run.measured("realtime_clock", id, device - host, "s", Some(1.0));
    }
}

/// Tests the recovery of a WQ that a bad memory key has brought into the error state.
fn recovery(run: &mut SelftestRun, sender: &Sender) {
    let subject = "recovery";
    // The frame belongs to a flow of queue 0.
    let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
    let on_0 = |frame: &Vec<u8>| queue_of(frame, HashDepth::L4, &toeplitz, &spread()).2 == 0;
    let Some(frame) = (0..).map(|flow| udp(flow, 40)).find(on_0) else {
        return;
    };
    let pass = Pass::new("recovery", subject);
    let Some((mut rig, mut generator)) = pass.open(run, sender, &[frame]) else {
        return;
    };
    let events = run.request(subject, "recovery: events", |run| {
        AsyncEvents::open(&run.context)
    });
    let Some(mut events) = events else {
        return;
    };
    let queue = &mut rig.queues[0];
    let reset = run.request(subject, "recovery: ready to reset", |_| {
        queue.set_state(None, WqState::Reset)
    });
    let bad = run.request(subject, "recovery: bad keys", |_| queue.make_ready(false));
    if reset.is_none() || bad.is_none() {
        return;
    }
    let mut statuses = Vec::new();
    if generator.send(1).is_ok() {
        while statuses.len() < WRS as usize
            && let Some((_, it)) = rig.receive()
        {
            statuses.push(it.cqe.status);
        }
    }
    if run.is_lost() {
        return;
    }
    let first = statuses.first().copied();
    run.expect(subject, "recovery: status", LOCAL_PROTECTION, first, None);
    let flushed = statuses.iter().filter(|it| **it == FLUSHED).count();
    run.expect(subject, "recovery: flushed", WRS - 1, flushed, None);
    let queue = &mut rig.queues[0];
    let fatal = AsyncEvent::WqFatal(queue.id());
    let came = std::iter::from_fn(|| events.take()).any(|it| it == fatal);
    run.expect(subject, "recovery: event", true, came, None);
    // The kernel's record of the state is still ready. A device may require the actual state.
    let named = "recovery: error to reset, with the state named";
    let unnamed = run.request(subject, "recovery: error to reset", |_| {
        queue.set_state(None, WqState::Reset)
    });
    if unnamed.is_some() {
        run.record_not_asked(subject, named, "the request was accepted without it");
    } else {
        run.request(subject, named, |_| {
            queue.set_state(Some(WqState::Error), WqState::Reset)
        });
    }
    run.request(subject, "recovery: reset to ready", |_| {
        queue.make_ready(true)
    });
    let arrived = generator.send(1).ok().and_then(|_| rig.receive());
    let status = arrived.map(|(_, it)| it.cqe.status);
    run.expect(subject, "recovery: receives again", 0, status, None);
}

/// Measures the highest rate without loss for each number of queues and frame size, searched as in
/// `bench wire`.
fn throughput(run: &mut SelftestRun, sender: &Sender, device: &DeviceFacts) {
    let Some(port) = device.ports.iter().find(|it| it.number == run.port) else {
        return;
    };
    run.announce("measuring the throughput");
    let time = if device.software {
        TRIAL_ON_MODEL
    } else {
        TRIAL
    };
    let mac = MAC.map(|it| format!("{it:02x}")).join(":");
    for (queues, size) in [(1, 64), (1, 1514), (4, 64), (4, 1514)] {
        if run.is_over() {
            return;
        }
        let text = format!(
            "[device]\nname = \"{}\"\nport = {}\n[capture]\nmode = \"filtered\"\nqueues = {queues}\n\
             promiscuous = false\n[output]\nformat = \"none\"\n[[rule]]\ndst_mac = \"{mac}\"\n",
            device.name, run.port
        );
        let id = format!("throughput: {queues} queues, {size} bytes");
        let flows: Vec<_> = (0..256).map(|flow| udp(flow, size - 42)).collect();
        let line = port.rate_gbps * 1e9 / (8.0 * (size as f64 + 24.0));
        let mut best = || -> Result<_, Failure> {
            let plan = Plan::new(&Config::parse(&text)?, std::slice::from_ref(device))?;
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
