//! `wqcap bench`: what it prints is whole and agrees with itself. How fast this machine is, is not for a test to say.

use serde_json::Value;
use std::fs;
use wqcap_tests::{Dir, wqcap::wqcap};

#[test]
fn a_disk_beside_its_baseline() {
    let dir = Dir::new();
    let done = wqcap([
        "bench",
        "disk",
        "--json",
        "--size",
        "8MiB",
        "--repeats",
        "3",
    ])
    .arg(dir.path())
    .run()
    .expect(0);
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    assert!(report["machine"]["cpus"].as_u64() > Some(0), "{report}");
    let result = &report["results"][0];
    assert_eq!(result["name"], "disk/pcap/1500B/1q");
    assert_eq!(result["baseline"], "o_direct");
    let number = |name: &str| {
        result[name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {report}"))
    };
    let (ns, ratio) = (number("ns_per_frame"), number("ratio"));
    assert!(ns > 0.0 && (number("frames_per_s") * ns / 1e9 - 1.0).abs() < 1e-6);
    let spread: Vec<_> = result["spread"]
        .as_array()
        .expect("two")
        .iter()
        .map(Value::as_f64)
        .collect();
    assert!(
        spread[0] <= Some(ratio) && Some(ratio) <= spread[1],
        "{report}"
    );
    for rates in ["bytes_per_s", "baseline_bytes_per_s"] {
        assert_eq!(result[rates].as_array().map(Vec::len), Some(3), "{report}");
    }
    assert_eq!(
        fs::read_dir(dir.path()).expect("lists").count(),
        0,
        "nothing is left"
    );

    let table = wqcap(["bench", "disk", "--size", "1MiB", "--repeats", "1"])
        .arg(dir.path())
        .run()
        .expect(0);
    assert!(table.stdout.contains("disk/pcap/1500B/1q"), "{table}");
    wqcap(["bench", "disk", "/nowhere"])
        .run()
        .expect(2)
        .says(&["/nowhere"]);
    drop(wqcap(["bench", "disk", "--size", "0"]).run().expect(2));
}

#[test]
fn a_sleeper_s_waking_beside_a_spinner() {
    let wire = "synth:size=64,flows=1,pps=1000";
    let bench = |more: &[&str]| {
        let few = ["--frames", "200", "--repeats", "2"];
        let bench = wqcap(["bench", "wake", "--model", wire]).args(few);
        bench.args(more).run().expect(0)
    };
    let done = bench(&["--json"]);
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    let result = &report["results"][0];
    assert_eq!(result["name"], "wake/sleep/1q");
    assert_eq!(result["baseline"], "spin");
    let extra = result["extra_ns"].as_array().expect("one a repeat");
    assert_eq!(extra.len(), 2);
    // A frame is not looked at before it has come, nor a second later.
    let age = result["ns_per_frame"].as_f64().expect("a number");
    assert!((-1e6..1e9).contains(&age), "{report}");
    let table = bench(&[]);
    assert!(table.stdout.contains("wake/sleep/1q"), "{table}");
    assert!(table.stdout.contains("sleeping adds "), "{table}");
    drop(
        wqcap(["bench", "wake", "--model", "nowhere"])
            .run()
            .expect(2),
    );
}
