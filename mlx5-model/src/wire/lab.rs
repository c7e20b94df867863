//! Test kit: two network namespaces joined by a veth pair, and a capture at one of its ends.
//!
//! Invariant: no step ends because of a timeout. Sent frames can wait in a queue of the CPU that
//! sent them. So all of them have arrived once a mark has arrived that was sent after them on each
//! CPU.

#![allow(unsafe_code)]

use super::packet_socket::Socket;
use super::{Delivery, Wire, WireDirection, WireError, WireSpec};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::size_of;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use wqcap_testkit::machine::netns::until_it_sends;

/// Timeout after which a test that hangs fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Interval between two polls of a condition of a test that no descriptor signals.
const MOMENT: Duration = Duration::from_micros(200);

/// Runs `command`, a program and its arguments separated by spaces, and waits for it.
pub(super) fn run(command: &str) -> io::Result<()> {
    let mut words = command.split_whitespace();
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|e| {
        let needs = format!("the test needs the command `{program}`: {e}");
        io::Error::new(e.kind(), needs)
    })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command}: {}", stderr.trim())))
}

/// Network namespace of a test, deleted when the value is dropped.
pub(super) struct Namespace(String);

impl Namespace {
    fn new() -> io::Result<Namespace> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // The first `ip netns add` on a machine mounts a folder for all namespaces. Two at the same
        // time cannot do that.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("wqw{}x{number}", std::process::id());
        run(&format!("ip netns add {name}"))
            .map_err(|e| io::Error::other(format!("the test needs network namespaces: {e}")))?;
        Ok(Namespace(name))
    }

    /// Runs `work` in the network namespace, on a separate thread that ends with it.
    pub(super) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let work = scope.spawn(|| {
                let file = File::open(format!("/run/netns/{self}")).unwrap();
                // SAFETY: changes this thread's namespace only, and accesses no memory.
                let entered = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(entered, 0);
                work()
            });
            work.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = run(&format!("ip netns del {self}"));
    }
}

/// Two network namespaces joined by a veth pair: interface `wire` in `near`, interface `far` in
/// `far`.
pub(super) struct Lab {
    pub(super) near: Namespace,
    pub(super) far: Namespace,
    /// Packet socket at the far end of the veth pair that sends mark frames.
    marker: Socket,
    /// Number of mark frames sent so far.
    marks: AtomicU64,
}

impl Lab {
    /// Creates the two network namespaces and the veth pair. An error is a reason to skip the test.
    pub(super) fn new() -> io::Result<Lab> {
        // SAFETY: takes nothing and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            return Err(io::Error::other(
                "the test needs root, to make network namespaces",
            ));
        }
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        run(&format!(
            "ip -n {near} link add wire address 02:00:00:09:00:01 type veth \
             peer name far address 02:00:00:09:00:02 netns {far}"
        ))?;
        for (netns, name, end) in [(&near, "wire", 1), (&far, "far", 2)] {
            run(&format!(
                "ip -n {netns} addr add 10.9.0.{end}/24 dev {name}"
            ))?;
            run(&format!(
                "ip -n {netns} addr add fd09::{end}/64 dev {name} nodad"
            ))?;
            run(&format!("ip -n {netns} link set {name} up"))?;
            // Static neighbours: on a busy machine the kernel drops frames that wait too long for
            // the answer of neighbour resolution.
            for subnet in ["10.9.0.", "fd09::"] {
                let other = 3 - end;
                run(&format!(
                    "ip -n {netns} neigh replace {subnet}{other} lladdr 02:00:00:09:00:0{other} dev {name}"
                ))?;
            }
        }
        until_it_sends(&near.0, "wire").map_err(io::Error::other)?;
        Ok(Lab {
            marker: far_socket(&far),
            near,
            far,
            marks: AtomicU64::new(0),
        })
    }

    /// Opens a wire in the near network namespace.
    pub(super) fn open(&self, wire: &str) -> Result<Wire, WireError> {
        let spec: WireSpec = wire.parse().unwrap();
        self.near.within(|| Wire::open(&spec))
    }

    pub(super) fn add_vlan(&self, tag: u16) -> io::Result<()> {
        for (netns, name, end) in [(&self.near, "wire", 1), (&self.far, "far", 2)] {
            run(&format!(
                "ip -n {netns} link add link {name} name tagged type vlan id {tag}"
            ))?;
            run(&format!(
                "ip -n {netns} addr add 10.8.0.{end}/24 dev tagged"
            ))?;
            run(&format!("ip -n {netns} link set tagged up"))?;
        }
        Ok(())
    }

    /// Disables IPv6 at both ends of the veth pair, so that only frames of the test are on the
    /// cable.
    pub(super) fn silence(&self) {
        for netns in [&self.near, &self.far] {
            let key = "/proc/sys/net/ipv6/conf/all/disable_ipv6";
            netns.within(|| std::fs::write(key, "1")).unwrap();
        }
    }

    /// Opens a packet socket at the far end of the veth pair.
    pub(super) fn far_socket(&self) -> Socket {
        far_socket(&self.far)
    }

    /// Returns the number of mark frames sent so far.
    pub(super) fn marks(&self) -> u64 {
        self.marks.load(Ordering::Relaxed)
    }

    /// Sends a mark frame on every CPU that this process may run on, and returns the numbers of the
    /// marks. Frames wait for their receiver in a queue of the CPU on which they were sent.
    fn mark(&self) -> HashSet<u64> {
        let send = |cpu: usize| {
            pin(cpu).then(|| {
                let number = self.marks.fetch_add(1, Ordering::Relaxed);
                self.marker.send(&mark(number)).unwrap();
                number
            })
        };
        thread::scope(|scope| {
            let work = scope.spawn(|| (0..libc::CPU_SETSIZE as usize).filter_map(send).collect());
            work.join().unwrap()
        })
    }
}

