//! DPDK's unmodified mlx5 driver on the model: an independent driver of the NIC.
//!
//! `dpdk-testpmd` of Debian's `dpdk-dev` controls the device through plain verbs (`dv_flow_en=0`)
//! and reads the rings itself (DPDK's `drivers/net/mlx5/linux/mlx5_verbs.c` and `mlx5_rx.c`). The
//! tests compare received frames with sent frames, with DPDK's software Toeplitz, and with tshark's
//! view of the input.

mod compression;
mod rules;
mod striding;
mod testpmd;
mod thash;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use testpmd::{Counted, Setup, Testpmd};
use thash::{Inputs, Thash};
use wqcap_testkit::captures::{Captures, SHORTEST};
use wqcap_testkit::compare::{assert_frames, assert_same};
use wqcap_testkit::frames::{Ends, Frame, IPV4, IPV6};
use wqcap_testkit::machine::netns::IFACE;
use wqcap_testkit::{Dir, files, need, skip};

/// Returns frames of `count` flows each of UDP and TCP over IPv4 and IPv6.
fn flows(count: u16) -> Vec<Vec<u8>> {
    (0..count)
        .flat_map(|i| {
            let ends = Ends {
                from: 1 + i * 7,
                to: 9 + i % 5,
                sport: 1024 + i * 13,
                dport: 443 + i % 3,
            };
            [
                Frame::ethernet(&[], IPV4).ipv4(ends, 17, 0).udp(ends),
                Frame::ethernet(&[], IPV4).ipv4(ends, 6, 0).tcp(ends),
                Frame::ethernet(&[], IPV6).ipv6(ends, 17).udp(ends),
                Frame::ethernet(&[], IPV6).ipv6(ends, 6).tcp(ends),
            ]
        })
        .map(|frame| numbered(frame.payload(40).done()))
        .collect()
}

/// Sets the source address of a frame to a unique number, which identifies the frame in testpmd's
/// output.
fn numbered(mut frame: Vec<u8>) -> Vec<u8> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    frame[6..8].copy_from_slice(&[2, 0]);
    frame[8..12].copy_from_slice(&number.to_be_bytes());
    frame
}

/// Returns the source address of a frame in testpmd's notation.
fn source(frame: &[u8]) -> String {
    let digits: Vec<_> = frame[6..12]
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect();
    digits.join(":")
}

fn capture(dir: &Dir, name: &str, frames: &[Vec<u8>]) -> String {
    let file = dir.join(name);
    files::write(&file, 1_600_000_000, frames);
    format!("pcap:{}", file.display())
}

#[test]
fn the_spread_equals_dpdks_software_hash() {
    let dir = Dir::new();
    let thash = need!(Thash::find(&dir));
    let frames = flows(64);
    let wire = capture(&dir, "flows.pcap", &frames);
    // `hashed` names the transports hashed with their ports. Others are hashed by addresses or not
    // at all.
    for (queues, scalar, hashed) in [
        (2, false, "ip"),
        (2, true, "udp"),
        (16, false, "tcp"),
        (16, true, "ip"),
    ] {
        let setup = Setup {
            queues,
            device: if scalar { "rx_vec_en=0" } else { "rx_vec_en=1" },
            before: &[
                "port stop 0",
                &format!("port config all rss {hashed}"),
                "port start 0",
            ],
            ..Setup::default()
        };
        let mut testpmd = need!(Testpmd::start(&dir, &wire, &setup));
        let burst_mode = testpmd.answer("show rxq info 0 0", "Burst mode: ");
        assert_eq!(burst_mode.contains("Vector"), !scalar, "{burst_mode}");
        let key = testpmd.answer("show port 0 rss-hash key", "RSS key:\n");
        testpmd.open_wire();
        let received = testpmd.received(frames.len());
        drop(testpmd.quit());

        let inputs = if hashed == "ip" {
            Inputs::Addresses
        } else {
            Inputs::Ports
        };
        let computed = thash.hashes(key.trim(), inputs, queues, &frames);
        let by_source: BTreeMap<_, _> = received.iter().map(|it| (it.source.clone(), it)).collect();
        let is_hashed = |frame: &[u8]| {
            let protocol = if frame[12..14] == [8, 0] {
                frame[23]
            } else {
                frame[20]
            };
            hashed == "ip" || protocol == if hashed == "udp" { 17 } else { 6 }
        };
        let mut compared = 0;
        for (frame, (hash, entry)) in frames.iter().zip(computed).filter(|it| is_hashed(it.0)) {
            let packet = by_source[&source(frame)];
            assert_eq!(packet.hash, hash, "{setup:?}: {packet:?}");
            assert_eq!(packet.queue, entry, "{setup:?}: {packet:?}");
            compared += 1;
        }
        assert_eq!(
            compared,
            if hashed == "ip" {
                frames.len()
            } else {
                frames.len() / 2
            }
        );
    }
}

