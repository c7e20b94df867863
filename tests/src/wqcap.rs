//! Command lines of `wqcap run` and `wqcap model`, and the results of a finished run.

use crate::{
    Dir, Done, Program, Running, Summary, binaries, compare::assert_same, ctl::Ctl, files,
    model::granted, process::HANG,
};
use std::{
    cell::OnceCell,
    collections::BTreeSet,
    ffi::OsStr,
    fmt, fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Returns the command line `wqcap ARGS...`.
#[must_use]
pub fn wqcap<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Program {
    Program::new(binaries::wqcap()).args(args)
}

/// Returns the command line `wqcap model --wire WIRE... [--set k=v]... -- PROGRAM`.
///
/// The command line has the settings [`granted`], too.
#[must_use]
pub fn model<S: AsRef<OsStr>>(
    wires: &[&str],
    sets: &[&str],
    program: impl IntoIterator<Item = S>,
) -> Program {
    let wires = wires.iter().flat_map(|wire| ["--wire", wire]);
    let sets = granted().iter().chain(sets);
    let sets = sets.flat_map(|set| ["--set", set]);
    wqcap(["model"])
        .args(wires)
        .args(sets)
        .arg("--")
        .args(program)
}

/// Builder of a `wqcap run`: its configuration, its folders, and its wrappers.
///
/// By default the run writes pcap into its own folder, with small rings and write buffers that are
/// quick to allocate, and sleeps when idle, because tests share a few cores.
pub struct Wqcap<'d> {
    dir: &'d Dir,
    name: String,
    config: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    wrappers: Vec<Vec<String>>,
    out: PathBuf,
    make_out: bool,
    gate: Option<PathBuf>,
    timeout: Duration,
}

/// Returns the setting `capture.receive` from `WQCAP_RECEIVE`, which every run gets; `scripts/soak`
/// tests both values.
#[must_use]
pub fn receive_setting() -> Option<String> {
    let receive = std::env::var("WQCAP_RECEIVE").ok()?;
    Some(format!("capture.receive={receive}"))
}

impl<'d> Wqcap<'d> {
    /// Returns a run named `name` in `dir`. The name distinguishes runs in the same folder.
    #[must_use]
    pub fn run(dir: &'d Dir, name: &str) -> Self {
        let run = Self {
            dir,
            name: name.to_owned(),
            config: String::new(),
            args: Vec::new(),
            env: Vec::new(),
            wrappers: Vec::new(),
            out: dir.join(format!("{name}.out")),
            make_out: true,
            gate: None,
            timeout: HANG,
        };
        receive_setting()
            .iter()
            .fold(run, |run, it| run.set(it))
            .set("output.format=pcap")
            .set("capture.ring=256")
            .set("output.buffer=4MiB")
            .set("capture.idle=sleep")
    }

    /// Sets the text of the configuration file. [`set`](Self::set) overrides its keys.
    #[must_use]
    pub fn config(mut self, text: &str) -> Self {
        text.clone_into(&mut self.config);
        self
    }

    /// Adds `--set key=value`. The last setting of a key is used.
    #[must_use]
    pub fn set(self, assignment: &str) -> Self {
        self.args(&["--set", assignment])
    }

    /// Leaves stdout unread until the file `read` exists, then writes it to `to`.
    #[must_use]
    pub fn read_later(self, read: &Path, to: &Path) -> Self {
        const READER: &str = r#"read=$0 to=$1; shift; "$@" | { until [ -e "$read" ]; do sleep 0.02; done; cat >"$to"; }"#;
        let [read, to] = [read, to].map(|it| it.to_str().expect("a plain path"));
        self.wrapped(&["bash", "-c", READER, read, to])
    }

    /// Adds several settings.
    #[must_use]
    pub fn sets(self, assignments: &[&str]) -> Self {
        assignments.iter().fold(self, |run, it| run.set(it))
    }

