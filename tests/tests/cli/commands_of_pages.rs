//! Runs the commands of README.md and of the pages in docs/ unchanged.
//!
//! A shell as root runs each line of the `sh` blocks, in the order of the page. Each page has its
//! own mount, network and process namespaces, in which the software NIC is the only RDMA device and
//! `eth0`, `eth1`, `mon0` and `mon1` have traffic. [`LEFT_OUT`] lists the commands that cannot run
//! there, with reasons; they are reported as skips. The commands of docs/tcpdump.md are in tables;
//! `tests/tests/capture/tcpdump.rs` runs them.

use std::{
    collections::BTreeSet,
    fmt::Write,
    fs,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};
use wqcap_tests::{Dir, Program, binaries, process::is_root, skip};

/// Beginnings of commands that are not run, with the reasons.
const LEFT_OUT: &[(&str, &str)] = &[
    ("scripts/demo", "builds the project and takes a minute"),
    ("scripts/test", "runs the suite that contains this test"),
    (
        "sudo apt install",
        "scripts/newcomer runs it in a fresh Debian",
    ),
    (
        "sudo dnf install",
        "no RPM system is available; scripts/portable installs it with rpm",
    ),
    (
        "sudo tar xf wqcap-",
        "scripts/portable runs its program in other systems",
    ),
    (
        "sudo systemctl start",
        "scripts/newcomer runs it under systemd",
    ),
    (
        "cargo build",
        "the binaries under test are already in place",
    ),
    ("sudo benches/peers", "measures for many minutes"),
    (
        "wqcap ctl --rdma",
        "the software NIC has no RDMA connections; scripts/vm-srq tests them",
    ),
    (
        "LD_PRELOAD=/path/to",
        "contains a placeholder path; wqcap model is equivalent",
    ),
    (
        "wqcap run -c wqcap.toml --set output.stdout=true | wireshark",
        "requires a display",
    ),
];

/// Beginnings of commands that run until they are interrupted. Each gets SIGINT after 3 seconds.
const ENDLESS: &[&str] = &[
    "wqcap top",
    "wqcap ctl watch",
    "wqcap run -c wqcap.toml",
    "tshark -i wqcap-mlx5_0-1",
];

/// Beginnings of commands that run in the background until the block ends, because later commands
/// use them; each with a command that succeeds as soon as it is ready.
const BACKGROUND: &[(&str, &str)] = &[
    ("wqcap run -c configs/wqcap.toml", "wqcap ctl status"),
    (
        "wqcap serve --set output.dir=cap",
        "curl -sf http://127.0.0.1:9465/healthz",
    ),
];

/// Third-party programs. A command is skipped if its program is not installed.
const OTHERS: &[&str] = &[
    "tshark",
    "capinfos",
    "tcpdump",
    "ibv_devinfo",
    "suricata",
    "zeek",
    "kubectl",
];

/// Number of pages that run in parallel.
const AT_A_TIME: usize = 4;

/// Wire of the only device: endless, with frames for every filter of the pages.
const WIRE: &str = "synth:size=100,flows=16,pps=2000,proto=mix";

/// Shell script that prepares the environment of the commands: mounts, interfaces, traffic.
const PLACE: &str = r#"
mount -t tmpfs none /var/lib
mount -t tmpfs none /run
mount -t sysfs none /sys
extcap=$(tshark -G folders 2>/dev/null | sed -n 's/^Extcap path:[[:space:]]*//p')
[ ! -d "$extcap" ] || mount -t tmpfs none "$extcap"
ip link set lo up
for name in eth0 eth1 mon0 mon1; do
    ip link add "$name" type veth peer name "peer-$name"
    ip link set "$name" up
    ip link set "peer-$name" up
done
python3 traffic.py peer-eth0 peer-eth1 peer-mon0 peer-mon1 &
"#;

/// Python program that sends TCP frames to port 443 repeatedly on each of its interface arguments.
const TRAFFIC: &str = r#"
import socket, struct, sys, time
sockets = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW) for _ in sys.argv[1:]]
for s, name in zip(sockets, sys.argv[1:]):
    s.bind((name, 0))
