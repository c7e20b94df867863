//! What people type who come from tcpdump, dumpcap and n2disk: every command of `docs/tcpdump.md` does what stands there.

use rustix::process::Signal;
use std::{fs, thread, time::Instant};
use wqcap_tests::{
    Dir, Done, Program,
    binaries::{root, wqcap as binary},
    files,
    process::{HANG, TICK},
    skip,
    wqcap::wqcap,
};

/// A wire with frames for a few files, which ends.
const WIRE: &str = "synth:count=1000,size=94,flows=8";
/// A wire that does not end.
const ENDLESS: &str = "synth:size=94,flows=8,pps=20000";

/// A row of the page.
struct Row {
    typed: String,
    /// The arguments of `wqcap run`, as a shell takes them.
    args: String,
    /// What it does.
    does: String,
}

impl Row {
    /// What stands in code in the last column.
    fn spans(&self) -> impl Iterator<Item = String> {
        self.does.split('`').skip(1).step_by(2).map(code)
    }

    fn is_refused(&self) -> bool {
        self.does.starts_with("refused: ")
    }
}

/// A bar in a cell of a table is escaped.
fn code(cell: &str) -> String {
    cell.trim().replace("\\|", "|")
}

fn rows() -> Vec<Row> {
    let page = root().join("docs/tcpdump.md");
    let text = fs::read_to_string(page).expect("the page");
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").collect();
        let command = |cell: &str| code(cell.trim().trim_matches('`'));
        let typed = command(cells[0]);
        let (args, does) = match cells[..] {
            [_, does] => (typed.split_once(' ').expect("arguments").1.into(), does),
            [_, write, does] => {
                let write = command(write);
                let args = write.strip_prefix("wqcap run ").expect("a run");
                (args.to_owned(), does)
            }
            _ => panic!("two or three cells: {line}"),
        };
        let does = does.trim().into();
        rows.push(Row { typed, args, does });
    }
    rows
}

/// A folder as the commands expect it.
fn place() -> Dir {
    let dir = Dir::new();
    dir.folder("cap");
    dir.folder("index");
    dir.write("old.pcap", "somebody's");
    dir.write("filter.txt", "tcp\n  port 443\n");
    dir
}

/// `wqcap COMMAND ARGS`, of which a shell makes words, on the software NIC.
fn on_model(dir: &Dir, command: &str, row: &Row) -> Done {
    let folder = if [" -w ", " -o "].iter().any(|it| row.args.contains(it)) {
        ""
    } else {
        "--set output.dir=cap"
    };
    let script = format!(
        "exec '{}' {command} --model {WIRE} --set capture.ring=256 --set output.buffer=8MiB \
         --set capture.idle=sleep {folder} {}",
        binary().display(),
        row.args
    );
    Program::new("sh")
        .args(["-c", &script])
        .cwd(dir.path())
        .start()
        .wait()
}

#[test]
fn the_page_has_sixty_commands_and_each_does_what_it_says() {
    let rows = rows();
    assert!(rows.len() >= 60, "{} rows", rows.len());
    for row in &rows {
        let dir = place();
        let spans: Vec<_> = row.spans().collect();
        if row.is_refused() {
            let done = on_model(&dir, "run", row).expect(2);
            done.says(&[spans[0].as_str()]);
            continue;
        }
        let lists = row.does.starts_with("lists");
        let (keys, others): (Vec<_>, Vec<_>) = spans
            .into_iter()
            .partition(|it| it.contains(" = ") || it.starts_with("--"));
        if !lists {
            let done = on_model(&dir, "check", row).expect(0);
            let aliases: Vec<_> = done
                .stdout
                .lines()
                .skip_while(|line| *line != "# The command line")
                .take_while(|line| line.starts_with('#'))
                .collect();
            for key in keys {
                let sets = |line: &&str| line.ends_with(&format!("  {key}"));
                assert!(aliases.iter().any(sets), "{}: no {key}: {done}", row.typed);
            }
        }
        let done = on_model(&dir, "run", row).expect(0);
        assert!(!lists || done.stdout.contains("mlx5_0"), "{done}");
        for file in others.iter().filter(|it| it.contains(".pcap")) {
            assert!(dir.join(file).is_file(), "{}: no {file}: {done}", row.typed);
        }
        let old = fs::read_to_string(dir.join("old.pcap")).expect("still there");
        assert_eq!(old, "somebody's");
    }
}

