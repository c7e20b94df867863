//! Tests of `wqcap selftest` on the software NIC: its findings match the settings of the device,
//! and reports are compared by subject.

use rustix::process::Signal;
use serde_json::Value;
use std::{collections::BTreeSet, fs, path::Path};
use wqcap_tests::{
    Dir, Done, Pair, Program, Running, binaries,
    machine::{
        netns::IFACE,
        privileges::{self, ForAll, as_nobody},
    },
    need,
    process::is_root,
    skip,
    wqcap::{model, wqcap},
};

/// Returns `wqcap selftest` on `wire` with the model settings `sets`. Its report goes to `report`.
fn selftest(wire: &str, sets: &[&str], report: &Path) -> Program {
    wqcap(["selftest", "--model", wire, "--drift", "0.05", "--report"])
        .arg(report)
        .args(
            sets.iter()
                .flat_map(|set| ["--set".to_owned(), format!("model.{set}")]),
        )
}

/// Reads a report as JSON.
fn read(report: &Path) -> Value {
    let text = fs::read_to_string(report).unwrap_or_else(|e| panic!("{}: {e}", report.display()));
    serde_json::from_str(&text).expect("JSON")
}

/// Returns the only finding with this id.
#[track_caller]
fn finding<'r>(report: &'r Value, id: &str) -> &'r Value {
    let findings = report["findings"].as_array().expect("findings");
    let mut with_it = findings.iter().filter(|it| it["id"] == id);
    let found = with_it.next().unwrap_or_else(|| panic!("no finding {id}"));
    assert!(with_it.next().is_none(), "finding {id} occurs once");
    found
}

/// Asserts that the finding `id` has the outcome `refused` and this error.
#[track_caller]
fn assert_refused(report: &Value, id: &str, error: &str) {
    let it = finding(report, id);
    assert_eq!(
        (&it["outcome"], &it["error"]),
        (&"refused".into(), &error.into()),
        "{it}"
    );
}

/// Returns the subjects in which two reports differ.
fn differing_subjects(a: &Path, b: &Path) -> BTreeSet<String> {
    let done = wqcap(["selftest", "--json", "--compare"])
        .args([a, b])
        .run()
        .expect(0);
    let differences: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let differences = differences.as_object().expect("an object").keys();
    differences.cloned().collect()
}

