//! `wqcap top` on a terminal: tests read the screen through tmux.

use rustix::process::Signal;
use std::{
    os::unix::net::UnixListener,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};
use wqcap_tests::{
    Dir, Done, Program, Running, Wqcap, binaries,
    process::{HANG, TICK},
    skip,
    wqcap::wqcap,
};

/// Separate tmux server with one terminal, in which one command line runs.
struct Terminal {
    socket: PathBuf,
    _server: Running,
}

impl Terminal {
    /// Runs the shell command `line` on a screen of `columns` x `lines`. The screen remains after
    /// the end of the command.
    fn new(dir: &Dir, line: &str, columns: u16, lines: u16) -> Self {
        let socket = dir.join("tmux");
        // The server runs in the foreground, so that it is the test's child and ends with it.
        let server = Program::new("tmux")
            .arg("-S")
            .arg(&socket)
            .args(["-f", "/dev/null", "-D"])
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8")
            .start();
        let terminal = Self {
            socket,
            _server: server,
        };
        let (x, y) = (columns.to_string(), lines.to_string());
        let begun = Instant::now();
        loop {
            let line = format!("{line}; echo status=$?; stty -a; sleep 1000");
            let new = terminal.tmux(&["new-session", "-d", "-s", "top", "-x", &x, "-y", &y, &line]);
            if new.status.success() {
                return terminal;
            }
            assert!(begun.elapsed() < HANG, "{new}");
            thread::sleep(TICK);
        }
    }

    fn tmux(&self, args: &[&str]) -> Done {
        Program::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .args(args)
            .run()
    }

    fn screen(&self) -> String {
        let shown = self.tmux(&["capture-pane", "-p", "-t", "top"]).expect(0);
        shown.stdout
    }

    /// Waits until `holds` returns `true` for the screen, and returns the screen.
    #[track_caller]
    fn until(&self, what: &str, holds: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + HANG;
        loop {
            let screen = self.screen();
            if holds(&screen) {
                return screen;
            }
            assert!(
                Instant::now() < end,
                "{what} is not on the screen:\n{screen}"
            );
            thread::sleep(TICK);
        }
    }

    fn resize(&self, columns: u16, lines: u16) {
        let (x, y) = (columns.to_string(), lines.to_string());
        let _ = self
            .tmux(&["resize-window", "-t", "top", "-x", &x, "-y", &y])
            .expect(0);
    }

