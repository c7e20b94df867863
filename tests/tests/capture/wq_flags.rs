//! Each WQ flag, off and on, on devices with and without the capability, for users with different
//! rights.

use std::{fs, path::Path};
use wqcap_tests::{
    Dir, Program, Summary, Wqcap,
    machine::privileges::{ForAll, NET_RAW, NONE, as_nobody},
    process::is_root,
    skip,
    wqcap::wqcap,
};

/// User that runs the capture.
#[derive(Clone, Copy, Debug, PartialEq)]
enum User {
    Root,
    NetRaw,
    Nobody,
}

/// Returns a run as `user` with the WQ flag set to `on`, on a device whose capability is `has`.
fn run(place: &ForAll, user: User, flag: &str, on: bool, capability: &str, has: bool) -> Program {
    let program = Program::new(place.wqcap())
        .args(["run", "--quiet", "--model", "synth:count=50,size=60"])
        .args(["--set", "output.format=none", "--set", "capture.queues=1"])
        .args(["--set", "capture.ring=64", "--set", "model.caps=process"])
        .arg("--set")
        .arg(format!("wq.{flag}={on}"))
        .arg("--set")
        .arg(format!("model.{capability}={has}"))
        .arg("--json");
    match user {
        User::Root => program,
        User::NetRaw => as_nobody(program, NET_RAW),
        User::Nobody => as_nobody(program, NONE),
    }
}

/// Asserts that a flag works exactly on devices with the capability and for users with the rights.
/// `flag` is the flag's key, `capability` the model's setting of the capability, and `named` the
/// capability's name in errors.
fn assert_needs_device_and_rights(flag: &str, capability: &str, named: &str) {
    if !is_root() {
        skip!("only root can drop rights");
    }
    let place = ForAll::new();
    for user in [User::Root, User::NetRaw, User::Nobody] {
        for (on, has) in [(false, false), (false, true), (true, false), (true, true)] {
            let what = format!("{flag}={on}, the device has it: {has}, as {user:?}");
            let done = run(&place, user, flag, on, capability, has).run();
            if on && !has {
                // For every user: the device lacks the capability, and no object was created.
                done.expect(2)
                    .says(&[&format!("wq.{flag}"), "mlx5_0", named]);
            } else if on && flag == "delay_drop" && user != User::Root {
                done.expect(2)
                    .says(&["wq.delay_drop", "mlx5_0", "CAP_SYS_RAWIO"]);
            } else if user == User::Nobody {
                done.expect(2).says(&["CAP_NET_RAW"]);
            } else {
                let done = done.expect(0);
                assert!(done.stdout.contains("\"captured\": 50"), "{what}: {done}");
            }
        }
    }
}

#[test]
fn cvlan_stripping_needs_the_device_capability() {
    let named = "IBV_RAW_PACKET_CAP_CVLAN_STRIPPING";
    assert_needs_device_and_rights("cvlan_stripping", "cvlan_stripping", named);
}

#[test]
fn scatter_fcs_needs_the_device_capability() {
    let named = "IBV_RAW_PACKET_CAP_SCATTER_FCS";
    assert_needs_device_and_rights("scatter_fcs", "scatter_fcs", named);
}

#[test]
fn delay_drop_needs_the_device_capability_and_cap_sys_rawio() {
    let named = "IBV_RAW_PACKET_CAP_DELAY_DROP";
    assert_needs_device_and_rights("delay_drop", "delay_drop", named);
}

#[test]
fn pci_write_end_padding_needs_the_device_capability() {
    let named = "IBV_DEVICE_PCI_WRITE_END_PADDING";
    assert_needs_device_and_rights("pci_write_end_padding", "end_padding", named);
}

/// `wqcap check` and the summary have the NIC's timeout for held frames and the number of timeouts.
#[test]
fn check_and_summary_have_the_timeout_and_events_of_delay_drop() {
    if !is_root() {
        skip!("delay drop needs CAP_SYS_RAWIO");
    }
    let model = ["--set", "model.delay_drop_timeout=100"];
    let on = ["--set", "wq.delay_drop=true"];
    let check = |sets: &[&str]| {
        let none = ["--set", "output.format=none"];
        let check = wqcap(["check", "--model", "loopback"]).args(none);
        check.args(model).args(sets).run().expect(0)
    };
    let plan = check(&on).stdout;
    assert!(
        plan.contains("holds frames up to 100 us") && plan.contains("expired 0 times"),
        "{plan}"
    );
    assert!(!check(&[]).stdout.contains("holds frames"));
    // No program reads the stream. So the loop waits, the ring runs out of free WRs, and the NIC's
    // timeout expires.
    let dir = Dir::new();
    let read = dir.join("read");
    let run = Wqcap::run(&dir, "run")
        .model("synth:size=64,pps=100000,lossy")
        .args(&model)
        .args(&on)
        .queues(1)
        .set("capture.ring=64")
        .set("output.buffer=256KiB")
        .set("output.stdout=true")
        .set("output.on_full=hold")
        .control()
        .read_later(&read, Path::new("/dev/null"));
    let (ctl, mut running) = (run.ctl(), run.start());
    ctl.until(
        &mut running,
        "stats",
        "the NIC's timeout expired",
        |stats| stats["nic"]["num_timeout_events"].as_u64() > Some(0),
    );
    fs::write(&read, "").expect("the file is written");
    let _ = ctl.run(&["shutdown"]).expect(0);
    let _ = running.wait().expect(0);
    let summary =
        Summary::parse(&fs::read_to_string(run.summary_path()).expect("the run writes a summary"));
    assert_eq!(summary.json["delay_drop_timeout_us"], 100);
    assert!(summary.nic("num_timeout_events") > 0);
}
