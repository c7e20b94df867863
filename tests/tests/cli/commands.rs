//! Contract of the command line: exit statuses, errors with the key, the value and the remedy,
//! exact limits, signals that end a run in order, and valid JSON.

use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    thread,
};
use wqcap_tests::{
    Dir, Program, Running, Summary, Wqcap, binaries,
    compare::{assert_frames, assert_numbers},
    files, frames,
    machine::privileges::{self, ForAll, as_nobody},
    process::{TICK, is_root},
    skip,
    wqcap::{model, wqcap},
};

/// Short wire, for runs that are refused before they receive frames.
const SHORT: &str = "synth:count=10";
/// Endless wire, slow enough for a debug build.
const ENDLESS: &str = "synth:size=94,flows=64,pps=20000";

/// Beginning of the log line that a run prints once it is ready to receive.
const CAPTURING: &str = "capturing mlx5_0";

fn capturing(run: &Running) -> bool {
    run.stderr().contains(CAPTURING)
}

#[test]
fn help_shows_examples() {
    for (args, example) in [
        (&["--help"][..], "wqcap run -c"),
        (&["devices", "--help"], "wqcap devices"),
        (&["check", "--help"], "wqcap check"),
        (&["run", "--help"], "wqcap run --model pcap:"),
        (&["model", "--help"], "-- ibv_devinfo"),
    ] {
        let done = wqcap(args).run().expect(0);
        assert!(
            done.stdout.contains("Examples:") && done.stdout.contains(example),
            "{done}"
        );
    }
    let done = wqcap(["--version"]).run().expect(0);
    let lines: Vec<_> = done.stdout.lines().collect();
    let [version, commit, features] = lines[..] else {
        panic!("{done}");
    };
    assert_eq!(version, concat!("wqcap ", env!("CARGO_PKG_VERSION")));
    assert!(commit.starts_with("commit: "), "{done}");
    assert_eq!(features, "features: flows, serve, ship");
}

#[test]
fn mistakes_on_the_command_line_exit_with_status_2() {
    for (args, named) in [
        (&["no-such-command"][..], "no-such-command"),
        (&["run", "--no-such-option"], "--no-such-option"),
        (&["run", "--count", "0"], "--count"),
        (&["run", "--count", "many"], "many"),
        (&["run", "--duration=-1"], "--duration"),
        (&["run", "--set", "capture.queues"], "capture.queues"),
        (
            &["run", "-c", "/nonexistent/wqcap.toml"],
            "/nonexistent/wqcap.toml",
        ),
        (&["run", "--set", "model.rate=10"], "model.rate"),
        (&["model", "--wire", "loopback"], "PROGRAM"),
    ] {
        let done = wqcap(args).run().expect(2);
        done.says(&[named]);
        assert_eq!(done.stdout, "");
    }
}

#[test]
fn files_without_an_end_are_refused() {
    let dir = Dir::new();
    let capture = dir.path().join("empty.pcap");
    let header = b"\xd4\xc3\xb2\xa1\x02\0\x04\0\0\0\0\0\0\0\0\0\xff\xff\0\0\x01\0\0\0";
    fs::write(&capture, header).expect("written");
    let capture = capture.to_str().expect("a path");
    for args in [
        &["check", "-c", "/dev/zero"][..],
        &["run", "--model", SHORT, "-F", "/dev/zero"],
        &["merge", capture, "--inject-secrets", "/dev/zero", "-o", "-"],
        &["extract", "file:///tmp", "--ranges", "/dev/zero", "-o", "-"],
        &[
            "extract",
            "https://192.0.2.1",
            "--ca",
            "/dev/zero",
            "-o",
            "-",
        ],
    ] {
        let done = wqcap(args).run();
        done.says(&["/dev/zero", "which is the limit for files of this kind"]);
        assert_eq!(done.stdout, "");
    }
}

