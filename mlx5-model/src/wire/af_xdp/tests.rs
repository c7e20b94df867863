//! Tests on a veth pair, one end of which has the XDP program. They need root and `ip`.

use super::super::lab::{
    Lab, PATIENCE, assert_arrival_times, during, is_readable, keep_capabilities, run,
    without_sockets_of,
};
use super::super::{Delivery, Wire, WireDirection, WireDrops, WireState};
use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};
use wqcap_testkit::{need, skip};

const MODES: [&str; 2] = ["skb", "native"];

/// Builds a frame with an EtherType for experiments (IEEE 802), identified by its length.
fn frame(len: usize) -> Vec<u8> {
    let head = [
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 7, 0x88, 0xb5,
    ];
    let body = (0..len - head.len()).map(|it| (it * 31 + it / 255) as u8);
    head.into_iter().chain(body).collect()
}

fn open(lab: &Lab, options: &str) -> Wire {
    let wire = lab.open(&format!("af_xdp:wire,ring=4MiB{options}"));
    wire.unwrap_or_else(|e| panic!("{e}"))
}

/// Returns the text of a wire with [`SMALL_BUFFERS`] buffers.
fn small(mode: &str) -> String {
    format!("af_xdp:wire,ring=2MiB,mode={mode}")
}

/// Number of buffers of a `small` wire.
const SMALL_BUFFERS: u64 = (2 << 20) / 2048;

/// Returns `true` if the interface `wire` has an XDP program.
fn has_program(lab: &Lab) -> bool {
    let output = Command::new("ip")
        .args(["-n", &lab.near.to_string(), "link", "show", "wire"])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).contains("xdp")
}

#[test]
fn frames_of_any_length_arrive_unchanged() {
    for mode in MODES {
        let lab = need!(Lab::new());
        for (netns, name) in [(&lab.near, "wire"), (&lab.far, "far")] {
            run(&format!("ip -n {netns} link set {name} mtu 9000")).unwrap();
        }
        lab.silence();
        let mut wire = open(&lab, &format!(",mode={mode}"));
        assert!(
            wire.notes()[0].contains(&format!("{mode} mode")),
            "{:?}",
            wire.notes()
        );
        let far = lab.far_socket();
        // Frames of one, two and three buffers, and lengths at the limits of one and two buffers.
        let lengths = [
            14, 15, 60, 1514, 1792, 1793, 3584, 3840, 3841, 7680, 7681, 9014,
        ];
        let frames = during(&lab, &mut wire, |flow| {
            for len in lengths {
                far.send(&frame(len)).unwrap();
                flow.flush();
            }
        });
        let got: Vec<_> = frames
            .iter()
            .filter(|it| it.1[12..14] == [0x88, 0xb5])
            .collect();
        assert!(got.iter().all(|it| it.0 == WireDirection::Received));
        let got: Vec<_> = got.into_iter().map(|it| &it.1).collect();
        let sent = lengths.map(frame);
        assert!(
            got.iter().copied().eq(&sent),
            "{mode}: {:?}",
            got.iter().map(|it| it.len()).collect::<Vec<_>>()
        );
        assert_eq!(wire.drops(), WireDrops::default(), "{mode}");
    }
}

#[test]
fn frames_carry_their_arrival_times() {
    for mode in MODES {
        let lab = need!(Lab::new());
        lab.silence();
        let mut wire = open(&lab, &format!(",mode={mode}"));
        assert_arrival_times(&lab, &mut wire);
    }
}

