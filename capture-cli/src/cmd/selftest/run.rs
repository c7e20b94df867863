//! Selftest in progress: the findings so far, and the reason to stop.

use super::report::{Finding, Outcome, SelftestReport};
use crate::term::terminal;
use serde_json::Value;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use wqcap_engine::ResourceError;
use wqcap_engine::verbs::{
    AsyncEvent, AsyncEvents, Context, Flow, FlowKind, FlowRule, FlowSpec, RssQp, VerbsError,
};

/// Interval at which the selftest checks for an event of the device.
const TICK: Duration = Duration::from_millis(2);

/// Collector of selftest findings, until a signal arrives or the device is lost.
pub struct SelftestRun {
    /// Selftest report with the findings so far.
    pub report: SelftestReport,
    /// Verbs context of the tested device.
    pub context: Context,
    /// Number of the tested port.
    pub port: u8,
    /// `true` if the progress of the selftest is not to be printed.
    pub quiet: bool,
    /// Time at which the selftest started.
    pub began: Instant,
    /// Set when a signal to end the selftest has arrived.
    pub stop: Arc<AtomicBool>,
}

/// Error of a request to the device, which has an error number (errno); EIO if it has none.
pub trait HasErrno {
    /// Returns the error number (errno) of the refused request.
    fn errno(&self) -> i32;
}

impl HasErrno for io::Error {
    fn errno(&self) -> i32 {
        self.raw_os_error().unwrap_or(libc::EIO)
    }
}

impl HasErrno for VerbsError {
    fn errno(&self) -> i32 {
        match self {
            Self::Verb { source, .. } => source.errno(),
            Self::Memory(refusal) => refusal.errno(),
            _ => libc::ENODEV,
        }
    }
}

impl HasErrno for ResourceError {
    fn errno(&self) -> i32 {
        match self {
            Self::File { source, .. } | Self::System { source, .. } => source.errno(),
            _ => libc::EIO,
        }
    }
}

impl HasErrno for wqcap_engine::Error {
    fn errno(&self) -> i32 {
        match self {
            Self::Resource(refusal) => refusal.errno(),
            Self::Verb { source, .. } => source.errno(),
            _ => libc::EINVAL,
        }
    }
}

impl SelftestRun {
    /// Returns `true` if the selftest is over, because a signal arrived or a test ended it.
    pub fn is_over(&mut self) -> bool {
        if self.stop.load(Ordering::Relaxed) {
            self.end("a signal arrived");
        }
        self.report.ended_early.is_some()
    }

    /// Ends the selftest early for the reason `reason`. If it is called again, the first reason
    /// stays.
    pub fn end(&mut self, reason: impl Into<String>) {
        self.report.ended_early.get_or_insert(reason.into());
    }

    /// Ends the selftest early because the device refused an object that the remaining requests
    /// need.
    pub fn end_without(&mut self, object: &str) {
        self.end(format!(
            "the device refused to create {object}, which the remaining requests of the selftest need"
        ));
    }

    /// Records a finding of the selftest; its request took `us` microseconds.
    pub fn note(&mut self, subject: &str, id: impl Into<String>, us: u64, outcome: Outcome) {
        self.report.findings.push(Finding {
            subject: subject.into(),
            id: id.into(),
            us,
            outcome,
        });
    }

    /// Records a finding of the selftest with a value that the device reports.
    pub fn value(&mut self, subject: &str, id: &str, value: impl Into<Value>) {
        let value = value.into();
        self.note(subject, id, 0, Outcome::Value { value });
    }

    /// Records a finding whose request was not sent to the device, with the reason, unless the
    /// selftest is over.
    pub fn record_not_asked(&mut self, subject: &str, id: &str, reason: &str) {
        if self.is_over() {
            return;
        }
        let reason = reason.into();
        self.note(subject, id, 0, Outcome::NotAsked { reason });
    }

