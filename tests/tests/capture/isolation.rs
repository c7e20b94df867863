//! Cost of a flood of management traffic to a capture's loop: no more than the measurement's noise.
//!
//! One capture runs on the software NIC. The wire is faster than the capture's loop, so every poll
//! returns a full batch. As many clients as the Unix socket accepts send requests, each above the
//! service's rate limit. The cost of a frame is the CPU time of the loop's thread divided by the
//! frames that it received. It includes neither the wire's pace nor waiting for a CPU.
//!
//! Any load on a CPU next to the loop's slows the loop through the caches and the memory that they
//! share. So the flood alternates between two targets: the capture's service, and the service of a
//! neighbour, which is a second process. Each pair of windows, one per target, gives a ratio. The
//! test prints the median ratio and the spread. In the long form, only the loop's thread has
//! real-time priority, so that the machine's other work does not run on the loop's CPU.
//!
//! | test | |
//! |---|---|
//! | `the_cost_of_a_flood_is_measured` | the short form: windows last until both frames and answers have arrived |
//! | `a_flood_loses_no_frame` | control and metrics are flooded; the loop and the NIC have a CPU each |
//! | `a_flood_does_not_slow_the_loop` | in scripts/soak: 40 pairs, within 2 % |

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

/// Number of clients of the flood: the service's limit, less a few connections for other clients.
const CLIENTS: usize = 120;
/// Number of threads that run the flood's clients.
const THREADS: usize = 4;
/// Minimum of bytes of answers to the flood within a window.
const FLOOD_BYTES: u64 = 1 << 20;
/// Pause before each window, in which the effects of the previous window end.
const SETTLE: Duration = Duration::from_millis(150);

/// Number of targets of the flood: none, the neighbour, and the capture that is measured.
const TARGETS: usize = 3;
const NO_TARGET: usize = 0;
const NEIGHBOUR: usize = 1;
const CAPTURE: usize = 2;

/// Shared state of the threads that flood a control service.
#[derive(Default)]
struct Flood {
    /// Current target: `NO_TARGET`, `NEIGHBOUR` or `CAPTURE`.
    target: AtomicUsize,
    end: AtomicBool,
    /// Bytes of answers received.
    answer_bytes: AtomicU64,
}

impl Flood {
    /// Sends requests to the current target over several connections, without waiting for answers,
    /// and discards the answers of both services.
    fn run(&self, sockets: [&Path; 2], clients: usize) {
        let mut crowds = sockets.map(|socket| Crowd::new(socket, clients));
        for round in 0.. {
            if self.end.load(Ordering::Acquire) {
                return;
            }
            let target = self.target.load(Ordering::Acquire);
            for (crowd, service) in crowds.iter_mut().zip([NEIGHBOUR, CAPTURE]) {
                let received = crowd.exchange((target == service).then_some(round));
                self.answer_bytes.fetch_add(received, Ordering::Relaxed);
            }
            thread::sleep(Duration::from_millis(if target == NO_TARGET {
                20
            } else {
                1
            }));
        }
    }
}

/// Non-blocking connections to one control service.
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

    /// Sends a request on every connection if `round` is given, and reads all available answers.
    /// Returns the number of bytes read. Opens connections that were closed.
    fn exchange(&mut self, round: Option<usize>) -> u64 {
        let words = ["status", "stats", "plan"];
        let line = round.map(|round| {
            let command = json!({"do": words[round % words.len()]});
            json!({"version": 1, "id": 1, "command": command}).to_string() + "\n"
        });
        let mut received = 0;
        for slot in &mut self.streams {
            let Some(stream) = slot else {
                *slot = connect(self.socket);
                continue;
            };
            let mut is_open = true;
            if let Some(line) = &line {
                // A full socket buffer cuts the line, and the service then reads a malformed
                // request. A flood may contain such requests.
                is_open = match stream.write(line.as_bytes()) {
                    Ok(_) => true,
                    Err(e) => e.kind() == ErrorKind::WouldBlock,
                };
            }
            loop {
                match stream.read(&mut self.sink) {
                    Ok(0) => is_open = false,
                    Ok(n) => {
                        received += n as u64;
                        continue;
                    }
                    Err(_) => {}
                }
                break;
            }
            if !is_open {
                *slot = None;
            }
        }
        received
    }
}

