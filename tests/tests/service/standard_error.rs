//! Tests of a reader of standard error that stops reading or exits: the capture does not wait for
//! it, and counts the audit lines that it drops.

use rustix::{
    fs::{OFlags, fcntl_setfl},
    process::Signal,
};
use serde_json::json;
use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};
use wqcap_tests::{Dir, Program, Wqcap};

/// Wire without an end, at 20,000 frames per second.
const ENDLESS: &str = "synth:size=100,flows=64,pps=20000";

/// Collector of log lines: both ends of a named pipe.
struct Collector {
    path: PathBuf,
    pipe: File,
}

impl Collector {
    fn new(dir: &Dir) -> Self {
        let path = dir.join("stderr");
        let _ = Program::new("mkfifo").arg(&path).run().expect(0);
        // Opening both ends does not wait for another process.
        let pipe = OpenOptions::new().read(true).write(true).open(&path);
        let pipe = pipe.expect("the pipe can be opened");
        fcntl_setfl(&pipe, OFlags::NONBLOCK).expect("the pipe accepts O_NONBLOCK");
        Self { path, pipe }
    }

    /// Returns the run with the pipe as its standard error.
    fn wrap<'d>(&self, run: Wqcap<'d>) -> Wqcap<'d> {
        let path = self.path.to_str().expect("the path is UTF-8");
        run.wrapped(&["sh", "-c", r#"exec "$@" 2>"$0""#, path])
    }

    /// Fills the pipe, so that every further write into it blocks.
    fn stop(&mut self) {
        while self.pipe.write(b"x").is_ok() {}
    }

    /// Appends the content of the pipe to `text`.
    fn read(&mut self, text: &mut Vec<u8>) {
        let mut chunk = [0; 65536];
        loop {
            match self.pipe.read(&mut chunk) {
                Ok(n) => text.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => panic!("{e}"),
            }
        }
    }
}

#[test]
fn a_collector_that_stops_reading_does_not_delay_the_capture() {
    let dir = Dir::new();
    let mut collector = Collector::new(&dir);
    let run = Wqcap::run(&dir, "x")
        .model(ENDLESS)
        .queues(1)
        .control()
        .timeout(Duration::from_secs(120));
    let run = collector.wrap(run);
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1000);
    collector.stop();
    // Each action logs a line: from the control service, the supervisor or the signal handling.
    for round in 0..20 {
        let filter = if round % 2 == 0 { "ip or arp" } else { "ip" };
        assert!(run.ctl().change(&["filter", filter]));
        assert!(run.ctl().change(&["rotate"]));
        running.signal(Signal::USR1);
        let now = run.ctl().until_counted(&mut running, "captured", 1);
        run.ctl().until_counted(&mut running, "captured", now + 100);
    }
    running.until("closed files", |_| {
        let names = fs::read_dir(run.out_path()).expect("the folder exists");
        let names = names.map(|it| it.expect("the folder can be listed").path());
        names
            .filter(|it| it.extension().is_some_and(|it| it == "pcap"))
            .count()
            >= 10
    });
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    assert_eq!(finished.summary.json["end"], "stopped");
}

#[test]
fn dropped_lines_of_the_audit_trail_are_counted() {
    let dir = Dir::new();
    let mut collector = Collector::new(&dir);
    let run = collector.wrap(Wqcap::run(&dir, "x").model(ENDLESS).queues(1).control());
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1000);
    collector.stop();
    // These are more lines than the buffer holds: each line has the beginnings of the old and the new filter.
    // A connection may send 100 requests at once.
    let (connections, each) = (25, 100);
    let changes = connections * each;
    let blanks = " ".repeat(2000);
    for _ in 0..connections {
        let mut stream = UnixStream::connect(run.ctl().socket()).expect("the socket is served");
        let mut answers = BufReader::new(stream.try_clone().expect("a descriptor is free")).lines();
        for n in 0..each {
            let filter = if n % 2 == 0 { "ip" } else { "ip or arp" };
            let command = json!({"do": "filter", "expression": format!("{filter}{blanks}")});
            let request = json!({"version": 1, "id": n, "command": command});
            writeln!(stream, "{request}").expect("the service reads");
            let answer = answers.next().expect("an answer").expect("an answer");
            assert!(answer.contains("\"changed\":true"), "{answer}");
        }
    }
    let mut text = Vec::new();
    let said = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    running.until("a count of dropped lines", |_| {
        collector.read(&mut text);
        let text = said(&text);
        text.lines()
            .any(|it| it.contains("result=\"dropped\"") && it.contains("left_out="))
    });
    let text = said(&text);
    let written = text.matches("result=\"changed\"").count();
    let dropped = text
        .split("result=\"dropped\"")
        .nth(1)
        .expect("the count of dropped lines");
    let (_, dropped) = dropped
        .split_once("left_out=")
        .expect("the count of dropped lines");
    let digits: String = dropped.chars().take_while(char::is_ascii_digit).collect();
    let dropped: usize = digits.parse().expect("a number");
    assert!(
        written >= 10 && dropped >= 10,
        "{written} lines are written and {dropped} are dropped"
    );
    assert_eq!(written + dropped, changes);
    running.signal(Signal::TERM);
    let _ = run.finished(running.wait(), 0);
}

#[test]
fn a_collector_that_exits_does_not_end_the_capture() {
    let dir = Dir::new();
    let collector = Collector::new(&dir);
    let run = collector.wrap(Wqcap::run(&dir, "x").model(ENDLESS).queues(1).control());
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1000);
    drop(collector);
    for round in 0..4 {
        let filter = if round % 2 == 0 { "ip or arp" } else { "ip" };
        assert!(run.ctl().change(&["filter", filter]));
        running.signal(Signal::USR1);
    }
    let now = run.ctl().until_counted(&mut running, "captured", 1);
    run.ctl()
        .until_counted(&mut running, "captured", now + 1000);
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    assert_eq!(finished.summary.json["end"], "stopped");
}