    /// Records a finding of the selftest: whether `found` is the result that the engine expects. If
    /// not, the finding has the bytes of the completion.
    pub fn expect(
        &mut self,
        subject: &str,
        id: &str,
        expected: impl Into<Value>,
        found: impl Into<Value>,
        raw: Option<&[u8; 64]>,
    ) {
        let (expected, found) = (expected.into(), found.into());
        let outcome = if expected == found {
            Outcome::AsExpected
        } else {
            Outcome::Differs {
                expected,
                found,
                raw: raw.map(|it| it.map(|byte| format!("{byte:02x}")).concat()),
            }
        };
        self.note(subject, id, 0, outcome);
    }

    /// Records a finding with a measured value. A value without an uncertainty is not compared.
    pub fn measured(
        &mut self,
        subject: &str,
        id: &str,
        value: f64,
        unit: &str,
        uncertainty: Option<f64>,
    ) {
        let unit = unit.into();
        let outcome = Outcome::Measured {
            value,
            unit,
            uncertainty,
        };
        self.note(subject, id, 0, outcome);
    }

    /// Installs a flow rule of normal kind on the tested port.
    pub fn install(
        &self,
        qp: &RssQp,
        priority: u16,
        specs: Vec<FlowSpec>,
    ) -> Result<Flow, VerbsError> {
        let (port, kind) = (self.port, FlowKind::Normal);
        let rule = FlowRule {
            port,
            kind,
            priority,
            specs,
        };
        Flow::create(qp, &rule)
    }

    /// Requests a sniffer rule on the tested port, and records the outcome as the finding `id`.
    pub fn sniffer(&mut self, id: &str, qp: &RssQp) -> Option<Flow> {
        let rule = FlowRule {
            port: self.port,
            kind: FlowKind::Sniffer,
            priority: 0,
            specs: Vec::new(),
        };
        self.request("sniffer", id, |_| Flow::create(qp, &rule))
    }

    /// Returns `true` if the tested device is lost or the selftest is over. After a loss, previous
    /// results are not valid.
    pub fn is_lost(&mut self) -> bool {
        if let Err(e) = self.context.query_port(self.port) {
            self.end(format!("the device is lost: {e}"));
        }
        self.is_over()
    }

    /// Waits until the device raises the event `wanted`, for at most `most`. Returns whether it was
    /// raised; `None`: the selftest is over.
    pub fn until_event(
        &mut self,
        events: &mut AsyncEvents,
        wanted: AsyncEvent,
        most: Duration,
    ) -> Option<bool> {
        let began = Instant::now();
        while began.elapsed() < most {
            if self.is_over() {
                return None;
            }
            while let Some(event) = events.take() {
                if event == wanted {
                    return Some(true);
                }
                if event == AsyncEvent::DeviceFatal && self.is_lost() {
                    return None;
                }
            }
            thread::sleep(TICK);
        }
        Some(false)
    }

    /// Prints the next step of the selftest to stderr, unless `quiet` is set.
    pub fn announce(&self, what: &str) {
        if !self.quiet {
            terminal::print_line(format_args!("{what}"));
        }
    }

    /// Sends a request to the device, records the outcome and its duration as a finding, and
    /// returns the created object; `None`: the device refused it, or the selftest is over.
    pub fn request<T, E: HasErrno>(
        &mut self,
        subject: &str,
        id: impl Into<String>,
        make: impl FnOnce(&Self) -> Result<T, E>,
    ) -> Option<T> {
        if self.is_over() {
            return None;
        }
        let began = Instant::now();
        let made = make(self);
        let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        match made {
            Ok(made) => {
                self.note(subject, id, us, Outcome::Accepted);
                Some(made)
            }
            Err(e) => {
                let errno = e.errno();
                // A lost device answers every request with EIO, which is not an outcome.
                if errno != libc::EIO || !self.is_lost() {
                    self.note(subject, id, us, Outcome::refused(errno));
                }
                None
            }
        }
    }

    /// Returns the selftest report, which is complete unless the selftest ended early.
    pub fn finish(mut self) -> SelftestReport {
        self.report.duration_ms =
            u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.report
    }
}
