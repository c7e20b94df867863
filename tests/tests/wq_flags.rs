//! Each WQ flag, off and on, on a device that has it and on one that has not, for users with different rights.

use std::{fs, path::Path};
use wqcap_tests::{
    Dir, Program, Summary, Wqcap,
    machine::privileges::{ForAll, NET_RAW, NONE, as_nobody},
    process::is_root,
    skip,
    wqcap::wqcap,
};

/// Who runs the capture.
#[derive(Clone, Copy, Debug, PartialEq)]
enum User {
    Root,
    NetRaw,
    Nobody,
}

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

/// A flag by its key, the model's setting that takes the capability away, and how errors name it.
fn needs_the_device_and_the_right(flag: &str, capability: &str, named: &str) {
    if !is_root() {
        skip!("only root can take rights away from itself");
    }
    let place = ForAll::new();
    for user in [User::Root, User::NetRaw, User::Nobody] {
        for (on, has) in [(false, false), (false, true), (true, false), (true, true)] {
            let what = format!("{flag}={on}, the device has it: {has}, as {user:?}");
            let done = run(&place, user, flag, on, capability, has).run();
            if on && !has {
                // Whoever asks: the device cannot, and nothing was created to find out.
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
fn cvlan_stripping() {
    let named = "IBV_RAW_PACKET_CAP_CVLAN_STRIPPING";
    needs_the_device_and_the_right("cvlan_stripping", "cvlan_stripping", named);
}

#[test]
fn scatter_fcs() {
    let named = "IBV_RAW_PACKET_CAP_SCATTER_FCS";
    needs_the_device_and_the_right("scatter_fcs", "scatter_fcs", named);
}

#[test]
fn delay_drop() {
    let named = "IBV_RAW_PACKET_CAP_DELAY_DROP";
    needs_the_device_and_the_right("delay_drop", "delay_drop", named);
}

#[test]
fn pci_write_end_padding() {
    let named = "IBV_DEVICE_PCI_WRITE_END_PADDING";
    needs_the_device_and_the_right("pci_write_end_padding", "end_padding", named);
}

/// `wqcap check` and the summary tell how long the NIC holds frames, and how often that was not long enough.
#[test]
fn delay_drop_tells_its_timeout_and_its_events() {
    if !is_root() {
        skip!("delay drop takes CAP_SYS_RAWIO");
    }
    let model = ["--set", "model.delay_drop_timeout=100"];
    let on = ["--set", "wq.delay_drop=true"];
    let check = |sets: &[&str]| {
        let none = ["--set", "output.format=none"];
        let check = wqcap(["check", "--model", "loopback"]).args(none);
        check.args(model).args(sets).run().expect(0)
    };
    let told = check(&on).stdout;
    assert!(
        told.contains("holds frames up to 100 us") && told.contains("expired 0 times"),
        "{told}"
    );
    assert!(!check(&[]).stdout.contains("holds frames"));
    // Nobody reads the stream, so the loop holds, the ring runs full, and the NIC's time runs out.
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
    ctl.until(&mut running, "stats", "the NIC's time ran out", |stats| {
        stats["nic"]["num_timeout_events"].as_u64() > Some(0)
    });
    fs::write(&read, "").expect("an own folder");
    let _ = ctl.run(&["shutdown"]).expect(0);
    let _ = running.wait().expect(0);
    let summary = Summary::parse(&fs::read_to_string(run.summary_path()).expect("a summary"));
    assert_eq!(summary.json["delay_drop_timeout_us"], 100);
    assert!(summary.nic("num_timeout_events") > 0);
}
