//! `wqcap ctl` with captures on the software NIC: all commands, access control, and misbehaving
//! clients.
//!
//! | test | covers |
//! |---|---|
//! | `queries_report_the_capture_and_change_nothing` | status, stats, plan, devices and watch, as text and as JSON |
//! | `changes_persist_and_repeats_have_no_effect` | filter, rotate, drain, stop, start, log, reload, shutdown |
//! | `a_stop_that_fails_ends_the_process` | stop, when files cannot be completed |
//! | `a_reload_changes_the_limits_of_files` | reload of rotation and retention, refusal of other keys |
//! | `the_spread_and_the_flags_change_while_frames_flow` | respread, wq-flags |
//! | `the_plan_shows_the_current_settings` | plan after each kind of change, with the changed keys marked |
//! | `rules_are_added_and_removed` | rule add, rule remove, and their effect on the plan |
//! | `the_audit_log_names_the_author_of_each_change` | audit log: changes, refusals, a flood of refusals, reloads, signals |
//! | `commands_that_fail_exit_with_a_reason` | exit statuses of refusals and of a missing service |
//! | `watch_ends_when_its_reader_closes_the_pipe` | a closed pipe ends the command before its next line |
//! | `groups_decide_access` | mode of the socket, read group and write group |
//! | `a_client_of_another_pid_namespace_is_served` | a client that runs in another container |
//! | `misbehaving_clients_are_disconnected_and_others_served` | garbage, oversize, flooding, stalling and vanishing clients |

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    os::fd::OwnedFd,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};
use wqcap_tests::{
    Dir, Done, Program, Running, Wqcap, binaries,
    ctl::Ctl,
    ledger::number,
    machine::privileges::copy_program,
    process::{self, HANG, TICK},
    skip,
    wqcap::wqcap,
};

/// Number of WRs of a ring.
const RING: u64 = 256;
/// Rate of the wire in frames per second.
const PPS: u64 = 20_000;

/// Running capture with a control socket.
struct Captured<'d> {
    command: Wqcap<'d>,
    run: Running,
    ctl: Ctl,
}

fn start<'d>(dir: &'d Dir, name: &str, sets: &[&str]) -> Captured<'d> {
    start_as(dir, name, "", sets)
}

/// Starts a capture with the configuration file `config` and waits for its first frame.
fn start_as<'d>(dir: &'d Dir, name: &str, config: &str, sets: &[&str]) -> Captured<'d> {
    let mut command = Wqcap::run(dir, name)
        .config(config)
        .model(&format!("synth:size=64,flows=64,pps={PPS}"))
        .set(&format!("capture.ring={RING}"))
        // One WR per frame, so that a ring holds `RING` frames.
        .set("capture.receive=frame")
        .queues(2)
        .control();
    for set in sets {
        command = command.set(set);
    }
    let mut captured = Captured {
        run: command.start(),
        ctl: command.ctl(),
        command,
    };
    captured.until("the capture runs", |status| {
        status["capture"]["state"] == "running"
            && status["capture"]["ledger"]["captured"].as_u64() > Some(0)
    });
    captured
}

impl Captured<'_> {
    fn ctl(&self, args: &[&str]) -> Done {
        self.ctl.run(args)
    }

    /// Returns the JSON output of a command.
    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        self.ctl.json(args)
    }

    /// Requests a change and returns the `changed` field of the answer.
    #[track_caller]
    fn change(&self, args: &[&str]) -> bool {
        self.ctl.change(args)
    }

    #[track_caller]
    fn status(&self) -> Value {
        self.json(&["status"])
    }

    /// Requests the status until `wanted` accepts it.
    #[track_caller]
    fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) {
        self.ctl.until(&mut self.run, "status", what, wanted);
    }

    /// Returns the frames received by a queue, or by all queues if `queue` is `None`.
    #[track_caller]
    fn received(&self, queue: Option<usize>) -> u64 {
        let ledger = &self.json(&["stats"])["ledger"];
        number(match queue {
            Some(queue) => &ledger["queues"][queue]["received"],
            None => &ledger["total"]["received"],
        })
    }

    /// Asserts that no rule leads to `queue` (or to any queue) since it had received `before`
    /// frames: at most the content of the rings at that time is received later. Waits by the
    /// capture's clock for the time in which the wire brings four times that many frames.
    #[track_caller]
    fn assert_shut(&mut self, queue: Option<usize>, before: u64) {
        let rings = if queue.is_some() { RING } else { 2 * RING };
        let elapsed = |status: &Value| status["capture"]["elapsed_s"].as_f64();
        let wire = Duration::from_secs_f64(4.0 * rings as f64 / PPS as f64);
        let then = elapsed(&self.status()).map(|it| it + wire.as_secs_f64());
        self.until(
            "the wire has sent more frames than the rings hold",
            |status| elapsed(status) >= then,
        );
        let late = self.received(queue) - before;
        assert!(
            late <= rings,
            "{late} frames were received, more than {rings}"
        );
    }

    fn connect(&self) -> Wire {
        let stream = UnixStream::connect(self.ctl.socket()).expect("the socket is served");
        stream
            .set_read_timeout(Some(HANG))
            .expect("the timeout can be set");
        Wire {
            reader: BufReader::new(stream.try_clone().expect("a descriptor is free")),
            stream,
        }
    }

    /// Shuts the capture down by command and checks its files against its ledger.
    #[track_caller]
    fn shutdown(self) -> wqcap_tests::Finished {
        self.ctl(&["shutdown"]).expect(0);
        let finished = self.command.finished(self.run.wait(), 0);
        assert!(
            !self.ctl.socket().exists(),
            "the service removes its socket"
        );
        finished
    }
}