tcp = struct.pack("!HHIIBBHHH", 40000, 443, 1, 0, 0x50, 0x10, 8192, 0, 0) + bytes(40)
ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 1, 0, 64, 6, 0, bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]))
frame = bytes([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]) + ip + tcp
while True:
    for s in sockets:
        s.send(frame)
    time.sleep(0.001)
"#;

/// Configuration of a capture with the default control socket, for `wqcap ctl` commands.
const INSPECTED: &str = r#"
[capture]
mode = "filtered"
receive = "frame"
queues = 2
[[rule]]
proto = "tcp"
[output]
dir = "out"
[control]
"#;

/// Returns the commands of each `sh` block of a page.
fn blocks(page: &str) -> Vec<Vec<String>> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line != "```sh" {
            continue;
        }
        let mut commands: Vec<String> = Vec::new();
        let mut is_open = false;
        for line in lines.by_ref().take_while(|line| *line != "```") {
            match commands.last_mut() {
                Some(last) if is_open => _ = write!(last, "\n{line}"),
                _ if line.is_empty() || line.starts_with('#') => {}
                _ => commands.push(line.to_owned()),
            }
            is_open = line.ends_with('\\');
        }
        blocks.push(commands);
    }
    blocks
}

fn pages() -> Vec<String> {
    let docs = fs::read_dir(binaries::root().join("docs")).expect("docs can be listed");
    let docs = docs.map(|it| {
        it.expect("docs can be listed")
            .file_name()
            .into_string()
            .expect("a UTF-8 name")
    });
    let docs: BTreeSet<_> = docs.filter(|it| it.ends_with(".md")).collect();
    let first = ["README.md", "mlx5-model/README.md"].map(str::to_owned);
    let docs = docs.iter().map(|it| format!("docs/{it}"));
    first.into_iter().chain(docs).collect()
}

fn starts(command: &str, with: &[&str]) -> bool {
    with.iter().any(|it| command.starts_with(it))
}

/// Returns the reason why a command is skipped; `None` if it runs.
fn left_out(command: &str, missing: &[&str]) -> Option<String> {
    let known = LEFT_OUT
        .iter()
        .find(|(start, _)| command.starts_with(start));
    let absent = missing
        .iter()
        .find(|name| command.split_whitespace().any(|word| word == **name));
    let reason = known.map(|(_, reason)| (*reason).to_owned());
    reason.or_else(|| absent.map(|name| format!("{name} is not installed")))
}

/// Returns a shell script with the commands of a page, which stops at the first failure, and the
/// skipped commands.
fn script(blocks: &[Vec<String>], missing: &[&str]) -> (String, Vec<String>) {
    let mut text = String::from("set -e\n");
    let mut skipped = Vec::new();
    for block in blocks {
        for command in block {
            if let Some(reason) = left_out(command, missing) {
                let command = command.split("  #").next().unwrap_or(command);
                skipped.push(format!("{}: {reason}", command.trim_end()));
                continue;
            }
            let quoted = command.replace('\'', r"'\''");
            let _ = writeln!(text, "echo '+ {quoted}'");
            let ready = BACKGROUND.iter().find(|it| command.starts_with(it.0));
            let _ = if let Some((_, ready)) = ready {
                writeln!(
                    text,
                    "{command} & background=$!\nuntil {ready} >status 2>&1; do kill -0 $background; sleep 0.1; done"
                )
            } else if starts(command, ENDLESS) {
                writeln!(
                    text,
                    "timeout -s INT -k 20 3 script -qec '{quoted}' typescript </dev/null || [ $? = 124 ]"
                )
            } else {
                writeln!(text, "bash -o pipefail -c '{quoted}' </dev/null")
            };
        }
        let _ = writeln!(
            text,
            "[ -z \"$background\" ] || {{ kill $background; wait $background; }}; background="
        );
    }
    (text + "echo page complete\n", skipped)
}

