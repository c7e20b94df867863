//! The commands of README.md and of the pages below docs/, run as they stand there.
//!
//! Whatever stands in a block of `sh` is taken, a line at a time, and run in the order of its page by a shell as root, in
//! namespaces of its own for mounts, the network and processes, where the software NIC is the only RDMA device and `eth1` an
//! interface with traffic. What cannot be run there is named in [`LEFT_OUT`] with its reason, and told as a skip. The
//! commands of docs/tcpdump.md stand in tables; `tests/tests/tcpdump.rs` runs them.

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

/// Beginnings of commands that are not run, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("scripts/demo", "builds, and takes a minute"),
    ("scripts/test", "is the suite that this test is of"),
    (
        "sudo apt install",
        "scripts/newcomer does, in a Debian of its own",
    ),
    (
        "sudo systemctl start",
        "scripts/newcomer does, under a systemd of its own",
    ),
    (
        "cargo build",
        "the binaries under test stand where it would put them",
    ),
    ("sudo benches/peers", "measures for many minutes"),
    (
        "wqcap ctl --rdma",
        "the software NIC has no connections; scripts/vm-srq does",
    ),
    (
        "LD_PRELOAD=/path/to",
        "has a path to fill in; wqcap model does the same",
    ),
    (
        "wqcap run -c wqcap.toml --set output.stdout=true | wireshark",
        "takes a screen",
    ),
];

/// Beginnings of commands that go on until somebody ends them: each is interrupted when it has run for a while.
const ENDLESS: &[&str] = &[
    "target/release/wqcap top",
    "wqcap top",
    "wqcap ctl watch",
    "wqcap run -c wqcap.toml",
    "tshark -i wqcap-mlx5_0-1",
];

/// Beginnings of commands whose capture the next ones look at: they run beside them until the block ends.
const BACKGROUND: &[&str] = &["target/release/wqcap run -c configs/wqcap.toml"];

/// Programs of others, without which a command is left out.
const OTHERS: &[&str] = &["tshark", "tcpdump", "ibv_devinfo", "suricata", "zeek"];

/// Pages that are run at a time.
const AT_A_TIME: usize = 4;

/// The wire of the only device: it does not end, and has frames for every filter of the pages.
const WIRE: &str = "synth:size=100,flows=16,pps=2000,proto=mix";

/// What all commands find, besides the NIC: programs, files, directories, traffic.
const PLACE: &str = r#"
mount -t tmpfs none /var/lib
mount -t tmpfs none /run
extcap=$(tshark -G folders 2>/dev/null | sed -n 's/^Extcap path:[[:space:]]*//p')
[ ! -d "$extcap" ] || mount -t tmpfs none "$extcap"
ip link set lo up
for pair in 0 1; do
    ip link add "eth$pair" type veth peer name "peer$pair"
    ip link set "eth$pair" up
    ip link set "peer$pair" up
done
python3 traffic.py peer0 peer1 &
"#;

/// Frames of TCP to port 443, again and again, over each interface that is named.
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

/// A capture to inspect and to change: `wqcap ctl` finds it where it looks by default.
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

/// The commands of a page's blocks of `sh`, each block by itself.
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
    let docs = fs::read_dir(binaries::root().join("docs")).expect("docs lists");
    let docs = docs.map(|it| it.expect("lists").file_name().into_string().expect("plain"));
    let docs: BTreeSet<_> = docs.filter(|it| it.ends_with(".md")).collect();
    let first = ["README.md", "mlx5-model/README.md"].map(str::to_owned);
    let docs = docs.iter().map(|it| format!("docs/{it}"));
    first.into_iter().chain(docs).collect()
}

fn starts(command: &str, with: &[&str]) -> bool {
    with.iter().any(|it| command.starts_with(it))
}

/// Why a command is left out here.
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

/// A shell's script for a page: it stops at the first command that fails.
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
            let _ = if starts(command, BACKGROUND) {
                writeln!(
                    text,
                    "{command} & beside=$!\nuntil wqcap ctl status >status 2>&1; do kill -0 $beside; sleep 0.1; done"
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
            "[ -z \"$beside\" ] || {{ kill $beside; wait $beside; }}; beside="
        );
    }
    (text + "echo all of it\n", skipped)
}

/// Where commands find what the pages take for granted.
fn prepare_folder(dir: &Dir) {
    let link = |to: &Path, name: &str| {
        std::os::unix::fs::symlink(to, dir.join(name)).expect("own");
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
        skip!("only root makes namespaces for mounts and the network");
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
        assert!(pages.iter().any(is_used), "no page has {start:?} any more");
    }
    // Most of the time is waited, and each page has a place of its own.
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
    assert!(run > 30, "{run} commands");
}

/// A page of the documentation.
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

    /// Runs its commands, but for those that need what is missing; how many were run.
    #[track_caller]
    fn run(&self, missing: &[&str]) -> usize {
        let Self { name, blocks } = self;
        let (script, skipped) = script(blocks, missing);
        for why in &skipped {
            wqcap_tests::skip::note(&format!("commands_of_pages {name}"), why);
        }
        let run = blocks.iter().flatten().count() - skipped.len();
        if run == 0 {
            return 0;
        }
        let dir = Dir::new();
        prepare_folder(&dir);
        // What is inspected is there before the first command that looks at it.
        let inspected = match name.as_str() {
            "docs/control.md" | "docs/recipes.md" => {
                "mkdir out /run/wqcap\nwqcap run -c inspected.toml &\nuntil wqcap ctl status; do sleep 0.1; done\n"
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
            // Where software NICs whose processes are killed with their namespace leave their trees.
            .env("XDG_RUNTIME_DIR", dir.folder("runtime"))
            .cwd(dir.path())
            .timeout(Duration::from_secs(300))
            .run();
        assert!(done.status.success(), "{name}: {done}");
        assert!(done.stdout.ends_with("all of it\n"), "{name}: {done}");
        run
    }
}
