//! Capture in the far one of two network namespaces. It ends after all frames that were sent before
//! have reached it.

use super::netns::{Namespace, Pair};
use crate::{Running, Wqcap, ctl::Ctl};
use rustix::process::Signal;

/// UDP port of marker datagrams (discard, RFC 863). The capture's filter rejects them, so that the
/// ledger counts them as `filtered`.
const DISCARD: u16 = 9;

/// Running capture in the far namespace.
pub struct Live<'p> {
    near: &'p Namespace,
    /// Process of the capture.
    pub run: Running,
    /// Client of the capture's control socket.
    pub ctl: Ctl,
    /// Number of marker datagrams sent so far.
    marks: u64,
}

impl<'p> Live<'p> {
    /// Configures `run` for the far namespace of `pair`, with a filter for markers and a control
    /// socket.
    #[must_use]
    pub fn on<'d>(run: Wqcap<'d>, pair: &Pair) -> Wqcap<'d> {
        run.set(&format!("capture.filter=not udp dst port {DISCARD}"))
            .control()
            .wrapped(&["ip", "netns", "exec", pair.far.name()])
    }

    /// Starts a run that [`on`](Self::on) returned, and waits until it receives frames.
    ///
    /// # Panics
    /// Panics if the capture ends before that.
    #[must_use]
    #[track_caller]
    pub fn start(command: &Wqcap<'_>, pair: &'p Pair) -> Self {
        let mut live = Self {
            near: &pair.near,
            run: command.start(),
            ctl: command.ctl(),
            marks: 0,
        };
        live.run.until("the capture is ready", |run| {
            run.stderr().contains("capturing mlx5_0")
        });
        live
    }

    /// Waits until all frames that reached the far namespace before this call are in the capture's
    /// rings: sends a marker datagram and waits until the ledger counts it.
    ///
    /// # Panics
    /// Panics if the capture ends before that.
    #[track_caller]
    pub fn until_all_came(&mut self) {
        let send = format!("echo >/dev/udp/10.77.0.2/{DISCARD}");
        let _ = self.near.program("bash", &["-c", &send]).run().expect(0);
        self.marks += 1;
        self.ctl
            .until_counted(&mut self.run, "filtered", self.marks);
    }

    /// Waits until all frames have reached the capture, then sends it SIGINT.
    ///
    /// # Panics
    /// Panics if the capture ends before that.
    #[must_use]
    #[track_caller]
    pub fn stop(mut self) -> Running {
        self.until_all_came();
        self.run.signal(Signal::INT);
        self.run
    }
}