#[test]
fn a_device_with_all_features_accepts_every_request_of_a_capture() {
    let dir = Dir::new();
    let file = dir.join("full.json");
    let done = selftest("loopback", &[], &file).run().expect(0);
    for part in [
        "wq/flag/scatter_fcs",
        "hash/ipv6+udp",
        "rule/vxlan, inner ipv4 tcp",
    ] {
        assert!(done.stdout.contains(part), "{part}: {done}");
    }
    let report = read(&file);
    assert_eq!(report["ended_early"], Value::Null);
    assert_eq!(report["software"], true);
    for id in [
        "cq/direct",
        "wq/wrs/32768",
        "table/2048",
        "rule/priority/15",
        "rule/256 at a time",
    ] {
        assert_eq!(finding(&report, id)["outcome"], "accepted", "{id}");
    }
    for (id, error) in [
        ("hash/ipv4+ipv6", "EINVAL"),
        ("hash/nothing, over 2 entries", "EINVAL"),
        ("table/4096", "EINVAL"),
        ("rule/priority/16", "ENOMEM"),
        ("rule/twice, then drop", "EEXIST"),
        ("wq/state/error to ready", "EINVAL"),
    ] {
        assert_refused(&report, id, error);
    }
    for id in ["rule/sniffer", "rule/steal"] {
        assert_eq!(finding(&report, id)["outcome"], "not_asked", "{id}");
    }
    // Ids are unique, and the report has no addresses and no names of hosts or interfaces.
    let ids: Vec<_> = report["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .map(|it| it["id"].as_str())
        .collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    let text = fs::read_to_string(&file).expect("the report exists");
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    for secret in ["0c:42:a1", "0c42:a103", "mlx5_0p1", &host] {
        assert!(!text.contains(secret), "the report has no {secret}");
    }
}

#[test]
fn disruptive_tests_install_rules_for_all_traffic_and_change_the_port() {
    let dir = Dir::new();
    let file = dir.join("report.json");
    let _ = with_traffic(&[], &file).arg("--disruptive").run().expect(0);
    let report = read(&file);
    for id in [
        "rule/sniffer",
        "rule/steal",
        "rule/drop all",
        "interface/rx-all switched",
        "interface/rx-all switched back",
        "interface/rx-fcs switched",
        "link/down",
        "link/up",
    ] {
        assert_eq!(finding(&report, id)["outcome"], "accepted", "{id}");
    }
    for id in [
        "drop rule: what arrives",
        "sniffer: a copy",
        "interface/rx-all is switched",
        "link/event of the port",
        "link/state",
        "link/arrives",
    ] {
        assert_eq!(finding(&report, id)["outcome"], "as_expected", "{id}");
    }
    let follows = finding(&report, "link/goes down with the interface");
    assert_eq!(follows["value"], true);
    assert_eq!(finding(&report, "interface/rx-all")["value"], false);
    let restart = finding(&report, "driver/restart");
    assert_eq!(restart["outcome"], "not_asked", "{restart}");
    // Without --disruptive these tests are left out.
    let _ = selftest("loopback", &[], &file).run().expect(0);
    let report = read(&file);
    for id in ["interface/promiscuous", "interface/rx-all", "link/down"] {
        assert_eq!(finding(&report, id)["outcome"], "not_asked", "{id}");
    }
}

/// Returns the flags of the far end's interface (up or down, and others) and its promiscuity count.
fn interface(pair: &Pair) -> (String, u32) {
    let flags = format!("/sys/class/net/{IFACE}/flags");
    let flags = pair.far.program("cat", &[&flags]).run().expect(0);
    (flags.stdout, pair.far.promiscuity())
}

#[test]
fn the_port_is_restored_however_the_test_ends() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    let before = interface(&pair);
    let netdev = format!("netdev={IFACE}");
    let test = |sets: &[&str], file: &Path| {
        let sets = [sets, &[netdev.as_str()]].concat();
        pair.far
            .enter(with_traffic(&sets, file).arg("--disruptive"))
    };
    let file = dir.join("whole.json");
    let _ = test(&[], &file).run().expect(0);
    assert_eq!(interface(&pair), before);
    let report = read(&file);
    for id in [
        "interface/is promiscuous",
        "interface/promiscuous no longer",
        "link/state",
    ] {
        assert_eq!(finding(&report, id)["outcome"], "as_expected", "{id}");
    }
    let goes = finding(&report, "link/goes down with the interface");
    assert_eq!(
        goes["value"], false,
        "the interface does not belong to the port"
    );
    for (signal, stage) in [
        (Signal::INT, "requesting objects and rules"),
        (Signal::TERM, "measuring the drift of the device's clock"),
        (Signal::INT, "sending frames: frame\n"),
        (Signal::TERM, "sending frames: frame by steal"),
        (Signal::INT, "taking the port down"),
        (Signal::TERM, "taking the port down"),
        (Signal::TERM, "bringing the port up"),
    ] {
        let file = dir.join("signal.json");
        let mut running: Running = test(&[], &file).start();
        running.until(stage, |it| it.stderr().contains(stage));
        running.signal(signal);
        let done = running.wait();
        assert_eq!(interface(&pair), before, "{stage}: {done}");
        let report = read(&file);
        // The last stage may be over by then.
        let late = stage == "bringing the port up" && report["ended_early"] == Value::Null;
        assert!(
            late || report["ended_early"] == "a signal arrived",
            "{stage}: {done}"
        );
        fs::remove_file(&file).expect("the report exists");
    }
    // The device is lost while its interface is down.
    let gone = dir.join("gone");
    let lost = format!("fault=device_fatal@file={}", gone.display());
    let mut running: Running = test(&[&lost], &file).start();
    let stage = "taking the port down";
    running.until(stage, |it| it.stderr().contains(stage));
    fs::write(gone, "").expect("the file can be written");
    let _ = running.wait().expect(1);
    let _ = assert_ended(&file, "the device is lost");
    assert_eq!(interface(&pair), before);
}

#[test]
fn requests_without_the_needed_rights_are_refused_and_the_others_are_made() {
    if !is_root() {
        skip!("only root can become another user");
    }
    let place = ForAll::new();
    let file = place.dir().join("report.json");
    let test = Program::new(place.wqcap())
        .args(["selftest", "--model", "loopback", "--disruptive"])
        .args(["--set", "model.caps=process", "--drift", "0.05", "--report"])
        .arg(&file);
    let _ = as_nobody(test, privileges::NET_RAW).run().expect(0);
    let report = read(&file);
    assert_refused(&report, "interface/rx-all switched", "EPERM");
    assert_refused(&report, "link/down", "EPERM");
    assert_eq!(finding(&report, "rule/steal")["outcome"], "accepted");
}

/// The two ports belong to two devices of one process, and a cable connects them.
#[test]
fn frames_travel_from_one_port_to_another() {
    let dir = Dir::new();
    let file = dir.join("report.json");
    let cable = format!("peer:{}", dir.join("cable").display());
    let test = |from: &str, to: &str| {
        Program::new(binaries::wqcap())
            .args(["model", "--wire", &cable, "--wire", &cable])
            .args(["--set", "caps=all", "--"])
            .arg(binaries::wqcap())
            .args(["selftest", "--device", to, "--tx", from, "--disruptive"])
            .args(["--drift", "0.05", "--report"])
            .arg(&file)
    };
    for (from, to) in [("mlx5_1", "mlx5_0"), ("mlx5_0", "mlx5_1")] {
        let _ = test(from, to).run().expect(0);
        let report = read(&file);
        assert_eq!(ids(&report, "differs"), Vec::<String>::new());
        let passed = ids(&report, "as_expected");
        for id in [
            "frame: ipv6 udp",
            "frame with scatter_fcs: longest",
            "frame by steal: vxlan",
            "counters: out_of_buffer",
            "recovery: receives again",
            "link/arrives",
        ] {
            assert!(passed.iter().any(|it| it == id), "{id}");
        }
    }
}

