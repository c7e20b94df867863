//! Filters that libpcap compiles slowly, and filters that nest too deeply for a stack: they neither
//! block nor end the capture or its control service.

use rustix::process::Signal;
use std::{fs, time::Duration};
use wqcap_tests::{Dir, Program, Running, Wqcap, wqcap::wqcap};

/// Endless wire that waits for receive buffers.
const ENDLESS: &str = "synth:size=100,flows=64,pps=20000";
/// Number of hosts in a filter that libpcap compiles for at least half a minute. A filter of this
/// size once overflowed the stack of the control service's thread.
const MANY: usize = 2500;

/// Returns a filter of `n` hosts, none of which is on the wire.
fn hosts(n: usize) -> String {
    let hosts: Vec<_> = (0..n)
        .map(|i| format!("host 9.{}.{}.{}", i >> 16, i >> 8 & 255, i & 255))
        .collect();
    hosts.join(" or ")
}

/// Waits until the thread `wqcap-filter` compiles a filter.
#[track_caller]
fn until_it_compiles(running: &mut Running) {
    let threads = format!("/proc/{}/task", running.pid());
    running.until("a filter is being compiled", |_| {
        let threads = fs::read_dir(&threads).expect("the capture runs");
        let names = threads.filter_map(|it| fs::read_to_string(it.ok()?.path().join("comm")).ok());
        names.into_iter().any(|it| it.trim() == "wqcap-filter")
    });
}

#[test]
fn a_compilation_delays_neither_control_nor_the_end() {
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
                fs::write(&config, format!("[capture]\nfilter = \"{long}\"\n"))
                    .expect("the file is written");
                &["reload"]
            }
        };
        let client = run.ctl().program(args).start();
        until_it_compiles(&mut running);
        // Other clients are served, the capture continues, and the capture's owner applies changes.
        let captured = run.ctl().until_counted(&mut running, "captured", 1);
        run.ctl()
            .until_counted(&mut running, "captured", captured + 1000);
        assert!(run.ctl().change(&["rotate"]), "{way}");
        assert_eq!(
            run.ctl().capture()["filter"],
            "",
            "{way}: the filter is not applied yet"
        );
        running.signal(Signal::TERM);
        let finished = run.finished(running.wait(), 0);
        assert_eq!(finished.summary.json["end"], "stopped", "{way}");
        // The client had no answer yet: the compilation ran for the whole test.
        let refused = client.wait().expect(1);
        assert!(
            !refused.stderr.contains("did not compile"),
            "{way}: {refused}"
        );
    }
}

#[test]
fn changes_with_filters_take_effect_in_the_order_of_their_requests() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "x").model(ENDLESS).queues(1).control();
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", 1000);
    // The first filter compiles for a second, the second filter at once.
    let slow = run.ctl().program(&["filter", &hosts(250)]).start();
    until_it_compiles(&mut running);
    assert!(run.ctl().change(&["filter", "udp"]));
    let _ = slow.wait().expect(0);
    assert_eq!(run.ctl().capture()["filter"], "udp");
    running.signal(Signal::TERM);
    let _ = run.finished(running.wait(), 0);
}

#[test]
fn the_error_for_a_filter_that_is_too_long_names_the_limit() {
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
fn an_interrupt_ends_a_start_during_a_compilation() {
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

/// Messages with deeply nested JSON, and filters that are deeply nested for a parser.
#[test]
fn deeply_nested_messages_are_refused_and_the_service_continues() {
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
