//! What a flood of management traffic costs a capture's loop: nothing that could be told from noise.
//!
//! One capture on the software NIC, whose wire is faster than its loop, so that this finds a full batch always; clients
//! on the Unix socket as many as may be, each asking as often as it may and more. What a frame costs is the CPU time of
//! the loop's own thread over the frames that it received: neither the wire's pace nor waiting for a CPU is in it.
//!
//! Whatever is busy on the CPU beside a loop slows it by the caches and the memory that they share. So the same flood
//! goes to a neighbour in turn, a second process with a service of its own: windows in which it floods the neighbour's
//! service, and windows in which it floods the capture's. Each pair of windows gives a ratio; the middle one and the
//! spread are told. In the long form the loop's thread alone has real-time priority, so that other work on the machine
//! does not come and go on its CPU.
//!
//! | test | |
//! |---|---|
//! | `a_flood_is_measured` | the short form: that there is a flood and figures of it, in windows as long as that takes |
//! | `a_flood_costs_no_frame` | control and metrics flooded beside a loop and a NIC with CPUs of their own: nothing is lost |
//! | `a_flood_costs_the_loop_nothing` | in scripts/soak: 40 pairs, within 2 % |

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};
use wqcap_tests::{
    Dir, Done, Finished, Program, Running, Wqcap,
    process::{self, HANG, TICK},
    skip,
    wqcap::wqcap,
};

/// Clients of the flood: what the service takes, but for who else looks on.
const CLIENTS: usize = 120;
/// Threads that they share.
const THREADS: usize = 4;
/// What is heard of a flood in a window, at least.
const FLOOD_BYTES: u64 = 1 << 20;
/// Before each window: what the one before has left is over by then.
const SETTLE: Duration = Duration::from_millis(150);

/// Whom the flood goes to: nobody, the neighbour, or the capture that is measured.
const SIDES: usize = 3;
const NOBODY: usize = 0;
const NEIGHBOUR: usize = 1;
const CAPTURE: usize = 2;

/// The flood.
#[derive(Default)]
struct Flood {
    /// One of the sides.
    to: AtomicUsize,
    end: AtomicBool,
    /// Answers heard, in bytes.
    heard: AtomicU64,
}

impl Flood {
    /// Asks over several connections to each of the two, without waiting for an answer, and throws away what comes.
    fn run(&self, sockets: [&Path; 2], clients: usize) {
        let mut crowds = sockets.map(|socket| Crowd::new(socket, clients));
        for round in 0.. {
            if self.end.load(Ordering::Acquire) {
                return;
            }
            let to = self.to.load(Ordering::Acquire);
            for (crowd, side) in crowds.iter_mut().zip([NEIGHBOUR, CAPTURE]) {
                let heard = crowd.turn((to == side).then_some(round));
                self.heard.fetch_add(heard, Ordering::Relaxed);
            }
            thread::sleep(Duration::from_millis(if to == NOBODY { 20 } else { 1 }));
        }
    }
}

/// Connections to one service.
struct Crowd<'s> {
    socket: &'s Path,
    streams: Vec<Option<UnixStream>>,
    sink: Vec<u8>,
}

impl<'s> Crowd<'s> {
    fn new(socket: &'s Path, clients: usize) -> Self {
        Self {
            socket,
            streams: (0..clients).map(|_| None).collect(),
            sink: vec![0; 64 << 10],
        }
    }

    /// Asks on every connection, if this is a `round` of asking, and hears what there is: so many bytes.
    fn turn(&mut self, round: Option<usize>) -> u64 {
        let words = ["status", "stats", "plan"];
        let line = round.map(|round| {
            let command = json!({"do": words[round % words.len()]});
            json!({"version": 1, "id": 1, "command": command}).to_string() + "\n"
        });
        let mut heard = 0;
        for place in &mut self.streams {
            let Some(stream) = place else {
                *place = connect(self.socket);
                continue;
            };
            let mut is_open = true;
            if let Some(line) = &line {
                // In the middle of a line if there is no room for more: garbage comes of it, which is a flood's.
                is_open = match stream.write(line.as_bytes()) {
                    Ok(_) => true,
                    Err(e) => e.kind() == ErrorKind::WouldBlock,
                };
            }
            loop {
                match stream.read(&mut self.sink) {
                    Ok(0) => is_open = false,
                    Ok(n) => {
                        heard += n as u64;
                        continue;
                    }
                    Err(_) => {}
                }
                break;
            }
            if !is_open {
                *place = None;
            }
        }
        heard
    }
}

