//! What hot code costs, in instructions for each frame, whatever else the machine does: callgrind counts them, and
//! `instructions.toml` has what they were. More than [`TOLERANCE`] above that fails; so does less, until it is written
//! down, or the next loss would hide behind the gain.
//!
//! `WQCAP_RECORD=1 cargo test --package wqcap-benches --test instructions` writes it down. Counts are of the profile that
//! tests are built with, by the compiler that `instructions.toml` names; with another one the test says so and leaves
//! the comparison out. They hold with incremental compilation and without (`CARGO_INCREMENTAL=0`), which cuts a crate
//! into other codegen units: a count that is quite another one then calls something small that wants `#[inline]`; where the
//! two differ by a little, what is between them is written down.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
    process::Command,
};

/// Of a count, either way.
const TOLERANCE: f64 = 0.03;
/// Frames of both runs: what the longer one takes more is the frames' alone.
const FRAMES: [u64; 2] = [2_800, 28_000];
const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.toml");

#[derive(serde::Serialize, serde::Deserialize)]
struct Record {
    /// `rustc --version`.
    rustc: String,
    /// Instructions for each frame.
    pieces: BTreeMap<String, f64>,
}

#[test]
fn hot_code_takes_what_it_took() {
    let skip = |why: &str| {
        println!("SKIP instructions::hot_code_takes_what_it_took: {why}");
        if let Some(log) = std::env::var_os("WQCAP_SKIP_LOG") {
            let log = OpenOptions::new().create(true).append(true).open(log);
            let line = format!("SKIP instructions::hot_code_takes_what_it_took: {why}\n");
            let told = log.and_then(|mut log| log.write_all(line.as_bytes()));
            told.expect("the log of skips");
        }
    };
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skip("valgrind is not here");
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
        println!("{piece}: {count:.1} instructions for each frame");
    }
    if std::env::var_os("WQCAP_RECORD").is_some() {
        let text = toml::to_string(&counted).expect("TOML");
        fs::write(RECORD, text).expect("the record is written");
        return;
    }
    let record: Record =
        toml::from_str(&fs::read_to_string(RECORD).expect("the record")).expect("a record");
    if record.rustc != counted.rustc {
        let why = format!("{} counted, this is {}", record.rustc, counted.rustc);
        return skip(&why);
    }
    assert!(
        record.pieces.keys().eq(counted.pieces.keys()),
        "write it down: WQCAP_RECORD=1"
    );
    let changed: Vec<_> = counted
        .pieces
        .iter()
        .filter(|(piece, count)| (*count / record.pieces[*piece] - 1.0).abs() > TOLERANCE)
        .map(|(piece, count)| format!("{piece}: {count:.1}, was {:.1}", record.pieces[piece]))
        .collect();
    assert!(
        changed.is_empty(),
        "instructions for each frame changed by more than {TOLERANCE}; if that is meant, write it down \
         (WQCAP_RECORD=1): {changed:#?}"
    );
}

fn rustc() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output();
    let output = output.expect("the compiler is here when its tests run");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn pieces() -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_hot")).output();
    let output = output.expect("it runs");
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
        .unwrap_or_else(|| panic!("{piece}: callgrind tells no count: {text}"))
}
