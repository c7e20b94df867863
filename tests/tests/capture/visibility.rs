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
            "model.enable_roce=false",
            &[
                "(mlx5_0p1)",
                "RoCE is disabled on mlx5_0p1",
                "ordinary Ethernet frames",
            ],
        ),
        (
            "capture.filter=vlan 5",
            &[
                "frames of up to 1518 bytes",
                "ip link set mlx5_0p1 mtu 1504",
            ],
        ),
        (
            "capture.promiscuous=false",
            &["capture.promiscuous is off", "its own MAC addresses only"],
        ),
    ] {
        check(&[set], notes);
    }
}

/// The device over a bond has the driver's name, or the one of persistent naming.
#[test]
fn a_lag_with_a_persistent_name_is_recognised() {
    check(
        &["model.lag=true", "model.persistent_name=true"],
        &["roceP5555p1s0 port 1", "is a RoCE LAG device"],
    );
    check(
        &["model.persistent_name=true", "capture.queues=1"],
        &["roceP5555p1s0 port 1"],
    );
}

/// With switchdev and virtual functions, sysfs does not name the port's interface, but RDMA netlink
/// does.
#[test]
fn the_interface_of_a_port_in_switchdev_mode_is_known() {
    check(
        &["model.switchdev=true", "model.vfs=2"],
        &["mlx5_0 port 1 (mlx5_0p1)", "mlx5_0p1 is the uplink"],
    );
}

#[test]
fn notes_name_the_effects_of_an_unknown_interface() {
    check(
        &[
            "model.switchdev=true",
            "model.vfs=2",
            "model.rdma_netlink=false",
        ],
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
            "drops frames of more than 1518 bytes",
        ],
    );
    check(
        &["model.mtu=9000", "capture.max_sge=8", "capture.queues=1"],
        &[],
    );
}