fn connect(socket: &Path) -> Option<UnixStream> {
    let stream = UnixStream::connect(socket).ok()?;
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

/// The capture that is measured.
struct Loop {
    reader: BufReader<UnixStream>,
    /// Its thread's folder in proc(5).
    task: PathBuf,
}

impl Loop {
    /// The thread's folder, once there is one.
    fn task(pid: &Value) -> Option<PathBuf> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process is there");
        let mut tasks = tasks.filter_map(|task| Some(task.ok()?.path()));
        tasks.find(|task| {
            fs::read_to_string(task.join("comm")).is_ok_and(|it| it.trim() == "wqcap-q00")
        })
    }

    fn find(capture: &mut Captured<'_>, pid: &Value) -> Self {
        let mut task = None;
        capture.run.until("a loop", |_| {
            task = Self::task(pid);
            task.is_some()
        });
        let socket = &capture.socket;
        let stream = UnixStream::connect(socket).expect("the socket is served");
        stream.set_read_timeout(Some(HANG)).expect("a time-out");
        Self {
            reader: BufReader::new(stream),
            task: task.expect("a loop"),
        }
    }

    /// Lets nothing else run on its CPU, or next to nothing, so that its caches are its own.
    fn take_the_cpu(&self) {
        let thread = self.task.file_name().expect("a number");
        let chrt = Program::new("chrt").args(["-r", "-p", "1"]).arg(thread);
        let _ = chrt.run().expect(0);
    }

    /// Nanoseconds that the loop's thread has been on a CPU.
    fn cpu(&self) -> u64 {
        let text = fs::read_to_string(self.task.join("schedstat")).expect("schedstat");
        let first = text.split_whitespace().next().expect("three numbers");
        first.parse().expect("a number")
    }

    /// CPU time and frames of now.
    fn look(&mut self) -> (f64, f64) {
        let before = self.cpu();
        let stats = self.ask("stats");
        let after = self.cpu();
        let received = stats["ok"]["stats"]["ledger"]["total"]["received"].as_f64();
        ((before + after) as f64 / 2.0, received.expect("a number"))
    }

    fn ask(&mut self, word: &str) -> Value {
        let request = json!({"version": 1, "id": 1, "command": {"do": word}});
        let line = format!("{request}\n");
        self.reader
            .get_mut()
            .write_all(line.as_bytes())
            .expect("the service reads");
        let mut answer = String::new();
        self.reader.read_line(&mut answer).expect("an answer");
        serde_json::from_str(&answer).expect("JSON")
    }

    /// What a frame costs over a window of at least `length`, in nanoseconds; it lasts until frames have come, and until
    /// as much of the flood's answers as `heard` wants.
    fn window(&mut self, length: Duration, heard: impl Fn() -> bool) -> f64 {
        thread::sleep(SETTLE);
        let (cpu, frames) = self.look();
        thread::sleep(length);
        let deadline = Instant::now() + HANG;
        loop {
            let (cpu_then, frames_then) = self.look();
            if frames_then > frames && cpu_then > cpu && heard() {
                return (cpu_then - cpu) / (frames_then - frames);
            }
            assert!(
                Instant::now() < deadline,
                "{frames_then} frames after {frames}, or nothing heard of the flood"
            );
            thread::sleep(TICK);
        }
    }
}

/// What came of the pairs.
struct Measured {
    /// With the flood at the capture over the flood at its neighbour, sorted.
    ratios: Vec<f64>,
    requests: u64,
    heard: u64,
}

impl Measured {
    fn ratio(&self) -> f64 {
        self.ratios[self.ratios.len() / 2]
    }
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Keeps the calling thread off the loop's CPU.
fn keep_off(cpu: usize) {
    let mut allowed = sched_getaffinity(None).expect("an affinity");
    allowed.unset(cpu);
    sched_setaffinity(None, &allowed).expect("CPUs that are allowed");
}

/// A capture under way, counting only, with its socket.
struct Captured<'d> {
    command: Wqcap<'d>,
    run: Running,
    socket: PathBuf,
}

