//! Tests of changes while frames flow, through the engine's API and real verbs on the software NIC.
//!
//! The NIC is a preloaded library, so each test runs its inner test, a function of module `on_the_nic` or
//! `stamps`, in a separate process on the model: `THIS_BINARY running::on_the_nic::NAME`.

mod on_the_nic;
mod stamps;

use std::{
    env, fs,
    path::Path,
    time::{Duration, Instant},
};
use wqcap_engine::capture::Capture;
use wqcap_testkit::{Dir, files, frames, model::model};

/// Environment variable with the directory for the inner test's files.
const DIR: &str = "WQCAP_TEST_DIR";

/// Time limit of an inner test's waits, reached only if the test hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the inner test `name` of `on_the_nic` on the wire `wire`.
#[track_caller]
fn run(name: &str, wire: &str, dir: &Path) {
    run_on(&format!("on_the_nic::{name}"), wire, &[], dir);
}

/// Runs an inner test on a software NIC with the settings `sets`.
#[track_caller]
fn run_on(inner: &str, wire: &str, sets: &[&str], dir: &Path) {
    let this = env::current_exe().expect("a test has a file");
    let this = this.to_str().expect("plain");
    let done = model(
        &[wire],
        sets,
        [
            this,
            &format!("running::{inner}"),
            "--exact",
            "--ignored",
            "--nocapture",
        ],
    )
    .env(DIR, dir)
    .timeout(3 * PATIENCE)
    .run()
    .expect(0);
    assert!(done.stdout.contains("1 passed"), "{done}");
    for line in done
        .stdout
        .lines()
        .filter(|line| line.starts_with("figure"))
    {
        wqcap_testkit::skip::say(line);
    }
}

/// Runs a capture until a condition holds.
#[track_caller]
fn until(capture: &mut Capture, what: &str, mut holds: impl FnMut(&Capture) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds(capture) {
        let ended = capture.wait(Instant::now() + Duration::from_millis(2));
        assert!(!ended, "the run has ended before {what}");
        assert!(Instant::now() < deadline, "never {what}");
    }
}

/// Returns the number of frames received from the wire, as the software NIC counts them. The next frame
/// has this number or a higher one, so a change made before the call applies to it.
fn on_the_wire() -> u64 {
    let file = "/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_packets";
    let text = fs::read_to_string(file).expect("a counter");
    text.trim().parse().expect("a number")
}

/// Waits until `frames` more frames are received from the wire.
#[track_caller]
fn pass(capture: &mut Capture, frames: u64) {
    let enough = on_the_wire() + frames;
    until(capture, "frames arrive", |_| on_the_wire() >= enough);
}

#[test]
fn a_wait_without_end_ends_when_its_owner_is_woken() {
    let dir = Dir::new();
    run("woken", "synth:size=64,flows=16,pps=1000", dir.path());
}

#[test]
fn rules_are_swapped_without_losing_or_repeating_a_frame() {
    let dir = Dir::new();
    let wire = "synth:size=96,flows=64,proto=mix,ip=mix,pps=200000,lossy";
    run("swapped", wire, dir.path());
}

#[test]
fn rules_are_added_and_removed_and_each_frame_is_captured_once() {
    let dir = Dir::new();
    let wire = "synth:size=96,flows=64,proto=mix,ip=mix,pps=200000,lossy";
    run("ruled", wire, dir.path());
}

#[test]
fn refused_rules_change_nothing() {
    let dir = Dir::new();
    run(
        "rules_refused",
        "synth:size=64,flows=16,pps=20000",
        dir.path(),
    );
}

#[test]
fn an_overloaded_queue_is_relieved_automatically() {
    let dir = Dir::new();
    let file = dir.join("skewed.pcap");
    files::write(&file, 0, &on_the_nic::skewed_flows());
    let wire = format!("pcap:{},loop=0,pps=1000000,lossy", file.display());
    run("relieved", &wire, dir.path());
}

#[test]
fn tags_are_complete_while_stripping_is_turned_on_and_off() {
    let dir = Dir::new();
    let wire = "synth:size=64,flows=16,vlan=5,pps=200000,lossy";
    run("stripped", wire, dir.path());
}

#[test]
fn unsupported_changes_are_refused_and_the_run_continues() {
    let dir = Dir::new();
    let file = dir.join("few.pcap");
    files::write(&file, 0, &frames::udp_flows(10, 100));
    let wire = format!("pcap:{},loop=0,pps=1000", file.display());
    run("refused", &wire, dir.path());
}

/// Wire with 20,000 synthetic frames per second.
const STAMPED: &str = "synth:size=64,flows=16,pps=20000";

const REAL_TIME: &str = "realtime_clock=true";

/// Runs the inner test `name` of `stamps`. Each fault of the clock is triggered by a file that the inner
/// test creates.
#[track_caller]
fn stamps(name: &str, clock: &[&str], faults: &[(&str, &str)]) {
    let dir = Dir::new();
    let faults = faults.iter().map(|(fault, file)| {
        let path = dir.join(file);
        format!("{fault}@file={}", path.display())
    });
    let faults = format!("fault={}", faults.collect::<Vec<_>>().join(";"));
    let sets = [clock, &[&faults]].concat();
    run_on(&format!("stamps::{name}"), STAMPED, &sets, dir.path());
}

#[test]
fn a_jump_of_the_nic_s_clock_is_detected_and_corrected() {
    for jump in ["clock_jump:ns=60000000000", "clock_jump:ns=-60000000000"] {
        let faults = [(jump, "jump")];
        let clock = ["clock_drift=100", "clock_khz=156250"];
        stamps("held", &clock, &faults);
        stamps("held", &["clock_drift=-400", REAL_TIME], &faults);
    }
}

#[test]
fn uncorrected_stamps_jump_with_the_nic_s_clock() {
    let faults = [("clock_jump:ns=60000000000", "jump")];
    stamps("own", &["clock_drift=400"], &faults);
    stamps("own", &["clock_drift=400", REAL_TIME], &faults);
}

#[test]
fn a_clock_info_that_is_being_updated_is_read_again() {
    let busy = "clock_busy:for=200";
    for access in ["busy_auto", "busy_verbs"] {
        stamps(access, &[REAL_TIME], &[(busy, "first"), (busy, "second")]);
    }
}
