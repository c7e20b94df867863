//! What is written of the NIC's clock: the summary, the files, the log.

use serde_json::Value;
use wqcap_tests::{Dir, Wqcap};

/// Two and a half seconds of frames in pcapng files on a software NIC with `sets`. Gives the summary, the bytes of the
/// files, and what the run has said.
fn run(name: &str, sets: &[&str]) -> (Value, Vec<u8>, String) {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, name)
        .model("synth:size=64,flows=4,pps=2000,count=5000")
        .queues(1)
        .set("output.format=pcapng");
    let run = sets.iter().fold(run, |run, set| run.set(set));
    let finished = run.finish(0);
    assert_eq!(finished.summary.ledger.total.captured, 5000);
    let summary = std::fs::read_to_string(run.summary_path()).expect("a summary");
    let files = finished.files();
    let bytes = files
        .iter()
        .flat_map(|(_, path)| std::fs::read(path).expect("readable"));
    (
        serde_json::from_str(&summary).expect("JSON"),
        bytes.collect(),
        finished.done.stderr,
    )
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|it| it == text.as_bytes())
}

#[test]
fn drift_and_offset_are_in_the_summary_and_in_the_files() {
    for real_time in [false, true] {
        let set = format!("model.realtime_clock={real_time}");
        let (summary, bytes, _) = run("drifts", &["model.clock_drift=2000", &set]);
        let clock = &summary["clock"];
        let number = |name: &str| clock[name].as_f64().expect("a number");
        assert_eq!(clock["real_time"], real_time);
        // Five milliseconds in all; what the machine is late by is below one of them.
        assert!((1000.0..3000.0).contains(&number("drift_ppm")), "{clock}");
        assert!((1e6..2e7).contains(&number("offset_ns")), "{clock}");
        assert!(number("looks") >= 1.0, "{clock}");
        assert_eq!(summary["stamps"], "hardware_system");
        assert!(holds(&bytes, "stamps: NIC clock minus system clock "));
        assert_eq!(holds(&bytes, "real-time"), real_time, "the header says so");
    }
}

#[test]
fn a_jump_is_noted() {
    let jump = "model.fault=clock_jump:ns=7000000000@ms=500";
    let (summary, bytes, stderr) = run("jumps", &[jump]);
    let jumped = summary["clock"]["jumped_ns"].as_i64().expect("a number");
    assert!((jumped - 7_000_000_000).abs() < 50_000_000, "{jumped}");
    let said = "the NIC's clock jumped by +";
    assert!(
        summary["notes"].to_string().contains(said),
        "{}",
        summary["notes"]
    );
    assert!(stderr.contains(said), "{stderr}");
    assert!(holds(&bytes, "stamps: NIC clock minus system clock "));
    assert!(
        !holds(&bytes, "jumps          0"),
        "it is counted in the file"
    );
}

#[test]
fn software_stamps_tell_of_no_clock() {
    let (summary, bytes, _) = run("software", &["capture.timestamps=software"]);
    assert!(summary["clock"].is_null());
    assert!(!holds(&bytes, "NIC clock minus"));
}
