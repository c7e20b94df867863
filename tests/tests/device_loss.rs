//! What a capture does when it can receive nothing for a while: its device is lost and comes back, or its port goes down.
//!
//! | test | shows |
//! |---|---|
//! | `a_patient_wire_loses_nothing` | every frame is there once after three losses, whatever works on them, and files say where the gaps are |
//! | `what_a_lossy_wire_brings_meanwhile_is_the_gap` | under load, what is missing lies in the gap, and is one piece |
//! | `others_read_the_gap` | tshark and capinfos read the files, and show the gap |
//! | `a_stream_goes_on_in_a_new_section` | `output.stdout` across a loss |
//! | `a_device_that_stays_away_ends_with_a_signal` | waits that grow, files that are whole, status 0 |
//! | `limits_hold_across_a_loss` | `--count` and `--duration` |
//! | `without_retry_it_ends` | `device.on_loss = "stop"` |
//! | `orders_end_the_search` | `stop`, `start` and `shutdown` while the device is away |
//! | `control_and_metrics_go_on` | states, refusals, what was changed holds, counters never fall |
//! | `a_drained_capture_stays_so` | nothing is let in that nobody wants |
//! | `a_flapping_port_is_a_gap_in_the_files` | ports that go down and come up, with the same queues |

use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use wqcap_tests::{Dir, Done, Finished, Program, Running, Wqcap, files, wqcap::wqcap};

const COUNT: u64 = 20_000;
/// Enough for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(40);
/// How far stamps and the host's own look at the clock may be apart, in nanoseconds.
const CLOCKS: u64 = 50_000_000;

/// A run of numbered frames of 64 flows that looks for its device when it is lost.
fn run<'d>(dir: &'d Dir, name: &str, wire: &str, fault: &str) -> Wqcap<'d> {
    Wqcap::run(dir, name)
        .model(wire)
        .set(&format!("model.fault={fault}"))
        .set("device.on_loss=retry")
        .set("output.format=pcapng")
        .queues(2)
}

/// A wire that waits for whoever takes its frames, and ends after `COUNT` of them.
fn patient() -> String {
    format!("synth:size=100,flows=64,count={COUNT}")
}

/// One of the summary's outages.
#[derive(Debug)]
struct Outage {
    cause: String,
    from: u64,
    to: Option<u64>,
}

/// The summary's outages, which agree with their sums.
#[track_caller]
fn outages(finished: &Finished) -> Vec<Outage> {
    let json = &finished.summary.json["outages"];
    let last = json["last"].as_array().expect("a list");
    let outages: Vec<_> = last
        .iter()
        .map(|it| Outage {
            cause: it["cause"].as_str().expect("a cause").to_owned(),
            from: it["from_ns"].as_u64().expect("a time"),
            to: it["to_ns"].as_u64(),
        })
        .collect();
    assert_eq!(json["count"].as_u64(), Some(outages.len() as u64), "{json}");
    let over = outages.iter().filter_map(|it| Some(it.to? - it.from));
    let over = over.sum::<u64>() as f64 / 1e9;
    let told = json["seconds"].as_f64().expect("seconds");
    let lasts = outages.iter().any(|it| it.to.is_none());
    assert!(
        (told - over).abs() < 1e-6 || lasts && told > over,
        "{over}: {json}"
    );
    outages
}

/// No frame was received in a gap, and each queue has a file that says so, exactly one for each gap.
#[track_caller]
fn assert_gaps(finished: &Finished, outages: &[Outage]) {
    for outage in outages {
        let to = outage.to.expect("it is over");
        for record in finished.records().concat() {
            assert!(
                record.ts <= outage.from + CLOCKS || record.ts + CLOCKS >= to,
                "{} lies in {outage:?}",
                record.ts
            );
        }
        // A frame may come before the hand has read that its port is up: the file says no end then.
        let from = outage.from;
        let begun = format!("from {}.{:09} ", from / 1_000_000_000, from % 1_000_000_000);
        let mut telling: Vec<usize> = finished
            .files()
            .iter()
            .filter(|(_, path)| {
                let comments = files::section_comments(path);
                comments.iter().any(|it| it.contains(&begun))
            })
            .map(|(queue, _)| *queue)
            .collect();
        telling.sort_unstable();
        assert_eq!(telling, [0, 1], "{begun}");
    }
}

/// What was told as an error.
fn errors(done: &Done) -> Vec<&str> {
    let lines = done.stderr.lines();
    lines.filter(|line| line.starts_with("error")).collect()
}

