//! Third-party verbs programs, and C clients that check every result, on the model.
//!
//! The programs are Debian's tools, the clients of `mlx5-model/tests/clients`, and, if that directory
//! exists, the unmodified clients of `../shared/spike`.

use crate::c_client;
use rustix::process::Signal;
use std::{
    path::Path,
    time::{Duration, Instant},
};
use wqcap_testkit::{
    Dir, Done, Program,
    model::model,
    need,
    process::HANG,
    process::clients::{self, Build},
    skip,
};

#[test]
fn ibv_devices_lists_one_device_for_each_wire() {
    let done = model(&["loopback", "synth:size=64"], &[], ["ibv_devices"])
        .run()
        .expect(0);
    let mut devices: Vec<_> = done
        .stdout
        .lines()
        .skip(2)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    // The order is that of the file system of the model's scratch directory.
    devices.sort_unstable();
    assert_eq!(devices, ["mlx5_0", "mlx5_1"], "{done}");
}

#[test]
fn ibv_devinfo_describes_an_ethernet_port_that_is_up() {
    let done = model(&["loopback"], &[], ["ibv_devinfo", "-v"])
        .run()
        .expect(0);
    assert_eq!(done.stderr, "");
    let value = |key: &str| {
        let line = done
            .stdout
            .lines()
            .find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{key} is missing: {done}"))
            .trim()
    };
    assert_eq!(value("hca_id"), "mlx5_0");
    assert_eq!(value("vendor_id"), "0x02c9");
    assert_eq!(value("phys_port_cnt"), "1");
    assert!(value("state").starts_with("PORT_ACTIVE"), "{done}");
    assert_eq!(value("link_layer"), "Ethernet");
    // Toeplitz, on RAW_PACKET QPs, over all fields of IPv4, IPv6, TCP and UDP.
    assert_eq!(value("rx_hash_function"), "0x1");
    assert_eq!(value("supported_qp"), "");
    assert!(done.stdout.contains("SUPPORT_RAW_PACKET"), "{done}");
    let fields = value("rx_hash_fields_mask").trim_start_matches("0x");
    assert_eq!(
        u64::from_str_radix(fields, 16).map(|mask| mask & 0xff),
        Ok(0xff),
        "{done}"
    );
    assert!(number(value("max_rwq_indirection_table_size")) >= 128);
    assert!(number(value("max_wq_type_rq")) >= 16);
    assert!(number(value("hca_core_clock").trim_end_matches("kHZ")) > 0);
}

#[test]
fn a_device_of_two_ports_lists_both() {
    let done = model(
        &["loopback"],
        &["mlx5_0.ports=2", "mlx5_0.port2.wire=synth:size=64"],
        ["ibv_devinfo"],
    )
    .run()
    .expect(0);
    assert_eq!(done.stdout.matches("port_lid").count(), 2, "{done}");
}

#[test]
fn programs_without_verbs_run_unchanged() {
    let dir = Dir::new();
    let file = dir.write("text", "one\ntwo\n");
    let script = format!(
        "cat {} | tr a-z A-Z; ls /sys/class/net >/dev/null && echo done",
        file.display()
    );
    let done = model(&["loopback"], &[], ["sh", "-c", &script])
        .run()
        .expect(0);
    assert_eq!(
        (done.stdout.as_str(), done.stderr.as_str()),
        ("ONE\nTWO\ndone\n", "")
    );
}

/// Runs the client `rss MODE QUEUES COUNT` on `wire`, and asserts that it received `count` frames.
fn rss(build: Build, mode: &str, queues: usize, count: u64, wire: &str) -> Done {
    let client = c_client("rss", build);
    let wire = format!("synth:count={count},{wire}");
    let (queues, count) = (queues.to_string(), count.to_string());
    let program = [
        client.to_str().expect("the path is UTF-8"),
        mode,
        &queues,
        &count,
    ];
    let done = model(&[&wire], &[], program).run().expect(0);
    let frames: u64 = done
        .stdout
        .split_whitespace()
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or_default();
    assert_eq!(frames.to_string(), count, "{done}");
    done
}

