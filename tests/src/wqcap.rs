//! The command line under test.

use crate::{
    Dir, Done, Program, Running, Summary, binaries,
    compare::assert_same,
    ctl::Ctl,
    files,
    process::{self, HANG},
};
use std::{
    cell::OnceCell,
    collections::BTreeSet,
    ffi::OsStr,
    fmt, fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// `wqcap ARGS...`
#[must_use]
pub fn wqcap<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Program {
    Program::new(binaries::wqcap()).args(args)
}

/// `wqcap model --wire WIRE... [--set k=v]... -- PROGRAM`
///
/// The model asks for the process's capabilities, as the kernel does; an ordinary user gets all from it.
#[must_use]
pub fn model<S: AsRef<OsStr>>(
    wires: &[&str],
    sets: &[&str],
    program: impl IntoIterator<Item = S>,
) -> Program {
    let granted: &[&str] = if process::is_root() {
        &[]
    } else {
        &["--set", "caps=all"]
    };
    let wires = wires.iter().flat_map(|wire| ["--wire", wire]);
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    wqcap(["model"])
        .args(granted)
        .args(wires)
        .args(sets)
        .arg("--")
        .args(program)
}

/// A `wqcap run` to be: its configuration, its folders, and how it is started.
///
/// Unless told otherwise it writes pcap into a folder of its own, with rings and write buffers that are quick to make,
/// and sleeps when idle, since tests run side by side on few cores.
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

/// A way to receive that no test asks for, as every run is given it: `scripts/soak` tries both.
#[must_use]
pub fn receive_setting() -> Option<String> {
    let receive = std::env::var("WQCAP_RECEIVE").ok()?;
    Some(format!("capture.receive={receive}"))
}

impl<'d> Wqcap<'d> {
    /// A run named `name` in `dir`; names keep runs in the same folder apart.
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

    /// The text of the configuration file; what [`set`](Self::set) sets comes on top of it.
    #[must_use]
    pub fn config(mut self, text: &str) -> Self {
        text.clone_into(&mut self.config);
        self
    }

    /// `--set key=value`; a later one wins.
    #[must_use]
    pub fn set(self, assignment: &str) -> Self {
        self.args(&["--set", assignment])
    }

    /// Nobody reads its stdout before there is a file `read`; then it goes to `to`.
    #[must_use]
    pub fn read_later(self, read: &Path, to: &Path) -> Self {
        const READER: &str = r#"read=$0 to=$1; shift; "$@" | { until [ -e "$read" ]; do sleep 0.02; done; cat >"$to"; }"#;
        let [read, to] = [read, to].map(|it| it.to_str().expect("a plain path"));
        self.wrapped(&["bash", "-c", READER, read, to])
    }

    /// Several settings.
    #[must_use]
    pub fn sets(self, assignments: &[&str]) -> Self {
        assignments.iter().fold(self, |run, it| run.set(it))
    }

    /// `--model WIRE`.
    #[must_use]
    pub fn model(self, wire: &str) -> Self {
        self.args(&["--model", wire])
    }

    /// The wire begins once the capture has installed all of its rules, and not with the first of them: no frame passes
    /// by, and a fault that comes after so many frames finds a capture that has begun.
    #[must_use]
    pub fn gated(mut self) -> Self {
        let gate = self.dir.join(format!("{}.gate", self.name));
        let set = format!("model.gate={}", gate.display());
        self.gate = Some(gate);
        self.set(&set)
    }

    /// `--model pcap:FILE`.
    #[must_use]
    pub fn replay(self, file: &Path) -> Self {
        self.model(&format!("pcap:{}", file.display()))
    }

    /// The number of queues.
    #[must_use]
    pub fn queues(self, queues: usize) -> Self {
        self.set(&format!("capture.queues={queues}"))
    }

    /// A control socket of its own, to be asked through [`ctl`](Self::ctl).
    #[must_use]
    pub fn control(self) -> Self {
        let socket = self.socket();
        self.set(&format!("control.unix={}", socket.display()))
    }

    /// Whoever asks at the socket of [`control`](Self::control).
    #[must_use]
    pub fn ctl(&self) -> Ctl {
        Ctl::at(&self.socket())
    }

    fn socket(&self) -> PathBuf {
        self.dir.join(format!("{}.sock", self.name))
    }

    /// More arguments.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|&arg| arg.to_owned()));
        self
    }

    /// A variable of its environment.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Another output folder, which the run finds as it is: present or not.
    #[must_use]
    pub fn out(mut self, out: &Path) -> Self {
        out.clone_into(&mut self.out);
        self.make_out = false;
        self
    }

    /// Lets `wrapper` run it; see [`Program::wrapped`].
    #[must_use]
    pub fn wrapped(mut self, wrapper: &[&str]) -> Self {
        self.wrappers
            .push(wrapper.iter().map(|&word| word.to_owned()).collect());
        self
    }

    /// Another deadline.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Where its summary goes.
    #[must_use]
    pub fn summary_path(&self) -> PathBuf {
        self.dir.join(format!("{}.json", self.name))
    }

    /// Its output folder.
    #[must_use]
    pub fn out_path(&self) -> &Path {
        &self.out
    }

    /// The whole command line.
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

    /// Starts it.
    ///
    /// # Panics
    /// When it is [`gated`](Self::gated) and does not begin.
    #[must_use]
    #[track_caller]
    pub fn start(&self) -> Running {
        let mut running = self.program().start();
        if let Some(gate) = &self.gate {
            running.until("all rules are there", |it| {
                it.stderr().contains("capturing ")
            });
            fs::write(gate, "").unwrap_or_else(|e| panic!("{}: {e}", gate.display()));
        }
        running
    }

    /// Runs it to its end.
    #[must_use]
    #[track_caller]
    pub fn done(&self) -> Done {
        self.start().wait()
    }

    /// Runs it to its end, which is to be `code`, and reads what it has left.
    #[must_use]
    #[track_caller]
    pub fn finish(&self, code: i32) -> Finished {
        self.finished(self.done(), code)
    }

    /// Reads what the ended run `done` of this command line has left.
    ///
    /// # Panics
    /// When its exit status is not `code`, or what it left contradicts itself.
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

/// A run that has ended, and what it left.
pub struct Finished {
    /// How it ended and what it said.
    pub done: Done,
    /// The summary.
    pub summary: Summary,
    out: PathBuf,
    /// By queue, once they have been read.
    records: OnceCell<Vec<Vec<files::Record>>>,
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.done, f)
    }
}

impl Finished {
    /// The files of its folder, by queue.
    ///
    /// # Panics
    /// When a name is not that of a finished capture file, or the folder is not readable.
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

    /// The records of each queue, in the order of their files.
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

    /// The numbers of a `synth:` wire's frames that are in the files.
    ///
    /// # Panics
    /// When one is there twice, or within a queue numbers do not rise or stamps fall.
    #[must_use]
    #[track_caller]
    pub fn numbers(&self) -> BTreeSet<u64> {
        let mut seen = BTreeSet::new();
        for (queue, records) in self.read().iter().enumerate() {
            for pair in records.windows(2) {
                assert!(pair[0].ts <= pair[1].ts, "stamps fall in queue {queue}");
                assert!(
                    pair[0].number() < pair[1].number(),
                    "order is lost in queue {queue}"
                );
            }
            for record in records {
                assert!(seen.insert(record.number()), "{} twice", record.number());
            }
        }
        seen
    }

    /// What the summary says of files is what there is: the same names, and in each queue's as many frames as the
    /// ledger has captured.
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
