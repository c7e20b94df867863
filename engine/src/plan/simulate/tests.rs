//! Tests of simulations with hand-made frames.

use super::*;
use crate::config::Config;
use wqcap_rss::{HashDepth, IndirectionTable, RssKey, Toeplitz};

/// Maximum number of queues in a suggestion of the simulation.
const MOST_QUEUES: u16 = 8;

/// Returns an IPv4 frame of at least 60 bytes with the payload `rest`.
fn ipv4(from: [u8; 4], to: [u8; 4], protocol: u8, rest: &[u8], flags: u8) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([
        0x08, 0x00, 0x45, 0, 0, 0, 0, 0, flags, 0, 64, protocol, 0, 0,
    ]);
    frame.extend(from);
    frame.extend(to);
    frame.extend(rest);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// Returns a UDP frame from 10.0.0.`host`, source port `port`, to 10.1.0.1, port 53.
fn udp(host: u8, port: u16) -> Vec<u8> {
    let ports = [&port.to_be_bytes()[..], &[0, 53, 0, 8, 0, 0]].concat();
    ipv4([10, 0, 0, host], [10, 1, 0, 1], 17, &ports, 0)
}

/// Returns `frame` with its IPv4 addresses and ports swapped: a frame of the flow's opposite
/// direction.
fn reversed(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[26..34].rotate_left(4);
    frame[34..38].rotate_left(2);
    frame
}

/// Runs a simulation of `frames`, stamped at intervals of 1 ns, and checks the sums of its report.
fn simulate(settings: &[(&str, &str)], frames: &[Vec<u8>]) -> SimulationReport {
    let config = Config::with_overrides("", settings).expect("config");
    let mut simulation = Simulation::new(&config, true).expect("simulation");
    for (i, frame) in frames.iter().enumerate() {
        simulation.frame(
            frame,
            u32::try_from(frame.len()).expect("short frame"),
            1_000_000_000 + i as u64,
        );
    }
    let report = simulation.report(MOST_QUEUES);
    let sum = |of: fn(&SimulatedQueue) -> u64| report.queues.iter().map(of).sum::<u64>();
    assert_eq!(
        (sum(|q| q.load.frames), sum(|q| q.load.bytes)),
        (report.frames, report.bytes)
    );
    assert_eq!(report.frames, frames.len() as u64);
    report
}

#[test]
fn further_flows_are_counted_together() {
    let config = Config::with_overrides("", &[("capture.queues", "4")]).expect("config");
    let mut simulation = Simulation::new(&config, false).expect("simulation");
    simulation.tally.flows = flows::Flows::with_most(2);
    for port in [1, 2, 3, 4, 2, 3] {
        simulation.frame(&udp(1, port), 60, 1);
    }
    let report = simulation.report(MOST_QUEUES);
    assert_eq!((report.frames, report.flows), (6, 2));
    assert_eq!(report.further_flows.frames, 3);
    assert_eq!(report.queues.iter().map(|it| it.flows).sum::<u64>(), 2);
    assert_eq!(
        report.queues.iter().map(|it| it.load.frames).sum::<u64>(),
        6
    );
}

/// Returns the setting that a report suggests for a configuration key.
fn suggested<'a>(report: &'a SimulationReport, key: &str) -> &'a SuggestedSetting {
    let suggestion = report.suggestion.as_ref().expect("requested suggestion");
    suggestion
        .settings
        .iter()
        .find(|s| s.key == key)
        .expect("setting of this key")
}

#[test]
fn frames_go_where_rss_sends_them() {
    let frames: Vec<_> = (0..200).map(|i| udp(1, 1000 + i)).collect();
    let report = simulate(&[("capture.queues", "4")], &frames);
    let table = IndirectionTable::new(128, 4, &[]).expect("table");
    let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
    let mut want = [0; 4];
    for frame in &frames {
        want[usize::from(wqcap_rss::queue_of(frame, HashDepth::L4, &toeplitz, &table).2)] += 1;
    }
    assert_eq!(
        report
            .queues
            .iter()
            .map(|q| q.load.frames)
            .collect::<Vec<_>>(),
        want
    );
    assert_eq!(
        report.queues.iter().map(|q| q.flows).collect::<Vec<_>>(),
        want
    );
    let most = want.iter().max().expect("4 queues") * 4;
    assert_eq!(report.skew.frames, Some(most as f64 / 200.0));
}