/// Asserts that a report ended early for `reason`, has findings and matches its schema.
#[track_caller]
fn assert_ended(file: &Path, reason: &str) -> Value {
    let report = read(file);
    let ended = report["ended_early"].as_str().unwrap_or_default();
    assert!(ended.contains(reason), "{reason}: ended by {ended:?}");
    assert!(
        report["findings"]
            .as_array()
            .is_some_and(|it| !it.is_empty())
    );
    assert_valid(file);
    report
}

/// Asserts that a report matches the documented schema, if Python has `jsonschema`.
#[track_caller]
fn assert_valid(file: &Path) {
    const VALIDATE: &str = "
import json, sys
try:
    import jsonschema
except ImportError:
    sys.exit(0)
jsonschema.validate(json.load(open(sys.argv[1])), json.load(open(sys.argv[2])))";
    let documented = binaries::root().join("docs/selftest.schema.json");
    let _ = Program::new("python3")
        .args(["-c", VALIDATE])
        .args([file, &documented])
        .run()
        .expect(0);
}

#[test]
fn a_device_that_goes_away_ends_the_test_with_what_was_found() {
    let dir = Dir::new();
    let file = dir.join("report.json");
    for (fault, last) in [
        // Lost during the requests for rules or soon after: for good, and for 50 ms.
        ("device_fatal@ms=0", ""),
        ("device_fatal:for=50@ms=0", ""),
        ("device_fatal@frames=4", "completion: "),
    ] {
        let fault = format!("fault={fault}");
        with_traffic(&[&fault], &file)
            .arg("--disruptive")
            .run()
            .expect(1)
            .says(&["ended early"]);
        let report = assert_ended(&file, "the device is lost");
        assert_eq!(finding(&report, "wq/wrs/8192")["outcome"], "accepted");
        let findings = report["findings"].as_array().expect("findings");
        let id = findings.last().expect("at least one finding")["id"]
            .as_str()
            .expect("an id");
        assert!(id.starts_with(last), "{fault}: {id}");
        fs::remove_file(&file).expect("the report exists");
    }
    // Lost during a measurement: for good, and for 50 ms. The number of frames that a throughput
    // trial sends depends on the machine, so the test starts the fault at the announcement.
    let gone = dir.join("gone");
    for (fault, args, announced) in [
        (
            "device_fatal",
            &["--drift", "1000"][..],
            "measuring the drift",
        ),
        (
            "device_fatal:for=50",
            &["--disruptive"],
            "measuring the throughput",
        ),
    ] {
        let fault = format!("fault={fault}@file={}", gone.display());
        let mut running = with_traffic(&[&fault], &file).args(args).start();
        running.until(announced, |it| it.stderr().contains(announced));
        fs::write(&gone, "").expect("the file can be written");
        let _ = running.wait().expect(1);
        let _ = assert_ended(&file, "the device is lost");
        fs::remove_file(&gone).expect("the file exists");
        fs::remove_file(&file).expect("the report exists");
    }
}

#[test]
fn implausible_answers_of_a_device_are_reported_without_a_panic() {
    let dir = Dir::new();
    let file = dir.join("report.json");
    for (sets, lacks) in [
        (&["max_cqe=1"][..], "a CQ"),
        (&["max_ind_table_log=0"], "an RWQ indirection table"),
    ] {
        let _ = with_traffic(sets, &file).run().expect(1);
        let report = assert_ended(&file, lacks);
        assert_eq!(finding(&report, "memory/4KiB")["outcome"], "accepted");
    }
    for sets in [
        &["max_wq=1"][..],
        &["max_recv_wr=1"],
        &["timestamp_mask=0"],
        &["clock_khz=1000", "timestamp_mask=0xff"],
        &[
            "clock_drift=10000",
            "utc_drift=-10000",
            "realtime_clock=true",
        ],
        &["mtu=68"],
        &["mtu=65536"],
        &["fault=clock_busy:for=60000@frames=1"],
    ] {
        let done = with_traffic(sets, &file).run();
        assert!(
            matches!(done.status.code(), Some(0 | 1)),
            "{sets:?}: {done}"
        );
        assert!(!done.stderr.contains("panicked"), "{sets:?}: {done}");
        assert_valid(&file);
        fs::remove_file(&file).expect("the report exists");
    }
}

/// A capture uses the same device. The link of the port follows the state of the interface.
#[test]
fn a_device_is_tested_while_a_capture_uses_it() {
    let dir = Dir::new();
    let (file, summary, said) = (
        dir.join("report.json"),
        dir.join("summary.json"),
        dir.join("said"),
    );
    let script = r#"
says() { until grep -q "$1" "$2"; do sleep 0.05; done; }
RUST_LOG=info "$0" run --set output.format=none --set capture.queues=1 --set capture.ring=256 --set capture.idle=sleep --summary "$2" 2>"$3" &
says capturing "$3"
"$0" selftest --drift 0.05 --disruptive --report "$1"
status=$?
says "port 1 came up" "$3"
kill -TERM $!
wait $! && exit $status"#;
    let wqcap = binaries::wqcap();
    let args = ["bash".as_ref(), "-c".as_ref(), script.as_ref()];
    let files = [
        wqcap.as_os_str(),
        file.as_os_str(),
        summary.as_os_str(),
        said.as_os_str(),
    ];
    let both = model(
        &["synth:pps=5000,flows=64"],
        &[],
        args.into_iter().chain(files),
    );
    let done = both.run().expect(0);
    let report = read(&file);
    assert_eq!(report["ended_early"], Value::Null, "{done}");
    assert_eq!(finding(&report, "rule/steal")["outcome"], "accepted");
    let summary = read(&summary);
    assert_eq!(summary["outages"]["count"], 1, "{}", summary["outages"]);
}