#[test]
fn too_many_ports_are_refused_before_they_are_compared() {
    let dir = Dir::new();
    let config = dir.path().join("c.toml");
    fs::write(&config, "[[port]]\ninterface = \"lo\"\n".repeat(5000)).expect("written");
    let done = wqcap(["check", "-c"]).arg(&config).run().expect(2);
    done.says(&["port = 5000: the number of [[port]] sections is limited to 64; remove sections"]);
    assert!(!done.stderr.contains("is the same"), "{done}");
}

#[test]
fn mistakes_in_the_config_name_the_key_the_value_and_the_limit() {
    let dir = Dir::new();
    for (name, config, parts) in [
        (
            "unknown-key",
            "[capture]\nqueus = 4\n",
            &["queus", "queues"][..],
        ),
        ("unknown-section", "[captur]\nqueues = 4\n", &["captur"]),
        (
            "wrong-type",
            "[capture]\nqueues = \"many\"\n",
            &["queues", "many"],
        ),
        ("not-toml", "[capture\n", &["not-toml.toml:1:9: not TOML"]),
        (
            "no-such-word",
            "[capture]\nidle = \"doze\"\n",
            &["idle", "doze", "spin", "sleep"],
        ),
        (
            "too-large",
            "[capture]\nmax_sge = 33\n",
            &["capture.max_sge", "33", "32"],
        ),
        (
            "too-small",
            "[capture]\nbuffer = 1\n",
            &["capture.buffer", "64"],
        ),
        (
            "odd-table",
            "[rss]\ntable_size = 100\n",
            &["rss.table_size", "100", "power of two"],
        ),
        (
            "short-key",
            "[rss]\nkey = \"6d5a\"\n",
            &["rss.key", "6d5a", "80"],
        ),
        (
            "bad-unit",
            "[output]\nbuffer = \"4 parsecs\"\n",
            &["buffer", "parsecs"],
        ),
    ] {
        let run = Wqcap::run(&dir, name).config(config).model(SHORT);
        let done = run.done().expect(2);
        done.says(parts);
        assert!(
            !run.summary_path().exists(),
            "a refused run writes no summary: {done}"
        );
    }
}

#[test]
fn mistakes_in_overrides_name_the_key_and_the_value() {
    let dir = Dir::new();
    for (setting, parts) in [
        ("capture.queus=4", &["capture.queus"][..]),
        ("captur.queues=4", &["captur"]),
        ("capture.queues=many", &["capture.queues", "many"]),
        ("capture.queues=0", &["capture.queues", "0"]),
        ("capture.queues=9000", &["capture.queues", "9000", "8192"]),
        ("device.name=mlx5_7", &["device.name", "mlx5_7", "mlx5_0"]),
        ("device.netdev=eth77", &["device.netdev", "eth77"]),
        ("device.port=2", &["device.port", "2"]),
        ("capture.cores=[4095]", &["capture.cores", "4095"]),
        ("model.no_such_key=1", &["no_such_key"]),
        ("model.rate=fast", &["rate", "fast"]),
    ] {
        let done = Wqcap::run(&dir, "x")
            .model(SHORT)
            .set(setting)
            .done()
            .expect(2);
        done.says(parts);
    }
}

#[test]
fn errors_name_the_limits_of_the_device() {
    let dir = Dir::new();
    let run = || Wqcap::run(&dir, "x").model(SHORT);
    let done = run().queues(4).set("model.max_wq=3").done().expect(2);
    done.says(&["capture.queues = 4", "mlx5_0", "1 to 3"]);
    let done = run()
        .queues(4)
        .set("model.max_ind_table_log=4")
        .set("rss.table_size=32")
        .done()
        .expect(2);
    done.says(&["rss.table_size = 32", "16"]);
    // A striding WQ has fewer WRs than `capture.ring`, which determines its memory.
    for (receive, parts) in [
        (
            "frame",
            &[
                "a WQ of the device mlx5_0 has at most 64 WRs",
                "capture.ring = 64 or less",
            ][..],
        ),
        (
            "auto",
            &[
                "256 WRs of 1024 strides",
                "64 WRs",
                "capture.ring = 2048 or less",
            ],
        ),
    ] {
        let receive = format!("capture.receive={receive}");
        let done = run()
            .set(&receive)
            .set("capture.ring=8192")
            .set("model.max_recv_wr=64")
            .done()
            .expect(2);
        done.says(&["capture.ring = 8192"]);
        done.says(parts);
        let _ = Wqcap::run(&dir, &receive)
            .model(SHORT)
            .set(&receive)
            .set("capture.ring=64")
            .set("model.max_recv_wr=64")
            .finish(0);
    }
}

