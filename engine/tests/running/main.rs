//! What may change while frames flow, through the engine's own interface and real verbs on the software NIC.
//!
//! The NIC is preloaded, so each test runs its second half, of the same name under `on_the_nic`, in a process of its
//! own: `wqcap model --wire WIRE -- THIS_BINARY on_the_nic::NAME`.

mod on_the_nic;

use std::{env, path::Path};
use wqcap_tests::{Dir, files, frames, wqcap::model};

/// Where the second half may write.
const DIR: &str = "WQCAP_TEST_DIR";

/// Runs the second half of a test on a wire.
#[track_caller]
fn run(name: &str, wire: &str, dir: &Path) {
    let this = env::current_exe().expect("a test has a file");
    let this = this.to_str().expect("plain");
    let inner = format!("on_the_nic::{name}");
    let done = model(
        &[wire],
        &[],
        [this, &inner, "--exact", "--ignored", "--nocapture"],
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