#[test]
fn the_rss_client_receives_by_poll_cq() {
    let done = rss(
        Build::Plain,
        "poll",
        4,
        200_000,
        "size=94/594/1514,flows=500,proto=mix,ip=mix,dir=both",
    );
    let by_queue: Vec<u64> = done
        .stdout
        .rsplit(':')
        .next()
        .expect("the client prints counts")
        .split_whitespace()
        .map(number)
        .collect();
    assert!(
        by_queue.len() == 4 && by_queue.iter().all(|&n| n > 10_000),
        "each queue receives more than 10,000 frames: {done}"
    );
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn the_rss_client_receives_by_the_extended_iterator() {
    let _ = rss(
        Build::Plain,
        "ex",
        3,
        200_000,
        "size=94,flows=500,proto=mix,ip=mix,vlan=100",
    );
    let _ = rss(Build::Plain, "ex", 16, 100_000, "size=imix,flows=2000");
}

#[test]
fn the_rss_client_receives_by_completion_events() {
    // The wire is paced, so that the client sleeps between frames.
    let _ = rss(
        Build::Plain,
        "event",
        2,
        20_000,
        "size=94,flows=64,proto=mix,ip=mix,pps=20000",
    );
    let _ = rss(
        Build::Plain,
        "event",
        4,
        100_000,
        "size=94,flows=64,proto=mix,ip=mix",
    );
}

#[test]
fn the_rss_client_passes_under_the_address_sanitizer() {
    for mode in ["poll", "ex", "event"] {
        let _ = rss(
            Build::Sanitized,
            mode,
            4,
            50_000,
            "size=94/1514,flows=200,proto=mix,ip=mix",
        );
    }
}

#[test]
fn the_flush_client_passes() {
    for build in [Build::Plain, Build::Sanitized] {
        let done = model(&["loopback"], &[], [c_client("flush", build)])
            .run()
            .expect(0);
        assert_eq!(done.stdout, "ok\n");
    }
}

#[test]
fn the_matchers_client_passes() {
    for build in [Build::Plain, Build::Sanitized] {
        let done = model(&["loopback"], &[], [c_client("matchers", build)])
            .run()
            .expect(0);
        assert_eq!(done.stdout, "ok\n");
    }
}

/// Creates, destroys and resets queues while the wire sends `frames` frames. `pace` is `,pps=N`, or
/// empty for the full rate.
fn churn(mode: &str, frames: u64, pace: &str, seed: u64, deadline: Duration) {
    let client = c_client("churn", Build::Plain);
    let lossy = if mode == "loses" { ",lossy" } else { "" };
    let wire = format!("synth:count={frames},size=94/594,flows=256,proto=mix,ip=mix{pace}{lossy}");
    let (count, text) = (frames.to_string(), seed.to_string());
    let program = [
        client.to_str().expect("the path is UTF-8"),
        mode,
        &count,
        &text,
    ];
    let done = model(&[&wire], &[], program)
        .timeout(deadline)
        .run()
        .expect(0);
    skip::say(&format!(
        "churn {mode}, seed {seed}: {}",
        done.stdout.trim()
    ));
}

#[test]
fn queues_churn_while_the_wire_waits() {
    // The wire is not paced: each change of a queue stops it, and a paced wire does not catch up.
    churn("waits", 1_000_000, "", 1, HANG);
}

#[test]
fn queues_churn_while_the_wire_loses() {
    churn("loses", 300_000 * 5, ",pps=300000", 2, HANG);
}

#[test]
#[ignore = "takes many minutes: scripts/soak runs it"]
fn queues_churn_at_length() {
    let seed = std::env::var("WQCAP_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        std::time::UNIX_EPOCH
            .elapsed()
            .expect("after 1970")
            .as_secs()
    });
    let deadline = Duration::from_secs(3600);
    churn("waits", 100_000_000, "", seed, deadline);
    churn("loses", 100_000_000, ",pps=1000000", seed, deadline);
}

#[test]
fn a_killed_client_does_not_affect_the_next_client() {
    let dir = Dir::new();
    let client = c_client("rss", Build::Plain);
    let program = [
        client.to_str().expect("the path is UTF-8"),
        "poll",
        "4",
        "1000000000",
    ];
    let mut run = model(&["synth:count=1000000000,size=94,pps=1000"], &[], program)
        .env("TMPDIR", dir.path())
        .start();
    run.until("the client receives frames", |run| {
        run.stderr().contains("receiving")
    });
    run.signal(Signal::KILL);
    let done = run.wait();
    assert_eq!(done.signal(), Some(9), "{done}");
    // The killed client could not clean up. The next client runs undisturbed.
    let _ = rss(Build::Plain, "poll", 4, 10_000, "size=94");
}

