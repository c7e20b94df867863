//! State of the capture by its control service, marks, pins, and the pressure on the disk.
//!
//! Invariant: the control service is asked at most once in [`FRESH`], whatever the number of callers.

use crate::{
    ServePlan,
    error::ApiError,
    query::{
        digits::{digits, optional_digits},
        times,
    },
    store::StoreView,
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use utoipa::ToSchema;
use wqcap_control::{
    client::{Client, ClientError, UnixTransport},
    protocol::{AnswerBody, CaptureState, Command, LedgerSnapshot, Stats, Status},
};
use wqcap_core::stats::{LOSSES, QueueLedger};
use wqcap_files::pin::{Pin, PinFolder};

/// Age after which the state of the capture is read again from its control service.
const FRESH: Duration = Duration::from_secs(1);
/// Time in seconds after the start of a capture with frames by which it has a file: the first
/// frames are in one after a second.
const FIRST_FILE_S: f64 = 5.0;
/// Time for which frames wait for the disk, above which answers that need them are incomplete.
const UNWRITTEN: Duration = Duration::from_secs(2);
/// Time for which the capture gathers frames before it sends them to the disk.
const HELD: Duration = Duration::from_secs(2);
/// Time limit for an answer of the capture's control service.
const PATIENCE: Duration = Duration::from_secs(3);
/// Share of the last 10 s in percent that all programs waited for a disk. At this share or above,
/// requests for packets are refused.
const BUSY_PERCENT: f64 = 80.0;

/// Pin of the capture folder. Times are decimal digits: nanoseconds since 1970.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PinRow {
    /// ID of the pin.
    pub id: String,
    /// Start of the pinned time range.
    #[serde(serialize_with = "digits")]
    #[schema(value_type = String)]
    pub from_ns: u64,
    /// End of the pinned time range.
    #[serde(serialize_with = "digits")]
    #[schema(value_type = String)]
    pub to_ns: u64,
    /// Filter expression of the pinned frames; empty: every frame.
    pub filter: String,
    /// Reason for the pin.
    pub reason: String,
    /// Time at which the pin was created.
    #[serde(serialize_with = "digits")]
    #[schema(value_type = String)]
    pub made_ns: u64,
}

/// Pins of the capture folder.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct PinsAnswer {
    /// Valid pins.
    pub pins: Vec<PinRow>,
    /// Files that are not valid pins. Each of them holds every capture file.
    pub unsound: Vec<UnsoundRow>,
}

/// File in the folder of pins that is not a valid pin.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct UnsoundRow {
    /// Path of the file.
    pub path: String,
    /// Reason why it is not valid.
    pub problem: String,
}

/// State of the sensor.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct StatusAnswer {
    /// Version of wqcap that answers.
    pub version: &'static str,
    /// Name of the sensor.
    pub sensor: String,
    /// Present time of the sensor, in nanoseconds since 1970.
    #[serde(serialize_with = "digits")]
    #[schema(value_type = String)]
    pub now_ns: u64,
    /// Name of the caller; absent if the service does not authenticate callers.
    pub who: Option<String>,
    /// Role of the caller.
    pub role: crate::identity::CallerRole,
    /// Set if callers need a token or a certificate.
    pub authenticates: bool,
    /// Number and times of the stored files.
    pub store: StoreStatus,
    /// State of the capture; absent if it is not known.
    pub capture: Option<CaptureAnswer>,
    /// Reason why the state of the capture is not known.
    pub capture_problem: Option<String>,
}

/// Number, length and times of the stored capture files.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct StoreStatus {
    /// Number of finished files.
    pub files: u64,
    /// Bytes of finished files.
    pub bytes: u64,
    /// Number of files that the capture writes.
    pub open_files: u64,
    /// Time of the earliest frame in finished files, if it is known.
    #[serde(serialize_with = "optional_digits")]
    #[schema(value_type = Option<String>)]
    pub first_ns: Option<u64>,
    /// Time of the latest frame in finished files, if it is known.
    #[serde(serialize_with = "optional_digits")]
    #[schema(value_type = Option<String>)]
    pub last_ns: Option<u64>,
    /// Free bytes of the file system for the capture's user.
    pub free_bytes: Option<u64>,
    /// Estimated hours of traffic that the disk holds.
    pub disk_hours: Option<f64>,
}

