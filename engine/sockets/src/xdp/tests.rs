//! AF_XDP sockets on one end of a veth pair, in a network namespace that each test makes itself. The
//! tests need root and `ip`.
#![allow(unsafe_code)]

use super::*;
use crate::packet::{PacketAttr, PacketSocket, raw::RawPacket};
use rustix::{
    net::SendFlags,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use std::{
    fs, io,
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use wqcap_core::settings::Direction;

const ATTR: XdpAttr = XdpAttr {
    queues: 1,
    chunks: 512,
    chunk_bytes: 2048,
    numa_node: None,
    promiscuous: false,
};
/// Time limit for frames to arrive in a test.
const PATIENCE: Duration = Duration::from_secs(10);
/// Numbers of queues of the veth pair: receive queues of `near`, send queues of `far`.
const ONE: (u32, u32) = (1, 1);
/// Numbers of queues with which veth refuses XDP in the driver (ENOSPC): `far` sends on more.
const REFUSED: (u32, u32) = (1, 2);
/// EtherType for experiments (IEEE 802).
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];

fn ip(arguments: &str) -> Result<String, String> {
    command("ip", arguments)
}

fn command(program: &str, arguments: &str) -> Result<String, String> {
    let done = Command::new(program)
        .args(arguments.split_whitespace())
        .output()
        .map_err(|e| format!("{program}: {e}"))?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        false => Err(format!(
            "{program} {arguments}: {}",
            String::from_utf8_lossy(&done.stderr)
        )),
    }
}

/// Runs `test` on a thread of one CPU in a new network namespace, with a veth pair `near` and `far`.
/// Without the rights or the tools for that, prints the reason and returns.
fn in_lab((receive, send): (u32, u32), test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: a plain system call, for this thread only.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                let e = io::Error::last_os_error();
                return eprintln!("skipped: a network namespace: {e}");
            }
            // Frames that are sent on several CPUs may overtake each other.
            let mut one = CpuSet::new();
            let allowed = sched_getaffinity(None).expect("the CPUs");
            let cpu = (0..CpuSet::MAX_CPU).find(|it| allowed.is_set(*it));
            one.set(cpu.expect("a CPU"));
            sched_setaffinity(None, &one).expect("pins");
            for key in ["all", "default"] {
                let key = format!("/proc/sys/net/ipv6/conf/{key}/disable_ipv6");
                fs::write(key, "1").ok();
            }
            let made = ip(&format!(
                "link add near numrxqueues {receive} numtxqueues {receive} type veth \
                 peer name far numrxqueues {send} numtxqueues {send}"
            ));
            if let Err(e) = made {
                return eprintln!("skipped: {e}");
            }
            for end in ["near", "far"] {
                ip(&format!("link set {end} up")).expect("up");
            }
            let began = Instant::now();
            while !["near", "far"].iter().all(|it| shows(it, "state UP")) {
                assert!(began.elapsed() < PATIENCE, "the veth pair does not come up");
            }
            // The kernel changes the state first and then starts the queue, both under one lock.
            // This command waits for that lock.
            ip("link set far up").expect("up");
            test();
        });
    });
}

/// Returns `true` if the description of the interface by `ip` has `text`.
fn shows(interface: &str, text: &str) -> bool {
    ip(&format!("-d link show {interface}")).is_ok_and(|it| it.contains(text))
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Builds the frame of this number, with an EtherType and bytes in front of the number.
fn frame(number: u32, header: &[u8], len: usize) -> Vec<u8> {
    let mut frame = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 7];
    frame.extend_from_slice(header);
    frame.extend_from_slice(&number.to_be_bytes());
    frame.extend((frame.len()..len).map(|it| (it * 31 + it / 255) as u8));
    frame
}

/// Builds an IPv4 and UDP header of the flow of this number, with the EtherType in front.
fn flow(number: u8) -> Vec<u8> {
    let mut header = vec![0x08, 0x00];
    // Version and length, service, total length, identifier, fragment, time to live, protocol.
    header.extend_from_slice(&[0x45, 0, 0, 86, 0, 0, 0, 0, 64, 17, 0, 0]);
    header.extend_from_slice(&[10, 9, 0, number, 10, 9, 0, 1]);
    header.extend_from_slice(&[0x10, number, 0, 9, 0, 66, 0, 0]);
    header
}

/// Sender of frames at the far end of the veth pair.
struct Far(RawPacket);

impl Far {
    fn new() -> Self {
        Self::open("far")
    }

