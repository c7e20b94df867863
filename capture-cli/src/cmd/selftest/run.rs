//! A selftest under way: what was found until now, and why to ask no further.

use super::report::{Finding, Outcome, Report};
use serde_json::Value;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};
use wqcap_engine::verbs::{Context, VerbsError};

/// Collects findings until a signal comes or the device goes.
pub struct Run {
    pub report: Report,
    pub context: Context,
    pub port: u8,
    began: Instant,
    stop: Arc<AtomicBool>,
}

/// The errno of an error; EIO where there is none.
pub fn errno(e: &VerbsError) -> i32 {
    match e {
        VerbsError::Verb { source, .. } | VerbsError::Memory { source, .. } => {
            source.raw_os_error().unwrap_or(libc::EIO)
        }
        _ => libc::ENODEV,
    }
}

impl Run {
    /// A run without findings.
    pub fn new(report: Report, context: Context, port: u8, stop: Arc<AtomicBool>) -> Self {
        Self {
            report,
            context,
            port,
            began: Instant::now(),
            stop,
        }
    }

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

    /// Asks for something, notes the answer, and gives what was made.
    pub fn ask<T>(
        &mut self,
        subject: &str,
        id: impl Into<String>,
        make: impl FnOnce() -> Result<T, VerbsError>,
    ) -> Option<T> {
        if self.is_over() {
            return None;
        }
        let began = Instant::now();
        let made = make();
        let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        match made {
            Ok(made) => {
                self.note(subject, id, us, Outcome::Accepted);
                Some(made)
            }
            Err(e) => {
                let errno = errno(&e);
                // EIO comes of everything asked of a device that is gone; it is not an answer then.
                if errno == libc::EIO
                    && let Err(e) = self.context.query_port(self.port)
                {
                    self.end(format!("the device is lost: {e}"));
                } else {
                    self.note(subject, id, us, Outcome::refused(errno));
                }
                None
            }
        }
    }

    /// The report, complete or not.
    pub fn finish(mut self) -> Report {
        self.report.duration_ms =
            u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.report
    }
}