/// Raw client connection that can write any bytes.
struct Wire {
    reader: BufReader<UnixStream>,
    stream: UnixStream,
}

impl Wire {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    fn ask(&mut self, request: &Value) -> Value {
        self.write(format!("{request}\n").as_bytes())
            .expect("the service reads");
        self.answer()
    }

    /// Reads the next answer; null if the service has closed the connection.
    fn answer(&mut self) -> Value {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) | Err(_) => Value::Null,
            Ok(_) => serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}")),
        }
    }
}

fn request(id: u64, word: &str) -> Value {
    json!({"version": 1, "id": id, "command": {"do": word}})
}

fn files(out: &Path) -> usize {
    fs::read_dir(out)
        .expect("the folder exists")
        .filter(|it| {
            let name = it.as_ref().expect("the folder can be listed").file_name();
            !name.to_string_lossy().ends_with(".part")
        })
        .count()
}

/// Returns the received frames from each complete line that `watch` has printed.
fn received_in(watched: &str) -> Vec<u64> {
    let whole = watched.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines = whole.lines().map(|line| -> Value {
        serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))
    });
    lines
        .map(|it| number(&it["ledger"]["total"]["received"]))
        .collect()
}

#[test]
fn queries_report_the_capture_and_change_nothing() {
    let dir = Dir::new();
    let mut capture = start(&dir, "look", &["capture.filter=udp or tcp"]);
    let status = capture.status();
    assert_eq!(status["capture"]["filter"], "udp or tcp");
    assert_eq!(status["capture"]["device"], "mlx5_0");
    assert_eq!(status["capture"]["queues"], 2);
    assert!(status["control"]["unix"]["accepted"].as_u64() >= Some(2));
    // Earlier clients have disconnected, but the service may not have noticed yet.
    capture.until("one client is connected", |status| {
        status["control"]["unix"]["clients"] == 1
    });
    let text = capture.ctl(&["status"]).expect(0).stdout;
    assert!(text.contains("state     running"), "{text}");

    let stats = capture.json(&["stats"]);
    let queues = stats["ledger"]["queues"].as_array().expect("queues");
    assert_eq!(queues.len(), 2);
    let sum: u64 = queues.iter().filter_map(|it| it["received"].as_u64()).sum();
    assert_eq!(stats["ledger"]["total"]["received"], sum);
    assert!(stats["nic"]["out_of_buffer"].is_u64());
    // The queues publish their statistics ten times a second, the senders after the first second.
    let Captured { ctl, run, .. } = &mut capture;
    ctl.until(run, "stats", "all statistics are present", |stats| {
        let statistics = &stats["statistics"];
        statistics["hold"].is_object() && statistics["talkers"]["by_bytes"][0].is_object()
    });
    let text = capture.ctl(&["stats"]).expect(0).stdout;
    assert!(
        text.starts_with("queue") && text.contains("total"),
        "{text}"
    );
    for part in [
        "\nnow ",
        "\nprotocols udp",
        "\nsizes ",
        "\nheld ",
        "\nsenders ",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }

    assert_eq!(capture.json(&["plan"])["plan"]["device"]["name"], "mlx5_0");
    let text = capture.ctl(&["plan"]).expect(0).stdout;
    assert!(
        text.contains("filter = \"udp or tcp\"") && text.contains("#   rules"),
        "{text}"
    );
    assert_eq!(capture.json(&["devices"])["devices"][0]["name"], "mlx5_0");
    let text = capture.ctl(&["devices"]).expect(0).stdout;
    assert!(text.starts_with("mlx5_0\n  device "), "{text}");

    let watch = &["watch", "--every", "0.1", "--json"][..];
    let watched = capture.ctl(&[watch, &["--count", "3"]].concat()).expect(0);
    assert_eq!(received_in(&watched.stdout).len(), 3);
    let mut watching = capture.ctl.program(watch).start();
    watching.until("the count of received frames rises", |it| {
        let received = received_in(&it.stdout());
        assert!(received.is_sorted(), "{received:?}");
        received.first() < received.last()
    });
    drop(watching);
    let text = capture
        .ctl(&["watch", "--every", "100ms", "--count", "1"])
        .expect(0)
        .stdout;
    assert!(text.contains("frames/s"), "{text}");
    capture.shutdown();
}

#[test]
fn watch_ends_when_its_reader_closes_the_pipe() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "piped").model("synth:pps=1000").control();
    let mut running = run.start();
    run.ctl()
        .until(&mut running, "status", "the service answers", |_| true);
    // The reader exits at once, and the next line is due in an hour.
    let watch = format!(
        "{} ctl --unix {} watch --every 3600 | true",
        binaries::wqcap().display(),
        run.ctl().socket().display()
    );
    let _ = Program::new("sh").args(["-c", &watch]).run().expect(0);
    running.signal(Signal::TERM);
    let _ = running.wait().expect(0);
}

