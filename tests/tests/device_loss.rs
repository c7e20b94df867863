//! What a capture does when it can receive nothing for a while: its device is lost and comes back, or its port goes down.
//!
//! | test | shows |
//! |---|---|
//! | `a_lossless_wire_loses_no_frame_across_device_losses` | every frame is there once after three losses, whatever works on them, and files say where the gaps are |
//! | `missing_frames_of_a_lossy_wire_lie_in_the_gap` | under load, what is missing lies in the gap, and is one piece |
//! | `tshark_and_capinfos_read_files_with_a_gap` | tshark and capinfos read the files, and show the gap |
//! | `a_stream_continues_in_a_new_section` | `output.stdout` across a loss |
//! | `a_signal_ends_the_search_for_a_lost_device` | waits that grow, files that are whole, status 0 |
//! | `limits_hold_across_a_loss` | `--count` and `--duration` |
//! | `without_retry_a_lost_device_ends_the_run` | `device.on_loss = "stop"` |
//! | `control_commands_end_the_search` | `stop`, `start` and `shutdown` while the device is away |
//! | `control_and_metrics_continue_across_a_loss` | states, refusals, what was changed holds, counters never fall |
//! | `a_drained_capture_stops_when_its_device_is_lost` | nothing is let in that nobody wants |
//! | `a_flapping_port_leaves_gaps_in_the_files` | ports that go down and come up, with the same queues |

use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use wqcap_tests::{
    Dir, Done, Finished, Program, Running, Wqcap, compare::assert_numbers, ctl::Ctl, files,
    process::HANG,
};

