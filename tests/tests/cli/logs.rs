//! Lines on stderr as JSON objects (`--log-format json`), also those of failures and signals.

use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use wqcap_tests::{Dir, Done, Running, Wqcap, binaries, wqcap::wqcap};

/// Short wire, whose run ends by itself.
const SHORT: &str = "synth:count=1000";
/// Endless wire, slow enough for a debug build.
const ENDLESS: &str = "synth:size=94,flows=64,pps=20000";

/// Returns the lines of stderr, each of which must be a JSON object of the documented schema.
fn records(stderr: &str) -> Vec<Value> {
    let schema = fs::read_to_string(binaries::root().join("docs/log.schema.json"));
    let schema: Value = serde_json::from_str(&schema.expect("the schema")).expect("JSON");
    let keys: Vec<_> = schema["required"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| it.as_str().expect("a key"))
        .collect();
    let lines = stderr.lines().map(|line| {
        let record: Value =
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line:?} in {stderr}"));
        let object = record.as_object().expect("an object");
        assert!(
            object.keys().all(|it| keys.contains(&it.as_str())),
            "{line}"
        );
        assert!(keys.iter().all(|it| object.contains_key(*it)), "{line}");
        let time = record["time"].as_str().expect("a text");
        let digits = |c: char| if c.is_ascii_digit() { '0' } else { c };
        let form: String = time.chars().map(digits).collect();
        assert_eq!(form, "0000-00-00T00:00:00.000000Z", "{line}");
        for key in ["level", "target", "message"] {
            assert!(record[key].is_string(), "{key}: {line}");
        }
        assert!(record["fields"].is_object(), "{line}");
        record
    });
    lines.collect()
}

fn errors(done: &Done) -> Vec<String> {
    let all = records(&done.stderr).into_iter();
    let errors = all.filter(|it| it["level"] == "ERROR");
    errors
        .map(|it| it["message"].as_str().expect("a text").to_owned())
        .collect()
}

#[test]
fn each_line_of_a_run_is_an_object() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "json")
        .model(SHORT)
        .args(&["--log-format", "json", "-vv"]);
    let done = run.done().expect(0);
    let records = records(&done.stderr);
    let of = |part: &str| {
        let has = |it: &&Value| it["message"].as_str().is_some_and(|it| it.contains(part));
        records
            .iter()
            .find(has)
            .unwrap_or_else(|| panic!("no {part:?}: {done}"))
    };
    assert_eq!(of("capturing mlx5_0")["target"], "wqcap");
    // The final table is one message.
    let table = of("1,000");
    assert!(
        table["message"]
            .as_str()
            .is_some_and(|it| it.contains('\n')),
        "{table}"
    );
    let event = records.iter().find(|it| it["level"] == "DEBUG");
    let event = event.unwrap_or_else(|| panic!("no event of the log: {done}"));
    assert!(
        event["target"]
            .as_str()
            .is_some_and(|it| it.starts_with("wqcap")),
        "{event}"
    );
}

#[test]
fn errors_are_objects() {
    for (args, code, part) in [
        (
            &[
                "--log-format",
                "json",
                "run",
                "--model",
                SHORT,
                "--set",
                "capture.queus=1",
            ][..],
            2,
            "queus",
        ),
        // clap refuses these before any option has its value.
        (
            &["--log-format", "json", "run", "--no-such-option"],
            2,
            "--no-such-option",
        ),
        (&["run", "--count", "many", "--log-format=json"], 2, "many"),
        (
            &[
                "extract",
                "--log-format=json",
                "-o",
                "x.pcap",
                "/nonexistent.pcap",
            ],
            2,
            "/nonexistent.pcap",
        ),
    ] {
        let done = wqcap(args).run().expect(code);
        let errors = errors(&done);
        assert!(errors.iter().any(|it| it.contains(part)), "{done}");
        assert!(!errors.iter().any(|it| it.starts_with("error:")), "{done}");
    }
    let done = wqcap(["--log-format", "yaml", "devices"]).run().expect(2);
    done.says(&["error: ", "yaml", "text", "json"]);
}

#[test]
fn audit_lines_have_their_fields_and_signals_their_answers() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "audit")
        .model(ENDLESS)
        .args(&["--log-format=json"]);
    let mut running = run.start();
    let capturing = |run: &Running| run.stderr().contains("capturing mlx5_0");
    running.until("the run receives", capturing);
    running.signal(Signal::USR1);
    running.until("the counters are printed", |it| {
        it.stderr().contains("received")
    });
    running.signal(Signal::TERM);
    let done = running.wait().expect(0);
    let records = records(&done.stderr);
    let audit = records.iter().find(|it| it["target"] == "audit");
    let audit = audit.unwrap_or_else(|| panic!("no line of the audit trail: {done}"));
    assert_eq!(audit["level"], "INFO", "{audit}");
    assert_eq!(audit["message"], "SIGTERM", "{audit}");
    assert_eq!(audit["fields"]["result"], json!("changed"), "{audit}");
    assert!(
        audit["fields"]["who"]
            .as_str()
            .is_some_and(|it| it.starts_with("uid ")),
        "{audit}"
    );
}

#[test]
fn foreign_text_is_no_line_of_its_own_and_directs_no_terminal() {
    let name = "a\n{}\u{202e}\u{1b}[31m.toml";
    let done = wqcap(["run", "--log-format", "json", "-c", name])
        .run()
        .expect(2);
    let errors = errors(&done);
    assert!(!done.stderr.contains(['\u{202e}', '\u{1b}']), "{done}");
    assert!(errors.iter().any(|it| it.contains("[31m.toml")), "{done}");
}

#[test]
fn a_line_end_in_a_name_begins_no_line_of_a_table() {
    let dir = Dir::new();
    let output = dir.path().join("a\nforged");
    fs::create_dir(&output).expect("made");
    let config = dir.path().join("c.toml");
    fs::write(&config, format!("[output]\ndir = {output:?}\n")).expect("written");
    let config = config.to_str().expect("a path");
    let [run, check] = ["run", "check"].map(|command| {
        let args = [command, "-c", config, "--model", "synth:count=10"];
        wqcap(args).run().expect(0)
    });
    assert!(!run.stderr.contains("\nforged"), "{run}");
    // The configuration above the plan is TOML, whose strings may have several lines.
    let plan = check.stdout.split("# The plan").nth(1).expect("a plan");
    for text in [&run.stderr, plan] {
        assert!(text.contains("a\\nforged"), "{run}{check}");
    }
}