#[test]
fn changes_persist_and_repeats_have_no_effect() {
    let dir = Dir::new();
    let mut capture = start(&dir, "change", &[]);
    assert!(capture.change(&["filter", "arp"]));
    assert!(
        !capture.change(&["filter", "arp"]),
        "the filter is unchanged"
    );
    capture.until("the filter rejects a frame", |status| {
        status["capture"]["filter"] == "arp"
            && status["capture"]["ledger"]["filtered"].as_u64() > Some(0)
    });
    assert!(capture.change(&["filter", ""]));

    let out = capture.command.out_path();
    let began = |_: &Running| fs::read_dir(out).expect("the folder exists").count() >= 2;
    capture.run.until("each queue has a file", began);
    assert!(capture.change(&["rotate"]));
    capture
        .run
        .until("each queue has a finished file", |_| files(out) >= 2);

    assert!(capture.change(&["drain"]));
    assert!(!capture.change(&["drain"]));
    assert_eq!(capture.status()["capture"]["state"], "drained");
    let before = capture.received(None);
    capture.assert_shut(None, before);
    assert!(capture.change(&["start"]));
    assert!(!capture.change(&["start"]));
    capture.until("frames are received after the drain", |status| {
        status["capture"]["ledger"]["received"].as_u64() > Some(before + 2 * RING)
    });

    assert!(capture.change(&["stop"]));
    assert_eq!(capture.status()["capture"]["state"], "stopped");
    assert!(!capture.change(&["stop"]));
    let stopped = number(&capture.status()["capture"]["ledger"]["captured"]);
    assert!(stopped > 0, "the last ledger stays in the status");
    assert!(capture.change(&["start"]));
    capture.until("frames are captured after the stop", |status| {
        status["capture"]["state"] == "running"
            && status["capture"]["ledger"]["captured"].as_u64() > Some(0)
    });

    assert!(capture.change(&["log", "debug"]));
    assert_eq!(capture.status()["capture"]["log"], "debug");
    assert!(!capture.change(&["log", "debug"]));
    let finished = capture.shutdown();
    let total = finished.summary.ledger.total;
    assert!(total.captured > stopped, "both captures are in the ledger");
    assert!(total.filtered > 0);
}

#[test]
fn a_stop_that_fails_ends_the_process() {
    let dir = Dir::new();
    let mut capture = start(&dir, "fails", &[]);
    let out = capture.command.out_path();
    let began = |_: &Running| fs::read_dir(out).expect("the folder exists").count() >= 2;
    capture.run.until("each queue has a file", began);
    fs::remove_dir_all(out).expect("the folder can be removed");
    let stopped = capture.ctl(&["stop"]).expect(1);
    stopped.says(&["the capture ended with a failure: "]);
    let _ = capture.run.wait().expect(1);
}

/// Rules derived from the filter are fixed. A new filter must not select frames outside them.
#[test]
fn a_filter_that_needs_frames_outside_the_rules_is_refused() {
    let dir = Dir::new();
    let settings = ["capture.mode=filtered", "capture.filter=udp"];
    let capture = start(&dir, "rules", &settings);
    assert!(capture.change(&["filter", "udp and greater 60"]));
    let refused = capture.ctl(&["filter", "tcp or udp"]);
    assert!(!refused.status.success(), "{refused}");
    assert!(refused.stderr.contains("do not take ipv"), "{refused}");
    assert_eq!(capture.status()["capture"]["filter"], "udp and greater 60");
    capture.shutdown();
}

#[test]
fn a_change_with_a_once_name_is_applied_once() {
    let dir = Dir::new();
    let capture = start(&dir, "once", &[]);
    let mut wire = capture.connect();
    let named =
        |id: u64| json!({"version": 1, "id": id, "once": "n-1", "command": {"do": "rotate"}});
    let first = wire.ask(&named(1));
    assert_eq!(first["ok"]["changed"]["changed"], true, "{first}");
    let mut other = capture.connect();
    let again = other.ask(&named(2));
    assert_eq!(
        again["ok"], first["ok"],
        "a repeat gets the answer of the first request"
    );
    let taken =
        other.ask(&json!({"version": 1, "id": 3, "once": "n-1", "command": {"do": "drain"}}));
    assert_eq!(taken["error"]["code"], "state", "{taken}");
    assert_eq!(capture.status()["capture"]["state"], "running");
    capture.shutdown();
}

#[test]
fn a_reload_applies_changeable_keys_and_refuses_others() {
    let dir = Dir::new();
    let capture = start(&dir, "reload", &[]);
    assert!(!capture.change(&["reload"]));
    dir.write("reload.toml", "[capture]\nfilter = \"udp\"\n");
    assert!(capture.change(&["reload"]));
    assert_eq!(capture.status()["capture"]["filter"], "udp");
    dir.write("reload.toml", "[capture]\nfilter = \"tcp\"\nsample = 3\n");
    let refused = capture.ctl(&["reload"]).expect(1);
    assert!(refused.stderr.contains("capture.sample"), "{refused}");
    dir.write("reload.toml", "[capture]\nfliter = \"\"\n");
    let refused = capture.ctl(&["reload"]).expect(1);
    assert!(refused.stderr.contains("fliter"), "{refused}");
    assert_eq!(
        capture.status()["capture"]["filter"],
        "udp",
        "the filter is unchanged"
    );
    assert!(capture.change(&["stop"]));
    dir.write("reload.toml", "[capture]\nfilter = \"tcp\"\n");
    let refused = capture.ctl(&["reload"]).expect(1);
    refused.says(&["nothing is captured"]);
    // The capture does not use this section.
    let with_serve = "[capture]\nfilter = \"udp\"\n[serve]\nmax_requests = 4\n";
    dir.write("reload.toml", with_serve);
    assert!(!capture.change(&["reload"]));
    capture.shutdown();
}

