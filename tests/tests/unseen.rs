//! `wqcap check` says what a port cannot see, on a software NIC that stands where such a port stands.

use wqcap_tests::wqcap::wqcap;

/// The plan on a software NIC with settings of its own and of the configuration.
#[track_caller]
fn check(sets: &[&str], says: &[&str]) {
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
    for part in says {
        assert!(done.stdout.contains(part), "{part:?} is not in {done}");
    }
    if says.is_empty() {
        assert!(
            !done.stdout.contains("# notes") && !done.stdout.contains("not seen"),
            "{done}"
        );
    }
}

#[test]
fn a_port_of_its_own_hides_nothing() {
    check(&["capture.queues=1"], &[]);
}

#[test]
fn what_a_port_cannot_see_is_said() {
    for (set, says) in [
        (
            "model.vf=true",
            &["mlx5_0p1 is a virtual function", "trust"][..],
        ),
        (
            "model.vfs=4",
            &["mlx5_0p1 has 4 virtual functions", "are not seen here"],
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
        check(&[set], says);
    }
}

/// With switchdev and virtual functions, sysfs does not name the port's interface.
#[test]
fn what_an_unknown_interface_leaves_out_is_said() {
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
fn fragments_that_may_be_left_to_the_kernel_are_said() {
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
fn damaged_frames_that_the_port_keeps_to_itself_are_said() {
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
fn frames_that_do_not_fit_are_foretold() {
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
