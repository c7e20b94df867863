//! Messages to the service manager (sd_notify(3)): readiness, status line, and the watchdog while
//! every loop is alive.
//!
//! Without `NOTIFY_SOCKET` in the environment nothing is sent. The loops are still watched: a stuck
//! queue is reported in the log.

use crate::term::{progress, terminal};
use sd_notify::NotifyState;
use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::{Duration, Instant},
};
use wqcap_supervisor::Interval;

/// Interval of messages to the service manager while nothing is captured.
const EVERY: Duration = Duration::from_secs(1);
/// Time that one round of a queue's loop may take before the loop counts as stuck. An idle loop
/// makes five rounds per second; only `output.on_full = "hold"` and `pipeline.on_full = "hold"` let
/// a loop wait.
const STUCK: Duration = Duration::from_secs(5);
/// Time between two checks for stuck queue loops above which the earlier check is discarded. Checks
/// are normally 1 s apart.
const STALE: Duration = Duration::from_secs(4);

/// Reporter of a capture's state to the service manager (sd_notify).
pub struct Service {
    /// Socket to the service manager, connected at the start, because the sandbox of a running
    /// capture forbids new ones; `None`: no service manager.
    manager: Option<UnixDatagram>,
    /// Earliest time of the next message to the service manager while nothing is captured.
    next: Instant,
    /// Detector of receive loops that are stuck.
    pulse: Pulse,
    /// `true` if the service manager expects watchdog messages.
    watched: bool,
}

impl Service {
    /// Connects to the service manager that the environment variable `NOTIFY_SOCKET` names.
    pub fn new() -> Self {
        let manager = connect().unwrap_or_else(|e| {
            tracing::warn!("cannot connect to the service manager at NOTIFY_SOCKET: {e}");
            None
        });
        Self {
            manager,
            next: Instant::now(),
            pulse: Pulse::default(),
            watched: sd_notify::watchdog_enabled().is_some(),
        }
    }

    /// Resets the detection of stuck loops for another capture in the same process.
    pub fn restart(&mut self) {
        self.next = Instant::now();
        self.pulse = Pulse::default();
    }

    fn notify(&self, states: &[NotifyState<'_>]) {
        if let Some(manager) = &self.manager {
            send(manager, states);
        }
    }

    /// Returns a function that asks the service manager to wait for the end of the process for a
    /// further time, from now on.
    pub fn extender(&self) -> impl Fn(Duration) + Send + 'static {
        let manager = self.manager.as_ref().and_then(|it| it.try_clone().ok());
        move |time| {
            let us = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
            if let Some(manager) = &manager {
                send(manager, &[NotifyState::ExtendTimeoutUsec(us)]);
            }
        }
    }

    /// Reports to the service manager that the first WQ is ready to receive. Units that are ordered
    /// after this one may then start.
    pub fn ready(&self, headline: &str) {
        self.notify(&[NotifyState::Ready, NotifyState::Status(headline)]);
    }

    /// Reports a snapshot of the capture to the service manager: the status line, and the watchdog
    /// message if every loop makes progress.
    pub fn report(&mut self, interval: &Interval) {
        let beats: Vec<_> = interval.now().rings.iter().map(|it| it.beats).collect();
        let newly_stuck = self.pulse.take(&beats, interval.at());
        for queue in newly_stuck {
            tracing::error!(
                "queue {queue}: the receive loop has been stuck for {} s; no watchdog message is sent until it continues",
                STUCK.as_secs()
            );
        }
        if let Some(before) = interval.before() {
            let status = match self.pulse.stuck().as_slice() {
                [] => progress::line(before, interval.now(), terminal::WIDE),
                stuck => format!("stuck: queue {}", list(stuck)),
            };
            self.notify(&[NotifyState::Status(&status)]);
        }
        if self.watched && self.pulse.stuck().is_empty() {
            self.notify(&[NotifyState::Watchdog]);
        }
    }

    /// Reports to the service manager once per second that nothing is captured.
    pub fn report_stopped(&mut self) {
        self.alive("stopped; `wqcap ctl start` starts the capture again");
    }

    /// Reports `status` to the service manager and that the process is alive, once per second,
    /// while no loop runs.
    pub fn alive(&mut self, status: &str) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + EVERY;
        self.notify(&[NotifyState::Status(status)]);
        if self.watched {
            self.notify(&[NotifyState::Watchdog]);
        }
    }

    /// Reports to the service manager, once per second while the device is lost, the number of
    /// attempts to find it and the time until the next one.
    pub fn report_search(&mut self, device: &str, tries: u32, wait: Duration) {
        self.alive(&format!(
            "device {device} is lost; failed attempts to find it: {tries}; the next one is in {:.1} s",
            wait.as_secs_f64()
        ));
    }

    /// Reports to the service manager that the queues are being drained and the files closed.
    pub fn stopping(&self) {
        self.notify(&[
            NotifyState::Stopping,
            NotifyState::Status("draining queues and closing files"),
        ]);
    }
}

