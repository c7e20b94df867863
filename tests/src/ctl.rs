//! Client of the control socket of a running capture: requests, changes, and waiting until an
//! answer meets a condition.

use crate::{Done, Program, Running, process::HANG, wqcap::wqcap};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

/// Control client for one Unix socket.
#[derive(Clone, Debug)]
pub struct Ctl {
    socket: PathBuf,
}

impl Ctl {
    /// Returns a client for `socket`, which need not exist yet.
    #[must_use]
    pub fn at(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
        }
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the command line `wqcap ctl ARGS`.
    #[must_use]
    pub fn program(&self, args: &[&str]) -> Program {
        wqcap(["ctl", "--unix"])
            .arg(&self.socket)
            .arg("--timeout")
            .arg(format!("{}s", HANG.as_secs()))
            .args(args)
    }

    /// Runs `wqcap ctl ARGS` to its end.
    #[must_use]
    pub fn run(&self, args: &[&str]) -> Done {
        self.program(args).run()
    }

    /// Runs a command with `--json` and returns its output.
    ///
    /// # Panics
    /// Panics if the command fails or does not print JSON.
    #[must_use]
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let done = self.run(&[args, &["--json"]].concat()).expect(0);
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
    }

    /// Requests a change and returns the `changed` field of the answer.
    ///
    /// # Panics
    /// Panics if the change is refused.
    #[must_use]
    #[track_caller]
    pub fn change(&self, args: &[&str]) -> bool {
        self.json(args)["changed"]
            .as_bool()
            .expect("the answer has the field changed")
    }

    /// Returns the object `capture` of the answer to `status`.
    #[must_use]
    #[track_caller]
    pub fn capture(&self) -> Value {
        self.json(&["status"])["capture"].take()
    }

    /// Sends `status` or `stats` over the socket itself, without `wqcap ctl`, and returns the
    /// answer; `None` if there is no answer.
    #[must_use]
    pub fn ask(&self, word: &str) -> Option<Value> {
        let mut stream = UnixStream::connect(&self.socket).ok()?;
        stream.set_read_timeout(Some(HANG)).ok()?;
        let request = json!({"version": 1, "id": 1, "command": {"do": word}});
        stream.write_all(format!("{request}\n").as_bytes()).ok()?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).ok()?;
        let mut answer: Value = serde_json::from_str(&answer).ok()?;
        Some(answer["ok"][word].take()).filter(|it| !it.is_null())
    }

    /// Repeats the request `status` or `stats` until `wanted` accepts the answer, and returns it.
    ///
    /// # Panics
    /// Panics if `run` ends or reaches its deadline before that.
    #[track_caller]
    pub fn until(
        &self,
        run: &mut Running,
        word: &str,
        what: &str,
        mut wanted: impl FnMut(&Value) -> bool,
    ) -> Value {
        let mut found = None;
        run.until(what, |_| {
            found = self.ask(word).filter(&mut wanted);
            found.is_some()
        });
        found.expect("the wait has succeeded")
    }

    /// Waits until a line of the ledger's total is at least `least`, and returns its value.
    ///
    /// # Panics
    /// Panics if `run` ends or reaches its deadline before that.
    #[track_caller]
    pub fn until_counted(&self, run: &mut Running, line: &str, least: u64) -> u64 {
        let what = format!("{line} is {least}");
        let count = |stats: &Value| stats["ledger"]["total"][line].as_u64();
        let stats = self.until(run, "stats", &what, |stats| count(stats) >= Some(least));
        count(&stats).expect("the wait has succeeded")
    }
}