const COUNT: u64 = 20_000;
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
fn lossless_wire() -> String {
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

/// No frame was received in a gap, which lasted at least until `backs`, and each queue has a file that says so, exactly
/// one for each gap.
#[track_caller]
fn assert_gaps(finished: &Finished, outages: &[Outage], backs: &[u64]) {
    let records = finished.records().concat();
    for (outage, back) in outages.iter().zip(backs) {
        assert!(outage.to.expect("it is over") >= *back, "{outage:?}");
        for record in &records {
            assert!(
                record.ts <= outage.from + CLOCKS || record.ts + CLOCKS >= *back,
                "{} lies in {outage:?}",
                record.ts
            );
        }
        // A frame may come before it is read that its port is up: the file says no end then.
        let from = Timestamp::from_nanosecond(outage.from.into()).expect("a time");
        let begun = format!("from {from:.9} ");
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
    // A loop that holds is said to be stuck while the disk is: that is no device's doing.
    let ours = |line: &&str| line.starts_with("error") && !line.contains("its loop has been stuck");
    lines.filter(ours).collect()
}

/// Waits for words on standard error.
fn wait_for_stderr(run: &mut Running, words: &str, times: usize) {
    run.until(words, |run| run.stderr().matches(words).count() >= times);
}

#[test]
fn a_lossless_wire_loses_no_frame_across_device_losses() {
    let dir = Dir::new();
    // Side by side, since they wait for the device most of the time.
    thread::scope(|scope| {
        for (access, pipeline, away) in [
            ("auto", "inline", 150),
            ("verbs", "inline", 1),
            ("auto", "fanout", 150),
        ] {
            let dir = &dir;
            scope.spawn(move || assert_no_loss(dir, access, pipeline, away));
        }
    });
}

/// Three losses of so many milliseconds each.
fn assert_no_loss(dir: &Dir, access: &str, pipeline: &str, away: u64) {
    let fault = [2000, 7000, 15_000]
        .map(|frames| format!("device_fatal:for={away}@frames={frames}"))
        .join(";");
    let finished = run(
        dir,
        &format!("{access}-{pipeline}"),
        &lossless_wire(),
        &fault,
    )
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
    assert_numbers(&finished.numbers(), 0..COUNT);
    let outages = outages(&finished);
    assert_eq!(outages.len(), 3, "{}", finished.done);
    for outage in &outages {
        assert_eq!(outage.cause, "device_lost");
        // The first look for it comes 100 ms after the loss was noticed.
        assert!(outage.to.expect("it is over") - outage.from >= 90_000_000);
    }
    // What is lost comes back before a rule lets a frame in.
    let backs: Vec<_> = outages.iter().filter_map(|it| it.to).collect();
    assert_gaps(&finished, &outages, &backs);
    let said = errors(&finished.done);
    assert!(
        said.is_empty(),
        "objects of a lost device go quietly: {said:#?}"
    );
}

#[test]
fn missing_frames_of_a_lossy_wire_lie_in_the_gap() {
    let dir = Dir::new();
    let mut watched = Watched::start(&dir, "lossy", &["capture.ring=4096"]);
    let Watched { run, ctl, .. } = &mut watched;
    ctl.until_counted(run, "captured", 2000);
    watched.lose();
    watched.bring_back();
    let Watched { run, ctl, .. } = &mut watched;
    let before = ctl.until_counted(run, "captured", 2001);
    ctl.until_counted(run, "captured", before + 2000);
    let finished = watched.shutdown();
    let seen = finished.numbers();
    let total = finished.summary.ledger.total;
    assert_eq!(seen.len() as u64, total.captured, "{}", finished.done);
    let outages = outages(&finished);
    let [outage] = &outages[..] else {
        panic!("one loss: {outages:?}");
    };
    // All frames are of one kind: with the rule that takes them the first comes, and from there on each.
    let records = finished.records().concat();
    let (before, after): (Vec<_>, Vec<_>) =
        records.iter().partition(|it| it.ts <= outage.from + CLOCKS);
    let missing_in = |records: &[&files::Record]| {
        let numbers = records.iter().map(|it| it.number());
        let (first, last) = (numbers.clone().min(), numbers.max());
        let (first, last) = (first.expect("frames"), last.expect("frames"));
        (first, last, last - first + 1 - records.len() as u64)
    };
    let ((_, last, missing_before), (back, _, missing_after)) =
        (missing_in(&before), missing_in(&after));
    // It is looked for 100 ms after its loss at the earliest: 2000 frames.
    assert!(back > last + 1000, "{back} after {last}");
    let missing = missing_before + missing_after;
    // A NIC that stands still for long drops what came meanwhile, too, and so does a capture whose writer does.
    let nic = finished.summary.nic("out_of_buffer") + finished.summary.nic("wire_dropped");
    let lost = nic + total.dropped_storage;
    assert!(
        missing <= lost,
        "{missing_before} missing before the gap and {missing_after} behind it, {lost} counted: {}",
        finished.done
    );
}

#[test]
fn tshark_and_capinfos_read_files_with_a_gap() {
    let dir = Dir::new();
    let finished = run(
        &dir,
        "read",
        &lossless_wire(),
        "device_fatal:for=100@frames=9000",
    )
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
fn a_stream_continues_in_a_new_section() {
    let dir = Dir::new();
    let stream = dir.join("stream.pcapng");
    let fault = "device_fatal:for=100@frames=9000";
    let done = run(&dir, "stream", &lossless_wire(), fault)
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
    run(&dir, "pcap", &lossless_wire(), fault)
        .set("output.stdout=true")
        .set("output.format=pcap")
        .done()
        .expect(2)
        .says(&["device.on_loss", "output.stdout", "pcapng"]);
}

#[test]
fn a_signal_ends_the_search_for_a_lost_device() {
    let dir = Dir::new();
    let runs = [
        ("dead", "device_fatal@frames=5000"),
        ("gone", "device_fatal:until=/nowhere/at/all@frames=5000"),
    ]
    .map(|(name, fault)| {
        let command = run(&dir, name, &lossless_wire(), fault);
        (command.start(), command)
    });
    for (mut run, command) in runs {
        wait_for_stderr(&mut run, "not back yet", 3);
        run.signal(Signal::TERM);
        let finished = command.finished(run.wait(), 0);
        finished.done.says(&[
            "mlx5_0: the device is lost",
            "next search in 200ms",
            "next search in 800ms",
        ]);
        assert_eq!(finished.summary.json["end"], "stopped");
        assert_numbers(&finished.numbers(), 0..5000);
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
        &lossless_wire(),
        "device_fatal:for=50@frames=5000;device_fatal:for=50@frames=7000",
    )
    .args(&["--count", "9000"])
    .finish(0);
    assert_eq!(finished.summary.json["end"], "count");
    assert_eq!(finished.summary.ledger.total.captured, 9000);
    assert_eq!(finished.numbers().len(), 9000);

    let begun = Instant::now();
    let finished = run(&dir, "duration", &lossless_wire(), "device_fatal@frames=50")
        .args(&["--duration", "500ms"])
        .finish(0);
    assert_eq!(finished.summary.json["end"], "duration");
    assert!(begun.elapsed() >= Duration::from_millis(500));
    // On a machine that has not got that far in this time there are fewer.
    let captured = finished.summary.ledger.total.captured;
    assert!(captured <= 50, "{captured}");
    assert_numbers(&finished.numbers(), 0..captured);
}

#[test]
fn without_retry_a_lost_device_ends_the_run() {
    let dir = Dir::new();
    let finished = run(
        &dir,
        "stop",
        &lossless_wire(),
        "device_fatal:for=100@frames=5000",
    )
    .set("device.on_loss=stop")
    .finish(1);
    finished.done.says(&["error: the device was lost"]);
    assert_eq!(errors(&finished.done).len(), 1, "{}", finished.done);
    assert_eq!(finished.summary.json["end"], "device_lost");
    assert_numbers(&finished.numbers(), 0..5000);
    assert_eq!(outages(&finished).len(), 1);
}

/// A capture with a control socket and an endpoint, whose device goes and comes back when the test says so.
struct Watched<'d> {
    command: Wqcap<'d>,
    run: Running,
    ctl: Ctl,
    address: String,
    /// Whether there are these files is what the device goes by.
    gone: PathBuf,
    back: PathBuf,
}

impl<'d> Watched<'d> {
    fn start(dir: &'d Dir, name: &str, sets: &[&str]) -> Self {
        let (gone, back) = (dir.join("gone"), dir.join("back"));
        let fault = format!(
            "device_fatal:until={}@file={}",
            back.display(),
            gone.display()
        );
        let wire = "synth:size=100,flows=64,pps=20000";
        let command = sets.iter().fold(
            run(dir, name, wire, &fault)
                .set("metrics.listen=127.0.0.1:0")
                .control(),
            |command, set| command.set(set),
        );
        let mut run = command.start();
        run.until("it tells where its metrics are", |run| {
            run.stderr().contains("/metrics") && run.stderr().contains("capturing")
        });
        let told = run.stderr();
        let rest = told.split("http://").nth(1).expect("an address");
        let address = rest.split("/metrics").next().expect("a path").to_owned();
        Self {
            ctl: command.ctl(),
            command,
            run,
            address,
            gone,
            back,
        }
    }

    fn ctl(&self, args: &[&str]) -> Done {
        self.ctl.run(args)
    }

    /// Takes the device away, and waits until that has been noticed; the state is that.
    #[track_caller]
    fn lose(&mut self) -> Value {
        fs::write(&self.gone, "").expect("room");
        self.until("the loss", |it| it["state"] == "lost")
    }

    fn bring_back(&self) {
        fs::write(&self.back, "").expect("room");
    }

    /// Asks for the state until it is as wanted; nothing that was counted is ever taken back.
    #[track_caller]
    fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut received = 0;
        let mut status = self.ctl.until(&mut self.run, "status", what, |status| {
            let capture = &status["capture"];
            let now = capture["ledger"]["received"].as_u64().expect("a count");
            assert!(now >= received, "{now} after {received}");
            received = now;
            wanted(capture)
        });
        status["capture"].take()
    }

    #[track_caller]
    fn shutdown(self) -> Finished {
        self.ctl(&["shutdown"]).expect(0);
        self.command.finished(self.run.wait(), 0)
    }

    /// One sample of a scrape, by its name and the labels beside the port's.
    fn sample(&self, name: &str, labels: &str) -> f64 {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(HANG)).expect("a time-out");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n")
            .expect("room");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let port = "device=\"mlx5_0\",port=\"1\",interface=\"mlx5_0p1\"";
        let name = format!("{name}{{{port}{labels}}}");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        let value = line.unwrap_or_else(|| panic!("no {name}: {text}"));
        value.trim().parse().expect("a number")
    }
}

