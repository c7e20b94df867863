//! A capture on the far end of two namespaces, which ends when all that was sent before is in it.

use super::netns::{Namespace, Pair};
use crate::{Running, Wqcap, ctl::Ctl};
use rustix::process::Signal;

/// The port of datagrams that the capture's filter refuses, and that its ledger tells of for that (RFC 863).
const DISCARD: u16 = 9;

/// A capture under way.
pub struct Live<'p> {
    near: &'p Namespace,
    /// The program.
    pub run: Running,
    /// Its control socket.
    pub ctl: Ctl,
    /// Frames for its filter so far.
    marks: u64,
}

impl<'p> Live<'p> {
    /// Puts a run on the far end of `pair`, with a filter and a control socket.
    #[must_use]
    pub fn on<'d>(run: Wqcap<'d>, pair: &Pair) -> Wqcap<'d> {
        run.set(&format!("capture.filter=not udp dst port {DISCARD}"))
            .control()
            .wrapped(&["ip", "netns", "exec", pair.far.name()])
    }

    /// Starts one of [`on`](Self::on), and waits until frames can come.
    ///
    /// # Panics
    /// When it ends before that.
    #[must_use]
    #[track_caller]
    pub fn start(command: &Wqcap<'_>, pair: &'p Pair) -> Self {
        let mut live = Self {
            near: &pair.near,
            run: command.start(),
            ctl: command.ctl(),
            marks: 0,
        };
        live.run.until("its first frame can come", |run| {
            run.stderr().contains("capturing mlx5_0")
        });
        live
    }

    /// Waits until all frames that came to the far end before this are on the capture's rings: behind them comes one
    /// that is told from them.
    ///
    /// # Panics
    /// When the capture ends before that.
    #[track_caller]
    pub fn until_all_came(&mut self) {
        let send = format!("echo >/dev/udp/10.77.0.2/{DISCARD}");
        let _ = self.near.program("bash", &["-c", &send]).run().expect(0);
        self.marks += 1;
        self.ctl
            .until_counted(&mut self.run, "filtered", self.marks);
    }

    /// Stops it once all frames have come.
    ///
    /// # Panics
    /// When the capture ends before that.
    #[must_use]
    #[track_caller]
    pub fn stop(mut self) -> Running {
        self.until_all_came();
        self.run.signal(Signal::INT);
        self.run
    }
}
