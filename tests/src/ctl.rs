//! The control socket of a capture under way: questions, orders, and waiting until an answer is as wanted.

use crate::{Done, Program, Running, process::HANG, wqcap::wqcap};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

/// Whoever asks at one socket.
#[derive(Clone, Debug)]
pub struct Ctl {
    socket: PathBuf,
}

impl Ctl {
    /// At `socket`, which need not be there yet.
    #[must_use]
    pub fn at(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
        }
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// `wqcap ctl ARGS`.
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

    /// What a command prints for programs.
    ///
    /// # Panics
    /// When it fails, or prints no JSON.
    #[must_use]
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let done = self.run(&[args, &["--json"]].concat()).expect(0);
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
    }

    /// Carries out a change and says whether it was one.
    ///
    /// # Panics
    /// When it is refused.
    #[must_use]
    #[track_caller]
    pub fn change(&self, args: &[&str]) -> bool {
        self.json(args)["changed"]
            .as_bool()
            .expect("changed is told")
    }

    /// The capture's part of `status`.
    #[must_use]
    #[track_caller]
    pub fn capture(&self) -> Value {
        self.json(&["status"])["capture"].take()
    }

    /// The answer to `status` or `stats`, asked in the protocol's own words; `None`: nobody answers.
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

    /// Asks `status` or `stats` until the answer is as wanted, and gives it.
    ///
    /// # Panics
    /// When `run` ends, or its deadline comes, before that.
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
        found.expect("waited for")
    }

    /// Waits until a line of the ledger's total is at least `least`, and gives it.
    ///
    /// # Panics
    /// When `run` ends, or its deadline comes, before that.
    #[track_caller]
    pub fn until_counted(&self, run: &mut Running, line: &str, least: u64) -> u64 {
        let what = format!("{line} is {least}");
        let count = |stats: &Value| stats["ledger"]["total"][line].as_u64();
        let stats = self.until(run, "stats", &what, |stats| count(stats) >= Some(least));
        count(&stats).expect("waited for")
    }
}
