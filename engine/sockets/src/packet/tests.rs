//! Packet sockets on the loopback interface of a network namespace that each test makes itself.
#![allow(unsafe_code)]

use super::*;
use std::{
    io,
    net::UdpSocket,
    os::fd::AsRawFd,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use wqcap_core::settings::Direction;

const ATTR: PacketAttr = PacketAttr {
    blocks: 4,
    block_bytes: 1 << 16,
    retire: Duration::from_millis(2),
    promiscuous: false,
    direction: Direction::In,
};
/// Time limit for frames to arrive in a test.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `test` on a thread in a new network namespace, whose loopback interface is up. Without
/// the rights for that, prints the reason and returns.
fn in_namespace(test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: a plain system call, for this thread only.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                let e = io::Error::last_os_error();
                return eprintln!("skipped: a network namespace: {e}");
            }
            bring_up_loopback();
            test();
        });
    });
}

fn bring_up_loopback() {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    // SAFETY: a C struct of integers and a pointer, for which zeroes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l'.cast_signed();
    request.ifr_name[1] = b'o'.cast_signed();
    request.ifr_ifru.ifru_flags = libc::IFF_UP as i16;
    // SAFETY: the operation reads a struct ifreq.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

/// Sends datagrams of the numbers `from..to` as UDP payloads of `len` bytes over the loopback
/// interface. Ports are chosen per datagram if `spread` is set.
fn send(numbers: std::ops::Range<u32>, len: usize, spread: bool) {
    let receiver = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let to = receiver.local_addr().expect("an address");
    let mut sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for number in numbers {
        if spread {
            sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        }
        let mut payload = vec![0xa5; len];
        payload[..4].copy_from_slice(&number.to_be_bytes());
        sender.send_to(&payload, to).expect("sends");
    }
}

/// Reader of the whole ring, block after block, that returns each block at its end.
struct Reader {
    ring: BlockRing,
    block: u32,
}

impl Reader {
    fn new(ring: BlockRing) -> Self {
        Self { ring, block: 0 }
    }

    /// Reads the frames of the blocks that the kernel has passed on, with the bytes of each frame.
    fn read(&mut self) -> Vec<(BlockFrame, Vec<u8>)> {
        let mut frames = Vec::new();
        while let Some(mut cursor) = self.ring.read(self.block) {
            while let Some(frame) = self.ring.next(&mut cursor).expect("a sound block") {
                let memory = self.ring.memory();
                let start = self.block as usize * ATTR.block_bytes as usize + frame.at as usize;
                // SAFETY: the frame is inside a block that the process holds.
                let bytes = unsafe {
                    std::slice::from_raw_parts(memory.as_ptr().add(start), frame.len as usize)
                };
                frames.push((frame, bytes.to_vec()));
            }
            assert!(cursor.is_at_end());
            // SAFETY: the frames have been copied.
            unsafe { self.ring.give_back(self.block) };
            self.block = (self.block + 1) % self.ring.memory().blocks();
        }
        frames
    }

    fn wait_for(&mut self, count: usize) -> Vec<(BlockFrame, Vec<u8>)> {
        let end = Instant::now() + PATIENCE;
        let mut frames = Vec::new();
        while frames.len() < count && Instant::now() < end {
            frames.append(&mut self.read());
            thread::yield_now();
        }
        frames
    }
}

/// Number of bytes of a test frame's Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 14 + 20 + 8;

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(*frame[HEADERS..].first_chunk().expect("a number"))
}