/// The limit of a WQ is independent of `max_qp_wr`, which is a quarter of it on newer kernels.
#[test]
fn a_ring_may_be_as_large_as_the_limit_of_a_wq() {
    let dir = Dir::new();
    let binary = binaries::wqcap();
    let devices = model(&["loopback"], &[], [binary.as_os_str(), "devices".as_ref()]);
    let devices = devices.run().expect(0);
    assert!(devices.stdout.contains("WQs of 32768 WRs"), "{devices}");
    for (receive, max_qp_wr) in [("frame", 8192), ("auto", 8192), ("frame", 32_768)] {
        let _ = Wqcap::run(&dir, &format!("{receive}-{max_qp_wr}"))
            .model(SHORT)
            .queues(1)
            .set(&format!("capture.receive={receive}"))
            .set("capture.ring=32768")
            .set(&format!("model.max_qp_wr={max_qp_wr}"))
            .finish(0);
    }
}

#[test]
fn without_a_device_the_error_names_the_model_option() {
    if fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        skip!("this machine has an RDMA device");
    }
    let dir = Dir::new();
    let done = Wqcap::run(&dir, "x").done().expect(2);
    done.says(&["no RDMA device", "--model"]);
    let done = wqcap(["devices"]).run().expect(0);
    done.says(&["no RDMA device", "--model"]);
}

#[test]
fn an_invalid_wire_is_refused() {
    let dir = Dir::new();
    let not_pcap = dir.write(
        "text.pcap",
        "this is not a capture file, but it is long enough for a header",
    );
    for (wire, parts) in [
        (
            "pcap:/nonexistent/file.pcap",
            &["/nonexistent/file.pcap"][..],
        ),
        (&format!("pcap:{}", not_pcap.display()), &["text.pcap"]),
        ("af_packet:nosuchif0", &["nosuchif0"]),
        (
            "af_xdp:eth0,queues=1",
            &["`af_xdp`", "capture eth0 itself: wqcap run -i eth0"],
        ),
        ("synth:size=12", &["size", "12"]),
        ("synth:siez=64", &["siez"]),
        ("carrier-pigeon:2", &["carrier-pigeon"]),
    ] {
        Wqcap::run(&dir, "x")
            .model(wire)
            .done()
            .expect(2)
            .says(parts);
    }
}

#[test]
fn the_output_folder_must_exist_and_be_a_folder() {
    let dir = Dir::new();
    let missing = dir.join("missing");
    let file = dir.write("file", "");
    for folder in [&missing, &file] {
        let done = Wqcap::run(&dir, "x")
            .model(SHORT)
            .out(folder)
            .done()
            .expect(2);
        done.says(&[
            "output.dir",
            folder.to_str().expect("a UTF-8 path"),
            "mkdir",
        ]);
    }
    assert!(!missing.exists(), "the folder is not created");
}

/// Returns a `wqcap run` on a synthetic wire into the folder `out` of `place`, as user `nobody`
/// with `capabilities`.
fn run_as_nobody(place: &ForAll, capabilities: &[&str], args: &[&str]) -> Program {
    let program = Program::new(place.wqcap())
        .args([
            "run",
            "--model",
            "synth:count=1000,size=94",
            "--set",
            "capture.ring=256",
            "--set",
        ])
        .arg(format!("output.dir={}", place.dir().join("out").display()))
        .args(["--set", "output.buffer=1MiB", "--set", "output.format=pcap"])
        .args(args);
    as_nobody(program, capabilities)
}