#[test]
fn several_queues_are_taken_each_by_its_own_socket() {
    let lab = need!(Lab::new());
    let ethtool = |netns: String, name: &str| {
        let set = [
            "netns", "exec", &netns, "ethtool", "-L", name, "rx", "3", "tx", "3",
        ];
        Command::new("ip")
            .args(set)
            .status()
            .is_ok_and(|it| it.success())
    };
    if !ethtool(lab.near.to_string(), "wire") || !ethtool(lab.far.to_string(), "far") {
        skip!("ethtool cannot be run, or cannot set the number of queues");
    }
    let error = lab.open("af_xdp:wire,queues=4").unwrap_err().to_string();
    assert!(
        error.contains("4 receive queues") && error.contains("wire has 3"),
        "{error}"
    );
    let mut wire = open(&lab, "");
    assert!(
        wire.notes()[0].contains("on 3 of 3 receive queues"),
        "{:?}",
        wire.notes()
    );
    // Each CPU sends on a separate queue.
    let far = lab.far_socket();
    let frames = during(&lab, &mut wire, |flow| {
        for _ in 0..50 {
            far.send(&frame(100)).unwrap();
            flow.flush();
        }
    });
    assert_eq!(frames.iter().filter(|it| it.1 == frame(100)).count(), 50);
    drop(wire);
    let wire = open(&lab, ",queues=2");
    assert!(
        wire.notes()[0].contains("frames of receive queues 2 to 2"),
        "{:?}",
        wire.notes()
    );
}

#[test]
fn the_kernel_gets_frames_again_after_the_wire_is_closed() {
    let lab = need!(Lab::new());
    for mode in MODES {
        let wire = open(&lab, &format!(",mode={mode}"));
        assert!(has_program(&lab));
        drop(wire);
        assert!(!has_program(&lab));
        let near = lab.near.within(|| UdpSocket::bind("10.9.0.1:0").unwrap());
        near.set_read_timeout(Some(PATIENCE)).unwrap();
        let far = lab.far.within(|| UdpSocket::bind("10.9.0.2:0").unwrap());
        far.send_to(b"again", near.local_addr().unwrap()).unwrap();
        assert_eq!(near.recv(&mut [0; 9]).unwrap(), 5);
    }
}

#[test]
fn frames_without_a_buffer_are_counted() {
    for mode in MODES {
        let lab = need!(Lab::new());
        lab.silence();
        let mut wire = lab.open(&small(mode)).unwrap();
        let far = lab.far_socket();
        let buffers = SMALL_BUFFERS;
        // The kernel's queue between the two ends has room for as many frames as there are buffers.
        // The sender waits until each further frame is counted as lost.
        let sent = 2 * buffers;
        let mut lost = WireDrops::default();
        let began = Instant::now();
        for number in 1..=sent {
            far.send(&frame(100)).unwrap();
            while number > buffers && lost.total() < number - buffers {
                lost = wire.drops();
                assert!(began.elapsed() < PATIENCE, "{mode}: {lost:?} of {number}");
            }
        }
        let mut seen = 0;
        while seen < buffers {
            seen += wire.each(0, 64, |_| Delivery::Taken) as u64;
            assert!(began.elapsed() < PATIENCE, "{mode}: {seen}");
        }
        assert_eq!(seen, buffers);
        assert_eq!(
            (lost.fill, lost.total()),
            (sent - buffers, sent - buffers),
            "{mode}: {lost:?}"
        );
        // The queue has room again.
        far.send(&frame(101)).unwrap();
        while wire.each(0, 64, |it| {
            assert_eq!(it.bytes, frame(101));
            Delivery::Taken
        }) == 0
        {
            assert!(began.elapsed() < PATIENCE);
        }
    }
}

#[test]
fn the_watermark_is_signalled_when_half_of_the_buffers_are_filled() {
    for mode in MODES {
        let lab = need!(Lab::new());
        lab.silence();
        let mut wire = lab.open(&small(mode)).unwrap();
        let far = lab.far_socket();
        let half = SMALL_BUFFERS as usize / 2;
        let began = Instant::now();
        for round in 0..2 {
            let fd = wire.begin_gathering().unwrap();
            let is_marked = |time| is_readable(fd, time);
            (1..half).for_each(|_| far.send(&frame(100)).unwrap());
            let mut seen = 0;
            while seen < half - 1 {
                seen += wire.each(0, 64, |_| Delivery::Taken);
                assert!(began.elapsed() < PATIENCE, "{mode}: {seen}");
            }
            assert!(!is_marked(Duration::ZERO), "{mode}, round {round}");
            far.send(&frame(100)).unwrap();
            assert!(is_marked(PATIENCE), "{mode}, round {round}");
            while wire.each(0, 64, |_| Delivery::Taken) == 0 {}
        }
    }
}