/// Capacity in bytes of a packet buffer: DPDK reserves 128 bytes before the packet.
const ROOM: usize = 9856 - 128;

#[test]
fn every_capture_passes_through_unchanged() {
    let dir = Dir::new();
    let (file, frames) = Captures::find().everything(&dir);
    let (within, beyond) = need!(through_dpdk(&dir, &file, frames));
    skip::say(&format!(
        "NOTE {within} frames of captures passed through DPDK; {beyond} exceed its buffers of {ROOM} bytes"
    ));
}

#[test]
#[ignore = "takes many minutes: scripts/soak runs it"]
fn every_capture_passes_through_unchanged_file_by_file() {
    let captures = Captures::find();
    let dir = Dir::new();
    // Skips the test if DPDK is not available.
    let first = &captures.files[0];
    let _ = need!(through_dpdk(&dir, first, wire_frames(first)));
    let (within, beyond) = (AtomicUsize::new(0), AtomicUsize::new(0));
    captures.each(|file| {
        let done = through_dpdk(&Dir::new(), file, wire_frames(file));
        let done = done.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        within.fetch_add(done.0, Ordering::Relaxed);
        beyond.fetch_add(done.1, Ordering::Relaxed);
    });
    skip::say(&format!(
        "NOTE {} captures passed through DPDK one by one: {within:?} frames; {beyond:?} exceed its buffers",
        captures.files.len()
    ));
}

/// Replays a capture through DPDK into a file and compares it with `frames`. Returns the numbers of
/// received frames and of frames that are too long.
fn through_dpdk(dir: &Dir, file: &Path, frames: Vec<Vec<u8>>) -> Result<(usize, usize), String> {
    let out = dir.join("out.pcap");
    let setup = Setup {
        out: Some(&out),
        options: &["--mbuf-size=9856"],
        ..Setup::default()
    };
    let mut testpmd = Testpmd::start(dir, &format!("pcap:{}", file.display()), &setup)?;
    testpmd.open_wire();
    // testpmd counts frames longer than its limit as errors.
    let counted = testpmd.counted(frames.len());
    drop(testpmd.quit());
    let (within, beyond): (Vec<_>, Vec<_>) = frames.into_iter().partition(|it| it.len() <= ROOM);
    assert_eq!(
        counted,
        Counted {
            received: within.len(),
            errors: beyond.len(),
            missed: 0
        },
        "{}",
        file.display()
    );
    let written: Vec<_> = files::read(&out).into_iter().map(|it| it.bytes).collect();
    assert_frames(
        format!("{} through DPDK", file.display()),
        &written,
        &within,
    );
    Ok((within.len(), beyond.len()))
}

/// Returns the frames of a capture that a wire can carry.
fn wire_frames(file: &Path) -> Vec<Vec<u8>> {
    let records = files::read_as_it_stands(file).into_iter();
    records
        .map(|it| it.bytes)
        .filter(|it| it.len() >= SHORTEST)
        .collect()
}

fn all_received(count: usize) -> Counted {
    Counted {
        received: count,
        errors: 0,
        missed: 0,
    }
}

#[test]
fn all_generated_frames_are_counted() {
    let dir = Dir::new();
    let count = 200_000;
    for (queues, scalar) in [(1, false), (2, true), (4, false)] {
        let setup = Setup {
            queues,
            device: if scalar { "rx_vec_en=0" } else { "rx_vec_en=1" },
            options: &["--burst=64"],
            quiet: true,
            ..Setup::default()
        };
        let wire = format!("synth:size=64,flows=1024,count={count}");
        let mut testpmd = need!(Testpmd::start(&dir, &wire, &setup));
        testpmd.open_wire();
        assert_eq!(testpmd.counted(count), all_received(count));
        for queue in 0..queues {
            let name = format!("rx_q{queue}_packets: ");
            let packets = testpmd.answer("show port xstats 0", &name);
            assert_ne!(packets.trim(), "0", "queue {queue} of {queues}");
        }
        drop(testpmd.quit());

        // On a wire that does not wait, frames without a buffer are lost and counted by the device.
        let mut testpmd = need!(Testpmd::start(&dir, &format!("{wire},lossy"), &setup));
        testpmd.open_wire();
        let counted = testpmd.counted(count);
        drop(testpmd.quit());
        assert_eq!(counted.received + counted.missed, count, "{counted:?}");
        assert_eq!(counted.errors, 0, "{counted:?}");
    }
}

