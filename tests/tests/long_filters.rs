//! Filters that libpcap compiles for long, and those that no stack holds: they hold up nothing, and end nothing.

use rustix::process::Signal;
use std::{fs, time::Duration};
use wqcap_tests::{Dir, Program, Running, Wqcap, wqcap::wqcap};

/// A wire that waits for buffers, and does not end.
const ENDLESS: &str = "synth:size=100,flows=64,pps=20000";
/// A list of hosts that overflowed the stack of the thread which serves control, and that takes libpcap half a minute at least.
const MANY: usize = 2500;

/// A list of hosts, none of which is on the wire.
fn hosts(n: usize) -> String {
    let hosts: Vec<_> = (0..n)
        .map(|i| format!("host 9.{}.{}.{}", i >> 16, i >> 8 & 255, i & 255))
        .collect();
    hosts.join(" or ")
}

/// Waits until libpcap compiles, on its thread.
#[track_caller]
fn until_it_compiles(running: &mut Running) {
    let threads = format!("/proc/{}/task", running.pid());
    running.until("a compilation", |_| {
        let threads = fs::read_dir(&threads).expect("it runs");
        let names = threads.filter_map(|it| fs::read_to_string(it.ok()?.path().join("comm")).ok());
        names.into_iter().any(|it| it.trim() == "wqcap-filter")
    });
}

#[test]
fn a_compilation_holds_up_neither_control_nor_the_end() {
    let dir = Dir::new();
    for way in ["filter", "mark", "reload"] {
        let run = Wqcap::run(&dir, way)
            .model(ENDLESS)
            .queues(1)
            .control()
            .timeout(Duration::from_secs(120));
        let mut running = run.start();
        run.ctl().until_counted(&mut running, "captured", 1000);
        let long = hosts(MANY);
        let args: &[&str] = match way {
            "filter" => &["filter", &long],
            "mark" => &["mark", "--filter", &long, "a mark"],
            _ => {
                let config = dir.join(format!("{way}.toml"));
                fs::write(&config, format!("[capture]\nfilter = \"{long}\"\n")).expect("written");
                &["reload"]
            }
        };
        let client = run.ctl().program(args).start();
        until_it_compiles(&mut running);
        // Other clients are served, the capture continues, and its owner carries out changes.
        let captured = run.ctl().until_counted(&mut running, "captured", 1);
        run.ctl()
            .until_counted(&mut running, "captured", captured + 1000);
        assert!(run.ctl().change(&["rotate"]), "{way}");
        assert_eq!(
            run.ctl().capture()["filter"],
            "",
            "{way}: it is not applied yet"
        );
        running.signal(Signal::TERM);
        let finished = run.finished(running.wait(), 0);
        assert_eq!(finished.summary.json["end"], "stopped", "{way}");
        // The answer was still to come: the compilation was under way all the time.
        let refused = client.wait().expect(1);
        assert!(!refused.stderr.contains("compiled"), "{way}: {refused}");
    }
}

#[test]
fn changes_with_filters_take_effect_in_the_order_of_their_requests() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "x").model(ENDLESS).queues(1).control();
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1000);
    // The first takes a second, the second no time.
    let slow = run.ctl().program(&["filter", &hosts(250)]).start();
    until_it_compiles(&mut running);
    assert!(run.ctl().change(&["filter", "udp"]));
    let _ = slow.wait().expect(0);
    assert_eq!(run.ctl().capture()["filter"], "udp");
    running.signal(Signal::TERM);
    let _ = run.finished(running.wait(), 0);
}

#[test]
fn a_filter_beyond_the_limits_is_refused_with_them() {
    let dir = Dir::new();
    let config = dir.write(
        "x.toml",
        format!("[capture]\nfilter = \"{}\"\n", hosts(8000)),
    );
    for command in ["check", "run"] {
        let done = wqcap([command, "--model", "loopback", "-c"])
            .arg(&config)
            .run()
            .expect(2);
        done.says(&[
            "capture.filter",
            "bytes; at most 65536 are allowed; name networks",
        ]);
        assert!(done.stderr.len() < 1000, "{done}");
    }
}

#[test]
fn an_interrupt_ends_a_start_that_compiles() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "x")
        .config(&format!("[capture]\nfilter = \"{}\"\n", hosts(MANY)))
        .model(ENDLESS)
        .timeout(Duration::from_secs(60));
    let mut running = run.start();
    until_it_compiles(&mut running);
    running.signal(Signal::INT);
    let done = running.wait();
    assert_eq!(done.signal(), Some(2), "{done}");
}

/// Messages that nest deep, or would be deep for a parser.
#[test]
fn deep_messages_are_refused_and_the_service_goes_on() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "x").model(ENDLESS).queues(1).control();
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1000);
    let ask = |message: &str| {
        let script = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(sys.stdin.buffer.readline()); print(s.makefile().readline())";
        let mut asking = Program::new("python3")
            .args(["-c", script])
            .arg(run.ctl().socket())
            .told()
            .start();
        asking.tell(message);
        asking.wait().expect(0).stdout
    };
    let answer = ask(&"[".repeat(60_000));
    assert!(answer.contains("\"malformed\""), "{answer}");
    for expression in [
        format!("{}ip{}", "(".repeat(20_000), ")".repeat(20_000)),
        format!("{}ip", "not ".repeat(15_000)),
        format!("ip[0]{}{} = 5", "+(1".repeat(990), ")".repeat(990)),
        format!("ip[{}0{} = 5", "ip[".repeat(1000), "]".repeat(1001)),
    ] {
        let message = format!(
            r#"{{"version":1,"id":1,"command":{{"do":"filter","expression":"{expression}"}}}}"#
        );
        let answer = ask(&message);
        assert!(answer.contains("\"malformed\""), "{answer}");
    }
    run.ctl().until_counted(&mut running, "captured", 2000);
    running.signal(Signal::TERM);
    let _ = run.finished(running.wait(), 0);
}