    fn open(interface: &str) -> Self {
        let socket = RawPacket::create().expect("a socket");
        let index = socket.index_of(interface).expect("an interface");
        socket.bind(index, 0).expect("binds");
        Self(socket)
    }

    /// Sends a frame. The kernel has no room for it while the other end is behind.
    fn send(&self, frame: &[u8]) {
        let began = Instant::now();
        while let Err(e) = rustix::net::send(&self.0, frame, SendFlags::empty()) {
            let is_full = matches!(e, rustix::io::Errno::NOBUFS | rustix::io::Errno::AGAIN);
            assert!(is_full && began.elapsed() < PATIENCE, "{e}");
            thread::yield_now();
        }
    }

    fn send_numbers(&self, numbers: std::ops::Range<u32>, len: usize) {
        for number in numbers {
            self.send(&frame(number, &EXPERIMENT, len));
        }
    }
}

/// Reader of a whole ring that returns each chunk at once.
struct Near {
    ring: ChunkRing,
}

impl Near {
    fn new(mut ring: ChunkRing) -> Self {
        for chunk in 0..ring.chunks() {
            // SAFETY: the kernel has no chunk yet.
            unsafe { ring.give(chunk) };
        }
        ring.publish();
        Self { ring }
    }

    /// Takes the frames that wait in the ring, and returns them with their bytes.
    fn read(&mut self) -> Vec<(XdpFrame, Vec<u8>)> {
        let mut frames = Vec::new();
        self.ring.refresh();
        while let Some(frame) = self.ring.take_frame().expect("a sound descriptor") {
            let start = (frame.chunk * self.ring.chunk_bytes() + frame.at) as usize;
            let first = self.ring.memory().as_ptr().wrapping_add(start);
            // SAFETY: the frame is in a chunk that the process has.
            let bytes = unsafe { std::slice::from_raw_parts(first, frame.len as usize) };
            frames.push((frame, bytes.to_vec()));
        }
        self.ring.release();
        for (frame, _) in &frames {
            // SAFETY: the frame has been copied, and no two were in one chunk.
            unsafe { self.ring.give(frame.chunk) };
        }
        self.ring.publish();
        frames
    }

    fn wait_for(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        until(&format!("{count} frames"), || {
            frames.extend(self.read().into_iter().map(|it| it.1));
            frames.len() >= count
        });
        frames
    }
}

fn open(attr: &XdpAttr) -> (XdpInterface, Vec<Near>) {
    let (interface, rings) = XdpInterface::open("near", attr).unwrap_or_else(|e| panic!("{e}"));
    (interface, rings.into_iter().map(Near::new).collect())
}

#[test]
fn frames_arrive_unchanged_and_in_order_while_the_gate_is_open_and_the_kernel_gets_the_others() {
    for (queues, hook) in [(ONE, XdpHook::Native), (REFUSED, XdpHook::Generic)] {
        in_lab(queues, move || {
            let attr = PacketAttr {
                blocks: 4,
                block_bytes: 1 << 16,
                retire: Duration::from_millis(2),
                promiscuous: false,
                direction: Direction::In,
            };
            let (kernel, _blocks) = PacketSocket::open("near", &attr).expect("a packet socket");
            kernel.open_gate().expect("opens");
            let far = Far::new();
            let (interface, mut near) = open(&ATTR);
            assert_eq!(interface.hook(), hook, "{:?}", interface.native_refusal());
            assert_eq!(
                interface.hardware_type().expect("a type"),
                libc::ARPHRD_ETHER
            );
            let mut of_kernel = 0;
            let mut kernel_gets = |more| {
                of_kernel += more;
                let mut frames = 0;
                until("frames of the kernel", || {
                    frames += kernel.take_counts().expect("counts").frames;
                    frames >= more
                });
                assert_eq!(frames, more);
            };
            far.send_numbers(0..10, 100);
            kernel_gets(10);
            interface.open_gate();
            let began = SystemTime::now();
            let lengths: Vec<usize> = (14 + 4..1514).step_by(17).chain([1514]).collect();
            let sent: Vec<_> = (10..)
                .zip(&lengths)
                .map(|(number, len)| frame(number, &EXPERIMENT, *len))
                .collect();
            sent.iter().for_each(|it| far.send(it));
            let mut got = Vec::new();
            until("all frames", || {
                got.append(&mut near[0].read());
                got.len() >= sent.len()
            });
            for (frame, _) in &got {
                let stamp = UNIX_EPOCH + Duration::from_nanos(frame.stamp_ns);
                assert!(stamp + Duration::from_millis(1) >= began && stamp <= SystemTime::now());
            }
            let stamps: Vec<_> = got.iter().map(|it| it.0.stamp_ns).collect();
            assert!(stamps.is_sorted() && stamps[0] < stamps[stamps.len() - 1]);
            assert!(got.into_iter().map(|it| it.1).eq(sent));
            kernel_gets(0);
            interface.close_gate();
            far.send_numbers(1000..1010, 100);
            kernel_gets(10);
            assert!(near[0].read().is_empty());
            assert_eq!(
                interface.sockets()[0].counts().expect("counts"),
                XdpCounts::default()
            );
        });
    }
}

