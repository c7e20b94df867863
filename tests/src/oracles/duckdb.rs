//! DuckDB, from PyPI: a reader of Parquet that shares no code with the writer.

use super::pypi;
use crate::{Done, Program, Running};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock, PoisonError},
};

/// What is installed; a newer one is taken on purpose, not by chance.
const VERSION: &str = "2.0.0";

/// Answers each line, a query as JSON, by its rows as JSON; times, which JSON lacks, become text.
const SESSION: &str = "\
import duckdb, json, sys
for line in sys.stdin:
    rows = duckdb.sql(json.loads(line)).fetchall()
    print(json.dumps(rows, default=str), flush=True)
";

/// DuckDB, ready for queries.
pub struct Duckdb {
    /// One process for all queries: to start it takes far longer than any of them.
    session: Mutex<Session>,
    packages: PathBuf,
}

struct Session {
    python: Running,
    /// Lines that it has printed.
    lines: usize,
}

impl Duckdb {
    /// Finds it, or installs it beside the binaries, once, and starts it.
    ///
    /// # Errors
    /// There is no pip, or no way to PyPI: a reason to skip.
    ///
    /// # Panics
    /// When what has been installed cannot be put in its place.
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

    /// Runs a program in Python, in a working directory.
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

    /// The rows of a query, an array each.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    #[track_caller]
    pub fn query(&self, sql: &str) -> Vec<Vec<Value>> {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let Session { python, lines } = &mut *session;
        python.tell(&Value::from(sql).to_string());
        *lines += 1;
        python.until(sql, |it| it.stdout().matches('\n').count() >= *lines);
        let said = python.stdout();
        let answer = said.lines().last().expect("waited for");
        serde_json::from_str(answer).unwrap_or_else(|e| panic!("{sql}: {e}: {answer}"))
    }
}
