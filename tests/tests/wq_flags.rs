//! Each WQ flag, off and on, on a device that has it and on one that has not, for users with different rights.

use serde_json::Value;
use wqcap_tests::{
    Dir, Program, Wqcap,
    privileges::{ForAll, NET_RAW, NONE, as_nobody},
    process::is_root,
    skip,
    wqcap::wqcap,
};

/// A flag: its key, the model's setting that takes the capability away, and how errors name it.
const FLAGS: [(&str, &str, &str); 4] = [
    (
        "cvlan_stripping",
        "cvlan_stripping",
        "IBV_RAW_PACKET_CAP_CVLAN_STRIPPING",
    ),
    (
        "scatter_fcs",
        "scatter_fcs",
        "IBV_RAW_PACKET_CAP_SCATTER_FCS",
    ),
    ("delay_drop", "delay_drop", "IBV_RAW_PACKET_CAP_DELAY_DROP"),
    (
        "pci_write_end_padding",
        "end_padding",
        "IBV_DEVICE_PCI_WRITE_END_PADDING",
    ),
];

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

#[test]
fn a_flag_needs_the_device_and_the_right() {
    if !is_root() {
        skip!("only root can take rights away from itself");
    }
    let place = ForAll::new();
    for (flag, capability, named) in FLAGS {
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
}

/// `wqcap check` and the summary tell how long the NIC holds frames, and how often that was not long enough.
#[test]
fn delay_drop_tells_its_timeout_and_its_events() {
    if !is_root() {
        skip!("delay drop takes CAP_SYS_RAWIO");
    }
    let model = ["--set", "model.delay_drop_timeout=100"];
    let on = ["--set", "wq.delay_drop=true", "--set", "output.format=none"];
    let check = |sets: &[&str]| {
        let check = wqcap(["check", "--model", "loopback"]).args(model);
        check.args(sets).run().expect(0)
    };
    let told = check(&on).stdout;
    assert!(
        told.contains("frames wait up to 100 us") && told.contains("ran out 0 times"),
        "{told}"
    );
    assert!(!check(&on[2..]).stdout.contains("frames wait"));
    // With the last frame that was asked for, the loop polls no more, and the hand finds out a moment later: the ring
    // runs full meanwhile, nearly always for more than a tenth of a millisecond.
    let dir = Dir::new();
    let mut events = 0;
    for attempt in 0..10 {
        let run = Wqcap::run(&dir, &attempt.to_string())
            .model("synth:size=64,pps=1000000,lossy")
            .args(&model)
            .args(&on)
            .args(&["--count", "1000"])
            .queues(1)
            .set("capture.ring=64");
        let _ = run.done().expect(0);
        let summary = std::fs::read_to_string(run.summary_path()).expect("a summary");
        let summary: Value = serde_json::from_str(&summary).expect("JSON");
        assert_eq!(summary["delay_drop_timeout_us"], 100, "{summary}");
        events += summary["nic"]["num_timeout_events"]
            .as_u64()
            .expect("a number");
        if events > 0 {
            break;
        }
    }
    assert!(events > 0);
}