/// Creates the files that the pages take for granted.
fn prepare_folder(dir: &Dir) {
    let link = |to: &Path, name: &str| {
        std::os::unix::fs::symlink(to, dir.join(name)).expect("the link is created");
    };
    dir.folder("target");
    link(binaries::dir(), "target/release");
    link(&binaries::root().join("configs"), "configs");
    dir.folder("bin");
    link(&binaries::wqcap(), "bin/wqcap");
    dir.write("bin/sudo", "#!/bin/sh\nexec \"$@\"\n");
    let _ = Program::new("chmod")
        .args(["755".as_ref(), dir.join("bin/sudo").as_os_str()])
        .run()
        .expect(0);
    dir.write("traffic.py", TRAFFIC);
    dir.write("inspected.toml", INSPECTED);
    dir.write("wqcap.toml", "[capture]\nqueues = 2\n");
    for name in ["trace.pcap", "monday-1.pcapng"] {
        let wire = "synth:count=1000,flows=16,pps=10000";
        let _ = Program::new(binaries::wqcap())
            .args(["-q", "run", "--model", wire, "-w", name])
            .cwd(dir.path())
            .run()
            .expect(0);
    }
}

#[test]
fn the_commands_of_the_pages_succeed() {
    if !is_root() {
        skip!("mount and network namespaces require root");
    }
    let missing: Vec<_> = OTHERS
        .iter()
        .copied()
        .filter(|it| {
            let found = Program::new("sh").args(["-c", &format!("command -v {it}")]);
            !found.run().status.success()
        })
        .collect();
    let pages: Vec<_> = pages().into_iter().map(Page::read).collect();
    for (start, _) in LEFT_OUT {
        let is_used = |it: &Page| it.blocks.iter().flatten().any(|it| it.starts_with(start));
        assert!(pages.iter().any(is_used), "no page contains {start:?}");
    }
    // Pages run in parallel: they mostly wait, and each has its own folder and namespaces.
    let next = AtomicUsize::new(0);
    let run = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(page) = pages.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run.fetch_add(page.run(&missing), Ordering::Relaxed);
                }
            });
        }
    });
    let run = run.into_inner();
    assert!(run > 30, "only {run} commands ran");
}

/// Page of the documentation.
struct Page {
    name: String,
    blocks: Vec<Vec<String>>,
}

impl Page {
    fn read(name: String) -> Self {
        let text = fs::read_to_string(binaries::root().join(&name)).expect("a page");
        let blocks = blocks(&text);
        Self { name, blocks }
    }

    /// Runs the commands of the page, except those with a missing program. Returns the number of
    /// commands that ran.
    #[track_caller]
    fn run(&self, missing: &[&str]) -> usize {
        let Self { name, blocks } = self;
        let (script, skipped) = script(blocks, missing);
        for reason in &skipped {
            wqcap_tests::skip::note(&format!("commands_of_pages {name}"), reason);
        }
        let run = blocks.iter().flatten().count() - skipped.len();
        if run == 0 {
            return 0;
        }
        let dir = Dir::new();
        prepare_folder(&dir);
        // The capture for `wqcap ctl` starts before the first command.
        let inspected = match name.as_str() {
            "docs/control.md" | "docs/recipes.md" => {
                "mkdir out /run/wqcap\nwqcap run -c inspected.toml &\nuntil wqcap ctl status | grep -w running; do sleep 0.1; done\n"
            }
            _ => "",
        };
        let files = "mkdir -p /var/lib/wqcap\ncp monday-1.pcapng /var/lib/wqcap/\n";
        let all = format!("set -e\n{PLACE}{files}{inspected}exec bash page.sh");
        dir.write("page.sh", &script);
        let bin = dir.join("bin");
        let path = std::env::var("PATH").expect("a PATH");
        let done = Program::new(binaries::wqcap())
            .wrapped([
                "unshare",
                "--mount",
                "--net",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
            ])
            .args(["model", "--wire", WIRE, "--", "bash", "-c", &all])
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("HOME", dir.folder("home"))
            // Folder for the files of software NICs whose processes are killed with their
            // namespace.
            .env("XDG_RUNTIME_DIR", dir.folder("runtime"))
            .cwd(dir.path())
            .timeout(Duration::from_secs(300))
            .run();
        assert!(done.status.success(), "{name}: {done}");
        assert!(done.stdout.ends_with("page complete\n"), "{name}: {done}");
        run
    }
}