#[test]
fn reasons_are_distinguished() {
    let mut arp = udp(1, 1);
    arp[13] = 6;
    let mut v6 = udp(1, 1);
    v6[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    v6[20] = 0;
    let frames = [
        arp,
        v6,
        udp(1, 1),
        ipv4([1; 4], [2; 4], 17, &[0; 8], 0x20),
        ipv4([1; 4], [2; 4], 1, &[0; 8], 0),
        ipv4([1; 4], [2; 4], 6, &[0; 8], 0)[..50].to_vec(),
    ];
    let report = simulate(&[], &frames);
    let count = |by: &ByReason, name: &str| by.reasons[name].frames;
    assert_eq!(count(&report.catch_all, "not_ip"), 1);
    assert_eq!(count(&report.catch_all, "truncated_l4"), 1);
    assert_eq!(report.catch_all.load.frames, 2);
    assert_eq!(count(&report.addresses_only, "fragments"), 1);
    assert_eq!(count(&report.addresses_only, "other_protocols"), 1);
    assert_eq!(count(&report.addresses_only, "extension_headers"), 1);
    let by_l3 = simulate(&[("rss.hash", "l3")], &frames);
    assert_eq!(count(&by_l3.addresses_only, "hash_l3"), 1);
    let names: Vec<_> = report.heaviest.iter().map(|f| f.flow.as_str()).collect();
    for name in [
        "udp 10.0.0.1:1 - 10.1.0.1:53",
        "udp fragments 1.1.1.1 - 2.2.2.2",
        "arp 02:02:02:02:02:02 - 02:02:02:02:02:02",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
}

#[test]
fn flows_split_by_a_key_are_counted_and_the_symmetric_key_is_suggested() {
    let mut frames: Vec<_> = (0..100).map(|i| udp(1, 1000 + i)).collect();
    frames.extend((0..50).map(|i| reversed(&udp(1, 1000 + i))));
    let good = simulate(&[("capture.queues", "4")], &frames);
    assert_eq!((good.flows, good.directions.both), (100, 50));
    assert_eq!(good.directions.split, 0);
    assert!(!suggested(&good, "rss.key").changes);

    let settings = [("capture.queues", "4"), ("rss.key", "microsoft")];
    let bad = simulate(&settings, &frames);
    assert!(bad.directions.split > 10 && bad.directions.split <= 50);
    let key = suggested(&bad, "rss.key");
    assert_eq!((key.value.as_str(), key.changes), ("symmetric", true));
    let on_queues: u64 = bad.queues.iter().map(|q| q.flows).sum();
    assert_eq!(on_queues, bad.flows + bad.directions.split);
}

#[test]
fn no_more_queues_are_suggested_than_help() {
    // One flow is most of the load: two queues separate it from the rest, and further queues do not
    // help.
    let mut frames = vec![udp(9, 9); 900];
    frames.extend((0..100).map(|i| udp(1, 1000 + i)));
    let one_flow = simulate(&[("capture.queues", "8")], &frames);
    let queues = suggested(&one_flow, "capture.queues");
    assert!(
        ["1", "2"].contains(&queues.value.as_str()) && queues.why.contains("a single flow has 90"),
        "{queues:?}"
    );
    assert_eq!(one_flow.heaviest[0].load.frames, 900);

    let many: Vec<_> = (0..4000).map(|i| udp((i % 50) as u8, i)).collect();
    let even = simulate(&[("capture.queues", "2")], &many);
    let queues = suggested(&even, "capture.queues");
    assert!(queues.changes && queues.value.parse::<u16>().expect("number") >= 6);
    let suggestion = even.suggestion.expect("requested suggestion");
    assert!(suggestion.busiest_then < suggestion.busiest_now / 2.0);
}

#[test]
fn weights_make_room_for_the_catch_all() {
    let mut frames: Vec<_> = (0..4000).map(|i| udp((i % 50) as u8, i)).collect();
    frames.extend((0..500).map(|_| {
        let mut arp = udp(1, 1);
        arp[13] = 6;
        arp
    }));
    let report = simulate(&[("capture.queues", "4")], &frames);
    let weights = suggested(&report, "rss.weights");
    assert!(weights.changes, "{weights:?}");
    let value: Vec<u32> = weights
        .value
        .trim_matches(['[', ']'])
        .split(", ")
        .map(|w| w.parse().expect("number"))
        .collect();
    assert!(value[0] < value[1], "{value:?}");
    // The suggested settings reach the predicted share.
    let queues = suggested(&report, "capture.queues").value.clone();
    let followed = simulate(
        &[
            ("capture.queues", queues.as_str()),
            ("rss.weights", weights.value.as_str()),
        ],
        &frames,
    );
    let most = followed
        .queues
        .iter()
        .map(|q| q.load.frames)
        .max()
        .expect("at least one");
    let then = report
        .suggestion
        .as_ref()
        .expect("requested suggestion")
        .busiest_then;
    assert!((most as f64 / 4500.0 - then).abs() < 1e-9);
}

#[test]
fn many_fragments_suggest_hashing_addresses_only() {
    let mut frames: Vec<_> = (0..4000).map(|i| udp((i % 250) as u8, i)).collect();
    frames.extend((0..2000).map(|i| {
        ipv4(
            [10, 0, 0, (i % 250) as u8],
            [10, 1, 0, 1],
            17,
            &[0; 8],
            0x20,
        )
    }));
    let report = simulate(&[("capture.queues", "2")], &frames);
    let hash = suggested(&report, "rss.hash");
    assert!(
        hash.why.contains("fragments") == (hash.value == "l3"),
        "{hash:?}"
    );
}

#[test]
fn a_capture_without_frames_has_no_suggestion() {
    let report = simulate(&[], &[]);
    assert!(report.suggestion.is_none() && report.skew.frames.is_none());
}

#[test]
fn rules_are_applied_before_hashes() {
    let rules = r#"
        [capture]
        mode = "filtered"
        queues = 4
        [[rule]]
        proto = "udp"
        src_port = 7
        action = "drop"
        [[rule]]
        src = "10.0.0.9"
        queue = 2
        priority = 1
        [[rule]]
        proto = "udp"
        priority = 2
    "#;
    let config = Config::with_overrides(rules, &[]).expect("config");
    let mut simulation = Simulation::new(&config, true).expect("simulation");
    let icmp = ipv4([10, 0, 0, 1], [10, 1, 0, 1], 1, &[8; 8], 0);
    // A rule that names a protocol is assumed not to match fragments.
    let fragment = ipv4([10, 0, 0, 1], [10, 1, 0, 1], 17, &[8; 8], 0x20);
    for frame in [udp(1, 7), udp(9, 8), udp(9, 9), udp(1, 8), icmp, fragment] {
        simulation.frame(&frame, 60, 1);
    }
    let report = simulation.report(MOST_QUEUES);
    assert_eq!((report.dropped.frames, report.left.frames), (1, 2));
    assert_eq!((report.frames, report.flows), (3, 3));
    assert!(report.queues[2].load.frames >= 2, "{:?}", report.queues);
    assert_eq!(report.catch_all.load.frames, 0);
}

#[test]
fn a_truncated_tunnel_is_parsed_as_far_as_the_file_holds_it() {
    let settings = [("rss.inner", "true"), ("capture.queues", "8")];
    let inner = udp(3, 4000);
    let mut whole = ipv4([1, 1, 1, 1], [2, 2, 2, 2], 47, &[0, 0, 0x65, 0x58], 0);
    whole.truncate(38);
    whole.extend(&inner);
    let queue = |there: usize| {
        let config = Config::with_overrides("", &settings).expect("config");
        let mut simulation = Simulation::new(&config, false).expect("simulation");
        let len = u32::try_from(whole.len()).expect("short frame");
        simulation.frame(&whole[..there], len, 1);
        let report = simulation.report(MOST_QUEUES);
        let busy = report
            .queues
            .iter()
            .find(|q| q.load.frames > 0)
            .expect("a queue with frames");
        (busy.queue, report.heaviest[0].flow.clone())
    };
    let all = queue(whole.len());
    assert_eq!(all.1, "udp 10.0.0.3:4000 - 10.1.0.1:53");
    assert_eq!(queue(38 + 38), all, "the file holds the ports");
    assert!(
        queue(38 + 20).1.starts_with("gre 1.1.1.1"),
        "{:?}",
        queue(58)
    );
}
