//! Frames that a card or its kernel keeps from the capture: too long for the port or for a WQE, not
//! taken by the PCIe bus, for the NIC's transport, or for another function. The software NIC has a
//! setting for each.

use std::path::PathBuf;
use wqcap_tests::{
    Dir, Wqcap, binaries, files,
    frames::{Ends, Frame, IPV4},
    wqcap::model,
};

/// MAC address of the model's first port.
const OWN: [u8; 6] = [0x0c, 0x42, 0xa1, 0, 0, 1];

/// Writes `count` UDP frames to `port` at the MAC `to` into a file.
fn udp(dir: &Dir, name: &str, to: [u8; 6], port: u16, count: u16) -> PathBuf {
    let frames: Vec<_> = (0..count)
        .map(|i| {
            let ends = Ends {
                from: 1 + i,
                to: 7,
                sport: 2000 + i,
                dport: port,
            };
            let frame = Frame::ethernet(&[], IPV4).ipv4(ends, 17, 0).udp(ends);
            let mut bytes = frame.payload(60).done();
            bytes[..6].copy_from_slice(&to);
            bytes
        })
        .collect();
    let path = dir.join(name);
    files::write(&path, 1_700_000_000, &frames);
    path
}

/// A frame longer than its WQE gets no completion on such a card.
#[test]
fn frames_longer_than_a_wqe_are_counted_without_a_completion() {
    let dir = Dir::new();
    for (receive, long, more) in [
        ("frame", 3000, &[][..]),
        (
            "striding",
            40_000,
            &["capture.stride=64", "capture.strides=512"][..],
        ),
    ] {
        let finished = Wqcap::run(&dir, receive)
            .model(&format!("synth:size=100/{long},flows=8,count=1000"))
            .queues(1)
            .set(&format!("capture.receive={receive}"))
            .set("model.drop_too_long=true")
            .sets(more)
            .finish(0);
        let summary = &finished.summary;
        assert_eq!(summary.nic("rx_oversize_pkts_buffer"), 500, "{finished:?}");
        assert_eq!(summary.ledger.total.received, 500, "{finished:?}");
        assert_eq!(summary.ledger.total.errors, 0, "{finished:?}");
    }
}

#[test]
fn frames_that_the_bus_does_not_take_are_counted() {
    let dir = Dir::new();
    let finished = Wqcap::run(&dir, "bus")
        .model("synth:size=100,flows=8,count=1000")
        .queues(1)
        .set("model.fault=pci_overflow:count=7@frames=100")
        .finish(0);
    assert_eq!(finished.summary.nic("outbound_pci_buffer_overflow"), 7);
    assert_eq!(finished.summary.ledger.total.received, 993);
}

#[test]
fn frames_that_no_rule_takes_are_counted() {
    let dir = Dir::new();
    let file = udp(&dir, "in.pcap", [2; 6], 53, 100);
    let finished = Wqcap::run(&dir, "missed")
        .model(&format!("pcap:{}", file.display()))
        .queues(1)
        .set("capture.mode=filtered")
        .set("capture.filter=tcp")
        .set("model.steer_missed=true")
        .finish(0);
    assert_eq!(finished.summary.nic("rx_steer_missed_packets"), 100);
    assert_eq!(finished.summary.ledger.total.received, 0);
}

/// The port admits MTU + 18 bytes: a full frame with one tag, but not with two.
#[test]
fn frames_longer_than_the_port_admits_are_counted() {
    let dir = Dir::new();
    for (mtu, lost) in [(1500, 500), (1504, 0)] {
        let finished = Wqcap::run(&dir, &mtu.to_string())
            .model("synth:size=1518/1522,flows=8,count=1000")
            .queues(1)
            .set(&format!("model.mtu={mtu}"))
            .set("model.port_mtu=true")
            .finish(0);
        assert_eq!(finished.summary.nic("rx_oversize_pkts_phy"), lost);
        assert_eq!(finished.summary.ledger.total.received, 1000 - lost);
    }
}

/// With RoCE enabled, only sniffer rules see the RoCE frames to the port.
#[test]
fn roce_frames_to_the_port_are_captured_without_roce_or_by_a_sniffer() {
    let dir = Dir::new();
    let file = udp(&dir, "roce.pcap", OWN, 4791, 50);
    for (name, mode, enabled, received) in [
        ("on", "steal", true, 0),
        ("off", "steal", false, 50),
        ("sniffer", "sniffer", true, 50),
    ] {
        let finished = Wqcap::run(&dir, name)
            .model(&format!("pcap:{}", file.display()))
            .queues(1)
            .set(&format!("capture.mode={mode}"))
            .set(&format!("model.enable_roce={enabled}"))
            .set("model.diverts_roce=true")
            .finish(0);
        assert_eq!(finished.summary.ledger.total.received, received, "{name}");
    }
}

/// A virtual function gets its own frames, and has no sniffer rules.
#[test]
fn a_virtual_function_captures_its_own_frames_only() {
    let dir = Dir::new();
    for (name, to, trusted, received) in [
        ("own", OWN, false, 50),
        ("foreign", [2; 6], false, 0),
        ("trusted", [2; 6], true, 50),
    ] {
        let file = udp(&dir, &format!("{name}.pcap"), to, 53, 50);
        let finished = Wqcap::run(&dir, name)
            .model(&format!("pcap:{}", file.display()))
            .queues(1)
            .set("model.vf=true")
            .set(&format!("model.vf_trusted={trusted}"))
            .finish(0);
        assert_eq!(finished.summary.ledger.total.received, received, "{name}");
    }
    let file = udp(&dir, "sniffed.pcap", OWN, 53, 50);
    let run = Wqcap::run(&dir, "sniffer")
        .model(&format!("pcap:{}", file.display()))
        .set("capture.mode=sniffer")
        .set("model.vf=true");
    run.done().expect(2).says(&[
        "the port is a virtual function, which has no sniffer rules",
        "ibv_create_flow",
        "does not support this operation",
    ]);
}

/// A device with plain QPs only, such as bnxt_re, is refused with the verbs that it lacks.
#[test]
fn a_device_without_wqs_is_refused() {
    let dir = Dir::new();
    let binary = binaries::wqcap();
    let devices = [binary.as_os_str(), "devices".as_ref()];
    let done = model(&["loopback"], &["rwq=false"], devices)
        .run()
        .expect(0);
    let lacks = "no: lacks ibv_create_wq, ibv_create_rwq_ind_table";
    assert!(done.stdout.contains(lacks), "{done}");
    let run = Wqcap::run(&dir, "refused")
        .model("loopback")
        .set("model.rwq=false");
    run.done()
        .expect(2)
        .says(&["mlx5_0 cannot capture: it lacks ibv_create_wq"]);
}
