//! What a service manager sees: sd_notify(3)'s messages on a real socket, and the unit as systemd reads it.

use rustix::process::Signal;
use std::{fs, os::unix::net::UnixDatagram, path::Path};
use wqcap_tests::{
    Dir, Program, Running, Wqcap, binaries, files, frames,
    machine::{bucket::Bucket, dir::tree, proxy::Fate},
    oracles::s3::{BUCKET, S3},
    process, skip,
    wqcap::wqcap,
};

/// A service manager's end of the notify socket, and all it has heard.
struct Manager {
    socket: UnixDatagram,
    path: std::path::PathBuf,
    heard: Vec<String>,
    /// Messages before this one have been looked at.
    next: usize,
}

impl Manager {
    fn new(dir: &Dir) -> Self {
        let path = dir.join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket of our own");
        socket.set_nonblocking(true).expect("a socket of our own");
        Self {
            socket,
            path,
            heard: Vec::new(),
            next: 0,
        }
    }

    /// The run, told where its service manager listens and how often it is to be fed.
    fn start(&self, run: &Wqcap<'_>) -> Running {
        self.start_program(run.program())
    }

    /// The same of another program.
    fn start_program(&self, program: Program) -> Running {
        program
            .env("NOTIFY_SOCKET", &self.path)
            .env("WATCHDOG_USEC", "10000000")
            .start()
    }

    /// Waits for a message with `text` among those not looked at yet; the ones before it are passed.
    #[track_caller]
    fn await_line(&mut self, running: &mut Running, text: &str) -> String {
        let first = self.next;
        running.until(text, |_| {
            self.hear();
            let found = self.heard[first..].iter().position(|it| it.contains(text));
            self.next = first + found.map_or(0, |it| it + 1);
            found.is_some()
        });
        self.heard[self.next - 1].clone()
    }

    /// Takes what has come.
    fn hear(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            let line = String::from_utf8_lossy(&buffer[..length]);
            self.heard.push(line.into_owned());
        }
    }
}

#[test]
fn a_service_manager_hears_of_readiness_progress_and_the_end() {
    let dir = Dir::new();
    let mut manager = Manager::new(&dir);
    let run = Wqcap::run(&dir, "notify")
        .model("synth:pps=2000,flows=64")
        .queues(2);
    let mut running = manager.start(&run);
    let ready = manager.await_line(&mut running, "READY=1");
    assert!(ready.contains("STATUS=capturing mlx5_0 port 1"), "{ready}");
    let status = manager.await_line(&mut running, "frames/s");
    assert!(status.starts_with("STATUS="), "{status}");
    manager.await_line(&mut running, "WATCHDOG=1");
    running.signal(Signal::TERM);
    manager.await_line(&mut running, "STOPPING=1");
    let _ = run.finished(running.wait(), 0);
}

#[test]
fn while_the_device_is_lost_the_status_says_so_and_the_watchdog_is_fed() {
    let dir = Dir::new();
    let mut manager = Manager::new(&dir);
    let run = Wqcap::run(&dir, "lost")
        .model("synth:size=100,flows=64,count=20000")
        .set("model.fault=device_fatal@frames=5000")
        .set("device.on_loss=retry");
    let mut running = manager.start(&run);
    manager.await_line(&mut running, "READY=1");
    for _ in 0..2 {
        let lost = manager.await_line(&mut running, "STATUS=mlx5_0 is lost; ");
        assert!(lost.contains(" attempts to find it, next in "), "{lost}");
        manager.await_line(&mut running, "WATCHDOG=1");
    }
    assert!(
        !manager.heard.iter().any(|line| line.contains("STOPPING")),
        "it goes on: {:#?}",
        manager.heard
    );
    running.signal(Signal::TERM);
    manager.await_line(&mut running, "STOPPING=1");
    let _ = run.finished(running.wait(), 0);
}

#[test]
fn nobody_is_told_before_the_first_queue_is_ready() {
    let dir = Dir::new();
    let mut manager = Manager::new(&dir);
    let run = Wqcap::run(&dir, "refused")
        .model("synth:count=10")
        .set("capture.queues=100000");
    let running = manager.start(&run);
    let _ = running.wait().expect(2);
    // Whatever it had sent would be here by now.
    manager.hear();
    assert_eq!(manager.heard, Vec::<String>::new());
}

