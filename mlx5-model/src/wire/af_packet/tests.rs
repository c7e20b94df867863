//! A live pair of interfaces, each in a network namespace of its own. Needs root and `ip`; says so and
//! passes without.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::super::gso::tests::verify;
use super::super::{Direction, Take, Wire, WireError, WireSpec, WireState};
use super::socket::Socket;

const PATIENCE: Duration = Duration::from_secs(20);

/// Two namespaces joined by a veth pair, `wire` in the one and `far` in the other.
struct Lab {
    near: String,
    far: String,
}

fn ip(arguments: &str) -> bool {
    let words = arguments.split_whitespace();
    let output = Command::new("ip").args(words).output();
    match output {
        Ok(it) if it.status.success() => true,
        Ok(it) => {
            println!("ip {arguments}: {}", String::from_utf8_lossy(&it.stderr));
            false
        }
        Err(_) => false,
    }
}

impl Lab {
    fn new() -> Option<Lab> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // SAFETY: takes nothing and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            println!("skipped: needs root");
            return None;
        }
        if Command::new("ip").arg("-V").output().is_err() {
            println!("skipped: needs the command `ip`");
            return None;
        }
        let name = format!(
            "wqw{}x{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let lab = Lab {
            near: format!("{name}a"),
            far: format!("{name}b"),
        };
        if !ip(&format!("netns add {}", lab.near)) || !ip(&format!("netns add {}", lab.far)) {
            println!("skipped: no network namespaces here");
            return None;
        }
        let (near, far) = (&lab.near, &lab.far);
        assert!(ip(&format!(
            "-n {near} link add wire address 02:00:00:09:00:01 type veth \
             peer name far address 02:00:00:09:00:02 netns {far}"
        )));
        for (netns, name, end) in [(near, "wire", 1), (far, "far", 2)] {
            assert!(ip(&format!(
                "-n {netns} addr add 10.9.0.{end}/24 dev {name}"
            )));
            assert!(ip(&format!(
                "-n {netns} addr add fd09::{end}/64 dev {name} nodad"
            )));
            assert!(ip(&format!("-n {netns} link set {name} up")));
            // Known from the start: on a busy machine the kernel drops what waits for an answer for too long.
            for subnet in ["10.9.0.", "fd09::"] {
                let other = 3 - end;
                assert!(ip(&format!(
                    "-n {netns} neigh replace {subnet}{other} lladdr 02:00:00:09:00:0{other} dev {name}"
                )));
            }
        }
        Some(lab)
    }

    fn open(&self, options: &str) -> Result<Wire, WireError> {
        let spec: WireSpec = format!("af_packet:wire,ring=16MiB{options}")
            .parse()
            .unwrap();
        within(&self.near, || Wire::open(&spec))
    }

    fn add_vlan(&self, tag: u16) -> bool {
        [(&self.near, "wire", 1), (&self.far, "far", 2)]
            .iter()
            .all(|(netns, name, end)| {
                ip(&format!(
                    "-n {netns} link add link {name} name tagged type vlan id {tag}"
                )) && ip(&format!("-n {netns} addr add 10.8.0.{end}/24 dev tagged"))
                    && ip(&format!("-n {netns} link set tagged up"))
            })
    }

    /// A bare packet socket at the far end.
    fn far_socket(&self) -> Socket {
        within(&self.far, || {
            let socket = Socket::new().unwrap();
            socket.prepare().unwrap();
            socket.bind(socket.index_of("far").unwrap()).unwrap();
            socket
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.near));
        ip(&format!("netns del {}", self.far));
    }
}

