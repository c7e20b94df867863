//! Tests of the service manager interface: sd_notify(3) messages on a real socket, and the unit
//! files as systemd checks them.

use rustix::process::Signal;
use std::{fs, os::unix::net::UnixDatagram, path::Path};
use wqcap_tests::{
    Dir, Program, Running, Wqcap, binaries, files, frames,
    machine::{bucket::Bucket, dir::tree, proxy::Fate},
    oracles::s3::{BUCKET, S3},
    process, skip,
    wqcap::wqcap,
};

/// Service manager's end of the notify socket, with all messages received on it.
struct Manager {
    socket: UnixDatagram,
    path: std::path::PathBuf,
    /// Messages received so far, in order.
    received: Vec<String>,
    /// Index of the first message that is not checked yet.
    next: usize,
}

impl Manager {
    fn new(dir: &Dir) -> Self {
        let path = dir.join("notify");
        let socket = UnixDatagram::bind(&path).expect("the notify socket can be opened");
        socket
            .set_nonblocking(true)
            .expect("the notify socket can be opened");
        Self {
            socket,
            path,
            received: Vec::new(),
            next: 0,
        }
    }

    /// Starts a run with `NOTIFY_SOCKET` and a watchdog interval of 10 s.
    fn start(&self, run: &Wqcap<'_>) -> Running {
        self.start_program(run.program())
    }

    /// Starts `program` with `NOTIFY_SOCKET` and a watchdog interval of 10 s.
    fn start_program(&self, program: Program) -> Running {
        program
            .env("NOTIFY_SOCKET", &self.path)
            .env("WATCHDOG_USEC", "10000000")
            .start()
    }

    /// Waits for a message that contains `text`, skips the messages before it, and returns it.
    #[track_caller]
    fn await_message(&mut self, running: &mut Running, text: &str) -> String {
        let first = self.next;
        running.until(text, |_| {
            self.receive();
            let found = self.received[first..]
                .iter()
                .position(|it| it.contains(text));
            self.next = first + found.map_or(0, |it| it + 1);
            found.is_some()
        });
        self.received[self.next - 1].clone()
    }

    /// Receives the messages that are waiting in the socket.
    fn receive(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            let line = String::from_utf8_lossy(&buffer[..length]);
            self.received.push(line.into_owned());
        }
    }
}

#[test]
fn a_capture_notifies_the_service_manager_of_readiness_progress_and_the_end() {
    let dir = Dir::new();
    let mut manager = Manager::new(&dir);
    let run = Wqcap::run(&dir, "notify")
        .model("synth:pps=2000,flows=64")
        .queues(2);
    let mut running = manager.start(&run);
    let ready = manager.await_message(&mut running, "READY=1");
    assert!(ready.contains("STATUS=capturing mlx5_0 port 1"), "{ready}");
    let status = manager.await_message(&mut running, "frames/s");
    assert!(status.starts_with("STATUS="), "{status}");
    manager.await_message(&mut running, "WATCHDOG=1");
    running.signal(Signal::TERM);
    manager.await_message(&mut running, "STOPPING=1");
    let _ = run.finished(running.wait(), 0);
}

#[test]
fn a_stopped_capture_notifies_the_service_manager_of_the_end_of_its_process() {
    let dir = Dir::new();
    let mut manager = Manager::new(&dir);
    let run = Wqcap::run(&dir, "stopped")
        .model("synth:pps=2000,flows=64")
        .control();
    let mut running = manager.start(&run);
    manager.await_message(&mut running, "READY=1");
    assert!(run.ctl().change(&["stop"]));
    manager.await_message(&mut running, "STATUS=stopped; ");
    running.signal(Signal::TERM);
    manager.await_message(&mut running, "STOPPING=1");
    let _ = running.wait().expect(0);
}

#[test]
fn a_lost_device_is_in_the_status_and_the_watchdog_is_fed() {
    let dir = Dir::new();
    let mut manager = Manager::new(&dir);
    let run = Wqcap::run(&dir, "lost")
        .model("synth:size=100,flows=64,count=20000")
        .set("model.fault=device_fatal@frames=5000")
        .set("device.on_loss=retry");
    let mut running = manager.start(&run);
    manager.await_message(&mut running, "READY=1");
    for _ in 0..2 {
        let lost = manager.await_message(&mut running, "STATUS=device mlx5_0 is lost; ");
        assert!(lost.contains("failed attempts to find it: "), "{lost}");
        manager.await_message(&mut running, "WATCHDOG=1");
    }
    assert!(
        !manager
            .received
            .iter()
            .any(|line| line.contains("STOPPING")),
        "the run continues: {:#?}",
        manager.received
    );
    running.signal(Signal::TERM);
    manager.await_message(&mut running, "STOPPING=1");
    let _ = run.finished(running.wait(), 0);
}