/// State of the capture.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct CaptureAnswer {
    /// `running`, `drained`, `stopped` or `lost`.
    pub state: String,
    /// Device that captures.
    pub device: String,
    /// Seconds since the capture began.
    pub elapsed_s: f64,
    /// Filter of captured frames.
    pub filter: String,
    /// Ledger of all queues together: number of frames by line.
    pub ledger: BTreeMap<String, u64>,
    /// Frames received per second, between the last two readings.
    pub frames_per_s: Option<f64>,
    /// Frames lost per second, between the last two readings.
    pub lost_per_s: Option<f64>,
    /// Bits received per second; absent if the capture does not count them.
    pub bits_per_s: Option<f64>,
    /// Milliseconds for which the oldest frames that are not on the disk have been waiting for it. A wait
    /// of two seconds or more counts for two seconds after it was seen last.
    pub waiting_ms: u64,
    /// Milliseconds for which frames may have waited because a receive loop made no round; 0: each loop
    /// makes rounds.
    pub stuck_ms: u64,
    /// Receive queues.
    pub queues: Vec<QueueRow>,
}

impl CaptureAnswer {
    /// Returns the number of frames that the capture has written.
    fn captured(&self) -> u64 {
        self.ledger.get("captured").copied().unwrap_or_default()
    }

    /// Returns `true` if the capture runs, and has had the time to write frames to a file.
    fn has_files(&self) -> bool {
        self.state == "running" && self.captured() > 0 && self.elapsed_s >= FIRST_FILE_S
    }
}

/// Receive queue of the capture.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct QueueRow {
    /// Number of the queue.
    pub queue: u64,
    /// Name of the captured port.
    pub port: String,
    /// Frames received.
    pub received: u64,
    /// Frames written.
    pub captured: u64,
    /// Frames lost.
    pub lost: u64,
}

/// Access to the capture through its control service, and to the pins, which protect capture files
/// from deletion.
pub struct SensorAccess {
    dir: PathBuf,
    control: Option<PathBuf>,
    has_nic_clock: bool,
    last: Mutex<LastReading>,
}

/// Reason why the state of the capture is not known.
#[derive(Clone, Debug)]
pub struct CaptureProblem {
    /// Description of the problem.
    pub text: String,
    /// Set unless it is certain that no capture serves the control socket.
    may_run: bool,
}

#[derive(Default)]
struct LastReading {
    at: Option<Instant>,
    result: Option<Result<CaptureAnswer, CaptureProblem>>,
    disk_hours: Option<f64>,
    /// Rounds of each receive loop, and the time of the last reading before they changed.
    beats: Vec<(u64, Instant)>,
    /// Time at which the last stall of the capture began, and at which it was seen last.
    stall: Option<(Instant, Instant)>,
    /// Time since which frames were last seen to wait for the disk for [`UNWRITTEN`] or longer, and time
    /// at which that was seen.
    disk_wait: Option<(Instant, Instant)>,
}

impl LastReading {
    /// Returns the time for which a receive loop has made no round, after a reading of the rounds of
    /// all loops at the time `now`: the longest of these times, 0 if each loop has made rounds.
    fn stuck(&mut self, beats: &[u64], now: Instant) -> Duration {
        let before = self.at.unwrap_or(now);
        if self.beats.len() != beats.len() {
            self.beats = beats.iter().map(|it| (*it, now)).collect();
        }
        let mut longest = Duration::ZERO;
        for (seen, beats) in self.beats.iter_mut().zip(beats) {
            match seen.0 == *beats {
                true => longest = longest.max(now.saturating_duration_since(seen.1)),
                false => *seen = (*beats, before),
            }
        }
        longest
    }

    /// Returns the time for which frames may have been waiting for the disk, after a reading at the time
    /// `now` that gave the time `waiting`. When a wait ends, frames that have waited elsewhere in the
    /// capture need a moment.
    fn waited(&mut self, waiting: Duration, now: Instant) -> Duration {
        let since = |it: Instant| now.saturating_duration_since(it);
        if waiting >= UNWRITTEN {
            let begun = now.checked_sub(waiting).unwrap_or(now);
            self.disk_wait = Some((begun, now));
        }
        match self.disk_wait {
            Some((begun, seen)) if since(seen) < UNWRITTEN => since(begun),
            _ => waiting,
        }
    }