    /// Adds `--model WIRE`.
    #[must_use]
    pub fn model(self, wire: &str) -> Self {
        self.args(&["--model", wire])
    }

    /// Holds the wire until the capture has installed all its rules, not only the first: no frame
    /// is missed, and a fault after N frames occurs in a capture that has started.
    #[must_use]
    pub fn gated(mut self) -> Self {
        let gate = self.dir.join(format!("{}.gate", self.name));
        let set = format!("model.gate={}", gate.display());
        self.gate = Some(gate);
        self.set(&set)
    }

    /// Adds `--model pcap:FILE`.
    #[must_use]
    pub fn replay(self, file: &Path) -> Self {
        self.model(&format!("pcap:{}", file.display()))
    }

    /// Sets the number of queues.
    #[must_use]
    pub fn queues(self, queues: usize) -> Self {
        self.set(&format!("capture.queues={queues}"))
    }

    /// Enables a control socket, for requests through [`ctl`](Self::ctl).
    #[must_use]
    pub fn control(self) -> Self {
        let socket = self.socket();
        self.set(&format!("control.unix={}", socket.display()))
    }

    /// Returns a client of the socket that [`control`](Self::control) enables.
    #[must_use]
    pub fn ctl(&self) -> Ctl {
        Ctl::at(&self.socket())
    }

    fn socket(&self) -> PathBuf {
        self.dir.join(format!("{}.sock", self.name))
    }

    /// Appends arguments.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|&arg| arg.to_owned()));
        self
    }

    /// Sets an environment variable of the run.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Sets another output folder, which is not created.
    #[must_use]
    pub fn out(mut self, out: &Path) -> Self {
        out.clone_into(&mut self.out);
        self.make_out = false;
        self
    }

    /// Adds a wrapper program; see [`Program::wrapped`].
    #[must_use]
    pub fn wrapped(mut self, wrapper: &[&str]) -> Self {
        self.wrappers
            .push(wrapper.iter().map(|&word| word.to_owned()).collect());
        self
    }

    /// Sets the deadline of the run.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the path of the summary.
    #[must_use]
    pub fn summary_path(&self) -> PathBuf {
        self.dir.join(format!("{}.json", self.name))
    }

    /// Returns the output folder.
    #[must_use]
    pub fn out_path(&self) -> &Path {
        &self.out
    }

    /// Returns the complete command line, and writes the configuration file.
    #[must_use]
    pub fn program(&self) -> Program {
        if self.make_out {
            self.dir.folder(&format!("{}.out", self.name));
        }
        let config = self.dir.write(&format!("{}.toml", self.name), &self.config);
        let program = wqcap(["run".as_ref(), "-c".as_ref(), config.as_os_str()])
            .arg("--set")
            .arg(format!("output.dir={}", self.out.display()))
            .args(&self.args)
            .arg("--summary")
            .arg(self.summary_path())
            .timeout(self.timeout);
        let program = self
            .env
            .iter()
            .fold(program, |program, (key, value)| program.env(key, value));
        self.wrappers
            .iter()
            .fold(program, |program, wrapper| program.wrapped(wrapper))
    }

    /// Starts the run. If it is [`gated`](Self::gated), waits for its rules and opens the gate.
    ///
    /// # Panics
    /// Panics if the run is gated and ends before it captures.
    #[must_use]
    #[track_caller]
    pub fn start(&self) -> Running {
        let mut running = self.program().start();
        if let Some(gate) = &self.gate {
            running.until("all rules are installed", |it| {
                it.stderr().contains("capturing ")
            });
            fs::write(gate, "").unwrap_or_else(|e| panic!("{}: {e}", gate.display()));
        }
        running
    }

    /// Starts the run and waits for its end.
    #[must_use]
    #[track_caller]
    pub fn done(&self) -> Done {
        self.start().wait()
    }

    /// Starts the run, waits for its end, asserts exit status `code`, and reads its results.
    #[must_use]
    #[track_caller]
    pub fn finish(&self, code: i32) -> Finished {
        self.finished(self.done(), code)
    }

    /// Reads the results of the ended run `done` of this command line.
    ///
    /// # Panics
    /// Panics if the exit status is not `code`, or the summary and the files contradict each other.
    #[must_use]
    #[track_caller]
    pub fn finished(&self, done: Done, code: i32) -> Finished {
        let done = done.expect(code);
        let text = fs::read_to_string(self.summary_path())
            .unwrap_or_else(|e| panic!("no summary ({e}): {done}"));
        let summary = Summary::parse(&text);
        let finished = Finished {
            done,
            summary,
            out: self.out.clone(),
            records: OnceCell::new(),
        };
        if !self.args.iter().any(|arg| arg == "output.format=none") {
            finished.assert_files();
        }
        finished
    }
}

