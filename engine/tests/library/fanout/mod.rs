//! Tests of the fan-out pipeline under load with custom consumers: slow parsers, parsers that panic, and
//! faults while parsers hold slots.
//!
//! Each test runs a capture on the software NIC in a child process, which is this program at
//! [`child::child`], and reads its output.

mod child;

use std::{collections::BTreeMap, process::Command, time::Duration};
use wqcap_testkit::{
    Dir, Done, Program, files,
    frames::{self, Ends, Frame},
    model::model,
    skip,
};

const COUNT: u64 = 6000;

/// Settings of a child's run.
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

    /// Sets `FANOUT_{key}` in the child's environment: a configuration setting or a request to the child.
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
            "fanout::child::child",
            "--exact",
            "--ignored",
            "--nocapture",
        ];
        let mut run: Program = model(&[&self.wire], fault.as_deref().as_slice(), program);
        for (key, value) in &self.settings {
            run = run.env(format!("FANOUT_{key}"), value);
        }
        Told::new(run.timeout(Duration::from_secs(300)).run().expect(0))
    }
}

/// Output of a child: numbers by name, and the end of the run.
struct Told {
    numbers: BTreeMap<String, u64>,
    end: String,
    done: Done,
}

impl Told {
    fn new(done: Done) -> Self {
        let mut result = Self {
            numbers: BTreeMap::new(),
            end: String::new(),
            done,
        };
        for line in result.done.stdout.lines() {
            if let Some((name, value)) = line.strip_prefix("= ").and_then(|it| it.split_once(' ')) {
                match value.parse() {
                    Ok(number) => _ = result.numbers.insert(name.to_owned(), number),
                    Err(_) => value.clone_into(&mut result.end),
                }
            }
        }
        result
    }

    #[track_caller]
    fn number(&self, name: &str) -> u64 {
        *self
            .numbers
            .get(name)
            .unwrap_or_else(|| panic!("no {name}: {}", self.done))
    }

    /// Checks the invariants of every run: the ledger adds up, each flow stays on its parser and in order,
    /// and the consumers got all captured frames.
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
fn frames_dropped_by_slow_parsers_are_counted() {
    for parsers in [1, 3] {
        let result = Run::new()
            .set("parsers", parsers)
            .set("on_full", "drop")
            .set("delay_us", 100)
            .done();
        result.assert_sound();
        assert_eq!(result.end, "PortDown", "{}", result.done);
        assert_eq!(result.number("received"), COUNT);
        let dropped = result.number("dropped_pipeline");
        assert!(dropped > 0, "{}", result.done);
        assert_eq!(result.number("captured") + dropped, COUNT);
    }
}

#[test]
fn slow_parsers_with_hold_lose_no_frames() {
    for (parsers, queues) in [(1, 1), (3, 1), (2, 2)] {
        for access in ["auto", "verbs"] {
            let result = Run::new()
                .set("parsers", parsers)
                .set("queues", queues)
                .set("access", access)
                .set("on_full", "hold")
                .set("delay_us", 20)
                .done();
            result.assert_sound();
            assert_eq!(result.end, "PortDown", "{}", result.done);
            assert_eq!(result.number("captured"), COUNT, "{}", result.done);
            // Every parser gets frames, because there are 64 flows.
            assert_eq!(result.number("busy"), parsers * queues, "{}", result.done);
        }
    }
}

#[test]
fn a_very_small_ring_works() {
    for ring in [1, 2, 8] {
        let result = Run::new()
            .wire("synth:size=100,flows=64,count=500")
            .set("parsers", 3)
            .set("ring", ring)
            .set("on_full", "hold")
            .done();
        result.assert_sound();
        assert_eq!(result.number("captured"), 500, "{}", result.done);
    }
}

#[test]
fn a_wq_is_recovered_while_parsers_hold_its_slots() {
    for access in ["auto", "verbs"] {
        for on_full in ["hold", "drop"] {
            let result = Run::new()
                .fault("wq_fatal:queue=0@frames=1000;wq_fatal:queue=0@frames=3000")
                .set("parsers", 2)
                .set("access", access)
                .set("on_full", on_full)
                .set("delay_us", 20)
                .done();
            result.assert_sound();
            assert_eq!(result.end, "PortDown", "{}", result.done);
            assert_eq!(result.number("recoveries"), 2, "{}", result.done);
            assert_eq!(result.number("received"), COUNT, "{}", result.done);
            if on_full == "hold" {
                assert_eq!(result.number("captured"), COUNT, "{}", result.done);
            }
        }
    }
}

#[test]
fn a_stop_waits_for_the_slots_that_parsers_hold() {
    for on_full in ["hold", "drop"] {
        let result = Run::new()
            .wire("synth:size=100,flows=64")
            .set("parsers", 2)
            .set("on_full", on_full)
            .set("delay_us", 200)
            .set("stop_after", 200)
            .done();
        result.assert_sound();
        assert_eq!(result.end, "Stopped", "{}", result.done);
        assert!(result.number("captured") >= 200);
    }
}

#[test]
fn a_count_is_exact() {
    for parsers in [1, 3] {
        let result = Run::new()
            .set("parsers", parsers)
            .set("on_full", "hold")
            .set("delay_us", 20)
            .set("count", 777)
            .done();
        result.assert_sound();
        assert_eq!(result.end, "Count", "{}", result.done);
        assert_eq!(result.number("captured"), 777);
    }
}

#[test]
fn a_filter_changes_for_all_parsers_between_two_rounds() {
    let result = Run::new()
        .set("parsers", 3)
        .set("on_full", "hold")
        .set("delay_us", 20)
        .set("filter_after", 1000)
        .done();
    result.assert_sound();
    let captured = result.number("captured");
    assert!((1000..COUNT).contains(&captured), "{}", result.done);
    assert_eq!(result.number("filtered"), COUNT - captured);
    // The wire numbers its frames: all frames before the change were captured, and none behind it.
    assert_eq!(
        result.number("last_number"),
        captured - 1,
        "{}",
        result.done
    );
}

#[test]
fn a_parser_that_panics_ends_the_run_and_the_ledger_adds_up() {
    for (parsers, on_full) in [(1, "hold"), (3, "hold"), (3, "drop")] {
        let result = Run::new()
            .set("parsers", parsers)
            .set("on_full", on_full)
            .set("panic_after", 100)
            .done();
        assert_eq!(result.number("unbalanced"), 0, "{}", result.done);
        assert!(result.end.contains("ended in a panic"), "{}", result.done);
        assert!(result.number("dropped_pipeline") > 0, "{}", result.done);
    }
}

/// Returns DNS queries mixed with other frames, and the number of queries.
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
        // A query for the name servers of the root zone.
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

/// Sets the lengths of IP and UDP, which a dissector reads and which the test kit's frames leave at 0.
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