/// Creates the folder `out` of `place` with `mode` and returns its path.
fn out_with_mode(place: &ForAll, mode: u32) -> PathBuf {
    let out = place.dir().folder("out");
    fs::set_permissions(&out, Permissions::from_mode(mode)).expect("the mode can be set");
    out
}

#[test]
fn an_output_folder_without_write_permission_is_refused() {
    if !is_root() {
        skip!("changing the user requires root");
    }
    let place = ForAll::new();
    let out = out_with_mode(&place, 0o755);
    let done = run_as_nobody(&place, privileges::NONE, &[]).run().expect(2);
    done.says(&[
        "output.dir",
        out.to_str().expect("a UTF-8 path"),
        "ermission",
    ]);
}

#[test]
fn the_model_requires_or_grants_capabilities_and_reports_it() {
    if !is_root() {
        skip!("changing capabilities requires root");
    }
    let place = ForAll::new();
    let out = out_with_mode(&place, 0o777);
    // On a synthetic wire the model grants the capabilities.
    let done = run_as_nobody(&place, privileges::NONE, &[]).run().expect(0);
    done.says(&["CAP_NET_RAW", "grants"]);
    // With the capabilities of the process, the model refuses as the kernel does, and the error
    // names the missing capability.
    let insist = &["--set", "model.caps=process"];
    let done = run_as_nobody(&place, privileges::NONE, insist)
        .run()
        .expect(2);
    done.says(&["CAP_NET_RAW"]);
    let done = run_as_nobody(&place, privileges::NET_RAW, insist)
        .run()
        .expect(0);
    assert!(!done.stderr.contains("grants"), "{done}");
    let captured: usize = fs::read_dir(&out)
        .expect("a folder")
        .map(|f| files::read(&f.expect("listed").path()).len())
        .sum();
    assert_eq!(captured, 2000, "two runs capture 1000 frames each");
}

/// `check --privileges` lists the capabilities that a run lacks, and a command that grants them.
#[test]
fn missing_privileges_are_named_with_the_command_that_grants_them() {
    if !is_root() {
        skip!("changing capabilities requires root");
    }
    let place = ForAll::new();
    let check = |capabilities: &[&str], more: &[&str]| {
        let program = Program::new(place.wqcap())
            .args(["check", "--privileges", "--model", "synth:count=1"])
            .args(["--set", "output.format=none", "--set", "model.caps=process"])
            .args(more);
        as_nobody(program, capabilities).run()
    };
    let done = check(privileges::NONE, &[]).expect(2);
    for part in ["CAP_NET_RAW", "MISSING", "--ambient-caps +net_raw "] {
        assert!(done.stdout.contains(part), "{done}");
    }
    assert!(!done.stdout.contains("CAP_SYS_RAWIO"), "{done}");
    let done = check(privileges::NET_RAW, &[]).expect(0);
    assert!(!done.stdout.contains("MISSING"), "{done}");
    let done = check(
        privileges::NET_RAW,
        &["--set", "wq.delay_drop=true", "--json"],
    )
    .expect(2);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    let missing: Vec<_> = json["privileges"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|it| it["held"] == false)
        .map(|it| it["capability"].as_str().expect("a name"))
        .collect();
    assert_eq!(missing, ["CAP_SYS_RAWIO"]);
}

#[test]
fn count_is_exact() {
    let dir = Dir::new();
    for (queues, count) in [(1, 1), (1, 1000), (3, 1000), (4, 4321)] {
        let run = Wqcap::run(&dir, &format!("{queues}-{count}"))
            .model(ENDLESS)
            .queues(queues);
        let finished = run.args(&["--count", &count.to_string()]).finish(0);
        assert_eq!(
            finished.summary.ledger.total.captured, count,
            "{}",
            finished.done
        );
        assert_eq!(finished.summary.json["end"], "count");
    }
    // A wire that ends before the count is reached is not a failure.
    let finished = Wqcap::run(&dir, "few")
        .model("synth:count=50,size=94")
        .args(&["--count", "1000"])
        .finish(0);
    assert_eq!(finished.summary.ledger.total.captured, 50);
}

