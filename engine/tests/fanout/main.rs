//! The fan-out pipeline under load, with consumers of one's own: slow ones, broken ones, and faults while slots are
//! away.
//!
//! Each test runs a capture in a child on the software NIC, which is this very program at [`child::child`], and reads
//! what it prints.

mod child;

use std::{collections::BTreeMap, process::Command, time::Duration};
use wqcap_tests::{
    Dir, Done, Program, files,
    frames::{self, Ends, Frame},
    skip,
    wqcap::model,
};

const COUNT: u64 = 6000;

/// What a child is to do.
struct Run {
    wire: String,
    fault: Option<&'static str>,
    settings: Vec<(&'static str, String)>,
}

impl Run {
    fn new() -> Self {
        Self {
            wire: format!("synth:size=100,flows=64,count={COUNT}"),
            fault: None,
            settings: Vec::new(),
        }
    }

    /// A line of the child's configuration, or of its orders ([`child::Orders`]).
    fn set(mut self, key: &'static str, value: impl ToString) -> Self {
        self.settings.push((key, value.to_string()));
        self
    }

    fn fault(mut self, fault: &'static str) -> Self {
        self.fault = Some(fault);
        self
    }

    fn wire(mut self, wire: &str) -> Self {
        wire.clone_into(&mut self.wire);
        self
    }

    #[track_caller]
    fn done(&self) -> Told {
        let exe = std::env::current_exe().expect("a running program has a path");
        let fault = self.fault.map(|fault| format!("fault={fault}"));
        let program = [
            exe.to_str().expect("a path in UTF-8"),
            "child::child",
            "--exact",
            "--ignored",
            "--nocapture",
        ];
        let mut run: Program = model(&[&self.wire], fault.as_deref().as_slice(), program);
        for (key, value) in &self.settings {
            run = run.env(format!("FANOUT_{key}"), value);
        }
        Told::of(run.timeout(Duration::from_secs(300)).run().expect(0))
    }
}

/// What a child has told: numbers by name, and the run's end.
struct Told {
    numbers: BTreeMap<String, u64>,
    end: String,
    done: Done,
}

impl Told {
    fn of(done: Done) -> Self {
        let mut told = Self {
            numbers: BTreeMap::new(),
            end: String::new(),
            done,
        };
        for line in told.done.stdout.lines() {
            if let Some((name, value)) = line.strip_prefix("= ").and_then(|it| it.split_once(' ')) {
                match value.parse() {
                    Ok(number) => _ = told.numbers.insert(name.to_owned(), number),
                    Err(_) => value.clone_into(&mut told.end),
                }
            }
        }
        told
    }

    #[track_caller]
    fn number(&self, name: &str) -> u64 {
        *self
            .numbers
            .get(name)
            .unwrap_or_else(|| panic!("no {name}: {}", self.done))
    }

