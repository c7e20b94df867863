//! `wqcap top` as somebody sees it: on a terminal, by what tmux says is on the screen.

use rustix::process::Signal;
use std::{path::PathBuf, thread, time::Instant};
use wqcap_tests::{
    Dir, Done, Program, Running, Wqcap, binaries,
    process::{HANG, TICK},
    skip,
    wqcap::wqcap,
};

/// A tmux server of its own with one terminal, in which one command line runs.
struct Terminal {
    socket: PathBuf,
    _server: Running,
}

impl Terminal {
    /// `line` for a shell, on a screen of this size; what it leaves behind stays to be seen.
    fn new(dir: &Dir, line: &str, columns: u16, lines: u16) -> Self {
        let socket = dir.join("tmux");
        // In the foreground, so that it is a child of the test's and ends with it.
        let server = Program::new("tmux")
            .arg("-S")
            .arg(&socket)
            .args(["-f", "/dev/null", "-D"])
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8")
            .start();
        let it = Self {
            socket,
            _server: server,
        };
        let (x, y) = (columns.to_string(), lines.to_string());
        let begun = Instant::now();
        loop {
            let line = format!("{line}; echo status=$?; stty -a; sleep 1000");
            let new = it.tmux(&["new-session", "-d", "-s", "top", "-x", &x, "-y", &y, &line]);
            if new.status.success() {
                return it;
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

    /// Waits until the screen is as it should be.
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

    /// The terminal shows what is typed, line by line, as before.
    #[track_caller]
    fn is_restored(&self, status: &str) -> String {
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

/// A capture with a control socket, and the command line that looks at it.
fn capture(dir: &Dir) -> (Running, String) {
    let run = Wqcap::run(dir, "top")
        .model("synth:pps=3000,flows=64,proto=mix")
        .queues(2)
        .control();
    let (ctl, mut running) = (run.ctl(), run.start());
    ctl.until(&mut running, "status", "somebody answers", |_| true);
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

/// All of it, with rates: a first screen has none.
fn is_whole(screen: &str) -> bool {
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
fn it_follows_the_terminal_and_leaves_it_as_it_was() {
    if no_tmux() {
        skip!("no tmux here");
    }
    let dir = Dir::new();
    let (running, top) = capture(&dir);
    let terminal = Terminal::new(&dir, &top, 100, 30);
    let _ = terminal.until("all of it", is_whole);

    // The queues' lines stay, senders go.
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
    let _ = terminal.until("a beginning", |it| it.starts_with("mlx5_0"));

    // Side by side.
    terminal.resize(130, 20);
    let _ = terminal.until("all of it, wide", |it| {
        is_whole(it)
            && it
                .lines()
                .any(|line| line.contains("queue") && line.contains("sender"))
    });
    let _ = terminal.tmux(&["send-keys", "-t", "top", "q"]).expect(0);
    let _ = terminal.is_restored("status=0");
    running.signal(Signal::TERM);
    let _ = running.wait().expect(0);
}

#[test]
fn a_signal_and_the_end_of_the_capture_leave_the_terminal_as_it_was() {
    if no_tmux() {
        skip!("no tmux here");
    }
    let dir = Dir::new();
    let (running, top) = capture(&dir);
    // The shell says who it becomes.
    let own = dir.join("pid");
    let signalled = format!("sh -c 'echo $$ > {}; exec {top}'", own.display());
    let terminal = Terminal::new(&dir, &signalled, 80, 24);
    let _ = terminal.until("all of it", is_whole);
    let pid = std::fs::read_to_string(&own).expect("written");
    let _ = Program::new("kill")
        .args(["-TERM", pid.trim()])
        .run()
        .expect(0);
    let _ = terminal.is_restored("status=0");
    drop(terminal);

    let other = Dir::new();
    let terminal = Terminal::new(&other, &top, 80, 24);
    let _ = terminal.until("all of it", is_whole);
    running.signal(Signal::TERM);
    let _ = running.wait().expect(0);
    let screen = terminal.is_restored("status=1");
    assert!(screen.contains("error: the capture has ended"), "{screen}");
}

/// tmux closes the terminal and its shell hangs up; the second process has left the terminal's session, and only its
/// reads and writes fail.
#[test]
fn it_ends_with_its_terminal() {
    if no_tmux() {
        skip!("no tmux here");
    }
    for session in ["", "setsid -w "] {
        let dir = Dir::new();
        let (running, top) = capture(&dir);
        let own = dir.join("pid");
        let line = format!("{session}sh -c 'echo $$ > {}; exec {top}'", own.display());
        let terminal = Terminal::new(&dir, &line, 80, 24);
        let _ = terminal.until("all of it", is_whole);
        let pid = std::fs::read_to_string(&own).expect("written");
        drop(terminal);
        let process = PathBuf::from(format!("/proc/{}", pid.trim()));
        let end = Instant::now() + HANG;
        while process.exists() {
            assert!(
                Instant::now() < end,
                "it goes on without a terminal: {line}"
            );
            thread::sleep(TICK);
        }
        running.signal(Signal::TERM);
        let _ = running.wait().expect(0);
    }
}

#[test]
fn without_a_terminal_or_a_capture_it_says_so() {
    wqcap(["top"])
        .run()
        .expect(2)
        .says(&["terminal", "wqcap ctl watch"]);
    if no_tmux() {
        skip!("no tmux here");
    }
    let dir = Dir::new();
    let top = format!(
        "{} top --unix {}",
        binaries::wqcap().display(),
        dir.join("no").display()
    );
    let terminal = Terminal::new(&dir, &top, 200, 24);
    let screen = terminal.is_restored("status=2");
    assert!(screen.contains("no capture listens there"), "{screen}");
}
