//! Test of the summary against `docs/summary.md`: the page has every key of real summaries with its
//! type, and every documented key occurs in one of them.

use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path};
use wqcap_tests::{Dir, Wqcap, binaries, files};

/// Returns the documented keys and their types.
fn documented() -> BTreeMap<String, String> {
    let path = binaries::root().join("docs/summary.md");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let key = cells.next()?.strip_suffix('`')?;
        Some((key.to_owned(), cells.next()?.to_owned()))
    });
    rows.collect()
}

/// Returns the documented key of the member `name` in the object with the documented key `of`: the
/// key with its name, or `of.*` if only that is documented.
fn key_of(documented: &BTreeMap<String, String>, of: &str, name: &str) -> String {
    let own = if of.is_empty() {
        name.to_owned()
    } else {
        format!("{of}.{name}")
    };
    let any = format!("{of}.*");
    if !documented.contains_key(&own) && documented.contains_key(&any) {
        any
    } else {
        own
    }
}

/// Returns `true` if `value` has the documented type `kind`.
fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "count" => value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        other => panic!("docs/summary.md has a type {other:?}"),
    }
}

/// Adds to `seen` the documented keys of a summary, and asserts that every key is documented and
/// that its value has the documented type.
fn walk(documented: &BTreeMap<String, String>, key: &str, value: &Value, seen: &mut Vec<String>) {
    if let Some(kinds) = documented.get(key) {
        assert!(
            kinds.split(" or ").any(|kind| is_of(value, kind)),
            "{key} has the type {kinds}: {value}"
        );
        seen.push(key.to_owned());
    } else {
        // For an array of objects, only the members of its elements are documented.
        let member = key.is_empty() || key.ends_with("[]") && value.is_object();
        assert!(member, "docs/summary.md lacks {key}: {value}");
    }
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                walk(documented, &key_of(documented, key, name), member, seen);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                walk(documented, &format!("{key}[]"), element, seen);
            }
        }
        _ => {}
    }
}

/// Returns the summary of a run with every feature that has keys in the summary. Its output folder
/// contains a copy of `left` as the unfinished file of an earlier run.
fn everything_on(dir: &Dir, left: &Path) -> Value {
    let run = Wqcap::run(dir, "all")
        .config("[[cutoff]]\npackets = 390\n")
        .model("synth:size=100,flows=20,count=8000")
        .queues(2)
        .set("capture.statistics=true")
        .set("capture.verify_fcs=true")
        .set("wq.scatter_fcs=true")
        .set("capture.slice=l4")
        .set(&format!("flows.dir={}", dir.folder("flows").display()))
        .set("output.rotate_size=64KiB")
        .set("output.keep_files=4")
        .set("output.hook=/bin/true")
        .set("output.encrypt_key_command=printf %064d 7")
        .set("model.fault=wq_fatal:queue=0@frames=2000");
    // The unfinished file of an earlier run.
    let out = dir.folder("all.out");
    fs::copy(left, out.join("wqcap-q07-1.pcap.part")).expect("a copy");
    // `finish` would count the frames in all files, but some files have been deleted.
    let _ = run.done().expect(0);
    let text = fs::read_to_string(run.summary_path()).expect("a summary");
    serde_json::from_str(&text).expect("JSON")
}

/// Returns the summary of a run with `flows.names` on one DNS message and one DHCP message.
fn with_names(dir: &Dir) -> Value {
    let sample =
        |name| fs::read(binaries::root().join("fuzz/corpus").join(name)).expect("a sample");
    // Each frame has the headers of the DNS sample and the message of another one, with the lengths
    // in the headers adjusted.
    let frames = [
        ("names/answer", [0x12, 0x34, 0, 53]),
        ("names/dhcp", [0, 68, 0, 67]),
    ];
    let frames = frames.map(|(message, ports)| {
        let mut frame = sample("headers/dns");
        frame.truncate(42);
        frame[34..38].copy_from_slice(&ports);
        frame.extend_from_slice(&sample(message)[1..]);
        for (length, header) in [(16, 14), (38, 34)] {
            let len = u16::try_from(frame.len() - header).expect("short");
            frame[length..length + 2].copy_from_slice(&len.to_be_bytes());
        }
        frame
    });
    let file = dir.join("messages.pcap");
    files::write(&file, 1_600_000_000, &frames);
    let finished = Wqcap::run(dir, "names")
        .replay(&file)
        .set(&format!(
            "flows.dir={}",
            dir.folder("names.flows").display()
        ))
        .set("flows.names=true")
        .finish(0);
    finished.summary.json
}

/// Returns the summary of a run of two ports.
fn of_two_ports(dir: &Dir) -> Value {
    let finished = Wqcap::run(dir, "ports")
        .config("[[port]]\ndevice = \"mlx5_0\"\nlabel = \"a\"\n[[port]]\ndevice = \"mlx5_0\"\nport = 2\nlabel = \"b\"\n")
        .model("synth:count=1000")
        .set("model.mlx5_0.ports=2")
        .set("model.mlx5_0.port2.wire=synth:count=500")
        .set("output.order=queue")
        .finish(0);
    finished.summary.json
}

#[test]
fn summaries_and_their_documentation_have_the_same_keys() {
    let documented = documented();
    let dir = Dir::new();
    let plain = Wqcap::run(&dir, "plain")
        .model("synth:count=1000")
        .set("capture.timestamps=software")
        .finish(0);
    let (_, left) = plain.files().remove(0);
    let failed = Wqcap::run(&dir, "failed")
        .model("synth:count=20000")
        .set("model.fault=device_fatal@frames=5000")
        .finish(1);
    let mut seen = Vec::new();
    let (plain, failed) = (plain.summary.json, failed.summary.json);
    for summary in [
        &plain,
        &failed,
        &everything_on(&dir, &left),
        &with_names(&dir),
        &of_two_ports(&dir),
    ] {
        walk(&documented, "", summary, &mut seen);
    }
    assert!(failed["error"].is_string());
    assert!(plain["clock"].is_null() && plain["error"].is_null());
    // A summary has a class of malformed frames only if such frames arrived.
    for key in documented.keys().filter(|key| *key != "malformed.*") {
        assert!(
            seen.contains(key),
            "{key} is documented and occurs in a summary"
        );
    }
}