#[test]
fn duration_counts_from_the_first_ready_queue() {
    let dir = Dir::new();
    let finished = Wqcap::run(&dir, "x")
        .model(ENDLESS)
        .queues(2)
        .args(&["--duration", "0.5"])
        .finish(0);
    // The duration would be shorter if it counted from the start of the process.
    let took = finished.summary.duration_s;
    assert!(took >= 0.5, "{took} s: {}", finished.done);
    assert_eq!(finished.summary.json["end"], "duration");
}

#[test]
fn sigint_and_sigterm_drain_the_rings_and_close_the_files() {
    let dir = Dir::new();
    for (name, signal) in [("int", Signal::INT), ("term", Signal::TERM)] {
        // Endless wire that waits for buffers, so that no frame is lost on a busy machine.
        let run = Wqcap::run(&dir, name)
            .model(&format!("{ENDLESS},count=1000000000"))
            .queues(2)
            .control();
        let mut running = run.start();
        run.ctl().until_counted(&mut running, "captured", 1000);
        running.signal(signal);
        let finished = run.finished(running.wait(), 0);
        assert_eq!(finished.summary.json["end"], "stopped");
        // The rings were drained: the numbers of all queues together have no gap.
        let captured = finished.summary.ledger.total.captured;
        assert!(captured >= 1000, "{}", finished.done);
        assert_numbers(&finished.numbers(), 0..captured);
    }
}

/// timeout(1) signals a process and then its group.
#[test]
fn an_interrupt_repeated_within_a_second_is_one_request() {
    let dir = Dir::new();
    for round in 0..3 {
        let run = Wqcap::run(&dir, &format!("twice{round}"))
            .model(ENDLESS)
            .queues(1)
            .control();
        let mut running = run.start();
        run.ctl().until_counted(&mut running, "captured", 100);
        for _ in 0..20 {
            if !running.ended() {
                running.signal(Signal::INT);
            }
        }
        let finished = run.finished(running.wait(), 0);
        assert_eq!(finished.summary.json["end"], "stopped");
    }
}

#[test]
fn a_second_interrupt_ends_the_run_at_once() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "x").model(ENDLESS).queues(1).control();
    // The summary goes to a pipe without a reader, so the orderly end blocks.
    let _ = Program::new("mkfifo")
        .arg(run.summary_path())
        .run()
        .expect(0);
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1);
    running.signal(Signal::INT);
    // The run has handled the first interrupt when its file is complete.
    running.until("the orderly end", |_| {
        let names = fs::read_dir(run.out_path()).expect("the folder exists");
        let names: Vec<_> = names
            .map(|it| it.expect("the folder can be listed").path())
            .collect();
        let is_complete = |it: &PathBuf| it.extension().is_some_and(|it| it == "pcap");
        !names.is_empty() && names.iter().all(is_complete)
    });
    assert!(
        !running.ended(),
        "the run ended before its summary was read"
    );
    // Interrupts within a second of the first are part of the same request.
    while !running.ended() {
        running.signal(Signal::INT);
        thread::sleep(TICK);
    }
    let done = running.wait();
    assert!(
        done.signal() == Some(2) || done.status.code() == Some(130),
        "{done}"
    );
}

#[test]
fn stdout_holds_only_the_json() {
    let dir = Dir::new();
    let parse = |text: &str| -> Value {
        serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
    };
    let binary = binaries::wqcap();

    let done = model(
        &["loopback", "loopback"],
        &[],
        [binary.as_os_str(), "devices".as_ref(), "--json".as_ref()],
    )
    .run();
    let devices = parse(&done.expect(0).stdout);
    let names: Vec<_> = devices["devices"]
        .as_array()
        .expect("an array")
        .iter()
        .map(|d| &d["name"])
        .collect();
    assert_eq!(names, ["mlx5_0", "mlx5_1"]);

    let done = wqcap([
        "check",
        "--json",
        "--model",
        "loopback",
        "--set",
        "output.format=none",
    ])
    .run()
    .expect(0);
    let check = parse(&done.stdout);
    assert_eq!(check["config"]["output"]["format"], "none");
    assert_eq!(check["plan"]["device"]["name"], "mlx5_0");

    let finished = Wqcap::run(&dir, "x")
        .model("synth:count=1000,size=94")
        .args(&["--json"])
        .finish(0);
    assert_eq!(parse(&finished.done.stdout), finished.summary.json);
}