#[test]
fn frames_arrive_in_order_with_the_time_of_the_kernel_and_none_before_the_gate_opens() {
    in_namespace(|| {
        let (socket, ring) = PacketSocket::open("lo", &ATTR).expect("a socket");
        assert_eq!(
            socket.hardware_type().expect("a type"),
            libc::ARPHRD_LOOPBACK
        );
        let mut reader = Reader::new(ring);
        send(0..10, 100, false);
        socket.open_gate().expect("opens");
        let began = SystemTime::now();
        send(10..40, 100, false);
        let frames = reader.wait_for(30);
        let numbers: Vec<_> = frames.iter().map(|(_, bytes)| number(bytes)).collect();
        assert_eq!(numbers, (10..40).collect::<Vec<_>>());
        for (frame, bytes) in &frames {
            assert_eq!(
                (bytes.len(), frame.wire_len as usize),
                (HEADERS + 100, HEADERS + 100)
            );
            assert!(
                !frame.outgoing,
                "the loopback interface shows each frame twice"
            );
            let stamp = UNIX_EPOCH + Duration::from_nanos(frame.stamp_ns);
            assert!(stamp >= began && stamp <= SystemTime::now());
        }
        socket.close_gate().expect("closes");
        send(40..50, 100, false);
        thread::sleep(10 * ATTR.retire);
        assert!(reader.read().is_empty());
        let counts = socket.take_counts().expect("counts");
        assert_eq!((counts.frames, counts.dropped), (30, 0));
        assert_eq!(
            socket.take_counts().expect("counts"),
            PacketCounts::default()
        );
    });
}

#[test]
fn each_frame_without_room_is_in_the_count_of_dropped_frames() {
    in_namespace(|| {
        let (socket, ring) = PacketSocket::open("lo", &ATTR).expect("a socket");
        socket.open_gate().expect("opens");
        let mut reader = Reader::new(ring);
        send(0..1000, 1000, false);
        let received = reader.wait_for(100).len() as u64 + {
            thread::sleep(10 * ATTR.retire);
            reader.read().len() as u64
        };
        let counts = socket.take_counts().expect("counts");
        assert_eq!(counts.frames, 1000);
        assert_eq!(counts.dropped, 1000 - received);
        assert!(counts.dropped > 0 && counts.freezes > 0, "{counts:?}");
    });
}

#[test]
fn the_sockets_of_a_group_divide_the_frames_and_keep_flows_together() {
    in_namespace(|| {
        let open = || PacketSocket::open("lo", &ATTR).expect("a socket");
        let (sockets, rings): (Vec<_>, Vec<_>) = (0..3).map(|_| open()).unzip();
        let group = sockets[0].create_fanout().expect("a group");
        for other in &sockets[1..] {
            other.join_fanout(group).expect("joins");
        }
        send(0..5, 64, true);
        for socket in &sockets {
            socket.open_gate().expect("opens");
        }
        send(5..105, 64, true);
        send(105..155, 64, false);
        let mut readers: Vec<_> = rings.into_iter().map(Reader::new).collect();
        let end = Instant::now() + PATIENCE;
        let mut by_socket = vec![Vec::new(); 3];
        while by_socket.iter().map(Vec::len).sum::<usize>() < 150 && Instant::now() < end {
            for (reader, numbers) in readers.iter_mut().zip(&mut by_socket) {
                numbers.extend(reader.read().iter().map(|(_, bytes)| number(bytes)));
            }
        }
        let mut all = by_socket.concat();
        all.sort_unstable();
        assert_eq!(all, (5..155).collect::<Vec<_>>());
        assert!(by_socket.iter().all(|it| it.len() > 5), "{by_socket:?}");
        let of_flow = |numbers: &Vec<u32>| numbers.iter().filter(|it| **it >= 105).count();
        let with_flow = by_socket.iter().filter(|it| of_flow(it) > 0).count();
        assert_eq!(with_flow, 1, "one flow is on one socket");
    });
}

#[test]
fn an_interface_that_does_not_exist_is_named() {
    in_namespace(|| {
        let e = PacketSocket::open("none0", &ATTR).expect_err("is refused");
        assert_eq!(e.to_string(), "none0: there is no such network interface");
    });
}

#[test]
fn a_gate_for_frames_that_the_host_sends_keeps_out_received_ones() {
    in_namespace(|| {
        let attr = PacketAttr {
            direction: Direction::Out,
            ..ATTR
        };
        let (socket, ring) = PacketSocket::open("lo", &attr).expect("a socket");
        socket.open_gate().expect("opens");
        send(0..20, 80, false);
        let mut reader = Reader::new(ring);
        let frames = reader.wait_for(20);
        assert_eq!(frames.len(), 20);
        assert!(frames.iter().all(|(frame, _)| frame.outgoing));
    });
}
