//! Tests on a veth pair whose ends are in two network namespaces. They need root and `ip`.
#![allow(unsafe_code)]

use super::super::gso::tests::verify;
use super::super::lab::{
    Lab, PATIENCE, assert_arrival_times, during, exchange, keep_capabilities, run,
};
use super::super::{Delivery, Wire, WireDirection, WireSpec, WireState};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use wqcap_testkit::{need, skip};

const WIRE: &str = "af_packet:wire,ring=16MiB";

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|it| (it * 31 + it / 255) as u8).collect()
}

/// Reassembles the TCP payloads of one direction, and checks every frame of it.
fn reassemble(
    frames: &[(WireDirection, Vec<u8>)],
    direction: WireDirection,
    tag: usize,
    len: usize,
) -> Vec<u8> {
    let mut stream = vec![0_u8; len];
    let mut start = None;
    let mut full = 0;
    for (_, frame) in frames.iter().filter(|it| it.0 == direction) {
        let at = 12 + tag;
        let protocol = match frame[at..at + 2] {
            [0x08, 0x00] => frame[at + 2 + 9],
            [0x86, 0xdd] => frame[at + 2 + 6],
            _ => continue,
        };
        if protocol != 6 {
            continue;
        }
        assert!(
            frame.len() <= 1514 + tag,
            "a frame of {} bytes",
            frame.len()
        );
        let (payload, header) = verify(frame, 12);
        full += usize::from(frame.len() == 1514 + tag);
        let sequence = u32::from_be_bytes(*header[4..].first_chunk().unwrap());
        if header[13] & 2 != 0 {
            start = Some((header[..4].to_vec(), sequence.wrapping_add(1)));
        }
        // Frames of an earlier connection may arrive late.
        let Some((_, first)) = start.as_ref().filter(|(ports, _)| header[..4] == *ports) else {
            continue;
        };
        let at = sequence.wrapping_sub(*first) as usize;
        if !payload.is_empty() {
            stream[at..at + payload.len()].copy_from_slice(&payload);
        }
    }
    assert!(full > len / 2000, "full frames: {full}");
    stream
}

#[test]
fn udp_arrives_in_order_with_valid_checksums() {
    let lab = need!(Lab::new());
    let mut wire = lab.open(WIRE).unwrap();
    assert!(wire.notes().is_empty(), "{:?}", wire.notes());
    let frames = during(&lab, &mut wire, |flow| {
        let near = lab.near.within(|| UdpSocket::bind("10.9.0.1:0").unwrap());
        let far = lab.far.within(|| UdpSocket::bind("10.9.0.2:0").unwrap());
        far.connect(near.local_addr().unwrap()).unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        for i in 0..3000_u32 {
            far.send(&[&i.to_be_bytes()[..], &pattern(i as usize % 1400)].concat())
                .unwrap();
            near.send(b"not seen").unwrap();
            if i % 200 == 0 {
                flow.flush();
            }
        }
    });
    let mut expected = 0_u32;
    for (direction, frame) in frames
        .iter()
        .filter(|it| it.1[12..14] == [8, 0] && it.1[23] == 17)
    {
        assert_eq!(*direction, WireDirection::Received);
        let (payload, header) = verify(frame, 12);
        assert_ne!(header[6..8], [0, 0]);
        assert_eq!(payload[..4], expected.to_be_bytes());
        assert_eq!(payload.len(), 4 + expected as usize % 1400);
        expected += 1;
    }
    assert_eq!(expected, 3000);
    assert_eq!(wire.drops().total(), 0);
}

#[test]
fn frames_carry_their_arrival_times() {
    let lab = need!(Lab::new());
    lab.silence();
    let mut wire = lab.open(WIRE).unwrap();
    assert_arrival_times(&lab, &mut wire);
}