#[test]
fn a_reload_changes_the_limits_of_files() {
    let dir = Dir::new();
    let mut capture = start(&dir, "limits", &[]);
    let finished = || {
        let files = fs::read_dir(dir.join("limits.out")).expect("a folder");
        let names = files.map(|it| it.expect("a file").file_name());
        let names = names.map(|it| it.into_string().expect("UTF-8"));
        names.filter(|it| it.ends_with(".pcap")).count()
    };
    assert_eq!(finished(), 0);
    dir.write("limits.toml", "[output]\nrotate_frames = 1000\n");
    assert!(capture.change(&["reload"]));
    assert!(!capture.change(&["reload"]));
    capture
        .run
        .until("files end after 1000 frames", |_| finished() > 6);
    // Other keys do not change if one of them cannot.
    dir.write(
        "limits.toml",
        "[output]\nrotate_frames = 1000\nkeep_files = 2\nhook = \"/bin/true\"\n",
    );
    let refused = capture.ctl(&["reload"]).expect(1);
    refused.says(&["output.hook needs a restart", "nothing is applied"]);
    assert!(finished() > 6);
    dir.write(
        "limits.toml",
        "[output]\nrotate_frames = 1000\nkeep_files = 2\n[serve]\n",
    );
    let changed = capture.ctl(&["reload"]).expect(0);
    assert_eq!(changed.stdout.trim(), "output.keep_files = 2", "{changed}");
    capture
        .run
        .until("only the newest files are left", |_| finished() <= 4);
    let plan = capture.json(&["plan"]);
    assert_eq!(plan["config"]["output"]["keep_files"], 2, "{plan}");
    assert_eq!(plan["plan"]["output"]["rotation"]["frames"], 1000, "{plan}");
    // The limits are lifted, and files stay.
    dir.write("limits.toml", "[output]\nrotate_frames = 1000\n");
    assert!(capture.change(&["reload"]));
    capture.run.until("files stay", |_| finished() > 6);
    // Keys of other commands do not concern a capture.
    dir.write(
        "limits.toml",
        "[output]\nrotate_frames = 1000\n[serve]\nmax_requests = 3\n",
    );
    let same = capture.ctl(&["reload"]).expect(0);
    assert!(
        same.stdout.contains("are used by other commands: serve"),
        "{same}"
    );
    // The frames of deleted files are counted, so the ledger does not match the files.
    capture.ctl(&["shutdown"]).expect(0);
    let _ = capture.run.wait().expect(0);
    let summary = fs::read_to_string(capture.command.summary_path()).expect("a summary");
    let summary: Value = serde_json::from_str(&summary).expect("JSON");
    assert!(number(&summary["deleted"]["files"]) > 0, "{summary}");
    let notes = summary["notes"].to_string();
    assert!(notes.contains("limits of the capture files"), "{notes}");
}

#[test]
fn sighup_reloads_the_configuration() {
    let dir = Dir::new();
    let mut capture = start(&dir, "hangup", &[]);
    dir.write("hangup.toml", "[capture]\nfilter = \"udp\"\n");
    capture.run.signal(Signal::HUP);
    capture.until("the new filter is active", |status| {
        status["capture"]["filter"] == "udp"
    });
    dir.write("hangup.toml", "[capture]\nfilter = \"tcp\"\nsample = 3\n");
    capture.run.signal(Signal::HUP);
    // The log reports the refused key, and the filter stays.
    capture.run.until("the refusal is logged", |run| {
        run.stderr().contains("capture.sample")
    });
    assert_eq!(capture.status()["capture"]["filter"], "udp");
    capture.shutdown();
}