#[test]
fn received_and_lost_frames_are_the_sent_ones() {
    for queues in [ONE, REFUSED] {
        in_lab(queues, || {
            let far = Far::new();
            let (interface, mut near) = open(&ATTR);
            interface.open_gate();
            let socket = Arc::clone(&interface.sockets()[0]);
            let lost = || socket.counts().expect("counts").lost();
            let (chunks, sent) = (u64::from(ATTR.chunks), 3 * u64::from(ATTR.chunks));
            // The queue between the two ends has less room than the ring: each frame without a chunk
            // is counted before the next one is sent.
            for number in 0..sent {
                far.send_numbers(number as u32..number as u32 + 1, 100);
                until("a lost frame is counted", || {
                    lost() == (number + 1).saturating_sub(chunks)
                });
            }
            let got = near[0].wait_for(chunks as usize);
            let numbers: Vec<_> = got.iter().map(|it| it[14..18].to_vec()).collect();
            let first = (0..ATTR.chunks).map(|it| it.to_be_bytes().to_vec());
            assert!(numbers.into_iter().eq(first));
            assert_eq!(got.len() as u64 + lost(), sent);
            let counts = socket.counts().expect("counts");
            assert_eq!((counts.ring_full, counts.invalid), (0, 0));
            assert_eq!(counts.fill_empty, counts.dropped);
            // The chunks are free again.
            far.send_numbers(9..10, 200);
            assert_eq!(near[0].wait_for(1), [frame(9, &EXPERIMENT, 200)]);
            assert_eq!(lost(), sent - chunks);
        });
    }
}

#[test]
fn each_queue_has_its_own_socket_and_the_kernel_keeps_the_queues_of_none() {
    in_lab((2, 2), || {
        let limits = XdpLimits::read("near").expect("facts");
        assert_eq!((limits.queues, limits.mtu), (2, 1500));
        let wanted = XdpAttr { queues: 3, ..ATTR };
        let refused = XdpInterface::open("near", &wanted).expect_err("is refused");
        assert_eq!(
            refused.to_string(),
            "near: cannot capture 3 receive queues: the interface has 2; use 2 or fewer, or add queues with \
             `ethtool -L near`"
        );
        let far = Far::new();
        let sent: Vec<_> = (0..200_u32)
            .map(|it| frame(it, &flow(it as u8 % 50), 100))
            .collect();
        let (interface, mut near) = open(&XdpAttr { queues: 2, ..ATTR });
        interface.open_gate();
        sent.iter().for_each(|it| far.send(it));
        let mut got = vec![Vec::new(); 2];
        until("all frames", || {
            for (near, got) in near.iter_mut().zip(&mut got) {
                got.extend(near.read().into_iter().map(|it| it.1));
            }
            got.iter().map(Vec::len).sum::<usize>() >= sent.len()
        });
        assert!(got.iter().all(|it| it.len() > 10), "each queue has flows");
        let of_second = got[0].len();
        let number = |it: &Vec<u8>| it[14 + 28..14 + 32].to_vec();
        assert!(
            got.iter()
                .all(|it| it.iter().map(number).is_sorted_by(|a, b| a < b))
        );
        let mut all = got.concat();
        all.sort_by_key(number);
        assert_eq!(all, sent);
        drop((interface, near));
        let (interface, mut near) = open(&ATTR);
        interface.open_gate();
        sent.iter().for_each(|it| far.send(it));
        assert_eq!(near[0].wait_for(of_second).len(), of_second);
    });
}

