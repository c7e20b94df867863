//! Child processes with a deadline.
//!
//! Every child has a deadline. At the deadline it is killed and the test fails with the child's
//! output. Deadlines only bound hangs: a test waits for an event, no matter how slow a busy machine
//! is. Children are started through `setpriv --pdeathsig KILL`, so that they end with the test even
//! if the test is killed.

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
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Polling interval of waits.
pub const TICK: Duration = Duration::from_millis(2);
/// Default deadline. A longer run counts as a hang, also on a slow machine.
pub const HANG: Duration = Duration::from_secs(300);

/// Returns `true` if the effective user is root, which may change its user and its capabilities.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns `true` if this process ignores a signal that stops or reconfigures programs. The parent
/// of the tests may ignore signals (nohup, a background job of a shell), and children inherit that.
fn ignores_signals() -> bool {
    static IGNORES: OnceLock<bool> = OnceLock::new();
    *IGNORES.get_or_init(|| {
        let status = fs::read_to_string("/proc/self/status").expect("the kernel has /proc");
        let mask = status.lines().find_map(|it| it.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
        let signals = [
            Signal::HUP,
            Signal::INT,
            Signal::QUIT,
            Signal::TERM,
            Signal::ALARM,
            Signal::USR1,
            Signal::USR2,
        ];
        let bit = |signal: Signal| 1 << (signal.as_raw() - 1);
        mask.expect("a line SigIgn") & signals.map(bit).into_iter().sum::<u64>() != 0
    })
}

/// Command line of a program, with the wrapper programs that execute it.
#[derive(Clone, Debug)]
pub struct Program {
    /// Words of the wrappers, such as `ip netns exec NAME` or `setpriv ...`, outermost first.
    wrappers: Vec<OsString>,
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    cwd: Option<std::path::PathBuf>,
    has_stdin: bool,
    timeout: Duration,
}

impl Program {
    /// Returns a command line for the program `name`, with a deadline of [`HANG`].
    pub fn new(name: impl AsRef<OsStr>) -> Self {
        Self {
            wrappers: Vec::new(),
            argv: vec![name.as_ref().to_owned()],
            env: Vec::new(),
            cwd: None,
            has_stdin: false,
            timeout: HANG,
        }
    }

    /// Appends an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.argv.push(arg.as_ref().to_owned());
        self
    }

    /// Appends arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.argv
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Puts `wrapper` in front of the command line built so far. The wrapper must replace itself by
    /// the program (exec), so that the pid stays the same.
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

    /// Sets an environment variable of the program.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env
            .push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets the working directory of the program.
    #[must_use]
    pub fn cwd(mut self, dir: &Path) -> Self {
        self.cwd = Some(dir.to_owned());
        self
    }

    /// Connects standard input to a pipe for [`Running::tell`], instead of `/dev/null`.
    #[must_use]
    pub fn told(mut self) -> Self {
        self.has_stdin = true;
        self
    }

    /// Sets the deadline, counted from the start of the program.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Starts the program.
    ///
    /// # Panics
    /// Panics if the program cannot be started.
    #[must_use]
    pub fn start(&self) -> Running {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        if ignores_signals() {
            command.args(["env", "--default-signal=HUP,INT,QUIT,TERM,ALRM,USR1,USR2"]);
        }
        command.args(&self.wrappers).args(&self.argv);
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        if let Some(dir) = &self.cwd {
            command.current_dir(dir);
        }
        let stdin = if self.has_stdin {
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
        let stdout = Collected::start(child.stdout.take().expect("piped").into());
        let stderr = Collected::start(child.stderr.take().expect("piped").into());
        Running {
            name: self.to_string(),
            child,
            stdout,
            stderr,
            started,
            deadline: started + self.timeout,
        }
    }

    /// Starts the program and waits for its end.
    ///
    /// # Panics
    /// Panics if the program cannot be started or has not ended at its deadline.
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

/// Output that a child has written to a pipe so far.
struct Collected(Arc<Mutex<Pipe>>);

struct Pipe {
    /// Read end of the pipe, in non-blocking mode.
    end: File,
    bytes: Vec<u8>,
}

impl Pipe {
    /// Limit in bytes of one read pass, more than any pipe holds.
    const MOST: usize = 1 << 20;

    /// Reads the bytes that are in the pipe. Returns `false` if all write ends are closed.
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
    /// Starts a thread that reads the pipe, so that the child never blocks on a full pipe.
    fn start(end: OwnedFd) -> Self {
        fcntl_setfl(&end, OFlags::NONBLOCK).expect("a pipe can be read without waiting");
        let waited_on = end.try_clone().expect("a descriptor is free");
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

    /// Returns the complete output of a child that has ended: collected bytes and the rest in the
    /// pipe. Does not wait for a grandchild that may hold the pipe open.
    fn finish(&self) -> String {
        self.lock().take();
        self.text()
    }
}

/// Running child process. It is killed on drop.
pub struct Running {
    name: String,
    child: Child,
    stdout: Collected,
    stderr: Collected,
    started: Instant,
    deadline: Instant,
}

impl Running {
    /// Returns the pid of the child.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the standard output so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Returns the standard error output so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Writes a line to the child's standard input.
    ///
    /// # Panics
    /// Panics if the child has no piped standard input, or has closed it.
    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("standard input is a pipe");
        writeln!(stdin, "{line}").unwrap_or_else(|e| panic!("{}: {e}", self.name));
    }

    /// Sends a signal to the child.
    ///
    /// # Panics
    /// Panics if the child has already been waited for.
    pub fn signal(&self, signal: Signal) {
        // The child is not reaped before `wait`, so no other process can have this pid. The signal
        // has no effect on a child that has ended.
        kill_process(Pid::from_child(&self.child), signal)
            .unwrap_or_else(|e| panic!("{}: {e}", self.name));
    }

    /// Returns `true` if the child has ended.
    ///
    /// # Panics
    /// Panics if `waitpid` fails.
    pub fn ended(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("wait for a child of this process")
            .is_some()
    }

    /// Waits until `done` returns `true`.
    ///
    /// # Panics
    /// Panics if the child ends or reaches its deadline before that.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        loop {
            if done(self) {
                return;
            }
            if self.ended() {
                // The child may have printed the expected output just before its end.
                self.stdout.finish();
                self.stderr.finish();
                if done(self) {
                    return;
                }
                panic!("{} ended before {what}\n{}", self.name, self.output());
            }
            self.check_deadline(what);
            thread::sleep(TICK);
        }
    }

    /// Waits until `done` returns `true` for the stopped child (SIGSTOP), and leaves the child in
    /// that state.
    ///
    /// # Panics
    /// Panics if the child ends or reaches its deadline before that.
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

    /// Stops the child (SIGSTOP) and waits until all its threads are stopped.
    ///
    /// # Panics
    /// Panics if the child has already been waited for.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let any = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.child)), any).expect("a child of this process");
    }

    /// Continues the child (SIGCONT).
    ///
    /// # Panics
    /// Panics if the child has already been waited for.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits for the end of the child.
    ///
    /// # Panics
    /// Panics if the child reaches its deadline before that.
    #[must_use]
    #[track_caller]
    pub fn wait(mut self) -> Done {
        let status = loop {
            if let Some(status) = self
                .child
                .try_wait()
                .expect("wait for a child of this process")
            {
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
            self.output()
        );
    }

    fn output(&self) -> String {
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

/// Result of a child process that has ended.
pub struct Done {
    /// Command line of the child.
    pub name: String,
    /// Exit status, or the signal that ended the child.
    pub status: ExitStatus,
    /// Complete standard output.
    pub stdout: String,
    /// Complete standard error output.
    pub stderr: String,
    /// Time from the start to the end of the child.
    pub elapsed: Duration,
}

impl Done {
    /// Asserts that the exit status is `code`.
    ///
    /// # Panics
    /// Panics if the exit status differs, or a signal ended the child.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert!(
            self.status.code() == Some(code),
            "expected exit status {code} of {self}"
        );
        self
    }

    /// Returns the signal that ended the child.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// Asserts that standard error contains each of `parts`.
    ///
    /// # Panics
    /// Panics if a part is missing.
    #[track_caller]
    pub fn says(&self, parts: &[&str]) {
        for part in parts {
            assert!(
                self.stderr.contains(part),
                "standard error does not contain {part:?}: {self}"
            );
        }
    }
}

/// Prints the same as [`fmt::Display`]: an excerpt of the output.
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