impl<'d> Captured<'d> {
    fn start(dir: &'d Dir, name: &str, wire: &str, cpu: usize) -> Self {
        let socket = dir.join(format!("{name}.sock"));
        let command = Wqcap::run(dir, name)
            .model(wire)
            .queues(1)
            .set(&format!("capture.cores=[{cpu}]"))
            .set("capture.idle=sleep")
            .set("output.format=none")
            .set(&format!("control.unix={}", socket.display()));
        let mut run = command.start();
        run.until("it captures", |run| run.stderr().contains("capturing"));
        Self {
            command,
            run,
            socket,
        }
    }

    fn ctl(&self, args: &[&str]) -> Done {
        let ctl = wqcap(["ctl", "--unix"]).arg(&self.socket).args(args);
        ctl.run().expect(0)
    }

    fn shutdown(self) -> Finished {
        let _ = self.ctl(&["shutdown"]);
        self.command.finished(self.run.wait(), 0)
    }
}

fn measure(pairs: usize, length: Duration, cpu: usize, alone: bool) -> Measured {
    let dir = Dir::new();
    let mut capture = Captured::start(&dir, "capture", "synth:size=64,flows=64,proto=mix", cpu);
    let neighbour = Captured::start(&dir, "neighbour", "synth:size=64,pps=10", cpu);
    let status = capture.ctl(&["status", "--json"]).stdout;
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let mut the_loop = Loop::find(&mut capture, &status["capture"]["pid"]);
    if alone {
        the_loop.take_the_cpu();
    }
    let flood = Flood::default();
    let mut costs: [Vec<f64>; SIDES] = Default::default();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                keep_off(cpu);
                flood.run([&neighbour.socket, &capture.socket], CLIENTS / THREADS);
            });
        }
        // The first window warms everything up.
        the_loop.window(length, || true);
        for pair in 0..pairs {
            let (first, second) = match pair % 2 {
                0 => (NEIGHBOUR, CAPTURE),
                _ => (CAPTURE, NEIGHBOUR),
            };
            for to in [NOBODY, first, second] {
                let before = flood.heard.load(Ordering::Relaxed);
                flood.to.store(to, Ordering::Release);
                costs[to].push(the_loop.window(length, || {
                    let heard = flood.heard.load(Ordering::Relaxed) - before;
                    to == NOBODY || heard > FLOOD_BYTES
                }));
            }
        }
        flood.end.store(true, Ordering::Release);
    });
    let mut ratios: Vec<_> = costs[CAPTURE]
        .iter()
        .zip(&costs[NEIGHBOUR])
        .map(|(with, without)| with / without)
        .collect();
    ratios.sort_by(f64::total_cmp);
    let status = the_loop.ask("status");
    let requests = &status["ok"]["status"]["control"]["unix"]["requests"];
    let measured = Measured {
        ratios,
        requests: requests.as_u64().expect("a number"),
        heard: flood.heard.load(Ordering::Relaxed),
    };
    let finished = capture.shutdown();
    if alone {
        let no_buffer = finished.summary.nic("out_of_buffer");
        assert!(no_buffer > 0, "the wire is to be faster than the loop");
    }
    let _ = neighbour.shutdown();
    let [quiet, beside, _] = costs.map(middle);
    skip::say(&format!(
        "figure: {pairs} pairs of windows of {length:?}, {CLIENTS} clients, {} requests to the capture: a frame costs \
         {quiet:.1} ns without a flood, {beside:.1} ns beside a flooded neighbour, and {:.4} times that with the flood \
         at the capture itself; half of the pairs from {:.4} to {:.4}, all from {:.4} to {:.4}",
        measured.requests,
        measured.ratio(),
        measured.ratios[pairs / 4],
        measured.ratios[pairs * 3 / 4],
        measured.ratios[0],
        measured.ratios[pairs - 1],
    ));
    measured
}

/// The CPUs that this process may use.
fn cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).expect("an affinity");
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect()
}

/// A CPU for the loop; `None`: the flood could not be kept off it.
fn a_cpu() -> Option<usize> {
    let cpus = cpus();
    (cpus.len() > 1).then(|| cpus[cpus.len() - 1])
}

