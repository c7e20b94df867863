//! Inner tests: ignored without a NIC, run by the tests in `main.rs`.

use super::{on_the_wire, pass, until};
use std::{
    borrow::Cow,
    collections::HashSet,
    ops::Range,
    time::{Duration, Instant},
};
use wqcap_engine::{
    Wakeup,
    capture::{Capture, End, Limits, Report, Resources, Respread, Snapshot},
    config::{Config, RuleConfig},
    device,
    plan::Plan,
    stats::Counter,
};
use wqcap_rss::{FrameClass, HashDepth, Profile, RssKey, Toeplitz};
use wqcap_testkit::{
    files,
    frames::{self, Ends, Frame},
};

const QUEUES: usize = 4;

fn start(settings: &[(&str, &str)]) -> Capture {
    start_as("", settings)
}

/// Starts a capture with the configuration file `text` and overrides.
fn start_as(text: &str, settings: &[(&str, &str)]) -> Capture {
    let dir = std::env::var(super::DIR).expect("run by the test in main.rs");
    let mut all = vec![
        ("capture.queues", "4"),
        // Room for half a second at 200,000 frames per second, during which a loop may not run.
        ("capture.ring", "32768"),
        ("capture.buffer", "128"),
        ("capture.idle", "sleep"),
        ("output.format", "pcap"),
        ("output.on_full", "hold"),
        ("output.buffer", "64MiB"),
        ("output.dir", &dir),
    ];
    all.extend(settings);
    let config = Config::with_overrides(text, &all).expect("a configuration");
    let plan = Plan::new(&config, &device::list().expect("devices")).expect("a plan");
    Capture::start(
        &plan,
        &Resources::default(),
        Limits::default(),
        &Wakeup::new().expect("a descriptor"),
    )
    .expect("the capture starts")
}

#[test]
#[ignore = "run by its outer test on the software NIC"]
fn woken() {
    let mut capture = start(&[]);
    let far = Instant::now() + super::PATIENCE;
    let waker = capture.wakeup();
    for _ in 0..10 {
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            assert!(!capture.wait(far), "the run has ended");
        });
    }
    assert!(Instant::now() < far, "the wait was not woken");
    assert_eq!(capture.finish().end, End::Stopped);
}

/// Returns the records of the run's files.
fn records(report: &Report) -> Vec<files::Record> {
    report
        .files
        .iter()
        .flat_map(|file| files::read(&file))
        .collect()
}

/// Checks that each frame of the wire with one of these numbers was captured once, except frames that the
/// NIC counted as lost because it had no buffer, and that no frame was captured twice.
fn assert_each_once(report: &Report, records: &[files::Record], numbers: Range<u64>) {
    assert_eq!(report.end, End::Stopped);
    for queue in &report.queues {
        assert_eq!(queue.received, queue.captured + queue.errors, "{queue:?}");
        assert_eq!(queue.errors, 0);
    }
    let number = |record: &files::Record| {
        let last = record.bytes.last_chunk().expect("64 bytes");
        u64::from_le_bytes(*last)
    };
    let seen: HashSet<u64> = records.iter().map(number).collect();
    assert_eq!(seen.len(), records.len(), "frames were captured twice");
    let Counter::Value(no_buffer) = report.nic["out_of_buffer"] else {
        panic!("{:?}", report.nic)
    };
    let missing = numbers.clone().filter(|it| !seen.contains(it)).count() as u64;
    println!(
        "figure: {} frames, {missing} missing, {no_buffer} out of buffers",
        seen.len()
    );
    assert!(
        missing <= no_buffer,
        "{missing} missing of {numbers:?}, {no_buffer} out of buffers"
    );
}

/// Calls `change` `times` times with frames in between, and ends the run. Returns the report and the
/// numbers of the frames that arrived while rules were installed.
fn change(
    mut capture: Capture,
    times: usize,
    mut change: impl FnMut(&mut Capture, usize),
) -> (Report, Range<u64>) {
    const BETWEEN: u64 = 2000;
    let first = on_the_wire();
    for i in 0..times {
        pass(&mut capture, BETWEEN);
        change(&mut capture, i);
    }
    pass(&mut capture, BETWEEN);
    let last = on_the_wire();
    (capture.finish(), first..last)
}

#[test]
#[ignore = "run by its outer test on the software NIC"]
fn swapped() {
    let tables = [[1, 0, 0, 0], [0, 1, 1, 0], [1, 1, 1, 1], [3, 0, 2, 1]];
    let (report, numbers) = change(start(&[]), 60, |capture, i| {
        let weights = tables[i % tables.len()].to_vec();
        let done = capture.respread(&Respread::Weights(weights));
        assert!(done.expect("swapped").moved > 0);
    });
    assert_each_once(&report, &records(&report), numbers);
    let busy = report.queues.iter().filter(|q| q.received > 0).count();
    assert_eq!(busy, QUEUES);
}