#[test]
fn the_output_of_check_is_a_configuration() {
    let dir = Dir::new();
    let set = [
        "check",
        "--model",
        "loopback",
        "--set",
        "output.format=none",
        "--set",
        "capture.queues=2",
    ];
    let first = wqcap(set).run().expect(0);
    let config = dir.write("effective.toml", &first.stdout);
    let second = wqcap(["check", "--model", "loopback"])
        .arg(&config)
        .run()
        .expect(0);
    assert_eq!(first.stdout, second.stdout);
}

#[test]
fn all_formats_hold_the_same_frames() {
    let dir = Dir::new();
    let input = dir.join("in.pcap");
    let frames = frames::udp_flows(500, 200);
    files::write(&input, 1_700_000_000, &frames);
    let bytes = |format: &str| -> Vec<_> {
        let finished = Wqcap::run(&dir, format)
            .replay(&input)
            .queues(1)
            .set(&format!("output.format={format}"))
            .finish(0);
        assert_eq!(finished.summary.ledger.total.captured, 500);
        let paths = finished.files();
        assert!(
            paths
                .iter()
                .all(|(_, path)| path.extension().is_some_and(|e| e == format)),
            "{paths:?}"
        );
        finished
            .records()
            .into_iter()
            .flatten()
            .map(|record| record.bytes)
            .collect()
    };
    assert_frames("pcap", &bytes("pcap"), &frames);
    assert_frames("pcapng", &bytes("pcapng"), &frames);
    let finished = Wqcap::run(&dir, "none")
        .replay(&input)
        .queues(1)
        .set("output.format=none")
        .finish(0);
    assert_eq!(
        (
            finished.summary.ledger.total.captured,
            finished.files().len()
        ),
        (500, 0)
    );
}

#[test]
fn snaplen_cuts_frames_and_keeps_their_wire_length() {
    let dir = Dir::new();
    let input = dir.join("in.pcap");
    files::write(&input, 1_700_000_000, &frames::udp_flows(100, 300));
    for format in ["pcap", "pcapng"] {
        let run = Wqcap::run(&dir, format)
            .replay(&input)
            .queues(1)
            .set("capture.snaplen=64");
        let records = run
            .set(&format!("output.format={format}"))
            .finish(0)
            .records()
            .concat();
        assert_eq!(records.len(), 100);
        assert!(
            records
                .iter()
                .all(|record| (record.caplen, record.len) == (64, 300)),
            "{format}"
        );
    }
}

#[test]
fn a_capture_with_defaults_is_ready_within_two_seconds() {
    let dir = Dir::new();
    let (out, path) = (dir.folder("out"), dir.join("summary.json"));
    let mut running = wqcap(["run", "--model", ENDLESS, "--summary"])
        .arg(&path)
        .arg("--set")
        .arg(format!("output.dir={}", out.display()))
        .start();
    running.until("the capture is ready", capturing);
    let waited = waited_for_cpus(running.pid());
    running.signal(Signal::INT);
    let _ = running.wait().expect(0);
    let summary = Summary::parse(&fs::read_to_string(path).expect("a summary"));
    let startup = summary.json["startup_s"].as_f64().expect("a number");
    // Time in which other processes used the CPUs does not count.
    assert!(
        startup - waited <= 2.0,
        "{startup} s from start to the first queue ready, {waited} s of which its threads waited for CPUs"
    );
}

/// Returns the total seconds that the threads of a process waited on a run queue (schedstat).
fn waited_for_cpus(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process exists");
    let waited_ns: u64 = tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum();
    waited_ns as f64 / 1e9
}