/// Waits for words on standard error.
fn until_it_says(run: &mut Running, words: &str, times: usize) {
    run.until(words, |run| run.stderr().matches(words).count() >= times);
}

#[test]
fn a_patient_wire_loses_nothing() {
    let dir = Dir::new();
    for (access, pipeline, away) in [
        ("auto", "inline", 300),
        ("verbs", "inline", 1),
        ("auto", "fanout", 300),
    ] {
        let fault = [2000, 7000, 15_000]
            .map(|frames| format!("device_fatal:for={away}@frames={frames}"))
            .join(";");
        let finished = run(&dir, &format!("{access}-{pipeline}"), &patient(), &fault)
            .set(&format!("capture.access={access}"))
            .set(&format!("pipeline.mode={pipeline}"))
            .finish(0);
        let total = finished.summary.ledger.total;
        assert_eq!(
            (total.received, total.captured),
            (COUNT, COUNT),
            "{}",
            finished.done
        );
        assert_eq!(finished.numbers(), (0..COUNT).collect());
        let outages = outages(&finished);
        assert_eq!(outages.len(), 3, "{}", finished.done);
        for outage in &outages {
            assert_eq!(outage.cause, "device_lost");
            let away = u64::from(u16::try_from(away).expect("small")) * 1_000_000;
            assert!(outage.to.expect("it is over") - outage.from >= away.min(90_000_000));
        }
        assert_gaps(&finished, &outages);
        let said = errors(&finished.done);
        assert!(
            said.is_empty(),
            "objects of a lost device go quietly: {said:#?}"
        );
    }
}

#[test]
fn what_a_lossy_wire_brings_meanwhile_is_the_gap() {
    let dir = Dir::new();
    let finished = run(
        &dir,
        "lossy",
        "synth:size=100,flows=64,pps=20000,count=40000,lossy",
        "device_fatal:for=300@frames=10000",
    )
    .set("capture.ring=4096")
    .finish(0);
    let seen = finished.numbers();
    let total = finished.summary.ledger.total;
    assert_eq!(seen.len() as u64, total.captured, "{}", finished.done);
    let back = *seen.range(10_000..).next().expect("it goes on");
    // 300 ms at least, of which a busy machine may have seen some late.
    assert!(back >= 12_000, "{back}");
    let lost = finished.summary.nic("out_of_buffer") + finished.summary.nic("wire_dropped");
    let (before, after) = (seen.range(1000..10_000), seen.range(back..));
    let missing = (9000 - before.count() as u64) + (40_000 - back - after.count() as u64);
    assert!(
        missing <= lost,
        "{missing} missing beside the gap, {lost} counted"
    );
    assert_eq!(outages(&finished).len(), 1);
}

#[test]
fn others_read_the_gap() {
    let dir = Dir::new();
    let finished = run(&dir, "read", &patient(), "device_fatal:for=100@frames=9000")
        .queues(1)
        .finish(0);
    let files: Vec<PathBuf> = finished.summary.files.clone();
    assert_eq!(files.len(), 2, "one before the gap, one behind it");
    let lines = files.iter().map(|file| tshark(file).stdout.lines().count());
    assert_eq!(lines.collect::<Vec<_>>(), [9000, 11_000]);
    let told = Program::new("capinfos")
        .arg("-k")
        .arg(&files[1])
        .run()
        .expect(0);
    assert!(told.stdout.contains("the device was lost from "), "{told}");
}

/// A line for each frame.
#[track_caller]
fn tshark(file: &Path) -> Done {
    Program::new("tshark")
        .args(["-n", "-T", "fields", "-e", "frame.len", "-r"])
        .arg(file)
        .run()
        .expect(0)
}

#[test]
fn a_stream_goes_on_in_a_new_section() {
    let dir = Dir::new();
    let stream = dir.join("stream.pcapng");
    let fault = "device_fatal:for=100@frames=9000";
    let done = run(&dir, "stream", &patient(), fault)
        .set("output.stdout=true")
        .wrapped(&[
            "sh",
            "-c",
            "out=$1; shift; \"$@\" > \"$out\"",
            "sh",
            stream.to_str().expect("plain"),
        ])
        .done()
        .expect(0);
    assert_eq!(
        tshark(&stream).stdout.lines().count() as u64,
        COUNT,
        "{done}"
    );
    // Of a pcap stream there is no going on: its header stands at the beginning alone.
    run(&dir, "pcap", &patient(), fault)
        .set("output.stdout=true")
        .set("output.format=pcap")
        .done()
        .expect(2)
        .says(&["device.on_loss", "output.stdout", "pcapng"]);
}