/// The frames of the files of a folder, and how many files there are.
fn kept(dir: &Dir, folder: &str) -> (usize, Vec<usize>) {
    let mut files: Vec<_> = fs::read_dir(dir.join(folder))
        .expect("lists")
        .map(|it| it.expect("listed").path())
        .collect();
    files.sort();
    let frames = files.iter().map(|it| files::read(it).len()).collect();
    (files.len(), frames)
}

fn run(dir: &Dir, args: &[&str]) -> Done {
    let program = wqcap(["run", "--model", WIRE, "--set", "capture.ring=256"]).args([
        "--set",
        "output.buffer=8MiB",
        "--set",
        "capture.idle=sleep",
    ]);
    program.args(args).cwd(dir.path()).start().wait()
}

#[test]
fn a_ring_of_files_keeps_the_newest_and_deletes_nobody_elses() {
    let dir = place();
    dir.write("cap/ring-20200101T000000.pcap", "somebody's");
    let args = ["-b", "packets:100", "-b", "files:3", "-w", "cap/ring.pcap"];
    let _ = run(&dir, &args).expect(0);
    let stranger = dir.join("cap/ring-20200101T000000.pcap");
    assert_eq!(fs::read_to_string(&stranger).expect("there"), "somebody's");
    fs::remove_file(stranger).expect("removed");
    assert_eq!(kept(&dir, "cap"), (3, vec![100; 3]));
}

#[test]
fn a_run_stops_after_so_many_files_and_loses_nothing_for_it() {
    let dir = place();
    let args = ["-b", "packets:100", "-a", "files:4", "-w", "cap/a.pcap"];
    let program = wqcap(["run", "--model", ENDLESS, "--summary", "summary.json"]).args(args);
    let done = program.cwd(dir.path()).start().wait().expect(0);
    let (files, frames) = kept(&dir, "cap");
    assert_eq!(files, 4, "{done}");
    assert!(frames.iter().all(|it| *it >= 100), "{frames:?}");
    let text = fs::read_to_string(dir.join("summary.json")).expect("a summary");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["end"], "files");
    let captured = json["ledger"]["total"]["captured"].as_u64();
    assert_eq!(captured, Some(frames.iter().sum::<usize>() as u64));
}

#[test]
fn a_run_stops_after_so_many_bytes() {
    let dir = place();
    let program = wqcap(["run", "--model", ENDLESS, "--set", "capture.idle=sleep"])
        .args(["--bytes", "200kB", "-w", "out.pcap", "--json"]);
    let done = program.cwd(dir.path()).start().wait().expect(0);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(json["end"], "bytes");
    let len = fs::metadata(dir.join("out.pcap")).expect("there").len();
    assert!(len >= 200_000, "{len}");
}

/// A capture's file is recognised by its header, whatever its name and format.
#[test]
fn what_a_crash_leaves_of_a_file_of_any_name_is_finished() {
    for name in ["out.pcapng", "out.pcap"] {
        let dir = place();
        let program = wqcap(["run", "--model", ENDLESS, "-w"]).arg(format!("cap/{name}"));
        let mut running = program
            .args(["--set", "capture.idle=sleep"])
            .cwd(dir.path())
            .start();
        let part = dir.join(format!("cap/{name}.part"));
        running.until("frames are in the file", |_| {
            fs::metadata(&part).is_ok_and(|it| it.len() > 100_000)
        });
        running.signal(Signal::KILL);
        let _ = running.wait();
        let program = wqcap(["recover", "cap"]).cwd(dir.path());
        let deadline = Instant::now() + HANG;
        // The kernel ends writes under way after the process, and with them its hold of the file.
        let done = loop {
            let done = program.start().wait().expect(0);
            if !done.stdout.contains("a capture is writing it") {
                break done;
            }
            assert!(Instant::now() < deadline, "{done}");
            thread::sleep(TICK);
        };
        assert!(done.stdout.contains("finished with"), "{done}");
        assert!(!part.exists(), "{done}");
        assert!(!files::read(&dir.join(format!("cap/{name}"))).is_empty());
    }
}

