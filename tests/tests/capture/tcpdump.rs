//! Command lines of users of tcpdump, dumpcap and n2disk: every command of `docs/tcpdump.md` works
//! as the page describes.

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

/// Wire with a limited number of frames, enough for a few files.
const WIRE: &str = "synth:count=1000,size=94,flows=8";
/// Wire that does not end.
const ENDLESS: &str = "synth:size=94,flows=8,pps=20000";

/// Row of a table of the page.
struct Row {
    /// Command line in the first column.
    typed: String,
    /// Arguments of `wqcap run`, in shell syntax.
    args: String,
    /// Effect of the command: the last column.
    does: String,
}

impl Row {
    /// Returns the code spans of the last column.
    fn spans(&self) -> impl Iterator<Item = String> {
        self.does.split('`').skip(1).step_by(2).map(unescape)
    }

    fn is_refused(&self) -> bool {
        self.does.starts_with("refused: ")
    }
}

/// Returns the text of a table cell, with escaped vertical bars replaced.
fn unescape(cell: &str) -> String {
    cell.trim().replace("\\|", "|")
}

/// Returns the rows of all tables of the page.
fn rows() -> Vec<Row> {
    let page = root().join("docs/tcpdump.md");
    let text = fs::read_to_string(page).expect("the page is readable");
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").collect();
        let command = |cell: &str| unescape(cell.trim().trim_matches('`'));
        let typed = command(cells[0]);
        let (args, does) = match cells[..] {
            [_, does] => (
                typed
                    .split_once(' ')
                    .expect("a command has arguments")
                    .1
                    .into(),
                does,
            ),
            [_, write, does] => {
                let write = command(write);
                let args = write.strip_prefix("wqcap run ");
                let args = args.expect("the second column is a `wqcap run`");
                (args.to_owned(), does)
            }
            _ => panic!("a row has two or three cells: {line}"),
        };
        let does = does.trim().into();
        rows.push(Row { typed, args, does });
    }
    rows
}

/// Creates a directory with the files and directories that the commands use.
fn working_directory() -> Dir {
    let dir = Dir::new();
    dir.folder("cap");
    dir.folder("index");
    dir.write("old.pcap", "foreign");
    dir.write("filter.txt", "tcp\n  port 443\n");
    dir
}

/// Runs `wqcap COMMAND` with the row's arguments, split by a shell, on the software NIC.
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
fn the_page_has_sixty_commands_and_each_works_as_described() {
    let rows = rows();
    assert!(rows.len() >= 60, "only {} rows", rows.len());
    for row in &rows {
        let dir = working_directory();
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
                assert!(aliases.iter().any(sets), "{} sets {key}: {done}", row.typed);
            }
        }
        let done = on_model(&dir, "run", row).expect(0);
        assert!(!lists || done.stdout.contains("mlx5_0"), "{done}");
        for file in others.iter().filter(|it| it.contains(".pcap")) {
            assert!(
                dir.join(file).is_file(),
                "{} writes {file}: {done}",
                row.typed
            );
        }
        let old = fs::read_to_string(dir.join("old.pcap"));
        assert_eq!(old.expect("the file is kept"), "foreign");
    }
}

/// Returns the number of files of a directory, and the number of frames of each file, by name.
fn count_files(dir: &Dir, folder: &str) -> (usize, Vec<usize>) {
    let mut files: Vec<_> = fs::read_dir(dir.join(folder))
        .expect("the directory is readable")
        .map(|it| it.expect("the directory is readable").path())
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
fn a_ring_of_files_keeps_the_newest_files_and_deletes_no_foreign_file() {
    let dir = working_directory();
    dir.write("cap/ring-20200101T000000.pcap", "foreign");
    let args = ["-b", "packets:100", "-b", "files:3", "-w", "cap/ring.pcap"];
    let _ = run(&dir, &args).expect(0);
    let foreign = dir.join("cap/ring-20200101T000000.pcap");
    let content = fs::read_to_string(&foreign);
    assert_eq!(content.expect("the foreign file is kept"), "foreign");
    fs::remove_file(foreign).expect("the file is removed");
    assert_eq!(count_files(&dir, "cap"), (3, vec![100; 3]));
}

#[test]
fn a_run_stops_after_a_number_of_files_and_loses_no_frame() {
    let dir = working_directory();
    let args = ["-b", "packets:100", "-a", "files:4", "-w", "cap/a.pcap"];
    let program = wqcap(["run", "--model", ENDLESS, "--summary", "summary.json"]).args(args);
    let done = program.cwd(dir.path()).start().wait().expect(0);
    let (files, frames) = count_files(&dir, "cap");
    assert_eq!(files, 4, "{done}");
    assert!(frames.iter().all(|it| *it >= 100), "{frames:?}");
    let text = fs::read_to_string(dir.join("summary.json"));
    let text = text.expect("the run writes a summary");
    let json: serde_json::Value = serde_json::from_str(&text).expect("the summary is JSON");
    assert_eq!(json["end"], "files");
    let captured = json["ledger"]["total"]["captured"].as_u64();
    assert_eq!(captured, Some(frames.iter().sum::<usize>() as u64));
}

#[test]
fn a_run_stops_after_a_number_of_bytes() {
    let dir = working_directory();
    let program = wqcap(["run", "--model", ENDLESS, "--set", "capture.idle=sleep"])
        .args(["--bytes", "200kB", "-w", "out.pcap", "--json"]);
    let done = program.cwd(dir.path()).start().wait().expect(0);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).expect("the summary is JSON");
    assert_eq!(json["end"], "bytes");
    let len = fs::metadata(dir.join("out.pcap"));
    let len = len.expect("the file exists").len();
    assert!(len >= 200_000, "only {len} bytes");
}