/// Sends sd_notify states to the service manager. A failure is only logged, because it must not
/// disturb the capture.
fn send(manager: &UnixDatagram, states: &[NotifyState<'_>]) {
    let message: String = states.iter().map(|it| format!("{it}\n")).collect();
    if let Err(e) = manager.send(message.as_bytes()) {
        tracing::debug!("cannot send a message to the service manager: {e}");
    }
}

/// Connects a socket to the service manager. Returns `None` if the environment names no service
/// manager.
fn connect() -> io::Result<Option<UnixDatagram>> {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return Ok(None);
    };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    connected(&address).map(Some)
}

/// Returns a non-blocking datagram socket that is connected to `address`, so that a service manager
/// that has stopped reading delays nothing.
fn connected(address: &SocketAddr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Formats a list of queue indexes, separated by commas.
fn list(queues: &[usize]) -> String {
    let names: Vec<_> = queues.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// Detector of receive loops that stopped making rounds.
#[derive(Default)]
struct Pulse {
    /// Progress of the receive loop of each queue.
    beats: Vec<Beat>,
    /// Time of the last check for stuck loops.
    checked_at: Option<Instant>,
}

/// Progress of the receive loop of one queue.
struct Beat {
    /// Number of rounds of the queue's loop at its last progress.
    count: u64,
    /// Time of the last progress of the queue's loop.
    since: Instant,
    /// Set when the queue's loop has made no round for the time [`STUCK`].
    stuck: bool,
}

impl Pulse {
    /// Compares each receive loop's number of rounds with that of the last check. Returns the
    /// queues whose loops became stuck since then.
    fn take(&mut self, beats: &[u64], now: Instant) -> Vec<usize> {
        let beat = |&count| Beat {
            count,
            since: now,
            stuck: false,
        };
        let before = self.checked_at.replace(now);
        // If the whole process was stopped, its loops had no time to make rounds either.
        let was_away = before.is_some_and(|it| now.saturating_duration_since(it) >= STALE);
        if self.beats.len() != beats.len() || was_away {
            self.beats = beats.iter().map(beat).collect();
            return Vec::new();
        }
        let mut newly = Vec::new();
        for (queue, (seen, count)) in self.beats.iter_mut().zip(beats).enumerate() {
            if *count != seen.count {
                *seen = beat(count);
            } else if !seen.stuck && now.saturating_duration_since(seen.since) >= STUCK {
                seen.stuck = true;
                newly.push(queue);
            }
        }
        newly
    }

    /// Returns the queues whose receive loops are stuck.
    fn stuck(&self) -> Vec<usize> {
        let stuck = self.beats.iter().enumerate().filter(|(_, it)| it.stuck);
        stuck.map(|(queue, _)| queue).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_loop_is_reported_once_until_it_continues() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pulse = Pulse::default();
        assert!(pulse.take(&[0, 0], at(0)).is_empty());
        assert!(pulse.take(&[1, 0], at(3)).is_empty());
        assert_eq!(pulse.take(&[2, 0], at(5)), [1]);
        assert!(pulse.take(&[3, 0], at(8)).is_empty());
        assert_eq!(pulse.stuck(), [1]);
        assert!(pulse.take(&[4, 1], at(10)).is_empty());
        assert!(pulse.stuck().is_empty());
        assert!(pulse.take(&[4, 2], at(13)).is_empty());
        assert_eq!(pulse.take(&[4, 3], at(15)), [0]);
    }

    #[test]
    fn a_manager_that_does_not_read_holds_nothing_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let service = Service {
            manager: Some(connected(&SocketAddr::from_pathname(&path).unwrap()).unwrap()),
            next: Instant::now(),
            pulse: Pulse::default(),
            watched: false,
        };
        // The queue of a socket holds some messages (net.unix.max_dgram_qlen).
        let begun = Instant::now();
        for _ in 0..10_000 {
            service.ready("ready");
        }
        assert!(begun.elapsed() < Duration::from_secs(10));
        drop(manager);
    }

    #[test]
    fn a_process_that_was_stopped_has_no_stuck_loops() {
        let start = Instant::now();
        let mut pulse = Pulse::default();
        assert!(pulse.take(&[7, 7], start).is_empty());
        assert!(pulse.take(&[7, 7], start + 3 * STUCK).is_empty());
        let after = start + 3 * STUCK;
        assert!(pulse.take(&[8, 7], after + STUCK / 2).is_empty());
        assert_eq!(pulse.take(&[9, 7], after + STUCK), [1]);
    }

    #[test]
    fn another_capture_in_the_same_process_starts_from_zero() {
        let start = Instant::now();
        let mut pulse = Pulse::default();
        pulse.take(&[7], start);
        assert!(pulse.take(&[0, 0], start + STUCK).is_empty());
        assert!(pulse.stuck().is_empty());
    }
}
