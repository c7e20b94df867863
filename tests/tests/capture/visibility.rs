//! Notes of `wqcap check` about frames that a port cannot see. The software NIC has the properties
//! of such a port.

use wqcap_tests::wqcap::wqcap;

/// Runs `wqcap check` on the software NIC with the settings `sets`, and asserts that the output has
/// all of `notes`. If `notes` is empty, the output must have no notes.
#[track_caller]
fn check(sets: &[&str], notes: &[&str]) {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let done = wqcap([
        "check",
        "--model",
        "loopback",
        "--set",
        "output.format=none",
    ])
    .args(sets);
    let done = done.run().expect(0);
    for part in notes {
        assert!(done.stdout.contains(part), "{part:?} is printed: {done}");
    }
    if notes.is_empty() {
        assert!(
            !done.stdout.contains("# notes") && !done.stdout.contains("not seen"),
            "{done}"
        );
    }
}

#[test]
fn a_plain_port_has_no_notes() {
    check(&["capture.queues=1"], &[]);
}

#[test]
fn notes_name_frames_that_a_port_cannot_see() {
    for (set, notes) in [
        (
            "model.vf=true",
            &["mlx5_0p1 is a virtual function", "trust"][..],
        ),
        (
            "model.vfs=4",
            &[
                "mlx5_0p1 has 4 virtual functions",
                "are not seen by the capture",
            ],
        ),
        ("model.eswitch_port=pf0vf3", &["mlx5_0p1 represents pf0vf3"]),
        (
            "model.eswitch_port=p0",
            &["mlx5_0p1 is the uplink of an e-switch in switchdev mode"],
        ),
        (
            "model.switchdev=true",
            &["mlx5_0p1 is the uplink of an e-switch in switchdev mode"],
        ),
        ("model.bond=bond7", &["mlx5_0p1 belongs to bond7"]),
        ("model.lag=true", &["mlx5_bond_0", "is a RoCE LAG device"]),
        (
            "capture.promiscuous=false",
            &["capture.promiscuous is off", "its own MAC addresses only"],
        ),
    ] {
        check(&[set], notes);
    }
}

/// With switchdev and virtual functions, sysfs does not name the port's interface.
#[test]
fn notes_name_the_effects_of_an_unknown_interface() {
    check(
        &["model.switchdev=true", "model.vfs=2"],
        &[
            "network interface of port 1 is unknown",
            "capture.promiscuous has no effect",
            "rx_discards_phy are unreadable",
        ],
    );
}

#[test]
fn notes_name_fragments_that_the_kernel_may_receive() {
    let udp = ["capture.mode=filtered", "capture.filter=udp"];
    check(
        &udp,
        &[
            "ipv4 protocol 17 names a protocol",
            "the kernel receives the fragments",
        ],
    );
}

#[test]
fn notes_name_damaged_frames_that_the_port_drops() {
    let verify = ["wq.scatter_fcs=true", "capture.verify_fcs=true"];
    check(
        &verify,
        &[
            "drops frames with a bad FCS",
            "ethtool -K mlx5_0p1 rx-all on",
        ],
    );
    check(&verify[..1], &[]);
}

#[test]
fn notes_name_frames_that_do_not_fit() {
    let jumbo = ["model.mtu=9000"];
    check(
        &jumbo,
        &[
            "capture.buffer x capture.max_sge = 2048 bytes",
            "MTU of 9000",
        ],
    );
    let small = ["model.mtu=1500", "capture.max_sge=8"];
    check(
        &small,
        &[
            "mlx5_0p1's MTU is 1500",
            "drops frames of more than 1522 bytes",
        ],
    );
    check(
        &["model.mtu=9000", "capture.max_sge=8", "capture.queues=1"],
        &[],
    );
}