fn connect(socket: &Path) -> Option<UnixStream> {
    let stream = UnixStream::connect(socket).ok()?;
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

/// Receive loop of the capture that is measured, with a connection to the capture's service.
struct Loop {
    reader: BufReader<UnixStream>,
    /// Directory of the loop's thread in proc(5).
    task: PathBuf,
}

impl Loop {
    /// Returns the directory of the loop's thread in proc(5), once the thread exists.
    fn find_task(pid: &Value) -> Option<PathBuf> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the capture's process runs");
        let mut tasks = tasks.filter_map(|task| Some(task.ok()?.path()));
        tasks.find(|task| {
            fs::read_to_string(task.join("comm")).is_ok_and(|it| it.trim() == "wqcap-q00")
        })
    }

    fn find(capture: &mut Captured<'_>, pid: &Value) -> Self {
        let mut task = None;
        capture.run.until("the loop's thread starts", |_| {
            task = Self::find_task(pid);
            task.is_some()
        });
        let socket = &capture.socket;
        let stream = UnixStream::connect(socket).expect("the service accepts connections");
        let timed = stream.set_read_timeout(Some(HANG));
        timed.expect("the read timeout is set");
        Self {
            reader: BufReader::new(stream),
            task: task.expect("the loop's thread was found"),
        }
    }

    /// Gives the loop's thread real-time priority, so that hardly anything else runs on its CPU and
    /// uses its caches.
    fn set_real_time_priority(&self) {
        let thread = self
            .task
            .file_name()
            .expect("the directory's name is a thread ID");
        let chrt = Program::new("chrt").args(["-r", "-p", "1"]).arg(thread);
        let _ = chrt.run().expect(0);
    }

    /// Returns the CPU time of the loop's thread, in nanoseconds.
    fn cpu_time(&self) -> u64 {
        let text = fs::read_to_string(self.task.join("schedstat")).expect("schedstat is readable");
        let first = text
            .split_whitespace()
            .next()
            .expect("schedstat has three numbers");
        first.parse().expect("CPU time is a number")
    }

    /// Returns the current CPU time of the loop's thread in nanoseconds, and its received frames.
    fn sample(&mut self) -> (f64, f64) {
        let before = self.cpu_time();
        let stats = self.request("stats");
        let after = self.cpu_time();
        let received = stats["ok"]["stats"]["ledger"]["total"]["received"].as_f64();
        let received = received.expect("the number of frames is a number");
        ((before + after) as f64 / 2.0, received)
    }

    fn request(&mut self, word: &str) -> Value {
        let request = json!({"version": 1, "id": 1, "command": {"do": word}});
        let line = format!("{request}\n");
        self.reader
            .get_mut()
            .write_all(line.as_bytes())
            .expect("the service reads the request");
        let mut answer = String::new();
        let read = self.reader.read_line(&mut answer);
        read.expect("the service answers");
        serde_json::from_str(&answer).expect("the answer is JSON")
    }

    /// Measures a window and returns the CPU time per frame, in nanoseconds. The window lasts at
    /// least `length`, and until frames were received and `has_answers` returns `true`.
    fn window(&mut self, length: Duration, has_answers: impl Fn() -> bool) -> f64 {
        thread::sleep(SETTLE);
        let (cpu, frames) = self.sample();
        thread::sleep(length);
        let deadline = Instant::now() + HANG;
        loop {
            let (cpu_then, frames_then) = self.sample();
            if frames_then > frames && cpu_then > cpu && has_answers() {
                return (cpu_then - cpu) / (frames_then - frames);
            }
            assert!(
                Instant::now() < deadline,
                "no new frames ({frames} before, {frames_then} now), or too few answers to the flood"
            );
            thread::sleep(TICK);
        }
    }
}

/// Result of all pairs of windows.
struct Measured {
    /// Cost of a frame with the capture flooded, divided by its cost with the neighbour flooded;
    /// one ratio per pair, sorted.
    ratios: Vec<f64>,
    /// Number of requests to the capture's service.
    requests: u64,
    /// Bytes of answers of both services.
    answer_bytes: u64,
}