#[test]
fn a_run_that_is_refused_sends_no_notification() {
    let dir = Dir::new();
    let mut manager = Manager::new(&dir);
    let run = Wqcap::run(&dir, "refused")
        .model("synth:count=10")
        .set("capture.queues=100000");
    let running = manager.start(&run);
    let _ = running.wait().expect(2);
    // The process has ended, so all of its messages are in the socket.
    manager.receive();
    assert_eq!(manager.received, Vec::<String>::new());
}

#[test]
fn ship_notifies_the_service_manager_even_if_the_store_does_not_answer() {
    let dir = Dir::new();
    let mut manager = Manager::new(&dir);
    let bucket = Bucket::new(S3::s3s());
    bucket
        .proxy
        .decide(|it| match it.target.contains("/status/") {
            true => Fate::Pass,
            false => Fate::Wait,
        });
    let out = dir.folder("out");
    files::write(
        &out.join("wqcap-q00-1700000000000000000.pcap"),
        1_700_000_000,
        &frames::udp_flows(4, 100),
    );
    let sets = [
        format!("output.dir={}", out.display()),
        format!("ship.journal={}", dir.join("journal").display()),
        format!("ship.store=s3://{BUCKET}/service"),
        "ship.sensor=service".to_owned(),
    ];
    let sets = sets.iter().flat_map(|it| ["--set", it]);
    let mut running = manager.start_program(bucket.reached_by(wqcap(["ship"]).args(sets)));
    let ready = manager.await_message(&mut running, "READY=1");
    assert!(ready.contains("STATUS=ships to s3://"), "{ready}");
    running.until("a request without an answer", |_| {
        bucket.proxy.waiting() > 0
    });
    for _ in 0..2 {
        let status = manager.await_message(&mut running, "STATUS=");
        assert!(status.contains("lag "), "{status}");
        manager.await_message(&mut running, "WATCHDOG=1");
    }
    // The store does not answer, so the lag grows. A busy machine may skip a second.
    let lag = |status: &str| {
        let seconds = status
            .split("lag ")
            .nth(1)
            .and_then(|it| it.split(' ').next());
        seconds.and_then(|it| it.parse::<u64>().ok())
    };
    while lag(&manager.await_message(&mut running, "lag ")) < Some(2) {}
    bucket.proxy.decide(|_| Fate::Pass);
    bucket.proxy.let_go();
    running.until("the file is shipped", |_| {
        let objects = tree(&bucket.s3.folder());
        objects.keys().any(|it| it.starts_with("service/blocks/"))
    });
    running.signal(Signal::TERM);
    manager.await_message(&mut running, "STOPPING=1");
    let _ = running.wait().expect(0);
}

/// Shell script that runs a command with the output folder on a separate file system. The script
/// freezes the file system when the file `freeze` appears, and thaws it when `thaw` appears.
const FREEZING_DISK: &str = r#"
    image=$1 out=$2 orders=$3
    shift 3
    truncate -s 256M "$image" && mkfs.ext4 -q "$image" && mount -o loop "$image" "$out" || exit 99
    trap 'umount "$out"' EXIT
    "$@" &
    pid=$!
    trap 'kill -TERM $pid' TERM
    while [ ! -e "$orders/freeze" ]; do kill -0 $pid || exit 97; sleep 0.05; done
    # A guard in another session thaws the file system even if the whole process group is killed.
    setsid sh -c 'for _ in $(seq 3000); do kill -0 "$1" || break; sleep 0.1; done; fsfreeze -u "$2"' sh $$ "$out" >/dev/null 2>&1 &
    guard=$!
    trap 'kill $guard; fsfreeze -u "$out" 2>/dev/null; umount "$out"' EXIT
    fsfreeze -f "$out" || exit 98
    while [ ! -e "$orders/thaw" ]; do sleep 0.05; done
    fsfreeze -u "$out"
    wait $pid
    status=$?
    while kill -0 $pid 2>/dev/null; do wait $pid; status=$?; done
    exit $status