#[test]
fn the_audit_log_names_the_author_of_each_change() {
    let dir = Dir::new();
    let mut capture = start(&dir, "audit", &[]);
    let uid = rustix::process::getuid().as_raw();
    assert!(capture.change(&["filter", "arp"]));
    assert!(!capture.change(&["filter", "arp"]));
    assert!(capture.change(&["log", "error"]));
    capture.ctl(&["filter", "no such \"thing\""]).expect(1);
    assert!(capture.change(&["drain"]));
    assert!(capture.change(&["start"]));
    let mut wire = capture.connect();
    for id in 0..50 {
        let asked = json!({"version": 1, "id": id, "command": {"do": "filter", "expression": "("}});
        assert!(wire.ask(&asked)["error"].is_object());
    }
    dir.write("audit.toml", "[capture]\nfilter = \"udp\"\n");
    capture.run.signal(Signal::HUP);
    capture.until("the new filter is active", |status| {
        status["capture"]["filter"] == "udp"
    });
    capture.run.signal(Signal::TERM);
    let done = capture.run.wait();
    let lines: Vec<_> = done.stderr.lines().collect();
    let lines: Vec<_> = lines
        .iter()
        .filter_map(|it| it.strip_prefix("audit: "))
        .collect();
    let assert_line = |author: &str, rest: &str| {
        let author = format!("who=\"{author}");
        let found: Vec<_> = lines
            .iter()
            .filter(|it| it.contains(&author) && it.contains(rest))
            .collect();
        assert_eq!(found.len(), 1, "{author} {rest} in {lines:#?}");
        assert!(found[0].starts_with("time=2"), "{found:?}");
    };
    let client = format!("uid {uid} pid ");
    let me = format!("uid {uid} pid {}\"", std::process::id());
    for rest in [
        r#"what="filter expression=\"arp\"" result="changed" old="filter: \"\"" new="filter: \"arp\"""#,
        r#"what="filter expression=\"arp\"" result="unchanged" new="filter: \"arp\"""#,
        r#"what="log level=\"error\"" result="changed" old="log: warn" new="log: error""#,
        r#"result="refused" why="capture.filter = \"no such \\\"thing\\\"\": "#,
        r#"what="drain" result="changed" old="running" new="no more frames are received"#,
        r#"what="start" result="changed" old="drained" new="running""#,
    ] {
        assert_line(&client, rest);
    }
    assert_line(
        &me,
        r#"what="SIGHUP: reload" result="changed" old="filter: \"arp\"" new="filter: \"udp\"""#,
    );
    assert_line(&me, r#"what="SIGTERM" result="changed" new="the run ends""#);
    let refused = lines.iter().filter(|it| it.contains("refused"));
    assert!((1..20).contains(&refused.count()), "{lines:#?}");
}

#[test]
fn the_spread_and_the_flags_change_while_frames_flow() {
    let dir = Dir::new();
    // With `cvlan_stripping` the capture restores the stripped tag in front of the frame.
    let mut capture = start(&dir, "spread", &["rss.table_size=16"]);
    let shares = |capture: &Captured| {
        let plan = capture.json(&["plan"]);
        let table = plan["plan"]["table"].as_array().expect("a table").clone();
        [0, 1].map(|queue| table.iter().filter(|it| **it == queue).count())
    };
    assert_eq!(shares(&capture), [8, 8]);
    let done = capture.ctl(&["respread", "--weights", "3,1"]).expect(0);
    assert!(
        done.stdout.contains("4 of 16 indirection table entries"),
        "{done}"
    );
    assert_eq!(shares(&capture), [12, 4]);
    assert!(!capture.change(&["respread", "--weights", "3,1"]));
    let refused = capture.ctl(&["respread", "--weights", "3,1,1"]).expect(1);
    assert!(refused.stderr.contains("rss.weights"), "{refused}");
    assert!(capture.change(&["respread", "--weights", "0,1"]));
    // The ring may still hold frames from the old QP.
    let (before, total) = (capture.received(Some(0)), capture.received(None));
    capture.until("frames are received on the other queue", |status| {
        status["capture"]["ledger"]["received"].as_u64() > Some(total + 1000)
    });
    capture.assert_shut(Some(0), before);

    assert!(capture.change(&["wq-flags", "--cvlan-stripping", "true"]));
    assert!(!capture.change(&["wq-flags", "--cvlan-stripping", "true"]));
    assert!(!capture.change(&["wq-flags", "--scatter-fcs", "false"]));
    let refused = capture
        .ctl(&["wq-flags", "--scatter-fcs", "true"])
        .expect(1);
    assert!(refused.stderr.contains("wq.scatter_fcs"), "{refused}");
    dir.write(
        "spread.toml",
        "[wq]\ncvlan_stripping = true\n[rss]\nweights = [1, 3]\n",
    );
    assert!(capture.change(&["reload"]));
    assert!(!capture.change(&["reload"]));
    assert_eq!(shares(&capture), [4, 12]);

    assert!(capture.change(&["drain"]));
    assert!(capture.change(&["respread", "--weights", "1,1"]));
    assert!(capture.change(&["start"]));
    // More than the ring held when rules led to the other queue.
    let drained = capture.received(Some(0)) + RING;
    let Captured { ctl, run, .. } = &mut capture;
    ctl.until(run, "stats", "frames are received on queue 0", |stats| {
        stats["ledger"]["queues"][0]["received"].as_u64() > Some(drained)
    });
    let finished = capture.shutdown();
    let notes = finished.summary.json["notes"].to_string();
    for note in ["re-spread: ", "wq.cvlan_stripping was set to true"] {
        assert!(notes.contains(note), "{notes}");
    }
}

#[test]
fn the_plan_shows_the_current_settings() {
    let dir = Dir::new();
    let capture = start(&dir, "holds", &["rss.table_size=16"]);
    let plan = || capture.json(&["plan"]);
    let at_first = plan();
    assert_eq!(at_first["state"], "running");
    assert_eq!(at_first["changed"], json!({}));
    assert_eq!(at_first["config"]["capture"]["queues"], 2);

    assert!(capture.change(&["filter", "arp"]));
    assert!(capture.change(&["respread", "--weights", "3,1"]));
    assert!(capture.change(&["wq-flags", "--cvlan-stripping", "true"]));
    assert!(capture.change(&["drain"]));
    let now = plan();
    assert_eq!(now["state"], "drained");
    assert_eq!(
        now["changed"],
        json!({
            "capture.filter": {"was": "", "now": "arp"},
            "rss.weights": {"was": [], "now": [3, 1]},
            "table": {"was": [8, 8], "now": [12, 4]},
            "wq.cvlan_stripping": {"was": false, "now": true},
        })
    );
    assert_eq!(now["config"]["capture"]["filter"], "arp");
    let text = capture.ctl(&["plan"]).expect(0).stdout;
    for line in [
        "# State: drained",
        "#   capture.filter = \"arp\", was \"\"",
        "filter = \"arp\"  # changed",
        "weights = [3, 1]  # changed",
        "cvlan_stripping = true  # changed",
        "#   table     16 entries: q0 12, q1 4",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}: {text}");
    }
    assert!(text.contains("filter of "), "{text}");

    // The next capture uses the configuration.
    assert!(capture.change(&["stop"]));
    let stopped = plan();
    assert_eq!(stopped["state"], "stopped");
    assert_eq!(stopped["changed"], json!({}));
    assert!(capture.change(&["start"]));
    assert_eq!(capture.status()["capture"]["filter"], "");

    // After a reload it uses the configuration that was read last.
    dir.write("holds.toml", "[capture]\nfilter = \"udp\"\n");
    assert!(capture.change(&["reload"]));
    let changed = json!({"capture.filter": {"was": "", "now": "udp"}});
    assert_eq!(plan()["changed"], changed);
    assert!(capture.change(&["stop"]));
    assert!(capture.change(&["start"]));
    assert_eq!(capture.status()["capture"]["filter"], "udp");
    assert_eq!(plan()["changed"], changed);
    assert!(!capture.change(&["reload"]));
    capture.shutdown();
}