impl Measured {
    fn median_ratio(&self) -> f64 {
        self.ratios[self.ratios.len() / 2]
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Removes `cpu` from the calling thread's affinity mask.
fn keep_off(cpu: usize) {
    let mut allowed = sched_getaffinity(None).expect("the affinity is readable");
    allowed.unset(cpu);
    sched_setaffinity(None, &allowed).expect("the affinity is set");
}

/// Running capture that counts frames without writing them, with its control socket.
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
        run.until("the capture runs", |run| run.stderr().contains("capturing"));
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
    let status: Value = serde_json::from_str(&status).expect("the status is JSON");
    let mut the_loop = Loop::find(&mut capture, &status["capture"]["pid"]);
    if alone {
        the_loop.set_real_time_priority();
    }
    let flood = Flood::default();
    let mut costs: [Vec<f64>; TARGETS] = Default::default();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                keep_off(cpu);
                flood.run([&neighbour.socket, &capture.socket], CLIENTS / THREADS);
            });
        }
        // The first window fills the caches, and its result is discarded.
        the_loop.window(length, || true);
        for pair in 0..pairs {
            let (first, second) = match pair % 2 {
                0 => (NEIGHBOUR, CAPTURE),
                _ => (CAPTURE, NEIGHBOUR),
            };
            for target in [NO_TARGET, first, second] {
                let before = flood.answer_bytes.load(Ordering::Relaxed);
                flood.target.store(target, Ordering::Release);
                costs[target].push(the_loop.window(length, || {
                    let received = flood.answer_bytes.load(Ordering::Relaxed) - before;
                    target == NO_TARGET || received > FLOOD_BYTES
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
    let status = the_loop.request("status");
    let requests = &status["ok"]["status"]["control"]["unix"]["requests"];
    let measured = Measured {
        ratios,
        requests: requests
            .as_u64()
            .expect("the number of requests is a number"),
        answer_bytes: flood.answer_bytes.load(Ordering::Relaxed),
    };
    let finished = capture.shutdown();
    if alone {
        let no_buffer = finished.summary.nic("out_of_buffer");
        assert!(no_buffer > 0, "the wire is faster than the loop");
    }
    let _ = neighbour.shutdown();
    let [quiet, neighbour_flooded, _] = costs.map(median);
    skip::say(&format!(
        "figure: {pairs} pairs of windows of {length:?}, {CLIENTS} clients, {} requests to the capture: a frame costs \
         {quiet:.1} ns without a flood, {neighbour_flooded:.1} ns with the neighbour flooded, and {:.4} times that with \
         the capture flooded; the middle half of the pairs range from {:.4} to {:.4}, all pairs from {:.4} to {:.4}",
        measured.requests,
        measured.median_ratio(),
        measured.ratios[pairs / 4],
        measured.ratios[pairs * 3 / 4],
        measured.ratios[0],
        measured.ratios[pairs - 1],
    ));
    measured
}

/// Returns the CPUs that this process may use.
fn cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).expect("the affinity is readable");
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect()
}

/// Returns a CPU for the loop, or `None` if no other CPU is left for the flood.
fn cpu_for_loop() -> Option<usize> {
    let cpus = cpus();
    (cpus.len() > 1).then(|| cpus[cpus.len() - 1])
}

/// The loop and the software NIC have a CPU each; the service, the metrics endpoint and the flood
/// share the others. The ring holds 0.8 s of frames: the machine's other work does not fill it, but
/// a loop that waits for a service would.
#[test]
fn a_flood_loses_no_frame() {
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
    let mut without_nic: Vec<_> = others.iter().map(ToString::to_string).collect();
    without_nic.push(of_loop.to_string());
    let command = Wqcap::run(&dir, "flooded")
        .model("synth:size=64,flows=64,proto=mix,pps=20000")
        .wrapped(&["taskset", "-c", &without_nic.join(",")])
        .queues(1)
        .set(&format!("model.cpu={nic}"))
        .set(&format!("capture.cores=[{of_loop}]"))
        .set(&format!("capture.ring={RING}"))
        .set("capture.idle=sleep")
        .set("output.format=none")
        .set("metrics.listen=127.0.0.1:0")
        .set(&format!("control.unix={}", socket.display()));
    let mut run = command.start();
    run.until("the capture runs", |run| {
        run.stderr().contains("/metrics") && run.stderr().contains("capturing")
    });
    let log = run.stderr();
    let address = log
        .split("http://")
        .nth(1)
        .expect("the log has the endpoint's URL");
    let address = address
        .split("/metrics")
        .next()
        .expect("the URL has an address");
    let (answer_bytes, frames, scraped, end) = (
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
                    answer_bytes.fetch_add(crowd.exchange(Some(round)), Ordering::Relaxed);
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
        while answer_bytes.load(Ordering::Relaxed) < 16 * FLOOD_BYTES
            || scraped.load(Ordering::Relaxed) < SCRAPES
            || frames.load(Ordering::Relaxed) < 4 * RING
        {
            assert!(
                Instant::now() < deadline,
                "only {answer_bytes:?} bytes of answers, {scraped:?} scrapes and {frames:?} frames"
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
        "figure: {answer_bytes:?} bytes of answers and {scraped:?} scrapes during {} frames",
        total.received
    ));
    assert_eq!(total.captured, total.received, "{total:?}");
    assert_eq!(finished.summary.nic("out_of_buffer"), 0);
}

/// Returns the value of `wqcap_frames_received_total` in a scrape.
fn received(scrape: &str) -> Option<u64> {
    let mut lines = scrape.lines();
    let line = lines.find(|line| line.starts_with("wqcap_frames_received_total"))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Scrapes the metrics endpoint. Returns `None` if the endpoint has no free connection.
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
fn the_cost_of_a_flood_is_measured() {
    let Some(cpu) = cpu_for_loop() else {
        skip!("the loop and the flood need a CPU each");
    };
    let measured = measure(2, Duration::from_millis(300), cpu, false);
    // Each of the four windows with a target waited for more than FLOOD_BYTES of answers.
    assert!(measured.requests > 100, "{} requests", measured.requests);
    let bytes = measured.answer_bytes;
    assert!(bytes > 4 * FLOOD_BYTES, "{bytes} bytes of answers");
    assert!(measured.ratios.iter().all(|it| it.is_finite() && *it > 0.0));
}

#[test]
#[ignore = "needs a CPU to itself; scripts/soak runs it"]
fn a_flood_does_not_slow_the_loop() {
    if !process::is_root() {
        skip!("real-time priority needs root");
    }
    let Some(cpu) = cpu_for_loop() else {
        skip!("the loop and the flood need a CPU each");
    };
    let measured = measure(40, Duration::from_millis(400), cpu, true);
    assert!(measured.median_ratio() < 1.02, "{:?}", measured.ratios);
}
