//! Prometheus as a reference for metrics, rules and queries: promtool and the server.

use crate::{
    Dir, Done, Program, Running, binaries,
    process::{HANG, TICK},
};
use serde_json::Value;
use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

/// Returns the path of a Prometheus program. If it is not installed, extracts it from Debian's
/// package. The package is not installed, because that would start a server.
fn find(name: &str) -> Result<PathBuf, String> {
    let on_path = Program::new("sh")
        .args(["-c", "command -v \"$0\"", name])
        .run();
    if on_path.status.success() {
        return Ok(PathBuf::from(on_path.stdout.trim()));
    }
    let target = binaries::profile_dir();
    let program = target.join(name);
    if program.is_file() {
        return Ok(program);
    }
    // Extracted to a temporary folder first, so that an incomplete program is never used.
    let fresh = tempfile::Builder::new()
        .prefix("prometheus-")
        .tempdir_in(&target)
        .map_err(|e| format!("{}: {e}", target.display()))?;
    let script = "apt-get -q download prometheus && dpkg-deb --extract ./prometheus_*.deb .";
    let done = Program::new("sh")
        .args(["-c", script])
        .cwd(fresh.path())
        .run();
    if !done.status.success() {
        let last = done.stderr.trim().lines().last().unwrap_or_default();
        return Err(format!(
            "{name} is not installed, and Debian's package prometheus cannot be downloaded: {last}"
        ));
    }
    fs::rename(fresh.path().join("usr/bin").join(name), &program)
        .map_err(|e| format!("Debian's package prometheus has no {name}: {e}"))?;
    Ok(program)
}

/// Handle of the program promtool.
#[derive(Debug)]
pub struct Promtool {
    program: PathBuf,
}

impl Promtool {
    /// Finds promtool, or extracts it from Debian's package.
    ///
    /// # Errors
    /// Returns a reason to skip if promtool is not available.
    pub fn find() -> Result<Self, String> {
        find("promtool").map(|program| Self { program })
    }

    /// Runs `promtool check metrics` on a scrape in the text format.
    #[must_use]
    pub fn metrics(&self, scrape: &Path) -> Done {
        let line = "exec \"$0\" check metrics <\"$1\"";
        Program::new("sh")
            .args(["-c", line])
            .arg(&self.program)
            .arg(scrape)
            .run()
    }

    /// Runs `promtool check rules` on a rules file.
    #[must_use]
    pub fn rules(&self, file: &Path) -> Done {
        self.run("check", file)
    }

    /// Runs `promtool test rules` on a file of rule tests.
    #[must_use]
    pub fn tests(&self, file: &Path) -> Done {
        self.run("test", file)
    }

    fn run(&self, what: &str, file: &Path) -> Done {
        Program::new(&self.program)
            .args([what, "rules"])
            .arg(file)
            .run()
    }
}

/// Prometheus server that scrapes one target every second.
pub struct Prometheus {
    run: Running,
    address: String,
}

impl Prometheus {
    /// Starts a server that scrapes the endpoint `target` and stores its data in `dir`.
    ///
    /// # Errors
    /// Returns a reason to skip if Prometheus is not available.
    ///
    /// # Panics
    /// Panics if the server cannot be started.
    pub fn start(dir: &Dir, target: &str) -> Result<Self, String> {
        let program = find("prometheus")?;
        let config = dir.write(
            "prometheus.yml",
            format!(
                "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
                 scrape_configs: [{{job_name: wqcap, static_configs: [{{targets: [\"{target}\"]}}]}}]\n"
            ),
        );
        // The server does not print its port, so the test chooses a port that is free now.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
        let address = free.expect("a port").to_string();
        let run = Program::new(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.join("tsdb").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .start();
        let mut it = Self { run, address };
        let address = it.address.clone();
        it.run.until("Prometheus answers", |_| {
            ask(&address, "vector(1)").is_some()
        });
        Ok(it)
    }

    /// Waits until `done` returns `true`.
    ///
    /// # Panics
    /// Panics if the deadline is reached or the server ends before that.
    #[track_caller]
    pub fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !done(self) {
            assert!(began.elapsed() < HANG, "deadline reached before {what}");
            assert!(
                !self.run.ended(),
                "Prometheus has ended: {}",
                self.run.stderr()
            );
            thread::sleep(TICK);
        }
    }

    /// Returns the result of an instant query: one row per series.
    ///
    /// # Panics
    /// Panics if the server refuses the query.
    #[must_use]
    pub fn query(&self, query: &str) -> Vec<Value> {
        let answer = ask(&self.address, query).expect("Prometheus answers");
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        let rows = answer["data"]["result"].as_array();
        rows.expect("the result is an array").clone()
    }
}

fn ask(address: &str, query: &str) -> Option<Value> {
    let done = Program::new("curl")
        .args(["-sS", "-G", "--data-urlencode"])
        .arg(format!("query={query}"))
        .arg(format!("http://{address}/api/v1/query"))
        .run();
    serde_json::from_str(&done.stdout).ok()
}
