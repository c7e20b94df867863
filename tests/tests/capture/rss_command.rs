//! `wqcap rss`: its prediction equals that of a naive reference and the result of a capture on the
//! model. Its text is plain ASCII outside a terminal, and unreadable files are errors.

use serde_json::Value;
use std::{
    collections::HashSet,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};
use wqcap_tests::{
    Dir, Done, Wqcap,
    captures::Captures,
    files,
    frames::{self, Ends, Frame},
    oracles::reference,
    wqcap::wqcap,
};

const QUEUES: usize = 4;

fn rss(args: &[&str], file: &Path) -> Done {
    wqcap(["rss", "--set", "capture.queues=4"])
        .args(args)
        .arg(file)
        .run()
}

fn json(args: &[&str], file: &Path) -> Value {
    let done = rss(&[args, &["--json"]].concat(), file).expect(0);
    serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
}

fn frames_by_queue(report: &Value) -> Vec<u64> {
    let queues = report["queues"].as_array();
    let queues = queues.expect("the report has queues");
    queues
        .iter()
        .map(|q| q["frames"].as_u64().expect("a count of frames"))
        .collect()
}

#[test]
fn the_predicted_spread_of_every_capture_equals_the_naive_reference() {
    let captures = Captures::find();
    let compared = AtomicUsize::new(0);
    captures.each(|file| {
        let report = json(&[], file);
        let records = files::read_as_it_stands(file);
        let total = report["frames"].as_u64().expect("the value is a number")
            + report["files"][0]["other_link_types"]
                .as_u64()
                .expect("the value is a number");
        // Zeros at a file's end may be padding or empty records. `wqcap rss` takes them for padding
        // and prints a note.
        if report["files"][0]["notes"].to_string().contains("zeros") {
            return;
        }
        assert_eq!(total, records.len() as u64, "{}", file.display());
        // The reference has fewer bytes of a truncated frame than a NIC would have.
        let whole = records.iter().all(|r| r.caplen >= r.len && r.caplen >= 14);
        if !whole || report["files"][0]["other_link_types"] != 0 {
            return;
        }
        let mut want = vec![0; QUEUES];
        for record in &records {
            want[reference::queue(&record.bytes, QUEUES, 128)] += 1;
        }
        assert_eq!(frames_by_queue(&report), want, "{}", file.display());
        compared.fetch_add(1, Ordering::Relaxed);
    });
    let compared = compared.into_inner();
    assert!(
        compared * 2 > captures.files.len(),
        "only {compared} captures compared"
    );
}

#[test]
fn a_capture_on_the_model_has_the_predicted_spread() {
    let dir = Dir::new();
    let file = dir.join("in.pcap");
    let frames = frames::assortment();
    files::write(&file, 1_600_000_000, &frames);
    let settings = [
        "--set",
        "rss.table_size=64",
        "--set",
        "rss.weights=[1,2,3,4]",
    ];
    let predicted = json(&settings, &file);
    let run = Wqcap::run(&dir, "run")
        .replay(&file)
        .queues(QUEUES)
        .args(&settings)
        .set("capture.buffer=16KiB")
        .finish(0);
    let received: Vec<_> = run
        .summary
        .ledger
        .queues
        .iter()
        .map(|q| q.received)
        .collect();
    assert_eq!(frames_by_queue(&predicted), received);
}

/// Returns the assortment of frames, each frame also in VXLAN and GRE, and each IPv4 packet in GRE
/// with a key.
fn tunnelled() -> Vec<Vec<u8>> {
    let mut all = frames::assortment();
    for (sport, inner) in (1000..).zip(frames::assortment()) {
        let ends = Ends {
            from: 1,
            to: 2,
            sport,
            dport: 4789,
        };
        let outer = Frame::ethernet(&[], frames::IPV4);
        let udp = outer.clone().ipv4(ends, 17, 0).udp(ends).done();
        all.push([&udp, &[8, 0, 0, 0, 0, 0, 7, 0][..], &inner].concat());
        let gre = outer.ipv4(ends, 47, 0).done();
        all.push([&gre, &[0, 0, 0x65, 0x58][..], &inner].concat());
        if inner[12..14] == [8, 0] {
            let keyed = [0x20, 0, 8, 0, 0, 0, 0, 9];
            all.push([&gre, &keyed[..], &inner[14..]].concat());
        }
    }
    all
}

