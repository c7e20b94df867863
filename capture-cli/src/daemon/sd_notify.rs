//! What a service manager is told of a run (sd_notify(3)): that it is ready, how it goes, that every loop is alive.
//!
//! Without `NOTIFY_SOCKET` in the environment nothing is sent, and the loops are watched all the same: a queue that is
//! stuck is named in the log.

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
use wqcap_engine::capture::supervisor::Interval;

/// How often the service manager hears of a process that captures nothing.
const EVERY: Duration = Duration::from_secs(1);
/// How long a loop may take for one round before it counts as stuck. Idle ones come round five times a second; only
/// `output.on_full = "hold"` and `pipeline.on_full = "hold"` let one wait.
const STUCK: Duration = Duration::from_secs(5);
/// Time between two looks after which the first one says nothing about the second: looks are a second apart.
const AWAY: Duration = Duration::from_secs(4);

/// A run as its service manager sees it.
pub struct Service {
    /// Connected at the start: a running capture makes no such sockets.
    manager: Option<UnixDatagram>,
    next: Instant,
    pulse: Pulse,
    /// The service manager wants to hear regularly that all is well.
    watched: bool,
}

impl Service {
    /// Reads from the environment who is to be told.
    pub fn new() -> Self {
        let manager = connect().unwrap_or_else(|e| {
            tracing::warn!("the service manager cannot be told of this run: NOTIFY_SOCKET: {e}");
            None
        });
        Self {
            manager,
            next: Instant::now(),
            pulse: Pulse::default(),
            watched: sd_notify::watchdog_enabled().is_some(),
        }
    }

    /// Another capture begins in the same process.
    pub fn restart(&mut self) {
        self.next = Instant::now();
        self.pulse = Pulse::default();
    }

    /// A message that does not arrive is the service manager's trouble, not the capture's.
    fn tell(&self, states: &[NotifyState<'_>]) {
        let Some(manager) = &self.manager else { return };
        let message: String = states.iter().map(|it| format!("{it}\n")).collect();
        if let Err(e) = manager.send(message.as_bytes()) {
            tracing::debug!("the service manager was not told: {e}");
        }
    }

    /// The first WQ is ready: units that come after this one may start.
    pub fn ready(&self, headline: &str) {
        self.tell(&[NotifyState::Ready, NotifyState::Status(headline)]);
    }

    /// With each snapshot: the status line, and the watchdog if every loop has come round.
    pub fn report(&mut self, interval: &Interval) {
        let beats: Vec<_> = interval.now.rings.iter().map(|it| it.beats).collect();
        let newly_stuck = self.pulse.take(&beats, interval.at);
        for queue in newly_stuck {
            tracing::error!(
                "queue {queue}: its loop has been stuck for {} s; the watchdog is not fed until it goes on",
                STUCK.as_secs()
            );
        }
        if let Some(before) = &interval.before {
            let status = match self.pulse.stuck().as_slice() {
                [] => progress::line(before, &interval.now, terminal::WIDE),
                stuck => format!("stuck: queue {}", list(stuck)),
            };
            self.tell(&[NotifyState::Status(&status)]);
        }
        if self.watched && self.pulse.stuck().is_empty() {
            self.tell(&[NotifyState::Watchdog]);
        }
    }

    /// Once a second while nothing is captured.
    pub fn rest(&mut self) {
        self.alive("stopped; `wqcap ctl start` captures again");
    }

    /// Once a second: there is no loop that could be stuck.
    pub fn alive(&mut self, status: &str) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + EVERY;
        self.tell(&[NotifyState::Status(status)]);
        if self.watched {
            self.tell(&[NotifyState::Watchdog]);
        }
    }

    /// Once a second while the device is lost: how often it was looked for, and when it is again.
    pub fn search(&mut self, device: &str, tries: u32, wait: Duration) {
        self.alive(&format!(
            "{device} is lost; {tries} attempts to find it, next in {:.1} s",
            wait.as_secs_f64()
        ));
    }

    /// Queues are drained and files closed from here on.
    pub fn stopping(&self) {
        self.tell(&[
            NotifyState::Stopping,
            NotifyState::Status("draining queues and closing files"),
        ]);
    }
}

/// A socket connected to the service manager's; `None`: there is no service manager.
fn connect() -> io::Result<Option<UnixDatagram>> {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return Ok(None);
    };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(Some(socket))
}

fn list(queues: &[usize]) -> String {
    let names: Vec<_> = queues.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// Which loops come round.
#[derive(Default)]
struct Pulse {
    beats: Vec<Beat>,
    /// The last look.
    looked: Option<Instant>,
}

struct Beat {
    count: u64,
    since: Instant,
    stuck: bool,
}

impl Pulse {
    /// Takes each loop's count of rounds; those that got stuck since the last look.
    fn take(&mut self, beats: &[u64], now: Instant) -> Vec<usize> {
        let beat = |&count| Beat {
            count,
            since: now,
            stuck: false,
        };
        let before = self.looked.replace(now);
        // A whole process that was stopped has not looked either, and its loops have had no time since.
        let was_away = before.is_some_and(|it| now.saturating_duration_since(it) >= AWAY);
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

    fn stuck(&self) -> Vec<usize> {
        let stuck = self.beats.iter().enumerate().filter(|(_, it)| it.stuck);
        stuck.map(|(queue, _)| queue).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_stands_still_is_named_once_until_it_goes_on() {
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
    fn another_capture_in_the_same_process_starts_afresh() {
        let start = Instant::now();
        let mut pulse = Pulse::default();
        pulse.take(&[7], start);
        assert!(pulse.take(&[0, 0], start + STUCK).is_empty());
        assert!(pulse.stuck().is_empty());
    }
}