#[test]
fn a_comparison_lists_exactly_the_settings_that_differ() {
    let dir = Dir::new();
    let full = dir.join("full.json");
    let _ = selftest("loopback", &[], &full)
        .arg("--disruptive")
        .run()
        .expect(0);
    let settings = [
        "clock_khz=100000",
        "cq_moderation=false",
        "cqe_compression=false",
        "cvlan_stripping=false",
        "delay_drop=false",
        "end_padding=false",
        "max_cqe=8191",
        "max_ind_table_log=7",
        "max_qp_wr=1024",
        "max_recv_wr=1024",
        "max_wq=1024",
        "mtu=9000",
        "rate=25",
        "realtime_clock=true",
        "rx_all=true",
        "scatter_fcs=false",
        "sniffer=false",
        "striding_rq=false",
        "timestamp_mask=0xffffffffffff",
        "tunnel_offloads=false",
    ];
    let name = |setting: &str| setting.split('=').next().expect("a key").to_owned();
    let differing = |file: &str, settings: &[&str]| {
        let file = dir.join(file);
        let _ = selftest("loopback", settings, &file)
            .arg("--disruptive")
            .run()
            .expect(0);
        differing_subjects(&full, &file)
    };
    assert_eq!(differing("again.json", &[]), BTreeSet::new());
    assert_eq!(
        differing("bare.json", &settings),
        settings.into_iter().map(name).collect()
    );
    for setting in settings {
        assert_eq!(
            differing("one.json", &[setting]),
            BTreeSet::from([name(setting)])
        );
    }
}

/// Folder of the reports in the documentation, with the one of the software NIC.
const CARDS: &str = "docs/cards";

#[test]
fn the_page_of_cards_has_the_table_of_the_reports() {
    let entries = fs::read_dir(binaries::root().join(CARDS)).expect("the folder exists");
    let mut reports: Vec<_> = entries
        .map(|it| it.expect("the folder can be listed").path())
        .collect();
    // The report of the software NIC comes first.
    reports.sort_by_key(|it| (!it.ends_with("software-nic.json"), it.clone()));
    assert!(reports[0].ends_with("software-nic.json"));
    for report in &reports {
        assert_valid(report);
        assert_eq!(read(report)["ended_early"], Value::Null, "{report:?}");
    }
    let table = wqcap(["selftest", "--table"])
        .args(&reports)
        .run()
        .expect(0);
    let page = fs::read_to_string(binaries::root().join("docs/cards.md")).expect("the page exists");
    assert!(
        page.contains(&table.stdout),
        "docs/cards.md lacks this table:\n{}",
        table.stdout
    );
}

#[test]
fn the_report_of_the_software_nic_in_the_documentation_is_current() {
    let dir = Dir::new();
    let kept = binaries::root().join(CARDS).join("software-nic.json");
    let new = dir.join("new.json");
    let _ = with_traffic(&["caps=all"], &new)
        .arg("--disruptive")
        .run()
        .expect(0);
    let done = wqcap(["selftest", "--compare"]).args([&kept, &new]).run();
    assert_eq!(done.expect(0).stdout, "no difference\n");
    // A report of a device with other settings differs.
    let other = dir.join("other.json");
    let _ = with_traffic(&["caps=all", "mpls=false", "max_wq=1024"], &other)
        .arg("--disruptive")
        .run()
        .expect(0);
    assert_eq!(
        differing_subjects(&kept, &other),
        BTreeSet::from(["max_wq".to_owned()])
    );
}