/// `wqcap recover` recognises a capture file by its header, not by its name or format.
#[test]
fn recovery_finishes_a_file_of_any_name_after_a_crash() {
    for name in ["out.pcapng", "out.pcap"] {
        let dir = working_directory();
        let program = wqcap(["run", "--model", ENDLESS, "-w"]).arg(format!("cap/{name}"));
        let mut running = program
            .args(["--set", "capture.idle=sleep"])
            .cwd(dir.path())
            .start();
        let part = dir.join(format!("cap/{name}.part"));
        running.until("the file has frames", |_| {
            fs::metadata(&part).is_ok_and(|it| it.len() > 100_000)
        });
        running.signal(Signal::KILL);
        let _ = running.wait();
        let program = wqcap(["recover", "cap"]).cwd(dir.path());
        let deadline = Instant::now() + HANG;
        // The kernel finishes pending writes after the end of the process, and only then unlocks
        // the file.
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

/// The limit of a ring of files includes the files of an earlier run.
#[test]
fn a_ring_of_pcapng_files_continues_in_the_next_run() {
    let dir = working_directory();
    dir.write("cap/ring-20200101T000000.pcapng", "foreign");
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
        .expect("the directory is readable")
        .map(|it| it.expect("the directory is readable").file_name())
        .map(|it| it.into_string().expect("a name is UTF-8"))
        .collect();
    names.sort();
    names
}

#[test]
fn the_header_has_the_operators_comment_and_the_host() {
    let dir = working_directory();
    let args = ["--capture-comment", "tap 3, rack 7", "-w", "out.pcapng"];
    let _ = run(&dir, &args).expect(0);
    let comments = files::section_comments(&dir.join("out.pcapng"));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("the host has a name");
    let host = format!("host: {}", host.trim());
    for part in ["tap 3, rack 7", host.as_str()] {
        assert!(comments.iter().any(|it| it == part), "{comments:?}");
    }
}

#[test]
fn a_number_after_c_is_taken_as_a_count_with_a_note() {
    let dir = working_directory();
    let done = run(&dir, &["-c", "10", "-w", "out.pcap"]).expect(0);
    done.says(&["-c 10", "--count 10"]);
    assert_eq!(files::read(&dir.join("out.pcap")).len(), 10);
    // So it is if a file of that name exists. With a slash it is the configuration.
    dir.write("10", "[output]\ndir = \"cap\"\nformat = \"pcap\"\n");
    let done = run(&dir, &["-c", "10", "-w", "again.pcap"]).expect(0);
    done.says(&["-c 10", "--count 10", "./10"]);
    let done = run(&dir, &["-c", "./10", "--count", "20"]).expect(0);
    assert!(!done.stderr.contains("note: -c"), "{done}");
    let (_, frames) = count_files(&dir, "cap");
    assert_eq!(frames.iter().sum::<usize>(), 20);
}

#[test]
fn a_file_name_of_gzip_is_refused() {
    let dir = working_directory();
    let done = run(&dir, &["-w", "out.pcap.gz"]).expect(2);
    done.says(&["gzip is not written", ".pcapng.zst"]);
}

#[test]
fn the_configuration_is_a_file_the_first_word_or_standard_input() {
    let dir = working_directory();
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
fn check_accepts_an_ordinary_interface_and_a_device_of_another_machine() {
    if !fs::exists("/sys/class/net/lo").unwrap_or(false) {
        skip!("this machine has no loopback interface");
    }
    if fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        skip!("this machine has an RDMA device");
    }
    // `wqcap check` accepts an absent device, because the configuration may be for another machine.
    let check = |device| wqcap(["check", "-i", device, "-w", "-"]).run();
    let done = check("lo").expect(0);
    assert!(done.stdout.contains("device.netdev = \"lo\""), "{done}");
    let done = check("mlx5_7").expect(0);
    assert!(done.stdout.contains("device.name = \"mlx5_7\""), "{done}");
}