    /// What holds in every run: the ledger adds up, a flow stays on its parser and in order, and every line of the
    /// ledger says what the consumers have seen.
    #[track_caller]
    fn assert_sound(&self) {
        assert_eq!(self.number("unbalanced"), 0, "{}", self.done);
        assert_eq!(self.number("disorder"), 0, "{}", self.done);
        assert_eq!(self.number("strays"), 0, "{}", self.done);
        assert_eq!(
            self.number("captured"),
            self.number("seen"),
            "{}",
            self.done
        );
    }
}

#[test]
fn slow_parsers_that_drop_count_what_they_drop() {
    for parsers in [1, 3] {
        let told = Run::new()
            .set("parsers", parsers)
            .set("on_full", "drop")
            .set("delay_us", 100)
            .done();
        told.assert_sound();
        assert_eq!(told.end, "PortDown", "{}", told.done);
        assert_eq!(told.number("received"), COUNT);
        let dropped = told.number("dropped_pipeline");
        assert!(dropped > 0, "{}", told.done);
        assert_eq!(told.number("captured") + dropped, COUNT);
    }
}

#[test]
fn slow_parsers_that_hold_lose_nothing() {
    for (parsers, queues) in [(1, 1), (3, 1), (2, 2)] {
        for access in ["auto", "verbs"] {
            let told = Run::new()
                .set("parsers", parsers)
                .set("queues", queues)
                .set("access", access)
                .set("on_full", "hold")
                .set("delay_us", 20)
                .done();
            told.assert_sound();
            assert_eq!(told.end, "PortDown", "{}", told.done);
            assert_eq!(told.number("captured"), COUNT, "{}", told.done);
            // Every parser had its part: 64 flows leave none out.
            assert_eq!(told.number("busy"), parsers * queues, "{}", told.done);
        }
    }
}

#[test]
fn a_ring_smaller_than_its_parsers_share_goes_on() {
    for ring in [1, 2, 8] {
        let told = Run::new()
            .wire("synth:size=100,flows=64,count=500")
            .set("parsers", 3)
            .set("ring", ring)
            .set("on_full", "hold")
            .done();
        told.assert_sound();
        assert_eq!(told.number("captured"), 500, "{}", told.done);
    }
}

#[test]
fn a_wq_is_recovered_while_its_slots_are_with_the_parsers() {
    for access in ["auto", "verbs"] {
        for on_full in ["hold", "drop"] {
            let told = Run::new()
                .fault("wq_fatal:queue=0@frames=1000;wq_fatal:queue=0@frames=3000")
                .set("parsers", 2)
                .set("access", access)
                .set("on_full", on_full)
                .set("delay_us", 20)
                .done();
            told.assert_sound();
            assert_eq!(told.end, "PortDown", "{}", told.done);
            assert_eq!(told.number("recoveries"), 2, "{}", told.done);
            assert_eq!(told.number("received"), COUNT, "{}", told.done);
            if on_full == "hold" {
                assert_eq!(told.number("captured"), COUNT, "{}", told.done);
            }
        }
    }
}

#[test]
fn a_stop_waits_for_the_slots_that_are_away() {
    for on_full in ["hold", "drop"] {
        let told = Run::new()
            .wire("synth:size=100,flows=64")
            .set("parsers", 2)
            .set("on_full", on_full)
            .set("delay_us", 200)
            .set("stop_after", 200)
            .done();
        told.assert_sound();
        assert_eq!(told.end, "Stopped", "{}", told.done);
        assert!(told.number("captured") >= 200);
    }
}

#[test]
fn a_count_is_exact() {
    for parsers in [1, 3] {
        let told = Run::new()
            .set("parsers", parsers)
            .set("on_full", "hold")
            .set("delay_us", 20)
            .set("count", 777)
            .done();
        told.assert_sound();
        assert_eq!(told.end, "Count", "{}", told.done);
        assert_eq!(told.number("captured"), 777);
    }
}

#[test]
fn a_filter_changes_between_two_rounds_for_all_parsers() {
    let told = Run::new()
        .set("parsers", 3)
        .set("on_full", "hold")
        .set("delay_us", 20)
        .set("filter_after", 1000)
        .done();
    told.assert_sound();
    let captured = told.number("captured");
    assert!((1000..COUNT).contains(&captured), "{}", told.done);
    assert_eq!(told.number("filtered"), COUNT - captured);
    // The wire numbers its frames: those before the change are there without a gap, and none behind it.
    assert_eq!(told.number("last_number"), captured - 1, "{}", told.done);
}

#[test]
fn a_parser_that_panics_ends_the_run_and_the_ledger_closes() {
    for (parsers, on_full) in [(1, "hold"), (3, "hold"), (3, "drop")] {
        let told = Run::new()
            .set("parsers", parsers)
            .set("on_full", on_full)
            .set("panic_after", 100)
            .done();
        assert_eq!(told.number("unbalanced"), 0, "{}", told.done);
        assert!(told.end.contains("ended in a panic"), "{}", told.done);
        assert!(told.number("dropped_pipeline") > 0, "{}", told.done);
    }
}

/// Queries and what is none, and how many queries there are.
fn dns() -> (Vec<Vec<u8>>, usize) {
    let (mut sent, mut queries) = (Vec::new(), 0);
    for i in 0..300 {
        let there = Ends {
            from: 1 + i % 9,
            to: 100,
            sport: 3000 + i,
            dport: if i % 5 == 4 { 5353 } else { 53 },
        };
        let header = |flags: u8| [0, 1, flags, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        // Query for the root's name servers.
        let question = [0, 0, 2, 0, 1];
        let v6 = i % 3 == 0;
        let tags: &[(u16, u16)] = if i % 7 == 0 { &[(0x8100, 12)] } else { &[] };
        for (ends, flags) in [(there, 0), (there.back(), 0x80)] {
            let ethernet = Frame::ethernet(tags, if v6 { frames::IPV6 } else { frames::IPV4 });
            let ip = if v6 {
                ethernet.ipv6(ends, 17)
            } else {
                ethernet.ipv4(ends, 17, 0)
            };
            let mut frame = ip.udp(ends).payload(17).done();
            let at = frame.len() - 17;
            frame[at..at + 12].copy_from_slice(&header(flags));
            frame[at + 12..].copy_from_slice(&question);
            set_lengths(&mut frame, at, v6);
            sent.push(frame);
        }
        queries += usize::from(there.dport == 53);
    }
    (sent, queries)
}

/// Fills in what a dissector reads and the kit's frames leave at 0: the lengths of IP and UDP.
fn set_lengths(frame: &mut [u8], payload: usize, v6: bool) {
    let udp = payload - 8;
    let length = |bytes: usize| u16::try_from(bytes).expect("short").to_be_bytes();
    let (end, ip) = (frame.len(), if v6 { udp - 40 } else { udp - 20 });
    frame[udp + 4..udp + 6].copy_from_slice(&length(end - udp));
    if v6 {
        frame[ip + 4..ip + 6].copy_from_slice(&length(end - udp));
    } else {
        frame[ip + 2..ip + 4].copy_from_slice(&length(end - ip));
    }
}

#[test]
fn the_example_counts_the_queries_that_tshark_counts() {
    let dir = Dir::new();
    let (sent, queries) = dns();
    let file = dir.join("dns.pcap");
    files::write(&file, 1_600_000_000, &sent);

    let tests = std::env::current_exe().expect("a running program has a path");
    let example = tests
        .ancestors()
        .nth(2)
        .map(|profile| profile.join("examples/dns"))
        .expect("tests run from target/PROFILE/deps");
    let example = example.to_str().expect("a path in UTF-8");
    let wire = format!("pcap:{}", file.display());
    let done = model(&[&wire], &[], [example, "mlx5_0"]).run().expect(0);
    assert_eq!(done.stdout, format!("{queries} DNS queries\n"));

    let mut tshark = Command::new("tshark");
    tshark
        .arg("-r")
        .arg(&file)
        .args(["-Y", "udp.dstport == 53 && dns.flags.response == 0"]);
    match tshark.output() {
        Ok(it) => assert_eq!(
            String::from_utf8_lossy(&it.stdout).lines().count(),
            queries,
            "{it:?}"
        ),
        Err(e) => skip!("tshark cannot be run: {e}"),
    }
}