#[test]
fn rules_are_added_and_removed() {
    let dir = Dir::new();
    let config = "[capture]\nmode = \"filtered\"\n[[rule]]\nid = \"all\"\npriority = 2\n";
    let mut capture = start_as(&dir, "rules", config, &[]);
    let add: &[&str] = &["rule", "add", "id=first", "proto=udp", "queue=1"];
    assert!(capture.change(add));
    assert!(!capture.change(add));
    let refused = capture
        .ctl(&["rule", "add", "src=10.0.0.0/8", "queue=0"])
        .expect(1);
    refused.says(&["rule 3", "rule 2", "priority"]);
    let refused = capture
        .ctl(&["rule", "add", "id=first", "proto=tcp"])
        .expect(1);
    refused.says(&["id", "first", "remove that rule first"]);
    let refused = capture.ctl(&["rule", "add", "colour=red"]).expect(1);
    refused.says(&["colour"]);
    let plan = capture.json(&["plan"]);
    assert_eq!(plan["config"]["rule"][1]["id"], "first", "{plan}");
    let text = capture.ctl(&["plan"]).expect(0).stdout;
    assert!(text.contains("ipv4 udp -> QP"), "{text}");
    assert!(capture.change(&["rule", "remove", "id=first"]));
    let refused = capture.ctl(&["rule", "remove", "id=first"]).expect(1);
    refused.says(&[
        "rule remove: the capture has no such flow rule (id = \"first\"",
        "(id = \"all\"",
    ]);
    assert!(capture.change(&["rule", "remove", "id=all", "priority=2"]));

    let before = capture.received(None);
    capture.assert_shut(None, before);
    assert!(capture.change(&["rule", "add", "ethertype=0x0800"]));
    capture.until("the new rule delivers frames", |status| {
        status["capture"]["ledger"]["received"].as_u64() > Some(before + 2 * RING)
    });
    assert!(capture.change(&["stop"]));
    let refused = capture.ctl(&["rule", "add", "vlan=1"]).expect(1);
    refused.says(&["nothing is captured"]);
    capture.shutdown();

    let steal = start(&dir, "steal", &["output.format=none"]);
    let refused = steal.ctl(&["rule", "add", "vlan=1"]).expect(1);
    refused.says(&["filtered"]);
    steal.shutdown();
}

#[test]
fn commands_that_fail_exit_with_a_reason() {
    let dir = Dir::new();
    let unserved = wqcap(["ctl", "--unix"])
        .arg(dir.join("none.sock"))
        .arg("status")
        .run()
        .expect(2);
    assert!(
        unserved.stderr.contains("no capture listens there"),
        "{unserved}"
    );

    let capture = start(&dir, "cannot", &["output.format=none"]);
    for (args, words) in [
        (&["filter", "no such thing"][..], "capture.filter"),
        (&["rotate"], "writes no files"),
        (&["watch", "--every", "0.01"], "interval_ms = 10"),
    ] {
        let refused = capture.ctl(args).expect(1);
        assert!(refused.stderr.contains(words), "{refused}");
    }
    capture.ctl(&["log", "loud"]).expect(2);
    capture.ctl(&["wq-flags"]).expect(2);

    let second = Wqcap::run(&dir, "second")
        .model("synth:size=64")
        .set("output.format=none")
        .set(&format!("control.unix={}", capture.ctl.socket().display()))
        .done()
        .expect(1);
    assert!(
        second.stderr.contains("another process serves it"),
        "{second}"
    );
    capture.shutdown();

    let file = dir.write("file", "precious");
    let refused = Wqcap::run(&dir, "third")
        .model("synth:size=64")
        .set(&format!("control.unix={}", file.display()))
        .done()
        .expect(2);
    assert!(refused.stderr.contains("is not a socket"), "{refused}");
    assert_eq!(
        fs::read_to_string(file).expect("the file still exists"),
        "precious"
    );
}

#[test]
fn a_stale_socket_of_a_crashed_run_is_replaced() {
    let dir = Dir::new();
    drop(std::os::unix::net::UnixListener::bind(dir.join("stale.sock")).expect("a socket"));
    assert!(dir.join("stale.sock").exists());
    start(&dir, "stale", &["output.format=none"]).shutdown();
}