fn far_socket(far: &Namespace) -> Socket {
    far.within(|| {
        let socket = Socket::new().unwrap();
        socket.prepare().unwrap();
        socket.bind(socket.index_of("far").unwrap()).unwrap();
        socket
    })
}

/// Builds the mark frame `number`: a frame with an EtherType for experiments (IEEE 802).
fn mark(number: u64) -> Vec<u8> {
    let head = [
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 8, 0x88, 0xb6,
    ];
    [&head[..], &number.to_be_bytes(), &[0; 38]].concat()
}

/// Returns the number of a mark frame, or `None` if the frame is not a mark.
fn mark_of(frame: &[u8]) -> Option<u64> {
    let number = u64::from_be_bytes(*frame.get(14..22)?.first_chunk()?);
    (frame == mark(number)).then_some(number)
}

/// Pins the calling thread to one CPU. Returns `false` if the thread may not run there.
fn pin(cpu: usize) -> bool {
    // SAFETY: a CPU set is plain bits, for which zero is a value; CPU_SET checks its bounds; the
    // kernel copies the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) == 0
    }
}

/// Reduces the capabilities of the calling thread to the bits of `kept` (linux/capability.h).
pub(super) fn keep_capabilities(kept: u32) {
    let header: [u32; 2] = [0x2008_0522, 0];
    let sets = [kept, kept, 0, 0, 0, 0];
    // SAFETY: changes the capabilities of this thread only; both structures have the layout of the
    // version in the header.
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    assert_eq!(set, 0);
}

/// Numbers of the mark frames that the test's capture has seen, shared with the sending threads.
pub(super) struct SeenMarks<'a> {
    lab: &'a Lab,
    seen: Mutex<HashSet<u64>>,
    /// Condition variable that is signalled when the capture has seen another mark frame.
    grown: Condvar,
}

impl SeenMarks<'_> {
    fn seen(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the test has captured all frames sent so far.
    pub(super) fn flush(&self) {
        let marks = self.lab.mark();
        let missing = |seen: &mut HashSet<u64>| !marks.is_subset(seen);
        let waited = self
            .grown
            .wait_timeout_while(self.seen(), PATIENCE, missing);
        let late = waited.is_ok_and(|(_, late)| late.timed_out());
        assert!(!late, "a mark has not arrived within {PATIENCE:?}");
    }
}

/// Takes frames from a wire until `done`. Every fifth frame is made to wait and must be unchanged
/// when it is delivered again.
fn capture(
    wire: &mut Wire,
    flow: &SeenMarks<'_>,
    done: &AtomicBool,
) -> Vec<(WireDirection, Vec<u8>)> {
    let (began, mut frames, mut calls) = (Instant::now(), vec![], 0);
    let mut waiting: Option<Vec<u8>> = None;
    while !done.load(Ordering::Acquire) {
        let taken = wire.each(began.elapsed().as_nanos() as u64, 64, |frame| {
            calls += 1;
            if let Some(waiting) = waiting.take() {
                assert!(waiting == frame.bytes, "a waiting frame has changed");
            } else if calls % 5 == 0 {
                waiting = Some(frame.bytes.to_vec());
                return Delivery::Wait;
            }
            match mark_of(frame.bytes) {
                Some(number) => {
                    flow.seen().insert(number);
                    flow.grown.notify_all();
                }
                None => frames.push((frame.direction, frame.bytes.to_vec())),
            }
            Delivery::Taken
        });
        if taken == 0 && waiting.is_none() {
            thread::sleep(MOMENT);
        }
    }
    frames
}

