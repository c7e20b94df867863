//! `wqcap bench`: its reports are complete and consistent. The tests do not check the speed of the
//! machine.

use serde_json::Value;
use std::fs;
use wqcap_tests::{Dir, Program, binaries, process, skip, wqcap::wqcap};

#[test]
fn bench_disk_compares_the_writer_with_direct_io() {
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
    let ceiling = &report["results"][1];
    assert_eq!(ceiling["name"], "disk/pcap/1500B/1q/allocated");
    assert_eq!(ceiling["baseline"], "o_direct_allocated");
    assert_eq!(ceiling["bytes_per_s"], result["bytes_per_s"]);
    let number = |name: &str| {
        result[name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {report}"))
    };
    let (ns, ratio) = (number("ns_per_frame"), number("ratio"));
    assert!(ns > 0.0 && (number("frames_per_s") * ns / 1e9 - 1.0).abs() < 1e-6);
    let spread: Vec<_> = result["spread"]
        .as_array()
        .expect("a list of two ratios")
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
        "the bench removes its files"
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
fn bench_wake_compares_sleeping_with_spinning() {
    let wire = "synth:size=64,flows=1,pps=1000";
    let bench = |repeats: &str, more: &[&str]| {
        let few = ["--frames", "50", "--repeats", repeats];
        let bench = wqcap(["bench", "wake", "--model", wire]).args(few);
        bench.args(more).run().expect(0)
    };
    let done = bench("2", &["--json"]);
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    let result = &report["results"][0];
    assert_eq!(result["name"], "wake/sleep/1q");
    assert_eq!(result["baseline"], "spin");
    let extra = result["extra_ns"].as_array().expect("one value per repeat");
    assert_eq!(extra.len(), 2);
    // A frame is read after its arrival, and its stamp and the clock use the same time scale: other
    // scales differ by 37 s or more.
    let age = result["ns_per_frame"].as_f64().expect("a number");
    assert!((-1e6..30e9).contains(&age), "{report}");
    let table = bench("1", &[]);
    assert!(table.stdout.contains("wake/sleep/1q"), "{table}");
    assert!(
        table.stdout.contains("a sleeping receive loop adds "),
        "{table}"
    );
    drop(
        wqcap(["bench", "wake", "--model", "nowhere"])
            .run()
            .expect(2),
    );
}

#[test]
fn bench_capture_compares_receive_modes_with_baselines() {
    let dir = Dir::new();
    let short = ["--rounds", "2", "--repeats", "2"];
    let done = wqcap(["bench", "capture", "--json"])
        .args(["--receive", "frame,striding"])
        .args(short)
        .arg(dir.path())
        .run()
        .expect(0);
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    let results = report["results"].as_array().expect("a list");
    let compared: Vec<_> = results
        .iter()
        .map(|it| [&it["name"], &it["baseline"]].map(|it| it.as_str().expect("text")))
        .collect();
    let [frame, striding] = ["frame", "striding"].map(|it| format!("capture/pcap/64B/1q/{it}"));
    let wanted = [
        [&frame, "count"],
        [&frame, "copy"],
        [&striding, "count"],
        [&striding, "copy"],
        [&striding, "frame"],
    ];
    assert_eq!(compared, wanted);
    for result in results {
        assert!(result["frames"].as_u64() > Some(2 * 7000), "{report}");
        let figures = |name: &str| {
            let figures = result[name].as_array().expect("a list").iter();
            let figures = figures.map(|ns| ns.as_f64().expect("a number"));
            figures.collect::<Vec<_>>()
        };
        let (ours, baseline) = (figures("ns"), figures("baseline_ns"));
        assert_eq!((ours.len(), baseline.len()), (2, 2));
        let (mut least, mut most) = (f64::INFINITY, 0.0f64);
        for (ours, baseline) in ours.iter().zip(&baseline) {
            assert!(*ours > 0.0 && *baseline > 0.0, "{result}");
            (least, most) = (least.min(ours / baseline), most.max(ours / baseline));
        }
        for (end, ratio) in [least, most].into_iter().enumerate() {
            let reported = result["spread"][end].as_f64().expect("a number");
            assert!((reported / ratio - 1.0).abs() < 1e-9, "{result}");
        }
    }
    // In each repeat all modes share one bare loop, and each mode is the baseline of the next mode.
    assert_eq!(results[1]["baseline_ns"], results[3]["baseline_ns"]);
    assert_eq!(results[4]["baseline_ns"], results[0]["ns"]);
    assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 0);
    let table = wqcap(["bench", "capture", "--rounds", "1", "--repeats", "1"])
        .arg(dir.path())
        .run()
        .expect(0);
    for line in ["capture/pcap/64B/1q ", " count\n", " copy\n"] {
        assert!(table.stdout.contains(line), "{table}");
    }
    let format = |word| wqcap(["bench", "capture", "--rounds", "1", "--format", word]);
    let table = format("pcapng").args(["--repeats", "1"]).arg(dir.path());
    let table = table.run().expect(0);
    assert!(table.stdout.contains("capture/pcapng/64B/1q "), "{table}");
    let refused = format("none").run().expect(2);
    refused.says(&["\"none\"", "pcap or pcapng"]);
    wqcap(["bench", "capture", "--device", "mlx5_7"])
        .arg(dir.path())
        .run()
        .expect(2)
        .says(&["RDMA device"]);
    wqcap(["bench", "capture", "--receive", "frame,packed"])
        .run()
        .expect(2)
        .says(&["\"packed\"", "frame, striding"]);
}

#[test]
fn bench_burst_reports_the_frames_that_a_held_queue_loses() {
    let bench = |more: &[&str]| wqcap(["bench", "burst"]).args(more).run();
    let few = ["--memory", "2MiB", "--repeats", "2", "--hold", "0.1"];
    let done = bench(&[&few[..], &["--rate", "50000", "--json"]].concat()).expect(0);
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    let results = report["results"].as_array().expect("a list");
    let names: Vec<_> = results.iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["burst/frame/64B", "burst/striding/64B"]);
    let memory = |it: &Value| it["buffer_bytes"].as_u64().zip(it["cq_bytes"].as_u64());
    let [frame, striding] = [0, 1].map(|i| memory(&results[i]).expect("two numbers"));
    assert!(frame.0 + frame.1 <= 2 << 20, "{report}");
    assert!(striding.0 + striding.1 <= frame.0 + frame.1, "{report}");
    // Each frame takes a WR or a stride, and a CQE: only frames beyond the memory of the ring are
    // lost.
    for (result, frames) in results.iter().zip([frame.1 / 64, striding.0 / 64]) {
        assert_eq!(result["frames"], frames, "{report}");
        assert_eq!(result["baseline"], "frame");
        assert_eq!(result["hold_frames_per_s"], frames as f64 * 10.0);
        let lost = 5000u64.saturating_sub(frames);
        assert_eq!(result["burst"]["lost"], lost, "{report}");
    }
    let ratio = results[1]["ratio"].as_f64();
    assert!(ratio >= Some(8.0), "{report}");
    assert_eq!(results[1]["spread"], serde_json::json!([ratio, ratio]));

    let table = bench(&[&few[..], &["--rate", "50000", "--receive", "frame,auto"]].concat());
    let table = table.expect(0);
    for part in [
        "burst/frame/64B: of 5,000 frames within 100.0 ms 4,488 are lost",
        "burst/auto/64B: of 5,000 frames within 100.0 ms none is lost",
    ] {
        assert!(table.stdout.contains(part), "{part}: {table}");
    }
    let few = |memory| bench(&["--memory", memory, "--repeats", "1"]);
    few("64KiB").expect(2).says(&[
        "--memory 64KiB",
        "\"striding\" takes 256 KiB",
        "write --memory 512KiB",
    ]);
    drop(few("512KiB").expect(0));
    bench(&["--rate", "0"]).expect(2).says(&["--rate"]);
}