#[test]
fn groups_decide_access() {
    if !process::is_root() {
        skip!("changing the user requires root");
    }
    let dir = Dir::new();
    // Other users must be able to reach the socket and the binary.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))
        .expect("the mode can be set");
    let sets = ["control.read_group=23001", "control.write_group=23002"];
    let capture = start(
        &dir,
        "groups",
        &[&sets[..], &["output.format=none"]].concat(),
    );
    let mode = fs::metadata(capture.ctl.socket())
        .expect("the socket exists")
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o666);
    let binary = dir.join("wqcap");
    copy_program(&wqcap_tests::binaries::wqcap(), &binary);
    let ask = |groups: &str, args: &[&str]| {
        wqcap_tests::Program::new(&binary)
            .args(["ctl", "--unix"])
            .arg(capture.ctl.socket())
            .args(args)
            .wrapped([
                "setpriv",
                "--reuid=23999",
                "--regid=23999",
                "--groups",
                groups,
                "--",
            ])
            .run()
    };
    ask("23002", &["filter", "udp"]).expect(0);
    ask("23001", &["status"]).expect(0);
    for change in [&["filter", "tcp"][..], &["mark", "an alert"]] {
        let refused = ask("23001", change).expect(1);
        assert!(refused.stderr.contains("read-write access"), "{refused}");
    }
    let refused = ask("23003", &["status"]).expect(1);
    assert!(refused.stderr.contains("control.read_group"), "{refused}");
    let status = capture.status();
    assert_eq!(status["capture"]["filter"], "udp");
    assert_eq!(status["control"]["unix"]["refused"], 1);
    capture.shutdown();

    let alone = start(&dir, "alone", &["output.format=none"]);
    let mode = fs::metadata(alone.ctl.socket())
        .expect("the socket exists")
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    alone.shutdown();
}

/// The kernel reports the process ID 0 for such a client.
#[test]
fn a_client_of_another_pid_namespace_is_served() {
    if !process::is_root() {
        skip!("PID namespaces require root");
    }
    let dir = Dir::new();
    let command = Wqcap::run(&dir, "apart")
        .model(&format!("synth:size=64,pps={PPS}"))
        .set("output.format=none")
        .control()
        .wrapped(&["unshare", "--pid", "--fork", "--kill-child"]);
    let mut run = command.start();
    run.until("the capture runs", |run| run.stderr().contains("capturing"));
    let ctl = command.ctl();
    let _ = ctl.run(&["status"]).expect(0);
    assert!(ctl.change(&["filter", "udp"]));
    let _ = ctl.run(&["shutdown"]).expect(0);
    let done = run.wait().expect(0);
    done.says(&["who=\"uid 0 pid 0", "what=\"filter"]);
}

#[test]
fn clients_that_only_read_leave_places_for_others() {
    /// Clients of one user, and users that only read.
    const OF_USER: usize = 40;
    const USERS: u32 = 4;
    if !process::is_root() {
        skip!("changing the user requires root");
    }
    let dir = Dir::new();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))
        .expect("the mode can be set");
    let sets = ["control.read_group=23001", "control.write_group=23002"];
    let capture = start(
        &dir,
        "places",
        &[&sets[..], &["output.format=none"]].concat(),
    );
    let binary = dir.join("wqcap");
    copy_program(&wqcap_tests::binaries::wqcap(), &binary);
    let wrap = |program: wqcap_tests::Program, user: u32, group: &str| {
        let user = [format!("--reuid={user}"), format!("--regid={user}")];
        let own = ["setpriv", &user[0], &user[1], "--groups", group, "--"];
        program.wrapped(own)
    };
    // Each holds its connections until its standard input ends.
    let holder = format!(
        "import socket, sys, time\nheld = []\nfor _ in range({OF_USER}):\n s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); held.append(s)\nprint('held', flush=True)\ntime.sleep(300)\n"
    );
    let mut holders = Vec::new();
    for n in 0..USERS {
        let python = wqcap_tests::Program::new("/usr/bin/python3")
            .args(["-c", &holder])
            .arg(capture.ctl.socket());
        let mut run = wrap(python, 23_900 + n, "23001").start();
        run.until("the connections are made", |it| {
            it.stdout().contains("held")
        });
        holders.push(run);
    }
    let ask = |user, group: &str, args: &[&str]| {
        let ctl = wqcap_tests::Program::new(&binary)
            .args(["ctl", "--unix"])
            .arg(capture.ctl.socket())
            .args(args);
        wrap(ctl, user, group).run()
    };
    let refused = ask(23_999, "23001", &["status"]).expect(1);
    assert!(refused.stderr.contains("64 that only read"), "{refused}");
    ask(23_998, "23002", &["filter", "udp"]).expect(0);
    let status = capture.status();
    assert_eq!(status["capture"]["filter"], "udp");
    assert_eq!(status["control"]["unix"]["clients"], 65, "64 and this one");
    for holder in holders {
        holder.signal(Signal::KILL);
        let _ = holder.wait();
    }
    capture.shutdown();
}

