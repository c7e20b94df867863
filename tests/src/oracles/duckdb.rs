//! DuckDB from PyPI: a Parquet reader that shares no code with the writer.

use super::pypi;
use crate::{Done, Program, Running};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock, PoisonError},
};

/// Pinned version of the package.
const VERSION: &str = "2.0.0";

/// Python program that reads one query per line, as a JSON string, and prints its rows as JSON.
/// Times are converted to text, because JSON has no type for them.
const SESSION: &str = "\
import duckdb, json, sys
for line in sys.stdin:
    rows = duckdb.sql(json.loads(line)).fetchall()
    print(json.dumps(rows, default=str), flush=True)
";

/// DuckDB session.
pub struct Duckdb {
    /// Single process for all queries, because its start takes far longer than a query.
    session: Mutex<Session>,
    packages: PathBuf,
}

struct Session {
    python: Running,
    /// Number of answers read from the process so far.
    lines: usize,
}

impl Duckdb {
    /// Installs DuckDB in the folder of the binaries, unless it is installed, and starts a session.
    ///
    /// # Errors
    /// Returns a reason to skip if pip is missing or PyPI cannot be reached.
    ///
    /// # Panics
    /// Panics if the installed package cannot be moved to its folder.
    pub fn install() -> Result<Self, String> {
        static PACKAGES: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let packages = PACKAGES
            .get_or_init(|| pypi::installed("duckdb", "", VERSION))
            .clone()?;
        let python = Program::new("python3")
            .args(["-c", SESSION])
            .env("PYTHONPATH", &packages)
            .env("TZ", "UTC")
            .told()
            .start();
        let session = Mutex::new(Session { python, lines: 0 });
        Ok(Self { session, packages })
    }

    /// Runs a Python program that can import DuckDB, with `cwd` as the working directory.
    #[must_use]
    #[track_caller]
    pub fn python(&self, program: &str, cwd: &Path) -> Done {
        Program::new("python3")
            .args(["-c", program])
            .env("PYTHONPATH", &self.packages)
            .cwd(cwd)
            .run()
            .expect(0)
    }

    /// Returns the rows of a query, each as an array.
    ///
    /// # Panics
    /// Panics if the query fails.
    #[must_use]
    #[track_caller]
    pub fn query(&self, sql: &str) -> Vec<Vec<Value>> {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let Session { python, lines } = &mut *session;
        python.tell(&Value::from(sql).to_string());
        *lines += 1;
        python.until(sql, |it| it.stdout().matches('\n').count() >= *lines);
        let output = python.stdout();
        let answer = output.lines().last().expect("an answer was printed");
        serde_json::from_str(answer).unwrap_or_else(|e| panic!("{sql}: {e}: {answer}"))
    }
}