#[test]
fn an_idle_wire_can_be_polled() {
    let lab = need!(Lab::new());
    let mut wire = lab.open(WIRE).unwrap();
    let socket = lab.far_socket();
    during(&lab, &mut wire, |_| {});
    let poll = |wire: &Wire, patience: Duration| {
        let mut entry = libc::pollfd {
            fd: wire.wait_fd().unwrap(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the kernel reads and writes one struct pollfd.
        let ready = unsafe { libc::poll(&raw mut entry, 1, patience.as_millis() as i32) };
        (ready, entry.revents)
    };
    for _ in 0..3 {
        socket.send(&[0x55; 60]).unwrap();
        // Frames of neighbour discovery may arrive in between.
        while !poll_for_frame(&mut wire, poll) {}
        while poll(&wire, Duration::ZERO).0 > 0 {
            wire.each(0, 64, |_| Delivery::Taken);
        }
    }
}

/// Waits until the wire is readable, takes its frames, and returns `true` if the sent frame is
/// among them.
fn poll_for_frame(wire: &mut Wire, poll: impl Fn(&Wire, Duration) -> (i32, i16)) -> bool {
    assert_eq!(poll(wire, PATIENCE).0, 1);
    let mut seen = false;
    wire.each(0, 64, |frame| {
        seen |= frame.bytes == [0x55; 60];
        Delivery::Taken
    });
    seen
}

#[test]
fn tcp_super_frames_are_split() {
    let lab = need!(Lab::new());
    // "BIG TCP", if the kernel and `ip` support it.
    for (netns, name) in [(&lab.near, "wire"), (&lab.far, "far")] {
        for what in ["gso_max_size", "gso_ipv4_max_size"] {
            let _ = run(&format!("ip -n {netns} link set {name} {what} 200000"));
        }
    }
    let data = pattern(3_000_000);
    for address in ["10.9.0.1:0", "[fd09::1]:0"] {
        let mut wire = lab.open(WIRE).unwrap();
        for sniffing in [false, true] {
            wire.set_sniffing(sniffing);
            let frames = during(&lab, &mut wire, |flow| exchange(flow, address, &data));
            assert_eq!((wire.drops().total(), wire.unsplit()), (0, 0));
            assert!(reassemble(&frames, WireDirection::Received, 0, data.len()) == data);
            if sniffing {
                assert!(reassemble(&frames, WireDirection::Transmitted, 0, data.len()) == data);
            } else {
                assert!(frames.iter().all(|it| it.0 == WireDirection::Received));
            }
        }
    }
}

#[test]
fn frames_of_a_vlan_interface_are_tagged() {
    let lab = need!(Lab::new());
    need!(lab.add_vlan(5));
    let data = pattern(3_000_000);
    let mut wire = lab.open(WIRE).unwrap();
    wire.set_sniffing(true);
    let frames = during(&lab, &mut wire, |flow| exchange(flow, "10.8.0.1:0", &data));
    for direction in [WireDirection::Received, WireDirection::Transmitted] {
        let tagged: Vec<_> = frames
            .iter()
            .filter(|it| it.0 == direction && it.1[12..16] == [0x81, 0, 0, 5])
            .cloned()
            .collect();
        assert!(reassemble(&tagged, direction, 4, data.len()) == data);
    }
    assert_eq!(wire.drops().total(), 0);
}

/// Checks that the outer VLAN tag is put back, which the kernel removes from received frames.
#[test]
fn vlan_tags_are_put_back() {
    let lab = need!(Lab::new());
    let mut wire = lab.open(WIRE).unwrap();
    let socket = lab.far_socket();
    let head = [[0xff; 6], [2, 0, 0, 0, 0, 7]].concat();
    let tags: [&[u8]; 4] = [
        &[0x81, 0, 0xe0, 5],
        &[0x81, 0, 0, 0],
        &[0x88, 0xa8, 0x10, 9, 0x81, 0, 0, 7],
        &[0x81, 0, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3],
    ];
    let sent = tags.map(|it| [&head, it, &[0x88, 0xb5], &pattern(99)[..]].concat());
    let frames = during(&lab, &mut wire, |_| {
        sent.iter().for_each(|it| socket.send(it).unwrap())
    });
    let got: Vec<_> = frames
        .into_iter()
        .map(|it| it.1)
        .filter(|it| it.starts_with(&head))
        .collect();
    assert_eq!(got, sent);

    // A tagged super-frame: 10 segments of 1000 bytes, checksum not completed.
    let data = pattern(10_000);
    let mut frame = [&head, &[0x81, 0, 0, 5, 8, 0][..]].concat();
    let mut ip = vec![
        0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1,
    ];
    ip[2..4].copy_from_slice(&10_040_u16.to_be_bytes());
    frame.extend(ip);
    frame.extend([
        0,
        7,
        0,
        9,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        5 << 4,
        0x10,
        1,
        1,
        0,
        0,
        0,
        0,
    ]);
    frame.extend(&data);
    let mut virtio = [0; 10];
    (virtio[0], virtio[1]) = (1, 1);
    for (at, value) in [(2, 58_u16), (4, 1000), (6, 38), (8, 16)] {
        virtio[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    }
    let frames = during(&lab, &mut wire, |_| {
        socket.send_with(&virtio, &frame).unwrap();
    });
    let got: Vec<_> = frames
        .iter()
        .filter(|it| it.1.starts_with(&frame[..18]))
        .collect();
    assert_eq!(got.len(), 10);
    assert!(got.iter().flat_map(|it| verify(&it.1, 12).0).eq(data));
}

#[test]
fn udp_super_frames_are_split() {
    let lab = need!(Lab::new());
    let data = pattern(30_000);
    for (near, far) in [("10.9.0.1:9", "10.9.0.2:0"), ("[fd09::1]:9", "[fd09::2]:0")] {
        let mut wire = lab.open(WIRE).unwrap();
        let frames = during(&lab, &mut wire, |_| {
            let socket = lab.far.within(|| UdpSocket::bind(far).unwrap());
            // UDP_SEGMENT (linux/udp.h) requests segmentation by the NIC.
            let size: libc::c_int = 1200;
            // SAFETY: the kernel reads an int.
            let result = unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_UDP,
                    103,
                    (&raw const size).cast(),
                    4,
                )
            };
            assert_eq!(result, 0);
            socket.send_to(&data, near).unwrap();
        });
        let protocol = |frame: &[u8]| if frame[12] == 8 { frame[23] } else { frame[20] };
        let sent: Vec<_> = frames.iter().filter(|it| protocol(&it.1) == 17).collect();
        if sent.is_empty() && wire.drops().total() > 0 {
            skip!("this kernel cannot describe UDP super-frames");
        }
        assert_eq!(sent.len(), 25);
        assert!(
            sent.iter()
                .flat_map(|it| verify(&it.1, 12).0)
                .eq(data.iter().copied())
        );
        assert_eq!((wire.drops().total(), wire.unsplit()), (0, 0));
    }
}

#[test]
fn tunnelled_super_frames_are_split() {
    let lab = need!(Lab::new());
    for (netns, name, end, other) in [(&lab.near, "wire", 1, 2), (&lab.far, "far", 2, 1)] {
        let vxlan = format!(
            "ip -n {netns} link add tunnel type vxlan id 9 dstport 4789 local 10.9.0.{end} \
             remote 10.9.0.{other} dev {name} udpcsum"
        );
        need!(run(&vxlan));
        run(&format!(
            "ip -n {netns} addr add 10.7.0.{end}/24 dev tunnel"
        ))
        .unwrap();
        run(&format!("ip -n {netns} link set tunnel up")).unwrap();
    }
    let data = pattern(2_000_000);
    let mut wire = lab.open(WIRE).unwrap();
    let frames = during(&lab, &mut wire, |flow| exchange(flow, "10.7.0.1:0", &data));
    let mut total = 0;
    for (_, frame) in frames
        .iter()
        .filter(|it| it.1[12..14] == [8, 0] && it.1[23] == 17)
    {
        assert!(frame.len() <= 1514, "a frame of {} bytes", frame.len());
        // The tunnel also carries other frames, such as ARP.
        if frame[62..64] == [8, 0] && frame[73] == 6 {
            total += verify(frame, 12).0.len();
        }
    }
    assert!(total >= data.len());
    assert_eq!((wire.drops().total(), wire.unsplit()), (0, 0));
}

#[test]
fn a_deleted_interface_is_lost_but_not_one_that_is_down() {
    let lab = need!(Lab::new());
    let mut wire = lab.open(WIRE).unwrap();
    let (near, far) = (&lab.near, &lab.far);
    let ping = || {
        let socket = far.within(|| UdpSocket::bind("10.9.0.2:0").unwrap());
        let _ = socket.send_to(b"hello", "10.9.0.1:9");
    };
    // Step of the wire's clock, longer than the intervals between its checks.
    const STEP: u64 = 1_000_000_000;
    let mut now = 0;
    run(&format!("ip -n {near} link set wire down")).unwrap();
    ping();
    for _ in 0..3 {
        now += STEP;
        wire.each(now, 64, |_| Delivery::Taken);
    }
    assert_eq!(wire.state(), WireState::Up);
    assert_eq!(
        wire.send(&[0; 60]).unwrap_err().raw_os_error(),
        Some(libc::ENETDOWN)
    );

    // A wire that is opened on an interface that is down waits until the interface is up.
    let mut late = lab.open(WIRE).unwrap();
    run(&format!("ip -n {near} link set wire up")).unwrap();
    for wire in [&mut wire, &mut late] {
        now += STEP;
        until_seen(wire, now, ping, |it| {
            it[12..14] == [8, 0] || it[12..14] == [8, 6]
        });
    }
    // A frame that arrived just before the deletion is still delivered.
    wire.set_sniffing(true);
    let other = lab.open(WIRE).unwrap();
    { other }.send(&[0x55; 77]).unwrap();
    run(&format!("ip -n {near} link del wire")).unwrap();
    now += STEP;
    until_seen(&mut wire, now, || {}, |it| it == [0x55; 77]);
    while wire.each(now, 64, |_| Delivery::Taken) > 0 {}
    assert_eq!(wire.state(), WireState::Up, "the clock has not advanced");
    wire.each(now + STEP, 64, |_| panic!("a frame after the last one"));
    assert_eq!((wire.state(), wire.wait_fd()), (WireState::Lost, None));
}

/// Takes frames at the time `now` of the wire's clock until `is` accepts one. Calls `between`
/// before each burst.
fn until_seen(wire: &mut Wire, now: u64, between: impl Fn(), is: impl Fn(&[u8]) -> bool) {
    let (began, mut seen) = (Instant::now(), false);
    while !seen {
        between();
        wire.each(now, 64, |frame| {
            seen |= is(frame.bytes);
            Delivery::Taken
        });
        assert!(began.elapsed() < PATIENCE, "the frame does not arrive");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn sent_frames_are_seen_by_other_wires_only() {
    let lab = need!(Lab::new());
    let mut frame = [[0xff; 6], [2, 0, 0, 0, 0, 7]].concat();
    frame.extend([0x88, 0xb5]);
    frame.extend(pattern(800));
    let mut wire = lab.open(WIRE).unwrap();
    wire.set_sniffing(true);
    let mut other = lab.open(WIRE).unwrap();
    other.set_sniffing(true);
    for len in [14, 15, 60, 814] {
        wire.send(&frame[..len]).unwrap();
    }
    assert!(wire.send(&[0; 5000]).is_err(), "a frame above the MTU");
    let lens = |wire: &mut Wire| -> Vec<_> {
        let frames = during(&lab, wire, |_| {});
        frames
            .iter()
            .filter(|it| it.1.starts_with(&frame[..14]))
            .map(|it| (it.0, it.1.len()))
            .collect()
    };
    assert!(lens(&mut wire).is_empty());
    let expected: Vec<_> = [14, 15, 60, 814]
        .map(|it| (WireDirection::Transmitted, it))
        .to_vec();
    assert_eq!(lens(&mut other), expected);
}

#[test]
fn frames_that_find_no_room_are_counted() {
    let lab = need!(Lab::new());
    lab.silence();
    let mut witness = lab.open(WIRE).unwrap();
    during(&lab, &mut witness, |_| {});
    let spec: WireSpec = "af_packet:wire,ring=2MiB".parse().unwrap();
    let mut wire = lab.near.within(|| Wire::open(&spec)).unwrap();
    let mut sender = lab
        .far
        .within(|| Wire::open(&"af_packet:far,ring=2MiB".parse().unwrap()))
        .unwrap();
    let mut frame = [[0xff; 6], [2, 0, 0, 0, 0, 7]].concat();
    frame.extend([0x88, 0xb5]);
    frame.extend(pattern(1000));
    let marks = lab.marks();
    // The kernel's queue between the two ends has room for 50 frames.
    let frames = during(&lab, &mut witness, |flow| {
        for _ in 0..80 {
            (0..50).for_each(|_| sender.send(&frame).unwrap());
            flow.flush();
        }
    });
    assert_eq!((frames.len(), witness.drops().total()), (4000, 0));
    let sent = 4000 + lab.marks() - marks;
    // The last frames in the ring arrive when the time of their block is up.
    let (began, mut seen) = (Instant::now(), 0);
    while seen + wire.drops().total() < sent {
        seen += wire.each(0, 64, |_| Delivery::Taken) as u64;
        assert!(began.elapsed() < PATIENCE, "{seen} seen");
    }
    let dropped = wire.drops().total();
    assert!(dropped > 1000, "{dropped}");
    assert_eq!(seen + dropped, sent);
    assert_eq!(wire.drops().total(), dropped, "each drop is counted once");
}

#[test]
fn merging_is_switched_off_and_on_again() {
    let lab = need!(Lab::new());
    let gro = |set: Option<&str>| -> Option<bool> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &lab.near.to_string(), "ethtool"]);
        match set {
            Some(value) => command.args(["-K", "wire", "gro", value]),
            None => command.args(["-k", "wire"]),
        };
        let output = command.output().ok().filter(|it| it.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).contains("generic-receive-offload: on"))
    };
    if gro(Some("on")).is_none() {
        skip!("ethtool cannot be run, or cannot set GRO");
    }
    assert_eq!(gro(None), Some(true));
    let wire = lab.open(WIRE).unwrap();
    assert_eq!(gro(None), Some(false));
    drop(wire);
    assert_eq!(gro(None), Some(true));
    gro(Some("off"));
    drop(lab.open(WIRE).unwrap());
    assert_eq!(gro(None), Some(false));
}

#[test]
fn errors_have_a_remedy() {
    let lab = need!(Lab::new());
    let spec: WireSpec = "af_packet:nothere".parse().unwrap();
    let error = lab.near.within(|| Wire::open(&spec));
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("nothere") && error.contains("ip link"),
        "{error}"
    );
    let error = lab.near.within(|| {
        keep_capabilities(0);
        Wire::open(&"af_packet:wire".parse().unwrap())
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("CAP_NET_RAW"), "{error}");
}