"#;

#[test]
fn a_stuck_queue_is_reported_and_the_watchdog_is_not_fed_until_it_continues() {
    if let Some(reason) = cannot_freeze() {
        skip!("{reason}");
    }
    let dir = Dir::new();
    let orders = dir.folder("orders");
    let mut manager = Manager::new(&dir);
    // With `hold`, the loop waits for the disk, so a frozen disk makes the loop stuck. There is one
    // queue because with several any queue could be the first to get stuck.
    let run = Wqcap::run(&dir, "stuck")
        .model("synth:pps=20000,size=1500,flows=64")
        .queues(1)
        .set("output.on_full=hold")
        .set("output.buffer=1MiB");
    let out = run
        .out_path()
        .to_str()
        .expect("the path is UTF-8")
        .to_owned();
    let image = dir
        .join("image")
        .to_str()
        .expect("the path is UTF-8")
        .to_owned();
    let place = orders.to_str().expect("the path is UTF-8").to_owned();
    let run = run.wrapped(&[
        "unshare",
        "-m",
        "sh",
        "-c",
        FREEZING_DISK,
        "sh",
        &image,
        &out,
        &place,
    ]);
    let mut running = manager.start(&run);
    manager.await_message(&mut running, "WATCHDOG=1");
    fs::write(orders.join("freeze"), "").expect("the file can be written");
    let stuck = manager.await_message(&mut running, "STATUS=stuck");
    assert!(stuck.contains("queue 0"), "{stuck}");
    // Each check sends the status and, if no queue is stuck, feeds the watchdog.
    let from = manager.next;
    manager.await_message(&mut running, "STATUS=stuck");
    manager.await_message(&mut running, "STATUS=stuck");
    let messages = &manager.received[from..manager.next];
    assert!(
        !messages.iter().any(|line| line.contains("WATCHDOG")),
        "the watchdog is not fed: {messages:?}"
    );
    fs::write(orders.join("thaw"), "").expect("the file can be written");
    manager.await_message(&mut running, "WATCHDOG=1");
    running.signal(Signal::TERM);
    manager.await_message(&mut running, "STOPPING=1");
    let done = running.wait().expect(0);
    done.says(&["queue 0: the receive loop has been stuck"]);
}

/// Returns the reason why this machine cannot freeze a file system; `None` if it can.
fn cannot_freeze() -> Option<String> {
    if !process::is_root() {
        return Some("only root can freeze a file system".into());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("no loop devices here".into());
    }
    for program in ["mkfs.ext4", "fsfreeze", "unshare"] {
        if !is_installed(program) {
            return Some(format!("no {program} here"));
        }
    }
    None
}

fn is_installed(program: &str) -> bool {
    let found = Program::new("sh").args(["-c", &format!("command -v {program}")]);
    found.run().status.success()
}

/// Writes a copy of the unit `name` that starts the built binary, and returns its path.
fn unit(dir: &Dir, name: &str) -> std::path::PathBuf {
    let source = binaries::root().join(format!("configs/systemd/{name}@.service"));
    let text = fs::read_to_string(source).expect("the unit exists");
    let binary = binaries::wqcap();
    assert!(text.contains("/usr/bin/wqcap "), "{text}");
    let text = text.replace("/usr/bin/wqcap ", &format!("{} ", binary.display()));
    dir.write(&format!("{name}@tap0.service"), text)
}

#[test]
fn systemd_accepts_the_units_and_rates_them_well_confined() {
    if !is_installed("systemd-analyze") {
        skip!("no systemd-analyze here");
    }
    let dir = Dir::new();
    for name in ["wqcap", "wqcap-ship"] {
        let unit = unit(&dir, name);
        let verified = Program::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(&unit)
            .run()
            .expect(0);
        assert_eq!(verified.stderr.trim(), "", "{verified}");
        // The threshold is in tenths. "OK" ends at 4.9; systemd's own services rate from 2 to 9.
        let _ = Program::new("systemd-analyze")
            .args(["security", "--offline=true", "--threshold=25"])
            .arg(&unit)
            .run()
            .expect(0);
    }
}