/// The prediction equals the result on the model for each configuration.
#[test]
fn the_model_has_the_predicted_spread_with_rules_and_tunnels() {
    let dir = Dir::new();
    let file = dir.join("in.pcap");
    let frames = tunnelled();
    files::write(&file, 1_600_000_000, &frames);
    let filtered = |rules: &str| format!("[capture]\nmode = \"filtered\"\n{rules}");
    let configs = [
        "[rss]\ninner = true".to_owned(),
        "[rss]\ninner = true\nhash = \"l3\"".to_owned(),
        filtered("[[rule]]\nproto = \"udp\"\n[[rule]]\nethertype = 0x0806\nqueue = 3"),
        filtered(
            "[[rule]]\nsrc = \"10.0.0.0/9\"\n[[rule]]\nproto = \"tcp\"\ndst_port = 443\naction = \"drop\"\npriority = 1\n\
                  [[rule]]\nvlan = 100\npriority = 2\nqueue = 1\n[[rule]]\nproto = \"tcp\"\npriority = 3",
        ),
        filtered(
            "[[rule]]\nvni = 7\nqueue = 2\n[[rule]]\nproto = \"gre\"\npriority = 1\n[rss]\nhash = \"l3\"",
        ),
        filtered("[[rule]]\naction = \"drop\"\nproto = \"icmp\"\n[[rule]]\npriority = 1"),
    ];
    let (mut on_queues, mut not_received) = (0, 0);
    for (i, config) in configs.iter().enumerate() {
        let path = dir.write(&format!("{i}.toml"), config);
        let path = path.to_str().expect("the path is UTF-8");
        let predicted = json(&["-c", path], &file);
        let run = Wqcap::run(&dir, &i.to_string())
            .config(config)
            .replay(&file)
            .queues(QUEUES)
            .set("capture.buffer=16KiB")
            .finish(0);
        let queues = &run.summary.ledger.queues;
        let received: Vec<_> = queues.iter().map(|q| q.received).collect();
        assert_eq!(frames_by_queue(&predicted), received, "{config}");
        let frames_of = |what: &str| {
            predicted[what]["frames"]
                .as_u64()
                .expect("the value is a number")
        };
        on_queues += received.iter().sum::<u64>();
        not_received += frames_of("dropped") + frames_of("left");
        let all = received.iter().sum::<u64>() + frames_of("dropped") + frames_of("left");
        assert_eq!(all, frames.len() as u64, "{config}");
    }
    assert!(
        on_queues > 0 && not_received > 0,
        "{on_queues} frames on queues, {not_received} not received"
    );
}

#[test]
fn flows_directions_and_reasons_are_counted() {
    let dir = Dir::new();
    let file = dir.join("in.pcap");
    let frames = frames::assortment();
    files::write(&file, 1_600_000_000, &frames);
    let report = json(&[], &file);
    let two_way = |frame: &Vec<u8>| reference::flow(frame);
    let flows: HashSet<_> = frames.iter().filter_map(two_way).collect();
    assert!(
        report["directions"]["both"]
            .as_u64()
            .expect("the value is a number")
            >= flows.len() as u64
    );
    assert_eq!(report["directions"]["split"], 0);
    let split = json(&["--set", "rss.key=microsoft"], &file);
    assert!(
        split["directions"]["split"]
            .as_u64()
            .expect("the value is a number")
            > 0
    );
    for (by, reasons) in [
        ("catch_all", &["not_ip", "truncated_l4", "damaged_ip"][..]),
        (
            "addresses_only",
            &["fragments", "other_protocols", "extension_headers"],
        ),
    ] {
        let mut sum = 0;
        for (_, load) in report[by]["reasons"].as_object().expect("an object") {
            sum += load["frames"].as_u64().expect("the value is a number");
        }
        assert_eq!(report[by]["frames"], sum);
        for reason in reasons {
            assert!(
                report[by]["reasons"][reason]["frames"] != 0,
                "{by} {reason}"
            );
        }
    }
    assert_eq!(report["heaviest"].as_array().map(Vec::len), Some(10));
}