/// Python program that sends the frames of its input file, each preceded by its length in two
/// bytes.
const SEND: &str = "
import socket, sys
it = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
it.bind((sys.argv[1], 0))
all = open(sys.argv[2], 'rb').read()
at = 0
while at < len(all):
    length = int.from_bytes(all[at:at + 2], 'big')
    it.send(all[at + 2:at + 2 + length])
    at += 2 + length
";

#[test]
fn frames_of_an_interface_are_received_unchanged() {
    let dir = Dir::new();
    let out = dir.join("out.pcap");
    let setup = Setup {
        out: Some(&out),
        // Enough descriptors for all frames, because an interface does not wait.
        options: &["--rxd=1024"],
        ..Setup::default()
    };
    let wire = format!("af_packet:{IFACE}");
    let mut frames = flows(200);
    for (frame, length) in frames.iter_mut().zip((60..=1514).step_by(2)) {
        frame.resize(length.max(frame.len()), 0xa5);
    }
    let raw: Vec<u8> = frames
        .iter()
        .flat_map(|frame| [&(frame.len() as u16).to_be_bytes()[..], frame].concat())
        .collect();
    let raw = dir.write("frames.raw", raw);
    let mut testpmd = need!(Testpmd::start(&dir, &wire, &setup));
    let raw = raw.to_str().expect("a UTF-8 path");
    let _ = testpmd
        .pair
        .near
        .program("python3", &["-c", SEND, IFACE, raw])
        .run()
        .expect(0);
    assert_eq!(testpmd.counted(frames.len()), all_received(frames.len()));
    drop(testpmd.quit());
    let written: Vec<_> = files::read(&out).into_iter().map(|it| it.bytes).collect();
    assert_frames("from an interface", &written, &frames);
}

/// Returns a UDP frame with a VLAN tag and `payload` bytes of payload.
fn tagged(payload: usize) -> Vec<u8> {
    let ends = Ends {
        from: 1,
        to: 2,
        sport: 3,
        dport: 4,
    };
    let frame = Frame::ethernet(&[(0x8100, 0x2abc)], IPV4);
    numbered(frame.ipv4(ends, 17, 0).udp(ends).payload(payload).done())
}

#[test]
fn port_offloads_strip_tags_scatter_frames_keep_the_fcs_and_stamp() {
    let dir = Dir::new();
    let frames: Vec<_> = [18, 1000, 3000, 8900].map(tagged).into();
    let wire = capture(&dir, "tagged.pcap", &frames);
    for scalar in [true, false] {
        let setup = Setup {
            device: if scalar { "rx_vec_en=0" } else { "rx_vec_en=1" },
            options: &[
                "--enable-scatter",
                "--max-pkt-len=9600",
                "--enable-hw-vlan-strip",
                "--disable-crc-strip",
                "--enable-rx-timestamp",
            ],
            ..Setup::default()
        };
        let mut testpmd = need!(Testpmd::start(&dir, &wire, &setup));
        testpmd.open_wire();
        let received = testpmd.received(frames.len());
        drop(testpmd.quit());
        let mut last_stamp = 0;
        for (frame, packet) in frames.iter().zip(&received) {
            // Without the tag. The driver also hides the FCS that it requested: it subtracts four
            // bytes from the length that the device reports.
            assert_eq!(packet.length, frame.len() - 4, "{packet:?}");
            // Each buffer of 2176 bytes holds 2048 bytes of a packet. Buffers are filled in order.
            assert_eq!(packet.segments, frame.len().div_ceil(2048), "{packet:?}");
            assert_eq!(packet.vlan_tci, Some(0x2abc), "{packet:?}");
            assert_eq!(packet.source, source(frame));
            assert!(
                packet.timestamp > last_stamp,
                "{packet:?} after {last_stamp}"
            );
            last_stamp = packet.timestamp;
        }
    }
}