/// Runs `work` in a network namespace, on a thread of its own that ends with it.
fn within<T: Send>(netns: &str, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let work = scope.spawn(move || {
            let file = File::open(format!("/run/netns/{netns}")).unwrap();
            // SAFETY: changes this thread's namespace only, and takes no memory of ours.
            let entered = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(entered, 0);
            work()
        });
        work.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Takes frames until `done` and then until it is quiet. Every fifth is made to wait, and must be the
/// same when it comes again.
fn capture(wire: &mut Wire, done: &AtomicBool) -> Vec<(Direction, Vec<u8>)> {
    let (began, mut frames, mut calls) = (Instant::now(), vec![], 0);
    let (mut quiet, mut waiting): (_, Option<Vec<u8>>) = (Instant::now(), None);
    loop {
        let taken = wire.each(began.elapsed().as_nanos() as u64, 64, |frame| {
            calls += 1;
            if let Some(waiting) = waiting.take() {
                assert!(waiting == frame.bytes, "what had to wait has changed");
            } else if calls % 5 == 0 {
                waiting = Some(frame.bytes.to_vec());
                return Take::Wait;
            }
            frames.push((frame.direction, frame.bytes.to_vec()));
            Take::Taken
        });
        if taken > 0 || waiting.is_some() {
            quiet = Instant::now();
        } else {
            thread::sleep(Duration::from_micros(200));
        }
        if done.load(Ordering::Acquire) && quiet.elapsed() > Duration::from_millis(250) {
            return frames;
        }
        assert!(began.elapsed() < PATIENCE, "never quiet");
    }
}

/// The frames that `work` causes.
fn during(wire: &mut Wire, work: impl FnOnce() + Send) -> Vec<(Direction, Vec<u8>)> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let work = scope.spawn(|| {
            // Set even if the work panics.
            struct Done<'a>(&'a AtomicBool);
            impl Drop for Done<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Release);
                }
            }
            let _done = Done(&done);
            work();
        });
        let frames = capture(wire, &done);
        work.join().unwrap();
        frames
    })
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|it| (it * 31 + it / 255) as u8).collect()
}

/// Sends `data` both ways over one TCP connection between the two namespaces.
fn exchange(lab: &Lab, near: &str, data: &[u8]) {
    let address: SocketAddr = near.parse().unwrap();
    let listener = within(&lab.near, || TcpListener::bind(address).unwrap());
    let both = |stream: TcpStream| {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| (&stream).write_all(data).unwrap());
            let mut got = vec![0; data.len()];
            (&stream).read_exact(&mut got).unwrap();
            assert!(got == data);
        });
    };
    thread::scope(|scope| {
        scope.spawn(|| both(listener.accept().unwrap().0));
        let address = listener.local_addr().unwrap();
        let stream = within(&lab.far, || {
            TcpStream::connect_timeout(&address, PATIENCE).unwrap()
        });
        both(stream);
    });
}

/// Puts the TCP payloads that went one way back together, and checks every frame on the way.
fn reassemble(
    frames: &[(Direction, Vec<u8>)],
    direction: Direction,
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
            start = Some(sequence.wrapping_add(1));
        }
        let at = sequence.wrapping_sub(start.expect("a SYN first")) as usize;
        if !payload.is_empty() {
            stream[at..at + payload.len()].copy_from_slice(&payload);
        }
    }
    assert!(full > len / 2000, "full frames: {full}");
    stream
}

#[test]
fn udp_arrives_in_order_with_right_checksums() {
    let Some(lab) = Lab::new() else { return };
    let mut wire = lab.open("").unwrap();
    assert!(wire.notes().is_empty(), "{:?}", wire.notes());
    let frames = during(&mut wire, || {
        let near = within(&lab.near, || UdpSocket::bind("10.9.0.1:0").unwrap());
        let far = within(&lab.far, || UdpSocket::bind("10.9.0.2:0").unwrap());
        far.connect(near.local_addr().unwrap()).unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        for i in 0..3000_u32 {
            far.send(&[&i.to_be_bytes()[..], &pattern(i as usize % 1400)].concat())
                .unwrap();
            near.send(b"not seen").unwrap();
        }
    });
    let mut expected = 0_u32;
    for (direction, frame) in frames
        .iter()
        .filter(|it| it.1[12..14] == [8, 0] && it.1[23] == 17)
    {
        assert_eq!(*direction, Direction::Received);
        let (payload, header) = verify(frame, 12);
        assert_ne!(header[6..8], [0, 0]);
        assert_eq!(payload[..4], expected.to_be_bytes());
        assert_eq!(payload.len(), 4 + expected as usize % 1400);
        expected += 1;
    }
    assert_eq!(expected, 3000);
    assert_eq!(wire.dropped(), 0);
}