    /// Returns the time for which frames may have been waiting in the capture's rings, after a
    /// reading that began at `asked` and ended at `now`. `stuck` is the time for which a loop has made
    /// no round; `None`: the capture did not answer. When a stall ends, the loops need a moment for the
    /// frames that have waited.
    fn stalled(&mut self, stuck: Option<Duration>, asked: Instant, now: Instant) -> Duration {
        let since = |it: Instant| now.saturating_duration_since(it);
        let loops = stuck.unwrap_or(Duration::ZERO);
        // The capture did not answer until this reading.
        let was_silent = matches!(&self.result, Some(Err(e)) if e.may_run);
        if stuck.is_none() || was_silent || loops.max(since(asked)) >= UNWRITTEN {
            let own = loops.max(since(self.at.unwrap_or(asked)));
            let begun = self
                .stall
                .map_or_else(|| now.checked_sub(own), |it| Some(it.0));
            self.stall = Some((begun.unwrap_or(now), now));
        }
        match self.stall {
            Some((begun, seen)) if since(seen) < UNWRITTEN => since(begun),
            _ => {
                self.stall = None;
                loops
            }
        }
    }
}

impl SensorAccess {
    /// Creates the access to the capture of the plan.
    pub fn new(plan: &ServePlan) -> Self {
        Self {
            dir: plan.dir.clone(),
            control: plan.control.clone(),
            has_nic_clock: plan.has_nic_clock,
            last: Mutex::default(),
        }
    }

    /// Returns the state of the capture, or the reason why it is unknown, and the hours of traffic
    /// that the disk holds.
    pub fn capture(&self) -> (Result<CaptureAnswer, CaptureProblem>, Option<f64>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        (self.read(&mut last).0, last.disk_hours)
    }

