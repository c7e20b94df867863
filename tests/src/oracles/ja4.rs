//! JA4 fingerprints of TLS clients from `ja4plus` (PyPI), which shares no code with Wireshark's or
//! FoxIO's implementation.

use super::pypi;
use crate::Program;
use serde_json::Value;
use std::{collections::BTreeMap, path::Path};

/// Pinned version of the package.
const VERSION: &str = "1.4.0";

/// Returns the fingerprint of each TLS client in a capture file. The key is the sorted pair of
/// endpoints, each in the form `10.0.0.1 5000`.
///
/// # Errors
/// Returns a reason to skip if pip is missing or PyPI cannot be reached.
///
/// # Panics
/// Panics if `ja4plus` fails.
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