/// A ring of files goes on where an earlier run has left it.
#[test]
fn a_ring_of_pcapng_files_goes_on_in_the_next_run() {
    let dir = place();
    dir.write("cap/ring-20200101T000000.pcapng", "somebody's");
    let args = [
        "-b",
        "packets:300",
        "-b",
        "files:3",
        "-w",
        "cap/ring.pcapng",
    ];
    let _ = run(&dir, &args).expect(0);
    let mut first = names(&dir, "cap");
    assert_eq!(first.len(), 4, "{first:?}");
    let _ = run(&dir, &args).expect(0);
    let second = names(&dir, "cap");
    first.retain(|it| second.contains(it));
    assert_eq!((first.len(), second.len()), (1, 4), "{second:?}");
    assert_eq!(first, ["ring-20200101T000000.pcapng"]);
}

fn names(dir: &Dir, folder: &str) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir.join(folder))
        .expect("lists")
        .map(|it| it.expect("listed").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

#[test]
fn the_header_has_the_operators_comment_and_the_host() {
    let dir = place();
    let said = ["--capture-comment", "tap 3, rack 7", "-w", "out.pcapng"];
    let _ = run(&dir, &said).expect(0);
    let comments = files::section_comments(&dir.join("out.pcapng"));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    let host = format!("host: {}", host.trim());
    for part in ["tap 3, rack 7", host.as_str()] {
        assert!(comments.iter().any(|it| it == part), "{comments:?}");
    }
}

#[test]
fn a_count_is_no_config_and_it_is_said() {
    let dir = place();
    let done = run(&dir, &["-c", "10", "-w", "out.pcap"]).expect(0);
    done.says(&["-c 10", "--count 10"]);
    assert_eq!(files::read(&dir.join("out.pcap")).len(), 10);
    // A file of that name is the config.
    dir.write("10", "[output]\ndir = \"cap\"\nformat = \"pcap\"\n");
    let done = run(&dir, &["-c", "10", "--count", "20"]).expect(0);
    assert!(!done.stderr.contains("note: -c"), "{done}");
    let (_, frames) = kept(&dir, "cap");
    assert_eq!(frames.iter().sum::<usize>(), 20);
}

#[test]
fn the_config_is_a_file_a_first_word_or_standard_input() {
    let dir = place();
    dir.write("w.toml", "[capture]\nsnaplen = 77\n");
    let check = |args: &[&str]| {
        let program = wqcap(["check", "--model", WIRE, "--set", "output.dir=cap"]);
        program.args(args).cwd(dir.path()).start().wait().expect(0)
    };
    for args in [
        &["w.toml"][..],
        &["-c", "w.toml"],
        &["w.toml", "tcp", "port", "80"],
    ] {
        assert!(check(args).stdout.contains("\nsnaplen = 77\n"), "{args:?}");
    }
    let both = check(&["w.toml", "tcp", "port", "80"]);
    assert!(both.stdout.contains("filter = \"tcp port 80\""), "{both}");
    let script = format!(
        "printf '[capture]\\nsnaplen = 77\\n' | '{}' check --model {WIRE} --set output.dir=cap -c -",
        binary().display()
    );
    let program = Program::new("sh").args(["-c", &script]).cwd(dir.path());
    let done = program.start().wait().expect(0);
    assert!(done.stdout.contains("\nsnaplen = 77\n"), "{done}");
}

#[test]
fn an_interface_of_the_kernel_leads_to_the_software_nic() {
    if !fs::exists("/sys/class/net/lo").unwrap_or(false) {
        skip!("this machine has no loopback interface");
    }
    let done = wqcap(["run", "-i", "lo", "-w", "-"]).run().expect(2);
    done.says(&["-i lo", "--model af_packet:lo"]);
    if fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        skip!("this machine has an RDMA device");
    }
    // A config may be for another machine.
    let check = |device| wqcap(["check", "-i", device, "-w", "-"]).run();
    let done = check("lo").expect(0);
    assert!(done.stdout.contains("device.netdev = \"lo\""), "{done}");
    let done = check("mlx5_7").expect(0);
    assert!(done.stdout.contains("device.name = \"mlx5_7\""), "{done}");
}