    /// Returns the state of the capture, or the reason why it is unknown, and the time by which it
    /// was read.
    pub fn capture_at(&self) -> (Result<CaptureAnswer, CaptureProblem>, Instant) {
        self.read(&mut self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the state of the capture if the last reading is older than [`FRESH`]. Returns the state
    /// and the time by which it was read.
    fn read(&self, last: &mut LastReading) -> (Result<CaptureAnswer, CaptureProblem>, Instant) {
        if let (Some(at), Some(result)) = (last.at, &last.result)
            && at.elapsed() < FRESH
        {
            return (result.clone(), at);
        }
        let asked = Instant::now();
        let passed = last.at.map(|at| asked - at);
        let read = self.read_capture();
        let now = Instant::now();
        if read.as_ref().is_err_and(|e| e.may_run) {
            last.stalled(None, asked, now);
        }
        let result = read.map(|(mut it, hours, beats)| {
            last.disk_hours = hours;
            if it.state == CaptureState::Running.to_string() {
                let stuck = last.stuck(&beats, now);
                let stalled = last.stalled(Some(stuck), asked, now);
                it.stuck_ms = u64::try_from(stalled.as_millis()).unwrap_or(u64::MAX);
            }
            let waited = last.waited(Duration::from_millis(it.waiting_ms), now);
            it.waiting_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            if let (Some(Ok(before)), Some(passed)) = (&last.result, passed) {
                it.add_rates(before, passed);
            }
            it
        });
        let at = Instant::now();
        last.at = Some(at);
        last.result = Some(result.clone());
        (result, at)
    }

    /// Returns the reason why frames before the time `end_ns` may be in no file yet, in nanoseconds
    /// since 1970: the capture waits for its disk, a receive loop is stuck, or the `state` of the capture
    /// is unknown, and it has files open or may run. `None`: there is no reason, or the capture has no
    /// control service.
    pub fn unwritten(
        &self,
        state: &Result<CaptureAnswer, CaptureProblem>,
        view: &StoreView,
        end_ns: u64,
    ) -> Option<String> {
        let before = |ns: u64, time: Duration| {
            ns.saturating_sub(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        };
        match state {
            Ok(it) if view.is_empty() && it.has_files() => Some(format!(
                "output.dir has no file, but the running capture has captured {} frames: is its disk mounted here?",
                it.captured()
            )),
            Ok(it) => {
                let (ms, why) = match it.waiting_ms >= it.stuck_ms {
                    true => (
                        it.waiting_ms,
                        "the capture waits for its disk, which is full or slow",
                    ),
                    false => (
                        it.stuck_ms,
                        "the capture makes no progress, or has just continued after a stall",
                    ),
                };
                let waiting = Duration::from_millis(ms);
                // A NIC's clock may be behind.
                let written_ns = match self.has_nic_clock {
                    false => u64::MAX,
                    true => view.span().map_or(0, |it| it.end),
                };
                let now_ns = times::now().min(written_ns);
                let is_needed = end_ns > before(now_ns, waiting.saturating_add(HELD));
                (waiting >= UNWRITTEN && is_needed).then(|| {
                    let seconds = waiting.as_secs();
                    format!("frames of the last {seconds} s are not in a file yet: {why}")
                })
            }
            Err(CaptureProblem { text, may_run }) => {
                self.control.as_ref()?;
                let finished_ns = may_run.then(|| view.span().map_or(0, |it| it.end));
                let since_ns = view.open_since_ns.into_iter().chain(finished_ns).min()?;
                (before(since_ns, HELD) < end_ns).then(|| {
                    format!(
                        "frames may not be in a file yet: it is unknown whether the capture waits for its disk ({text})"
                    )
                })
            }
        }
    }

    fn client(&self) -> Result<Client, CaptureProblem> {
        let socket = self.control.as_ref().ok_or_else(|| CaptureProblem {
            text: "the capture has no control service; set [control] in its config".into(),
            may_run: false,
        })?;
        let transport = UnixTransport::connect(socket).map_err(|e| {
            let shown = socket.display();
            let kind = e.kind();
            CaptureProblem {
                text: format!("{shown}: the capture cannot be reached: {e}"),
                may_run: !matches!(kind, ErrorKind::NotFound | ErrorKind::ConnectionRefused),
            }
        })?;
        Ok(Client::new(transport))
    }

    /// Returns the state of the capture, the hours of traffic that its disk holds, and the rounds of
    /// each receive loop.
    fn read_capture(&self) -> Result<(CaptureAnswer, Option<f64>, Vec<u64>), CaptureProblem> {
        let mut client = self.client()?;
        let silent = |text| CaptureProblem {
            text,
            may_run: true,
        };
        let mut ask = |command| {
            let answer = client.request(command, None, PATIENCE);
            answer.map_err(|e| silent(e.to_string()))
        };
        let odd = || silent("the control service gave another answer than was asked for".into());
        let AnswerBody::Status(status) = ask(Command::Status)? else {
            return Err(odd());
        };
        let AnswerBody::Stats(stats) = ask(Command::Stats)? else {
            return Err(odd());
        };
        let (answer, hours) = CaptureAnswer::new(&status, &stats);
        Ok((answer, hours, stats.beats))
    }

    /// Requests a mark of the present moment from the capture. Returns the ID of the mark and the
    /// text of the capture's answer.
    pub fn mark(
        &self,
        text: String,
        before: Duration,
        after: Duration,
        filter: String,
    ) -> Result<(String, String), ApiError> {
        let mut client = self.client().map_err(|e| ApiError::Capture(e.text))?;
        let ms = |it: Duration| u64::try_from(it.as_millis()).unwrap_or(u64::MAX);
        let command = Command::Mark {
            text,
            before_ms: ms(before),
            after_ms: ms(after),
            filter,
        };
        match client.request(command, None, PATIENCE) {
            Ok(AnswerBody::Changed(it)) => Ok((it.id.unwrap_or_default(), it.now)),
            Ok(_) => Err(ApiError::Capture(
                "the control service gave another answer".into(),
            )),
            Err(ClientError::Refused(refusal)) => Err(ApiError::Malformed(refusal.message)),
            Err(e) => Err(ApiError::Capture(e.to_string())),
        }
    }

    /// Returns the pins of the capture folder, which protect files from deletion.
    pub fn pins(&self) -> PinsAnswer {
        let pins = self.folder().read();
        let row = |(id, pin): (String, Pin)| PinRow {
            id,
            from_ns: pin.from_ns,
            to_ns: pin.to_ns,
            filter: pin.filter,
            reason: pin.reason,
            made_ns: pin.made_ns,
        };
        let unsound = pins.unsound.into_iter().map(|it| UnsoundRow {
            path: it.path.display().to_string(),
            problem: it.problem.to_string(),
        });
        PinsAnswer {
            pins: pins.sound.into_iter().map(row).collect(),
            unsound: unsound.collect(),
        }
    }

    /// Returns the pin that has the ID `id`; a mark is also a pin.
    pub fn pin(&self, id: &str) -> Result<Pin, ApiError> {
        let found = self.folder().find(id);
        found.map_err(|_| ApiError::NoMark(id.chars().take(200).collect()))
    }

    /// Adds a pin, which protects capture files from deletion, and returns its ID.
    pub fn add_pin(&self, pin: &Pin) -> Result<String, ApiError> {
        use wqcap_files::pin::PinError;
        self.folder().add(pin).map_err(|e| match e {
            PinError::Unsound(problem) => ApiError::Malformed(problem.to_string()),
            e => ApiError::Failed(e.to_string()),
        })
    }

    fn folder(&self) -> PinFolder<'_> {
        PinFolder { dir: &self.dir }
    }

    /// Returns the number, length and times of the stored capture files.
    pub fn store(&self, view: &StoreView, disk_hours: Option<f64>) -> StoreStatus {
        let span = view.span();
        StoreStatus {
            files: view.finished.len() as u64,
            bytes: view.finished.iter().map(|it| it.len).sum(),
            open_files: view.open.len() as u64,
            first_ns: span.as_ref().map(|it| it.start),
            last_ns: span.map(|it| it.end - 1),
            free_bytes: free_bytes(&self.dir),
            disk_hours,
        }
    }
}

impl CaptureAnswer {
    fn new(status: &Status, stats: &Stats) -> (Self, Option<f64>) {
        let capture = &status.capture;
        let total = serde_json::to_value(capture.ledger).unwrap_or_default();
        let it = Self {
            state: capture.state.to_string(),
            device: capture.device.clone(),
            elapsed_s: capture.elapsed_s,
            filter: capture.filter.clone(),
            ledger: serde_json::from_value(total).unwrap_or_default(),
            waiting_ms: stats.disk.map_or(0, |it| it.waiting_ms),
            queues: queues(&stats.ledger),
            ..Self::default()
        };
        let hours = capture.disk.as_ref().map(|it| it.seconds / 3600.0);
        (it, hours)
    }

    /// Computes the rates of frames and losses since the earlier state `before` of the capture.
    fn add_rates(&mut self, before: &Self, passed: Duration) {
        let rate = |now: u64, before: u64| {
            let grown = now.checked_sub(before)?;
            Some(grown as f64 / passed.as_secs_f64().max(0.001))
        };
        let line = |it: &Self, name: &str| it.ledger.get(name).copied().unwrap_or(0);
        self.frames_per_s = rate(line(self, "received"), line(before, "received"));
        self.lost_per_s = rate(lost(&self.ledger), lost(&before.ledger));
    }
}

/// Returns the number of lost frames in a ledger: the sum of its [`LOSSES`].
fn lost(ledger: &BTreeMap<String, u64>) -> u64 {
    LOSSES.iter().filter_map(|it| ledger.get(*it)).sum()
}

/// Returns the rows of the receive queues in a ledger of frames.
fn queues(ledger: &LedgerSnapshot) -> Vec<QueueRow> {
    let row = |it: &QueueLedger| {
        let lines = serde_json::to_value(it).unwrap_or_default();
        QueueRow {
            queue: it.queue.into(),
            port: ledger
                .ports
                .get(usize::from(it.port))
                .cloned()
                .unwrap_or_default(),
            received: it.received,
            captured: it.captured,
            lost: lost(&serde_json::from_value(lines).unwrap_or_default()),
        }
    };
    ledger.queues.iter().map(row).collect()
}

fn free_bytes(dir: &Path) -> Option<u64> {
    let it = rustix::fs::statvfs(dir).ok()?;
    Some(it.f_bavail * it.f_frsize)
}

/// Refuses a request for packets while programs wait for a disk most of the time (proc(5),
/// `/proc/pressure/io`, line `full`). Without this file no request is refused.
pub fn check_disk() -> Result<(), ApiError> {
    #[expect(clippy::disallowed_methods, reason = "a file of /proc")]
    let Ok(text) = fs::read_to_string("/proc/pressure/io") else {
        return Ok(());
    };
    match full_percent(&text) {
        Some(percent) if percent >= BUSY_PERCENT => Err(ApiError::DiskBusy { percent }),
        _ => Ok(()),
    }
}

/// Returns the share of the last 10 s in percent that all programs waited for a disk, from the text
/// of `/proc/pressure/io`.
fn full_percent(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|it| it.strip_prefix("full "))?;
    let field = line.split(' ').find_map(|it| it.strip_prefix("avg10="))?;
    field.parse().ok()
}

/// Returns a new pin, which protects the capture files of a time range, with the present time as
/// its creation time.
pub fn new_pin(from_ns: u64, to_ns: u64, filter: String, reason: String) -> Pin {
    Pin {
        from_ns,
        to_ns,
        filter,
        reason,
        made_ns: times::now(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pressure_on_the_disk_is_read() {
        let text = "some avg10=90.00 avg60=1.00 avg300=0.00 total=1\nfull avg10=81.50 avg60=0.00 avg300=0.00 total=5\n";
        assert_eq!(full_percent(text), Some(81.5));
        for other in ["", "full", "full avg60=1.0", "full avg10=x"] {
            assert_eq!(full_percent(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_running_capture_without_a_file_is_elsewhere() {
        let access = SensorAccess {
            dir: PathBuf::new(),
            control: Some(PathBuf::new()),
            has_nic_clock: false,
            last: Mutex::default(),
        };
        for (state, elapsed_s, captured, is_odd) in [
            ("running", 9.0, 5, true),
            ("running", 1.0, 5, false),
            ("running", 9.0, 0, false),
            ("stopped", 9.0, 5, false),
        ] {
            let answer = CaptureAnswer {
                state: state.into(),
                elapsed_s,
                ledger: [("captured".to_owned(), captured)].into(),
                ..CaptureAnswer::default()
            };
            let problem = access.unwritten(&Ok(answer), &StoreView::default(), 0);
            assert_eq!(problem.is_some(), is_odd, "{state} {elapsed_s} {captured}");
        }
    }

    #[test]
    fn a_loop_that_makes_no_round_between_readings_is_stuck() {
        let start = Instant::now();
        let mut last = LastReading::default();
        let mut longest = |second: u64, beats: &[u64]| {
            let now = start + Duration::from_secs(second);
            let stuck = last.stuck(beats, now);
            last.at = Some(now);
            stuck.as_secs()
        };
        assert_eq!(longest(0, &[1, 1]), 0);
        assert_eq!(longest(2, &[9, 9]), 0);
        // Its last round may have been immediately after the reading at 0 s.
        assert_eq!(longest(3, &[12, 9]), 3);
        assert_eq!(longest(5, &[20, 9]), 5);
        assert_eq!(longest(7, &[30, 10]), 0);
        assert_eq!(longest(8, &[31]), 0);
        assert_eq!(longest(10, &[31]), 2);
    }

    #[test]
    fn a_wait_for_the_disk_counts_a_moment_longer() {
        let start = Instant::now();
        let mut last = LastReading::default();
        let readings = [(0, 0), (2, 1), (4, 3), (5, 0), (6, 1), (7, 2), (9, 0)];
        let waited = readings.map(|(at, waiting)| {
            let waiting = Duration::from_secs(waiting);
            last.waited(waiting, start + Duration::from_secs(at))
                .as_secs()
        });
        assert_eq!(waited, [0, 1, 3, 4, 1, 2, 0]);
    }

    #[test]
    fn frames_that_waited_during_a_stall_need_a_moment_after_it() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let second = Duration::from_secs(1);
        let silent = || CaptureProblem {
            text: "timed out".into(),
            may_run: true,
        };
        let mut last = LastReading::default();
        let mut stalled = |stuck, asked, now| {
            let stalled = last.stalled(stuck, at(asked), at(now));
            last.at = Some(at(now));
            last.result = Some(stuck.map(|_| CaptureAnswer::default()).ok_or(silent()));
            stalled.as_secs()
        };
        assert_eq!(stalled(Some(Duration::ZERO), 1, 1), 0);
        // The capture does not answer for 3 s, nor immediately after; it answers again; and it has
        // caught up.
        assert_eq!(stalled(None, 3, 6), 5);
        assert_eq!(stalled(Some(Duration::ZERO), 8, 9), 8);
        assert_eq!(stalled(Some(Duration::ZERO), 10, 10), 9);
        assert_eq!(stalled(Some(Duration::ZERO), 11, 11), 0);
        // A loop has been stuck, and continues.
        assert_eq!(stalled(Some(2 * second), 20, 20), 9);
        assert_eq!(stalled(Some(Duration::ZERO), 21, 21), 10);
        assert_eq!(stalled(Some(Duration::ZERO), 22, 22), 0);
        // The answer itself took 2 s.
        assert_eq!(stalled(Some(Duration::ZERO), 23, 25), 3);
    }
}