#[test]
fn the_watermark_is_signalled_when_half_of_the_chunks_have_arrived() {
    fn is_reached(near: &Near, patience: Duration) -> bool {
        wqcap_core::sync::wakeup::wait_readable(near.ring.watermark_fd(), patience)
    }
    for queues in [(2, 2), REFUSED] {
        in_lab(queues, move || {
            let far = Far::new();
            let attr = XdpAttr {
                queues: queues.0,
                ..ATTR
            };
            let (interface, mut near) = open(&attr);
            interface.open_gate();
            let half = ATTR.chunks / 2;
            let mut at = 0;
            for round in 0..3 {
                assert!(near.iter_mut().all(|it| it.ring.begin_gathering()));
                far.send_numbers(1..half, 100);
                let mut got = vec![0; near.len()];
                until("the frames", || {
                    for (near, got) in near.iter_mut().zip(&mut got) {
                        *got += near.read().len();
                    }
                    got.iter().sum::<usize>() == half as usize - 1
                });
                at = got.iter().position(|it| *it > 0).expect("frames");
                assert_eq!(got[at], half as usize - 1, "one flow has one queue");
                for near in &near {
                    assert!(!is_reached(near, Duration::ZERO), "round {round}");
                }
                far.send_numbers(half..half + 1, 100);
                assert!(is_reached(&near[at], PATIENCE), "round {round}");
                for (queue, near) in near.iter().enumerate() {
                    assert_eq!(is_reached(near, Duration::ZERO), queue == at);
                }
                near[at].wait_for(1);
            }
            // Gathering needs more free chunks than are left here.
            far.send_numbers(0..half, 100);
            let ring = &mut near[at].ring;
            let mut held = 0;
            until("the frames", || {
                ring.refresh();
                while ring.take_frame().expect("a sound descriptor").is_some() {
                    held += 1;
                }
                held == half
            });
            assert!(!ring.begin_gathering());
        });
    }
}

#[test]
fn a_tag_in_the_frame_stays_in_it() {
    for queues in [ONE, REFUSED] {
        in_lab(queues, || {
            let far = Far::new();
            let (interface, mut near) = open(&ATTR);
            interface.open_gate();
            let tagged = frame(1, &[0x81, 0x00, 0x00, 0x05, 0x88, 0xb5], 100);
            far.send(&tagged);
            assert_eq!(near[0].wait_for(1), [&tagged[..]]);
            // A VLAN interface leaves its tag to the hardware, unless it has none.
            let vlan = "link add link far name far.5 type vlan id 5";
            if let Err(e) = ip(vlan).and_then(|_| ip("link set far.5 up")) {
                return eprintln!("skipped: {e}");
            }
            let vlan = Far::open("far.5");
            let plain = frame(1, &EXPERIMENT, 96);
            vlan.send(&plain);
            assert_eq!(near[0].wait_for(1), [&plain[..]], "the tag is lost");
            if let Err(e) = command("ethtool", "-K far txvlan off") {
                return eprintln!("skipped: {e}");
            }
            vlan.send(&plain);
            let [got] = <[_; 1]>::try_from(near[0].wait_for(1)).expect("one frame");
            assert_eq!((&got[..18], got.len()), (&tagged[..18], 100));
        });
    }
}

#[test]
fn the_program_and_promiscuous_mode_end_with_the_interface() {
    for queues in [ONE, REFUSED] {
        in_lab(queues, || {
            let attr = XdpAttr {
                promiscuous: true,
                ..ATTR
            };
            let (interface, near) = open(&attr);
            assert!(shows("near", "prog/xdp") && shows("near", "promiscuity 1"));
            let refused = XdpInterface::open("near", &ATTR).expect_err("is refused");
            assert_eq!(
                refused.to_string(),
                "near has an XDP program already, which `ip link show dev near` shows: end its process, or remove the \
                 program with `ip link set dev near xdp off`"
            );
            drop(interface);
            assert!(!shows("near", "prog/xdp") && shows("near", "promiscuity 0"));
            // The mapped ring keeps the socket on its queue.
            drop(near);
            drop(open(&ATTR));
        });
    }
}

/// Not a test: the process that [`the_program_ends_with_the_process`] kills.
#[test]
#[ignore = "another test runs it"]
fn hold_the_interface() {
    if std::env::var_os("WQCAP_TEST_HOLD").is_none() {
        return;
    }
    let _held = open(&XdpAttr {
        promiscuous: true,
        ..ATTR
    });
    println!("held");
    thread::sleep(PATIENCE);
}