#[test]
fn reports_match_their_schema() {
    let schema = wqcap(["selftest", "--schema"]).run().expect(0).stdout;
    let documented = binaries::root().join("docs/selftest.schema.json");
    assert_eq!(
        serde_json::from_str::<Value>(&schema).expect("JSON"),
        read(&documented)
    );
    let validate = "import json, sys, jsonschema; jsonschema.validate(json.load(open(sys.argv[1])), json.load(open(sys.argv[2])))";
    let python = |program: &str| Program::new("python3").args(["-c", program]);
    if !python("import jsonschema").run().status.success() {
        skip!("python3 has no jsonschema");
    }
    let dir = Dir::new();
    for (file, sets) in [
        ("full.json", &[][..]),
        ("bare.json", &["scatter_fcs=false", "tunnel_offloads=false"]),
    ] {
        let file = dir.join(file);
        let _ = selftest("loopback", sets, &file).run().expect(0);
        let _ = python(validate).args([&file, &documented]).run().expect(0);
    }
    let broken = dir.write("broken.json", r#"{"version": 1, "findings": []}"#);
    let _ = python(validate)
        .args([&broken, &documented])
        .run()
        .expect(1);
}

#[test]
fn without_rights_the_report_has_the_findings_that_need_none() {
    if !is_root() {
        skip!("only root can become another user");
    }
    let place = ForAll::new();
    let file = place.dir().join("report.json");
    let test = || {
        Program::new(place.wqcap())
            .args([
                "selftest",
                "--model",
                "loopback",
                "--set",
                "model.caps=process",
                "--report",
            ])
            .arg(&file)
    };
    let done: Done = as_nobody(test(), privileges::NONE).run().expect(1);
    done.says(&["ended early", "CAP_NET_RAW"]);
    let report = read(&file);
    assert!(
        report["ended_early"]
            .as_str()
            .expect("a reason")
            .contains("CAP_NET_RAW")
    );
    assert_eq!(finding(&report, "wq/wrs/8192")["outcome"], "accepted");
    assert_refused(&report, "wq/flag/delay_drop", "EPERM");
    assert_refused(&report, "hash/ipv4", "EPERM");
    let with_net_raw = as_nobody(test(), privileges::NET_RAW).run().expect(0);
    assert!(with_net_raw.stdout.contains("rule/mac"), "{with_net_raw}");
}

#[test]
fn usage_errors_exit_with_status_2() {
    let dir = Dir::new();
    let other = dir.write("other.json", "{}");
    let newer = dir.write("newer.json", "{\"version\": 9}");
    let other = other.to_str().expect("a plain path");
    let newer = newer.to_str().expect("a plain path");
    for (args, named) in [
        (&["--model", "loopback", "--device", "mlx5_7"][..], "mlx5_7"),
        (&["--model", "loopback", "--port", "2"], "--port 2"),
        (
            &["--model", "loopback", "--set", "capture.queues=2"],
            "capture.queues",
        ),
        (&["--set", "model.rate=10"], "model.rate"),
        (&["--compare", other, other], "not a report"),
        (&["--compare", newer, other], "newer.json"),
        (
            &["--compare", "/nonexistent/a.json", other],
            "/nonexistent/a.json",
        ),
        (&["--compare", other], "--compare"),
        (&["--table", other], "not a report"),
        (&["--table", other, "--device", "mlx5_0"], "--device"),
    ] {
        wqcap(["selftest"])
            .args(args)
            .run()
            .expect(2)
            .says(&[named]);
    }
}

/// Returns `wqcap selftest --tx` on the wire `loopback`, which returns every frame to its sender.
fn with_traffic(sets: &[&str], report: &Path) -> Program {
    selftest("loopback", sets, report).args(["--tx", "mlx5_0"])
}

/// Returns the ids of the findings with this outcome.
fn ids(report: &Value, outcome: &str) -> Vec<String> {
    let findings = report["findings"].as_array().expect("findings").iter();
    findings
        .filter(|it| it["outcome"] == outcome)
        .map(|it| it["id"].as_str().expect("an id").to_owned())
        .collect()
}

#[test]
fn frames_arrive_unchanged_where_they_are_expected() {
    let dir = Dir::new();
    let full = dir.join("full.json");
    let _ = with_traffic(&[], &full).arg("--disruptive").run().expect(0);
    let report = read(&full);
    assert_eq!(ids(&report, "differs"), Vec::<String>::new());
    let passed = ids(&report, "as_expected");
    let ways = [
        "frame",
        "frame with cvlan_stripping",
        "frame with scatter_fcs",
        "frame by steal",
    ];
    for frame in [
        "ipv6 udp",
        "two vlans, ipv4 udp",
        "ipv4 later fragment",
        "vxlan",
        "longest",
    ] {
        for way in ways {
            let id = format!("{way}: {frame}");
            assert!(passed.contains(&id), "{id}");
        }
    }
    for id in [
        "too long: status",
        "counters: out_of_buffer",
        "stamps: frames",
        "recovery: receives again",
        "recovery: event",
        "striding frame: ipv6 udp",
        "striding frame with scatter_fcs: longest",
        "striding frame with cvlan_stripping: vlan, ipv4 tcp",
        "striding fillers: frames",
        "striding fillers: wqe_id and first stride of frames",
        "striding fillers: number",
        "striding recovery: flushed",
        "striding recovery: event",
        "striding recovery: receives again",
        "compressed, hash: frames in order",
        "compressed, stride index: frames in order",
        "sleep: an event without a frame",
        "sleep: events of frames",
        "sleep: armed with a completion",
        "moderation: events at the count",
        "moderation: events after the period",
        "frame in several entries: longest",
        "striding too long: status",
        "striding too long: the next frame",
        "spread: inner flows on their queues",
        "respread: frames that arrived twice",
        "held: arrives when the queue has room",
    ] {
        assert!(passed.iter().any(|it| it == id), "{id}");
    }
    let values: [(&str, Value); 14] = [
        ("hash type: ipv4 tcp", "0x55".into()),
        ("hash type: ethertype 88b5", "0x00".into()),
        ("striding fillers: counter", "its first stride".into()),
        ("striding fillers: wqe_id is its own", true.into()),
        ("moderation: the period starts at", "the completion".into()),
        ("length: longest beyond the MTU, untagged", 26.into()),
        ("striding too long: strides", "the rest of the WQE".into()),
        ("roce: packets to the test's address arrive", true.into()),
        ("roce: packets to the port's address arrive", true.into()),
        ("roce: packets to a foreign address arrive", true.into()),
        (
            "spread: tcp behind ipv6 extension headers",
            "hashed without its ports".into(),
        ),
        ("held: is dropped in the end", true.into()),
        ("device/eswitch", "legacy".into()),
        ("device/enable_roce", true.into()),
    ];
    for (id, value) in values {
        assert_eq!(finding(&report, id)["value"], value, "{id}");
    }
    for id in ["hash", "stride index"] {
        let share = &finding(&report, &format!("compressed, {id}: in sessions"))["value"];
        assert!(share.as_f64().is_some_and(|it| it > 10.0), "{id}: {share}");
    }
    assert!(report["rdma_core"].is_string(), "{}", report["rdma_core"]);
    let value = &finding(&report, "completion: ipv6 tcp")["value"];
    assert!(
        value.as_str().expect("text").contains("hash as computed"),
        "{value}"
    );
    // A wrap of the 32-bit counters during the test changes no finding.
    let wraps = dir.join("wraps.json");
    let start = ["counter_start=4294967290"];
    let _ = with_traffic(&start, &wraps)
        .arg("--disruptive")
        .run()
        .expect(0);
    assert_eq!(differing_subjects(&full, &wraps), BTreeSet::new());
    // A missing flag changes only its own findings.
    let bare = dir.join("bare.json");
    let _ = with_traffic(&["scatter_fcs=false"], &bare)
        .arg("--disruptive")
        .run()
        .expect(0);
    assert_eq!(
        differing_subjects(&full, &bare),
        BTreeSet::from(["scatter_fcs".to_owned()])
    );
    assert_eq!(
        finding(&read(&bare), "frame with scatter_fcs")["outcome"],
        "not_asked"
    );
}

#[test]
fn clocks_differ_only_beyond_the_error_of_measurement() {
    let dir = Dir::new();
    let measured = |name: &str, sets: &[&str]| {
        let file = dir.join(name);
        // The 30-bit counter wraps every 1.07 s.
        let _ = selftest("loopback", sets, &file)
            .args(["--drift", "1.5"])
            .run()
            .expect(0);
        file
    };
    let plain = measured("plain.json", &[]);
    let wraps = measured("wraps.json", &["timestamp_mask=0x3fffffff"]);
    assert_eq!(
        differing_subjects(&plain, &wraps),
        BTreeSet::from(["timestamp_mask".to_owned()])
    );
    let fast = measured("fast.json", &["clock_drift=10000"]);
    assert_eq!(
        differing_subjects(&plain, &fast),
        BTreeSet::from(["clock_drift".to_owned()])
    );
}

#[test]
fn unexpected_findings_exit_with_status_1_and_are_reported() {
    let dir = Dir::new();
    let file = dir.join("report.json");
    // The jump falls among the frames whose stamps are checked.
    let jump = "fault=clock_jump:ns=-2000000000@frames=200";
    with_traffic(&[jump], &file)
        .run()
        .expect(1)
        .says(&["not as expected"]);
    let report = read(&file);
    assert_eq!(report["ended_early"], Value::Null);
    let backward = finding(&report, "stamps: earlier than the one before");
    assert_eq!(
        (&backward["expected"], &backward["found"]),
        (&0.into(), &1.into())
    );
    // The two ports are not connected.
    let apart = Program::new(binaries::wqcap())
        .args([
            "model", "--wire", "loopback", "--wire", "loopback", "--set", "caps=all", "--",
        ])
        .arg(binaries::wqcap())
        .args([
            "selftest", "--device", "mlx5_0", "--tx", "mlx5_1", "--drift", "0.05", "--report",
        ])
        .arg(&file);
    let _ = apart.run().expect(1);
    let report = read(&file);
    assert_eq!(ids(&report, "differs"), ["traffic/arrives"]);
    assert_eq!(finding(&report, "rule/mac")["outcome"], "accepted");
}

/// Returns the verdict on a known difference between cards (`F4`), and its text.
#[track_caller]
fn verdict<'r>(report: &'r Value, difference: &str) -> (&'r str, &'r str) {
    let mut verdicts = report["verdicts"].as_array().expect("verdicts").iter();
    let it = verdicts.find(|it| it["difference"] == difference);
    let it = it.unwrap_or_else(|| panic!("no verdict {difference}"));
    let text = it["what"].as_str().or(it["reason"].as_str());
    (
        it["verdict"].as_str().expect("a verdict"),
        text.unwrap_or_default(),
    )
}

