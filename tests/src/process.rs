//! Children that end.
//!
//! Every child has a deadline, after which it is killed and the test fails with what the child has printed. Deadlines
//! bound hangs and order nothing: a test waits for an event, however long a busy machine takes to bring it about.
//! Children are started through `setpriv --pdeathsig KILL`, so that they go with the test even when that is killed.

pub mod clients;

use crate::compare::excerpt;
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{OFlags, fcntl_setfl},
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid},
};
use std::{
    ffi::{OsStr, OsString},
    fmt,
    fs::File,
    io::{ErrorKind, Read, Write},
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How often a wait looks.
pub const TICK: Duration = Duration::from_millis(2);
/// What takes longer is taken for a hang, on the slowest machine too.
pub const HANG: Duration = Duration::from_secs(300);

/// Whether this process may do what only root may: become another user, take and give capabilities.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A program to run: its arguments, and those of the programs that run it in turn.
#[derive(Clone, Debug)]
pub struct Program {
    /// `ip netns exec NAME`, `setpriv ...`: outermost first.
    wrappers: Vec<OsString>,
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    cwd: Option<std::path::PathBuf>,
    is_told: bool,
    timeout: Duration,
}

impl Program {
    /// The program `name`, with a deadline of [`HANG`].
    pub fn new(name: impl AsRef<OsStr>) -> Self {
        Self {
            wrappers: Vec::new(),
            argv: vec![name.as_ref().to_owned()],
            env: Vec::new(),
            cwd: None,
            is_told: false,
            timeout: HANG,
        }
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.argv.push(arg.as_ref().to_owned());
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.argv
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Lets `wrapper` run what stands so far. It must replace itself by the program (exec), so that the pid stays.
    #[must_use]
    pub fn wrapped<S: AsRef<OsStr>>(mut self, wrapper: impl IntoIterator<Item = S>) -> Self {
        let mut outer: Vec<_> = wrapper
            .into_iter()
            .map(|arg| arg.as_ref().to_owned())
            .collect();
        outer.append(&mut self.wrappers);
        self.wrappers = outer;
        self
    }

    /// A variable of its environment.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env
            .push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Its working directory.
    #[must_use]
    pub fn cwd(mut self, dir: &Path) -> Self {
        self.cwd = Some(dir.to_owned());
        self
    }

    /// Its standard input is what [`Running::tell`] writes, in place of nothing.
    #[must_use]
    pub fn told(mut self) -> Self {
        self.is_told = true;
        self
    }

    /// Another deadline, counted from the start.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Starts it.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(&self) -> Running {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            // Whoever starts the tests may have these ignored (nohup, a shell's background), and that is inherited.
            .args(["env", "--default-signal=HUP,INT,QUIT,TERM,ALRM,USR1,USR2"])
            .args(&self.wrappers)
            .args(&self.argv);
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        if let Some(dir) = &self.cwd {
            command.current_dir(dir);
        }
        let stdin = if self.is_told {
            Stdio::piped()
        } else {
            Stdio::null()
        };
        command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{self}: {e}"));
        let stdout = Collected::of(child.stdout.take().expect("piped").into());
        let stderr = Collected::of(child.stderr.take().expect("piped").into());
        Running {
            name: self.to_string(),
            child,
            stdout,
            stderr,
            started,
            deadline: started + self.timeout,
        }
    }

    /// Starts it and waits for its end.
    ///
    /// # Panics
    /// When it cannot be started, or has not ended at its deadline.
    #[must_use]
    #[track_caller]
    pub fn run(&self) -> Done {
        self.start().wait()
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self
            .wrappers
            .iter()
            .chain(&self.argv)
            .map(|word| word.to_string_lossy())
            .collect();
        f.write_str(&words.join(" "))
    }
}

/// What a pipe has carried so far.
struct Collected(Arc<Mutex<Pipe>>);

struct Pipe {
    /// Does not block.
    end: File,
    bytes: Vec<u8>,
}

impl Pipe {
    /// More than any pipe holds.
    const MOST: usize = 1 << 20;

    /// Takes what is in the pipe. False: nobody can write into it any more.
    fn take(&mut self) -> bool {
        let mut chunk = [0; 16384];
        let enough = self.bytes.len() + Self::MOST;
        while self.bytes.len() < enough {
            match self.end.read(&mut chunk) {
                Ok(0) => return false,
                Ok(n) => self.bytes.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return e.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }
}

impl Collected {
    /// Collects in a thread, so that the child never waits for room.
    fn of(end: OwnedFd) -> Self {
        fcntl_setfl(&end, OFlags::NONBLOCK).expect("a pipe can be read without waiting");
        let waited_on = end.try_clone().expect("descriptors");
        let pipe = Pipe {
            end: end.into(),
            bytes: Vec::new(),
        };
        let it = Self(Arc::new(Mutex::new(pipe)));
        let thread = Self(Arc::clone(&it.0));
        thread::spawn(move || {
            loop {
                let _ = poll(&mut [PollFd::new(&waited_on, PollFlags::IN)], None);
                if !thread.lock().take() {
                    return;
                }
            }
        });
        it
    }

    fn lock(&self) -> MutexGuard<'_, Pipe> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.lock().bytes).into_owned()
    }

    /// All that a child has written which has ended: it is here or in the pipe. A grandchild may hold the pipe open, and
    /// is not waited for.
    fn finish(&self) -> String {
        self.lock().take();
        self.text()
    }
}

/// A child under way. Dropped before its end, it is killed.
pub struct Running {
    name: String,
    child: Child,
    stdout: Collected,
    stderr: Collected,
    started: Instant,
    deadline: Instant,
}

impl Running {
    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed to standard output so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// What it has printed to standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Writes a line to its standard input.
    ///
    /// # Panics
    /// When it has none, or has closed it.
    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("a program that is told");
        writeln!(stdin, "{line}").unwrap_or_else(|e| panic!("{}: {e}", self.name));
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When the child has been waited for already.
    pub fn signal(&self, signal: Signal) {
        // The child is not reaped before `wait`, so this pid cannot be another's; an ended child takes it unmoved.
        kill_process(Pid::from_child(&self.child), signal)
            .unwrap_or_else(|e| panic!("{}: {e}", self.name));
    }

    /// Whether it has ended.
    ///
    /// # Panics
    /// When the system does not tell.
    pub fn ended(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("wait for an own child")
            .is_some()
    }

    /// Waits until `done` says so.
    ///
    /// # Panics
    /// When the child ends, or its deadline comes, before that.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        loop {
            if done(self) {
                return;
            }
            if self.ended() {
                // It may have printed what was waited for in its last moment.
                self.stdout.finish();
                self.stderr.finish();
                if done(self) {
                    return;
                }
                panic!("{} ended before {what}\n{}", self.name, self.story());
            }
            self.check_deadline(what);
            thread::sleep(TICK);
        }
    }

    /// Waits until `done` says so of the child while it stands still (SIGSTOP), and leaves it so.
    ///
    /// # Panics
    /// When the child ends, or its deadline comes, before that.
    #[track_caller]
    pub fn freeze_when(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        self.until(what, |it| {
            if !done(it) {
                return false;
            }
            it.freeze();
            let holds = done(it);
            if !holds {
                it.thaw();
            }
            holds
        });
    }

    /// Stops it (SIGSTOP), and waits until all of it stands still.
    ///
    /// # Panics
    /// When the child has been waited for already.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let any = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.child)), any).expect("an own child");
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Panics
    /// When the child has been waited for already.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When its deadline comes before that.
    #[must_use]
    #[track_caller]
    pub fn wait(mut self) -> Done {
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("wait for an own child") {
                break status;
            }
            self.check_deadline("its end");
            thread::sleep(TICK);
        };
        Done {
            name: self.name.clone(),
            status,
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
            elapsed: self.started.elapsed(),
        }
    }

    #[track_caller]
    fn check_deadline(&mut self, what: &str) {
        if Instant::now() < self.deadline {
            return;
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        panic!(
            "{} reached its deadline ({:.0?}) before {what}\n{}",
            self.name,
            self.started.elapsed(),
            self.story()
        );
    }

    fn story(&self) -> String {
        format!(
            "--- stdout\n{}\n--- stderr\n{}",
            excerpt(&self.stdout.text()),
            excerpt(&self.stderr.text())
        )
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A child that has ended.
pub struct Done {
    /// Its command line.
    pub name: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// From start to end.
    pub elapsed: Duration,
}

impl Done {
    /// Asserts the exit status.
    ///
    /// # Panics
    /// When it is another, or the child died of a signal.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert!(
            self.status.code() == Some(code),
            "expected exit status {code} of {self}"
        );
        self
    }

    /// The signal it died of.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// Asserts that standard error contains each of `parts`.
    ///
    /// # Panics
    /// When one is not there.
    #[track_caller]
    pub fn says(&self, parts: &[&str]) {
        for part in parts {
            assert!(
                self.stderr.contains(part),
                "standard error does not say {part:?}: {self}"
            );
        }
    }
}

/// As it is displayed: little, whatever it has printed.
impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\n{} after {:.1?}\n--- stdout\n{}\n--- stderr\n{}",
            self.name,
            self.status,
            self.elapsed,
            excerpt(&self.stdout),
            excerpt(&self.stderr)
        )
    }
}