#[test]
fn pcapng_gives_the_same_report_as_pcap() {
    let dir = Dir::new();
    let file = dir.join("in.pcap");
    files::write(&file, 1_600_000_000, &frames::udp_flows(500, 80));
    let run = Wqcap::run(&dir, "run")
        .replay(&file)
        .queues(1)
        .set("output.format=pcapng")
        .finish(0);
    let [(_, pcapng)] = &run.files()[..] else {
        panic!("a run on one queue writes one file")
    };
    let (a, b) = (json(&[], &file), json(&[], pcapng));
    assert_eq!(frames_by_queue(&a), frames_by_queue(&b));
    assert_eq!(a["heaviest"], b["heaviest"]);
}

#[test]
fn text_is_plain_and_suggestions_give_their_reasons() {
    let dir = Dir::new();
    let file = dir.join("in.pcap");
    files::write(&file, 1_600_000_000, &frames::assortment());
    let done = rss(&["--suggest"], &file).expect(0);
    for part in [
        "queue  flows",
        "skew (busiest over mean)",
        "heaviest flows",
        "capture.queues = ",
        "rss.hash = ",
        "rss.key = symmetric",
        "rss.weights = ",
    ] {
        assert!(done.stdout.contains(part), "{part}: {done}");
    }
    assert!(
        !done.stdout.contains('\x1b') && done.stdout.is_ascii(),
        "{done}"
    );
    assert_eq!(done.stderr, "");
    let report = json(&["--suggest"], &file);
    let suggestion = &report["suggestion"];
    assert!(suggestion["busiest_then"].as_f64() <= suggestion["busiest_now"].as_f64());
    for setting in suggestion["settings"]
        .as_array()
        .expect("the value is a list")
    {
        assert!(
            setting["why"]
                .as_str()
                .is_some_and(|reason| !reason.is_empty())
        );
    }
}

#[test]
fn an_unreadable_file_is_named_and_exits_with_status_2() {
    let dir = Dir::new();
    let text = dir.write("notes.txt", "no capture");
    let good = dir.join("good.pcap");
    files::write(&good, 1, &frames::udp_flows(3, 60));
    let missing = dir.join("missing.pcap");
    for (file, error) in [(&missing, "No such file"), (&text, "not a pcap or pcapng")] {
        let done = rss(&["--json"], file).expect(2);
        done.says(&[&file.display().to_string(), error]);
        assert_eq!(done.stdout, "");
    }
    let done = rss(&["--set", "rss.weights=[1,2]"], &good).expect(2);
    done.says(&["weights"]);
    let done = rss(&["--set", "model.rate=1"], &good).expect(2);
    done.says(&["model.rate"]);
}

#[test]
fn a_file_torn_by_a_crash_is_read_up_to_its_last_complete_record() {
    let dir = Dir::new();
    let file = dir.join("in.pcap");
    files::write(&file, 1, &frames::udp_flows(10, 100));
    let bytes = std::fs::read(&file).expect("the file is readable");
    let torn = dir.write("torn.pcap", &bytes[..bytes.len() - 50]);
    let report = json(&[], &torn);
    assert_eq!(report["frames"], 9);
    let note = report["files"][0]["notes"][0]
        .as_str()
        .expect("the file has a note");
    assert!(note.contains("the last record is torn, 66 bytes"), "{note}");
}

#[test]
fn help_of_the_commands_over_files_shows_examples() {
    for (command, example) in [
        ("rss", "wqcap rss trace.pcap"),
        ("merge", "wqcap merge -o - "),
        ("recover", "wqcap recover /"),
    ] {
        let done = wqcap([command, "--help"]).run().expect(0);
        assert!(
            done.stdout.contains("Examples:") && done.stdout.contains(example),
            "{done}"
        );
    }
}
