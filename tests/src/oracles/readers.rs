//! Parquet engines from PyPI in a separate Python environment. They take hundreds of megabytes, so
//! only tests that `scripts/soak` runs use them.

use crate::{Done, Program, binaries};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Constraints file with the version of each required package.
const LOCK: &str = "tests/src/oracles/readers.txt";

/// Python program that reads the files with an engine and prints the result as JSON.
const READ: &str = include_str!("readers.py");

/// Deadline of an installation, long enough for a slow download from PyPI.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Installed Parquet engine.
pub struct Reader {
    /// Name of the engine's package.
    name: &'static str,
    python: PathBuf,
}

impl Reader {
    /// Installs the package `name` in the folder of the binaries, unless it is installed.
    ///
    /// # Errors
    /// Returns a reason to skip if pip is missing, PyPI cannot be reached, PyPI has no such version
    /// for this Python, or Spark has no Java.
    pub fn install(name: &'static str) -> Result<Self, String> {
        // All engines share one Python environment, in which only one installation may run at a
        // time.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        if name == "pyspark" {
            reason(
                "Spark requires Java",
                &Program::new("sh").args(["-c", "java -version"]).run(),
            )?;
        }
        let home = binaries::profile_dir().join("readers");
        let venv = ["-m", "venv", "--without-pip"];
        let made = Program::new("python3").args(venv).arg(&home).run();
        reason("cannot create a Python environment", &made)?;
        let python = home.join("bin/python");
        let mut packages = vec![name];
        if name == "pysail" {
            // Clients of pysail are those of Spark.
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

    /// Returns what the engine reads from the files in a folder: `types`, `rows`, the number of
    /// rows with the community ID `name` (`named`), and the number of rows since a time in
    /// microseconds (`since`).
    ///
    /// # Panics
    /// Panics if the engine fails.
    #[must_use]
    #[track_caller]
    pub fn read(&self, folder: &Path, name: &str, since_us: u64) -> Value {
        self.ask(folder, &[name, &since_us.to_string()])
    }

    /// Returns the number of frames per sensor in the tables `blocks` and `flows` of a store.
    ///
    /// # Panics
    /// Panics if the engine fails.
    #[must_use]
    #[track_caller]
    pub fn sums(&self, store: &Path) -> Value {
        self.ask(store, &[])
    }

    /// Runs [`READ`] for a folder and parses the last line of its output.
    #[track_caller]
    fn ask(&self, folder: &Path, more: &[&str]) -> Value {
        let name = folder.to_str().expect("a plain path");
        let done = self.run(READ, &[&[self.name, name], more].concat(), folder);
        let last = done.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {done}"))
    }

    /// Runs a Python program that can import the engine, with `cwd` as the working directory.
    #[must_use]
    #[track_caller]
    pub fn run(&self, program: &str, args: &[&str], cwd: &Path) -> Done {
        let run = Program::new(&self.python).args(["-c", program]).args(args);
        run.env("TZ", "UTC").cwd(cwd).run().expect(0)
    }
}

/// Returns the last line of standard error as a reason to skip, if the program failed.
fn reason(what: &str, done: &Done) -> Result<(), String> {
    if done.status.success() {
        return Ok(());
    }
    let last = done.stderr.trim().lines().last().unwrap_or_default();
    Err(format!("{what}: {last}"))
}