fn rule(text: &str) -> RuleConfig {
    let config = Config::parse(&format!(
        "capture.mode = \"filtered\"\n[[rule]]\n{}",
        text.replace(';', "\n")
    ));
    config.expect("a rule").rule.remove(0)
}

#[test]
#[ignore = "run by its outer test on the software NIC"]
fn ruled() {
    // A rule for all frames stays installed, so that each frame is captured once whichever rules are added and removed.
    let all = "[capture]\nmode = \"filtered\"\n[[rule]]\npriority = 2\n";
    let texts = [
        "id = \"a\"; proto = \"udp\"; queue = 1",
        "proto = \"tcp\"",
        "src = \"10.0.0.0/8\"; priority = 3",
        "ethertype = 0x86dd; queue = 3; priority = 1",
        "priority = 4",
        "vlan = 7; priority = 1; action = \"drop\"",
    ];
    let rules = texts.map(rule);
    let (report, numbers) = change(start_as(all, &[]), 40, |capture, i| {
        let it = &rules[i % rules.len()];
        let there = capture.rules().expect("filtered").contains(it);
        let changed = if there {
            capture.remove_rule(it).map(|_| true)
        } else {
            capture.add_rule(it)
        };
        assert!(changed.expect("changed"));
        if i % 5 == 4 {
            let weights = if i % 2 == 0 {
                [1, 2, 3, 4]
            } else {
                [4, 3, 2, 1]
            };
            let how = Respread::Weights(weights.to_vec());
            capture.respread(&how).expect("swapped");
        }
    });
    assert_each_once(&report, &records(&report), numbers);
}

#[test]
#[ignore = "run by its outer test on the software NIC"]
fn rules_refused() {
    let all =
        "[capture]\nmode = \"filtered\"\n[[rule]]\nid = \"udp\"\nproto = \"udp\"\nqueue = 0\n";
    let mut capture = start_as(all, &[]);
    let mut refused = |text: &str, words: &[&str]| {
        let error = capture.add_rule(&rule(text)).expect_err(text).to_string();
        for word in words {
            assert!(error.contains(word), "{text}: {error}");
        }
    };
    refused(
        "dst = \"10.0.0.0/8\"; queue = 1",
        &["rule 2", "rule 1", "priority"],
    );
    refused("id = \"udp\"; proto = \"tcp\"", &["rule: id", "queue = 0"]);
    refused("queue = 4", &["queues 0 to 3"]);
    // A value that no configuration file can contain.
    let beyond = RuleConfig {
        vlan: Some(5000),
        ..RuleConfig::default()
    };
    let error = capture.add_rule(&beyond).expect_err("beyond").to_string();
    assert!(error.contains("4095"), "{error}");
    let udp = rule("id = \"udp\"; proto = \"udp\"; queue = 0");
    assert!(!capture.add_rule(&udp).expect("the rule exists"));
    let received = |capture: &Capture| capture.snapshot().queues[0].received;
    let until_more = |capture: &mut Capture| {
        let before = received(capture);
        until(capture, "frames arrive", |it| received(it) > before + 100);
    };
    until_more(&mut capture);
    // The rule is removed by its id alone. Then no frame matches.
    capture.remove_rule(&rule("id = \"udp\"")).expect("removed");
    let again = capture.remove_rule(&rule("id = \"udp\""));
    assert!(
        again
            .expect_err("none")
            .to_string()
            .contains("has no such flow rule")
    );
    // The rule matched all frames. Without a rule the synthetic wire pauses.
    let passed = on_the_wire();
    until(&mut capture, "all frames are received", |it| {
        received(it) == passed
    });
    assert!(!capture.wait(Instant::now() + Duration::from_millis(100)));
    assert_eq!((on_the_wire(), received(&capture)), (passed, passed));
    // While the capture is paused, rules can still be added.
    capture.pause();
    assert!(capture.add_rule(&udp).expect("added"));
    let how = Respread::Weights(vec![1, 0, 0, 0]);
    assert!(capture.respread(&how).expect("made").moved > 0);
    let config = Config::with_overrides(all, &[("capture.queues", "4")]).expect("as before");
    let plan = Plan::new(&config, &device::list().expect("devices")).expect("a plan");
    capture.resume(&plan).expect("rules");
    until_more(&mut capture);
    let report = capture.finish();
    let added = |note: &Cow<'_, str>| note.contains("a flow rule was");
    assert_eq!(
        report.notes.lines().filter(added).count(),
        2,
        "{:?}",
        report.notes
    );
}

