//! Captures that receive nothing for a while: the device is lost and returns, or the port goes
//! down.
//!
//! | test | covers |
//! |---|---|
//! | `a_lossless_wire_loses_no_frame_across_device_losses` | each frame is captured once across three losses in all modes, and the files record the gaps |
//! | `missing_frames_of_a_lossy_wire_lie_in_the_gap` | under load, the missing frames are one range within the gap |
//! | `tshark_and_capinfos_read_files_with_a_gap` | independent readers of the files, which show the gap |
//! | `a_stream_continues_in_a_new_section` | `output.stdout` across a loss |
//! | `a_signal_ends_the_search_for_a_lost_device` | growing intervals of the search, complete files, exit status 0 |
//! | `limits_hold_across_a_loss` | `--count` and `--duration` |
//! | `without_retry_a_lost_device_ends_the_run` | `device.on_loss = "stop"` |
//! | `control_commands_end_the_search` | `stop`, `start` and `shutdown` while the device is away |
//! | `control_and_metrics_continue_across_a_loss` | states, refusals, persistent changes, counters that never decrease |
//! | `a_drained_capture_stops_when_its_device_is_lost` | a lost device does not restart a drained capture |
//! | `a_flapping_port_leaves_gaps_in_the_files` | a port that goes down and comes up, with the same queues |

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
/// Tolerance between stamps and the host's clock, in nanoseconds.
const CLOCKS: u64 = 50_000_000;

/// Returns a run with `device.on_loss=retry` on two queues, with `wire` and `fault`.
fn run<'d>(dir: &'d Dir, name: &str, wire: &str, fault: &str) -> Wqcap<'d> {
    Wqcap::run(dir, name)
        .model(wire)
        .set(&format!("model.fault={fault}"))
        .set("device.on_loss=retry")
        .set("output.format=pcapng")
        .queues(2)
}

/// Returns a wire that waits for buffers and ends after `COUNT` frames.
fn lossless_wire() -> String {
    format!("synth:size=100,flows=64,count={COUNT}")
}

/// Outage in a summary.
#[derive(Debug)]
struct Outage {
    cause: String,
    from: u64,
    to: Option<u64>,
}

/// Returns the outages of the summary, and asserts that their count and duration match its sums.
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
    let seconds = json["seconds"].as_f64().expect("seconds");
    let lasts = outages.iter().any(|it| it.to.is_none());
    assert!(
        (seconds - over).abs() < 1e-6 || lasts && seconds > over,
        "{over}: {json}"
    );
    outages
}

/// Asserts that no frame was received in the outages, that each lasted at least until its time in
/// `backs`, and that each queue has exactly one file whose comment records it.
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
        // A frame may arrive before the port-up event is read. The file then records no end.
        let from = Timestamp::from_nanosecond(outage.from.into()).expect("a time");
        let begun = format!("from {from:.9} ");
        let mut queues: Vec<usize> = finished
            .files()
            .iter()
            .filter(|(_, path)| {
                let comments = files::section_comments(path);
                comments.iter().any(|it| it.contains(&begun))
            })
            .map(|(queue, _)| *queue)
            .collect();
        queues.sort_unstable();
        assert_eq!(queues, [0, 1], "{begun}");
    }
}

/// Returns the error lines of a run.
fn errors(done: &Done) -> Vec<&str> {
    let lines = done.stderr.lines();
    // A loop that waits for the disk is reported as stuck, which is unrelated to the device.
    let ours = |line: &&str| {
        line.starts_with("error") && !line.contains("the receive loop has been stuck")
    };
    lines.filter(ours).collect()
}

/// Waits until standard error contains `words` at least `times` times.
fn wait_for_stderr(run: &mut Running, words: &str, times: usize) {
    run.until(words, |run| run.stderr().matches(words).count() >= times);
}

#[test]
fn a_lossless_wire_loses_no_frame_across_device_losses() {
    let dir = Dir::new();
    // In parallel, because the runs mostly wait for the device.
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

/// Asserts that a run with three device losses of `away` milliseconds each loses no frame.
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
        // The first search for the device starts 100 ms after the loss was detected.
        assert!(outage.to.expect("the outage has ended") - outage.from >= 90_000_000);
    }
    // The device returns before a rule delivers frames.
    let backs: Vec<_> = outages.iter().filter_map(|it| it.to).collect();
    assert_gaps(&finished, &outages, &backs);
    let errors = errors(&finished.done);
    assert!(
        errors.is_empty(),
        "objects of a lost device are destroyed without errors: {errors:#?}"
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
        panic!("expected one outage: {outages:?}");
    };
    // All frames match one rule: once it is installed, every frame arrives.
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
    // The first search starts 100 ms after the loss, which is the time of 2000 frames.
    assert!(back > last + 1000, "{back} after {last}");
    let missing = missing_before + missing_after;
    // A stalled NIC thread and a stalled writer also drop frames, which are counted.
    let nic = finished.summary.nic("out_of_buffer") + finished.summary.nic("wire_dropped");
    let lost = nic + total.dropped_storage;
    assert!(
        missing <= lost,
        "{missing_before} missing before the gap and {missing_after} after it, {lost} counted: {}",
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
    assert_eq!(files.len(), 2, "a file before the gap and a file after it");
    let lines = files.iter().map(|file| tshark(file).stdout.lines().count());
    assert_eq!(lines.collect::<Vec<_>>(), [9000, 11_000]);
    let done = Program::new("capinfos")
        .arg("-k")
        .arg(&files[1])
        .run()
        .expect(0);
    assert!(done.stdout.contains("the device was lost from "), "{done}");
}