#[test]
fn control_and_metrics_continue_across_a_loss() {
    let dir = Dir::new();
    let mut watched = Watched::start(&dir, "watched", &[]);
    watched.ctl(&["filter", "udp or tcp or icmp"]).expect(0);
    watched.until("frames", |it| it["ledger"]["received"].as_u64() > Some(0));
    let lost = watched.lose();
    let received = lost["ledger"]["received"].as_u64().expect("a count");
    assert!(watched.sample("wqcap_outages_total", "") >= 1.0);
    let refused = watched.ctl(&["rotate"]).expect(1);
    refused.says(&["the device is lost"]);
    let plan = watched.ctl.json(&["plan"]);
    assert_eq!(plan["state"], "lost");
    let filter = &plan["changed"]["capture.filter"];
    assert_eq!(filter["now"], "udp or tcp or icmp", "{plan}");
    watched.bring_back();
    let back = watched.until("its return", |it| {
        it["state"] == "running" && it["ledger"]["received"].as_u64() > Some(received)
    });
    assert_eq!(
        back["filter"], "udp or tcp or icmp",
        "what was changed holds"
    );
    let plan = watched.ctl.json(&["plan"]);
    assert_eq!(plan["state"], "running");
    assert_eq!(plan["changed"]["capture.filter"]["was"], "", "{plan}");
    assert!(watched.sample("wqcap_outages_total", "") >= 1.0);
    // The first look for it comes 100 ms after the loss was noticed.
    assert!(watched.sample("wqcap_outage_seconds_total", "") >= 0.09);
    assert!(watched.sample("wqcap_capture_state", ",state=\"running\"") >= 1.0);
    let scraped = watched.sample("wqcap_frames_received_total", ",queue=\"0\"")
        + watched.sample("wqcap_frames_received_total", ",queue=\"1\"");
    assert!(scraped > received as f64, "{scraped} after {received}");
    let finished = watched.shutdown();
    assert_eq!(finished.summary.json["end"], "stopped");
    assert_eq!(outages(&finished).len(), 1);
    let _ = finished.numbers();
}