/// Results of a run that has ended.
pub struct Finished {
    /// Exit status and output of the process.
    pub done: Done,
    /// Summary of the run.
    pub summary: Summary,
    out: PathBuf,
    /// Records by queue, read on first use.
    records: OnceCell<Vec<Vec<files::Record>>>,
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.done, f)
    }
}

impl Finished {
    /// Returns the files in the output folder, each with its queue, sorted by name.
    ///
    /// # Panics
    /// Panics if a name is not that of a finished capture file, or the folder cannot be read.  
    #[must_use]
    #[track_caller]
    pub fn files(&self) -> Vec<(usize, PathBuf)> {
        let entries =
            fs::read_dir(&self.out).unwrap_or_else(|e| panic!("{}: {e}", self.out.display()));
        let mut files: Vec<_> = entries
            .map(|entry| entry.expect("a folder lists").path())
            .collect();
        files.sort();
        files
            .into_iter()
            .map(|path| (files::queue_of(&path), path))
            .collect()
    }

    /// Returns the records of each queue, in the order of its files.
    #[must_use]
    #[track_caller]
    pub fn records(&self) -> Vec<Vec<files::Record>> {
        self.read().to_vec()
    }

    #[track_caller]
    fn read(&self) -> &[Vec<files::Record>] {
        if let Some(records) = self.records.get() {
            return records;
        }
        let mut queues = vec![Vec::new(); self.summary.ledger.queues.len()];
        for (queue, path) in self.files() {
            queues[queue].append(&mut files::read(&path));
        }
        self.records.get_or_init(|| queues)
    }

    /// Returns the sequence numbers of a `synth:` wire's frames that are in the files.
    ///
    /// # Panics
    /// Panics if a number occurs twice, or if numbers do not rise or stamps fall within a queue.
    #[must_use]
    #[track_caller]
    pub fn numbers(&self) -> BTreeSet<u64> {
        let mut seen = BTreeSet::new();
        for (queue, records) in self.read().iter().enumerate() {
            for pair in records.windows(2) {
                assert!(pair[0].ts <= pair[1].ts, "stamps fall in queue {queue}");
                assert!(
                    pair[0].number() < pair[1].number(),
                    "numbers do not rise in queue {queue}"
                );
            }
            for record in records {
                assert!(
                    seen.insert(record.number()),
                    "{} occurs twice",
                    record.number()
                );
            }
        }
        seen
    }

    /// Asserts that the folder holds exactly the files of the summary, and that the files of each
    /// queue hold as many frames as `captured` in its ledger.
    #[track_caller]
    fn assert_files(&self) {
        let mut named = self.summary.files.clone();
        named.sort();
        let found: Vec<_> = self.files().into_iter().map(|(_, path)| path).collect();
        assert_same("files in the summary and in the folder", &named, &found);
        for (queue, records) in self.read().iter().enumerate() {
            let captured = self.summary.ledger.queues[queue].captured;
            assert_eq!(
                records.len() as u64,
                captured,
                "queue {queue}: frames in files and in the ledger differ"
            );
        }
    }
}