/// Returns the known differences that a report shows.
fn shown(report: &Value) -> Vec<&str> {
    let verdicts = report["verdicts"].as_array().expect("verdicts").iter();
    verdicts
        .filter(|it| it["verdict"] == "differs")
        .map(|it| it["difference"].as_str().expect("a name"))
        .collect()
}

#[test]
fn each_known_difference_between_cards_is_named() {
    let dir = Dir::new();
    let file = dir.join("report.json");
    let none: &[&str] = &[];
    for (sets, code, differences, text) in [
        (&[][..], 0, none, ""),
        (&["max_recv_wr=1024"], 0, &["F1"], "at most 1024 WRs"),
        (&["utc_stamps=true"], 0, &["F2"], "carry UTC"),
        (&["switchdev=true"], 0, &["F3"], "switchdev mode"),
        (
            &["switchdev=true", "vfs=2", "rdma_netlink=false"],
            0,
            &["F3"],
            "is unknown",
        ),
        (&["filler_counter_zero=true"], 0, &["F4"], "reports 0"),
        (&["error_own_strides=true"], 0, &["F5"], "not the rest"),
        (
            &["drop_too_long=true"],
            0,
            &["F6"],
            "rx_oversize_pkts_buffer",
        ),
        (&["port_mtu=true"], 0, &["F7"], "MTU + 18"),
        (&["scatter_fcs_ignored=true"], 1, &["F9"], "not its FCS"),
        (&["diverts_roce=true"], 0, &["F11"], "to the port's address"),
        (&["enable_roce=false", "diverts_roce=true"], 0, none, ""),
        (
            &["lag=true", "persistent_name=true"],
            0,
            &["F12"],
            "mlx5_bond_",
        ),
        (&["lag=true"], 0, none, ""),
    ] {
        let name = match sets {
            ["lag=true", "persistent_name=true"] => "roceP5555p1s0",
            ["lag=true"] => "mlx5_bond_0",
            _ => "mlx5_0",
        };
        let done = selftest("loopback", sets, &file)
            .args(["--tx", name])
            .run()
            .expect(code);
        let report = read(&file);
        assert_eq!(shown(&report), differences, "{sets:?}: {done}");
        if let Some(first) = differences.first() {
            let (_, what) = verdict(&report, first);
            assert!(what.contains(text), "{sets:?}: {what}");
            assert!(
                done.stdout
                    .contains(&format!("this card differs: {what}\n")),
                "{done}"
            );
        }
        assert_eq!(ids(&report, "differs").is_empty(), code == 0, "{sets:?}");
        assert_valid(&file);
        fs::remove_file(&file).expect("the report exists");
    }
}