#[test]
fn bench_rx_compares_the_loop_with_bare_loops() {
    let done = wqcap(["bench", "rx", "--json", "--queues", "1,2"])
        .args(["--batch", "8,64", "--rounds", "1", "--repeats", "2"])
        .run()
        .expect(0);
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    let results = report["results"].as_array().expect("a list");
    let names: Vec<_> = results
        .iter()
        .filter_map(|it| it["name"].as_str())
        .collect();
    let mut wanted = Vec::new();
    for queues in ["1q", "2q"] {
        for batch in ["/b8", ""] {
            for way in ["engine", "poll_cq"] {
                wanted.push(format!("rx/{way}/64B/{queues}{batch}"));
            }
        }
    }
    assert_eq!(names, wanted);
    for result in results {
        assert_eq!(result["baseline"], "cq_ex");
        let baseline = result["baseline_ns"].as_array().expect("a list");
        assert_eq!(baseline.len(), 2);
        for ns in baseline.iter().chain([&result["ns_per_frame"]]) {
            assert!(ns.as_f64() > Some(0.0), "{result}");
        }
    }
    wqcap(["bench", "rx", "--queues", "3"])
        .run()
        .expect(2)
        .says(&["--queues 3", "power of two"]);
}

#[test]
fn bench_wire_receives_all_frames_that_it_sends() {
    let dir = Dir::new();
    let file = dir.join("wire.json");
    // Fewer frames than the ring has WRs, so that none is lost on a busy machine.
    let done = wqcap(["bench", "wire", "--json", "--sizes", "64,512"])
        .args(["--rate", "20000", "--seconds", "0.2", "--probes", "20"])
        .args(["--set", "capture.ring=8192"])
        .arg("--report")
        .arg(&file)
        .run()
        .expect(0);
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    let written = fs::read_to_string(&file).expect("the report");
    assert_eq!(
        serde_json::from_str::<Value>(&written).expect("JSON"),
        report
    );
    for (result, name) in report["results"]
        .as_array()
        .expect("a list")
        .iter()
        .zip(["wire/64B", "wire/512B"])
    {
        assert_eq!(
            (&result["name"], &result["baseline"]),
            (&name.into(), &"line".into())
        );
        let trials = result["trials"].as_array().expect("a list");
        let [trial] = &trials[..] else {
            panic!("expected one trial for the one rate: {result}");
        };
        assert!(trial["sent"].as_u64() > Some(0), "{result}");
        assert_eq!(trial["received"], trial["sent"]);
        assert_eq!(
            (&trial["lost"], &trial["out_of_buffer"]),
            (&0.into(), &0.into())
        );
        assert_eq!(result["latency_ns"]["probes"], 20);
    }
    wqcap(["bench", "wire", "--tx", "mlx5_7", "--rx", "mlx5_8"])
        .run()
        .expect(2);
    let nothing = dir.join("nothing.pcap");
    fs::write(&nothing, "").expect("writes");
    wqcap(["bench", "wire", "--replay"])
        .arg(&nothing)
        .run()
        .expect(2)
        .says(&["nothing.pcap"]);
}

