//! A reader of standard error that stops, or leaves: a capture waits for none, and says what it dropped.

use rustix::{
    fs::{OFlags, fcntl_setfl},
    process::Signal,
};
use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Write},
    path::PathBuf,
    time::Duration,
};
use wqcap_tests::{Dir, Program, Wqcap};

/// A wire that waits for buffers, and does not end.
const ENDLESS: &str = "synth:size=100,flows=64,pps=20000";

/// Both ends of a named pipe.
struct Collector {
    path: PathBuf,
    pipe: File,
}

impl Collector {
    fn new(dir: &Dir) -> Self {
        let path = dir.join("stderr");
        let _ = Program::new("mkfifo").arg(&path).run().expect(0);
        // With both, opening does not wait.
        let pipe = OpenOptions::new().read(true).write(true).open(&path);
        let pipe = pipe.expect("a pipe of our own");
        fcntl_setfl(&pipe, OFlags::NONBLOCK).expect("ours");
        Self { path, pipe }
    }

    /// The run, with the pipe as its standard error.
    fn wrap<'d>(&self, run: Wqcap<'d>) -> Wqcap<'d> {
        let path = self.path.to_str().expect("plain");
        run.wrapped(&["sh", "-c", r#"exec "$@" 2>"$0""#, path])
    }

    /// Fills the pipe, so that every write into it waits.
    fn stop(&mut self) {
        while self.pipe.write(b"x").is_ok() {}
    }

    /// Takes what is in the pipe.
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
fn a_collector_that_stops_holds_up_nothing() {
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
    // Each writes a line: of the control service, of the capture's owner, of signals.
    for round in 0..20 {
        let filter = if round % 2 == 0 { "ip or arp" } else { "ip" };
        assert!(run.ctl().change(&["filter", filter]));
        assert!(run.ctl().change(&["rotate"]));
        running.signal(Signal::USR1);
        let now = run.ctl().until_counted(&mut running, "captured", 1);
        run.ctl().until_counted(&mut running, "captured", now + 100);
    }
    running.until("closed files", |_| {
        let names = fs::read_dir(run.out_path()).expect("there");
        let names = names.map(|it| it.expect("lists").path());
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
    // More than may wait, each with the filter before and the one after.
    let changes = 60;
    let blanks = " ".repeat(50_000);
    for round in 0..changes {
        let filter = if round % 2 == 0 { "ip" } else { "ip or arp" };
        assert!(run.ctl().change(&["filter", &format!("{filter}{blanks}")]));
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
    let dropped = text.split("result=\"dropped\"").nth(1).expect("waited for");
    let (_, dropped) = dropped.split_once("left_out=").expect("waited for");
    let digits: String = dropped.chars().take_while(char::is_ascii_digit).collect();
    let dropped: usize = digits.parse().expect("a number");
    assert!(written >= 10 && dropped >= 10, "{written} and {dropped}");
    assert_eq!(written + dropped, changes);
    running.signal(Signal::TERM);
    let _ = run.finished(running.wait(), 0);
}

#[test]
fn a_collector_that_leaves_ends_nothing() {
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