#[test]
fn a_report_ends_with_a_verdict_on_each_known_difference() {
    let dir = Dir::new();
    let file = dir.join("report.json");
    let done = with_traffic(&[], &file).run().expect(0);
    let lines: Vec<_> = done.stdout.lines().collect();
    let last = &lines[lines.len() - 14..];
    for (n, line) in (1..).zip(last) {
        assert!(line.starts_with(&format!("F{n} ")), "{line}");
    }
    assert_eq!(last[3], "F4 filler counter: as expected");
    let (kind, reason) = (verdict(&read(&file), "F8").0.to_owned(), last[7]);
    assert_eq!(kind, "not_tested");
    assert!(
        reason.ends_with("not tested: requires --disruptive"),
        "{reason}"
    );
    // Without frames most differences are unknown, and the reason is named.
    let done = selftest("loopback", &[], &file).run().expect(0);
    let expected = "F4 filler counter: not tested: requires --tx\n";
    assert!(done.stdout.contains(expected), "{done}");
    assert_eq!(verdict(&read(&file), "F1").0, "as_expected");
}

#[test]
fn a_virtual_function_is_named_as_the_reason() {
    let dir = Dir::new();
    let file = dir.join("report.json");
    let done = with_traffic(&["vf=true"], &file).run().expect(1);
    let reason =
        "a virtual function that the host does not trust receives only frames to its own address";
    assert!(done.stdout.contains(reason), "{done}");
    assert_eq!(ids(&read(&file), "differs"), ["traffic/arrives"]);
}

/// The settings make one field of a striding WQ's completions wrong.
#[test]
fn wrong_fields_of_striding_completions_are_found() {
    let dir = Dir::new();
    let file = dir.join("report.json");
    for field in ["wqe_counter", "strides", "wqe_id", "byte_count"] {
        let set = format!("wrong_striding_cqe={field}");
        let _ = with_traffic(&[&set], &file).run().expect(1);
        let report = read(&file);
        let found = ids(&report, "differs");
        let is_striding = |it: &String| it.contains("striding") || it.contains("stride index");
        assert!(
            found.iter().any(|it| it.starts_with("striding frame: ")),
            "{field}: {found:?}"
        );
        let of_sleep = |it: &String| it.starts_with("sleep") || it.starts_with("moderation");
        let others: Vec<_> = found
            .iter()
            .filter(|it| !is_striding(it) && !of_sleep(it))
            .collect();
        assert!(others.is_empty(), "{field}: {others:?}");
        assert_eq!(finding(&report, "frame: longest")["outcome"], "as_expected");
    }
}