    /// Waits for the exit status `status`, asserts that the terminal's line mode and echo are on
    /// again, and returns the screen.
    #[track_caller]
    fn assert_restored(&self, status: &str) -> String {
        let screen = self.until(status, |it| it.contains(status) && it.contains("icanon"));
        assert!(
            !screen.contains("-icanon") && !screen.contains("-echo "),
            "{screen}"
        );
        screen
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

/// Starts a capture with a control socket. Returns the capture and the command line of `wqcap top`.
fn capture(dir: &Dir) -> (Running, String) {
    let run = Wqcap::run(dir, "top")
        .model("synth:pps=3000,flows=64,proto=mix")
        .queues(2)
        .control();
    let (ctl, mut running) = (run.ctl(), run.start());
    ctl.until(&mut running, "status", "the service answers", |_| true);
    let top = format!(
        "{} top --every 0.2 --unix {}",
        binaries::wqcap().display(),
        ctl.socket().display()
    );
    (running, top)
}

fn no_tmux() -> bool {
    let found = Program::new("sh").args(["-c", "command -v tmux"]);
    !found.run().status.success()
}

/// Returns `true` if the screen has all parts. The first screen of a run has no rates yet.
fn is_complete(screen: &str) -> bool {
    let parts = [
        "mlx5_0 port 1  running 0:",
        "kframes/s",
        "skew ",
        "write buffers ",
        "udp ",
        "captured",
        "sender",
        "q quits",
    ];
    parts.iter().all(|it| screen.contains(it))
}

fn width_of(screen: &str) -> usize {
    screen
        .lines()
        .map(|it| it.chars().count())
        .max()
        .unwrap_or(0)
}

#[test]
fn top_follows_the_terminals_size_and_restores_the_terminal() {
    if no_tmux() {
        skip!("tmux is not installed");
    }
    let dir = Dir::new();
    let (running, top) = capture(&dir);
    let terminal = Terminal::new(&dir, &top, 100, 30);
    let _ = terminal.until("the complete screen", is_complete);

    // A small screen keeps the lines of queues and omits senders.
    terminal.resize(40, 10);
    let small = terminal.until("the small screen", |it| {
        width_of(it) <= 40
            && it.contains("kframes/s")
            && it.contains("q quits")
            && !it.contains("sender")
    });
    assert!(
        small.lines().any(|it| it.trim_start().starts_with("1 ")),
        "{small}"
    );
    terminal.resize(7, 2);
    let _ = terminal.until("the first line", |it| it.starts_with("mlx5_0"));

    // A wide screen has queues and senders next to each other.
    terminal.resize(130, 20);
    let _ = terminal.until("the complete wide screen", |it| {
        is_complete(it)
            && it
                .lines()
                .any(|line| line.contains("queue") && line.contains("sender"))
    });
    let _ = terminal.tmux(&["send-keys", "-t", "top", "q"]).expect(0);
    let _ = terminal.assert_restored("status=0");
    running.signal(Signal::TERM);
    let _ = running.wait().expect(0);
}

#[test]
fn a_signal_and_the_end_of_the_capture_restore_the_terminal() {
    if no_tmux() {
        skip!("tmux is not installed");
    }
    let dir = Dir::new();
    let (running, top) = capture(&dir);
    // The shell writes its process ID, which `wqcap top` keeps.
    let pid_file = dir.join("pid");
    let signalled = format!("sh -c 'echo $$ > {}; exec {top}'", pid_file.display());
    let terminal = Terminal::new(&dir, &signalled, 80, 24);
    let _ = terminal.until("the complete screen", is_complete);
    let pid = std::fs::read_to_string(&pid_file).expect("the file was written");
    let _ = Program::new("kill")
        .args(["-TERM", pid.trim()])
        .run()
        .expect(0);
    let _ = terminal.assert_restored("status=0");
    drop(terminal);

    let other = Dir::new();
    let terminal = Terminal::new(&other, &top, 80, 24);
    let _ = terminal.until("the complete screen", is_complete);
    running.signal(Signal::TERM);
    let _ = running.wait().expect(0);
    let screen = terminal.assert_restored("status=1");
    assert!(screen.contains("error: the capture has ended"), "{screen}");
}

/// tmux closes the terminal, and the process gets SIGHUP. In the second case the process has left
/// the terminal's session, and only its reads and writes fail.
#[test]
fn top_ends_with_its_terminal() {
    if no_tmux() {
        skip!("tmux is not installed");
    }
    for session in ["", "setsid -w "] {
        let dir = Dir::new();
        let (running, top) = capture(&dir);
        let [pid_file, status_file] = ["pid", "status"].map(|it| dir.join(it));
        // The shell of another session gets no SIGHUP, and outlives the view.
        let line = format!(
            "{session}sh -c 'echo $$ > {}; {top}; echo $? > {}'",
            pid_file.display(),
            status_file.display()
        );
        let terminal = Terminal::new(&dir, &line, 80, 24);
        let _ = terminal.until("the complete screen", is_complete);
        let pid = std::fs::read_to_string(&pid_file).expect("the file was written");
        drop(terminal);
        let process = PathBuf::from(format!("/proc/{}", pid.trim()));
        let end = Instant::now() + HANG;
        while process.exists() {
            assert!(
                Instant::now() < end,
                "`wqcap top` ends without a terminal: {line}"
            );
            thread::sleep(TICK);
        }
        if !session.is_empty() {
            let status = std::fs::read_to_string(&status_file).expect("the file was written");
            assert_eq!(status.trim(), "0", "exit status of `wqcap top`");
        }
        running.signal(Signal::TERM);
        let _ = running.wait().expect(0);
    }
}

/// The control service may hang before its first answer.
#[test]
fn a_signal_ends_top_before_the_first_answer() {
    if no_tmux() {
        skip!("tmux is not installed");
    }
    let dir = Dir::new();
    let socket = dir.join("silent");
    let service = UnixListener::bind(&socket).expect("the socket can be made");
    let pid_file = dir.join("pid");
    let line = format!(
        "sh -c 'echo $$ > {}; exec {} top --unix {}'",
        pid_file.display(),
        binaries::wqcap().display(),
        socket.display()
    );
    let terminal = Terminal::new(&dir, &line, 80, 24);
    let _connection = service.accept().expect("`wqcap top` connects");
    let pid = std::fs::read_to_string(&pid_file).expect("the file was written");
    let pid: i32 = pid.trim().parse().expect("a process id");
    let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
    let begun = Instant::now();
    rustix::process::kill_process(pid, Signal::INT).expect("the process runs");
    let _ = terminal.assert_restored("status=0");
    // The service has 10 s for its answer.
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn without_a_terminal_or_a_capture_top_fails_with_the_reason() {
    wqcap(["top"])
        .run()
        .expect(2)
        .says(&["terminal", "wqcap ctl watch"]);
    if no_tmux() {
        skip!("tmux is not installed");
    }
    let dir = Dir::new();
    let top = format!(
        "{} top --unix {}",
        binaries::wqcap().display(),
        dir.join("no").display()
    );
    let terminal = Terminal::new(&dir, &top, 200, 24);
    let screen = terminal.assert_restored("status=2");
    assert!(screen.contains("no capture listens there"), "{screen}");
}