#[test]
fn bench_compress_reports_rates_and_ratios() {
    let dir = Dir::new();
    let done = wqcap(["bench", "compress", "--json", "--repeats", "1"])
        .run()
        .expect(0);
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    let results = report["results"].as_array().expect("a list");
    assert_eq!(results.len(), 4);
    for result in results {
        assert!(result["bytes_per_s"].as_f64() > Some(0.0), "{result}");
        // Half of the data is random.
        let share = result["compressed_to"].as_f64().expect("a number");
        assert!((0.4..0.9).contains(&share), "{result}");
    }
    // The table prints the compression ratio.
    let table = wqcap(["bench", "compress", "--repeats", "1"])
        .run()
        .expect(0);
    assert!(table.stdout.contains("compression ratio"), "{table}");
    let rows: Vec<_> = table
        .stdout
        .lines()
        .filter(|line| line.starts_with("compress/"))
        .collect();
    assert_eq!(rows.len(), 4, "{table}");
    for row in rows {
        let ratio: f64 = row
            .split_whitespace()
            .nth(1)
            .and_then(|it| it.parse().ok())
            .expect("a number");
        assert!((1.1..2.5).contains(&ratio), "{table}");
    }
    let empty = dir.join("empty.pcap");
    wqcap_tests::files::write(&empty, 1, &[]);
    wqcap(["bench", "compress"])
        .arg(&empty)
        .run()
        .expect(2)
        .says(&["empty.pcap"]);
}