#[test]
fn sent_frames_arrive_at_the_other_end_only() {
    let lab = need!(Lab::new());
    lab.silence();
    let mut wire = open(&lab, "");
    let mut other = lab
        .far
        .within(|| Wire::open(&"af_packet:far".parse().unwrap()).unwrap());
    wire.send(&frame(99)).unwrap();
    let began = Instant::now();
    let mut seen = 0;
    while seen == 0 {
        other.each(0, 64, |it| {
            seen += usize::from(it.bytes == frame(99));
            Delivery::Taken
        });
        assert!(began.elapsed() < PATIENCE);
    }
    // The frame does not return to the sender.
    assert_eq!(wire.each(0, 64, |_| Delivery::Taken), 0);
}

#[test]
fn a_deleted_interface_is_lost_once_its_frames_are_delivered() {
    let lab = need!(Lab::new());
    lab.silence();
    let mut wire = open(&lab, "");
    let far = lab.far_socket();
    during(&lab, &mut wire, |_| {});
    far.send(&frame(77)).unwrap();
    run(&format!("ip -n {} link del wire", lab.near)).unwrap();
    let (mut now, mut seen) = (0, 0);
    let began = Instant::now();
    while wire.state() == WireState::Up {
        now += 1_000_000_000;
        wire.each(now, 64, |it| {
            seen += usize::from(it.bytes == frame(77));
            Delivery::Taken
        });
        assert!(began.elapsed() < PATIENCE);
    }
    assert!(seen <= 1);
    assert_eq!((wire.state(), wire.wait_fd()), (WireState::Lost, None));
}

#[test]
fn errors_have_a_remedy() {
    let lab = need!(Lab::new());
    let check = |wire: &str, parts: &[&str]| {
        let error = lab.open(wire).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{wire}: {error} lacks {part}");
        }
    };
    check("af_xdp:nothere", &["nothere", "ip link"]);
    check("af_xdp:wire,queues=9", &["9 receive queues", "wire has 1"]);
    check("af_xdp:wire,zerocopy=on", &["queue 0", "zerocopy=auto"]);
    let first = open(&lab, ",mode=skb");
    check("af_xdp:wire", &["has an XDP program already", "xdp off"]);
    check("af_xdp:wire,mode=skb", &["has an XDP program already"]);
    check("af_xdp:wire,mode=native", &["has an XDP program already"]);
    drop(first);
    drop(open(&lab, ",mode=native"));
}

#[test]
fn missing_rights_are_named() {
    let lab = need!(Lab::new());
    // CAP_NET_RAW alone, and no capability (linux/capability.h).
    for (kept, step) in [(1 << 13, "map of AF_XDP sockets"), (0, "packet socket")] {
        let error = lab.near.within(|| {
            keep_capabilities(kept);
            Wire::open(&"af_xdp:wire".parse().unwrap())
                .unwrap_err()
                .to_string()
        });
        for part in [step, "CAP_NET_RAW", "CAP_BPF", "CAP_NET_ADMIN"] {
            assert!(error.contains(part), "{error} lacks {part}");
        }
    }
}

#[test]
fn a_kernel_without_af_xdp_is_named() {
    let lab = need!(Lab::new());
    let error = lab.near.within(|| {
        without_sockets_of(libc::AF_XDP);
        Wire::open(&"af_xdp:wire".parse().unwrap())
            .unwrap_err()
            .to_string()
    });
    for part in ["queue 0", "no AF_XDP", "CONFIG_XDP_SOCKETS", "af_packet"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    assert!(!has_program(&lab));
}
