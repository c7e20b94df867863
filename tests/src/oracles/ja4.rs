//! JA4 of TLS clients by `ja4plus` from PyPI, which shares no code with Wireshark's nor with FoxIO's.

use super::pypi;
use crate::Program;
use serde_json::Value;
use std::{collections::BTreeMap, path::Path};

/// What is installed; a newer one is taken on purpose, not by chance.
const VERSION: &str = "1.4.0";

/// The fingerprint of each client in a capture file, by the two ends of its flow, `10.0.0.1 5000`, in their order.
///
/// # Errors
/// There is no pip, or no way to PyPI: a reason to skip.
///
/// # Panics
/// It fails.
pub fn fingerprints(file: &Path) -> Result<BTreeMap<[String; 2], String>, String> {
    let packages = pypi::installed("ja4plus", "", VERSION)?;
    let done = Program::new("python3")
        .args(["-m", "ja4plus.cli", "--format", "json", "--types", "ja4"])
        .arg("analyze")
        .arg(file)
        .env("PYTHONPATH", packages)
        .run()
        .expect(0);
    let text = |it: &Value| it.as_str().expect("a text").to_owned();
    let one = |line: &str| {
        let it: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let end = |way: &str| {
            format!(
                "{} {}",
                text(&it[format!("{way}_ip")]),
                it[format!("{way}_port")]
            )
        };
        let mut ends = ["src", "dst"].map(end);
        ends.sort();
        (ends, text(&it["fingerprint"]))
    };
    Ok(done.stdout.lines().map(one).collect())
}