#[test]
fn misbehaving_clients_are_disconnected_and_others_served() {
    let dir = Dir::new();
    let mut capture = start(&dir, "vandals", &["output.format=none"]);

    let mut garbage = capture.connect();
    let mut refused = 0;
    loop {
        if garbage.write(b"\x00\xff nonsense\n").is_err() {
            break;
        }
        match garbage.answer() {
            Value::Null => break,
            answer => assert_eq!(answer["error"]["code"], "malformed", "{answer}"),
        }
        refused += 1;
        assert!(refused < 100, "the client is not disconnected");
    }
    assert!(
        refused > 1,
        "the first malformed request does not disconnect"
    );

    let mut oversize = capture.connect();
    // The service may close the connection during this write.
    let _ = oversize.write(&vec![b'x'; 1 << 20]);
    let answer = oversize.answer();
    assert!(
        answer.is_null() || answer["error"]["code"] == "too_large",
        "{answer}"
    );

    let mut vanishing: Vec<_> = (0..20).map(|_| capture.connect()).collect();
    for (i, wire) in vanishing.iter_mut().enumerate() {
        let text = request(1, "stats").to_string();
        // Half of the clients vanish within a request, the others after a request.
        let end = if i % 2 == 0 {
            text.len() / 2
        } else {
            text.len()
        };
        wire.write(&text.as_bytes()[..end])
            .expect("the service accepts the bytes");
        wire.write(if i % 2 == 0 { b"" } else { b"\n" })
            .expect("the service accepts the bytes");
    }
    drop(vanishing);

    // Flooding clients that never read an answer: the service stops reading from each, and answers
    // do not accumulate.
    let pid = capture.status()["capture"]["pid"].as_u64().expect("a pid");
    let (held, end) = (AtomicUsize::new(0), AtomicBool::new(false));
    let before = thread::scope(|scope| {
        for _ in 0..FLOODS {
            let wire = capture.connect();
            scope.spawn(|| flood(wire, &held, &end));
        }
        capture.run.until("all flooding clients block", |_| {
            held.load(Ordering::Acquire) == FLOODS
        });
        let before = resident(pid);
        for _ in 0..5 {
            capture.ctl.run(&["status"]).expect(0);
        }
        end.store(true, Ordering::Release);
        before
    });
    let grown = resident(pid).saturating_sub(before);
    assert!(grown < 8 << 10, "{grown} KiB more than before the floods");

    capture.until("only the requesting client is connected", |status| {
        status["control"]["unix"]["clients"] == 1
    });
    let unix = capture.status()["control"]["unix"].clone();
    assert!(unix["expelled"].as_u64() >= Some(2), "{unix}");
    capture.shutdown();
}

/// Number of concurrent flooding clients.
const FLOODS: usize = 4;

/// Sends requests without reading answers, and increments `held` when the service stops reading.
fn flood(mut wire: Wire, held: &AtomicUsize, end: &AtomicBool) {
    let line = request(1, "stats").to_string() + "\n";
    wire.stream
        .set_nonblocking(true)
        .expect("the socket can be non-blocking");
    let (mut at, mut is_held) = (0, false);
    while !end.load(Ordering::Acquire) {
        match wire.stream.write(&line.as_bytes()[at..]) {
            Ok(n) => at = (at + n) % line.len(),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if !std::mem::replace(&mut is_held, true) {
                    held.fetch_add(1, Ordering::AcqRel);
                }
                thread::sleep(TICK);
            }
            // The service finally disconnects a client that reads no answers.
            Err(_) => return,
        }
    }
}

/// Returns the resident memory of a process in KiB.
fn resident(pid: u64) -> u64 {
    let mut text = String::new();
    fs::File::open(format!("/proc/{pid}/status"))
        .and_then(|mut file| file.read_to_string(&mut text))
        .expect("the process exists");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("VmRSS");
    line.trim_end_matches("kB")
        .trim()
        .parse()
        .expect("a number")
}

#[test]
fn a_fast_client_is_delayed_by_the_rate_limit() {
    let dir = Dir::new();
    let capture = start(&dir, "rate", &["output.format=none"]);
    let mut hasty = capture.connect();
    let started = Instant::now();
    for id in 0..120 {
        let answer = hasty.ask(&request(id, "status"));
        assert_eq!(answer["id"], id);
        assert!(answer["ok"]["status"].is_object(), "{answer}");
    }
    // The limit is a burst of 100 requests, then 50 per second: 120 requests take at least 400 ms.
    let took = started.elapsed();
    assert!(took > Duration::from_millis(350), "{took:?}");
    capture.shutdown();
}

#[test]
fn the_schema_is_printed_without_a_service() {
    let schema: Value =
        serde_json::from_str(&wqcap(["ctl", "schema"]).run().expect(0).stdout).expect("JSON");
    for name in ["Request", "Answer", "Command", "Status", "Handshake"] {
        assert!(schema["$defs"][name].is_object(), "{name}");
    }
    let documented = wqcap_tests::binaries::root().join("docs/control.schema.json");
    let documented: Value =
        serde_json::from_str(&fs::read_to_string(documented).expect("documented")).expect("JSON");
    assert_eq!(schema, documented);
}

/// Opens a pseudo-terminal. Returns its controlling end and the path of the terminal.
fn terminal() -> (OwnedFd, String) {
    let end = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
        .expect("a free terminal");
    grantpt(&end).expect("the terminal is granted");
    unlockpt(&end).expect("the terminal is unlocked");
    let name = ptsname(&end, Vec::new()).expect("the terminal has a name");
    (end, name.into_string().expect("a UTF-8 name"))
}

#[test]
fn closing_the_terminal_ends_the_run() {
    let dir = Dir::new();
    let (end, path) = terminal();
    // The run is the session leader of its terminal, like a login shell.
    const LOGIN: &str = r#"exec setsid --ctty --wait "$@" <"$0""#;
    let run = Wqcap::run(&dir, "login")
        .model("synth:pps=1000")
        .queues(1)
        .control()
        .wrapped(&["sh", "-c", LOGIN, &path]);
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1);
    dir.write("login.toml", "[capture]\nfilter = \"udp\"\n");
    let pid = number(&run.ctl().capture()["pid"]);
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process")).expect("not 0");
    kill_process(pid, Signal::HUP).expect("the process runs");
    run.ctl().until(
        &mut running,
        "status",
        "the new filter is active",
        |status| status["capture"]["filter"] == "udp",
    );
    drop(end);
    let finished = run.finished(running.wait(), 0);
    assert_eq!(finished.summary.json["end"], "stopped");
}