/// The loop and the software NIC have a CPU each; the service, the metrics endpoint and the flood share the others. The ring
/// holds 0.8 s of frames: other work on the machine does not fill it, a loop that waits for a service does.
#[test]
fn a_flood_costs_no_frame() {
    const SCRAPES: usize = 100;
    const RING: u64 = 16_384;
    let cpus = cpus();
    let [others @ .., nic, of_loop] = &cpus[..] else {
        skip!("{} CPU: the loop, the NIC and the flood need 4", cpus.len());
    };
    if others.len() < 2 {
        skip!(
            "{} CPUs: the loop, the NIC and the flood need 4",
            cpus.len()
        );
    }
    let dir = Dir::new();
    let socket = dir.join("flooded.sock");
    let mut beside_nic: Vec<_> = others.iter().map(ToString::to_string).collect();
    beside_nic.push(of_loop.to_string());
    let command = Wqcap::run(&dir, "flooded")
        .model("synth:size=64,flows=64,proto=mix,pps=20000")
        .wrapped(&["taskset", "-c", &beside_nic.join(",")])
        .queues(1)
        .set(&format!("model.cpu={nic}"))
        .set(&format!("capture.cores=[{of_loop}]"))
        .set(&format!("capture.ring={RING}"))
        .set("capture.idle=sleep")
        .set("output.format=none")
        .set("metrics.listen=127.0.0.1:0")
        .set(&format!("control.unix={}", socket.display()));
    let mut run = command.start();
    run.until("it captures", |run| {
        run.stderr().contains("/metrics") && run.stderr().contains("capturing")
    });
    let log = run.stderr();
    let address = log.split("http://").nth(1).expect("an address");
    let address = address.split("/metrics").next().expect("a path");
    let (heard, frames, scraped, end) = (
        AtomicU64::new(0),
        AtomicU64::new(0),
        AtomicUsize::new(0),
        AtomicBool::new(false),
    );
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                keep_off(*of_loop);
                keep_off(*nic);
                let mut crowd = Crowd::new(&socket, CLIENTS / THREADS);
                for round in 0.. {
                    if end.load(Ordering::Acquire) {
                        return;
                    }
                    heard.fetch_add(crowd.turn(Some(round)), Ordering::Relaxed);
                }
            });
            scope.spawn(|| {
                keep_off(*of_loop);
                keep_off(*nic);
                while !end.load(Ordering::Acquire) {
                    if let Some(received) = scrape(address).as_deref().and_then(received) {
                        frames.fetch_max(received, Ordering::Relaxed);
                        scraped.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let deadline = Instant::now() + HANG;
        while heard.load(Ordering::Relaxed) < 16 * FLOOD_BYTES
            || scraped.load(Ordering::Relaxed) < SCRAPES
            || frames.load(Ordering::Relaxed) < 4 * RING
        {
            assert!(
                Instant::now() < deadline,
                "{heard:?} bytes and {scraped:?} scrapes beside {frames:?} frames"
            );
            thread::sleep(TICK);
        }
        end.store(true, Ordering::Release);
    });
    let _ = wqcap(["ctl", "--unix"])
        .arg(&socket)
        .arg("shutdown")
        .run()
        .expect(0);
    let finished = command.finished(run.wait(), 0);
    let total = &finished.summary.ledger.total;
    skip::say(&format!(
        "figure: {heard:?} bytes of answers and {scraped:?} scrapes beside {} frames",
        total.received
    ));
    assert_eq!(total.captured, total.received, "{total:?}");
    assert_eq!(finished.summary.nic("out_of_buffer"), 0);
}

/// Frames received, of all queues, as a scrape shows them.
fn received(scrape: &str) -> Option<u64> {
    let mut lines = scrape.lines();
    let line = lines.find(|line| line.starts_with("wqcap_frames_received_total"))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// What the metrics endpoint answers; `None`: it has no connection to spare.
fn scrape(address: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(HANG)).ok()?;
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n")
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn a_flood_is_measured() {
    let Some(cpu) = a_cpu() else {
        skip!("the loop and the flood need a CPU each");
    };
    let measured = measure(2, Duration::from_millis(300), cpu, false);
    // Of each window's answers so many were waited for.
    assert!(measured.requests > 100, "{} requests", measured.requests);
    assert!(measured.heard > 4 * FLOOD_BYTES, "{} bytes", measured.heard);
    assert!(measured.ratios.iter().all(|it| it.is_finite() && *it > 0.0));
}

#[test]
#[ignore = "wants a CPU to itself; scripts/soak runs it"]
fn a_flood_costs_the_loop_nothing() {
    if !process::is_root() {
        skip!("real-time priority takes root");
    }
    let Some(cpu) = a_cpu() else {
        skip!("the loop and the flood need a CPU each");
    };
    let measured = measure(40, Duration::from_millis(400), cpu, true);
    assert!(measured.ratio() < 1.02, "{:?}", measured.ratios);
}