/// Returns frames of 100 UDP flows that all go to queue 0 of four, through many entries of a table of
/// 128.
pub(super) fn skewed_flows() -> Vec<Vec<u8>> {
    let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
    let mut flows = Vec::new();
    for sport in 1000.. {
        let ends = Ends {
            from: 1,
            to: 2,
            sport,
            dport: 53,
        };
        let frame = Frame::ethernet(&[], frames::IPV4).ipv4(ends, 17, 0);
        let frame = frame.udp(ends).payload(22).done();
        let class = FrameClass::from_frame(&frame);
        assert_eq!(class.profile(HashDepth::L4), Profile::Ipv4Udp);
        let fields = Profile::Ipv4Udp.hash_fields();
        let hash = class.hash(&frame, fields, &toeplitz).expect("hashed");
        if hash.is_multiple_of(4) {
            flows.push(frame);
        }
        if flows.len() == 100 {
            break;
        }
    }
    flows
}

/// Returns the busiest queue's share of the frames received between two snapshots, relative to an equal
/// share.
fn skew(from: &Snapshot, to: &Snapshot) -> f64 {
    let grown = |i: usize| (to.queues[i].received - from.queues[i].received) as f64;
    let all: Vec<f64> = (0..QUEUES).map(grown).collect();
    let most = all.iter().copied().fold(0.0, f64::max);
    most * QUEUES as f64 / all.iter().sum::<f64>().max(1.0)
}

#[test]
#[ignore = "run by its outer test on the software NIC"]
fn relieved() {
    let mut capture = start(&[("rss.respread", "true"), ("output.format", "none")]);
    let before = capture.table().to_vec();
    until(&mut capture, "the queue is relieved", |it| {
        it.table() != before
    });
    // The promise is less than 1.5 times an equal share. If the samples of one second were poor, another change
    // follows.
    let now = loop {
        pass(&mut capture, 1000);
        let from = capture.snapshot();
        pass(&mut capture, 100_000);
        let now = skew(&from, &capture.snapshot());
        if now < 1.5 {
            break now;
        }
    };
    println!("figure: the busiest queue has {now:.2} times its share");
    let report = capture.finish();
    for queue in &report.queues {
        assert_eq!(queue.received, queue.captured, "{queue:?}");
    }
    let notes: Vec<_> = report
        .notes
        .lines()
        .filter(|it| it.contains("re-spread"))
        .collect();
    assert!(
        notes[0].contains("the busiest queue had 4.00 times its share"),
        "{notes:?}"
    );
}

#[test]
#[ignore = "run by its outer test on the software NIC"]
fn stripped() {
    let (report, numbers) = change(start(&[("capture.receive", "frame")]), 40, |capture, i| {
        capture
            .wq_flags_handle()
            .set_cvlan_stripping(i % 2 == 0)
            .expect("changed");
    });
    let records = records(&report);
    for record in &records {
        assert_eq!(record.bytes.len(), 64);
        assert_eq!(record.bytes[12..16], [0x81, 0, 0, 5]);
    }
    assert_each_once(&report, &records, numbers);
}

#[test]
#[ignore = "run by its outer test on the software NIC"]
fn refused() {
    // The verbs do not report whether a tag was stripped.
    let mut capture = start(&[("capture.access", "verbs")]);
    let error = capture
        .wq_flags_handle()
        .set_cvlan_stripping(true)
        .expect_err("refused");
    assert!(error.to_string().contains("output.vlan"), "{error}");
    capture
        .wq_flags_handle()
        .set_cvlan_stripping(false)
        .expect("stripping is off already");
    let error = capture.add_rule(&rule("vlan = 1")).expect_err("refused");
    assert!(error.to_string().contains("filtered"), "{error}");
    let error = capture
        .respread(&Respread::Weights(vec![1, 1]))
        .expect_err("refused");
    assert!(error.to_string().contains("rss.weights"), "{error}");
    let same = capture
        .respread(&Respread::Weights(vec![1; QUEUES]))
        .expect("nothing to do");
    assert_eq!(same.moved, 0);
    let received = |it: &Capture| it.snapshot().queues.iter().map(|q| q.received).sum::<u64>();
    let before = received(&capture);
    until(&mut capture, "frames arrive", |it| received(it) > before);
    assert_eq!(capture.finish().end, End::Stopped);
}
