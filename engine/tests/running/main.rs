//! What may change while frames flow, through the engine's own interface and real verbs on the software NIC.
//!
//! The NIC is preloaded, so each test runs its second half, of the same name under `on_the_nic`, in a process of its
//! own: `wqcap model --wire WIRE -- THIS_BINARY on_the_nic::NAME`.

mod on_the_nic;
mod stamps;

use std::{
    env,
    path::Path,
    sync::{Mutex, PoisonError},
};
use wqcap_tests::{Dir, files, frames, wqcap::model};

/// Where the second half may write.
const DIR: &str = "WQCAP_TEST_DIR";

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

#[test]
fn rules_are_swapped_without_losing_or_repeating_a_frame() {
    let dir = Dir::new();
    let wire = "synth:size=96,flows=64,proto=mix,ip=mix,pps=1000000,count=1500000,lossy";
    run("swapped", wire, dir.path());
}

#[test]
fn rules_come_and_go_and_the_others_take_each_frame_once() {
    let dir = Dir::new();
    let wire = "synth:size=96,flows=64,proto=mix,ip=mix,pps=500000,count=750000,lossy";
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
    let wire = "synth:size=64,flows=16,vlan=5,pps=500000,count=500000,lossy";
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

/// 20,000 frames a second from nowhere, for five seconds.
const STAMPED: &str = "synth:size=64,flows=16,pps=20000,count=100000";

/// One at a time: they are about when things happen.
static STAMPS: Mutex<()> = Mutex::new(());

#[track_caller]
fn stamps(name: &str, sets: &[&str]) {
    let _alone = STAMPS.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = Dir::new();
    run_on(&format!("stamps::{name}"), STAMPED, sets, dir.path());
}

#[test]
fn stamps_are_the_system_s_time_however_the_nic_s_clock_drifts() {
    stamps("held", &["clock_drift=400"]);
    stamps("held", &["clock_drift=-400", "realtime_clock=true"]);
}

#[test]
fn stamps_of_the_nic_s_own_clock_drift_with_it() {
    stamps("own", &["clock_drift=400"]);
    stamps("own", &["clock_drift=400", "realtime_clock=true"]);
}

#[test]
fn a_jump_of_the_nic_s_clock_is_found_and_taken_out() {
    for ns in ["60000000000", "-60000000000"] {
        let fault = format!("fault=clock_jump:ns={ns}@ms=1500");
        stamps("jumped", &["clock_drift=100", "clock_khz=156250", &fault]);
    }
}

#[test]
fn a_clock_info_that_is_being_changed_is_waited_for() {
    let busy = "fault=clock_busy:for=200@ms=500;clock_busy:for=200@ms=1200";
    for access in ["busy_auto", "busy_verbs"] {
        stamps(access, &["realtime_clock=true", busy]);
    }
}
