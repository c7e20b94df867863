//! DuckDB, from PyPI: a reader of Parquet that shares no code with the writer.

use crate::{Program, binaries};
use serde_json::Value;
use std::{fs, path::PathBuf, time::Duration};

/// What is installed; a newer one is taken on purpose, not by chance.
const VERSION: &str = "2.0.0";

/// Prints a query's rows as JSON; times, which JSON lacks, become text.
const QUERY: &str = "\
import duckdb, json, sys
rows = duckdb.sql(sys.argv[1]).fetchall()
print(json.dumps(rows, default=str))
";

/// DuckDB, ready for queries.
#[derive(Debug)]
pub struct Duckdb {
    packages: PathBuf,
}

impl Duckdb {
    /// Finds it, or installs it beside the binaries, once.
    ///
    /// # Errors
    /// There is no pip, or no way to PyPI: a reason to skip.
    ///
    /// # Panics
    /// When what has been installed cannot be put in its place.
    pub fn install() -> Result<Self, String> {
        let target = binaries::profile_dir();
        let packages = target.join(format!("duckdb-{VERSION}"));
        if packages.is_dir() {
            return Ok(Self { packages });
        }
        // In a folder of its own at first: half an installation must not be taken for one.
        let fresh = tempfile::Builder::new()
            .prefix("duckdb-")
            .tempdir_in(&target)
            .expect("the target folder can be written to");
        let done = Program::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--no-input"])
            .args(["--disable-pip-version-check", "--retries=1", "--timeout=20"])
            .arg("--only-binary=:all:")
            .arg("--target")
            .arg(fresh.path())
            .arg(format!("duckdb=={VERSION}"))
            .timeout(Duration::from_secs(120))
            .run();
        if !done.status.success() {
            let last = done.stderr.trim().lines().last().unwrap_or_default();
            return Err(format!(
                "DuckDB {VERSION} cannot be installed from PyPI: {last}"
            ));
        }
        if let Err(e) = fs::rename(fresh.path(), &packages) {
            assert!(packages.is_dir(), "{}: {e}", packages.display());
        }
        Ok(Self { packages })
    }

    /// The rows of a query, an array each.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    #[track_caller]
    pub fn query(&self, sql: &str) -> Vec<Vec<Value>> {
        let done = Program::new("python3")
            .args(["-c", QUERY, sql])
            .env("PYTHONPATH", &self.packages)
            .env("TZ", "UTC")
            .run()
            .expect(0);
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
    }
}
