//! Engines that read Parquet, from PyPI, in a Python of their own: hundreds of megabytes, which only tests take that
//! `scripts/soak` runs.

use crate::{Done, Program, binaries};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Every package that any of them takes, each in the version that is known to work.
const LOCK: &str = "tests/src/oracles/readers.txt";

/// Reads everything, and prints it as JSON.
const READ: &str = include_str!("readers.py");

/// What is slow is the way from PyPI.
const PATIENCE: Duration = Duration::from_secs(1800);

/// An engine, installed.
pub struct Reader {
    /// The package that it is.
    name: &'static str,
    python: PathBuf,
}

impl Reader {
    /// Installs the package `name` beside the binaries, once.
    ///
    /// # Errors
    /// There is no pip, no way to PyPI, no such version there for this Python, or no Java for Spark: a reason to skip.
    pub fn install(name: &'static str) -> Result<Self, String> {
        // All share a Python, which is no place for two installations at once.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        if name == "pyspark" {
            reason(
                "no Java for Spark",
                &Program::new("sh").args(["-c", "java -version"]).run(),
            )?;
        }
        let home = binaries::profile_dir().join("readers");
        let venv = ["-m", "venv", "--without-pip"];
        let made = Program::new("python3").args(venv).arg(&home).run();
        reason("no Python of its own", &made)?;
        let python = home.join("bin/python");
        let mut packages = vec![name];
        if name == "pysail" {
            // Its clients are Spark's.
            packages.push("pyspark[connect]");
        }
        let installed = Program::new("python3")
            .args(["-m", "pip", "--python"])
            .arg(&python)
            .args(["install", "--quiet", "--no-input", "--retries=1"])
            .args(["--disable-pip-version-check", "--constraint"])
            .arg(binaries::root().join(LOCK))
            .args(packages)
            .timeout(PATIENCE)
            .run();
        reason(&format!("{name} cannot be installed from PyPI"), &installed)?;
        Ok(Self { name, python })
    }

    /// What it reads of the files in a folder: `types`, `rows`, and the numbers of rows that are `named` so, and of rows
    /// `since` a time in microseconds.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    #[track_caller]
    pub fn read(&self, folder: &Path, name: &str, since_us: u64) -> Value {
        self.ask(folder, &[name, &since_us.to_string()])
    }

    /// Frames by sensor in a store's tables: `blocks` and `flows`.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    #[track_caller]
    pub fn sums(&self, store: &Path) -> Value {
        self.ask(store, &[])
    }

    /// What it tells of a folder, as JSON.
    #[track_caller]
    fn ask(&self, folder: &Path, more: &[&str]) -> Value {
        let name = folder.to_str().expect("a plain path");
        let done = self.run(READ, &[&[self.name, name], more].concat(), folder);
        let last = done.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {done}"))
    }

    /// A program in Python in a working directory, run to its end.
    #[must_use]
    #[track_caller]
    pub fn run(&self, program: &str, args: &[&str], cwd: &Path) -> Done {
        let run = Program::new(&self.python).args(["-c", program]).args(args);
        run.env("TZ", "UTC").cwd(cwd).run().expect(0)
    }
}

/// Why something is not there.
fn reason(what: &str, done: &Done) -> Result<(), String> {
    if done.status.success() {
        return Ok(());
    }
    let last = done.stderr.trim().lines().last().unwrap_or_default();
    Err(format!("{what}: {last}"))
}
