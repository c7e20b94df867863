//! Tests on a veth pair whose ends are in two network namespaces. They need root and `ip`.
#![allow(unsafe_code)]

use super::super::lab::{
    Lab, PATIENCE, assert_arrival_times, during, exchange, keep_capabilities, run,
};
use super::super::{Delivery, Wire, WireDirection, WireSpec, WireState};
use std::net::UdpSocket;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use wqcap_testkit::{need, skip};

const WIRE: &str = "af_packet:wire,ring=16MiB";

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|it| (it * 31 + it / 255) as u8).collect()
}

/// Reassembles the TCP payloads of one direction, and returns them with the length of the longest
/// frame. `tag` is the length of the frames' VLAN tags.
fn reassemble(
    frames: &[(WireDirection, Vec<u8>)],
    direction: WireDirection,
    tag: usize,
    len: usize,
) -> (Vec<u8>, usize) {
    let mut stream = vec![0_u8; len];
    let (mut start, mut longest) = (None, 0);
    for (_, frame) in frames.iter().filter(|it| it.0 == direction) {
        let ip = 14 + tag;
        let (protocol, tcp) = match frame[ip - 2..ip] {
            [0x08, 0x00] => (frame[ip + 9], ip + 20),
            [0x86, 0xdd] => (frame[ip + 6], ip + 40),
            _ => continue,
        };
        if protocol != 6 {
            continue;
        }
        longest = longest.max(frame.len());
        let header = &frame[tcp..];
        let payload = &header[usize::from(header[12] >> 4) * 4..];
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
            stream[at..at + payload.len()].copy_from_slice(payload);
        }
    }
    (stream, longest)
}

#[test]
fn udp_arrives_in_order() {
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
        let payload = &frame[42..];
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

/// Waits until the wire is readable, takes its frames, and returns `true` if the test's frame is
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
fn super_frames_are_delivered_whole() {
    let lab = need!(Lab::new());
    let data = pattern(3_000_000);
    for address in ["10.9.0.1:0", "[fd09::1]:0"] {
        let mut wire = lab.open(WIRE).unwrap();
        for sniffing in [false, true] {
            wire.set_sniffing(sniffing);
            let frames = during(&lab, &mut wire, |flow| exchange(flow, address, &data));
            assert_eq!(wire.drops().total(), 0);
            let (received, longest) = reassemble(&frames, WireDirection::Received, 0, data.len());
            assert!(received == data);
            assert!(longest > 1514, "the longest frame has {longest} bytes");
            if sniffing {
                let sent = reassemble(&frames, WireDirection::Transmitted, 0, data.len());
                assert!(sent.0 == data);
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
        assert!(reassemble(&tagged, direction, 4, data.len()).0 == data);
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

/// Takes frames from a wire at the time `now` of its clock until `is` accepts one. Calls `between`
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
fn offloads_of_the_interface_stay_as_they_are() {
    let lab = need!(Lab::new());
    let ethtool = |args: [&str; 2]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &lab.near.to_string(), "ethtool"]);
        let output = command.args(args).output().ok()?;
        output.status.success().then_some(output.stdout)
    };
    let Some(before) = ethtool(["-k", "wire"]) else {
        skip!("ethtool cannot be run");
    };
    let wire = lab.open(WIRE).unwrap();
    assert!(ethtool(["-k", "wire"]) == Some(before.clone()));
    drop(wire);
    assert!(ethtool(["-k", "wire"]) == Some(before));
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