/// Runs tshark on a file; the output has one line per frame.
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
            stream.to_str().expect("a UTF-8 path"),
        ])
        .done()
        .expect(0);
    assert_eq!(
        tshark(&stream).stdout.lines().count() as u64,
        COUNT,
        "{done}"
    );
    // A pcap stream cannot continue after a loss, because it has a header only at its beginning.
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
        wait_for_stderr(&mut run, "still missing", 3);
        run.signal(Signal::TERM);
        let finished = command.finished(run.wait(), 0);
        finished.done.says(&[
            "mlx5_0: the device is lost",
            "searches for it again in 200ms",
            "searches for it again in 800ms",
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
    // A slow machine captures fewer frames in this time.
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

/// Running capture with a control socket and a metrics endpoint, whose device the test takes away
/// and returns.
struct Watched<'d> {
    command: Wqcap<'d>,
    run: Running,
    ctl: Ctl,
    address: String,
    /// File whose creation makes the model lose the device.
    gone: PathBuf,
    /// File whose creation makes the model return the device.
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
        run.until("the address of the metrics is printed", |run| {
            run.stderr().contains("/metrics") && run.stderr().contains("capturing")
        });
        let stderr = run.stderr();
        let rest = stderr.split("http://").nth(1).expect("an address");
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

    /// Takes the device away, waits for the state `lost`, and returns the status of the capture.
    #[track_caller]
    fn lose(&mut self) -> Value {
        fs::write(&self.gone, "").expect("the write succeeds");
        self.until("the state is lost", |it| it["state"] == "lost")
    }

    fn bring_back(&self) {
        fs::write(&self.back, "").expect("the write succeeds");
    }

    /// Requests the status until `wanted` accepts it, and asserts that the count of received frames
    /// never decreases.
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

    /// Scrapes the metrics and returns the sample with this name and these labels after those of
    /// the port.
    fn sample(&self, name: &str, labels: &str) -> f64 {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(&self.address).expect("the endpoint listens");
        stream
            .set_read_timeout(Some(HANG))
            .expect("the timeout can be set");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n")
            .expect("the write succeeds");
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
    watched.until("frames are received", |it| {
        it["ledger"]["received"].as_u64() > Some(0)
    });
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
    let back = watched.until("the capture runs again", |it| {
        it["state"] == "running" && it["ledger"]["received"].as_u64() > Some(received)
    });
    assert_eq!(
        back["filter"], "udp or tcp or icmp",
        "the changed filter persists"
    );
    let plan = watched.ctl.json(&["plan"]);
    assert_eq!(plan["state"], "running");
    assert_eq!(plan["changed"]["capture.filter"]["was"], "", "{plan}");
    assert!(watched.sample("wqcap_outages_total", "") >= 1.0);
    // The first search for the device starts 100 ms after the loss was detected.
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
    watched.until("the capture is stopped", |it| it["state"] == "stopped");
    watched.ctl(&["start"]).expect(1);
    let finished = watched.shutdown();
    assert_eq!(finished.summary.json["end"], "stopped");
}

#[test]
fn a_drained_capture_stops_when_its_device_is_lost() {
    let dir = Dir::new();
    let mut watched = Watched::start(&dir, "drained", &[]);
    watched.ctl(&["drain"]).expect(0);
    fs::write(&watched.gone, "").expect("the write succeeds");
    let stopped = watched.until("the capture is stopped", |it| it["state"] == "stopped");
    let received = stopped["ledger"]["received"].as_u64().expect("a count");
    watched.bring_back();
    let Watched { run, ctl, .. } = &mut watched;
    run.until("the capture starts again", |_| {
        ctl.run(&["start"]).status.code() == Some(0)
    });
    watched.until("the capture runs", |it| it["state"] == "running");
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
        fs::write(up, "").expect("the write succeeds");
        wait_for_stderr(&mut run, "port 1 came up", times);
    }
    let finished = command.finished(run.wait(), 0);
    assert_numbers(&finished.numbers(), 0..COUNT);
    let mut outages = outages(&finished);
    // The end of the wire is another outage, if it comes before the last frame is counted.
    outages.truncate(3);
    assert_eq!(outages.len(), 3, "{}", finished.done);
    for outage in &outages {
        assert_eq!(outage.cause, "port_down");
    }
    assert_gaps(&finished, &outages, &backs);
    // No file is left open.
    let names = fs::read_dir(finished.summary.files[0].parent().expect("a folder"));
    let open = names.expect("the folder can be listed").filter(|it| {
        it.as_ref()
            .is_ok_and(|it| it.path().extension() == Some("part".as_ref()))
    });
    assert_eq!(open.count(), 0);
}