#[test]
fn a_device_that_stays_away_ends_with_a_signal() {
    let dir = Dir::new();
    for (name, fault) in [
        ("dead", "device_fatal@frames=5000"),
        ("gone", "device_fatal:for=80000000@frames=5000"),
    ] {
        let command = run(&dir, name, &patient(), fault);
        let mut run = command.start();
        until_it_says(&mut run, "not back yet", 3);
        run.signal(Signal::TERM);
        let finished = command.finished(run.wait(), 0);
        finished.done.says(&[
            "mlx5_0: lost",
            "looking again in 200ms",
            "looking again in 800ms",
        ]);
        assert_eq!(finished.summary.json["end"], "stopped");
        assert_eq!(finished.numbers(), (0..5000).collect());
        let outages = outages(&finished);
        assert!(
            matches!(&outages[..], [Outage { cause, to: None, .. }] if cause == "device_lost"),
            "{outages:?}"
        );
    }
}

#[test]
fn limits_hold_across_a_loss() {
    let dir = Dir::new();
    let finished = run(
        &dir,
        "count",
        &patient(),
        "device_fatal:for=50@frames=5000;device_fatal:for=50@frames=7000",
    )
    .args(&["--count", "9000"])
    .finish(0);
    assert_eq!(finished.summary.json["end"], "count");
    assert_eq!(finished.summary.ledger.total.captured, 9000);
    assert_eq!(finished.numbers().len(), 9000);

    let begun = Instant::now();
    let finished = run(&dir, "duration", &patient(), "device_fatal@frames=5000")
        .args(&["--duration", "1s"])
        .finish(0);
    assert_eq!(finished.summary.json["end"], "duration");
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!(finished.summary.ledger.total.captured, 5000);
}

#[test]
fn without_retry_it_ends() {
    let dir = Dir::new();
    let finished = run(&dir, "stop", &patient(), "device_fatal:for=100@frames=5000")
        .set("device.on_loss=stop")
        .finish(1);
    finished.done.says(&["error: the device is gone"]);
    assert_eq!(errors(&finished.done).len(), 1, "{}", finished.done);
    assert_eq!(finished.summary.json["end"], "device_lost");
    assert_eq!(finished.numbers(), (0..5000).collect());
    assert_eq!(outages(&finished).len(), 1);
}

/// A capture with a control socket and an endpoint.
struct Watched<'d> {
    command: Wqcap<'d>,
    run: Running,
    socket: PathBuf,
    address: String,
}

impl<'d> Watched<'d> {
    fn start(dir: &'d Dir, name: &str, fault: &str) -> Self {
        let socket = dir.join(format!("{name}.sock"));
        let wire = "synth:size=100,flows=64,pps=20000";
        let command = run(dir, name, wire, fault)
            .set("metrics.listen=127.0.0.1:0")
            .set(&format!("control.unix={}", socket.display()));
        let mut run = command.start();
        run.until("it tells where its metrics are", |run| {
            run.stderr().contains("/metrics") && run.stderr().contains("capturing")
        });
        let told = run.stderr();
        let rest = told.split("http://").nth(1).expect("an address");
        let address = rest.split("/metrics").next().expect("a path").to_owned();
        Self {
            command,
            run,
            socket,
            address,
        }
    }

    fn ctl(&self, args: &[&str]) -> Done {
        wqcap(["ctl", "--unix"]).arg(&self.socket).args(args).run()
    }

    fn capture(&self) -> Value {
        let done = self.ctl(&["status", "--json"]).expect(0);
        let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
        status["capture"].clone()
    }

