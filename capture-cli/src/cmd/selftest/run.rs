//! A selftest under way: what was found until now, and why to ask no further.

use super::report::{Finding, Outcome, SelftestReport};
use crate::term::terminal;
use serde_json::Value;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};
use wqcap_engine::ResourceError;
use wqcap_engine::verbs::{Context, Flow, FlowKind, FlowRule, FlowSpec, RssQp, VerbsError};

/// Collects findings until a signal comes or the device goes.
pub struct Run {
    pub report: SelftestReport,
    pub context: Context,
    pub port: u8,
    pub quiet: bool,
    pub began: Instant,
    /// A signal has come.
    pub stop: Arc<AtomicBool>,
}

/// An error's errno; EIO where there is none.
pub trait HasErrno {
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

impl Run {
    /// Whether no more is to be asked.
    pub fn is_over(&mut self) -> bool {
        if self.stop.load(Ordering::Relaxed) {
            self.end("a signal");
        }
        self.report.ended_early.is_some()
    }

    /// Asks no more from now on; the first reason counts.
    pub fn end(&mut self, reason: impl Into<String>) {
        self.report.ended_early.get_or_insert(reason.into());
    }

    /// Asks no more, for want of an object that the rest is asked on.
    pub fn end_without(&mut self, object: &str) {
        self.end(format!("the device refused {object}, which the rest needs"));
    }

    /// Notes a finding that took `us`.
    pub fn note(&mut self, subject: &str, id: impl Into<String>, us: u64, outcome: Outcome) {
        self.report.findings.push(Finding {
            subject: subject.into(),
            id: id.into(),
            us,
            outcome,
        });
    }

    /// Notes what the device says of itself.
    pub fn value(&mut self, subject: &str, id: &str, value: impl Into<Value>) {
        let value = value.into();
        self.note(subject, id, 0, Outcome::Value { value });
    }

    /// Notes that something was not asked.
    pub fn not_asked(&mut self, subject: &str, id: &str, reason: &str) {
        let reason = reason.into();
        self.note(subject, id, 0, Outcome::NotAsked { reason });
    }

    /// Notes whether what was found is what the engine expects; a completion's bytes are kept if it is not.
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

    /// Notes a measurement; without an uncertainty it is not compared.
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

    /// Installs a rule of the test's.
    pub fn install(
        &self,
        qp: &RssQp,
        priority: u16,
        specs: Vec<FlowSpec>,
    ) -> Result<Flow, VerbsError> {
        let rule = FlowRule {
            port: self.port,
            kind: FlowKind::Normal,
            priority,
            specs,
        };
        Flow::create(qp, &rule)
    }

    /// Whether the device is gone: then no more is to be asked, and what was last seen is no answer.
    pub fn is_lost(&mut self) -> bool {
        if let Err(e) = self.context.query_port(self.port) {
            self.end(format!("the device is lost: {e}"));
        }
        self.is_over()
    }

    /// Says what takes a while.
    pub fn say(&self, what: &str) {
        if !self.quiet {
            terminal::say(format_args!("{what}"));
        }
    }

    /// Asks for something, notes the answer, and gives what was made.
    pub fn ask<T, E: HasErrno>(
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
                // EIO comes of everything asked of a device that is gone; it is not an answer then.
                if errno != libc::EIO || !self.is_lost() {
                    self.note(subject, id, us, Outcome::refused(errno));
                }
                None
            }
        }
    }

    /// The report, complete or not.
    pub fn finish(mut self) -> SelftestReport {
        self.report.duration_ms =
            u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.report
    }
}
