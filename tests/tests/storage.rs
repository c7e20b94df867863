//! Files as they come and go: rotation, what is kept, hooks, compression, and the readers of other people.
//!
//! | test | what it shows |
//! |---|---|
//! | `the_oldest_files_go_and_strangers_stay` | `output.keep_files`, `output.keep` |
//! | `each_finished_file_has_its_hook` | `output.hook`: every file once, whole and named |
//! | `hooks_that_fail_are_counted_and_cost_nothing` | failures do not change the run's end |

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use wqcap_tests::{Dir, Summary, Wqcap, files};

/// Some megabytes in a second or so.
const WIRE: &str = "synth:size=1500,flows=64,count=4000";

/// An executable script.
fn script(path: &Path, body: &str) {
    fs::write(path, format!("#!/bin/sh\n{body}\n")).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
}

/// The names in a folder, sorted.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .expect("lists")
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("plain")
        })
        .collect();
    names.sort();
    names
}

/// The summary of a run that has ended well; its files are for the test to judge.
#[track_caller]
fn summary(run: &Wqcap<'_>) -> Summary {
    let done = run.done().expect(0);
    let text = fs::read_to_string(run.summary_path()).unwrap_or_else(|e| panic!("{e}: {done}"));
    Summary::parse(&text)
}

#[test]
fn the_oldest_files_go_and_strangers_stay() {
    let dir = Dir::new();
    let sets: [(&[&str], usize, u64); 3] = [
        (&["output.keep_files=5"], 5, u64::MAX),
        (&["output.keep=1MiB"], usize::MAX, 1 << 20),
        (&["output.keep=1MiB", "output.keep_files=2"], 2, 1 << 20),
    ];
    for (i, (sets, most_files, most_bytes)) in sets.into_iter().enumerate() {
        let out = dir.folder(&format!("{i}.out"));
        // Older than any of the run's, but for those that are not its own.
        for name in [
            "wqcap-q00-17.pcap",
            "wqcap-q01-18.pcap.zst",
            "wqcap-q00-19.pcap.part",
            "notes.pcap",
        ] {
            fs::write(out.join(name), b"old").expect("written");
        }
        let mut run = Wqcap::run(&dir, &i.to_string())
            .model(WIRE)
            .queues(2)
            .out(&out)
            .set("output.rotate_size=200KB");
        for set in sets {
            run = run.set(set);
        }
        let summary = summary(&run);
        assert_eq!(summary.ledger.total.captured, 4000);
        let mut left = names(&out);
        for stranger in ["notes.pcap", "wqcap-q00-19.pcap.part"] {
            let at = left.iter().position(|name| name == stranger);
            left.remove(at.unwrap_or_else(|| panic!("{stranger} is gone: {left:?}")));
        }
        assert!(!left.is_empty() && left.len() <= most_files, "{left:?}");
        let paths: Vec<_> = left.iter().map(|name| out.join(name)).collect();
        let bytes: u64 = paths
            .iter()
            .map(|p| fs::metadata(p).expect("there").len())
            .sum();
        assert!(bytes <= most_bytes, "{bytes} in {left:?}");
        let mut named = summary.files.clone();
        named.sort();
        assert_eq!(named, paths, "the summary names what is left");
        let deleted = summary.json["deleted"]["files"].as_u64().expect("told");
        assert!(deleted >= 2 + 4000 / 133 - paths.len() as u64, "{deleted}");
        // What stays is the newest: of each queue, the end of its frames.
        let last = paths
            .iter()
            .flat_map(|p| files::read(p))
            .map(|r| r.ts)
            .max();
        let first = paths
            .iter()
            .flat_map(|p| files::read(p))
            .map(|r| r.ts)
            .min();
        assert!(last > first);
    }
}

#[test]
fn each_finished_file_has_its_hook() {
    let dir = Dir::new();
    let (hook, seen) = (dir.join("hook"), dir.folder("seen"));
    // A hook sees a whole file under its final name, and may take it away.
    script(&hook, &format!("mv \"$1\" {}", seen.display()));
    let run = Wqcap::run(&dir, "x")
        .model(WIRE)
        .queues(2)
        .set("output.rotate_size=500KB")
        .set(&format!("output.hook={}", hook.display()));
    let summary = summary(&run);
    assert_eq!(names(run.out_path()), Vec::<String>::new());
    let named: BTreeSet<_> = summary
        .files
        .iter()
        .map(|p| {
            p.file_name()
                .and_then(|n| n.to_str())
                .expect("plain")
                .to_owned()
        })
        .collect();
    let moved = names(&seen);
    assert_eq!(moved.iter().cloned().collect::<BTreeSet<_>>(), named);
    assert_eq!(summary.json["hooks"]["succeeded"], moved.len());
    assert_eq!(summary.json["hooks"]["failed"], 0);
    let paths: Vec<PathBuf> = moved.iter().map(|name| seen.join(name)).collect();
    let frames: usize = paths.iter().map(|p| files::read(p).len()).sum();
    assert_eq!(frames, 4000);
}

#[test]
fn hooks_that_fail_are_counted_and_cost_nothing() {
    let dir = Dir::new();
    let hook = dir.join("hook");
    script(&hook, "echo to stdout; echo to stderr >&2; exit 7");
    let run = Wqcap::run(&dir, "x")
        .model(WIRE)
        .queues(1)
        .args(&["--json"])
        .set(&format!("output.hook={}", hook.display()));
    let finished = run.finish(0);
    assert_eq!(finished.summary.json["hooks"]["failed"], 1);
    finished
        .done
        .says(&["output.hook", "exit status: 7", "to stdout", "to stderr"]);
    let json: serde_json::Value = serde_json::from_str(&finished.done.stdout).expect("JSON alone");
    assert_eq!(json["hooks"]["failed"], 1);
    // What cannot be run is refused before anything is created.
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o644)).expect("set");
    for (hook, problem) in [(&hook, "chmod +x"), (&dir.join("absent"), "No such file")] {
        Wqcap::run(&dir, "refused")
            .model(WIRE)
            .set(&format!("output.hook={}", hook.display()))
            .done()
            .expect(2)
            .says(&["output.hook", problem]);
    }
}