/// Runs a test's `work`, and returns the frames that arrive at `wire` while it runs.
pub(super) fn during(
    lab: &Lab,
    wire: &mut Wire,
    work: impl FnOnce(&SeenMarks<'_>) + Send,
) -> Vec<(WireDirection, Vec<u8>)> {
    let done = AtomicBool::new(false);
    let flow = SeenMarks {
        lab,
        seen: Mutex::default(),
        grown: Condvar::new(),
    };
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
            work(&flow);
            flow.flush();
        });
        let frames = capture(wire, &flow, &done);
        work.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        frames
    })
}

/// Number of bytes sent between two waits for the capture, so that a ring that is read late has
/// room for them. Blocks of a ring are also used up by time, however few frames arrive.
const PIECE: usize = 512 << 10;

/// Sends `data` both ways over one TCP connection between the two namespaces.
pub(super) fn exchange(flow: &SeenMarks<'_>, near: &str, data: &[u8]) {
    let lab = flow.lab;
    let address: SocketAddr = near.parse().unwrap();
    let listener = lab.near.within(|| TcpListener::bind(address).unwrap());
    let both = |stream: TcpStream| {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                for piece in data.chunks(PIECE) {
                    (&stream).write_all(piece).unwrap();
                    flow.flush();
                }
            });
            let mut got = vec![0; data.len()];
            (&stream).read_exact(&mut got).unwrap();
            assert!(got == data);
        });
    };
    thread::scope(|scope| {
        scope.spawn(|| both(listener.accept().unwrap().0));
        let address = listener.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&address, PATIENCE).unwrap();
        both(lab.far.within(connect));
    });
}

/// Checks the arrival times of two frames. The second frame is sent while the first waits at the
/// wire, and both are taken afterwards.
pub(super) fn assert_arrival_times(lab: &Lab, wire: &mut Wire) {
    let far = lab.far_socket();
    during(lab, wire, |_| {});
    let frame = |number| {
        [
            &[0xff; 6][..],
            &[2, 0, 0, 0, 0, 9, 0x88, 0xb5],
            &[number; 46],
        ]
        .concat()
    };
    let first = now_ns();
    far.send(&frame(1)).unwrap();
    assert!(is_readable(wire.wait_fd().unwrap(), PATIENCE));
    let second = now_ns();
    far.send(&frame(2)).unwrap();
    let mut came = Vec::new();
    let mut slack = 0u64;
    while came.len() < 2 {
        let now = now_ns();
        wire.each(now, 64, |it| {
            if it.bytes[12..14] == [0x88, 0xb5] {
                came.push((it.bytes[14], it.came_ns));
            }
            Delivery::Taken
        });
        // The longest time between the reading of the NIC's clock and the wire's reading of the
        // host's clocks, and the drift between the clocks.
        slack = slack.max(now_ns() - now + (now - first) / 1000);
        assert!(Duration::from_nanos(now - first) < PATIENCE, "{came:?}");
    }
    let times = format!(
        "the arrivals are {came:?}, the frames were sent at {first} and {second}, and the tolerance is {slack} ns"
    );
    assert_eq!((came[0].0, came[1].0), (1, 2), "{times}");
    assert!(
        (first - slack..=second + slack).contains(&came[0].1),
        "{times}"
    );
    assert!((second - slack..=now_ns()).contains(&came[1].1), "{times}");
}

/// Returns `true` if a descriptor becomes readable within `time`.
pub(super) fn is_readable(fd: RawFd, time: Duration) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the kernel reads and writes one struct pollfd.
    unsafe { libc::poll(&raw mut entry, 1, time.as_millis() as i32) == 1 }
}

/// Returns the time of the host's raw monotonic clock, at whose rate a NIC's clock runs.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicRaw);
    (now.tv_sec * 1_000_000_000 + now.tv_nsec).cast_unsigned()
}