    /// Asks for the state until it is as wanted; nothing that was counted is ever taken back.
    #[track_caller]
    fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        let mut received = 0;
        loop {
            let capture = self.capture();
            let now = capture["ledger"]["received"].as_u64().expect("a count");
            assert!(now >= received, "{now} after {received}");
            received = now;
            if wanted(&capture) {
                return capture;
            }
            assert!(Instant::now() < deadline, "{what} did not come: {capture}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// One sample of a scrape.
    fn sample(&self, name: &str) -> f64 {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n")
            .expect("room");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.unwrap_or_else(|| panic!("no {name}: {text}"));
        value.trim().parse().expect("a number")
    }
}

#[test]
fn control_and_metrics_go_on() {
    let dir = Dir::new();
    let fault = "device_fatal:for=1500@ms=2500";
    let watched = Watched::start(&dir, "watched", fault);
    watched.ctl(&["filter", "udp or tcp or icmp"]).expect(0);
    let lost = watched.until("the loss", |it| it["state"] == "lost");
    let received = lost["ledger"]["received"].as_u64().expect("a count");
    assert!(received > 0);
    assert!(watched.sample("wqcap_outages_total") >= 1.0);
    // It may be back before it is asked, on a busy machine.
    let refused = watched.ctl(&["rotate"]);
    if refused.status.code() == Some(1) {
        refused.says(&["the device is lost"]);
    }
    let back = watched.until("its return", |it| {
        it["state"] == "running" && it["ledger"]["received"].as_u64() > Some(received)
    });
    assert_eq!(
        back["filter"], "udp or tcp or icmp",
        "what was changed holds"
    );
    assert!(watched.sample("wqcap_outages_total") >= 1.0);
    assert!(watched.sample("wqcap_outage_seconds_total") >= 1.0);
    assert!(watched.sample("wqcap_capture_state{state=\"running\"}") >= 1.0);
    let scraped = watched.sample("wqcap_frames_received_total{queue=\"0\"}")
        + watched.sample("wqcap_frames_received_total{queue=\"1\"}");
    assert!(scraped > received as f64, "{scraped} after {received}");
    watched.ctl(&["shutdown"]).expect(0);
    let finished = watched.command.finished(watched.run.wait(), 0);
    assert_eq!(finished.summary.json["end"], "stopped");
    assert_eq!(outages(&finished).len(), 1);
    let _ = finished.numbers();
}

#[test]
fn orders_end_the_search() {
    let dir = Dir::new();
    let watched = Watched::start(&dir, "stop", "device_fatal:for=80000000@ms=200");
    watched.until("the loss", |it| it["state"] == "lost");
    let refused = watched.ctl(&["filter", "udp"]).expect(1);
    refused.says(&["the device is lost"]);
    watched.ctl(&["start"]).expect(0);
    watched.ctl(&["stop"]).expect(0);
    watched.until("the stop", |it| it["state"] == "stopped");
    watched.ctl(&["start"]).expect(1);
    watched.ctl(&["shutdown"]).expect(0);
    let finished = watched.command.finished(watched.run.wait(), 0);
    assert_eq!(finished.summary.json["end"], "stopped");
}

#[test]
fn a_drained_capture_stays_so() {
    let dir = Dir::new();
    let watched = Watched::start(&dir, "drained", "device_fatal:for=50@ms=1500");
    watched.ctl(&["drain"]).expect(0);
    watched.until("the loss", |it| it["state"] != "drained");
    let stopped = watched.until("the end", |it| it["state"] == "stopped");
    let received = stopped["ledger"]["received"].as_u64().expect("a count");
    let deadline = Instant::now() + PATIENCE;
    while watched.ctl(&["start"]).status.code() != Some(0) {
        assert!(Instant::now() < deadline, "it does not start again");
        std::thread::sleep(Duration::from_millis(50));
    }
    watched.until("frames", |it| it["state"] == "running");
    watched.ctl(&["shutdown"]).expect(0);
    let finished = watched.command.finished(watched.run.wait(), 0);
    assert!(finished.summary.ledger.total.received >= received);
}

#[test]
fn a_flapping_port_is_a_gap_in_the_files() {
    let dir = Dir::new();
    let fault = [2000, 7000, 15_000]
        .map(|frames| format!("port_down:for=150@frames={frames}"))
        .join(";");
    let finished = run(&dir, "flap", &patient(), &fault)
        .set("capture.on_port_down=wait")
        .args(&["--count", &COUNT.to_string()])
        .finish(0);
    assert_eq!(finished.numbers(), (0..COUNT).collect());
    let mut outages = outages(&finished);
    // The wire's end is one more, if it comes before the last frame is counted.
    outages.truncate(3);
    assert_eq!(outages.len(), 3, "{}", finished.done);
    for outage in &outages {
        assert_eq!(outage.cause, "port_down");
    }
    assert_gaps(&finished, &outages);
    // Files before and after are whole and none is left open.
    let names = fs::read_dir(finished.summary.files[0].parent().expect("a folder"));
    let open = names.expect("a folder lists").filter(|it| {
        it.as_ref()
            .is_ok_and(|it| it.path().extension() == Some("part".as_ref()))
    });
    assert_eq!(open.count(), 0);
}