#[test]
fn the_spikes_rss_client_runs_unmodified() {
    let dir = Dir::new();
    for build in [Build::Plain, Build::Sanitized] {
        let client = need!(clients::theirs("t_rss", build));
        for (mode, queues, wire, env) in [
            ("ex", "4", "synth:size=64,flows=64", None),
            ("poll", "1", "synth:size=64,flows=64", None),
            (
                "poll",
                "4",
                "synth:size=64,flows=64,pps=100000",
                Some("EVT"),
            ),
            ("ex", "4", "synth:size=68,flows=64,vlan=100", Some("CVLAN")),
        ] {
            let count = if build == Build::Plain {
                "200000"
            } else {
                "50000"
            };
            let program = [
                client.to_str().expect("the path is UTF-8"),
                mode,
                queues,
                count,
            ];
            let mut program = model(&[wire], &[], program).cwd(dir.path());
            if let Some(name) = env {
                program = program.env(name, "1");
            }
            let done = program.run().expect(0);
            for clean in ["rss_bad=0 ", "seq_bad=0 ", "ts_bad=0 "] {
                assert!(done.stdout.contains(clean), "{done}");
            }
            let (got, vlan) = (field(&done, "got="), field(&done, "vlan="));
            assert_eq!(vlan, if env == Some("CVLAN") { got } else { 0 }, "{done}");
        }
    }
}

fn field(done: &Done, name: &str) -> u64 {
    let value = done
        .stdout
        .split_whitespace()
        .find_map(|word| word.strip_prefix(name));
    number(value.unwrap_or_else(|| panic!("{name} is missing: {done}")))
}

#[test]
fn the_spikes_flush_client_runs_unmodified() {
    for build in [Build::Plain, Build::Sanitized] {
        let client = need!(clients::theirs("t_flush", build));
        // The client exits without freeing its device list, so leaks are not reported.
        let done = model(&["loopback"], &[], [client])
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .run()
            .expect(0);
        assert!(done.stdout.ends_with("ok\n"), "{done}");
        assert!(done.stdout.contains("flushed 128 bad 0 "), "{done}");
        assert!(
            done.stdout
                .contains("ERR->RDY ret 22 errno 22\nERR->RESET 0\nRESET->RDY 0\n"),
            "{done}"
        );
    }
}

/// Returns the command `raw_ethernet_bw ROLE` of Debian's perftest, with frames of 1024 bytes from
/// and to the same MAC address.
fn raw_ethernet_bw(wire: &str, role: &str, frames: u64) -> Program {
    let mac = "0c:42:a1:00:00:01";
    let frames = frames.to_string();
    let args = [
        "-d", "mlx5_0", "-E", mac, "-B", mac, "-s", "1024", "-n", &frames, role,
    ];
    model(&[wire], &[], ["raw_ethernet_bw"]).args(args)
}

/// Parses the line below the heading `#bytes #iterations ... BW average ...`. Returns the bytes,
/// the iterations and the average.
fn bandwidth(done: &Done) -> (u64, u64, f64) {
    let line = done
        .stdout
        .lines()
        .skip_while(|line| !line.contains("#iterations"))
        .nth(1);
    let words: Vec<_> = line
        .unwrap_or_else(|| panic!("the report is missing: {done}"))
        .split_whitespace()
        .collect();
    (
        number(words[0]),
        number(words[1]),
        words[3].parse().unwrap_or_else(|e| panic!("{e}: {done}")),
    )
}

#[test]
fn raw_ethernet_bw_sends_frames() {
    if !Path::new("/usr/bin/raw_ethernet_bw").exists() {
        skip!("raw_ethernet_bw is not installed (Debian package perftest)");
    }
    let done = raw_ethernet_bw("loopback", "--client", 20_000)
        .run()
        .expect(0);
    let (bytes, frames, average) = bandwidth(&done);
    assert_eq!((bytes, frames), (1024, 20_000), "{done}");
    assert!(average > 0.0, "{done}");
}

/// Two processes, each with its own model, share one cable.
#[test]
fn raw_ethernet_bw_receives_from_another_process() {
    if !Path::new("/usr/bin/raw_ethernet_bw").exists() {
        skip!("raw_ethernet_bw is not installed (Debian package perftest)");
    }
    let dir = Dir::new();
    let wire = format!("peer:{}", dir.join("cable").display());
    // A cable drops frames that are sent before a receiver exists, or faster than it reads. The
    // server waits for a fixed number of frames. So clients send, one after the other, until the
    // server ends.
    let mut server = raw_ethernet_bw(&wire, "--server", 5_000).start();
    let deadline = Instant::now() + HANG;
    let mut clients = Vec::new();
    while !server.ended() && Instant::now() < deadline {
        clients.push(raw_ethernet_bw(&wire, "--client", 50_000).run().expect(0));
    }
    let server = server.wait().expect(0);
    assert!(!clients.is_empty(), "{server}");
    let clients = clients.iter().map(|done| (done, 50_000));
    for (done, frames) in clients.chain([(&server, 5_000)]) {
        let (bytes, iterations, average) = bandwidth(done);
        assert_eq!((bytes, iterations), (1024, frames), "{done}");
        assert!(average > 0.0, "{done}");
    }
}