#[test]
fn control_commands_end_the_search() {
    let dir = Dir::new();
    let mut watched = Watched::start(&dir, "stop", &[]);
    watched.lose();
    let refused = watched.ctl(&["filter", "udp"]).expect(1);
    refused.says(&["the device is lost"]);
    watched.ctl(&["start"]).expect(0);
    watched.ctl(&["stop"]).expect(0);
    watched.until("the stop", |it| it["state"] == "stopped");
    watched.ctl(&["start"]).expect(1);
    let finished = watched.shutdown();
    assert_eq!(finished.summary.json["end"], "stopped");
}

#[test]
fn a_drained_capture_stops_when_its_device_is_lost() {
    let dir = Dir::new();
    let mut watched = Watched::start(&dir, "drained", &[]);
    watched.ctl(&["drain"]).expect(0);
    fs::write(&watched.gone, "").expect("room");
    let stopped = watched.until("the end", |it| it["state"] == "stopped");
    let received = stopped["ledger"]["received"].as_u64().expect("a count");
    watched.bring_back();
    let Watched { run, ctl, .. } = &mut watched;
    run.until("it starts again", |_| {
        ctl.run(&["start"]).status.code() == Some(0)
    });
    watched.until("frames", |it| it["state"] == "running");
    let finished = watched.shutdown();
    assert!(finished.summary.ledger.total.received >= received);
}

#[test]
fn a_flapping_port_leaves_gaps_in_the_files() {
    let dir = Dir::new();
    let ups = ["up-0", "up-1", "up-2"].map(|name| dir.join(name));
    let fault = [2000, 7000, 15_000]
        .iter()
        .zip(&ups)
        .map(|(frames, up)| format!("port_down:until={}@frames={frames}", up.display()))
        .collect::<Vec<_>>()
        .join(";");
    let command = run(&dir, "flap", &lossless_wire(), &fault)
        .set("capture.on_port_down=wait")
        .args(&["--count", &COUNT.to_string()])
        .env("RUST_LOG", "info");
    let mut run = command.start();
    let mut backs = Vec::new();
    for (times, up) in (1..).zip(&ups) {
        wait_for_stderr(&mut run, "port 1 went down", times);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        backs.push(now.expect("after 1970").as_nanos() as u64);
        fs::write(up, "").expect("room");
        wait_for_stderr(&mut run, "port 1 came up", times);
    }
    let finished = command.finished(run.wait(), 0);
    assert_numbers(&finished.numbers(), 0..COUNT);
    let mut outages = outages(&finished);
    // The wire's end is one more, if it comes before the last frame is counted.
    outages.truncate(3);
    assert_eq!(outages.len(), 3, "{}", finished.done);
    for outage in &outages {
        assert_eq!(outage.cause, "port_down");
    }
    assert_gaps(&finished, &outages, &backs);
    // Files before and after are whole and none is left open.
    let names = fs::read_dir(finished.summary.files[0].parent().expect("a folder"));
    let open = names.expect("a folder lists").filter(|it| {
        it.as_ref()
            .is_ok_and(|it| it.path().extension() == Some("part".as_ref()))
    });
    assert_eq!(open.count(), 0);
}