#[test]
fn the_peers_bench_reports_every_installed_tool() {
    if !process::is_root() {
        skip!("network namespaces require root");
    }
    let dir = Dir::new();
    let bin = binaries::wqcap();
    let done = Program::new(binaries::root().join("benches/peers"))
        .args(["--rates", "2000", "--seconds", "0.5", "--repeats", "1"])
        .args(["--json", "--dir"])
        .arg(dir.path())
        .env("WQCAP_BIN_DIR", bin.parent().expect("a folder"))
        .run()
        .expect(0);
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    let results = report["results"].as_array().expect("a list");
    let tools: Vec<_> = results
        .iter()
        .filter_map(|it| it["tool"].as_str())
        .collect();
    // These tools are among the packages of the tests. The bench reports missing other tools.
    for tool in ["wqcap", "tcpdump", "dumpcap"] {
        assert!(tools.contains(&tool), "{done}");
    }
    for other in ["wqcap-xdp", "netsniff-ng", "testpmd", "testpmd-scalar"] {
        let left_out = done.stderr.contains(&format!("left out: {other} is "));
        assert_ne!(tools.contains(&other), left_out, "{other}: {done}");
    }
    for result in results {
        let number = |name: &str| result[name].as_f64().expect("a number");
        assert!(number("sent") > 0.0 && number("cpu_s") > 0.0, "{result}");
        assert_eq!(number("captured") + number("lost"), number("sent"));
    }
    for result in results.iter().filter(|it| it["tool"] == "wqcap") {
        assert_eq!(result["lost"], 0, "{done}");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 0);
    assert_plot_names_tools(&dir, &done.stdout, &tools);
}

#[test]
fn the_dpdk_bench_reports_three_baselines() {
    if !process::is_root() {
        skip!("network namespaces require root");
    }
    let bin = binaries::wqcap();
    let done = Program::new(binaries::root().join("benches/dpdk"))
        .args(["--rounds", "2", "--repeats", "1", "--json"])
        .env("WQCAP_BIN_DIR", bin.parent().expect("a folder"))
        .run()
        .expect(0);
    if done.stderr.contains("left out: ") {
        skip!("{}", done.stderr.trim());
    }
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    let results = report["results"].as_array().expect("a list");
    let baselines: Vec<_> = results
        .iter()
        .filter_map(|it| it["baseline"].as_str())
        .collect();
    assert_eq!(
        baselines,
        ["testpmd/vectorised", "testpmd/scalar", "cq_ex"],
        "{done}"
    );
    for result in results {
        let number = |it: &Value| it.as_f64().expect("a number");
        assert_eq!(result["name"], "rx/engine/64B/1q");
        let ratio = number(&result["ns_per_frame"]) / number(&result["baseline_ns"][0]);
        assert!(ratio > 0.0, "{result}");
        for it in [&result["ratio"], &result["spread"][0], &result["spread"][1]] {
            assert!((number(it) - ratio).abs() < 1e-9, "{result}");
        }
    }
}

/// Plots the report and asserts that the picture names all tools.
fn assert_plot_names_tools(dir: &Dir, json: &str, tools: &[&str]) {
    let input = dir.write("peers.json", json);
    let picture = dir.join("peers.svg");
    let plot = binaries::wqcap().with_file_name("plot");
    let redirected = format!(
        "exec {} {} <{}",
        plot.display(),
        picture.display(),
        input.display()
    );
    let _ = Program::new("sh").args(["-c", &redirected]).run().expect(0);
    let picture = fs::read_to_string(picture).expect("the plot exists");
    for tool in tools {
        assert!(picture.contains(tool), "{tool} is not in the picture");
    }
}