/// A report of version 1, which has fewer findings and no verdicts.
#[test]
fn a_report_of_an_older_version_is_compared_by_what_it_has() {
    let dir = Dir::new();
    let older = binaries::root().join("tests/tests/cli/selftest_v1.json");
    assert_eq!(read(&older)["version"], 1);
    let new = dir.join("new.json");
    let _ = with_traffic(&["caps=all"], &new)
        .arg("--disruptive")
        .run()
        .expect(0);
    assert_eq!(read(&new)["version"], 2);
    let compare = |a: &Path, b: &Path| {
        let done = wqcap(["selftest", "--compare"])
            .args([a, b])
            .run()
            .expect(0);
        done.stdout
    };
    let text = compare(&older, &new);
    let rows: Vec<_> = text.lines().filter(|it| it.starts_with("  ")).collect();
    assert!(rows.len() > 100, "{text}");
    for row in &rows {
        assert!(row.contains(": not in the older report; "), "{row}");
    }
    assert!(text.contains("  striding fillers: frames: not in the older report; as expected\n"));
    let back = compare(&new, &older);
    assert!(back.contains("  striding fillers: frames: as expected; not in the older report\n"));
    let done = wqcap(["selftest", "--json", "--compare"])
        .args([&older, &new])
        .run()
        .expect(0);
    let differences: Value = serde_json::from_str(&done.stdout).expect("JSON");
    for it in differences.as_object().expect("an object").values() {
        let them = it.as_array().expect("differences");
        assert!(them.iter().all(|it| it["older"] == true), "{it}");
    }
}

#[test]
fn a_test_that_ends_early_leaves_a_report() {
    let dir = Dir::new();
    for (fault, reason) in [
        ("fault=device_fatal@frames=30", "the device is lost"),
        ("fault=port_down@frames=30", "have not arrived"),
    ] {
        let file = dir.join("report.json");
        with_traffic(&[fault], &file)
            .run()
            .expect(1)
            .says(&["ended early", reason]);
        let report = read(&file);
        assert!(
            report["ended_early"]
                .as_str()
                .expect("a reason")
                .contains(reason)
        );
        assert_eq!(
            finding(&report, "frame: ipv4 tcp")["outcome"],
            "as_expected"
        );
        let last = report["findings"]
            .as_array()
            .expect("findings")
            .last()
            .expect("at least one finding");
        assert!(
            last["id"].as_str().expect("an id").starts_with("frame"),
            "{last}"
        );
    }
}

#[test]
fn a_signal_ends_the_test_with_a_report() {
    let dir = Dir::new();
    for signal in [Signal::INT, Signal::TERM] {
        let file = dir.join("report.json");
        let mut running = with_traffic(&[], &file).args(["--drift", "1000"]).start();
        running.until("the drift is measured", |it| {
            it.stderr().contains("measuring")
        });
        running.signal(signal);
        running
            .wait()
            .expect(1)
            .says(&["ended early: a signal arrived"]);
        let report = read(&file);
        assert_eq!(report["ended_early"], "a signal arrived");
        assert_eq!(finding(&report, "rule/priority/15")["outcome"], "accepted");
        assert!(ids(&report, "as_expected").is_empty());
        fs::remove_file(&file).expect("the report exists");
    }
}

#[test]
fn behaviour_not_yet_verified_on_hardware_appears_in_the_report() {
    let dir = Dir::new();
    let with = |name: &str, sets: &[&str], code| {
        let file = dir.join(name);
        let _ = with_traffic(sets, &file).run().expect(code);
        file
    };
    let plain = with("plain.json", &[], 0);
    // The device resets a WQ only if the request names the current state of the WQ.
    let stale = with("stale.json", &["refuse_stale_state=true"], 0);
    let report = read(&stale);
    assert_refused(&report, "recovery: error to reset", "EINVAL");
    let named = finding(&report, "recovery: error to reset, with the state named");
    assert_eq!(named["outcome"], "accepted");
    assert_eq!(
        finding(&report, "recovery: receives again")["outcome"],
        "as_expected"
    );
    assert_eq!(
        differing_subjects(&plain, &stale),
        BTreeSet::from(["recovery".to_owned()])
    );
    // Flushed WRs never complete.
    let report = read(&with("unflushed.json", &["unflushed_wrs=2"], 1));
    assert_eq!(
        ids(&report, "differs"),
        ["recovery: flushed", "striding recovery: flushed"]
    );
    // The UTC clock of the device differs from the clock of the host.
    let utc = with("utc.json", &["realtime_clock=true"], 0);
    let ahead = with(
        "ahead.json",
        &["realtime_clock=true", "utc_offset=3600000000000"],
        0,
    );
    assert_eq!(
        differing_subjects(&utc, &ahead),
        BTreeSet::from(["realtime_clock".to_owned()])
    );
}

/// A device without WQs is tested as far as it goes: the report has the states of its QP.
#[test]
fn a_device_without_wqs_gets_a_report() {
    let dir = Dir::new();
    let file = dir.join("plain.json");
    let done = selftest("loopback", &["rwq=false"], &file).run().expect(1);
    done.says(&["the report has the findings up to that point"]);
    let report = read(&file);
    for state in [
        "",
        "/reset to ready",
        "/ready to error",
        "/error to reset",
        "/reset to ready again",
    ] {
        let id = format!("qp/raw{state}");
        assert_eq!(finding(&report, &id)["outcome"], "accepted", "{id}");
    }
    assert_refused(&report, "wq/wrs/256", "EOPNOTSUPP");
    let ended = report["ended_early"].as_str().expect("a reason");
    assert!(ended.contains("RWQ indirection table"), "{ended}");
}
