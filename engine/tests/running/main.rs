//! What may change while frames flow, through the engine's own interface and real verbs on the software NIC.
//!
//! The NIC is preloaded, so each test runs its second half, of the same name under `on_the_nic`, in a process of its
//! own: `wqcap model --wire WIRE -- THIS_BINARY on_the_nic::NAME`.

mod on_the_nic;
mod stamps;

use std::{
    env, fs,
    path::Path,
    time::{Duration, Instant},
};
use wqcap_engine::capture::Capture;
use wqcap_tests::{Dir, files, frames, wqcap::model};

/// Where the second half may write.
const DIR: &str = "WQCAP_TEST_DIR";

/// Bounds what would hang: a second half waits for events alone.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the second half of a test on a wire.
#[track_caller]
fn run(name: &str, wire: &str, dir: &Path) {
    run_on(&format!("on_the_nic::{name}"), wire, &[], dir);
}

/// The same on a software NIC with settings.
#[track_caller]
fn run_on(inner: &str, wire: &str, sets: &[&str], dir: &Path) {
    let this = env::current_exe().expect("a test has a file");
    let this = this.to_str().expect("plain");
    let done = model(
        &[wire],
        sets,
        [this, inner, "--exact", "--ignored", "--nocapture"],
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
        wqcap_tests::skip::say(line);
    }
}

/// Keeps a capture going until something is so.
#[track_caller]
fn until(capture: &mut Capture, what: &str, mut so: impl FnMut(&Capture) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so(capture) {
        let ended = capture.wait(Instant::now() + Duration::from_millis(2));
        assert!(!ended, "the run has ended before {what}");
        assert!(Instant::now() < deadline, "never {what}");
    }
}

/// How many frames have come over the wire, as the software NIC counts them: the number of the next one, or a lower
/// one. All that holds now holds for that frame.
fn on_the_wire() -> u64 {
    let file = "/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_packets";
    let text = fs::read_to_string(file).expect("a counter");
    text.trim().parse().expect("a number")
}

/// Waits until so many more frames have come over the wire.
#[track_caller]
fn pass(capture: &mut Capture, frames: u64) {
    let enough = on_the_wire() + frames;
    until(capture, "frames come", |_| on_the_wire() >= enough);
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
fn rules_come_and_go_and_the_others_take_each_frame_once() {
    let dir = Dir::new();
    let wire = "synth:size=96,flows=64,proto=mix,ip=mix,pps=200000,lossy";
    run("ruled", wire, dir.path());
}

#[test]
fn rules_that_cannot_be_change_nothing() {
    let dir = Dir::new();
    run(
        "rules_refused",
        "synth:size=64,flows=16,pps=20000",
        dir.path(),
    );
}

#[test]
fn an_overloaded_queue_is_relieved_by_itself() {
    let dir = Dir::new();
    let file = dir.join("skewed.pcap");
    files::write(&file, 0, &on_the_nic::skewed_flows());
    let wire = format!("pcap:{},loop=0,pps=1000000,lossy", file.display());
    run("relieved", &wire, dir.path());
}

#[test]
fn tags_stay_whole_while_stripping_goes_on_and_off() {
    let dir = Dir::new();
    let wire = "synth:size=64,flows=16,vlan=5,pps=200000,lossy";
    run("stripped", wire, dir.path());
}

#[test]
fn what_cannot_be_changed_is_refused_and_the_run_goes_on() {
    let dir = Dir::new();
    let file = dir.join("few.pcap");
    files::write(&file, 0, &frames::udp_flows(10, 100));
    let wire = format!("pcap:{},loop=0,pps=1000", file.display());
    run("refused", &wire, dir.path());
}

/// 20,000 frames a second from nowhere.
const STAMPED: &str = "synth:size=64,flows=16,pps=20000";

const REAL_TIME: &str = "realtime_clock=true";

/// Runs a second half on a clock to which something happens when a file says so.
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
fn a_jump_of_the_nic_s_clock_is_found_and_taken_out() {
    for jump in ["clock_jump:ns=60000000000", "clock_jump:ns=-60000000000"] {
        let faults = [(jump, "jump")];
        let clock = ["clock_drift=100", "clock_khz=156250"];
        stamps("held", &clock, &faults);
        stamps("held", &["clock_drift=-400", REAL_TIME], &faults);
    }
}

#[test]
fn stamps_of_the_nic_s_own_clock_jump_with_it() {
    let faults = [("clock_jump:ns=60000000000", "jump")];
    stamps("own", &["clock_drift=400"], &faults);
    stamps("own", &["clock_drift=400", REAL_TIME], &faults);
}

#[test]
fn a_clock_info_that_is_being_changed_is_waited_for() {
    let busy = "clock_busy:for=200";
    for access in ["busy_auto", "busy_verbs"] {
        stamps(access, &[REAL_TIME], &[(busy, "first"), (busy, "second")]);
    }
}