#[test]
fn an_idle_wire_can_be_polled() {
    let Some(lab) = Lab::new() else { return };
    let mut wire = lab.open("").unwrap();
    let socket = lab.far_socket();
    during(&mut wire, || {});
    let poll = |wire: &Wire, milliseconds| {
        let mut entry = libc::pollfd {
            fd: wire.wait_fd().unwrap(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the kernel reads and writes one struct pollfd.
        let ready = unsafe { libc::poll(&raw mut entry, 1, milliseconds) };
        (ready, entry.revents)
    };
    for _ in 0..3 {
        socket.send(&[0x55; 60]).unwrap();
        // Neighbour discovery may come in between.
        while !during_poll(&mut wire, poll) {}
        while poll(&wire, 0).0 > 0 {
            wire.each(0, 64, |_| Take::Taken);
        }
    }
}

/// Waits for the wire to be ready, and says whether the frame was there.
fn during_poll(wire: &mut Wire, poll: impl Fn(&Wire, i32) -> (i32, i16)) -> bool {
    assert_eq!(poll(wire, 5000).0, 1);
    let mut seen = false;
    wire.each(0, 64, |frame| {
        seen |= frame.bytes == [0x55; 60];
        Take::Taken
    });
    seen
}

#[test]
fn tcp_super_frames_come_as_frames() {
    let Some(lab) = Lab::new() else { return };
    // "BIG TCP", where there is such a thing.
    for (netns, name) in [(&lab.near, "wire"), (&lab.far, "far")] {
        for what in ["gso_max_size", "gso_ipv4_max_size"] {
            ip(&format!("-n {netns} link set {name} {what} 200000"));
        }
    }
    let data = pattern(6_000_000);
    for address in ["10.9.0.1:0", "[fd09::1]:0"] {
        let mut wire = lab.open("").unwrap();
        for sniffing in [false, true] {
            wire.set_sniffing(sniffing);
            let frames = during(&mut wire, || exchange(&lab, address, &data));
            assert_eq!((wire.dropped(), wire.unsplit()), (0, 0));
            assert!(reassemble(&frames, Direction::Received, 0, data.len()) == data);
            if sniffing {
                assert!(reassemble(&frames, Direction::Transmitted, 0, data.len()) == data);
            } else {
                assert!(frames.iter().all(|it| it.0 == Direction::Received));
            }
        }
    }
}

#[test]
fn a_vlan_interface_talks_in_tagged_frames() {
    let Some(lab) = Lab::new() else { return };
    if !lab.add_vlan(5) {
        println!("skipped: no VLAN interfaces in this kernel");
        return;
    }
    let data = pattern(3_000_000);
    let mut wire = lab.open("").unwrap();
    wire.set_sniffing(true);
    let frames = during(&mut wire, || exchange(&lab, "10.8.0.1:0", &data));
    for direction in [Direction::Received, Direction::Transmitted] {
        let tagged: Vec<_> = frames
            .iter()
            .filter(|it| it.0 == direction && it.1[12..16] == [0x81, 0, 0, 5])
            .cloned()
            .collect();
        assert!(reassemble(&tagged, direction, 4, data.len()) == data);
    }
    assert_eq!(wire.dropped(), 0);
}

/// The kernel takes the outer tag out of whatever it receives.
#[test]
fn vlan_tags_are_put_back() {
    let Some(lab) = Lab::new() else { return };
    let mut wire = lab.open("").unwrap();
    let socket = lab.far_socket();
    let head = [[0xff; 6], [2, 0, 0, 0, 0, 7]].concat();
    let tags: [&[u8]; 4] = [
        &[0x81, 0, 0xe0, 5],
        &[0x81, 0, 0, 0],
        &[0x88, 0xa8, 0x10, 9, 0x81, 0, 0, 7],
        &[0x81, 0, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3],
    ];
    let sent = tags.map(|it| [&head, it, &[0x88, 0xb5], &pattern(99)[..]].concat());
    let frames = during(&mut wire, || {
        sent.iter().for_each(|it| socket.send(it).unwrap())
    });
    let got: Vec<_> = frames
        .into_iter()
        .map(|it| it.1)
        .filter(|it| it.starts_with(&head))
        .collect();
    assert_eq!(got, sent);

    // A tagged super-frame: 10 segments of 1000 bytes, checksum left open.
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
    let frames = during(&mut wire, || socket.send_with(&virtio, &frame).unwrap());
    let got: Vec<_> = frames
        .iter()
        .filter(|it| it.1.starts_with(&frame[..18]))
        .collect();
    assert_eq!(got.len(), 10);
    assert!(got.iter().flat_map(|it| verify(&it.1, 12).0).eq(data));
}

#[test]
fn udp_super_frames_come_as_frames() {
    let Some(lab) = Lab::new() else { return };
    let data = pattern(30_000);
    for (near, far) in [("10.9.0.1:9", "10.9.0.2:0"), ("[fd09::1]:9", "[fd09::2]:0")] {
        let mut wire = lab.open("").unwrap();
        let frames = during(&mut wire, || {
            let socket = within(&lab.far, || UdpSocket::bind(far).unwrap());
            // UDP_SEGMENT (linux/udp.h): a NIC's work is asked for.
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
        if sent.is_empty() && wire.dropped() > 0 {
            println!("skipped: this kernel cannot describe UDP super-frames");
            return;
        }
        assert_eq!(sent.len(), 25);
        assert!(
            sent.iter()
                .flat_map(|it| verify(&it.1, 12).0)
                .eq(data.iter().copied())
        );
        assert_eq!((wire.dropped(), wire.unsplit()), (0, 0));
    }
}

#[test]
fn tunnelled_super_frames_come_as_frames() {
    let Some(lab) = Lab::new() else { return };
    for (netns, name, end, other) in [(&lab.near, "wire", 1, 2), (&lab.far, "far", 2, 1)] {
        let vxlan = format!(
            "-n {netns} link add tunnel type vxlan id 9 dstport 4789 local 10.9.0.{end} \
             remote 10.9.0.{other} dev {name} udpcsum"
        );
        if !ip(&vxlan) {
            println!("skipped: no VXLAN here");
            return;
        }
        assert!(ip(&format!(
            "-n {netns} addr add 10.7.0.{end}/24 dev tunnel"
        )));
        assert!(ip(&format!("-n {netns} link set tunnel up")));
    }
    let data = pattern(2_000_000);
    let mut wire = lab.open("").unwrap();
    let frames = during(&mut wire, || exchange(&lab, "10.7.0.1:0", &data));
    let mut total = 0;
    for (_, frame) in frames
        .iter()
        .filter(|it| it.1[12..14] == [8, 0] && it.1[23] == 17)
    {
        assert!(frame.len() <= 1514, "a frame of {} bytes", frame.len());
        // Inside go ARP and the like as well.
        if frame[62..64] == [8, 0] && frame[73] == 6 {
            total += verify(frame, 12).0.len();
        }
    }
    assert!(total >= data.len());
    assert_eq!((wire.dropped(), wire.unsplit()), (0, 0));
}

#[test]
fn down_is_up_but_deleted_is_lost() {
    let Some(lab) = Lab::new() else { return };
    let mut wire = lab.open("").unwrap();
    let (near, far) = (&lab.near, &lab.far);
    let ping = || {
        let socket = within(far, || UdpSocket::bind("10.9.0.2:0").unwrap());
        let _ = socket.send_to(b"hello", "10.9.0.1:9");
    };
    assert!(ip(&format!("-n {near} link set wire down")));
    during(&mut wire, ping);
    assert_eq!(wire.state(), WireState::Up);
    assert_eq!(
        wire.send(&[0; 60]).unwrap_err().raw_os_error(),
        Some(libc::ENETDOWN)
    );

    // One that is opened on an interface that is down waits for it.
    let mut late = lab.open("").unwrap();
    assert!(ip(&format!("-n {near} link set wire up")));
    for wire in [&mut wire, &mut late] {
        let began = Instant::now();
        while !during(wire, ping)
            .iter()
            .any(|it| it.1[12..14] == [8, 0] || it.1[12..14] == [8, 6])
        {
            assert!(began.elapsed() < PATIENCE);
        }
    }
    // A frame that came just before is still handed over.
    wire.set_sniffing(true);
    let sent = within(near, || {
        let other = lab.open("").unwrap();
        let sent = { other }.send(&[0x55; 77]);
        assert!(ip(&format!("-n {near} link del wire")));
        sent
    });
    sent.unwrap();
    let (began, mut seen) = (Instant::now(), 0);
    while wire.state() == WireState::Up {
        wire.each(
            began.elapsed().as_nanos() as u64 + u64::MAX / 2,
            64,
            |frame| {
                seen += u32::from(frame.bytes == [0x55; 77]);
                Take::Taken
            },
        );
        assert!(began.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(
        (wire.state(), seen, wire.wait_fd()),
        (WireState::Lost, 1, None)
    );
}

#[test]
fn what_is_sent_is_seen_by_others_only() {
    let Some(lab) = Lab::new() else { return };
    let mut frame = [[0xff; 6], [2, 0, 0, 0, 0, 7]].concat();
    frame.extend([0x88, 0xb5]);
    frame.extend(pattern(800));
    let mut wire = lab.open("").unwrap();
    wire.set_sniffing(true);
    let mut other = lab.open("").unwrap();
    other.set_sniffing(true);
    for len in [14, 15, 60, 814] {
        wire.send(&frame[..len]).unwrap();
    }
    assert!(wire.send(&[0; 5000]).is_err(), "beyond the MTU");
    let lens = |wire: &mut Wire| -> Vec<_> {
        let frames = during(wire, || {});
        frames
            .iter()
            .filter(|it| it.1.starts_with(&frame[..14]))
            .map(|it| (it.0, it.1.len()))
            .collect()
    };
    assert!(lens(&mut wire).is_empty());
    let expected: Vec<_> = [14, 15, 60, 814]
        .map(|it| (Direction::Transmitted, it))
        .to_vec();
    assert_eq!(lens(&mut other), expected);
}

#[test]
fn what_finds_no_room_is_counted() {
    let Some(lab) = Lab::new() else { return };
    let spec: WireSpec = "af_packet:wire,ring=2MiB".parse().unwrap();
    let mut wire = within(&lab.near, || Wire::open(&spec)).unwrap();
    // Nothing but these frames may come: no neighbour discovery in between.
    let mut sender = within(&lab.far, || {
        Wire::open(&"af_packet:far,ring=2MiB".parse().unwrap())
    })
    .unwrap();
    let mut frame = [[0xff; 6], [2, 0, 0, 0, 0, 7]].concat();
    frame.extend([0x88, 0xb5]);
    frame.extend(pattern(1000));
    for _ in 0..5000 {
        sender.send(&frame).unwrap();
    }
    let seen = during(&mut wire, || {})
        .iter()
        .filter(|it| it.1 == frame)
        .count() as u64;
    let dropped = wire.dropped();
    assert!(dropped > 1000);
    // A router solicitation or two may be among the dropped.
    assert!(
        (5000..5010).contains(&(seen + dropped)),
        "{seen} seen, {dropped} dropped"
    );
    assert_eq!(wire.dropped(), dropped, "counted once");
}

#[test]
fn merging_is_switched_off_and_on_again() {
    let Some(lab) = Lab::new() else { return };
    let gro = |set: Option<&str>| -> Option<bool> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &lab.near, "ethtool"]);
        match set {
            Some(value) => command.args(["-K", "wire", "gro", value]),
            None => command.args(["-k", "wire"]),
        };
        let output = command.output().ok().filter(|it| it.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).contains("generic-receive-offload: on"))
    };
    if gro(Some("on")).is_none() {
        println!("skipped: needs `ethtool`");
        return;
    }
    assert_eq!(gro(None), Some(true));
    let wire = lab.open("").unwrap();
    assert_eq!(gro(None), Some(false));
    drop(wire);
    assert_eq!(gro(None), Some(true));
    gro(Some("off"));
    drop(lab.open("").unwrap());
    assert_eq!(gro(None), Some(false));
}

#[test]
fn errors_say_what_to_do() {
    let Some(lab) = Lab::new() else { return };
    let spec: WireSpec = "af_packet:nothere".parse().unwrap();
    let error = within(&lab.near, || Wire::open(&spec))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("nothere") && error.contains("ip link"),
        "{error}"
    );
    let error = within(&lab.near, || {
        // SAFETY: changes the capabilities of this thread only, which ends here.
        unsafe {
            let header: [u32; 2] = [0x2008_0522, 0];
            let none = [0_u32; 6];
            assert_eq!(
                libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()),
                0
            );
        }
        Wire::open(&"af_packet:wire".parse().unwrap())
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("CAP_NET_RAW"), "{error}");
}

/// How fast a filled ring is read; `cargo test --release -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn speed() {
    let Some(lab) = Lab::new() else { return };
    let mut wire = within(&lab.near, || Wire::open(&"af_packet:wire".parse().unwrap())).unwrap();
    let socket = lab.far_socket();
    for len in [60, 1514] {
        let frame = [
            &[0xff; 6][..],
            &[2, 0, 0, 0, 0, 7, 0x88, 0xb5],
            &pattern(len - 14),
        ]
        .concat();
        (0..30_000).for_each(|_| socket.send(&frame).unwrap());
        thread::sleep(Duration::from_millis(50));
        let (began, mut taken, mut sum) = (Instant::now(), 0, 0);
        loop {
            let now = wire.each(0, 64, |frame| {
                sum += u64::from(std::hint::black_box(frame.bytes)[13]);
                Take::Taken
            });
            if now == 0 {
                break;
            }
            taken += now;
        }
        let each = began.elapsed().as_nanos() as f64 / taken as f64;
        println!(
            "{len} bytes: {each:.1} ns a frame, {taken} frames, {} dropped ({sum})",
            wire.dropped()
        );
    }
}