#[test]
fn the_program_ends_with_the_process() {
    in_lab(ONE, || {
        let mut child = Command::new(std::env::current_exe().expect("the test program"))
            .args([
                "xdp::tests::hold_the_interface",
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env("WQCAP_TEST_HOLD", "1")
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut lines = output.lines().map_while(Result::ok);
        assert!(lines.any(|it| it.contains("held")));
        assert!(shows("near", "prog/xdp") && shows("near", "promiscuity 1"));
        child.kill().expect("kills");
        let status = child.wait().expect("ends");
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        until("the program is gone", || !shows("near", "prog/xdp"));
        assert!(shows("near", "promiscuity 0"));
        drop(open(&ATTR));
    });
}

#[test]
fn an_interface_that_does_not_exist_or_has_too_large_an_mtu_is_refused() {
    in_lab(ONE, || {
        let refusal = |name| {
            XdpInterface::open(name, &ATTR)
                .expect_err("is refused")
                .to_string()
        };
        assert_eq!(
            refusal("none0"),
            "none0: there is no such network interface"
        );
        ip("link set near mtu 1771").expect("sets");
        assert_eq!(
            refusal("near"),
            "near: an MTU of 1771 is too large for AF_XDP with chunks of 2048 bytes: the limit is 1770; use \
             `ip link set dev near mtu 1770`, or the backend af_packet"
        );
        for end in ["near", "far"] {
            ip(&format!("link set {end} mtu 1770")).expect("sets");
        }
        let sizes = [1500, 1770, 1771, 9000].map(XdpAttr::chunk_for);
        assert_eq!(sizes, [2048, 2048, 4096, 4096]);
        let (interface, mut near) = open(&ATTR);
        interface.open_gate();
        let longest = frame(1, &[0x81, 0, 0, 5, 0x81, 0, 0, 6, 0x88, 0xb5], 1770 + 22);
        let far = Far::new();
        far.send(&longest[..1770 + 14]);
        assert_eq!(near[0].wait_for(1), [&longest[..1770 + 14]]);
    });
}

#[test]
fn a_deleted_interface_is_orphaned() {
    in_lab(ONE, || {
        let (interface, mut near) = open(&ATTR);
        interface.open_gate();
        assert!(!interface.is_orphaned());
        ip("link del near").expect("deletes");
        assert!(interface.is_orphaned());
        assert!(near[0].read().is_empty());
        interface.close_gate();
    });
}

/// Removes all capabilities (linux/capability.h) except `kept` from this thread.
fn keep_capabilities(kept: u64) {
    /// `_LINUX_CAPABILITY_VERSION_3`, for this thread.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    let (low, high) = (kept as u32, (kept >> 32) as u32);
    // Effective, permitted and inheritable, low and high halves.
    let sets = [low, low, 0, high, high, 0];
    // SAFETY: changes this thread only; both structures have the layout of the version.
    let set = unsafe { libc::syscall(libc::SYS_capset, HEADER.as_ptr(), sets.as_ptr()) };
    assert_eq!(set, 0);
}

/// Sets the limit of locked memory of this process. The limit does not apply to a process with
/// CAP_IPC_LOCK.
fn limit_locked_memory(limit: &libc::rlimit) {
    // SAFETY: the call reads a struct rlimit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, limit) }, 0);
}

#[test]
fn missing_rights_are_named() {
    const RIGHTS: u64 = 1 << 12 | 1 << 13 | 1 << 39;
    const RAW: u64 = 1 << 13;
    in_lab(ONE, || {
        let refusal = |attr| {
            XdpInterface::open("near", attr)
                .expect_err("is refused")
                .to_string()
        };
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the call writes a struct rlimit.
        unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
        limit_locked_memory(&libc::rlimit {
            rlim_cur: 1 << 20,
            ..limit
        });
        keep_capabilities(RIGHTS);
        drop(open(&XdpAttr {
            chunks: 256,
            ..ATTR
        }));
        let refused = refusal(&XdpAttr {
            chunks: 1024,
            ..ATTR
        });
        assert!(
            refused
                .starts_with("near queue 0: cannot register the receive memory: No buffer space")
                && refused.contains("RLIMIT_MEMLOCK")
                && refused.contains("CAP_IPC_LOCK"),
            "{refused}"
        );
        limit_locked_memory(&limit);
        for (kept, step) in [
            (RAW, "near: cannot create the BPF map"),
            (0, "cannot create a socket of kind AF_PACKET"),
        ] {
            keep_capabilities(kept);
            let refused = refusal(&ATTR);
            assert!(
                refused.starts_with(step) && refused.ends_with(super::error::RIGHTS),
                "{refused}"
            );
        }
    });
}