/// Opens the wire and asserts that one queue receives exactly `frames`, in order.
#[track_caller]
fn assert_received(what: &str, mut testpmd: Testpmd, frames: &[Vec<u8>]) {
    testpmd.open_wire();
    let received = testpmd.received(frames.len());
    drop(testpmd.quit());
    let seen: Vec<_> = received.iter().map(|it| it.source.clone()).collect();
    let expected: Vec<_> = frames.iter().map(|it| source(it)).collect();
    assert_same(what, &seen, &expected);
}

#[test]
fn a_port_that_is_not_promiscuous_receives_only_its_addresses() {
    const OWN: [u8; 6] = [2, 0xbb, 0, 0, 0, 1];
    let dir = Dir::new();
    let to = |address: [u8; 6]| {
        let mut frame = numbered(Frame::ethernet(&[], 0x88b5).payload(46).done());
        frame[..6].copy_from_slice(&address);
        frame
    };
    let foreign = to([2, 0xcc, 0, 0, 0, 1]);
    let multicast = to([0x01, 0, 0x5e, 0, 0, 0x77]);
    let broadcast = to([0xff; 6]);
    let last = to(OWN);
    let all = [foreign, multicast.clone(), broadcast.clone(), last.clone()];
    let wire = capture(&dir, "addresses.pcap", &all);
    for (how, taken) in [
        ("set promisc 0 on", &all[..]),
        (
            "set allmulti 0 on",
            &[multicast, broadcast.clone(), last.clone()],
        ),
        ("set allmulti 0 off", &[broadcast, last]),
    ] {
        let setup = Setup {
            before: &["set promisc 0 off", "mac_addr set 0 02:BB:00:00:00:01", how],
            ..Setup::default()
        };
        // The frames arrive in order on one queue, so nothing follows the last one.
        assert_received(how, need!(Testpmd::start(&dir, &wire, &setup)), taken);
    }
}

#[test]
fn frames_sent_by_dpdk_return_on_a_loopback_wire() {
    let dir = Dir::new();
    let frames = flows(100);
    let (file, out) = (dir.join("in.pcap"), dir.join("out.pcap"));
    files::write(&file, 1_600_000_000, &frames);
    let setup = Setup {
        input: Some(&file),
        out: Some(&out),
        ..Setup::default()
    };
    let mut testpmd = need!(Testpmd::start(&dir, "loopback", &setup));
    let counted = testpmd.counted(frames.len());
    drop(testpmd.quit());
    assert_eq!(counted, all_received(frames.len()));
    let written: Vec<_> = files::read(&out).into_iter().map(|it| it.bytes).collect();
    assert_frames("sent and received", &written, &frames);
}

#[test]
fn a_port_works_after_stop_close_and_probe_with_and_without_a_pci_bus() {
    let dir = Dir::new();
    let frames = flows(8);
    let wire = capture(&dir, "again.pcap", &frames);
    let no_bus = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs none /sys/bus && exec \"$@\"",
        "sh",
    ];
    for wrapper in [&[][..], &no_bus] {
        let attach = format!("port attach {}", testpmd::DEVICE);
        let again = [
            "port stop 0",
            "port start 0",
            "port stop 0",
            "port close 0",
            "device detach 15b3:01:00.0",
            &attach,
            "port start 0",
        ];
        let setup = Setup {
            wrapper,
            before: &[again, again].concat(),
            ..Setup::default()
        };
        let testpmd = need!(Testpmd::start(&dir, &wire, &setup));
        assert_received("probed again", testpmd, &frames);
    }
}

#[test]
fn a_lost_device_raises_an_event() {
    let dir = Dir::new();
    let lost = dir.join("lost");
    let wire = capture(&dir, "lost.pcap", &flows(1));
    let fault = format!("fault=device_fatal@file={}", lost.display());
    let setup = Setup {
        settings: &[&fault],
        ..Setup::default()
    };
    let mut testpmd = need!(Testpmd::start(&dir, &wire, &setup));
    testpmd.open_wire();
    assert_eq!(testpmd.received(4).len(), 4);
    dir.write("lost", "");
    testpmd.until("device removal");
    // testpmd detaches the device in another thread and must not be ended during that.
    testpmd.until("Now total ports is 0");
    drop(testpmd.quit());
}