#[test]
fn of_shipping_a_service_manager_hears_too_and_while_the_store_does_not_answer() {
    let dir = Dir::new();
    let mut manager = Manager::new(&dir);
    let bucket = Bucket::of(S3::s3s());
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
    let ready = manager.await_line(&mut running, "READY=1");
    assert!(ready.contains("STATUS=ships to s3://"), "{ready}");
    running.until("a request that is not answered", |_| {
        bucket.proxy.waiting() > 0
    });
    for _ in 0..2 {
        let status = manager.await_line(&mut running, "STATUS=");
        assert!(status.contains("lag "), "{status}");
        manager.await_line(&mut running, "WATCHDOG=1");
    }
    // Nothing is told of the store, and the lag grows.
    manager.await_line(&mut running, "lag 2 s");
    bucket.proxy.decide(|_| Fate::Pass);
    bucket.proxy.let_go();
    running.until("all is shipped", |_| {
        let objects = tree(&bucket.s3.folder());
        objects.keys().any(|it| it.starts_with("service/blocks/"))
    });
    running.signal(Signal::TERM);
    manager.await_line(&mut running, "STOPPING=1");
    let _ = running.wait().expect(0);
}

/// A file system of its own that stops taking writes while the file `freeze` is there.
const FREEZING_DISK: &str = r#"
    image=$1 out=$2 orders=$3
    shift 3
    truncate -s 256M "$image" && mkfs.ext4 -q "$image" && mount -o loop "$image" "$out" || exit 99
    trap 'umount "$out"' EXIT
    "$@" &
    pid=$!
    trap 'kill -TERM $pid' TERM
    while [ ! -e "$orders/freeze" ]; do kill -0 $pid || exit 97; sleep 0.05; done
    # Whatever becomes of us, it thaws: who ends our whole group leaves this one.
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
fn a_queue_that_is_stuck_is_named_and_the_watchdog_starves_until_it_goes_on() {
    if let Some(reason) = cannot_freeze() {
        skip!("{reason}");
    }
    let dir = Dir::new();
    let orders = dir.folder("orders");
    let mut manager = Manager::new(&dir);
    // It holds: the loop waits for the disk, and so it is stuck when the disk is. Of several, any could be the first.
    let run = Wqcap::run(&dir, "stuck")
        .model("synth:pps=20000,size=1500,flows=64")
        .queues(1)
        .set("output.on_full=hold")
        .set("output.buffer=1MiB");
    let out = run.out_path().to_str().expect("plain").to_owned();
    let image = dir.join("image").to_str().expect("plain").to_owned();
    let place = orders.to_str().expect("plain").to_owned();
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
    manager.await_line(&mut running, "WATCHDOG=1");
    fs::write(orders.join("freeze"), "").expect("writable");
    let stuck = manager.await_line(&mut running, "STATUS=stuck");
    assert!(stuck.contains("queue 0"), "{stuck}");
    // With each look it tells of the state and, if all is well, feeds the watchdog.
    let from = manager.next;
    manager.await_line(&mut running, "STATUS=stuck");
    manager.await_line(&mut running, "STATUS=stuck");
    let starved = &manager.heard[from..manager.next];
    assert!(
        !starved.iter().any(|line| line.contains("WATCHDOG")),
        "{starved:?}"
    );
    fs::write(orders.join("thaw"), "").expect("writable");
    manager.await_line(&mut running, "WATCHDOG=1");
    running.signal(Signal::TERM);
    manager.await_line(&mut running, "STOPPING=1");
    let done = running.wait().expect(0);
    done.says(&["queue 0: its loop has been stuck"]);
}

fn cannot_freeze() -> Option<String> {
    if !process::is_root() {
        return Some("a disk that stands still takes root".into());
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

/// The unit as it would be installed, but for the place of the binary.
fn unit(dir: &Dir, name: &str) -> std::path::PathBuf {
    let source = binaries::root().join(format!("configs/systemd/{name}@.service"));
    let text = fs::read_to_string(source).expect("the unit");
    let binary = binaries::wqcap();
    assert!(text.contains("/usr/bin/wqcap "), "{text}");
    let text = text.replace("/usr/bin/wqcap ", &format!("{} ", binary.display()));
    dir.write(&format!("{name}@tap0.service"), text)
}

#[test]
fn systemd_takes_the_units_and_finds_them_well_confined() {
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
        // In tenths; "OK" ends at 4.9, and systemd's own services reach from 2 to 9.
        let _ = Program::new("systemd-analyze")
            .args(["security", "--offline=true", "--threshold=25"])
            .arg(&unit)
            .run()
            .expect(0);
    }
}
