//! Limits on the instructions of hot code per frame, which do not depend on the machine's load. callgrind
//! counts the instructions, and `instructions.toml` holds the recorded counts. A count that exceeds the
//! record by more than [`TOLERANCE`] fails the test. A lower count fails it too, until it is recorded:
//! otherwise a later loss could hide behind the gain.
//!
//! `WQCAP_RECORD=1 cargo test --package wqcap-benches --test instructions` records the counts. They are
//! of the test profile and of the compiler that `instructions.toml` names; with another compiler the
//! comparison is skipped. The counts are valid with and without incremental compilation
//! (`CARGO_INCREMENTAL=0`), which splits a crate into different codegen units. If a count differs much
//! between the two, a small function that is called needs `#[inline]`; if it differs a little, a value
//! between the two is recorded.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
    process::Command,
};

/// Maximum relative difference of a count from its record.
const TOLERANCE: f64 = 0.03;
/// Number of frames of the two runs. The difference of their counts excludes the cost of the start.
const FRAMES: [u64; 2] = [2_800, 28_000];
const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.toml");

#[derive(serde::Serialize, serde::Deserialize)]
struct Record {
    /// Output of `rustc --version`.
    rustc: String,
    /// Instructions per frame, by piece of code.
    pieces: BTreeMap<String, f64>,
}

#[test]
fn instruction_counts_match_the_record() {
    let skip = |why: &str| {
        println!("SKIP instructions::instruction_counts_match_the_record: {why}");
        if let Some(log) = std::env::var_os("WQCAP_SKIP_LOG") {
            let log = OpenOptions::new().create(true).append(true).open(log);
            let line = format!("SKIP instructions::instruction_counts_match_the_record: {why}\n");
            let written = log.and_then(|mut log| log.write_all(line.as_bytes()));
            written.expect("the log of skips is written");
        }
    };
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skip("valgrind is not installed");
    }
    let rustc = rustc();
    let counted = Record {
        pieces: pieces()
            .into_iter()
            .map(|it| (it.clone(), per_frame(&it)))
            .collect(),
        rustc,
    };
    for (piece, count) in &counted.pieces {
        println!("{piece}: {count:.1} instructions per frame");
    }
    if std::env::var_os("WQCAP_RECORD").is_some() {
        let text = toml::to_string(&counted).expect("TOML");
        fs::write(RECORD, text).expect("the record is written");
        return;
    }
    let record: Record =
        toml::from_str(&fs::read_to_string(RECORD).expect("the record")).expect("a record");
    if record.rustc != counted.rustc {
        let why = format!(
            "the record is of {}, this compiler is {}",
            record.rustc, counted.rustc
        );
        return skip(&why);
    }
    assert!(
        record.pieces.keys().eq(counted.pieces.keys()),
        "the pieces differ from the record; run with WQCAP_RECORD=1 to record them"
    );
    let changed: Vec<_> = counted
        .pieces
        .iter()
        .filter(|(piece, count)| (*count / record.pieces[*piece] - 1.0).abs() > TOLERANCE)
        .map(|(piece, count)| format!("{piece}: {count:.1}, was {:.1}", record.pieces[piece]))
        .collect();
    assert!(
        changed.is_empty(),
        "instructions per frame changed by more than {TOLERANCE}: {changed:#?}; if that is intended, run with \
         WQCAP_RECORD=1 to record them"
    );
}

fn rustc() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output();
    let output = output.expect("the compiler is installed");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn pieces() -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_hot")).output();
    let output = output.expect("hot runs");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

fn per_frame(piece: &str) -> f64 {
    let [few, many] = FRAMES.map(|frames| instructions(piece, frames));
    let exact = (many - few) as f64 / (FRAMES[1] - FRAMES[0]) as f64;
    (exact * 10.0).round() / 10.0
}

fn instructions(piece: &str, frames: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(Path::new(env!("CARGO_BIN_EXE_hot")))
        .args([piece, &frames.to_string()])
        .output()
        .expect("valgrind runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{piece}: {text}");
    text.lines()
        .find_map(|line| line.split_once("Collected : "))
        .and_then(|(_, count)| count.trim().parse().ok())
        .unwrap_or_else(|| panic!("{piece}: callgrind reports no count: {text}"))
}
